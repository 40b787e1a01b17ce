"""Window functions and the states of their frames, over the sorted rows of partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import GROUP_ID, HASH, ROWS, STORE_TIME
from tidegate.errors import unsupported_error
from tidegate.operators.aggregate.functions import AggregateCall, PlainAccumulator, make_accumulator
from tidegate.operators.aggregate.groups import Aggregator, GroupSpec
from tidegate.operators.kernels import ordering as arrival
from tidegate.operators.kernels.arrays import (
    Ints,
    as_array,
    concat,
    int_column,
    take_or_null,
    valid_mask,
    with_int_column,
)
from tidegate.operators.kernels.keys import group_ids
from tidegate.operators.kernels.ordering import (
    ARRIVAL_NUMBER,
    INT,
    Ordering,
    check_partitions,
    sort_codes,
)
from tidegate.operators.kernels.weighted_rows import diff_results
from tidegate.operators.operator import Tables
from tidegate.operators.over.frames import (
    Frame,
    SortedRows,
    frame_bounds,
    frame_values,
    sort_rows,
    supports_range_offset,
)
from tidegate.operators.top_n.window import select_arrivals
from tidegate.types import RANK_FUNCTIONS, WHOLE_PARTITION_FUNCTIONS

# ---- The states of aggregates over frames
#
# The states of blocks of two, four, eight … rows are computed once (a segment tree), and a frame of
# any length combines a few of them. Aggregates that depend on the order of additions are folded row
# by row instead, as Spark does: their results must not depend on how rows are divided into epochs.

# Frames are processed in batches of this many rows in total.
_MAX_BATCH_ROWS = 1 << 20
# More than the height of any segment tree.
_MAX_HEIGHT = 64
# Frames that are not longer than this on average are combined row by row.
_SHORT_FRAME_ROWS = 8


def is_order_sensitive(call: AggregateCall) -> bool:
    """Return whether the order in which values are added changes the last bits of the result."""
    accumulator = make_accumulator(call) if call.arguments else None
    if not isinstance(accumulator, PlainAccumulator):
        return False
    merges = zip(accumulator.state_types, accumulator.merge_kernels, strict=False)
    return accumulator.rounds or any(
        pa.types.is_floating(data_type) and merge == "sum" for data_type, merge in merges
    )


@dataclass(frozen=True)
class FrameGroup:
    """Aggregates with the same frame and order; `functions` are their indices."""

    sort: int
    frame: Frame
    order_sensitive: bool
    functions: tuple[int, ...]
    calls: tuple[AggregateCall, ...]

    @cached_property
    def aggregator(self) -> Aggregator:
        return Aggregator(GroupSpec((), self.calls))

    @property
    def is_cumulative(self) -> bool:
        """Whether frames start at the first row of the partition."""
        return self.frame.start is None

    def pre_aggregate(self, rows: pa.Table) -> Tables:
        """Return the states of single rows; GROUP_ID is the position of the row."""
        count = rows.num_rows
        columns = {GROUP_ID: pa.array(np.arange(count)), HASH: pa.array(np.zeros(count, np.int64))}
        for index, (function, call) in enumerate(zip(self.functions, self.calls, strict=True)):
            for argument, _ in enumerate(call.arguments):
                columns[f"a{index}_{argument}"] = rows.column(f"a{function}_{argument}")
        return tuple(
            _by_group_id(table) for table in self.aggregator.pre_aggregate(pa.table(columns))
        )

    def states(
        self,
        rows: pa.Table,
        starts: Ints,
        ends: Ints,
        initial: Tables | None,
        partitions: Ints,
    ) -> Tables:
        """Return the state of each frame; GROUP_ID is the index of the frame.

        `initial` has the states of the partitions before the first of these rows, by partition.
        """
        row_states = self.pre_aggregate(rows)
        if self.order_sensitive and self.is_cumulative:
            main = _cumulative_states(
                self.aggregator, row_states[0], starts, ends, initial, partitions
            )
            return (main,)
        frames = np.arange(len(starts))
        parts = []
        if initial is not None:
            parts.append(tuple(_take_states(table, partitions, frames)[0] for table in initial))
        for first, limit in _batches(ends - starts):
            batch = slice(first, limit)
            parts.append(
                self._combine_frames(row_states, starts[batch], ends[batch], frames[batch])
            )
        tables = concat(parts) if parts else self.aggregator.empty()
        main, *bags = self.aggregator.combine(tables)
        missing = np.setdiff1d(np.arange(len(starts)), int_column(main, GROUP_ID))
        main = pa.concat_tables([main, self._empty_states(missing)])
        return (_by_group_id(main), *map(_by_group_id, bags))

    def _combine_frames(self, row_states: Tables, starts: Ints, ends: Ints, frames: Ints) -> Tables:
        counts = ends - starts
        is_short = counts.sum() <= _SHORT_FRAME_ROWS * (len(starts) + row_states[0].num_rows)
        if is_short or self.order_sensitive:
            offsets = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
            positions = np.repeat(starts, counts) + offsets
            states = [
                _take_states(table, positions, np.repeat(frames, counts))[0] for table in row_states
            ]
            return self.aggregator.combine(tuple(states))
        blocks = _blocks_of_frames(self.aggregator, row_states, starts, ends, frames)
        return self.aggregator.combine(blocks)

    def _empty_states(self, frames: Ints) -> pa.Table:
        """Return the states of frames without rows."""
        schema, count = self.aggregator.schemas[0], len(frames)
        values = {
            GROUP_ID: frames,
            HASH: np.zeros(count, np.int64),
            ROWS: np.zeros(count, np.int64),
        }
        columns = [
            pa.array(values[item.name]) if item.name in values else pa.nulls(count, item.type)
            for item in schema
        ]
        return pa.table(columns, schema=schema)

    def results(self, states: Tables) -> list[pa.Array]:
        """Return a column for each call, by the index of the frame."""
        results = self.aggregator.evaluate(states)
        return [as_array(results.column(f"r{index}")) for index, _ in enumerate(self.calls)]


def _by_group_id(table: pa.Table) -> pa.Table:
    group_ids = int_column(table, GROUP_ID)
    if np.all(group_ids[1:] >= group_ids[:-1]):
        return table
    return table.take(pa.array(np.argsort(group_ids, kind="stable")))


def _take_states(table: pa.Table, nodes: Ints, frames: Ints) -> tuple[pa.Table, Ints]:
    """Return the states of nodes as states of frames, and the index of the node of each state.

    A node is a GROUP_ID of the table. Bags have any number of states per node.
    """
    group_ids = int_column(table, GROUP_ID)
    first = np.searchsorted(group_ids, nodes)
    counts = np.searchsorted(group_ids, nodes, "right") - first
    shifts = first - (np.cumsum(counts) - counts)
    indices = np.repeat(shifts, counts) + np.arange(int(counts.sum()))
    states = with_int_column(table.take(pa.array(indices)), GROUP_ID, np.repeat(frames, counts))
    return states, np.repeat(np.arange(len(nodes)), counts)


def _batches(lengths: Ints) -> Iterator[tuple[int, int]]:
    """Divide frames of these lengths into batches."""
    total = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        before = total[first - 1] if first else 0
        limit = int(np.searchsorted(total, before + _MAX_BATCH_ROWS, "right"))
        limit = max(limit, first + 1)
        yield first, limit
        first = limit


def _blocks_of_frames(
    aggregator: Aggregator, row_states: Tables, starts: Ints, ends: Ints, frames: Ints
) -> Tables:
    """Return the states of the blocks of each frame, from its first row to its last."""
    parts: list[tuple[Tables, list[Ints]]] = []
    level, height = row_states, 0
    starts, ends = starts.copy(), ends.copy()
    while (starts < ends).any():
        left = (starts < ends) & (starts % 2 == 1)
        parts.append(_take_blocks(level, starts[left], frames[left], height))
        starts = starts + left
        right = (starts < ends) & (ends % 2 == 1)
        # A block at the end of a frame comes after all blocks of higher levels.
        parts.append(_take_blocks(level, ends[right] - 1, frames[right], 2 * _MAX_HEIGHT - height))
        ends = ends - right
        starts, ends, height = starts // 2, ends // 2, height + 1
        halved = tuple(
            with_int_column(table, GROUP_ID, int_column(table, GROUP_ID) // 2) for table in level
        )
        level = tuple(_by_group_id(table) for table in aggregator.combine(halved))
    if not parts:
        return aggregator.empty()
    tables = concat([tables for tables, _ in parts])
    sorted_tables = []
    for index, table in enumerate(tables):
        positions = np.concatenate([positions[index] for _, positions in parts])
        order = np.lexsort((positions, int_column(table, GROUP_ID)))
        sorted_tables.append(table.take(pa.array(order)))
    return tuple(sorted_tables)


def _take_blocks(
    level: Tables, nodes: Ints, frames: Ints, position: int
) -> tuple[Tables, list[Ints]]:
    """Return the states of blocks, and for each state the position of its block in the frame."""
    tables = tuple(_take_states(table, nodes, frames)[0] for table in level)
    return tables, [np.full(table.num_rows, position, np.int64) for table in tables]


def _cumulative_states(
    aggregator: Aggregator,
    row_states: pa.Table,
    starts: Ints,
    ends: Ints,
    initial: Tables | None,
    partitions: Ints,
) -> pa.Table:
    """Fold the states of cumulative frames row by row.

    All frames of a partition start at the same position.
    """
    distinct, first = np.unique(partitions, return_index=True)
    first_rows = starts[first]
    stops = np.zeros(len(distinct), np.int64)
    np.maximum.at(stops, np.searchsorted(distinct, partitions), ends)
    before = _initial_states(row_states, initial, distinct)
    columns = []
    for item in row_states.schema:
        if item.name in (GROUP_ID, HASH):
            columns.append(pa.nulls(row_states.num_rows, item.type).fill_null(0))
        elif item.name == ROWS:
            columns.append(
                _cumulative_sums(row_states.column(ROWS), before.column(ROWS), first_rows, stops)
            )
    for accumulator, names in aggregator.plain:
        states = [row_states.column(name) for name in names]
        initials = [before.column(name) for name in names]
        if accumulator.merge_kernels:
            columns += [
                _cumulative_sums(state, value, first_rows, stops)
                for state, value in zip(states, initials, strict=True)
            ]
        else:
            columns += _fold_partitions(accumulator, states, initials, first_rows, stops)
    after = pa.table(columns, schema=row_states.schema)
    # The state of an empty frame is the initial state of its partition.
    both = pa.concat_tables([after, before])
    is_empty = ends <= starts
    initial_index = row_states.num_rows + np.searchsorted(distinct, partitions)
    indices = np.where(is_empty, initial_index, ends - 1)
    return with_int_column(both.take(pa.array(indices)), GROUP_ID, np.arange(len(starts)))


def _initial_states(row_states: pa.Table, initial: Tables | None, partitions: Ints) -> pa.Table:
    """Return the states of partitions before their first row."""
    if initial is not None:
        return initial[0].take(pa.array(partitions))
    columns = []
    for item in row_states.schema:
        nulls = pa.nulls(len(partitions), item.type)
        columns.append(nulls.fill_null(0) if item.name in (GROUP_ID, HASH, ROWS) else nulls)
    return pa.table(columns, schema=row_states.schema)


def _cumulative_sums(
    column: pa.ChunkedArray, initial: pa.ChunkedArray, starts: Ints, stops: Ints
) -> pa.Array:
    """Return the running sum of each partition; NULL until its first value."""
    values = as_array(column.fill_null(0)).to_numpy(zero_copy_only=False)
    initials = as_array(initial.fill_null(0)).to_numpy(zero_copy_only=False)
    valid, initial_valid = valid_mask(column), valid_mask(initial)
    sums, has_value = np.zeros_like(values), np.zeros(len(values), np.bool_)
    partitions = zip(starts.tolist(), stops.tolist(), initials, initial_valid, strict=True)
    with np.errstate(invalid="ignore", over="ignore"):
        for start, stop, value, is_valid in partitions:
            rows = slice(start, stop)
            sums[rows] = np.cumsum(np.concatenate(([value], values[rows])))[1:]
            has_value[rows] = np.logical_or.accumulate(valid[rows]) | is_valid
    return pa.array(sums, column.type, mask=~has_value)


def _fold_partitions(
    accumulator: PlainAccumulator,
    states: Sequence[pa.ChunkedArray],
    initial: Sequence[pa.ChunkedArray],
    starts: Ints,
    stops: Ints,
) -> list[pa.Array]:
    """Fold the first rows of all partitions, then their second rows, and so on."""
    folded_rows, folded_states = [], []
    current = [as_array(state) for state in initial]
    partitions = np.arange(len(starts))
    for number in range(int((stops - starts).max(initial=0))):
        has_row = starts[partitions] + number < stops[partitions]
        partitions = partitions[has_row]
        current = [state.filter(pa.array(has_row)) for state in current]
        rows = starts[partitions] + number
        pairs = [
            pa.concat_arrays([value, as_array(state).take(pa.array(rows))])
            for value, state in zip(current, states, strict=True)
        ]
        ids = np.concatenate([np.arange(len(partitions))] * 2)
        current = [as_array(state) for state in accumulator.combine(pairs, ids, len(partitions))]
        folded_rows.append(rows)
        folded_states.append(current)
    indices = np.full(len(states[0]), -1, np.int64)
    all_rows = np.concatenate([np.zeros(0, np.int64), *folded_rows])
    indices[all_rows] = np.arange(len(all_rows))
    by_row = pa.array(indices, mask=indices < 0)
    return [
        pa.concat_arrays(
            [pa.array([], column.type), *(parts[index] for parts in folded_states)]
        ).take(by_row)
        for index, column in enumerate(states)
    ]


# ---- Functions


@dataclass(frozen=True)
class OverFunction:
    """A window function: a rank, the value `shift` rows ahead, or an aggregate over a frame.

    Its arguments are the columns `a{i}_0`, …, where i is its index. With `default` the last of them
    is the value of rows without a result. `sort` is the index of its ORDER BY.
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
        return self.name in RANK_FUNCTIONS or self.name in WHOLE_PARTITION_FUNCTIONS

    @property
    def arguments(self) -> tuple[pa.DataType, ...]:
        """The types of the argument columns."""
        types = (self.argument,) if self.argument is not None else ()
        types = self.call.arguments if self.call is not None else types
        return (*types, self.result) if self.default else types


