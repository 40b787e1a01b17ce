"""The parts that all GROUP BY operators share: pre-aggregation, and the stored state of groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import HASH, PANE, ROWS, WEIGHT
from tidegate.operators.aggregate.groups import Aggregator, GroupSpec, OutputLayout
from tidegate.operators.kernels.arrays import concat
from tidegate.operators.kernels.keys import canonicalize, dense_ranks, group_ids
from tidegate.operators.kernels.weighted_rows import WeightedRows
from tidegate.operators.late_rows import LateRowFormat
from tidegate.operators.operator import Tables
from tidegate.operators.store import sorted_runs
from tidegate.state.codec import schema_text


class GroupByOperator:
    """Base class of GROUP BY operators: rows are pre-aggregated before the shuffle.

    If late rows are emitted, rows are shuffled unchanged, and pre-aggregated after the late ones
    have been removed.
    """

    store_format: ClassVar[str] = sorted_runs.FORMAT
    spec: GroupSpec
    layout: OutputLayout
    late_rows: LateRowFormat | None

    @cached_property
    def aggregator(self) -> Aggregator:
        return Aggregator(self.spec)

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        if self.late_rows is not None:
            return ((self.late_rows.input_schema,),)
        return (self.aggregator.schemas,)

    @property
    def output(self) -> pa.Schema:
        return self.layout.schema

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    def state_format(self) -> tuple[str, ...]:
        return (self.store_format, *(schema_text(schema) for schema in self.aggregator.schemas))

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        if self.late_rows is not None:
            return (self.late_rows.select(rows),)
        return self.to_partials(rows)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        if self.late_rows is not None or len(parts) == 1:
            return concat(parts)
        return self.combine_partials(concat(parts))

    def to_partials(self, rows: pa.Table) -> Tables:
        """Return the partial aggregates of rows."""
        return self.aggregator.pre_aggregate(rows)

    def combine_partials(self, tables: Tables) -> Tables:
        """Merge the partial aggregates of each group."""
        return self.aggregator.combine(tables)


# ---- The state of groups that are updated: accumulator states, or the rows themselves
#
# Accumulator states are small, and a retraction subtracts from them without checking that its row
# exists. With a time to live, a retraction can arrive for a row that has expired and must be
# dropped. Only stored rows show this, so rows are stored then.


class GroupStateFormat(Protocol):
    """How groups are stored: as tables that start with the pane, the hash and the keys.

    A *change* is the effect of some rows on their groups. An *update* is what is stored for a
    change. For example, group `a` of `sum(x)` has the state 10 from two rows. An epoch adds a row
    with x = 5 and retracts the one with x = 3:

    - `AccumulatorStateFormat`: the change is +2 and no more rows; the update is the new state, 12
      from two rows. The last update of a group is its state.
    - `RowStateFormat`: change and update are both the rows (a, 5) with weight 1 and (a, 3) with
      weight −1. All updates of a group together are its state.
    """

    @property
    def schemas(self) -> tuple[pa.Schema, ...]: ...

    def pre_aggregate(self, rows: pa.Table) -> Tables:
        """Return the change that these rows cause."""

    def combine(self, tables: Tables) -> Tables:
        """Merge changes."""

    def to_update(self, state: Tables, change: Tables) -> Tables:
        """Convert a change to an update; `state` is the state of its groups after the change."""

    def combine_updates(self, tables: Tables) -> Tables:
        """Merge updates, in the order in which they were stored."""

    def drop_deleted(self, tables: Tables) -> Tables:
        """Remove groups or rows that do not exist, from merged changes or updates of groups."""

    def drop_unknown_retractions(self, old: Tables, change: Tables) -> tuple[Tables, int]:
        """Remove retractions of rows that do not exist from a change; return their number too."""

    def evaluate(self, tables: Tables) -> pa.Table:
        """Return the results of groups: PANE, HASH, the keys, and one column per call."""


class AccumulatorStateFormat:
    """Stores the states of accumulators. Every retraction must belong to an existing row."""

    def __init__(self, spec: GroupSpec, single: bool) -> None:
        self.aggregator = Aggregator(spec)
        # The single group of an aggregate without keys and windows exists even without rows.
        self.drops_empty_groups = spec.retracts and not single

    @property
    def schemas(self) -> tuple[pa.Schema, ...]:
        return self.aggregator.schemas

    def pre_aggregate(self, rows: pa.Table) -> Tables:
        return self.aggregator.pre_aggregate(rows)

    def combine(self, tables: Tables) -> Tables:
        return self.aggregator.combine(tables)

    def to_update(self, state: Tables, change: Tables) -> Tables:
        """Return the complete states of plain accumulators, and the changes of bags.

        Sums of doubles depend on the order of addition. Storing the state as it was emitted ensures
        that it is retracted with the same value.
        """
        return (state[0], *change[1:])

    def combine_updates(self, tables: Tables) -> Tables:
        main, *bags = tables
        return (self._keep_last(main), *self.aggregator.combine_bags(bags))

    def _keep_last(self, main: pa.Table) -> pa.Table:
        if main.num_rows <= 1:
            return main
        ids, count = group_ids(main, self.aggregator.by)
        last = np.zeros(count, np.int64)
        last[ids] = np.arange(main.num_rows)
        return main if count == main.num_rows else main.take(pa.array(np.sort(last)))

    def drop_deleted(self, tables: Tables) -> Tables:
        if not self.drops_empty_groups:
            return tables
        return (tables[0].filter(pc.not_equal(tables[0].column(ROWS), 0)), *tables[1:])

    def drop_unknown_retractions(self, old: Tables, change: Tables) -> tuple[Tables, int]:
        return change, 0

    def evaluate(self, tables: Tables) -> pa.Table:
        return self.aggregator.evaluate(tables)


class RowStateFormat:
    """Stores the argument columns of rows, with weights."""

    def __init__(self, spec: GroupSpec) -> None:
        self.aggregator = Aggregator(replace(spec, retracts=False))
        retracting = Aggregator(replace(spec, retracts=True))
        self.weighted_rows = WeightedRows(any(bag.keeps_order for _, bag in retracting.bags))
        arguments = [
            pa.field(f"a{index}_{number}", data_type)
            for index, call in enumerate(spec.calls)
            for number, data_type in enumerate(call.arguments)
        ]
        keys = [pa.field(*pair) for pair in zip(self.aggregator.keys, spec.keys, strict=True)]
        hidden = [pa.field(name, pa.int64()) for name in (PANE, HASH)]
        weight = pa.field(WEIGHT, pa.int64())
        self.schema = pa.schema([*hidden, *keys, *arguments, weight])
        self.sort_columns = [item.name for item in arguments if not pa.types.is_nested(item.type)]

    @property
    def schemas(self) -> tuple[pa.Schema, ...]:
        return (self.schema,)

    def select(self, rows: pa.Table) -> pa.Table:
        """Select the stored columns, with canonicalized keys."""
        keys = {name: canonicalize(rows.column(name)) for name in self.aggregator.keys}
        names = self.schema.names
        columns = [keys[name] if name in keys else rows.column(name) for name in names]
        return pa.table(columns, schema=self.schema)

    def pre_aggregate(self, rows: pa.Table) -> Tables:
        return (self.weighted_rows.consolidate(self.select(rows)),)

    def combine(self, tables: Tables) -> Tables:
        return (self.weighted_rows.consolidate(tables[0]),)

    def to_update(self, state: Tables, change: Tables) -> Tables:
        return change

    def combine_updates(self, tables: Tables) -> Tables:
        return self.combine(tables)

    def drop_deleted(self, tables: Tables) -> Tables:
        return (self.weighted_rows.current(tables[0]),)

    def combine_all(self, tables: Tables) -> Tables:
        """Return the rows that exist after all changes."""
        return self.drop_deleted(self.combine(tables))

    def drop_unknown_retractions(self, old: Tables, change: Tables) -> tuple[Tables, int]:
        rows, unknown = self.weighted_rows.drop_unknown_retractions(old[0], change[0])
        return (rows,), unknown

    def evaluate(self, tables: Tables) -> pa.Table:
        rows = self._sort(self.weighted_rows.expand(tables[0]))
        return self.aggregator.evaluate(self.aggregator.pre_aggregate(rows))

    def _sort(self, rows: pa.Table) -> pa.Table:
        """Sort rows by value if arrival does not matter, so that rounded sums are reproducible."""
        if self.weighted_rows.ordered or not self.sort_columns or rows.num_rows <= 1:
            return rows
        by = tuple(dense_ranks(rows.column(name)) for name in self.sort_columns)
        return rows.take(pa.array(np.lexsort(by)))


def combine_changes(group_format: GroupStateFormat, parts: Sequence[Tables]) -> Tables:
    """Merge the changes of several tasks."""
    if not parts:
        return tuple(schema.empty_table() for schema in group_format.schemas)
    return parts[0] if len(parts) == 1 else group_format.combine(concat(parts))
