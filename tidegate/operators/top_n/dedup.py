"""The first row of each key, once: QUALIFY row_number() OVER (PARTITION BY …) = 1.

By arrival, the first row that comes is out at once. By event time it waits until the watermark has
passed it, so that no earlier one can come. Whatever comes of the key afterwards is a duplicate, and
is dropped without a trace. A key that is out is remembered until the watermark says that no more
rows of it can come, or for a time to live after it came out, or after its last row since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidegate.columns import HASH, PANE, SEEN
from tidegate.operators.kernels.arrays import concat, int_column
from tidegate.operators.kernels.keys import find_rows
from tidegate.operators.kernels.ordering import INT, ROW_NUMBER, number_arrivals
from tidegate.operators.late_rows import LateRows, split_late
from tidegate.operators.operator import (
    NO_LIMITS,
    EpochTime,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
)
from tidegate.operators.store import sorted_runs as runs
from tidegate.operators.store import time_buckets as segments
from tidegate.operators.store.sorted_runs import SortedRunStore, TimeToLive
from tidegate.operators.store.time_buckets import TimeBucketStore
from tidegate.operators.top_n.window import Ranking
from tidegate.state.codec import schema_text


@dataclass(frozen=True)
class Deduplicate:
    """`waits`: the pane of a row is the moment at which the watermark has passed its event time.

    `closes`: the pane tells from when on no row of the key can come; it is a part of the key.
    """

    ranking: Ranking
    waits: bool = False
    closes: bool = False
    ttl_us: int | None = None
    late_rows: LateRows | None = None
    limits: Limits = NO_LIMITS
    # The column with the start of the window of a row, for late rows.
    start: str | None = None
    name: str = "deduplicate"

    def __post_init__(self) -> None:
        assert self.ranking.limit == 1 and self.ranking.function == ROW_NUMBER, "the first row"
        assert self.waits or not self.ranking.order, "what comes at once comes by arrival"

    # Shapes

    @property
    def output(self) -> pa.Schema:
        return self.ranking.row

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    @property
    def _lifted(self) -> pa.Schema:
        """Rows that come in; SEEN counts those that were left behind where rows are read."""
        return self.ranking.arrived.append(pa.field(SEEN, INT))

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        late = self.late_rows
        return ((late.input_schema if late is not None else self._lifted,),)

    @property
    def by_key(self) -> Ranking:
        """Ranks the rows of a key, whatever their times."""
        return replace(self.ranking, by_pane=False)

    @property
    def time_to_live(self) -> TimeToLive | None:
        if self.ttl_us is None or self.closes:
            return None
        return TimeToLive(self.ttl_us, tuple(self.ranking.key_fields))

    @property
    def _key(self) -> pa.Schema:
        """A key that is out: when it closes, or when it was last touched."""
        live = self.time_to_live
        if live is not None:
            return live.schema
        return pa.schema([pa.field(PANE, INT), pa.field(HASH, INT), *self.ranking.key_fields])

    def state_format(self) -> tuple[str, ...]:
        return (
            runs.FORMAT,
            segments.FORMAT,
            schema_text(self._key),
            schema_text(self.ranking.kept),
        )

    # Where the rows are

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        """Of equal panes the first row of a key: whether a row is late is told by its pane."""
        if self.late_rows is not None:
            return (self.late_rows.select(rows),)
        return (self.ranking.contenders(self.ranking.select(rows, self._lifted)),)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        if self.late_rows is not None:
            return concat(parts)
        return (self.ranking.contenders(concat(parts)[0]),)

    # Where the state is

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        output, live, out = StepOutput(), self.time_to_live, self._out(state)
        if live is not None:
            live.drop_expired(out, epoch_time.now_us)
        rows = number_arrivals(state, self._on_time(state, inputs[0], epoch_time, output))
        rows = self._unseen(out, rows.select(self.ranking.kept.names), epoch_time)
        waiting = TimeBucketStore(state, (self.ranking.kept,), self._leading, "waiting")
        if self.waits:
            rows = self._unseen(out, self._passed(waiting, rows, epoch_time), None)
        if rows.num_rows:
            first = self.by_key.result(rows)
            output.main.append(first.select(self.output.names))
            if not (self.waits and self.closes):
                # What has waited until its key closes needs no remembering.
                out.append((self._keys(first, epoch_time),))
        self._drop_closed(out, epoch_time)
        self.limits.enforce_with_waiting(self.name, out, waiting, state.gauges)
        return output

    def _out(self, state: KeyGroupState) -> SortedRunStore:
        """The keys that are out."""
        live = self.time_to_live
        if live is not None:
            return SortedRunStore(
                state, (live.schema,), lambda t: (live.keep_latest(t[0]),), due=live.due
            )
        due = (lambda keys: int_column(keys, PANE)) if self.closes else None
        return SortedRunStore(state, (self._key,), lambda tables: tables, due=due)

    def _leading(self, tables: Tables) -> Tables:
        return (self.ranking.leading(tables[0]),)

    def _on_time(
        self, state: KeyGroupState, parts: list[Tables], epoch_time: EpochTime, output: StepOutput
    ) -> pa.Table:
        """Rows that are not late; late ones are counted, and kept if asked."""
        (shuffle_schemas,) = self.shuffle_schemas[0]
        if not (self.waits or self.closes):
            return pa.concat_tables([shuffle_schemas.empty_table(), *(part[0] for part in parts)])
        rows, late = split_late(shuffle_schemas, parts, state, epoch_time)
        if self.late_rows is None:
            return rows
        output.late += self.late_rows.with_window(
            late, self.start, epoch_time.previous_watermark_us
        )
        return self.ranking.select(rows, self._lifted)

    def _unseen(
        self, out: SortedRunStore, rows: pa.Table, epoch_time: EpochTime | None
    ) -> pa.Table:
        """Rows of keys that are not out; rows that just came keep the others alive."""
        if not rows.num_rows:
            return rows
        (known,) = out.load(int_column(rows, HASH))
        seen = find_rows(known, rows, self.by_key.by) >= 0
        if epoch_time is not None and self.time_to_live is not None and seen.any():
            out.append((self._keys(rows.filter(pa.array(seen)), epoch_time),))
        return rows.filter(pa.array(~seen))

    def _keys(self, rows: pa.Table, epoch_time: EpochTime) -> pa.Table:
        live = self.time_to_live
        if live is not None:
            return live.touch([rows], epoch_time.now_us)
        return rows.select(self._key.names).cast(self._key)

    def _passed(self, waiting: TimeBucketStore, rows: pa.Table, epoch_time: EpochTime) -> pa.Table:
        """Of what waits and what came, the rows that the watermark has passed."""
        after = epoch_time.watermark_us
        passed = np.zeros(rows.num_rows, np.bool_)
        found = []
        if after is not None:
            passed = int_column(rows, PANE) <= after
            found = [part[0] for part in waiting.load(None, after + 1)]
            waiting.drop_before(after + 1)
        rest = rows.filter(pa.array(~passed))
        if rest.num_rows:
            waiting.append((rest,))
        return pa.concat_tables([*found, rows.filter(pa.array(passed))])

    def _drop_closed(self, out: SortedRunStore, epoch_time: EpochTime) -> None:
        """Keys of which no more rows can come are forgotten."""
        if self.closes and epoch_time.watermark_us is not None:
            out.drop_due(epoch_time.watermark_us)
