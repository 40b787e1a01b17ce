"""Functions with OVER: what each says about a row, given the rows of its partition in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import HASH, PANE, ROWS
from tidegate.errors import unsupported_error
from tidegate.operators.aggregate.functions import AggregateCall, PlainAccumulator, make_accumulator
from tidegate.operators.aggregate.groups import Aggregator, GroupSpec
from tidegate.operators.kernels.arrays import (
    Ints,
    as_array,
    concat,
    int_column,
    take_or_null,
    valid_mask,
)
from tidegate.operators.kernels.ordering import Ordering, check_partitions, sort_codes
from tidegate.operators.operator import Tables
from tidegate.operators.over.frames import Frame, Placed, bounds, has_distance, placed, values_of

# ---- The states of aggregates over frames: each frame is put together from blocks of its rows.
#
# Blocks of two, four, eight … rows are made once, and a frame of any length is a few of them. What
# rounds on the way is added up row by row, as Spark does it: then no frame depends on how rows were
# cut into epochs.

# So many rows of frames are looked at together.
_MOST_ROWS = 1 << 20
# No frame has so many heights of blocks.
_MOST_HEIGHTS = 64
# Frames that are this short on average are not put together from blocks.
_SHORT = 8


def rounds(call: AggregateCall) -> bool:
    """Whether the order in which values are added up shows in the last bits."""
    item = make_accumulator(call) if call.arguments else None
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
    calls: tuple[AggregateCall, ...]

    @cached_property
    def groups(self) -> Aggregator:
        return Aggregator(GroupSpec((), self.calls))

    @property
    def runs_on(self) -> bool:
        """Whether frames begin with the first row of all."""
        return self.frame.start is None

    def pre_aggregate(self, rows: pa.Table) -> Tables:
        """The states of single rows, numbered by their place."""
        count = rows.num_rows
        columns = {PANE: pa.array(np.arange(count)), HASH: pa.array(np.zeros(count, np.int64))}
        for own, (function, call) in enumerate(zip(self.functions, self.calls, strict=True)):
            for place, _ in enumerate(call.arguments):
                columns[f"a{own}_{place}"] = rows.column(f"a{function}_{place}")
        return tuple(_by_pane(table) for table in self.groups.pre_aggregate(pa.table(columns)))

    def states(
        self, rows: pa.Table, starts: Ints, ends: Ints, carried: Tables | None, owners: Ints
    ) -> Tables:
        """The state of each frame, by its number; before it comes what its owner has carried."""
        lifted = self.pre_aggregate(rows)
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
        missing = np.setdiff1d(np.arange(count), int_column(main, PANE))
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
    panes = int_column(table, PANE)
    if np.all(panes[1:] >= panes[:-1]):
        return table
    return table.take(pa.array(np.argsort(panes, kind="stable")))


def with_pane(table: pa.Table, panes: Ints) -> pa.Table:
    return table.set_column(table.schema.get_field_index(PANE), PANE, pa.array(panes))


def _taken(table: pa.Table, nodes: Ints, frames: Ints) -> tuple[pa.Table, Ints]:
    """The rows of some nodes as rows of frames, and which of the nodes each is of."""
    panes = int_column(table, PANE)
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


def _from_blocks(
    groups: Aggregator, lifted: Tables, starts: Ints, ends: Ints, frames: Ints
) -> Tables:
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
        halved = tuple(with_pane(table, int_column(table, PANE) // 2) for table in level)
        level = tuple(_by_pane(table) for table in groups.combine(halved))
    if not found:
        return groups.empty()
    tables = concat([tables for tables, _ in found])
    ordered = []
    for place, table in enumerate(tables):
        turns = np.concatenate([turns[place] for _, turns in found])
        order = np.lexsort((turns, int_column(table, PANE)))
        ordered.append(table.take(pa.array(order)))
    return tuple(ordered)


def _blocks(level: Tables, nodes: Ints, frames: Ints, turn: int) -> tuple[Tables, list[Ints]]:
    tables = tuple(_taken(table, nodes, frames)[0] for table in level)
    return tables, [np.full(table.num_rows, turn, np.int64) for table in tables]


# What rounds


def _one_after_the_other(
    groups: Aggregator,
    main: pa.Table,
    starts: Ints,
    ends: Ints,
    carried: Tables | None,
    owners: Ints,
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


RANKS = frozenset({"ROW_NUMBER", "RANK", "DENSE_RANK"})
# These depend on how many rows a partition has.
RANKS_OF_ALL = frozenset({"PERCENT_RANK", "CUME_DIST", "NTILE"})


@dataclass(frozen=True)
class OverFunction:
    """One function: a rank, the value of the row `shift` rows on, or an aggregate of a frame.

    Its arguments are the columns `a{i}_0`, …, where i is its number; `default` says that the last
    of them is what a row gets for which there is no value. `sort` is the number of its order.
    """

    name: str
    result: pa.DataType
    sort: int = 0
    shift: int | None = None
    default: bool = False
    buckets: int = 0
    frame: Frame | None = None
    call: AggregateCall | None = None
    argument: pa.DataType | None = None

    @property
    def is_rank(self) -> bool:
        return self.name in RANKS or self.name in RANKS_OF_ALL

    @property
    def arguments(self) -> tuple[pa.DataType, ...]:
        """The types of its columns."""
        own = (self.argument,) if self.argument is not None else ()
        own = self.call.arguments if self.call is not None else own
        return (*own, self.result) if self.default else own


@dataclass(frozen=True)
class OverSpec:
    """The functions of one node: they share their partitions.

    Columns are `k0`, … (keys), `o0`, … (what is ordered by), `a0_0`, … (arguments) and `c0`, … (the
    row as it goes on). `sorts` are the orders, each a list of columns to order by.
    """

    keys: tuple[pa.DataType, ...]
    orders: tuple[Ordering, ...]
    sorts: tuple[tuple[int, ...], ...]
    functions: tuple[OverFunction, ...]
    columns: tuple[pa.DataType, ...]

    def __post_init__(self) -> None:
        check_partitions(self.keys, self.orders)
        for function in self.functions:
            self._check_range(function)

    def _check_range(self, function: OverFunction) -> None:
        frame = function.frame
        if frame is None or frame.by_rows or not (frame.start or frame.end):
            return
        kind = self.orders[self.sorts[function.sort][0]].type
        if not has_distance(kind):
            hint = "cast the column of ORDER BY, for example to DOUBLE, or use ROWS."
            raise unsupported_error(f"RANGE with a distance is not supported over {kind}", hint)

    @property
    def key_fields(self) -> list[pa.Field]:
        return [pa.field(f"k{index}", kind) for index, kind in enumerate(self.keys)]

    @property
    def order_fields(self) -> list[pa.Field]:
        return [pa.field(f"o{index}", item.type) for index, item in enumerate(self.orders)]

    @property
    def argument_fields(self) -> list[pa.Field]:
        return [
            pa.field(f"a{index}_{place}", kind)
            for index, function in enumerate(self.functions)
            for place, kind in enumerate(function.arguments)
        ]

    @property
    def column_fields(self) -> list[pa.Field]:
        return [pa.field(f"c{index}", kind) for index, kind in enumerate(self.columns)]

    @property
    def row(self) -> pa.Schema:
        """What a row of the result is."""
        kinds = [*self.columns, *(function.result for function in self.functions)]
        return pa.schema([pa.field(f"c{index}", kind) for index, kind in enumerate(kinds)])

    @cached_property
    def frame_groups(self) -> tuple[FrameGroup, ...]:
        """The aggregates by frame and order; those that round apart from the others."""
        found: dict[tuple[int, Frame, bool], list[int]] = {}
        for index, function in enumerate(self.functions):
            if function.call is not None:
                assert function.frame is not None, "an aggregate has a frame"
                key = (function.sort, function.frame, rounds(function.call))
                found.setdefault(key, []).append(index)
        groups = []
        for (sort, frame, inexact), members in found.items():
            calls = [self.functions[index].call for index in members]
            known = tuple(call for call in calls if call is not None)
            groups.append(FrameGroup(sort, frame, inexact, tuple(members), known))
        return tuple(groups)

    # Rows in order

    def place(self, rows: pa.Table, partitions: Ints, sort: int, arrival: Ints) -> Placed:
        by = [sort_codes(rows.column(f"o{o}"), self.orders[o]) for o in self.sorts[sort]]
        return placed(partitions, by, arrival)

    def frame(self, frame: Frame, rows: pa.Table, at: Placed, sort: int) -> tuple[Ints, Ints]:
        """Where the frames of rows begin and end, which are in order."""
        values = None
        if not frame.by_rows and (frame.start or frame.end):
            first = self.sorts[sort][0]
            values = values_of(rows.column(f"o{first}"), self.orders[first])
        return bounds(frame, at, values)

    # What functions say

    def in_whole_partitions(self, rows: pa.Table, partitions: Ints, arrival: Ints) -> pa.Table:
        """The rows with a column for each function; all rows of their partitions are there."""
        results: list[pa.Array | None] = [None] * len(self.functions)
        for sort, _ in enumerate(self.sorts):
            at = self.place(rows, partitions, sort, arrival)
            ordered = rows.take(pa.array(at.order))
            back = np.empty(at.rows, np.int64)
            back[at.order] = at.places
            for index, found in self.evaluate(ordered, at, sort).items():
                results[index] = found.take(pa.array(back))
        for index, result in enumerate(results, len(self.columns)):
            rows = rows.append_column(f"c{index}", result)
        return rows

    def evaluate(self, rows: pa.Table, at: Placed, sort: int) -> dict[int, pa.Array]:
        """The results of the functions of an order, by place."""
        found: dict[int, pa.Array] = {}
        for index, function in enumerate(self.functions):
            if function.sort == sort and function.call is None:
                result = (
                    ranked(function, at) if function.is_rank else shifted(index, function, rows, at)
                )
                found[index] = result
        for group in self.frame_groups:
            if group.sort == sort:
                starts, ends = self.frame(group.frame, rows, at, sort)
                states = group.states(rows, starts, ends, None, at.begins)
                found |= self.results(group, states, rows)
        return found

    def results(self, group: FrameGroup, states: Tables, rows: pa.Table) -> dict[int, pa.Array]:
        """The results of aggregates, one for each of these rows."""
        found = {}
        for index, result in zip(group.functions, group.results(states), strict=True):
            function = self.functions[index]
            if function.default:
                # Only a value that is not NULL is found, so that NULL says that there is none.
                other = rows.column(f"a{index}_{len(function.arguments) - 1}")
                result = as_array(pc.coalesce(result, as_array(other)))
            found[index] = result
        return found


def ranked(
    function: OverFunction,
    at: Placed,
    before: Ints | None = None,
    groups_before: Ints | None = None,
) -> pa.Array:
    """The rank of each row; `before` it there were so many rows and groups of peers."""
    nothing = np.zeros(at.rows, np.int64)
    before = nothing if before is None else before
    name, rows = function.name, at.places - at.begins
    if name == "ROW_NUMBER":
        found: np.ndarray = rows + 1 + before
    elif name == "RANK":
        found = at.first_peers - at.begins + 1 + before
    elif name == "DENSE_RANK":
        found = at.dense + 1 + (nothing if groups_before is None else groups_before)
    else:
        found = _of_all(function, at)
    return pa.array(found).cast(function.result)


def _of_all(function: OverFunction, at: Placed) -> np.ndarray:
    size, rows = at.ends - at.begins, at.places - at.begins
    if function.name == "PERCENT_RANK":
        return np.asarray((at.first_peers - at.begins) / np.maximum(size - 1, 1))
    if function.name == "CUME_DIST":
        return np.asarray((at.after_peers - at.begins) / size)
    # The first buckets have one row more where rows are left over.
    small, large = size // function.buckets, size % function.buckets
    edge = large * (small + 1)
    behind = large + (rows - edge) // np.maximum(small, 1)
    return np.asarray(np.where(rows < edge, rows // (small + 1), behind) + 1)


def shifted(index: int, function: OverFunction, rows: pa.Table, at: Placed) -> pa.Array:
    """lag and lead: the value of another row of the partition."""
    assert function.shift is not None, "it looks at another row"
    places = at.places + function.shift
    there = (places >= at.begins) & (places < at.ends)
    found = take_or_null(rows.column(f"a{index}_0"), np.where(there, places, -1))
    found = found if found.type == function.result else found.cast(function.result)
    if function.default and not there.all():
        other = as_array(rows.column(f"a{index}_1"))
        count = len(found)
        pick = np.where(there, np.arange(count), np.arange(count) + count)
        found = pa.concat_arrays([found, other]).take(pa.array(pick))
    return found
