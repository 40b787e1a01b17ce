"""What the state of OVER keeps of a partition, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidegate.columns import HASH, PANE, ROWS
from tidegate.operators.kernels.arrays import Mask, int_column
from tidegate.operators.kernels.ordering import INT, SEQ
from tidegate.operators.operator import Tables
from tidegate.operators.over.functions import FrameGroup, OverSpec
from tidegate.operators.watermark import END_US

# The id of a partition, and how many of its rows and peer groups are not stored anymore.
ID, ROWS_BEFORE, PEER_GROUPS_BEFORE = "_id", "_before", "_groups"
# The watermark that passed a row, and whether the row has been emitted.
TIME, EMITTED = "_time", "_done"
# The watermark from which no row of the partition can arrive.
ENDS = "_ends"


@dataclass(frozen=True)
class FrameReach:
    """How many rows, and how much time, functions can see before and after a row."""

    rows_back: int = 0
    rows_ahead: int = 0
    time_back: int = 0
    time_ahead: int = 0
    ranks: bool = False

    @staticmethod
    def of(spec: OverSpec) -> FrameReach:
        """Return the reach of all functions of a spec."""
        rows, times = [0], [0]
        for function in spec.functions:
            frame = function.frame
            if function.shift is not None:
                rows.append(function.shift)
            elif frame is not None:
                offsets = [int(at) for at in (frame.start, frame.end) if at is not None]
                assert frame.end is not None, "no frame ends with the partition"
                (rows if frame.by_rows else times).extend(offsets)
        ranks = any(function.is_rank for function in spec.functions)
        return FrameReach(-min(rows), max(rows), -min(times), max(times), ranks)


@dataclass(frozen=True)
class PartitionHistory:
    """The stored tables: partitions, their last rows, and the bags of cumulative frames.

    A partition row has the counts of dropped rows and the states of cumulative frames over the rows
    that no later row sees one by one.
    """

    spec: OverSpec
    reach: FrameReach
    has_closing_key: bool

    @cached_property
    def cumulative_groups(self) -> tuple[FrameGroup, ...]:
        """The frame groups whose states are stored."""
        return tuple(group for group in self.spec.frame_groups if group.is_cumulative)

    @cached_property
    def by_time(self) -> bool:
        """Whether only rows are needed, for a time that depends on nothing else."""
        reach = self.reach
        by_rows = reach.rows_back or reach.rows_ahead or reach.ranks
        return not (self.cumulative_groups or by_rows)

    @property
    def expires_by_watermark(self) -> bool:
        """Whether the watermark determines when a partition is not needed anymore."""
        return self.has_closing_key or self.by_time

    @cached_property
    def partition_schema(self) -> pa.Schema:
        """A partition; its pane is the watermark from which it is not needed."""
        hidden = [pa.field(PANE, INT), pa.field(HASH, INT)]
        counts = [pa.field(name, INT) for name in (ID, ROWS_BEFORE, PEER_GROUPS_BEFORE)]
        return pa.schema([*hidden, *self.spec.key_fields, *counts, *self._state_fields])

    @property
    def _state_fields(self) -> list[pa.Field]:
        fields = []
        for number, group in enumerate(self.cumulative_groups):
            fields.append(pa.field(state_rows_column(number), INT))
            fields += [
                pa.field(state_column(number, item.name), item.type)
                for item in group.aggregator.schemas[0]
                if item.name not in (PANE, HASH)
            ]
        return fields

    @cached_property
    def row_schema(self) -> pa.Schema:
        """A row that later rows can see, or that waits for the rows after it."""
        hidden = [pa.field(name, INT) for name in (PANE, HASH, ID, TIME, SEQ)]
        return pa.schema([*hidden, pa.field(EMITTED, pa.bool_()), *self.row_fields])

    @property
    def row_fields(self) -> list[pa.Field]:
        """The columns of a row that functions read or that are emitted."""
        spec = self.spec
        return [*spec.order_fields, *spec.argument_fields, *spec.column_fields]

    @cached_property
    def bag_schemas(self) -> tuple[pa.Schema, ...]:
        """The bags of all cumulative frames."""
        hidden = [pa.field(name, INT) for name in (PANE, HASH, ID)]
        schemas = []
        for group in self.cumulative_groups:
            for schema in group.aggregator.schemas[1:]:
                fields = [item for item in schema if item.name not in (PANE, HASH)]
                schemas.append(pa.schema([*hidden, *fields]))
        return tuple(schemas)

    @property
    def schemas(self) -> tuple[pa.Schema, ...]:
        return (self.partition_schema, self.row_schema, *self.bag_schemas)

    def filter_partitions(self, tables: Tables, keep: Mask) -> Tables:
        """Return the stored tables of some partitions."""
        partitions = tables[0].filter(pa.array(keep))
        ids = int_column(partitions, ID)
        others = (t.filter(pa.array(np.isin(int_column(t, ID), ids))) for t in tables[1:])
        return (partitions, *others)

    def new_partitions(self, firsts: pa.Table, next_id: int) -> pa.Table:
        """Return new partitions, given one row of each."""
        count = firsts.num_rows
        zeros = pa.array(np.zeros(count, np.int64))
        expiry = np.full(count, END_US, np.int64)
        if self.has_closing_key:
            # The last rows wait for frames that extend past the end of their partition.
            expiry = int_column(firsts, ENDS) + self.reach.time_ahead
        values = {PANE: pa.array(expiry), ID: pa.array(np.arange(next_id, next_id + count))}
        zero_columns = {ROWS_BEFORE, PEER_GROUPS_BEFORE}
        for number, _ in enumerate(self.cumulative_groups):
            zero_columns |= {state_rows_column(number), state_column(number, ROWS)}
        columns = []
        for item in self.partition_schema:
            if item.name in values:
                columns.append(values[item.name])
            elif item.name in firsts.column_names:
                columns.append(firsts.column(item.name))
            elif item.name in zero_columns:
                columns.append(zeros)
            else:
                columns.append(pa.nulls(count, item.type))
        return pa.table(columns, schema=self.partition_schema)

    # States of cumulative frames

    def cumulative_states(self, number: int, partitions: pa.Table, bags: Tables) -> Tables:
        """Return the stored states of a frame group; their pane is the index of the partition."""
        group = self.cumulative_groups[number]
        main, *bag_schemas = group.aggregator.schemas
        hidden = {
            PANE: pa.array(np.arange(partitions.num_rows)),
            HASH: partitions.column(HASH),
        }
        columns = [
            hidden[item.name]
            if item.name in hidden
            else partitions.column(state_column(number, item.name))
            for item in main
        ]
        tables = [pa.table(columns, schema=main)]
        ids = int_column(partitions, ID)
        order = np.argsort(ids)
        for bag, schema in zip(self.bags_of(number, bags), bag_schemas, strict=True):
            indices = order[np.searchsorted(ids[order], int_column(bag, ID))]
            table = bag.drop_columns([ID, PANE]).append_column(PANE, pa.array(indices))
            table = table.select(schema.names).cast(schema)
            tables.append(table.take(pa.array(np.argsort(indices, kind="stable"))))
        return tuple(tables)

    def bags_of(self, number: int, bags: Tables) -> Tables:
        """Return the bags of one frame group among those of all."""
        groups = self.cumulative_groups
        first = sum(len(group.aggregator.bags) for group in groups[:number])
        return bags[first : first + len(groups[number].aggregator.bags)]

    def stored_bags(self, number: int, states: Tables, partitions: pa.Table) -> list[pa.Table]:
        """Return the bags of states by index of partition as they are stored."""
        stored = []
        for table, schema in zip(states[1:], self.bags_of(number, self.bag_schemas), strict=True):
            indices = pa.array(int_column(table, PANE))
            hidden = {name: partitions.column(name).take(indices) for name in (PANE, HASH, ID)}
            columns = [
                hidden[name] if name in hidden else table.column(name) for name in schema.names
            ]
            stored.append(pa.table(columns, schema=schema))
        return stored


def state_rows_column(number: int) -> str:
    """Return the column that counts the rows of the partition that are in a stored state."""
    return f"g{number}_from"


def state_column(number: int, name: str) -> str:
    """Return the column with one field of a stored state."""
    return f"g{number}{name}" if name == ROWS else f"g{number}_{name}"
