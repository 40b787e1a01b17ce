"""Groups as Arrow tables: pre-aggregate rows, combine partial aggregates, evaluate results.

`Aggregator` does this for one GROUP BY. `WindowPanes` describes windows, `OutputLayout` the output
columns. The last section is pre-aggregation in Spark SQL, which replaces `Aggregator.pre_aggregate`
where it can.

A partial aggregate is a tuple of tables. All of them start with the pane (the part of a window that
a row belongs to, 0 without windows), a hash of the keys, and the keys. The first table has one row
per group: its number of rows and the states of the plain accumulators. There is one more table for
each bag accumulator, with the values of all groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import HASH, INPUT_ROWS, OP, PANE, ROWS, WEIGHT
from tidegate.errors import unsupported_error
from tidegate.operators.aggregate.functions import (
    Accumulator,
    AggregateCall,
    BagAccumulator,
    PlainAccumulator,
    make_accumulator,
)
from tidegate.operators.aggregate.functions.base import combine_counts
from tidegate.operators.kernels.arrays import Column, Ints, concat
from tidegate.operators.kernels.keys import (
    canonicalize,
    find_rows,
    invert_groups,
    is_groupable,
    merge_rows,
    plan_small_merge,
)
from tidegate.operators.kernels.weighted_rows import cancel_earliest, cancel_pairs
from tidegate.operators.operator import Tables


@dataclass(frozen=True)
class GroupSpec:
    """Keys and aggregate calls of a GROUP BY. Argument j of call i is the column `a{i}_{j}`.

    With grouping sets, a row has one copy per set. `counted_copy` is then the index of the key
    that distinguishes the copies, and its value in the copy that counts as an input row.
    """

    keys: tuple[pa.DataType, ...]
    calls: tuple[AggregateCall, ...]
    retracts: bool = False
    counted_copy: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for data_type in self.keys:
            if not is_groupable(data_type):
                hint = "group by its parts, or by to_json(…)."
                raise unsupported_error(f"GROUP BY is not supported over {data_type}", hint)


class Aggregator:
    """Pre-aggregates, combines and evaluates the groups of one GROUP BY."""

    def __init__(self, spec: GroupSpec) -> None:
        self.spec = spec
        self.keys = [f"k{index}" for index, _ in enumerate(spec.keys)]
        self.by = [PANE, *self.keys]
        # count(*) needs no accumulator: it is the number of rows of the group.
        self.accumulators: list[Accumulator | None] = [
            None
            if _is_count_of_rows(call)
            else make_accumulator(replace(call, retracts=spec.retracts))
            for call in spec.calls
        ]
        self._plain: dict[int, tuple[PlainAccumulator, list[str]]] = {}
        self.bags: list[tuple[int, BagAccumulator]] = []
        for index, item in enumerate(self.accumulators):
            if isinstance(item, PlainAccumulator):
                names = [f"s{index}_{number}" for number, _ in enumerate(item.state_types)]
                self._plain[index] = item, names
            elif isinstance(item, BagAccumulator):
                self.bags.append((index, item))
        self.schemas = (self._main_schema(), *(self._bag_schema(bag) for _, bag in self.bags))
        self._empty = tuple(schema.empty_table() for schema in self.schemas)
        self._merges, self._custom = self._plan_merges()
        self._names: list[str] = self.schemas[0].names
        self._small_merge = (
            None if self._custom else plan_small_merge(self.schemas[0], self.by, self._merges)
        )

    # ---- Schemas

    def _key_fields(self) -> list[pa.Field]:
        keys = [pa.field(*pair) for pair in zip(self.keys, self.spec.keys, strict=True)]
        return [pa.field(PANE, pa.int64()), pa.field(HASH, pa.int64()), *keys]

    def _main_schema(self) -> pa.Schema:
        fields = [*self._key_fields(), pa.field(ROWS, pa.int64())]
        fields += [pa.field(INPUT_ROWS, pa.int64())] if self.spec.retracts else []
        for item, names in self._plain.values():
            fields += [pa.field(*pair) for pair in zip(names, item.state_types, strict=True)]
        return pa.schema(fields)

    def _bag_schema(self, bag: BagAccumulator) -> pa.Schema:
        values = [pa.field(f"v{index}", data_type) for index, data_type in enumerate(bag.values)]
        return pa.schema([*self._key_fields(), *values, pa.field(ROWS, pa.int64())])

    def _plan_merges(
        self,
    ) -> tuple[list[tuple[str, str]], list[tuple[PlainAccumulator, list[str]]]]:
        """Return the columns that Arrow kernels merge, and those that accumulators merge."""
        merges, custom = [(HASH, "min"), (ROWS, "sum")], []
        merges += [(INPUT_ROWS, "sum")] if self.spec.retracts else []
        for item, names in self._plain.values():
            if item.merge_kernels:
                merges += list(zip(names, item.merge_kernels, strict=True))
            else:
                custom.append((item, names))
        return merges, custom

    def empty(self) -> Tables:
        """Return tables without rows."""
        return self._empty

    @property
    def plain(self) -> list[tuple[PlainAccumulator, list[str]]]:
        """The plain accumulators, each with the names of its state columns."""
        return list(self._plain.values())

    # ---- Rows to partial aggregates

    def pre_aggregate(self, rows: pa.Table) -> Tables:
        """Return the partial aggregates of rows with PANE, HASH, keys, arguments (and WEIGHT)."""
        weights = rows.column(WEIGHT) if self.spec.retracts else None
        single = pa.array(np.ones(rows.num_rows, np.int64))
        ones = single if weights is None else weights
        keys = [rows.column(PANE), rows.column(HASH)]
        keys += [canonicalize(rows.column(name)) for name in self.keys]
        main = [*keys, ones, *([single] if self.spec.retracts else [])]
        for index, (item, _) in self._plain.items():
            states = item.pre_aggregate(self._arguments(rows, index, item), weights)
            main += [
                _cast(s, data_type) for s, data_type in zip(states, item.state_types, strict=True)
            ]
        tables = [pa.table(main, schema=self.schemas[0])]
        for number, (index, bag) in enumerate(self.bags, 1):
            columns = self._arguments(rows, index, bag)
            schema = self.schemas[number]
            tables.append(self._pre_aggregate_bag(bag, keys, columns, ones, schema))
        return self.combine(tuple(tables))

    def _arguments(self, rows: pa.Table, index: int, item: Accumulator) -> list[Column]:
        """Return the argument columns of a call, with the FILTER condition folded in as NULLs."""
        call = self.spec.calls[index]
        columns = [rows.column(f"a{index}_{number}") for number, _ in enumerate(call.arguments)]
        if not call.filtered or item.null_argument is None:
            return columns
        *columns, condition = columns
        if not columns:
            return [_null_unless(condition, pa.scalar(True))]
        columns[item.null_argument] = _null_unless(condition, columns[item.null_argument])
        return columns

    def _pre_aggregate_bag(
        self,
        bag: BagAccumulator,
        keys: list[Column],
        columns: list[Column],
        ones: Column,
        schema: pa.Schema,
    ) -> pa.Table:
        keep: Column | None = None
        if bag.null_argument is None and bag.call.filtered:
            *columns, keep = columns
        values, counts = bag.pre_aggregate(columns, ones)
        for index in bag.required_arguments:
            if values[index].null_count:
                valid = pc.is_valid(values[index])
                keep = valid if keep is None else pc.and_(keep, valid)
        table = pa.table([*keys, *values, counts], schema=schema)
        return table if keep is None else table.filter(keep)

    # ---- Combining partial aggregates

    def combine(self, tables: Tables) -> Tables:
        """Merge the rows of each group, and in bags the rows of each value."""
        return (self._combine_main(tables[0]), *self.combine_bags(tables[1:]))

    def combine_bags(self, tables: Sequence[pa.Table]) -> Tables:
        """Merge the rows of each value in the tables of bags."""
        pairs = zip(tables, self.bags, strict=True)
        return tuple(self._combine_bag(table, bag) for table, (_, bag) in pairs)

    def combine_parts(self, parts: Sequence[Tables]) -> Tables:
        """Combine several partial aggregates, in order of arrival."""
        if not parts:
            return self.empty()
        if len(parts) == 1:
            return parts[0]
        return self.combine(concat(parts))

    def _combine_main(self, table: pa.Table) -> pa.Table:
        if table.num_rows <= 1:
            return table
        small = self._small_merge.merge(table) if self._small_merge is not None else None
        if small is not None:
            return small
        merges = self._merges
        if self._custom:
            table = table.append_column("_row", pa.array(np.arange(table.num_rows)))
            merges = [*merges, ("_row", "list")]
        merged = merge_rows(table, self.by, merges)
        if not self._custom:
            return self._cast_to_schema(merged.select(self._names))
        columns = dict(zip(merged.column_names, merged.columns, strict=True))
        ids = invert_groups(columns["_row"], table.num_rows)
        for item, states in self._custom:
            combined = item.combine([table.column(s) for s in states], ids, merged.num_rows)
            columns |= dict(zip(states, combined, strict=True))
        return self._cast_to_schema(pa.table({name: columns[name] for name in self._names}))

    def _cast_to_schema(self, table: pa.Table) -> pa.Table:
        schema = self.schemas[0]
        if table.schema.equals(schema):
            return table
        pairs = zip(table.columns, schema.types, strict=True)
        return pa.table([_cast(column, data_type) for column, data_type in pairs], schema=schema)

    def _combine_bag(self, table: pa.Table, bag: BagAccumulator) -> pa.Table:
        keys = self._bag_keys(bag)
        if bag.keeps_order:
            return cancel_pairs(table, keys, ROWS)
        return combine_counts(table, keys, (HASH, ROWS), bag)

    def _bag_keys(self, bag: BagAccumulator) -> list[str]:
        return [*self.by, *(f"v{index}" for index, _ in enumerate(bag.values))]

    def input_rows(self, main: pa.Table) -> Ints:
        """Return the input rows of each group; a row in several grouping sets counts once."""
        counts: Ints = main.column(INPUT_ROWS if self.spec.retracts else ROWS).to_numpy()
        if self.spec.counted_copy is None:
            return counts
        key, value = self.spec.counted_copy
        return np.where(main.column(self.keys[key]).to_numpy() == value, counts, 0)

    # ---- Partial aggregates to results

    def evaluate(self, tables: Tables) -> pa.Table:
        """Return the results of all groups: PANE, HASH, keys, and one column `r{i}` per call."""
        main = tables[0]
        bags = dict(zip([index for index, _ in self.bags], tables[1:], strict=True))
        names = [PANE, HASH, *self.keys]
        columns = [main.column(name) for name in names]
        for index, call in enumerate(self.spec.calls):
            item = self.accumulators[index]
            if isinstance(item, BagAccumulator):
                result = self._evaluate_bag(item, main, bags[index])
            elif item is None:
                result = main.column(ROWS)
            else:
                plain, states = self._plain[index]
                result = plain.evaluate([main.column(name) for name in states])
            columns.append(_cast(result, call.result))
        return pa.table(columns, names=[*names, *(f"r{i}" for i, _ in enumerate(self.spec.calls))])

    def _evaluate_bag(self, item: BagAccumulator, main: pa.Table, bag: pa.Table) -> pa.Array:
        if item.keeps_order:
            bag = cancel_earliest(bag, self._bag_keys(item), ROWS)
        ids = find_rows(main, bag, self.by)
        counts = bag.column(ROWS).to_numpy()
        values = [bag.column(f"v{index}") for index, _ in enumerate(item.values)]
        in_group = (ids >= 0) & (counts > 0)
        if not in_group.all():
            keep = pa.array(in_group)
            values, counts, ids = [v.filter(keep) for v in values], counts[in_group], ids[in_group]
        return item.evaluate_bag(values, counts, ids, main.num_rows)


def _is_count_of_rows(call: AggregateCall) -> bool:
    return call.function == "count" and not call.arguments


def _cast(column: Column, data_type: pa.DataType) -> Column:
    return column if column.type == data_type else pc.cast(column, data_type)


def _null_unless(condition: Column, value: Column | pa.Scalar) -> Column:
    return pc.if_else(condition, value, pa.scalar(None, value.type))


# ---- Panes: the pieces that windows consist of
#
# A row is in one pane; a pane can be in several windows. Each pane is aggregated once, and a window
# that closes combines its panes.


@dataclass(frozen=True)
class PaneGrid:
    """Panes start at `offset_us` plus multiples of `width_us`."""

    width_us: int
    offset_us: int


@dataclass(frozen=True)
class WindowPanes:
    """The panes of windows. `kind` is TUMBLE, HOP, CUMULATE or CLOSING_TIME.

    CLOSING_TIME stands for groups that the watermark closes without a window function in this GROUP
    BY, for example by the end of a window of an earlier query. The pane of a row is then the time
    at which its group closes.
    """

    kind: str
    size_us: int = 1
    slide_us: int = 1
    offset_us: int = 0

    @property
    def width_us(self) -> int:
        """The length of a pane."""
        if self.kind == "HOP":
            return math.gcd(self.size_us, self.slide_us)
        return {"TUMBLE": self.size_us, "CUMULATE": self.slide_us}.get(self.kind, 1)

    @property
    def shared(self) -> bool:
        """Whether a pane can be in several windows."""
        return self.kind in ("HOP", "CUMULATE")

    def last_end(self, pane: Ints) -> Ints:
        """Return the end of the last window that a pane is in."""
        if self.kind == "CLOSING_TIME":
            return pane
        if self.kind == "HOP":
            return self._floor(pane, self.slide_us) + self.size_us
        if self.kind == "CUMULATE":
            return self._floor(pane, self.size_us) + self.size_us
        return pane + self.size_us

    def first_pane(self, end: int) -> int:
        """Return the first pane of the window with this end."""
        if self.kind == "CLOSING_TIME":
            return end
        return int(self.start(np.array([end], np.int64))[0])

    def start(self, end: Ints) -> Ints:
        """Return the start of the window with this end."""
        if self.kind == "CUMULATE":
            return self._floor(end - 1, self.size_us)
        return end - self.size_us

    def ends(self, pane: Ints) -> Ints:
        """Return the distinct ends of all windows that these panes are in, in ascending order."""
        panes = np.unique(pane)
        last = self.last_end(panes)
        if not self.shared:
            return last
        # First and last ends ascend and are a multiple of the step apart, so the ends of a pane
        # that are new are those after the last end of the pane before it.
        step = self.slide_us
        first = last - (last - panes - 1) // step * step
        first[1:] = np.maximum(first[1:], last[:-1] + step)
        counts = np.maximum((last - first) // step + 1, 0)
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        ends: Ints = np.repeat(first, counts) + within * step
        return ends

    def first_open_pane(self, watermark_us: int) -> int:
        """Return the smallest pane in a window that this watermark has not closed."""
        if self.kind == "CLOSING_TIME":
            return watermark_us + 1
        if self.kind == "HOP":
            # The first open window starts at the first multiple of the slide that is after
            # watermark − size.
            return self._floor_int(watermark_us - self.size_us, self.slide_us) + self.slide_us
        return self._floor_int(watermark_us, self.size_us)

    def closing_panes(
        self, previous_watermark_us: int | None, watermark_us: int
    ) -> tuple[int | None, int] | None:
        """Return the panes [first, limit) of the windows that close; None if no window closes.

        Windows close whose end is after the previous watermark and not after the current one.
        """
        first = None
        if previous_watermark_us is not None:
            first = self.first_open_pane(previous_watermark_us)
        if not self.shared:
            limit = self.first_open_pane(watermark_us)
            return None if limit == first else (first, limit)
        shift = self.size_us if self.kind == "HOP" else 0
        last_end = self._floor_int(watermark_us - shift, self.slide_us) + shift
        is_closed = previous_watermark_us is not None and last_end <= previous_watermark_us
        return None if is_closed else (first, last_end)

    def _floor(self, us: Ints, grid: int) -> Ints:
        return us - np.mod(us - self.offset_us, grid)

    def _floor_int(self, us: int, grid: int) -> int:
        return us - (us - self.offset_us) % grid


# ---- Output: from evaluated groups to the output columns of the operator

# The column with the window start, if it cannot be computed from the end.
START = "_start"


@dataclass(frozen=True)
class OutputColumn:
    """An output column: `key` or `result` number `index`, or `start` or `end` of the window.

    `offset_us` is added to the end of the window.
    """

    kind: str
    index: int
    type: pa.DataType
    offset_us: int = 0

    def __post_init__(self) -> None:
        assert self.kind in ("key", "result", "start", "end"), self.kind


@dataclass(frozen=True)
class OutputLayout:
    """The output columns `c0`, `c1`, …, and `_op` if the operator emits a changelog."""

    columns: tuple[OutputColumn, ...]
    panes: WindowPanes
    with_op: bool = False

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the output."""
        fields = [pa.field(f"c{index}", item.type) for index, item in enumerate(self.columns)]
        return pa.schema([*fields, pa.field(OP, pa.string())] if self.with_op else fields)

    def to_output(self, groups: pa.Table) -> pa.Table:
        """Return the output rows of evaluated groups, whose pane must be the end of the window."""
        arrays = [self._column(groups, item) for item in self.columns]
        if self.with_op:
            arrays.append(groups.column(OP))
        return pa.table(arrays, schema=self.schema)

    def _column(self, groups: pa.Table, item: OutputColumn) -> pa.ChunkedArray:
        if item.kind == "key":
            return groups.column(f"k{item.index}")
        if item.kind == "result":
            return groups.column(f"r{item.index}")
        end = groups.column(PANE)
        if item.kind == "start" and START in groups.column_names:
            return pc.cast(groups.column(START), item.type)
        if item.kind == "start":
            starts = self.panes.start(np.asarray(end.to_numpy(), np.int64))
            return pa.chunked_array([pa.array(starts).cast(item.type)])
        offset = pa.scalar(item.offset_us, pa.int64())
        shifted = end if item.offset_us == 0 else pc.add(end, offset)
        return shifted if shifted.type == item.type else pc.cast(shifted, item.type)


