"""Groups as tables: lift rows to states, combine states of the same group, evaluate them.

Every table starts with the pane (the window part a row belongs to, 0 without windows), a hash of
the keys, and the keys. The first table has a row per group: the number of its rows and the states
of the plain accumulators. Each further table belongs to one bag of values and counts them, or has
them in the order they came in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import HASH, OP, PANE, ROWS, SEEN, WEIGHT
from tidegate.errors import unsupported_error
from tidegate.operators.aggregate.functions import (
    Accumulator,
    AggregateCall,
    BagAccumulator,
    PlainAccumulator,
    make_accumulator,
)
from tidegate.operators.aggregate.functions.bags import combine_counts
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

# How many rows came in where some retract others, which may leave none.


@dataclass(frozen=True)
class GroupSpec:
    """Keys and aggregates of a GROUP BY; argument j of call i is the column `a{i}_{j}`."""

    keys: tuple[pa.DataType, ...]
    calls: tuple[AggregateCall, ...]
    retracts: bool = False
    # A key and a value of it: groups of other values have copies of rows that are counted there.
    counted: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for kind in self.keys:
            if not is_groupable(kind):
                hint = "group by its parts, or by to_json(…)."
                raise unsupported_error(f"GROUP BY is not supported over {kind}", hint)


class Aggregator:
    """The kernels of one GROUP BY."""

    def __init__(self, spec: GroupSpec) -> None:
        self.spec = spec
        self.keys = [f"k{index}" for index, _ in enumerate(spec.keys)]
        self.by = [PANE, *self.keys]
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
                names = [f"s{index}_{place}" for place, _ in enumerate(item.fields)]
                self._plain[index] = item, names
            elif isinstance(item, BagAccumulator):
                self.bags.append((index, item))
        self.schemas = (self._main_schema(), *(self._bag_schema(bag) for _, bag in self.bags))
        self._empty = tuple(schema.empty_table() for schema in self.schemas)
        self._merges, self._custom = self._plan_merges()
        self._names: list[str] = self.schemas[0].names
        self._few = (
            None if self._custom else plan_small_merge(self.schemas[0], self.by, self._merges)
        )

    # Shapes

    def _key_fields(self) -> list[pa.Field]:
        keys = [pa.field(*pair) for pair in zip(self.keys, self.spec.keys, strict=True)]
        return [pa.field(PANE, pa.int64()), pa.field(HASH, pa.int64()), *keys]

    def _main_schema(self) -> pa.Schema:
        fields = [*self._key_fields(), pa.field(ROWS, pa.int64())]
        fields += [pa.field(SEEN, pa.int64())] if self.spec.retracts else []
        for item, names in self._plain.values():
            fields += [pa.field(*pair) for pair in zip(names, item.fields, strict=True)]
        return pa.schema(fields)

    def _bag_schema(self, bag: BagAccumulator) -> pa.Schema:
        values = [pa.field(f"v{index}", kind) for index, kind in enumerate(bag.values)]
        return pa.schema([*self._key_fields(), *values, pa.field(ROWS, pa.int64())])

    def _plan_merges(
        self,
    ) -> tuple[list[tuple[str, str]], list[tuple[PlainAccumulator, list[str]]]]:
        """What kernels of Arrow merge, and what accumulators merge themselves."""
        merges, custom = [(HASH, "min"), (ROWS, "sum")], []
        merges += [(SEEN, "sum")] if self.spec.retracts else []
        for item, names in self._plain.values():
            if item.merges:
                merges += list(zip(names, item.merges, strict=True))
            else:
                custom.append((item, names))
        return merges, custom

    def empty(self) -> Tables:
        return self._empty

    @property
    def plain(self) -> list[tuple[PlainAccumulator, list[str]]]:
        """The plain accumulators, each with the columns of its states."""
        return list(self._plain.values())

    # Rows to states

    def pre_aggregate(self, rows: pa.Table) -> Tables:
        """Rows with PANE, HASH, keys, arguments (and WEIGHT) as states, combined."""
        weights = rows.column(WEIGHT) if self.spec.retracts else None
        each = pa.array(np.ones(rows.num_rows, np.int64))
        ones = each if weights is None else weights
        keys = [rows.column(PANE), rows.column(HASH)]
        keys += [canonicalize(rows.column(name)) for name in self.keys]
        main = [*keys, ones, *([each] if self.spec.retracts else [])]
        for index, (item, _) in self._plain.items():
            states = item.pre_aggregate(self._arguments(rows, index, item), weights)
            main += [_cast(s, kind) for s, kind in zip(states, item.fields, strict=True)]
        tables = [pa.table(main, schema=self.schemas[0])]
        for place, (index, bag) in enumerate(self.bags, 1):
            columns = self._arguments(rows, index, bag)
            tables.append(self._lift_bag(bag, keys, columns, ones, self.schemas[place]))
        return self.combine(tuple(tables))

    def _arguments(self, rows: pa.Table, index: int, item: Accumulator) -> list[Column]:
        """The columns of a call; a row that the filter leaves out is NULL where that says so."""
        call = self.spec.calls[index]
        columns = [rows.column(f"a{index}_{place}") for place, _ in enumerate(call.arguments)]
        if not call.filtered or item.null_place is None:
            return columns
        *columns, there = columns
        if not columns:
            return [_where(there, pa.scalar(True))]
        columns[item.null_place] = _where(there, columns[item.null_place])
        return columns

    def _lift_bag(
        self,
        bag: BagAccumulator,
        keys: list[Column],
        columns: list[Column],
        ones: Column,
        schema: pa.Schema,
    ) -> pa.Table:
        there: Column | None = None
        if bag.null_place is None and bag.call.filtered:
            *columns, there = columns
        values, counts = bag.pre_aggregate(columns, ones)
        for place in bag.required:
            if values[place].null_count:
                valid = pc.is_valid(values[place])
                there = valid if there is None else pc.and_(there, valid)
        table = pa.table([*keys, *values, counts], schema=schema)
        return table if there is None else table.filter(there)

    # States to states

    def combine(self, tables: Tables) -> Tables:
        """One row per group, in bags one row per value; values that cancelled out are gone."""
        return (self._combine_main(tables[0]), *self.combine_bags(tables[1:]))

    def combine_bags(self, tables: Sequence[pa.Table]) -> Tables:
        pairs = zip(tables, self.bags, strict=True)
        return tuple(self._combine_bag(table, bag) for table, (_, bag) in pairs)

    def merge(self, parts: Sequence[Tables]) -> Tables:
        """Several partial results as one, the older ones first."""
        if not parts:
            return self.empty()
        if len(parts) == 1:
            return parts[0]
        return self.combine(concat(parts))

    def _combine_main(self, table: pa.Table) -> pa.Table:
        if table.num_rows <= 1:
            return table
        few = self._few.merge(table) if self._few is not None else None
        if few is not None:
            return few
        merges = self._merges
        if self._custom:
            table = table.append_column("_row", pa.array(np.arange(table.num_rows)))
            merges = [*merges, ("_row", "list")]
        merged = merge_rows(table, self.by, merges)
        if not self._custom:
            return self._in_shape(merged.select(self._names))
        columns = dict(zip(merged.column_names, merged.columns, strict=True))
        ids = invert_groups(columns["_row"], table.num_rows)
        for item, states in self._custom:
            combined = item.combine([table.column(s) for s in states], ids, merged.num_rows)
            columns |= dict(zip(states, combined, strict=True))
        return self._in_shape(pa.table({name: columns[name] for name in self._names}))

    def _in_shape(self, table: pa.Table) -> pa.Table:
        schema = self.schemas[0]
        if table.schema.equals(schema):
            return table
        pairs = zip(table.columns, schema.types, strict=True)
        return pa.table([_cast(column, kind) for column, kind in pairs], schema=schema)

    def _combine_bag(self, table: pa.Table, bag: BagAccumulator) -> pa.Table:
        keys = self._bag_keys(bag)
        if bag.keeps_order:
            return cancel_pairs(table, keys, ROWS)
        return combine_counts(table, keys, (HASH, ROWS), bag)

    def _bag_keys(self, bag: BagAccumulator) -> list[str]:
        return [*self.by, *(f"v{place}" for place, _ in enumerate(bag.values))]

    def seen(self, main: pa.Table) -> Ints:
        """How many rows came in for each group; a row that is in several sets counts once."""
        counts: Ints = main.column(SEEN if self.spec.retracts else ROWS).to_numpy()
        if self.spec.counted is None:
            return counts
        key, value = self.spec.counted
        return np.where(main.column(self.keys[key]).to_numpy() == value, counts, 0)

    # States to results

    def evaluate(self, tables: Tables) -> pa.Table:
        """PANE, HASH, keys, then one column per call, as `r{i}`."""
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
        values = [bag.column(f"v{place}") for place, _ in enumerate(item.values)]
        known = (ids >= 0) & (counts > 0)
        if not known.all():
            keep = pa.array(known)
            values, counts, ids = [v.filter(keep) for v in values], counts[known], ids[known]
        return item.evaluate_bag(values, counts, ids, main.num_rows)


def _is_count_of_rows(call: AggregateCall) -> bool:
    return call.function == "count" and not call.arguments


def _cast(column: Column, kind: pa.DataType) -> Column:
    return column if column.type == kind else pc.cast(column, kind)


def _where(there: Column, value: Column | pa.Scalar) -> Column:
    return pc.if_else(there, value, pa.scalar(None, value.type))


# ---- Panes: the smallest pieces windows are made of. A row is in one pane, a pane in some windows.


@dataclass(frozen=True)
class Grid:
    """Panes begin at multiples of `width_us` from `offset_us`."""

    width_us: int
    offset_us: int


@dataclass(frozen=True)
class Panes:
    """How panes make windows. `kind` is TUMBLE, HOP, CUMULATE, or DUE.

    DUE has no windows of its own: the pane of a row is the moment at which the watermark closes its
    group, such as the end of a window that was made further up.
    """

    kind: str
    size_us: int = 1
    slide_us: int = 1
    offset_us: int = 0

    @property
    def width_us(self) -> int:
        if self.kind == "HOP":
            return math.gcd(self.size_us, self.slide_us)
        return {"TUMBLE": self.size_us, "CUMULATE": self.slide_us}.get(self.kind, 1)

    @property
    def shared(self) -> bool:
        """Whether a pane can be in several windows."""
        return self.kind in ("HOP", "CUMULATE")

    def last_end(self, pane: Ints) -> Ints:
        """The end of the last window a pane is in."""
        if self.kind == "DUE":
            return pane
        if self.kind == "HOP":
            return self._floor(pane, self.slide_us) + self.size_us
        if self.kind == "CUMULATE":
            return self._floor(pane, self.size_us) + self.size_us
        return pane + self.size_us

    def first_pane(self, end: int) -> int:
        """The first pane of the window that ends there."""
        if self.kind == "DUE":
            return end
        return int(self.start(np.array([end], np.int64))[0])

    def start(self, end: Ints) -> Ints:
        """The start of the window that ends there."""
        if self.kind == "CUMULATE":
            return self._floor(end - 1, self.size_us)
        return end - self.size_us

    def ends(self, pane: Ints) -> Ints:
        """The ends of all windows these panes are in, sorted, each once."""
        panes = np.unique(pane)
        last = self.last_end(panes)
        if not self.shared:
            return last
        # Both are sorted, and on a grid: of each pane only what the one before it lacks is new.
        step = self.slide_us
        first = last - (last - panes - 1) // step * step
        first[1:] = np.maximum(first[1:], last[:-1] + step)
        counts = np.maximum((last - first) // step + 1, 0)
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        ends: Ints = np.repeat(first, counts) + within * step
        return ends

    def floor_after(self, mark_us: int) -> int:
        """The smallest pane that a watermark leaves open."""
        if self.kind == "DUE":
            return mark_us + 1
        if self.kind == "HOP":
            # The first window with end > mark starts at the next grid point after mark − size.
            return self._scalar_floor(mark_us - self.size_us, self.slide_us) + self.slide_us
        if self.kind == "CUMULATE":
            return self._scalar_floor(mark_us, self.size_us)
        return self._scalar_floor(mark_us, self.size_us)

    def closing(
        self, previous_watermark_us: int | None, watermark_us: int
    ) -> tuple[int | None, int] | None:
        """The panes [first, limit) of windows with before < end ≤ after; None if none can end."""
        first = None if previous_watermark_us is None else self.floor_after(previous_watermark_us)
        if not self.shared:
            limit = self.floor_after(watermark_us)
            return None if limit == first else (first, limit)
        into = self.size_us if self.kind == "HOP" else 0
        last_end = self._scalar_floor(watermark_us - into, self.slide_us) + into
        passed = previous_watermark_us is not None and last_end <= previous_watermark_us
        return None if passed else (first, last_end)

    def _floor(self, us: Ints, grid: int) -> Ints:
        return us - np.mod(us - self.offset_us, grid)

    def _scalar_floor(self, us: int, grid: int) -> int:
        return us - (us - self.offset_us) % grid


# ---- From evaluated groups to the columns that an aggregate hands out.

# A column with the start of the window, where the end does not tell it.
START = "_start"


@dataclass(frozen=True)
class OutputColumn:
    """`key` or `result` number `index`; `due` is a time `index` µs after the end of the window,
    `start` the window's start."""

    kind: str
    index: int
    type: pa.DataType

    def __post_init__(self) -> None:
        assert self.kind in ("key", "result", "due", "start"), self.kind


