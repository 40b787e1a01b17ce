"""What OVER keeps of a partition: how far its functions see, and the tables of that."""

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

# The number of a partition, how many of its rows are gone, and how many groups of peers.
ID, BEFORE, GROUPS = "_id", "_before", "_groups"
# The moment the watermark has passed a row; whether the row is out.
TIME, DONE = "_time", "_done"
# From when on no row of the partition can come.
ENDS = "_ends"


@dataclass(frozen=True)
class FrameReach:
    """How many rows, and how much time, functions see before a row and after it."""

    rows_back: int = 0
    rows_ahead: int = 0
    time_back: int = 0
    time_ahead: int = 0
    ranks: bool = False

    @staticmethod
    def of(spec: OverSpec) -> FrameReach:
        rows, times = [0], [0]
        for function in spec.functions:
            frame = function.frame
            if function.shift is not None:
                rows.append(function.shift)
            elif frame is not None:
                offsets = [int(at) for at in (frame.start, frame.end) if at is not None]
                assert frame.end is not None, "it does not wait for the end of the partition"
                (rows if frame.by_rows else times).extend(offsets)
        ranks = any(function.is_rank for function in spec.functions)
        return FrameReach(-min(rows), max(rows), -min(times), max(times), ranks)


@dataclass(frozen=True)
class History:
    """The tables: partitions, their last rows, and the bags of frames that run on."""

    spec: OverSpec
    reach: FrameReach
    closes: bool

    @cached_property
    def running(self) -> tuple[FrameGroup, ...]:
        """The frames that begin with the first row of all: their states are carried on."""
        return tuple(group for group in self.spec.frame_groups if group.runs_on)

    @cached_property
    def by_time(self) -> bool:
        """Whether nothing is kept but rows, and time alone says for how long."""
        reach = self.reach
        by_rows = reach.rows_back or reach.rows_ahead or reach.ranks
        return not (self.running or by_rows)

    @property
    def falls(self) -> bool:
        """Whether the watermark says when something is not needed any more."""
        return self.closes or self.by_time

    @cached_property
    def partition(self) -> pa.Schema:
        numbers = [pa.field(name, INT) for name in (ID, BEFORE, GROUPS)]
        hidden = [pa.field(PANE, INT), pa.field(HASH, INT)]
        return pa.schema([*hidden, *self.spec.key_fields, *numbers, *self._carried])

    @property
    def _carried(self) -> list[pa.Field]:
        fields = []
        for number, group in enumerate(self.running):
            fields.append(pa.field(begin_of(number), INT))
            main = group.groups.schemas[0]
            fields += [
                pa.field(state_of(number, item.name), item.type)
                for item in main
                if item.name not in (PANE, HASH)
            ]
        return fields

    @cached_property
    def row(self) -> pa.Schema:
        hidden = [pa.field(name, INT) for name in (PANE, HASH, ID, TIME, SEQ)]
        return pa.schema([*hidden, pa.field(DONE, pa.bool_()), *self.content])

    @property
    def content(self) -> list[pa.Field]:
        """What functions read of a row, and what goes on."""
        spec = self.spec
        return [*spec.order_fields, *spec.argument_fields, *spec.column_fields]

    @cached_property
    def bags(self) -> tuple[pa.Schema, ...]:
        hidden = [pa.field(name, INT) for name in (PANE, HASH, ID)]
        found = []
        for group in self.running:
            for schema in group.groups.schemas[1:]:
                own = [item for item in schema if item.name not in (PANE, HASH)]
                found.append(pa.schema([*hidden, *own]))
        return tuple(found)

    @property
    def schemas(self) -> tuple[pa.Schema, ...]:
        return (self.partition, self.row, *self.bags)

    def of(self, tables: Tables, partitions: Mask) -> Tables:
        """What is known of some of the partitions."""
        kept = tables[0].filter(pa.array(partitions))
        ids = int_column(kept, ID)
        rest = (t.filter(pa.array(np.isin(int_column(t, ID), ids))) for t in tables[1:])
        return (kept, *rest)

    # States that are carried on

    def carried(self, number: int, partitions: pa.Table, bags: Tables) -> Tables:
        """The states of a frame that runs on, as its group knows them: by place of partition."""
        group = self.running[number]
        main, *own_bags = group.groups.schemas
        places = np.arange(partitions.num_rows)
        known = {PANE: pa.array(places), HASH: partitions.column(HASH)}
        columns = [
            known[item.name]
            if item.name in known
            else partitions.column(state_of(number, item.name))
            for item in main
        ]
        tables = [pa.table(columns, schema=main)]
        ids = int_column(partitions, ID)
        order = np.argsort(ids)
        for bag, schema in zip(bags, own_bags, strict=True):
            at = order[np.searchsorted(ids[order], int_column(bag, ID))]
            table = bag.drop_columns([ID, PANE]).append_column(PANE, pa.array(at))
            table = table.select(schema.names).cast(schema)
            tables.append(table.take(pa.array(np.argsort(at, kind="stable"))))
        return tuple(tables)

    def bags_of(self, number: int, bags: Tables) -> Tables:
        """The bags of a frame that runs on, among all."""
        first = sum(len(group.groups.bags) for group in self.running[:number])
        return bags[first : first + len(self.running[number].groups.bags)]

    def stored_bags(self, number: int, states: Tables, partitions: pa.Table) -> list[pa.Table]:
        """Bags by place of partition, as they are stored."""
        stored = []
        for table, schema in zip(states[1:], self.bags_of(number, self.bags), strict=True):
            at = pa.array(int_column(table, PANE))
            columns = {name: partitions.column(name).take(at) for name in (PANE, HASH, ID)}
            parts = [columns.get(n) if n in columns else table.column(n) for n in schema.names]
            stored.append(pa.table(parts, schema=schema))
        return stored

    def new_partitions(self, firsts: pa.Table, next_id: int) -> pa.Table:
        """Partitions of which these are rows: nothing is gone yet."""
        count = firsts.num_rows
        zero = pa.array(np.zeros(count, np.int64))
        forgets = np.full(count, END_US, np.int64)
        if self.closes:
            # The last of its rows wait for a time ahead even where no row of it can come.
            forgets = int_column(firsts, ENDS) + self.reach.time_ahead
        made = {PANE: pa.array(forgets), ID: pa.array(np.arange(next_id, next_id + count))}
        columns = []
        for item in self.partition:
            if item.name in made:
                columns.append(made[item.name])
            elif item.name in firsts.column_names:
                columns.append(firsts.column(item.name))
            elif item.name in self._zeros:
                columns.append(zero)
            else:
                columns.append(pa.nulls(count, item.type))
        return pa.table(columns, schema=self.partition)

    @cached_property
    def _zeros(self) -> set[str]:
        numbers = range(len(self.running))
        own = {begin_of(number) for number in numbers} | {state_of(n, ROWS) for n in numbers}
        return {BEFORE, GROUPS, *own}


def begin_of(number: int) -> str:
    """The column with the place of the first row that is not in a state."""
    return f"g{number}_from"


def state_of(number: int, name: str) -> str:
    return f"g{number}{name}" if name == ROWS else f"g{number}_{name}"
