"""What all GROUP BY operators share: rows become partials where they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import HASH, PANE, ROWS, WEIGHT
from tidegate.operators.aggregate.groups import Aggregator, GroupSpec, Layout
from tidegate.operators.kernels.arrays import concat
from tidegate.operators.kernels.keys import canonicalize, dense_ranks, group_ids
from tidegate.operators.kernels.weighted_rows import WeightedRows
from tidegate.operators.late_rows import LateRows
from tidegate.operators.operator import Tables
from tidegate.operators.store import sorted_runs as runs
from tidegate.state.codec import schema_text


class GroupByOperator:
    """With late rows to keep, rows stay what they are until they have been judged."""

    stored_in: ClassVar[str] = runs.FORMAT
    spec: GroupSpec
    layout: Layout
    late_rows: LateRows | None

    @cached_property
    def groups(self) -> Aggregator:
        return Aggregator(self.spec)

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        if self.late_rows is not None:
            return ((self.late_rows.input_schema,),)
        return (self.groups.schemas,)

    @property
    def output(self) -> pa.Schema:
        return self.layout.schema

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    def state_format(self) -> tuple[str, ...]:
        return (self.stored_in, *(schema_text(schema) for schema in self.groups.schemas))

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        if self.late_rows is not None:
            return (self.late_rows.select(rows),)
        return self.partials(rows)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        if self.late_rows is not None or len(parts) == 1:
            return concat(parts)
        return self.merged(concat(parts))

    def partials(self, rows: pa.Table) -> Tables:
        return self.groups.pre_aggregate(rows)

    def merged(self, tables: Tables) -> Tables:
        """Partials of the same group as one."""
        return self.groups.combine(tables)


# ---- What is kept of a group: states of its aggregates, or the rows themselves.
#
# States are small, and a retraction subtracts from them, whatever it retracts. Where a retraction may
# come of a row that was forgotten, rows are kept: only they tell that it is not there.


class GroupState(Protocol):
    """Tables that begin with the pane, the hash and the keys of a group."""

    @property
    def schemas(self) -> tuple[pa.Schema, ...]: ...

    def pre_aggregate(self, rows: pa.Table) -> Tables:
        """What rows add."""

    def combine(self, tables: Tables) -> Tables:
        """Several additions as one."""

    def amendment(self, whole: Tables, new: Tables) -> Tables:
        """What to store of an addition that made a group what it is as a whole."""

    def newest(self, tables: Tables) -> Tables:
        """Several amendments as one."""

    def present(self, tables: Tables) -> Tables:
        """Of all additions or amendments of a group, made one: what is there."""

    def known(self, old: Tables, new: Tables) -> tuple[Tables, int]:
        """An addition without retractions of what is not there, and how many those were."""

    def results(self, tables: Tables) -> pa.Table:
        """PANE, HASH, keys, then one column for each call, of what is there."""


class AggregateState:
    """The states of accumulators. Every retraction is of a row that is there."""

    def __init__(self, spec: GroupSpec, single: bool) -> None:
        self.groups = Aggregator(spec)
        # Without keys and windows the group is there, even without rows.
        self.vanishes = spec.retracts and not single

    @property
    def schemas(self) -> tuple[pa.Schema, ...]:
        return self.groups.schemas

    def pre_aggregate(self, rows: pa.Table) -> Tables:
        return self.groups.pre_aggregate(rows)

    def combine(self, tables: Tables) -> Tables:
        return self.groups.combine(tables)

    def amendment(self, whole: Tables, new: Tables) -> Tables:
        """States as a whole: sums of doubles depend on the order, and were told as they are."""
        return (whole[0], *new[1:])

    def newest(self, tables: Tables) -> Tables:
        main, *bags = tables
        return (self._last(main), *self.groups.combine_bags(bags))

    def _last(self, main: pa.Table) -> pa.Table:
        if main.num_rows <= 1:
            return main
        ids, count = group_ids(main, self.groups.by)
        last = np.zeros(count, np.int64)
        last[ids] = np.arange(main.num_rows)
        return main if count == main.num_rows else main.take(pa.array(np.sort(last)))

    def present(self, tables: Tables) -> Tables:
        if not self.vanishes:
            return tables
        return (tables[0].filter(pc.not_equal(tables[0].column(ROWS), 0)), *tables[1:])

    def known(self, old: Tables, new: Tables) -> tuple[Tables, int]:
        return new, 0

    def results(self, tables: Tables) -> pa.Table:
        return self.groups.evaluate(tables)


class RowState:
    """The rows of a group: what aggregates read of them, and how many there are of each."""

    def __init__(self, spec: GroupSpec) -> None:
        self.groups = Aggregator(replace(spec, retracts=False))
        retracting = Aggregator(replace(spec, retracts=True))
        self.kept = WeightedRows(any(bag.keeps_order for _, bag in retracting.bags))
        arguments = [
            pa.field(f"a{index}_{place}", kind)
            for index, call in enumerate(spec.calls)
            for place, kind in enumerate(call.arguments)
        ]
        keys = [pa.field(*pair) for pair in zip(self.groups.keys, spec.keys, strict=True)]
        hidden = [pa.field(name, pa.int64()) for name in (PANE, HASH)]
        weight = pa.field(WEIGHT, pa.int64())
        self.schema = pa.schema([*hidden, *keys, *arguments, weight])
        self.values = [item.name for item in arguments if not pa.types.is_nested(item.type)]

    @property
    def schemas(self) -> tuple[pa.Schema, ...]:
        return (self.schema,)

    def select(self, rows: pa.Table) -> pa.Table:
        """The columns that count, with keys that are equal where SQL says so."""
        keys = {name: canonicalize(rows.column(name)) for name in self.groups.keys}
        names = self.schema.names
        columns = [keys[name] if name in keys else rows.column(name) for name in names]
        return pa.table(columns, schema=self.schema)

    def pre_aggregate(self, rows: pa.Table) -> Tables:
        return (self.kept.consolidate(self.select(rows)),)

    def combine(self, tables: Tables) -> Tables:
        return (self.kept.consolidate(tables[0]),)

    def amendment(self, whole: Tables, new: Tables) -> Tables:
        return new

    def newest(self, tables: Tables) -> Tables:
        return self.combine(tables)

    def present(self, tables: Tables) -> Tables:
        return (self.kept.current(tables[0]),)

    def standing(self, tables: Tables) -> Tables:
        """All additions ever: what is there."""
        return self.present(self.combine(tables))

    def known(self, old: Tables, new: Tables) -> tuple[Tables, int]:
        rows, unknown = self.kept.drop_unknown_retractions(old[0], new[0])
        return (rows,), unknown

    def results(self, tables: Tables) -> pa.Table:
        rows = self._in_order(self.kept.expand(tables[0]))
        return self.groups.evaluate(self.groups.pre_aggregate(rows))

    def _in_order(self, rows: pa.Table) -> pa.Table:
        """By their values where arrival does not count: what rounds then says the same again."""
        if self.kept.ordered or not self.values or rows.num_rows <= 1:
            return rows
        by = tuple(dense_ranks(rows.column(name)) for name in self.values)
        return rows.take(pa.array(np.lexsort(by)))


def merge(contents: GroupState, parts: Sequence[Tables]) -> Tables:
    """What several tasks add, as one."""
    if not parts:
        return tuple(schema.empty_table() for schema in contents.schemas)
    return parts[0] if len(parts) == 1 else contents.combine(concat(parts))
