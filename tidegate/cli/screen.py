"""What commands that run pipelines need of the place they write to, and what both kinds share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.cli.report import is_terminal
from tidegate.connectors.debug_sinks import TOTAL_ROWS
from tidegate.observe.status import StreamStatus

if TYPE_CHECKING:
    from tidegate.results import Result


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
        """Say what takes a while, as long as it takes."""

    def end(self, statuses: Sequence[StreamStatus]) -> None:
        """The last word on every stream."""


def open_screen(note: Callable[[], str] = lambda: "", ends: bool = False) -> Screen:
    """A live screen on a terminal, plain text otherwise; `note` is shown while there is one.

    `ends`: the streams end by themselves.
    """
    if is_terminal(sys.stdout):
        from tidegate.cli.live import LiveScreen

        return LiveScreen(note=note, ends=ends)
    from tidegate.cli.plain import PlainScreen

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