# ---- Pre-aggregation in Spark SQL, with a GROUP BY before the operator
#
# Spark's generated code aggregates rows faster than Python can receive them. Spark pre-aggregates
# if all calls have partial aggregates in SQL, rows are never retracted, and the stream does not
# emit late rows.


def partial_sql(
    aggregator: Aggregator, arguments: Sequence[Sequence[str]]
) -> list[tuple[str, str]] | None:
    """Return the partial aggregates of all calls as (name, SQL); None if a call has none.

    `arguments` are the SQL columns of each call, the last one its FILTER condition if it has one.
    """
    spec = aggregator.spec
    if spec.retracts or aggregator.bags or any(map(pa.types.is_nested, spec.keys)):
        return None
    result: list[tuple[str, str]] = []
    for index, item in enumerate(aggregator.accumulators):
        if item is None:
            continue
        assert isinstance(item, PlainAccumulator), "the aggregator has no bags"
        columns = _fold_filter(spec.calls[index], item, list(arguments[index]))
        sql = item.partial_sql(columns) if columns is not None else None
        if sql is None:
            return None
        result += [(f"p{index}_{number}", text) for number, text in enumerate(sql)]
    return result


def _fold_filter(
    call: AggregateCall, item: PlainAccumulator, columns: list[str]
) -> list[str] | None:
    """Return the arguments of a call, NULL where its FILTER is not true; None if impossible."""
    if not call.filtered:
        return columns
    if item.null_argument is None:
        return None
    *columns, condition = columns
    if not columns:
        return [f"CASE WHEN {condition} THEN true END"]
    value = columns[item.null_argument]
    columns[item.null_argument] = f"CASE WHEN {condition} THEN {value} END"
    return columns


def from_partials(aggregator: Aggregator, rows: pa.Table) -> Tables:
    """Return partial aggregates from rows with PANE, HASH, keys, ROWS and the columns of Spark."""
    keys = aggregator.keys
    names = [PANE, HASH, *keys, ROWS]
    columns = [canonicalize(rows.column(n)) if n in keys else rows.column(n) for n in names]
    for index, item in enumerate(aggregator.accumulators):
        if isinstance(item, PlainAccumulator):
            partials = [n for n in rows.column_names if n.startswith(f"p{index}_")]
            columns += item.from_partials([rows.column(name) for name in partials])
    schema = aggregator.schemas[0]
    cast_columns = [c.cast(data_type) for c, data_type in zip(columns, schema.types, strict=True)]
    return aggregator.combine((pa.table(cast_columns, schema=schema),))