@dataclass(frozen=True)
class OverSpec:
    """The window functions of a node, which have the same PARTITION BY.

    Columns are `k0`, … (PARTITION BY), `o0`, … (ORDER BY), `a0_0`, … (arguments) and `c0`, … (the
    input row). `sorts` are the different ORDER BYs, each with the indices of its columns.
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
        """Reject RANGE with an offset over a type to which it cannot be added."""
        frame = function.frame
        if frame is None or frame.by_rows or not (frame.start or frame.end):
            return
        data_type = self.orders[self.sorts[function.sort][0]].type
        if not supports_range_offset(data_type):
            hint = "cast the column of ORDER BY, for example to DOUBLE, or use ROWS."
            raise unsupported_error(f"RANGE with an offset is not supported over {data_type}", hint)

    @property
    def key_fields(self) -> list[pa.Field]:
        return [pa.field(f"k{index}", data_type) for index, data_type in enumerate(self.keys)]

    @property
    def order_fields(self) -> list[pa.Field]:
        return [pa.field(f"o{index}", item.type) for index, item in enumerate(self.orders)]

    @property
    def argument_fields(self) -> list[pa.Field]:
        return [
            pa.field(f"a{index}_{argument}", data_type)
            for index, function in enumerate(self.functions)
            for argument, data_type in enumerate(function.arguments)
        ]

    @property
    def column_fields(self) -> list[pa.Field]:
        return [pa.field(f"c{index}", data_type) for index, data_type in enumerate(self.columns)]

    @property
    def result_schema(self) -> pa.Schema:
        """The schema of a result: the input row and the results of the functions."""
        data_types = [*self.columns, *(function.result for function in self.functions)]
        return pa.schema(
            [pa.field(f"c{index}", data_type) for index, data_type in enumerate(data_types)]
        )

    @cached_property
    def frame_groups(self) -> tuple[FrameGroup, ...]:
        """The aggregates, grouped by ORDER BY, frame and sensitivity to the order of additions."""
        members: dict[tuple[int, Frame, bool], list[tuple[int, AggregateCall]]] = {}
        for index, function in enumerate(self.functions):
            if function.call is not None:
                assert function.frame is not None, "an aggregate has a frame"
                key = (function.sort, function.frame, is_order_sensitive(function.call))
                members.setdefault(key, []).append((index, function.call))
        return tuple(
            FrameGroup(
                sort,
                frame,
                order_sensitive,
                tuple(index for index, _ in calls),
                tuple(call for _, call in calls),
            )
            for (sort, frame, order_sensitive), calls in members.items()
        )

    def sort_rows(self, rows: pa.Table, partitions: Ints, sort: int, arrival: Ints) -> SortedRows:
        """Sort rows by partition, one of the ORDER BYs, and arrival."""
        by = [sort_codes(rows.column(f"o{o}"), self.orders[o]) for o in self.sorts[sort]]
        return sort_rows(partitions, by, arrival)

    def frame_bounds(
        self, frame: Frame, rows: pa.Table, positions: SortedRows, sort: int
    ) -> tuple[Ints, Ints]:
        """Return the start and end positions of the frames of sorted rows."""
        values = None
        if not frame.by_rows and (frame.start or frame.end):
            order = self.sorts[sort][0]
            values = frame_values(rows.column(f"o{order}"), self.orders[order])
        return frame_bounds(frame, positions, values)

    def evaluate_partitions(self, rows: pa.Table, partitions: Ints, arrival: Ints) -> pa.Table:
        """Append the results of all functions to the rows of complete partitions."""
        results: list[pa.Array | None] = [None] * len(self.functions)
        for sort, _ in enumerate(self.sorts):
            positions = self.sort_rows(rows, partitions, sort, arrival)
            sorted_rows = rows.take(pa.array(positions.order))
            original = np.empty(positions.rows, np.int64)
            original[positions.order] = positions.positions
            for index, result in self._evaluate_sort(sorted_rows, positions, sort).items():
                results[index] = result.take(pa.array(original))
        for index, column in enumerate(results, len(self.columns)):
            rows = rows.append_column(f"c{index}", column)
        return rows

    def _evaluate_sort(
        self, rows: pa.Table, positions: SortedRows, sort: int
    ) -> dict[int, pa.Array]:
        """Return the results of the functions with one ORDER BY, by the index of the function."""
        results: dict[int, pa.Array] = {}
        for index, function in enumerate(self.functions):
            if function.sort == sort and function.call is None:
                results[index] = (
                    evaluate_rank(function, positions)
                    if function.is_rank
                    else evaluate_shift(index, function, rows, positions)
                )
        for group in self.frame_groups:
            if group.sort == sort:
                starts, ends = self.frame_bounds(group.frame, rows, positions, sort)
                states = group.states(rows, starts, ends, None, positions.starts)
                results |= self.aggregate_results(group, states, rows)
        return results

    def aggregate_results(
        self, group: FrameGroup, states: Tables, rows: pa.Table
    ) -> dict[int, pa.Array]:
        """Return the results of aggregates for these rows, by the index of the function."""
        results = {}
        for index, result in zip(group.functions, group.results(states), strict=True):
            function = self.functions[index]
            if function.default:
                # These functions return non-NULL values only, so NULL means no value.
                default = rows.column(f"a{index}_{len(function.arguments) - 1}")
                result = as_array(pc.coalesce(result, as_array(default)))
            results[index] = result
        return results


def evaluate_rank(
    function: OverFunction,
    positions: SortedRows,
    rows_before: Ints | None = None,
    peer_groups_before: Ints | None = None,
) -> pa.Array:
    """Return the rank of each row.

    `rows_before` and `peer_groups_before` count, for each row, the rows and peer groups of its
    partition that have been dropped from the state.
    """
    zeros = np.zeros(positions.rows, np.int64)
    rows_before = zeros if rows_before is None else rows_before
    index = positions.positions - positions.starts
    if function.name == "ROW_NUMBER":
        ranks: np.ndarray = index + 1 + rows_before
    elif function.name == "RANK":
        ranks = positions.peer_starts - positions.starts + 1 + rows_before
    elif function.name == "DENSE_RANK":
        ranks = positions.peer_groups + 1
        ranks = ranks + (zeros if peer_groups_before is None else peer_groups_before)
    else:
        ranks = _rank_of_all(function, positions)
    return pa.array(ranks).cast(function.result)


def _rank_of_all(function: OverFunction, positions: SortedRows) -> np.ndarray:
    size, index = positions.ends - positions.starts, positions.positions - positions.starts
    if function.name == "PERCENT_RANK":
        return np.asarray((positions.peer_starts - positions.starts) / np.maximum(size - 1, 1))
    if function.name == "CUME_DIST":
        return np.asarray((positions.peer_ends - positions.starts) / size)
    # NTILE: the first buckets have one row more if the rows cannot be divided evenly.
    small_size, large_buckets = size // function.buckets, size % function.buckets
    large_rows = large_buckets * (small_size + 1)
    small_bucket = large_buckets + (index - large_rows) // np.maximum(small_size, 1)
    return np.asarray(np.where(index < large_rows, index // (small_size + 1), small_bucket) + 1)


def evaluate_shift(
    index: int, function: OverFunction, rows: pa.Table, positions: SortedRows
) -> pa.Array:
    """Evaluate lag or lead: return the value of another row of the partition."""
    assert function.shift is not None, "lag and lead have a shift"
    targets = positions.positions + function.shift
    exists = (targets >= positions.starts) & (targets < positions.ends)
    values = take_or_null(rows.column(f"a{index}_0"), np.where(exists, targets, -1))
    values = values if values.type == function.result else values.cast(function.result)
    if function.default and not exists.all():
        defaults = as_array(rows.column(f"a{index}_1"))
        count = len(values)
        indices = np.where(exists, np.arange(count), np.arange(count) + count)
        values = pa.concat_arrays([values, defaults]).take(pa.array(indices))
    return values


# ---- OVER for complete partitions: when a window closes, at the end of the input, or as changes


@dataclass(frozen=True)
class PartitionWindowFunctions:
    """Evaluates window functions over all rows of a partition, as a `PartitionEvaluator`."""

    spec: OverSpec

    @property
    def partition_columns(self) -> list[str]:
        return [STORE_TIME, *(item.name for item in self.key_fields)]

    @property
    def key_fields(self) -> list[pa.Field]:
        return self.spec.key_fields

    @property
    def result_schema(self) -> pa.Schema:
        return self.spec.result_schema

    @property
    def fields(self) -> list[pa.Field]:
        spec = self.spec
        hidden = [pa.field(STORE_TIME, INT), pa.field(HASH, INT)]
        columns = [*spec.order_fields, *spec.argument_fields, *spec.column_fields]
        return [*hidden, *spec.key_fields, *columns]

    @property
    def arrival_schema(self) -> pa.Schema:
        return arrival.arrival_schema(self.fields)

    @property
    def stored_schema(self) -> pa.Schema:
        return arrival.stored_schema(self.fields)

    def select(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        return select_arrivals(rows, schema, self.key_fields)

    def prune_arrivals(self, rows: pa.Table) -> pa.Table:
        """Return all rows."""
        return rows

    def prune_stored(self, rows: pa.Table) -> pa.Table:
        """Return all rows."""
        return rows

    def evaluate(self, rows: pa.Table) -> pa.Table:
        """Append the results of the functions; rows are in the order of their arrival."""
        ids, _ = group_ids(rows, self.partition_columns)
        seq = int_column(rows, ARRIVAL_NUMBER)
        result = self.spec.evaluate_partitions(rows, ids, seq)
        return result.take(pa.array(np.lexsort((seq, int_column(result, STORE_TIME)))))

    def diff(self, before: pa.Table, after: pa.Table) -> pa.Table:
        """Return the changes between two results; a row with other results is updated."""
        names = [ARRIVAL_NUMBER, *self.result_schema.names]
        return diff_results(before.select(names), after.select(names), [ARRIVAL_NUMBER])
