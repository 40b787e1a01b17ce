"""Updating top-N: emits the changes of each partition's first rows, or the result at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import BEFORE, DELETE, HASH, INPUT_ROWS, INSERT, OP, STORE_TIME, WEIGHT
from tidegate.operators.kernels.arrays import Mask, concat, int_column
from tidegate.operators.kernels.keys import find_rows
from tidegate.operators.kernels.ordering import (
    ARRIVAL_NUMBER,
    INT,
    ROW_NUMBER,
    identical_row_ids,
    number_arrivals,
    rank_rows,
)
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
from tidegate.operators.store.sorted_runs import FORMAT, SortedRunStore, TimeToLive
from tidegate.operators.top_n.window import PartitionEvaluator
from tidegate.state.codec import schema_text


@dataclass(frozen=True)
class UpdatingTopN:
    """Emits the changes of the result of each partition.

    `retracts`: rows have the changelog column, and all of them are stored; otherwise only those
    that can be in the result. `has_closing_key`: STORE_TIME is the watermark from which its
    partition is final. `at_end` emits the result once, when a bounded input has ended. A partition
    without a closing key expires `ttl_us` of processing time after its last row.
    """

    evaluator: PartitionEvaluator
    retracts: bool = False
    has_closing_key: bool = False
    at_end: bool = False
    with_op: bool = True
    ttl_us: int | None = None
    late_rows: LateRowFormat | None = None
    limits: Limits = NO_LIMITS
    # The column with the window start of a row, for late rows.
    start: str | None = None
    panes = None
    name: str = "top_n"

    def __post_init__(self) -> None:
        assert self.has_closing_key or self.late_rows is None, "only windows have late rows"
        assert self.at_end or self.with_op, "a changelog has a changelog column"

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
        schema = self.evaluator.arrival_schema
        if self.retracts:
            return schema.append(pa.field(OP, pa.string()))
        return schema.append(pa.field(INPUT_ROWS, INT)) if self.has_closing_key else schema

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        late = self.late_rows
        return ((late.input_schema if late is not None else self._arrival_schema,),)

    @property
    def _stored_schema(self) -> pa.Schema:
        schema = self.evaluator.stored_schema
        return schema.append(pa.field(WEIGHT, INT)) if self.retracts else schema

    @property
    def time_to_live(self) -> TimeToLive | None:
        """The time to live of partitions that the watermark does not drop."""
        if self.ttl_us is None or self.has_closing_key:
            return None
        return TimeToLive(self.ttl_us, tuple(self.evaluator.key_fields))

    def state_format(self) -> tuple[str, ...]:
        return (FORMAT, schema_text(self._stored_schema))

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        """Drop rows that cannot be in the result, unless they may be emitted as late rows."""
        if self.late_rows is not None:
            return (self.late_rows.select(rows),)
        return (self._prune(self.evaluator.select(rows, self._arrival_schema)),)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        if self.late_rows is not None:
            return concat(parts)
        return (self._prune(concat(parts)[0]),)

    def _prune(self, rows: pa.Table) -> pa.Table:
        """Drop arriving rows that cannot be in the result; with retractions any row can be."""
        return rows if self.retracts else self.evaluator.prune_arrivals(rows)

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        output = StepOutput()
        store, ttl = self._open_store(state), self.time_to_live
        if ttl is not None:
            ttl.drop_expired(store, progress.now_us)
        new = self._prune(self._drop_late_rows(state, inputs[0], progress, output))
        if self.retracts:
            state.count_unknown_retractions(0)
        if new.num_rows:
            output.rows += self._update(store, number_arrivals(state, new), progress)
        if self.at_end and progress.just_ended:
            output.rows += self._final_result(store)
        if self.has_closing_key and progress.watermark_us is not None:
            store.drop_due(progress.watermark_us)
        self.limits.enforce(self.name, store, state.metrics)
        return output

    def _open_store(self, state: KeyGroupState) -> SortedRunStore:
        ttl, schema = self.time_to_live, self._stored_schema
        if ttl is not None:
            return SortedRunStore(state, (ttl.schema, schema), self._merge, due=ttl.due)
        due = (lambda rows: int_column(rows, STORE_TIME)) if self.has_closing_key else None
        return SortedRunStore(state, (schema,), self._merge, due=due)

    def _merge(self, tables: Tables) -> Tables:
        if self.retracts:
            rows = self._cancel_retracted(tables[-1])
        else:
            rows = self.evaluator.prune_stored(tables[-1])
        ttl = self.time_to_live
        return (rows,) if ttl is None else (ttl.keep_latest(tables[0]), rows)

    def _cancel_retracted(self, rows: pa.Table) -> pa.Table:
        """Drop pairs of a row and its retraction; keep retractions of rows that are not here."""
        seq, is_retraction = int_column(rows, ARRIVAL_NUMBER), int_column(rows, WEIGHT) < 0
        if not is_retraction.any():
            return rows
        cancelled = np.intersect1d(seq[is_retraction], seq[~is_retraction])
        return rows.filter(pa.array(~np.isin(seq, cancelled)))

    def _drop_late_rows(
        self, state: KeyGroupState, parts: list[Tables], progress: TimeProgress, output: StepOutput
    ) -> pa.Table:
        """Return rows of open partitions; late rows are counted and emitted to a late stream."""
        (schema,) = self.shuffle_schemas[0]
        if not self.has_closing_key:
            return pa.concat_tables([schema.empty_table(), *(part[0] for part in parts)])
        rows, late = split_late(schema, parts, state, progress)
        if self.late_rows is None:
            return rows
        previous_us = progress.previous_watermark_us
        output.late += self.late_rows.with_window(late, self.start, previous_us)
        return self.evaluator.select(rows, self._arrival_schema)

    def _update(
        self, store: SortedRunStore, new: pa.Table, progress: TimeProgress
    ) -> list[pa.Table]:
        """Store new rows and return the changes of their partitions."""
        if self.at_end and not self.retracts:
            self._append(store, new.select(self._stored_schema.names), new, progress)
            return []
        stored = store.load(int_column(new, HASH))[-1]
        has_new = find_rows(new, stored, self.evaluator.partition_columns) >= 0
        old = stored.filter(pa.array(has_new))
        before = self.evaluator.evaluate(old)
        if self.retracts:
            current, delta = self._apply_changelog(store.state, old, new)
            self._append(store, delta, delta, progress)
            return [] if self.at_end else self._changes(before, self.evaluator.evaluate(current))
        rows = pa.concat_tables([old, new.select(self._stored_schema.names)])
        after = self.evaluator.evaluate(rows)
        is_new = pc.greater_equal(after.column(ARRIVAL_NUMBER), new.column(ARRIVAL_NUMBER)[0])
        added = after.filter(is_new).select(self._stored_schema.names)
        self._append(store, added, new, progress)
        return self._changes(before, after)

    def _append(
        self, store: SortedRunStore, rows: pa.Table, arrivals: pa.Table, progress: TimeProgress
    ) -> None:
        """Store rows; all arrivals restart the time to live of their partitions."""
        ttl = self.time_to_live
        touches = () if ttl is None else (ttl.touch([arrivals], progress.now_us),)
        store.append((*touches, rows))

    def _apply_changelog(
        self, state: KeyGroupState, old: pa.Table, new: pa.Table
    ) -> tuple[pa.Table, pa.Table]:
        """Return the current rows, and what to append to the store.

        A row that is added and retracted in the same epoch cancels out, in either order. Other
        retractions cancel the last of the identical stored rows.
        """
        is_retraction = pc.is_in(new.column(OP), pa.array([BEFORE, DELETE])).to_numpy()
        weights = pa.array(np.where(is_retraction, -1, 1))
        weighted = new.append_column(WEIGHT, weights).select(self._stored_schema.names)
        rows = pa.concat_tables([old, weighted])
        if not is_retraction.any():
            return rows, weighted
        retracts = np.concatenate([np.zeros(old.num_rows, np.bool_), is_retraction])
        remains, unknown = self._find_remaining(rows, retracts)
        state.count_unknown_retractions(unknown)
        is_old = np.arange(rows.num_rows) < old.num_rows
        retracted = rows.filter(pa.array(is_old & ~remains))
        index = retracted.schema.get_field_index(WEIGHT)
        minus_one = pa.array(np.full(retracted.num_rows, -1, np.int64))
        retracted = retracted.set_column(index, WEIGHT, minus_one)
        added = rows.filter(pa.array(remains & ~is_old))
        return rows.filter(pa.array(remains)), pa.concat_tables([retracted, added])

    def _find_remaining(self, rows: pa.Table, retracts: Mask) -> tuple[Mask, int]:
        """Return which rows are not retracted, and the number of retractions without a row.

        Of identical rows the first ones remain.
        """
        names = [item.name for item in self.evaluator.fields if item.name != HASH]
        ids, count = identical_row_ids(rows.select(names))
        adds = ~retracts
        balance = np.bincount(ids[adds], None, count) - np.bincount(ids[retracts], None, count)
        remains = np.zeros(rows.num_rows, np.bool_)
        seq = int_column(rows, ARRIVAL_NUMBER)[adds]
        remains[adds] = rank_rows(ROW_NUMBER, ids[adds], [], [seq])[0] <= balance[ids[adds]]
        return remains, int(-balance[balance < 0].sum())

    def _changes(self, before: pa.Table, after: pa.Table) -> list[pa.Table]:
        changes = self.evaluator.diff(before, after)
        return [changes.select(self.output.names)] if changes.num_rows else []

    def _final_result(self, store: SortedRunStore) -> list[pa.Table]:
        """Return the result of all partitions."""
        rows = store.load_all()[-1]
        if not rows.num_rows:
            return []
        result = self.evaluator.evaluate(rows).select(self.evaluator.result_schema.names)
        return [with_op(result, INSERT) if self.with_op else result]
