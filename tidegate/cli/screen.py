"""What commands that run pipelines need of the place they write to, and what both kinds share."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.cli import text
from tidegate.cli.report import is_terminal, json_line
from tidegate.connectors.debug_sinks import TOTAL_ROWS
from tidegate.observe.status import StreamStatus, json_value

if TYPE_CHECKING:
    from tidegate.session.results import Result


class Screen(Protocol):
    """Shows results, rows of console sinks and progress. `rows` is called from other threads."""

    def line(self, text: str) -> None:
        """One line, or a few, as they are."""

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """A titled table."""

    def rows(self, stream: str, epoch: int, rows: Any) -> None:
        """What a console sink got: a pyarrow.Table."""

    def progress(self, statuses: Sequence[StreamStatus]) -> None:
        """How the streams are doing now."""

    def working(self, message: str) -> AbstractContextManager[None]:
        """Show a message while a slow step runs."""

    def end(self, statuses: Sequence[StreamStatus]) -> None:
        """The last word on every stream."""


def open_screen(note: Callable[[], str] = lambda: "", ends: bool = False) -> Screen:
    """A live screen on a terminal, plain text otherwise; `note` is shown while there is one.

    `ends`: the streams end by themselves.
    """
    if is_terminal(sys.stdout):
        from tidegate.cli.live import LiveScreen

        return LiveScreen(note=note, ends=ends)

    return PlainScreen()


def show_results(screen: Screen, results: Iterable[Result]) -> None:
    """Print what the statements of a script had to say."""
    for result in results:
        if result.text is not None:
            # A plan needs room below it; a single line does not.
            screen.line(result.text + "\n" if "\n" in result.text else result.text)
        elif result.columns:
            screen.table(result.title, result.columns, result.rows)
        elif result.title:
            screen.line(result.title)


def cells(rows: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The column names and Python rows of a pyarrow.Table."""
    columns = [_values(column) for column in rows.columns]
    return list(rows.column_names), list(zip(*columns, strict=True))


