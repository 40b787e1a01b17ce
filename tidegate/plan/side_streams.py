"""Streams of late rows and dead letters that belong to another declaration."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.catalog.declare import FAILED_ROW_COLUMNS, LATE_COLUMNS
from tidegate.catalog.objects import Column, SideKind, SideStream, Stream
from tidegate.catalog.options import Options
from tidegate.plan import nodes as n
from tidegate.types import ChangelogKind


@dataclass(frozen=True)
class LateInput:
    """An input of an operator that drops late rows; late rows have the columns of `rows`."""

    operator: n.Node
    port: int
    rows: n.Node


@dataclass(frozen=True)
class LateStream:
    """The columns of a late stream: those of all inputs, each name once.

    A row is NULL in the columns that its input does not have. `clashes` are columns with the same
    name that cannot be merged: their types differ, or one input has both.
    """

    inputs: tuple[LateInput, ...]
    columns: tuple[n.Field, ...]
    clashes: tuple[tuple[n.Field, n.Field], ...] = ()

    def sources(self, rows: n.Node) -> tuple[int | None, ...]:
        """Return for each column of the stream its index in the columns of an input, if any."""
        if len(self.inputs) == 1:
            return tuple(range(len(self.columns)))
        indexes = {item.name.lower(): index for index, item in enumerate(rows.fields)}
        return tuple(indexes.get(item.name.lower()) for item in self.columns)


def late_stream(plan: n.Node) -> LateStream:
    """Return the late stream of a query. Without inputs, no row of the query can be late."""
    inputs: list[LateInput] = []
    _collect(plan, None, inputs)
    if len(inputs) == 1:
        return LateStream(tuple(inputs), inputs[0].rows.fields)
    columns: dict[str, n.Field] = {}
    clashes = []
    for late_input in inputs:
        fields = late_input.rows.fields
        for item in fields:
            column = columns.setdefault(item.name.lower(), item)
            types_differ = None not in (column.type, item.type) and column.type != item.type
            if types_differ or (column is not item and column in fields):
                clashes.append((column, item))
    return LateStream(tuple(inputs), tuple(columns.values()), tuple(clashes))


def late_row_streams(stream: Stream) -> list[SideStream]:
    """Return the stream that LATE DATA TO declares, if there is one."""
    emit = stream.query.emit
    if emit is None or emit.late_to is None:
        return []
    late = late_stream(stream.plan)
    if not late.inputs or late.clashes:
        # The validator reports this. If it is off, the late stream is not created.
        return []
    columns = tuple(Column(item.name, item.type) for item in late.columns)
    inputs = (item.operator.inputs[item.port] for item in late.inputs)
    return [
        SideStream(
            emit.late_to,
            Options({}, {}, set()),
            stream.statement,
            stream.script,
            (*columns, *LATE_COLUMNS),
            stream.name,
            SideKind.LATE_ROWS,
            any(rows.changelog is not ChangelogKind.APPEND for rows in inputs),
        )
    ]


def late_inputs(plan: n.Node) -> dict[str, str]:
    """Return the late streams that a plan reads, also through other streams, with their owners."""
    scans = (node for node in n.walk(plan) if isinstance(node, n.SideScan))
    return {s.side.name.lower(): s.side.parent.lower() for s in scans if s.side.is_late}


def _collect(node: n.Node, consumer: LateInput | None, inputs: list[LateInput]) -> None:
    """Descend to the scans and add the operator input that their rows reach first.

    `consumer` is the nearest operator input that the rows of `node` reach. Rows that one operator
    accepts are not late for the next ones. Streams that a query reads drop their own late rows.
    """
    children = () if isinstance(node, n.StreamReference) else node.inputs
    for port, child in enumerate(children):
        nearest = LateInput(node, port, node.late_rows(port)) if node.drops_late_rows else consumer
        _collect(child, nearest, inputs)
    is_source = not children and not isinstance(node, n.LookupScan | n.NoRows)
    if is_source and consumer is not None and consumer not in inputs:
        inputs.append(consumer)


def side_streams(stream: Stream) -> list[SideStream]:
    """Return the side streams of a stream: its late rows and its dead letters."""
    return [*late_row_streams(stream), *_dead_letter_streams(stream)]


def _dead_letter_streams(stream: Stream) -> list[SideStream]:
    """Return the stream of rows for which an expression failed (on_error = 'dead_letter')."""
    name = stream.options["dead_letters"]
    if name is None:
        return []
    return [
        SideStream(
            name,
            Options({}, {}, set()),
            stream.statement,
            stream.script,
            FAILED_ROW_COLUMNS,
            stream.name,
            SideKind.FAILED_ROWS,
        )
    ]
