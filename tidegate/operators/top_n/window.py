"""Window top-N: the first rows of each window, emitted once when the watermark passes its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import DELETE, HASH, INPUT_ROWS, INSERT, OP, STORE_TIME
from tidegate.operators.kernels import ordering as arrival
from tidegate.operators.kernels.arrays import Ints, concat, first_rows, int_column
from tidegate.operators.kernels.keys import find_rows, group_ids
from tidegate.operators.kernels.ordering import (
    ARRIVAL_NUMBER,
    DENSE_RANK,
    INT,
    RANK,
    ROW_NUMBER,
    Ordering,
    check_partitions,
    identical_row_ids,
    number_arrivals,
    rank_rows,
    sort_codes,
)
from tidegate.operators.kernels.weighted_rows import diff_results
from tidegate.operators.late_rows import LateRowFormat, split_late
from tidegate.operators.operator import (
    NO_LIMITS,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    TimeProgress,
    with_op,
)
from tidegate.operators.store.time_buckets import FORMAT, TimeBucketStore
from tidegate.state.codec import schema_text

# ---- Ranking: the rows of partitions that are in the result; shared by the top-N operators

_RANK_COLUMN = "_rank"


class PartitionEvaluator(Protocol):
    """Computes the result of partitions: their first rows, or all rows with more columns."""

    @property
    def key_fields(self) -> list[pa.Field]: ...

    @property
    def partition_columns(self) -> list[str]:
        """The columns that identify a partition."""

    @property
    def result_schema(self) -> pa.Schema:
        """The schema of the result."""

    @property
    def fields(self) -> list[pa.Field]:
        """The columns that arriving and stored rows have in common."""

    @property
    def arrival_schema(self) -> pa.Schema:
        """The schema of an arriving row, with its input position."""

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema of a stored row, with its arrival number."""

    def select(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return the columns of a schema, with canonical keys."""

    def prune_arrivals(self, rows: pa.Table) -> pa.Table:
        """Drop arriving rows that cannot be in any result."""

    def prune_stored(self, rows: pa.Table) -> pa.Table:
        """Drop stored rows that cannot be in any result."""

    def evaluate(self, rows: pa.Table) -> pa.Table:
        """Return the result of stored rows, partition by partition."""

    def diff(self, before: pa.Table, after: pa.Table) -> pa.Table:
        """Return the changes between two results, with the changelog column."""


@dataclass(frozen=True)
class Ranking:
    """The first `limit` rows of each partition; columns are `k0`, …, `o0`, … and `c0`, ….

    With `rank` the result has an additional column with the rank. With `by_closing_time` the key of
    a partition contains STORE_TIME, the watermark that closes it.
    """

    keys: tuple[pa.DataType, ...]
    order: tuple[Ordering, ...]
    columns: tuple[pa.DataType, ...]
    limit: int
    function: str = ROW_NUMBER
    rank: pa.DataType | None = None
    by_closing_time: bool = True
    # The column with the limit, if it differs between rows; then all rows are stored.
    limit_column: int | None = None
    # Rank the last arrival of equal rows first, instead of the first arrival.
    latest: bool = False

    def __post_init__(self) -> None:
        assert self.function in (ROW_NUMBER, RANK, DENSE_RANK), self.function
        assert self.limit >= 1, "ranks start at 1"
        check_partitions(self.keys, self.order)

    @property
    def partition_columns(self) -> list[str]:
        return [
            STORE_TIME if self.by_closing_time else HASH,
            *(item.name for item in self.key_fields),
        ]

    @property
    def key_fields(self) -> list[pa.Field]:
        return [pa.field(f"k{index}", data_type) for index, data_type in enumerate(self.keys)]

    @property
    def _orders(self) -> list[tuple[str, Ordering]]:
        return [(f"o{index}", item) for index, item in enumerate(self.order)]

    @property
    def _rank_column(self) -> str:
        return f"c{len(self.columns)}" if self.rank is not None else _RANK_COLUMN

    @property
    def result_schema(self) -> pa.Schema:
        data_types = [*self.columns, *([self.rank] if self.rank is not None else [])]
        return pa.schema(
            [pa.field(f"c{index}", data_type) for index, data_type in enumerate(data_types)]
        )

    @property
    def fields(self) -> list[pa.Field]:
        hidden = [pa.field(STORE_TIME, INT), pa.field(HASH, INT)]
        orders = [pa.field(name, item.type) for name, item in self._orders]
        columns = [pa.field(f"c{index}", data_type) for index, data_type in enumerate(self.columns)]
        return [*hidden, *self.key_fields, *orders, *columns]

    @property
    def arrival_schema(self) -> pa.Schema:
        return arrival.arrival_schema(self.fields)

    @property
    def stored_schema(self) -> pa.Schema:
        return arrival.stored_schema(self.fields)

    def select(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        return select_arrivals(rows, schema, self.key_fields)

    def prune_arrivals(self, rows: pa.Table) -> pa.Table:
        """Drop rows beyond the limit, in the order of the input.

        If there is a column INPUT_ROWS, the counts of dropped rows are added to the first remaining
        row of their partition.
        """
        if rows.num_rows <= 1:
            return rows
        ids, count = group_ids(rows, self.partition_columns)
        keep = self._ranks(rows, ids, arrival.arrival_codes(rows))[0] <= self.limit
        if keep.all():
            return rows
        if INPUT_ROWS in rows.column_names:
            input_rows = np.zeros(rows.num_rows, np.int64)
            totals = np.bincount(ids, rows.column(INPUT_ROWS).to_numpy(), count)
            input_rows[first_rows(ids, count, keep)] = totals.astype(np.int64)
            rows = rows.set_column(
                rows.schema.get_field_index(INPUT_ROWS), INPUT_ROWS, pa.array(input_rows)
            )
        return rows.filter(pa.array(keep))

    def prune_stored(self, rows: pa.Table) -> pa.Table:
        """Drop rows beyond the limit."""
        if rows.num_rows <= self.limit:
            return rows
        ids, _ = group_ids(rows, self.partition_columns)
        keep = self._ranks(rows, ids, [rows.column(ARRIVAL_NUMBER).to_numpy()])[0] <= self.limit
        return rows if keep.all() else rows.filter(pa.array(keep))

    def evaluate(self, rows: pa.Table) -> pa.Table:
        """Return the rows up to the limit with their rank, partition by partition."""
        ids, _ = group_ids(rows, self.partition_columns)
        ranks, order = self._ranks(rows, ids, [rows.column(ARRIVAL_NUMBER).to_numpy()])
        order = order[ranks[order] <= self._limits(rows)[order]]
        rank_column = pa.array(ranks[order]).cast(self.rank or INT)
        return rows.take(pa.array(order)).append_column(self._rank_column, rank_column)

    def _limits(self, rows: pa.Table) -> Ints:
        """Return the limit of each row."""
        if self.limit_column is None:
            return np.full(rows.num_rows, self.limit, np.int64)
        limits = pc.fill_null(pc.cast(rows.column(f"c{self.limit_column}"), INT), 0)
        return np.asarray(limits.to_numpy(), np.int64)

    def _ranks(self, rows: pa.Table, ids: Ints, arrivals: Sequence[Ints]) -> tuple[Ints, Ints]:
        by = [sort_codes(rows.column(name), item) for name, item in self._orders]
        arrivals = [-np.asarray(codes) for codes in arrivals] if self.latest else arrivals
        return rank_rows(self.function, ids, by, arrivals)

    def diff(self, before: pa.Table, after: pa.Table) -> pa.Table:
        """Return the changes between two results; a rank with a different row is updated."""
        rank = [self._rank_column] if self.rank is not None else []
        identity = [ARRIVAL_NUMBER, *rank]
        is_new = find_rows(before, after, identity) < 0
        is_deleted = find_rows(after, before, identity) < 0
        before, after = before.filter(pa.array(is_deleted)), after.filter(pa.array(is_new))
        names = self.result_schema.names
        if self.function == ROW_NUMBER and (rank or self.limit == 1):
            names = [*self.partition_columns, *names]
            keys = [*self.partition_columns, *rank]
            return diff_results(before.select(names), after.select(names), keys)
        return _difference(before.select(names), after.select(names))


def select_arrivals(rows: pa.Table, schema: pa.Schema, keys: Sequence[pa.Field]) -> pa.Table:
    """Return the columns of a schema, with canonical keys; INPUT_ROWS is 1 for every row."""
    seen = {INPUT_ROWS: pa.array(np.ones(rows.num_rows, np.int64))}
    return arrival.select_columns(rows, schema, keys, seen)


def _difference(before: pa.Table, after: pa.Table) -> pa.Table:
    """Return `-D` for deleted rows and `+I` for new rows; identical rows cancel out."""
    split = before.num_rows
    ids, count = identical_row_ids(pa.concat_tables([before, after]))
    before_ids, after_ids = ids[:split], ids[split:]
    common = np.minimum(
        np.bincount(before_ids, minlength=count), np.bincount(after_ids, minlength=count)
    )
    is_deleted, is_new = (
        rank_rows(ROW_NUMBER, table_ids, [])[0] > common[table_ids]
        for table_ids in (before_ids, after_ids)
    )
    deleted, inserted = before.filter(pa.array(is_deleted)), after.filter(pa.array(is_new))
    return pa.concat_tables([with_op(deleted, DELETE), with_op(inserted, INSERT)])


# ---- The operator


@dataclass(frozen=True)
class WindowTopN:
    """Emits the result of each window when the watermark reaches STORE_TIME, its end.

    Its input is append-only, so rows beyond the limit are dropped at once. `start` is the column
    with the start of the window, for late rows.
    """

    evaluator: PartitionEvaluator
    with_op: bool = False
    late_rows: LateRowFormat | None = None
    limits: Limits = NO_LIMITS
    start: str | None = None
    panes = None
    name: str = "window_top_n"

    @property
    def output(self) -> pa.Schema:
        op = [pa.field(OP, pa.string())] if self.with_op else []
        return pa.schema([*self.evaluator.result_schema, *op])

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    @property
    def _arrival_schema(self) -> pa.Schema:
        """The schema of an arriving row. INPUT_ROWS also counts rows dropped before the shuffle."""
        return self.evaluator.arrival_schema.append(pa.field(INPUT_ROWS, INT))

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        late = self.late_rows
        return ((late.input_schema if late is not None else self._arrival_schema,),)

    def state_format(self) -> tuple[str, ...]:
        return (FORMAT, schema_text(self.evaluator.stored_schema))

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        """Drop rows beyond the limit, unless they may have to be emitted as late rows."""
        if self.late_rows is not None:
            return (self.late_rows.select(rows),)
        return (self.evaluator.prune_arrivals(self.evaluator.select(rows, self._arrival_schema)),)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        if self.late_rows is not None:
            return concat(parts)
        return (self.evaluator.prune_arrivals(concat(parts)[0]),)

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        store = TimeBucketStore(
            state,
            (self.evaluator.stored_schema,),
            lambda tables: (self.evaluator.prune_stored(tables[0]),),
        )
        output = StepOutput()
        rows = number_arrivals(state, self._drop_late_rows(state, inputs[0], progress, output))
        rows = rows.select(self.evaluator.stored_schema.names)
        watermark_us = progress.watermark_us
        if watermark_us is not None:
            is_closed = int_column(rows, STORE_TIME) <= watermark_us
            closed = [part[0] for part in store.load(None, watermark_us + 1)]
            output.rows += self._results([*closed, rows.filter(pa.array(is_closed))])
            store.drop_before(watermark_us + 1)
            rows = rows.filter(pa.array(~is_closed))
        if rows.num_rows:
            store.append((rows,))
        self.limits.enforce(self.name, store, state.metrics)
        return output

    def _drop_late_rows(
        self, state: KeyGroupState, parts: list[Tables], progress: TimeProgress, output: StepOutput
    ) -> pa.Table:
        """Return the rows of open windows; late rows are counted and emitted to a late stream."""
        rows, late = split_late(self.shuffle_schemas[0][0], parts, state, progress)
        if self.late_rows is not None:
            previous_us = progress.previous_watermark_us
            output.late += self.late_rows.with_window(late, self.start, previous_us)
            rows = self.evaluator.select(rows, self._arrival_schema)
        return self.evaluator.prune_arrivals(rows)

    def _results(self, parts: list[pa.Table]) -> list[pa.Table]:
        """Return the results of closed windows by time; rows of a partition keep their order."""
        rows = pa.concat_tables(parts)
        if not rows.num_rows:
            return []
        order = np.argsort(int_column(rows, STORE_TIME), kind="stable")
        names = self.evaluator.result_schema.names
        result = self.evaluator.evaluate(rows.take(pa.array(order))).select(names)
        return [with_op(result, INSERT) if self.with_op else result]
