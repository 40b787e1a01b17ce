"""The states of aggregates over frames: each frame is put together from blocks of its rows.

Blocks of two, four, eight … rows are made once, and a frame of any length is a few of them. What
rounds on the way is added up row by row, as Spark does it: then no frame depends on how rows were
cut into epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidegate.operators.accumulators import Call, PlainAccumulator, make
from tidegate.operators.contract import Tables
from tidegate.operators.group_kernels import HASH, PANE, ROWS, Groups, GroupSpec, concat
from tidegate.operators.keys import as_array, valid_mask
from tidegate.operators.matching import ints
from tidegate.operators.ordering import Ints
from tidegate.operators.over_frames import Frame

# So many rows of frames are looked at together.
_MOST_ROWS = 1 << 20
# No frame has so many heights of blocks.
_MOST_HEIGHTS = 64
# Frames that are this short on average are not put together from blocks.
_SHORT = 8


def rounds(call: Call) -> bool:
    """Whether the order in which values are added up shows in the last bits."""
    item = make(call) if call.arguments else None
    if not isinstance(item, PlainAccumulator):
        return False
    merged = zip(item.fields, item.merges, strict=False)
    return item.rounds or any(pa.types.is_floating(kind) and m == "sum" for kind, m in merged)


@dataclass(frozen=True)
class FrameGroup:
    """Aggregates that share a frame and an order; `functions` are their numbers."""

    sort: int
    frame: Frame
    rounds: bool
    functions: tuple[int, ...]
    calls: tuple[Call, ...]

    @cached_property
    def groups(self) -> Groups:
        return Groups(GroupSpec((), self.calls))

    @property
    def runs_on(self) -> bool:
        """Whether frames begin with the first row of all."""
        return self.frame.start is None

    def lift(self, rows: pa.Table) -> Tables:
        """The states of single rows, numbered by their place."""
        count = rows.num_rows
        columns = {PANE: pa.array(np.arange(count)), HASH: pa.array(np.zeros(count, np.int64))}
        for own, (function, call) in enumerate(zip(self.functions, self.calls, strict=True)):
            for place, _ in enumerate(call.arguments):
                columns[f"a{own}_{place}"] = rows.column(f"a{function}_{place}")
        return tuple(_by_pane(table) for table in self.groups.lift(pa.table(columns)))

    def states(
        self, rows: pa.Table, starts: Ints, ends: Ints, carried: Tables | None, owners: Ints
    ) -> Tables:
        """The state of each frame, by its number; before it comes what its owner has carried."""
        lifted = self.lift(rows)
        if self.rounds and self.runs_on:
            main = _one_after_the_other(self.groups, lifted[0], starts, ends, carried, owners)
            return (main,)
        frames = np.arange(len(starts))
        parts = [] if carried is None else [tuple(_taken(t, owners, frames)[0] for t in carried)]
        for first, limit in _slices(ends - starts):
            some = slice(first, limit)
            parts.append(self._slice(lifted, starts[some], ends[some], frames[some]))
        return self._whole(concat(parts) if parts else self.groups.empty(), len(starts))

    def _slice(self, lifted: Tables, starts: Ints, ends: Ints, frames: Ints) -> Tables:
        short = (ends - starts).sum() <= _SHORT * (len(starts) + lifted[0].num_rows)
        if short or self.rounds:
            counts = ends - starts
            turns = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
            nodes = np.repeat(starts, counts) + turns
            found = [_taken(table, nodes, np.repeat(frames, counts))[0] for table in lifted]
            return self.groups.combine(tuple(found))
        return self.groups.combine(_from_blocks(self.groups, lifted, starts, ends, frames))

    def _whole(self, tables: Tables, count: int) -> Tables:
        """Every frame once, also those without rows."""
        main, *bags = self.groups.combine(tables)
        missing = np.setdiff1d(np.arange(count), ints(main, PANE))
        return (_by_pane(pa.concat_tables([main, self.no_rows(missing)])), *map(_by_pane, bags))

    def no_rows(self, frames: Ints) -> pa.Table:
        """The states of frames without rows."""
        schema, count = self.groups.schemas[0], len(frames)
        known = {PANE: frames, HASH: np.zeros(count, np.int64), ROWS: np.zeros(count, np.int64)}
        columns = [
            pa.array(known[item.name]) if item.name in known else pa.nulls(count, item.type)
            for item in schema
        ]
        return pa.table(columns, schema=schema)

    def results(self, tables: Tables) -> list[pa.Array]:
        """A column for each call, by the number of the frame."""
        found = self.groups.evaluate(tables)
        return [as_array(found.column(f"r{own}")) for own, _ in enumerate(self.calls)]


def _by_pane(table: pa.Table) -> pa.Table:
    panes = ints(table, PANE)
    if np.all(panes[1:] >= panes[:-1]):
        return table
    return table.take(pa.array(np.argsort(panes, kind="stable")))


def with_pane(table: pa.Table, panes: Ints) -> pa.Table:
    return table.set_column(table.schema.get_field_index(PANE), PANE, pa.array(panes))


def _taken(table: pa.Table, nodes: Ints, frames: Ints) -> tuple[pa.Table, Ints]:
    """The rows of some nodes as rows of frames, and which of the nodes each is of."""
    panes = ints(table, PANE)
    first = np.searchsorted(panes, nodes)
    counts = np.searchsorted(panes, nodes, "right") - first
    shifts = first - (np.cumsum(counts) - counts)
    places = np.repeat(shifts, counts) + np.arange(int(counts.sum()))
    found = with_pane(table.take(pa.array(places)), np.repeat(frames, counts))
    return found, np.repeat(np.arange(len(nodes)), counts)


def _slices(lengths: Ints) -> Iterator[tuple[int, int]]:
    """Frames that are looked at together."""
    total = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        before = total[first - 1] if first else 0
        limit = int(np.searchsorted(total, before + _MOST_ROWS, "right"))
        limit = max(limit, first + 1)
        yield first, limit
        first = limit


def _from_blocks(groups: Groups, lifted: Tables, starts: Ints, ends: Ints, frames: Ints) -> Tables:
    """The blocks that make up each frame, from its first row to its last."""
    found: list[tuple[Tables, list[Ints]]] = []
    level, height = lifted, 0
    starts, ends = starts.copy(), ends.copy()
    while (starts < ends).any():
        left = (starts < ends) & (starts % 2 == 1)
        found.append(_blocks(level, starts[left], frames[left], height))
        starts = starts + left
        right = (starts < ends) & (ends % 2 == 1)
        # What is taken at the end comes after all that is taken later on.
        found.append(_blocks(level, ends[right] - 1, frames[right], 2 * _MOST_HEIGHTS - height))
        ends = ends - right
        starts, ends, height = starts // 2, ends // 2, height + 1
        halved = tuple(with_pane(table, ints(table, PANE) // 2) for table in level)
        level = tuple(_by_pane(table) for table in groups.combine(halved))
    if not found:
        return groups.empty()
    tables = concat([tables for tables, _ in found])
    ordered = []
    for place, table in enumerate(tables):
        turns = np.concatenate([turns[place] for _, turns in found])
        order = np.lexsort((turns, ints(table, PANE)))
        ordered.append(table.take(pa.array(order)))
    return tuple(ordered)


def _blocks(level: Tables, nodes: Ints, frames: Ints, turn: int) -> tuple[Tables, list[Ints]]:
    tables = tuple(_taken(table, nodes, frames)[0] for table in level)
    return tables, [np.full(table.num_rows, turn, np.int64) for table in tables]


# What rounds


def _one_after_the_other(
    groups: Groups, main: pa.Table, starts: Ints, ends: Ints, carried: Tables | None, owners: Ints
) -> pa.Table:
    """The states of frames that share their beginning, each from the one before it.

    All frames of an owner start at the same place.
    """
    own, first = np.unique(owners, return_index=True)
    begins = starts[first]
    stops = np.zeros(len(own), np.int64)
    np.maximum.at(stops, np.searchsorted(own, owners), ends)
    before = _carried_rows(main, carried, own)
    columns = []
    for item in main.schema:
        if item.name in (PANE, HASH):
            columns.append(pa.nulls(main.num_rows, item.type).fill_null(0))
        elif item.name == ROWS:
            columns.append(_sums(main.column(ROWS), before.column(ROWS), begins, stops))
    for plain, names in groups.plain:
        states = [main.column(name) for name in names]
        initial = [before.column(name) for name in names]
        if plain.merges:
            pairs = zip(states, initial, strict=True)
            columns += [_sums(state, known, begins, stops) for state, known in pairs]
        else:
            columns += _in_turns(plain, states, initial, begins, stops)
    after = pa.table(columns, schema=main.schema)
    # What a frame without rows has is what was carried, which stands behind all rows.
    both = pa.concat_tables([after, before])
    empty = ends <= starts
    rows = np.where(empty, main.num_rows + np.searchsorted(own, owners), ends - 1)
    return with_pane(both.take(pa.array(rows)), np.arange(len(starts)))


def _carried_rows(main: pa.Table, carried: Tables | None, own: Ints) -> pa.Table:
    if carried is not None:
        return carried[0].take(pa.array(own))
    columns = []
    for item in main.schema:
        nothing = pa.nulls(len(own), item.type)
        columns.append(nothing.fill_null(0) if item.name in (PANE, HASH, ROWS) else nothing)
    return pa.table(columns, schema=main.schema)


def _sums(column: pa.ChunkedArray, before: pa.ChunkedArray, begins: Ints, stops: Ints) -> pa.Array:
    """The running sum of each stretch."""
    values = as_array(column.fill_null(0)).to_numpy(zero_copy_only=False)
    initial = as_array(before.fill_null(0)).to_numpy(zero_copy_only=False)
    there, known = valid_mask(column), valid_mask(before)
    sums, seen = np.zeros_like(values), np.zeros(len(values), np.bool_)
    stretches = zip(begins.tolist(), stops.tolist(), initial, known, strict=True)
    with np.errstate(invalid="ignore", over="ignore"):
        for begin, stop, first, has in stretches:
            some = slice(begin, stop)
            sums[some] = np.cumsum(np.concatenate(([first], values[some])))[1:]
            seen[some] = np.logical_or.accumulate(there[some]) | has
    return pa.array(sums, column.type, mask=~seen)


def _in_turns(
    plain: PlainAccumulator,
    states: Sequence[pa.ChunkedArray],
    before: Sequence[pa.ChunkedArray],
    begins: Ints,
    stops: Ints,
) -> list[pa.Array]:
    """The first rows of all stretches, then the second ones, and so on."""
    rows, parts = [], []
    current = [as_array(state) for state in before]
    left = np.arange(len(begins))
    for turn in range(int((stops - begins).max(initial=0))):
        still = begins[left] + turn < stops[left]
        left = left[still]
        current = [state.filter(pa.array(still)) for state in current]
        at = begins[left] + turn
        pairs = [
            pa.concat_arrays([now, as_array(state).take(pa.array(at))])
            for now, state in zip(current, states, strict=True)
        ]
        ids = np.concatenate([np.arange(len(left))] * 2)
        current = [as_array(state) for state in plain.combine(pairs, ids, len(left))]
        rows.append(at)
        parts.append(current)
    return _scattered(states, rows, parts)


def _scattered(
    like: Sequence[pa.ChunkedArray], rows: list[Ints], parts: list[list[pa.Array]]
) -> list[pa.Array]:
    count = len(like[0])
    found = np.full(count, -1, np.int64)
    places = np.concatenate([np.zeros(0, np.int64), *rows])
    found[places] = np.arange(len(places))
    indices = pa.array(found, mask=found < 0)
    return [
        pa.concat_arrays([pa.array([], column.type), *(part[own] for part in parts)]).take(indices)
        for own, column in enumerate(like)
    ]


__all__ = ["FrameGroup", "rounds", "with_pane"]
