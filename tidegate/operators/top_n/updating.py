"""The first rows of each partition as they change, or of a bounded input once, at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import BEFORE, DELETE, HASH, INSERT, OP, PANE, SEEN, WEIGHT
from tidegate.operators.kernels.arrays import Mask, concat, int_column
from tidegate.operators.kernels.keys import find_rows
from tidegate.operators.kernels.ordering import (
    INT,
    ROW_NUMBER,
    SEQ,
    identical_row_ids,
    number_arrivals,
    rank_rows,
)
from tidegate.operators.late_rows import LateRows, split_late
from tidegate.operators.operator import (
    NO_LIMITS,
    EpochTime,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    with_op,
)
from tidegate.operators.store.sorted_runs import FORMAT, SortedRunStore, TimeToLive
from tidegate.operators.top_n.window import Partitions
from tidegate.state.codec import schema_text


@dataclass(frozen=True)
class UpdatingTopN:
    """`retracts`: rows carry what they do, and all of them are kept; else those that can come out.

    `closes`: the pane of a row is the moment from which its partition does not change any more.
    `at_end` emits everything once, when a bounded input has ended. After `ttl_us` of processing
    time without a row a partition that does not close is forgotten.
    """

    ranking: Partitions
    retracts: bool = False
    closes: bool = False
    at_end: bool = False
    with_op: bool = True
    ttl_us: int | None = None
    late_rows: LateRows | None = None
    limits: Limits = NO_LIMITS
    # The column with the start of the window of a row, for late rows.
    start: str | None = None
    name: str = "top_n"

    def __post_init__(self) -> None:
        assert self.closes or self.late_rows is None, "without windows nothing is late"
        assert self.at_end or self.with_op, "changes say what they do"

    # Shapes

    @property
    def output(self) -> pa.Schema:
        return pa.schema(
            [*self.ranking.row, *([pa.field(OP, pa.string())] if self.with_op else [])]
        )

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    @property
    def _lifted(self) -> pa.Schema:
        """Rows that come in; SEEN counts those that were left behind where rows are read."""
        arrived = self.ranking.arrived
        if self.retracts:
            return arrived.append(pa.field(OP, pa.string()))
        return arrived.append(pa.field(SEEN, INT)) if self.closes else arrived

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        late = self.late_rows
        return ((late.input_schema if late is not None else self._lifted,),)

    @property
    def _kept(self) -> pa.Schema:
        kept = self.ranking.kept
        return kept.append(pa.field(WEIGHT, INT)) if self.retracts else kept

    @property
    def time_to_live(self) -> TimeToLive | None:
        """Partitions that close go with the watermark."""
        if self.ttl_us is None or self.closes:
            return None
        return TimeToLive(self.ttl_us, tuple(self.ranking.key_fields))

    def state_format(self) -> tuple[str, ...]:
        return (FORMAT, schema_text(self._kept))

    # Where the rows are

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        if self.late_rows is not None:
            return (self.late_rows.select(rows),)
        return (self._contenders(self.ranking.select(rows, self._lifted)),)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        if self.late_rows is not None:
            return concat(parts)
        return (self._contenders(concat(parts)[0]),)

    def _contenders(self, rows: pa.Table) -> pa.Table:
        """A row that has lost may come back where rows are retracted."""
        return rows if self.retracts else self.ranking.contenders(rows)

    # Where the state is

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        output = StepOutput()
        log, live = self._log(state), self.time_to_live
        if live is not None:
            live.drop_expired(log, epoch_time.now_us)
        new = self._contenders(self._on_time(state, inputs[0], epoch_time, output))
        if self.retracts:
            state.count_unknown_retractions(0)
        if new.num_rows:
            output.main += self._update(log, number_arrivals(state, new), epoch_time)
        if self.at_end and epoch_time.just_ended:
            output.main += self._results(log)
        self._drop_closed(log, epoch_time)
        self.limits.enforce(self.name, log, state.gauges)
        return output

    def _log(self, state: KeyGroupState) -> SortedRunStore:
        live = self.time_to_live
        if live is not None:
            return SortedRunStore(state, (live.schema, self._kept), self._combine, due=live.due)
        due = (lambda rows: int_column(rows, PANE)) if self.closes else None
        return SortedRunStore(state, (self._kept,), self._combine, due=due)

    def _combine(self, tables: Tables) -> Tables:
        rows = self._left_over(tables[-1]) if self.retracts else self.ranking.leading(tables[-1])
        live = self.time_to_live
        return (rows,) if live is None else (live.keep_latest(tables[0]), rows)

    def _left_over(self, rows: pa.Table) -> pa.Table:
        """Rows without those that were retracted; a retraction stays until its row is met."""
        seq, retracts = int_column(rows, SEQ), int_column(rows, WEIGHT) < 0
        if not retracts.any():
            return rows
        met = np.intersect1d(seq[retracts], seq[~retracts])
        return rows.filter(pa.array(~np.isin(seq, met)))

    def _on_time(
        self, state: KeyGroupState, parts: list[Tables], epoch_time: EpochTime, output: StepOutput
    ) -> pa.Table:
        """Rows of partitions that are open; late ones are counted, and kept if asked."""
        (shuffle_schemas,) = self.shuffle_schemas[0]
        if not self.closes:
            return pa.concat_tables([shuffle_schemas.empty_table(), *(part[0] for part in parts)])
        rows, late = split_late(shuffle_schemas, parts, state, epoch_time)
        if self.late_rows is None:
            return rows
        output.late += self.late_rows.with_window(
            late, self.start, epoch_time.previous_watermark_us
        )
        return self.ranking.select(rows, self._lifted)

    def _drop_closed(self, log: SortedRunStore, epoch_time: EpochTime) -> None:
        """Partitions that the watermark has passed have said all."""
        if self.closes and epoch_time.watermark_us is not None:
            log.drop_due(epoch_time.watermark_us)

    # What changed

    def _update(self, log: SortedRunStore, new: pa.Table, epoch_time: EpochTime) -> list[pa.Table]:
        """The partitions that came in, before and after."""
        if self.at_end and not self.retracts:
            self._append(log, new.select(self._kept.names), new, epoch_time)
            return []
        stored = log.load(int_column(new, HASH))[-1]
        old = stored.filter(pa.array(find_rows(new, stored, self.ranking.by) >= 0))
        was = self.ranking.result(old)
        if self.retracts:
            standing, delta = self._netted(log.state, old, new)
            self._append(log, delta, delta, epoch_time)
            return [] if self.at_end else self._emitted(was, self.ranking.result(standing))
        now = self.ranking.result(pa.concat_tables([old, new.select(self._kept.names)]))
        came = pc.greater_equal(now.column(SEQ), new.column(SEQ)[0])
        self._append(log, now.filter(came).select(self._kept.names), new, epoch_time)
        return self._emitted(was, now)

    def _append(
        self, log: SortedRunStore, rows: pa.Table, came: pa.Table, epoch_time: EpochTime
    ) -> None:
        """Store rows; those that came in touch their partitions, also if they have lost."""
        live = self.time_to_live
        touches = () if live is None else (live.touch([came], epoch_time.now_us),)
        log.append((*touches, rows))

    def _netted(
        self, state: KeyGroupState, old: pa.Table, new: pa.Table
    ) -> tuple[pa.Table, pa.Table]:
        """The rows that stand, and what to append to the log.

        A row that is added and retracted in the same epoch cancels out, in either order. What is
        left to retract retracts the last of the equal rows that are stored.
        """
        back = pc.is_in(new.column(OP), pa.array([BEFORE, DELETE])).to_numpy()
        weights = pa.array(np.where(back, -1, 1))
        signed = new.append_column(WEIGHT, weights).select(self._kept.names)
        rows = pa.concat_tables([old, signed])
        if not back.any():
            return rows, signed
        left, unknown = self._left(rows, np.concatenate([np.zeros(old.num_rows, np.bool_), back]))
        state.count_unknown_retractions(unknown)
        is_old = np.arange(rows.num_rows) < old.num_rows
        gone = rows.filter(pa.array(is_old & ~left))
        place = gone.schema.get_field_index(WEIGHT)
        gone = gone.set_column(place, WEIGHT, pa.array(np.full(gone.num_rows, -1, np.int64)))
        came = rows.filter(pa.array(left & ~is_old))
        return rows.filter(pa.array(left)), pa.concat_tables([gone, came])

    def _left(self, rows: pa.Table, retracts: Mask) -> tuple[Mask, int]:
        """Of rows that are equal the first ones, as many as were not retracted."""
        names = [item.name for item in self.ranking.content if item.name != HASH]
        ids, count = identical_row_ids(rows.select(names))
        added = ~retracts
        balance = np.bincount(ids[added], None, count) - np.bincount(ids[retracts], None, count)
        left = np.zeros(rows.num_rows, np.bool_)
        seq = int_column(rows, SEQ)[added]
        left[added] = rank_rows(ROW_NUMBER, ids[added], [], [seq])[0] <= balance[ids[added]]
        return left, int(-balance[balance < 0].sum())

    # What comes out

    def _emitted(self, was: pa.Table, now: pa.Table) -> list[pa.Table]:
        result = self.ranking.changed(was, now)
        return [result.select(self.output.names)] if result.num_rows else []

    def _results(self, log: SortedRunStore) -> list[pa.Table]:
        """The whole result as it is."""
        rows = log.load_all()[-1]
        if not rows.num_rows:
            return []
        result = self.ranking.result(rows).select(self.ranking.row.names)
        return [with_op(result, INSERT) if self.with_op else result]
