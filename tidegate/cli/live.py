"""The screen for terminals: formatted tables, and a live status table at the bottom."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tidegate.cli import text
from tidegate.cli.screen import describe_activities, row_limit_note, to_rows
from tidegate.observe.status import State, StreamStatus

_STATE_STYLES = {
    State.STARTING: "yellow",
    State.RUNNING: "green",
    State.FINISHED: "cyan",
    State.STOPPED: "dim",
    State.FAILED: "bold red",
}
REFRESHES_PER_SECOND = 4


def stdout_copy_console() -> Console:
    """Return a console on a duplicate of stdout.

    While Spark starts, stdout is redirected to its log file, so that the JVM inherits the log
    instead of the terminal. The duplicate still writes to the terminal.
    """
    copy = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding)
    return Console(file=copy, highlight=False)


class LiveScreen:
    """Prints to a terminal. Rows scroll above a status table, which is updated in place."""

    def __init__(
        self,
        console: Console | None = None,
        notice: Callable[[], str] = lambda: "",
        is_bounded: bool = False,
    ) -> None:
        self.console = console or stdout_copy_console()
        self.notice = notice
        self.is_bounded = is_bounded
        self._statuses: Sequence[StreamStatus] = ()
        self._live: Live | None = None

    def print_line(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def print_table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        self.console.print(_row_table(title, columns, rows))

    def print_rows(self, stream: str, epoch: int, rows: Any) -> None:
        self.print_table(f"{stream} · epoch {epoch}{row_limit_note(rows)}", *to_rows(rows))

    def show_progress(self, statuses: Sequence[StreamStatus]) -> None:
        self._statuses = statuses
        if self._live is None:
            self._live = Live(
                console=self.console,
                get_renderable=self._render,
                refresh_per_second=REFRESHES_PER_SECOND,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)

    def _render(self) -> RenderableType:
        table = _status_table(self._statuses, self.console, self.is_bounded)
        failed = any(status.state is State.FAILED for status in self._statuses)
        activities = describe_activities(self._statuses, self.is_bounded)
        lines = [Text(line, "red" if failed else "dim") for line in activities]
        return Group(table, *lines) if lines else table

    @contextmanager
    def working(self, message: str) -> Iterator[None]:
        """Show a spinner with the message, or with the notice if there is one."""
        spinner = Spinner("dots")
        start = time.monotonic()

        def render() -> RenderableType:
            seconds = int(time.monotonic() - start)
            status = f"{message} {seconds} s" if seconds else message
            notice = self.notice()
            spinner.update(text=Text(notice, "yellow") if notice else Text(status, "dim"))
            return spinner

        with Live(
            console=self.console,
            get_renderable=render,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield

    def print_final_status(self, statuses: Sequence[StreamStatus]) -> None:
        self._statuses = statuses
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif statuses:
            self.console.print(self._render())


def _row_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table(
        title=Text(title, "bold") if title else None,
        title_justify="left",
        box=box.ROUNDED,
        header_style="bold cyan",
        border_style="dim",
    )
    for name, is_numeric in zip(columns, text.numeric_columns(columns, rows), strict=True):
        table.add_column(
            Text(text.escape(name)), justify="right" if is_numeric else "left", overflow="fold"
        )
    for row in rows:
        cells = (Text(text.format_value(item), "dim" if item is None else "") for item in row)
        table.add_row(*cells)
    return table


# ---- The status table


def _status_table(statuses: Sequence[StreamStatus], console: Console, is_bounded: bool) -> Table:
    """Build the status table: one row per stream.

    If the terminal is too narrow for all columns, empty columns are dropped first, then the least
    important ones. Bounded input has a progress bar.
    """
    columns = [column for column in _COLUMNS if is_bounded or column.title != "input"]
    table = _build_table(columns, statuses)
    if _fits(table, console):
        return table
    columns = [c for c in columns if not all(c.is_empty(status) for status in statuses)]
    for dropped in (None, *_LEAST_IMPORTANT):
        columns = [column for column in columns if column.title != dropped]
        table = _build_table(columns, statuses)
        if _fits(table, console):
            break
    return table


def _fits(table: Table, console: Console) -> bool:
    unlimited = console.options.update_width(10_000)
    return Measurement.get(console, unlimited, table).maximum <= console.width


def _build_table(columns: Sequence[_Column], statuses: Sequence[StreamStatus]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True)
    for column in columns:
        left = column.title in ("stream", "state", "input", "watermark")
        table.add_column(column.title, justify="left" if left else "right", no_wrap=True)
    for status in statuses:
        table.add_row(*(column.cell(status) for column in columns))
    return table


def _state(status: StreamStatus) -> Text:
    return Text(status.state.value, _STATE_STYLES[status.state])


def _rejected_rows(number: int) -> Text:
    return Text(text.format_count(number), "yellow" if number else "dim")


def _optional(value: str | None) -> Text:
    return Text(value) if value is not None else Text("–", "dim")


def _watermark(status: StreamStatus) -> Text:
    if status.watermark is None:
        return _optional(None)
    # Fractions of a second would only flicker.
    return Text(text.format_timestamp(status.watermark.replace(microsecond=0)))


def _lag(status: StreamStatus) -> Text:
    lag = status.live_lag_seconds
    return _optional(None if lag is None else text.format_seconds(lag))


def _input(status: StreamStatus) -> Text:
    return _optional(None if status.progress is None else text.progress_bar(status.progress))


def _epoch(status: StreamStatus) -> Text:
    return _optional(None if status.epoch is None else text.format_count(status.epoch))


def _epoch_duration(status: StreamStatus) -> Text:
    seconds = status.epoch_seconds
    return _optional(None if seconds is None else text.format_seconds(seconds))


@dataclass(frozen=True)
class _Column:
    """A column of the status table; `is_empty` tests whether a stream has no value for it."""

    title: str
    cell: Callable[[StreamStatus], Text]
    is_empty: Callable[[StreamStatus], bool] = lambda status: False


_COLUMNS = (
    _Column("stream", lambda s: Text(s.name, "bold")),
    _Column("state", _state),
    _Column("input", _input, lambda s: s.progress is None),
    _Column("rows in", lambda s: Text(text.format_count(s.rows_in))),
    _Column("rows out", lambda s: Text(text.format_count(s.rows_out))),
    _Column("rows/s", lambda s: Text(text.format_rate(s.rows_in_per_second))),
    _Column("watermark", _watermark, lambda s: s.watermark is None),
    _Column("lag", _lag, lambda s: s.live_lag_seconds is None),
    _Column("late", lambda s: _rejected_rows(s.late_rows), lambda s: not s.late_rows),
    _Column("dead letters", lambda s: _rejected_rows(s.dead_letters), lambda s: not s.dead_letters),
    _Column(
        "state size", lambda s: Text(text.format_size(s.state_bytes)), lambda s: not s.state_bytes
    ),
    _Column("epoch", _epoch, lambda s: s.epoch is None),
    _Column("took", _epoch_duration, lambda s: s.epoch_seconds is None),
)
# The columns that a narrow table drops, in this order. Metrics and the console have them all.
_LEAST_IMPORTANT = ("watermark", "took", "epoch", "state size", "input", "rows/s", "lag")