@dataclass(frozen=True)
class Layout:
    """The columns of an aggregate, as `c0`, `c1`, …, and _op if it gives out changes."""

    columns: tuple[OutputColumn, ...]
    panes: Panes
    with_op: bool = False

    @cached_property
    def schema(self) -> pa.Schema:
        fields = [pa.field(f"c{index}", item.type) for index, item in enumerate(self.columns)]
        return pa.schema([*fields, pa.field(OP, pa.string())] if self.with_op else fields)

    def rows(self, groups: pa.Table) -> pa.Table:
        """`groups` has the end of the window as its pane."""
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
        shifted = end if item.index == 0 else pc.add(end, pa.scalar(item.index, pa.int64()))
        return shifted if shifted.type == item.type else pc.cast(shifted, item.type)


# ---- Partials that Spark computes: a GROUP BY in the stage before an operator, instead of `lift`.
#
# Generated code adds up rows faster than anything that is sent to Python first. It can only be done
# where every call has partials in SQL, nothing is retracted, and rows need not be kept as they came.


def partial_sql(
    groups: Aggregator, arguments: Sequence[Sequence[str]]
) -> list[tuple[str, str]] | None:
    """The partials of all calls as (name, SQL); None if one has none.

    `arguments` are the columns of each call, the last one its filter if it has one.
    """
    if groups.spec.retracts or groups.bags or any(map(pa.types.is_nested, groups.spec.keys)):
        return None
    found: list[tuple[str, str]] = []
    for index, item in enumerate(groups.accumulators):
        if item is None:
            continue
        assert isinstance(item, PlainAccumulator), "there are no bags"
        folded = _folded(groups, index, item, list(arguments[index]))
        sql = item.partials(folded) if folded is not None else None
        if sql is None:
            return None
        found += [(f"p{index}_{place}", text) for place, text in enumerate(sql)]
    return found


def _folded(
    groups: Aggregator, index: int, item: PlainAccumulator, columns: list[str]
) -> list[str] | None:
    """The arguments of a call, NULL where its filter leaves a row out."""
    if not groups.spec.calls[index].filtered:
        return columns
    if item.null_place is None:
        return None
    *columns, there = columns
    if not columns:
        return [f"CASE WHEN {there} THEN true END"]
    columns[item.null_place] = f"CASE WHEN {there} THEN {columns[item.null_place]} END"
    return columns


def from_partials(groups: Aggregator, rows: pa.Table) -> Tables:
    """The states of groups from rows of PANE, HASH, keys, ROWS and partials."""
    names = [PANE, HASH, *groups.keys, ROWS]
    columns = [canonicalize(rows.column(n)) if n in groups.keys else rows.column(n) for n in names]
    for index, item in enumerate(groups.accumulators):
        if isinstance(item, PlainAccumulator):
            own = [n for n in rows.column_names if n.startswith(f"p{index}_")]
            columns += item.from_partials([rows.column(name) for name in own])
    schema = groups.schemas[0]
    cast = [c.cast(kind) for c, kind in zip(columns, schema.types, strict=True)]
    return groups.combine((pa.table(cast, schema=schema),))