def _values(column: Any) -> list[Any]:
    """The values of a column; Spark lets texts through that are not valid UTF-8."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        raw = column.cast("binary").to_pylist()
        return [None if item is None else item.decode("utf-8", "replace") for item in raw]


def shown_of(rows: Any) -> str:
    """ ", 6 of 245 rows" if the console sink shows only the first rows of an epoch."""
    metadata = getattr(rows.schema, "metadata", None) or {}
    total = int(metadata.get(TOTAL_ROWS.encode(), rows.num_rows))
    return f", {rows.num_rows:,} of {total:,} rows" if total > rows.num_rows else ""


# ---- Plain text for pipes and log files: one line per epoch, no colours, no cursor.

# A stream may finish many epochs per second; do not log each of them.
SECONDS_BETWEEN_LINES = 1.0


class PlainScreen:
    """Writes to stdout; `clock` is there for tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[str, tuple[float, int | None]] = {}
        self._broken = False

    def line(self, text: str) -> None:
        with self._lock:
            print(text, flush=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        drawn = text.table(columns, rows)
        self.line(f"{title}\n{drawn}\n" if title else f"{drawn}\n")

    def rows(self, stream: str, epoch: int, rows: Any) -> None:
        columns, values = cells(rows)
        try:
            self.table(f"{stream}, epoch {epoch}{shown_of(rows)}", columns, values)
        except BrokenPipeError:
            # Raised here it would fail the pipeline; raised by `progress` it ends the command.
            self._broken = True

    def progress(self, statuses: Sequence[StreamStatus]) -> None:
        if self._broken:
            raise BrokenPipeError
        now = self._clock()
        for status in statuses:
            last, epoch = self._said.get(status.name, (now - SECONDS_BETWEEN_LINES, None))
            if status.epoch != epoch and now - last >= SECONDS_BETWEEN_LINES:
                self._said[status.name] = (now, status.epoch)
                self.line(f"{time.strftime('%H:%M:%S')} {progress_line(status)}")

    @contextmanager
    def working(self, message: str) -> Iterator[None]:
        """Print nothing: progress is not part of the output."""
        yield

    def end(self, statuses: Sequence[StreamStatus]) -> None:
        sys.stdout.flush()
        for status in statuses:
            self.line(summary_line(status))


def progress_line(status: StreamStatus) -> str:
    """What happened up to the last epoch."""
    parts = [
        f"{status.name}: epoch {status.epoch}",
        f"{text.plural(status.rows_in, 'row')} in ({text.rate(status.rows_in_per_second)}/s)",
        f"{text.plural(status.rows_out, 'row')} out ({text.rate(status.rows_out_per_second)}/s)",
    ]
    if status.progress is not None and status.progress < 1:
        parts.append(f"{text.percent(status.progress)} of the input read")
    return ", ".join(parts + _extras(status))


def summary_line(status: StreamStatus) -> str:
    """Rows that a stream emitted."""
    epoch = "no epoch" if status.epoch is None else f"epoch {status.epoch}"
    parts = [
        f"{status.name}: {status.state.value}",
        epoch,
        f"{text.plural(status.rows_in, 'row')} in",
        f"{text.plural(status.rows_out, 'row')} out",
    ]
    return ", ".join(parts + _extras(status))


def _extras(status: StreamStatus) -> list[str]:
    """What is worth a word only if there is any of it."""
    parts = []
    if status.watermark is not None:
        lag = status.live_lag_seconds
        behind = f" ({text.duration(lag)} behind)" if lag is not None else ""
        parts.append(f"watermark {text.moment(status.watermark)}{behind}")
    if status.late_rows:
        parts.append(text.plural(status.late_rows, "late row"))
    if status.dead_letters:
        parts.append(text.plural(status.dead_letters, "dead letter"))
    if status.state_bytes:
        parts.append(f"state {text.size(status.state_bytes)}")
    return parts


# ---- A log for machines: one JSON object per line.

_FIELDS = (
    "epoch", "rows_in", "rows_out", "rows_in_per_second", "rows_out_per_second", "watermark",
    "watermark_lag_seconds", "late_rows", "dead_letters", "lost", "behind", "state_bytes",
    "open_windows", "epoch_seconds", "error",
)  # fmt: skip


class JsonLog:
    """Writes to stdout; `clock` is there for tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By stream when something was said of it, and which epoch, state and error it had.
        self._said: dict[str, tuple[float, tuple[Any, ...]]] = {}
        self._broken = False

    def _write(self, level: str, event: str, **content: Any) -> None:
        with self._lock:
            print(json_line(level, event, **content), flush=True)

    def line(self, text: str) -> None:
        self._write("info", "message", message=text.rstrip())

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        listed = _objects(columns, rows)
        self._write("info", "table", title=title, rows=listed)

    def rows(self, stream: str, epoch: int, rows: Any) -> None:
        columns, values = cells(rows)
        listed = _objects(columns, values)
        try:
            self._write("info", "rows", stream=stream, epoch=epoch, rows=listed)
        except BrokenPipeError:
            # Raised here it would fail the pipeline; raised by `progress` it ends the command.
            self._broken = True

    def progress(self, statuses: Sequence[StreamStatus]) -> None:
        """News of each stream: epochs at most once per second, another state or error at once."""
        if self._broken:
            raise BrokenPipeError
        now = self._clock()
        for status in statuses:
            last, (epoch, *trouble) = self._said.get(status.name, (now - 1, (None, None, None)))
            news = (status.epoch, status.state, status.error)
            waited = now - last >= SECONDS_BETWEEN_LINES
            if trouble != [*news[1:]] or (waited and status.epoch != epoch):
                self._said[status.name] = (now, news)
                self._status("progress", status)

    def _status(self, event: str, status: StreamStatus) -> None:
        level = "warning" if status.error is not None else "info"
        values = {name: getattr(status, name) for name in _FIELDS}
        self._write(level, event, stream=status.name, state=status.state.value, **values)

    @contextmanager
    def working(self, message: str) -> Iterator[None]:
        self.line(message)
        yield

    def end(self, statuses: Sequence[StreamStatus]) -> None:
        for status in statuses:
            self._status("end", status)


def _objects(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, map(json_value, row), strict=True)) for row in rows]
