"""Which operators of a query judge that rows came too late, and which columns such rows have."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.catalog.declare import FAILED_COLUMNS, LATE_COLUMNS
from tidegate.catalog.objects import Column, SideKind, SideStream, Stream
from tidegate.catalog.options import Options
from tidegate.plan import nodes as n
from tidegate.types import ChangelogKind


@dataclass(frozen=True)
class LateInput:
    """Rows that a judge gets from one of its inputs; late ones have the columns of `rows`."""

    operator: n.Node
    port: int
    rows: n.Node


@dataclass(frozen=True)
class LateStream:
    """The columns of a late stream: those of all inputs, a name that several have once.

    A row is NULL in the columns that its input does not have. `clashes` are columns of one name
    that cannot be one: they differ in type, or one input has both.
    """

    inputs: tuple[LateInput, ...]
    columns: tuple[n.Field, ...]
    clashes: tuple[tuple[n.Field, n.Field], ...] = ()

    def sources(self, rows: n.Node) -> tuple[int | None, ...]:
        """For each column of the stream, which column of an input it is."""
        if len(self.inputs) == 1:
            return tuple(range(len(self.columns)))
        own = {item.name.lower(): place for place, item in enumerate(rows.fields)}
        return tuple(own.get(item.name.lower()) for item in self.columns)


def late_stream(plan: n.Node) -> LateStream:
    """What LATE DATA TO makes of a query; without inputs nothing in it can be late."""
    inputs: list[LateInput] = []
    _look(plan, None, inputs)
    if len(inputs) == 1:
        return LateStream(tuple(inputs), inputs[0].rows.fields)
    columns: dict[str, n.Field] = {}
    clashes = []
    for found in inputs:
        own = found.rows.fields
        for item in own:
            known = columns.setdefault(item.name.lower(), item)
            differ = None not in (known.type, item.type) and known.type != item.type
            if differ or (known is not item and known in own):
                clashes.append((known, item))
    return LateStream(tuple(inputs), tuple(columns.values()), tuple(clashes))


def late_row_streams(stream: Stream) -> list[SideStream]:
    """LATE DATA TO name: the stream of the rows that came too late for a query."""
    emit = stream.query.emit
    if emit is None or emit.late_to is None:
        return []
    late = late_stream(stream.plan)
    if not late.inputs or late.clashes:
        # The validator says why; where it is turned off, there is no late stream.
        return []
    columns = tuple(Column(item.name, item.type) for item in late.columns)
    judged = (item.operator.inputs[item.port] for item in late.inputs)
    return [
        SideStream(
            emit.late_to,
            Options({}, {}, set()),
            stream.statement,
            stream.origin,
            (*columns, *LATE_COLUMNS),
            stream.name,
            SideKind.LATE_ROWS,
            any(rows.changelog is not ChangelogKind.APPEND for rows in judged),
        )
    ]


def late_inputs(plan: n.Node) -> dict[str, str]:
    """The late streams that a query reads, itself or in a stream it reads, and whose they are."""
    scans = (node for node in n.walk(plan) if isinstance(node, n.SideScan))
    return {s.side.name.lower(): s.side.parent.lower() for s in scans if s.side.is_late}


def _look(node: n.Node, way: LateInput | None, found: list[LateInput]) -> None:
    """Go down to where rows come in, and note the judge that they meet first.

    What one of them lets pass is not late for those above it. Streams that a query reads judge
    their own rows.
    """
    inputs = () if isinstance(node, n.Inlined) else node.inputs
    for port, child in enumerate(inputs):
        first = LateInput(node, port, node.late_rows(port)) if node.drops_late_rows else way
        _look(child, first, found)
    brings_rows = not inputs and not isinstance(node, n.LookupScan | n.NoRows)
    if brings_rows and way is not None and way not in found:
        found.append(way)


# ---- The stream of the rows on which an expression of a query failed (on_error = 'dead_letter').


def side_streams(stream: Stream) -> list[SideStream]:
    """The streams that a stream brings along: its late rows, its dead letters."""
    return [*late_row_streams(stream), *_failed_side(stream)]


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
