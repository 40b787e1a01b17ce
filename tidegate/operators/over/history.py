"""The stored tables of partitions for OVER, and when they expire."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidegate.columns import GROUP_ID, HASH, ROWS, STORE_TIME
from tidegate.operators.kernels.arrays import Mask, int_column
from tidegate.operators.kernels.ordering import ARRIVAL_NUMBER, INT
from tidegate.operators.operator import Tables
from tidegate.operators.over.functions import FrameGroup, OverSpec
from tidegate.operators.watermark import END_OF_INPUT_US

# The id of a partition, and the numbers of its rows and peer groups that have been dropped.
ID, ROWS_BEFORE, PEER_GROUPS_BEFORE = "_id", "_rows_before", "_peer_groups_before"
# The watermark that passed a row, and whether the row has been emitted.
TIME, EMITTED = "_time", "_emitted"
# The watermark that closes a partition: no more rows of it can arrive.
ENDS = "_ends"


@dataclass(frozen=True)
class FrameReach:
    """How far functions read from a row: numbers of rows, and distances in time.

    With `ranks`, a function is a rank and reads the position of the row in its partition.
    """

    rows_back: int = 0
    rows_ahead: int = 0
    time_back: int = 0
    time_ahead: int = 0
    ranks: bool = False

    @staticmethod
    def from_spec(spec: OverSpec) -> FrameReach:
        """Return the reach of all functions of a spec."""
        rows, times = [0], [0]
        for function in spec.functions:
            frame = function.frame
            if function.shift is not None:
                rows.append(function.shift)
            elif frame is not None:
                bounds = (frame.start, frame.end)
                offsets = [int(bound) for bound in bounds if bound is not None]
                assert frame.end is not None, "no frame ends with the partition"
                (rows if frame.by_rows else times).extend(offsets)
        ranks = any(function.is_rank for function in spec.functions)
        return FrameReach(-min(rows), max(rows), -min(times), max(times), ranks)


@dataclass(frozen=True)
class PartitionHistory:
    """The stored tables: partitions, their last rows, and the bags of cumulative frames.

    A partition has the number of its dropped rows, and for each cumulative frame, which starts with
    the partition, the accumulator state of its first rows. Bags are the states of aggregates that
    need the values themselves.
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
        """Whether the state consists only of rows, each of which expires by its time."""
        reach = self.reach
        by_rows = reach.rows_back or reach.rows_ahead or reach.ranks
        return not (self.cumulative_groups or by_rows)

    @property
    def expires_by_watermark(self) -> bool:
        """Whether the watermark determines when a partition is not needed anymore."""
        return self.has_closing_key or self.by_time

    @cached_property
    def partition_schema(self) -> pa.Schema:
        """The schema of a partition. STORE_TIME is the watermark at which it expires."""
        hidden = [pa.field(STORE_TIME, INT), pa.field(HASH, INT)]
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
                if item.name not in (GROUP_ID, HASH)
            ]
        return fields

    @cached_property
    def row_schema(self) -> pa.Schema:
        """The schema of a row that later rows can read, or that waits for the rows after it."""
        hidden = [pa.field(name, INT) for name in (STORE_TIME, HASH, ID, TIME, ARRIVAL_NUMBER)]
        return pa.schema([*hidden, pa.field(EMITTED, pa.bool_()), *self.row_fields])

    @property
    def row_fields(self) -> list[pa.Field]:
        """The columns of a row that functions read or that the operator emits."""
        spec = self.spec
        return [*spec.order_fields, *spec.argument_fields, *spec.column_fields]

    @cached_property
    def bag_schemas(self) -> tuple[pa.Schema, ...]:
        """The schemas of the bags of all cumulative frames."""
        hidden = [pa.field(name, INT) for name in (STORE_TIME, HASH, ID)]
        schemas = []
        for group in self.cumulative_groups:
            for schema in group.aggregator.schemas[1:]:
                fields = [item for item in schema if item.name not in (GROUP_ID, HASH)]
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
        """Create the partitions of these rows, one row per partition."""
        count = firsts.num_rows
        zeros = pa.array(np.zeros(count, np.int64))
        expiry = np.full(count, END_OF_INPUT_US, np.int64)
        if self.has_closing_key:
            # Frames can extend past the end of the partition; their rows wait until then.
            expiry = int_column(firsts, ENDS) + self.reach.time_ahead
        values = {STORE_TIME: pa.array(expiry), ID: pa.array(np.arange(next_id, next_id + count))}
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

    def cumulative_states(self, number: int, partitions: pa.Table, bags: Tables) -> Tables:
        """Return the stored states of a frame group; GROUP_ID is the index of the partition."""
        group = self.cumulative_groups[number]
        main, *bag_schemas = group.aggregator.schemas
        hidden = {
            GROUP_ID: pa.array(np.arange(partitions.num_rows)),
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
            table = bag.drop_columns([ID, STORE_TIME]).append_column(GROUP_ID, pa.array(indices))
            table = table.select(schema.names).cast(schema)
            tables.append(table.take(pa.array(np.argsort(indices, kind="stable"))))
        return tuple(tables)

    def bags_of(self, number: int, bags: Tables) -> Tables:
        """Select the bags of one frame group."""
        groups = self.cumulative_groups
        first = sum(len(group.aggregator.bags) for group in groups[:number])
        return bags[first : first + len(groups[number].aggregator.bags)]

    def stored_bags(self, number: int, states: Tables, partitions: pa.Table) -> list[pa.Table]:
        """Convert the bags of states, whose GROUP_ID is a partition's index, to stored bags."""
        stored = []
        for table, schema in zip(states[1:], self.bags_of(number, self.bag_schemas), strict=True):
            indices = pa.array(int_column(table, GROUP_ID))
            hidden = {
                name: partitions.column(name).take(indices) for name in (STORE_TIME, HASH, ID)
            }
            columns = [
                hidden[name] if name in hidden else table.column(name) for name in schema.names
            ]
            stored.append(pa.table(columns, schema=schema))
        return stored


def state_rows_column(number: int) -> str:
    """Return the column with the number of rows that are contained in a stored state."""
    return f"g{number}_from"


def state_column(number: int, name: str) -> str:
    """Return the column with one field of a stored state."""
    return f"g{number}{name}" if name == ROWS else f"g{number}_{name}"
