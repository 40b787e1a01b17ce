"""Output on a terminal: formatted tables, and a live status table at the bottom."""

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
from tidegate.cli.screen import cells, shown_of
from tidegate.cli.text import notes
from tidegate.observe.status import State, StreamStatus

_STATE_COLOURS = {
    State.STARTING: "yellow",
    State.RUNNING: "green",
    State.FINISHED: "cyan",
    State.STOPPED: "dim",
    State.FAILED: "bold red",
}
REFRESHES_PER_SECOND = 4


def own_console() -> Console:
    """A console on a copy of stdout.

    While Spark starts, stdout leads to its log file, so that the JVM inherits the log and not the
    terminal; a person still wants to see the spinner.
    """
    copy = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding)
    return Console(file=copy, highlight=False)


class LiveScreen:
    """Writes to a terminal; rows scroll by above the table of streams."""

    def __init__(
        self,
        console: Console | None = None,
        note: Callable[[], str] = lambda: "",
        ends: bool = False,
    ) -> None:
        self.console = console or own_console()
        self.note = note
        self.ends = ends
        self._statuses: Sequence[StreamStatus] = ()
        self._live: Live | None = None

    def line(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.console.print(pretty_table(title, columns, rows))

    def rows(self, stream: str, epoch: int, rows: Any) -> None:
        self.table(f"{stream} · epoch {epoch}{shown_of(rows)}", *cells(rows))

    def progress(self, statuses: Sequence[StreamStatus]) -> None:
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
        table = status_table(self._statuses, self.console, self.ends)
        failed = any(status.state is State.FAILED for status in self._statuses)
        said = notes(self._statuses, self.ends)
        lines = [Text(line, "red" if failed else "dim") for line in said]
        return Group(table, *lines) if lines else table

    @contextmanager
    def working(self, message: str) -> Iterator[None]:
        """A spinner that leaves no trace, or the note of someone who wants to leave."""
        spinner = Spinner("dots")
        began = time.monotonic()

        def show() -> RenderableType:
            seconds = int(time.monotonic() - began)
            status = f"{message} {seconds} s" if seconds else message
            said = Text(self.note(), "yellow") if self.note() else Text(status, "dim")
            spinner.update(text=said)
            return spinner

        with Live(
            console=self.console,
            get_renderable=show,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield

    def end(self, statuses: Sequence[StreamStatus]) -> None:
        self._statuses = statuses
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif statuses:
            self.console.print(self._render())


def pretty_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Rows for people: numbers on the right, NULL dimmed."""
    table = Table(
        title=Text(title, "bold") if title else None,
        title_justify="left",
        box=box.ROUNDED,
        header_style="bold cyan",
        border_style="dim",
    )
    right = text.right_aligned(columns, rows)
    for name, to_right in zip(columns, right, strict=True):
        table.add_column(
            Text(text.printable(name)), justify="right" if to_right else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(text.value(item), "dim" if item is None else "") for item in row))
    return table


def status_table(statuses: Sequence[StreamStatus], console: Console, ends: bool = False) -> Table:
    """One row per stream. On a narrow screen first the columns that are empty for all give way,
    then those that matter least. Input that ends has a bar."""
    columns = [column for column in _COLUMNS if ends or column.head != "input"]
    telling = [column for column in columns if not all(column.empty(status) for status in statuses)]
    unlimited = console.options.update_width(10_000)
    for least in (None, "", *_MATTER_LEAST):
        if least is not None:
            columns = telling = [column for column in telling if column.head != least]
        table = _status_table(columns, statuses)
        if Measurement.get(console, unlimited, table).maximum <= console.width:
            break
    return table


def _status_table(columns: Sequence[_Column], statuses: Sequence[StreamStatus]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True)
    for column in columns:
        left = column.head in ("stream", "state", "input", "watermark")
        table.add_column(column.head, justify="left" if left else "right", no_wrap=True)
    for status in statuses:
        table.add_row(*(column.cell(status) for column in columns))
    return table


def _state(status: StreamStatus) -> Text:
    return Text(status.state.value, _STATE_COLOURS[status.state])


def _alarming(number: int) -> Text:
    return Text(text.count(number), "yellow" if number else "dim")


def _optional(shown: str | None) -> Text:
    return Text(shown) if shown is not None else Text("–", "dim")


def _watermark(status: StreamStatus) -> Text:
    mark = status.watermark
    # Parts of a second would only flicker.
    return _optional(text.moment(mark.replace(microsecond=0)) if mark is not None else None)


def _lag(status: StreamStatus) -> Text:
    return _optional(text.duration(lag) if (lag := status.live_lag_seconds) is not None else None)


def _input(status: StreamStatus) -> Text:
    return _optional(None if status.progress is None else text.bar(status.progress))


def _took(status: StreamStatus) -> Text:
    took = status.epoch_seconds
    return _optional(None if took is None else text.duration(took))


@dataclass(frozen=True)
class _Column:
    """A column of the status table: its heading, its cells, and the value that counts as empty."""

    head: str
    cell: Callable[[StreamStatus], Text]
    empty: Callable[[StreamStatus], bool] = lambda status: False


_COLUMNS = (
    _Column("stream", lambda s: Text(s.name, "bold")),
    _Column("state", _state),
    _Column("input", _input, lambda s: s.progress is None),
    _Column("rows in", lambda s: Text(text.count(s.rows_in))),
    _Column("rows out", lambda s: Text(text.count(s.rows_out))),
    _Column("rows/s", lambda s: Text(text.rate(s.rows_in_per_second))),
    _Column("watermark", _watermark, lambda s: s.watermark is None),
    _Column("lag", _lag, lambda s: s.live_lag_seconds is None),
    _Column("late", lambda s: _alarming(s.late_rows), lambda s: not s.late_rows),
    _Column("dead letters", lambda s: _alarming(s.dead_letters), lambda s: not s.dead_letters),
    _Column("state size", lambda s: Text(text.size(s.state_bytes)), lambda s: not s.state_bytes),
    _Column(
        "epoch",
        lambda s: _optional(None if s.epoch is None else text.count(s.epoch)),
        lambda s: s.epoch is None,
    ),
    _Column("took", _took, lambda s: s.epoch_seconds is None),
)
# The table shows the watermark's lag; the final summary and the metrics show the rest.
_MATTER_LEAST = ("watermark", "took", "epoch", "state size", "input", "rows/s", "lag")
