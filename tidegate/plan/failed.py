"""The stream of the rows on which an expression of a query failed (on_error = 'dead_letter')."""

from __future__ import annotations

from tidegate.catalog.declare import FAILED_COLUMNS
from tidegate.catalog.objects import SideKind, SideStream, Stream
from tidegate.catalog.options import Options
from tidegate.plan.late import late_side


def side_streams(stream: Stream) -> list[SideStream]:
    """The streams that a stream brings along: its late rows, its dead letters."""
    return [*late_side(stream), *_failed_side(stream)]


def _failed_side(stream: Stream) -> list[SideStream]:
    name = stream.options["dead_letters"]
    if name is None:
        return []
    return [
        SideStream(
            name,
            Options({}, {}, set()),
            stream.statement,
            stream.origin,
            FAILED_COLUMNS,
            stream.name,
            SideKind.FAILED_ROWS,
        )
    ]
