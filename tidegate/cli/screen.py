"""Screens: how commands show results, rows of console sinks, and the progress of streams.

`open_screen` returns a `LiveScreen` on a terminal (module `live`) and a `PlainScreen` in a pipe.
`tidegate run --log-format json` uses a `JsonLog`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.cli import text
from tidegate.cli.errors import is_terminal, json_line
from tidegate.connectors.debug_sinks import TOTAL_ROWS
from tidegate.errors import pluralize
from tidegate.observe.rendering import json_value
from tidegate.observe.status import State, StreamStatus

if TYPE_CHECKING:
    from tidegate.session.results import Result


class Screen(Protocol):
    """The output of a command. `print_rows` is called by the threads of pipelines."""

    def print_line(self, text: str) -> None:
        """Print a line, or a text of several lines."""

    def print_table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        """Print a table; its title may be empty."""

    def print_rows(self, stream: str, epoch: int, rows: Any) -> None:
        """Print the rows of a console sink, a pyarrow.Table."""

    def show_progress(self, statuses: Sequence[StreamStatus]) -> None:
        """Show the current status of the streams."""

    def working(self, message: str) -> AbstractContextManager[None]:
        """Show a message while a slow operation runs."""

    def print_final_status(self, statuses: Sequence[StreamStatus]) -> None:
        """Stop showing progress and print the last status of the streams."""


def open_screen(notice: Callable[[], str] = lambda: "", is_bounded: bool = False) -> Screen:
    """Return a live screen on a terminal, otherwise a screen of plain text.

    A live screen shows the text of `notice` while there is one. `is_bounded`: the streams end at
    the end of their input.
    """
    if is_terminal(sys.stdout):
        from tidegate.cli.live import LiveScreen

        return LiveScreen(notice=notice, is_bounded=is_bounded)

    return PlainScreen()


def print_results(screen: Screen, results: Iterable[Result]) -> None:
    """Print the results of the statements of a script."""
    for result in results:
        if result.text is not None:
            # Separate a plan from the following output.
            screen.print_line(result.text + "\n" if "\n" in result.text else result.text)
        elif result.columns:
            screen.print_table(result.title, result.columns, result.rows)
        elif result.title:
            screen.print_line(result.title)


# ---- Rows


def to_rows(table: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the column names and the rows of a pyarrow.Table as Python values."""
    columns = [_to_values(column) for column in table.columns]
    return list(table.column_names), list(zip(*columns, strict=True))


def _to_values(column: Any) -> list[Any]:
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        # Spark does not check that strings are valid UTF-8.
        encoded = column.cast("binary").to_pylist()
        return [None if item is None else item.decode("utf-8", "replace") for item in encoded]


def row_limit_note(table: Any) -> str:
    """Return ", 6 of 245 rows" if the console sink shows only the first rows of an epoch."""
    metadata = getattr(table.schema, "metadata", None) or {}
    total = int(metadata.get(TOTAL_ROWS.encode(), table.num_rows))
    return f", {table.num_rows:,} of {total:,} rows" if total > table.num_rows else ""


# ---- Status as text


def describe_activity(status: StreamStatus, is_bounded: bool) -> str | None:
    """Return why a stream does not process rows now; None if it does, or if it has ended."""
    if status.error is not None:
        return status.error
    if status.state not in (State.STARTING, State.RUNNING):
        return None
    epoch_seconds = status.running_seconds
    if status.epoch is None and epoch_seconds is not None:
        return f"running the first epoch, which takes longest: {int(epoch_seconds)} s"
    if status.epoch is None:
        return "waiting for the first rows"
    if status.rows_in_per_second > 0:
        return None
    if epoch_seconds is not None and epoch_seconds >= 1:
        return f"running an epoch: {int(epoch_seconds)} s"
    if not status.open_windows:
        return "waiting for rows"
    windows = pluralize(status.open_windows, "open window")
    hint = "" if is_bounded else "; --until-end closes open windows"
    return f"waiting for rows; {windows}{hint}"


def describe_activities(statuses: Sequence[StreamStatus], is_bounded: bool) -> list[str]:
    """Return one line per activity, with the names of its streams unless it applies to all."""
    streams: dict[str, list[str]] = {}
    for status in statuses:
        activity = describe_activity(status, is_bounded)
        if activity is not None:
            streams.setdefault(activity, []).append(status.name)
    if len(streams) == 1 and len(statuses) == sum(map(len, streams.values())):
        return list(streams)
    return [f"{', '.join(names)}: {activity}" for activity, names in streams.items()]


def progress_line(status: StreamStatus) -> str:
    """Return the status of a running stream in one line."""
    parts = [
        f"{status.name}: epoch {status.epoch}",
        f"{pluralize(status.rows_in, 'row')} in ({text.format_rate(status.rows_in_per_second)}/s)",
        f"{pluralize(status.rows_out, 'row')} out "
        f"({text.format_rate(status.rows_out_per_second)}/s)",
    ]
    if status.progress is not None and status.progress < 1:
        parts.append(f"{text.format_percent(status.progress)} of the input read")
    return ", ".join(parts + _nonzero_counters(status))


def summary_line(status: StreamStatus) -> str:
    """Return the final status of a stream in one line."""
    parts = [
        f"{status.name}: {status.state.value}",
        "no epoch" if status.epoch is None else f"epoch {status.epoch}",
        f"{pluralize(status.rows_in, 'row')} in",
        f"{pluralize(status.rows_out, 'row')} out",
    ]
    return ", ".join(parts + _nonzero_counters(status))


def _nonzero_counters(status: StreamStatus) -> list[str]:
    """Return the watermark and the counters that a stream may not have."""
    parts = []
    if status.watermark is not None:
        lag = status.live_lag_seconds
        behind = f" ({text.format_seconds(lag)} behind)" if lag is not None else ""
        parts.append(f"watermark {text.format_timestamp(status.watermark)}{behind}")
    if status.late_rows:
        parts.append(pluralize(status.late_rows, "late row"))
    if status.dead_letters:
        parts.append(pluralize(status.dead_letters, "dead letter"))
    if status.state_bytes:
        parts.append(f"state {text.format_size(status.state_bytes)}")
    return parts


# ---- Plain text for pipes and log files, without colors and cursor movements

# A stream may finish many epochs per second; do not log each of them.
SECONDS_BETWEEN_LINES = 1.0


class PlainScreen:
    """Prints plain text to stdout, with one line of progress per epoch."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By stream: when its last line was printed, and the epoch in it.
        self._printed: dict[str, tuple[float, int | None]] = {}
        self._broken_pipe = False

    def print_line(self, text: str) -> None:
        with self._lock:
            print(text, flush=True)

    def print_table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        table = text.format_table(columns, rows)
        self.print_line(f"{title}\n{table}\n" if title else f"{table}\n")

    def print_rows(self, stream: str, epoch: int, rows: Any) -> None:
        columns, values = to_rows(rows)
        try:
            self.print_table(f"{stream}, epoch {epoch}{row_limit_note(rows)}", columns, values)
        except BrokenPipeError:
            # Raised here, it would fail the pipeline. `show_progress` raises it in the command.
            self._broken_pipe = True

    def show_progress(self, statuses: Sequence[StreamStatus]) -> None:
        if self._broken_pipe:
            raise BrokenPipeError
        now = self._clock()
        for status in statuses:
            last, epoch = self._printed.get(status.name, (now - SECONDS_BETWEEN_LINES, None))
            if status.epoch != epoch and now - last >= SECONDS_BETWEEN_LINES:
                self._printed[status.name] = (now, status.epoch)
                self.print_line(f"{time.strftime('%H:%M:%S')} {progress_line(status)}")

    @contextmanager
    def working(self, message: str) -> Iterator[None]:
        """Print nothing: progress is not part of the output."""
        yield

    def print_final_status(self, statuses: Sequence[StreamStatus]) -> None:
        sys.stdout.flush()
        for status in statuses:
            self.print_line(summary_line(status))


# ---- JSON for log collectors: one object per line

_STATUS_FIELDS = (
    "epoch", "rows_in", "rows_out", "rows_in_per_second", "rows_out_per_second", "watermark",
    "watermark_lag_seconds", "late_rows", "dead_letters", "lost_records", "pending_records",
    "state_bytes", "open_windows", "epoch_seconds", "error",
)  # fmt: skip
# The keys of fields that have another name in the log.
_LOG_KEYS = {"lost_records": "lost", "pending_records": "behind"}


class JsonLog:
    """Prints every event as a JSON object to stdout."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By stream: when its last event was logged, and the epoch, state and error in it.
        self._logged: dict[str, tuple[float, tuple[Any, ...]]] = {}
        self._broken_pipe = False

    def _log(self, level: str, event: str, **content: Any) -> None:
        with self._lock:
            print(json_line(level, event, **content), flush=True)

    def print_line(self, text: str) -> None:
        self._log("info", "message", message=text.rstrip())

    def print_table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        self._log("info", "table", title=title, rows=_json_objects(columns, rows))

    def print_rows(self, stream: str, epoch: int, rows: Any) -> None:
        objects = _json_objects(*to_rows(rows))
        try:
            self._log("info", "rows", stream=stream, epoch=epoch, rows=objects)
        except BrokenPipeError:
            # Raised here, it would fail the pipeline. `show_progress` raises it in the command.
            self._broken_pipe = True

    def show_progress(self, statuses: Sequence[StreamStatus]) -> None:
        """Log new epochs at most once per second, and new states and errors immediately."""
        if self._broken_pipe:
            raise BrokenPipeError
        now = self._clock()
        for status in statuses:
            last, (epoch, *last_state) = self._logged.get(
                status.name, (now - SECONDS_BETWEEN_LINES, (None, None, None))
            )
            state = [status.state, status.error]
            is_due = now - last >= SECONDS_BETWEEN_LINES
            if last_state != state or (is_due and status.epoch != epoch):
                self._logged[status.name] = (now, (status.epoch, *state))
                self._log_status("progress", status)

    def _log_status(self, event: str, status: StreamStatus) -> None:
        level = "warning" if status.error is not None else "info"
        values = {_LOG_KEYS.get(name, name): getattr(status, name) for name in _STATUS_FIELDS}
        self._log(level, event, stream=status.name, state=status.state.value, **values)

    @contextmanager
    def working(self, message: str) -> Iterator[None]:
        self.print_line(message)
        yield

    def print_final_status(self, statuses: Sequence[StreamStatus]) -> None:
        for status in statuses:
            self._log_status("end", status)


def _json_objects(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, map(json_value, row), strict=True)) for row in rows]
