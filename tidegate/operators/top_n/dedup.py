"""Deduplication: the first row of each key, for QUALIFY row_number() OVER (PARTITION BY …) = 1.

In order of arrival, the first row is emitted at once. In order of event time, a row waits until the
watermark has passed it, because until then an earlier row can arrive. Later rows of the key are
duplicates and are dropped.

An emitted key is stored until the watermark proves that no more rows of it can arrive, or until its
time to live ends. Each duplicate restarts the time to live.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidegate.columns import HASH, INPUT_ROWS, STORE_TIME
from tidegate.operators.kernels.arrays import concat, int_column
from tidegate.operators.kernels.keys import find_rows
from tidegate.operators.kernels.ordering import INT, ROW_NUMBER, number_arrivals
from tidegate.operators.late_rows import LateRowFormat, split_late
from tidegate.operators.operator import (
    NO_LIMITS,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    TimeProgress,
)
from tidegate.operators.store import sorted_runs as runs
from tidegate.operators.store import time_buckets as segments
from tidegate.operators.store.sorted_runs import SortedRunStore, TimeToLive
from tidegate.operators.store.time_buckets import TimeBucketStore
from tidegate.operators.top_n.window import Ranking
from tidegate.state.codec import schema_text


@dataclass(frozen=True)
class Deduplicate:
    """Emits the first row of each key, by arrival or with `by_event_time` by event time.

    With `by_event_time`, STORE_TIME is the watermark that has passed the event time of the row.
    With `has_closing_key`, the key contains a window, and STORE_TIME is the watermark that closes
    it: no more rows of the key can arrive.
    """

    ranking: Ranking
    by_event_time: bool = False
    has_closing_key: bool = False
    ttl_us: int | None = None
    late_rows: LateRowFormat | None = None
    limits: Limits = NO_LIMITS
    # The column with the window start of a row, for late rows.
    start: str | None = None
    panes = None
    name: str = "deduplicate"

    def __post_init__(self) -> None:
        is_first_row = self.ranking.limit == 1 and self.ranking.function == ROW_NUMBER
        assert is_first_row, "deduplication is row_number() = 1"
        assert self.by_event_time or not self.ranking.order, "without event time, order is arrival"

    @property
    def output(self) -> pa.Schema:
        return self.ranking.result_schema

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    @property
    def _arrival_schema(self) -> pa.Schema:
        """The schema of a shuffled row. INPUT_ROWS also counts rows dropped before the shuffle."""
        return self.ranking.arrival_schema.append(pa.field(INPUT_ROWS, INT))

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        late = self.late_rows
        return ((late.input_schema if late is not None else self._arrival_schema,),)

    @property
    def key_ranking(self) -> Ranking:
        """The ranking of all rows of a key, regardless of their STORE_TIME."""
        return replace(self.ranking, by_closing_time=False)

    @property
    def time_to_live(self) -> TimeToLive | None:
        """The time to live of keys that the watermark does not drop."""
        if self.ttl_us is None or self.has_closing_key:
            return None
        return TimeToLive(self.ttl_us, tuple(self.ranking.key_fields))

    @property
    def _key_schema(self) -> pa.Schema:
        """The schema of an emitted key: with its last touch if it has a time to live."""
        ttl = self.time_to_live
        if ttl is not None:
            return ttl.schema
        return pa.schema([pa.field(STORE_TIME, INT), pa.field(HASH, INT), *self.ranking.key_fields])

    def state_format(self) -> tuple[str, ...]:
        return (
            runs.FORMAT,
            segments.FORMAT,
            schema_text(self._key_schema),
            schema_text(self.ranking.stored_schema),
        )

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        """Keep the first row of each key and STORE_TIME.

        A row with another STORE_TIME is kept because the first one may turn out to be late.
        """
        if self.late_rows is not None:
            return (self.late_rows.select(rows),)
        return (self.ranking.prune_arrivals(self.ranking.select(rows, self._arrival_schema)),)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        if self.late_rows is not None:
            return concat(parts)
        return (self.ranking.prune_arrivals(concat(parts)[0]),)

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        output, ttl, keys = StepOutput(), self.time_to_live, self._open_key_store(state)
        if ttl is not None:
            ttl.drop_expired(keys, progress.now_us)
        rows = number_arrivals(state, self._drop_late_rows(state, inputs[0], progress, output))
        rows = rows.select(self.ranking.stored_schema.names)
        rows = self._drop_duplicates(keys, rows, progress)
        waiting = TimeBucketStore(
            state,
            (self.ranking.stored_schema,),
            lambda tables: (self.ranking.prune_stored(tables[0]),),
            "waiting",
        )
        if self.by_event_time:
            passed = self._take_passed(waiting, rows, progress)
            rows = self._drop_duplicates(keys, passed, None)
        if rows.num_rows:
            first = self.key_ranking.evaluate(rows)
            output.rows.append(first.select(self.output.names))
            if not (self.by_event_time and self.has_closing_key):
                # A row that has waited until its key was closed cannot have later duplicates.
                keys.append((self._as_keys(first, progress),))
        if self.has_closing_key and progress.watermark_us is not None:
            keys.drop_due(progress.watermark_us)
        self.limits.enforce_with_waiting(self.name, keys, waiting, state.metrics)
        return output

    def _open_key_store(self, state: KeyGroupState) -> SortedRunStore:
        """Open the store of emitted keys."""
        ttl = self.time_to_live
        if ttl is not None:
            return SortedRunStore(
                state, (ttl.schema,), lambda tables: (ttl.keep_latest(tables[0]),), due=ttl.due
            )
        due = (lambda keys: int_column(keys, STORE_TIME)) if self.has_closing_key else None
        return SortedRunStore(state, (self._key_schema,), lambda tables: tables, due=due)

    def _drop_late_rows(
        self, state: KeyGroupState, parts: list[Tables], progress: TimeProgress, output: StepOutput
    ) -> pa.Table:
        """Return the rows that are on time; late rows are counted and emitted to a late stream."""
        (schema,) = self.shuffle_schemas[0]
        if not (self.by_event_time or self.has_closing_key):
            return pa.concat_tables([schema.empty_table(), *(part[0] for part in parts)])
        rows, late = split_late(schema, parts, state, progress)
        if self.late_rows is None:
            return rows
        previous_us = progress.previous_watermark_us
        output.late += self.late_rows.with_window(late, self.start, previous_us)
        return self.ranking.select(rows, self._arrival_schema)

    def _drop_duplicates(
        self, keys: SortedRunStore, rows: pa.Table, progress: TimeProgress | None
    ) -> pa.Table:
        """Return the rows of keys that have not been emitted.

        With `progress` the dropped rows restart the time to live of their keys.
        """
        if not rows.num_rows:
            return rows
        (emitted,) = keys.load(int_column(rows, HASH))
        is_duplicate = find_rows(emitted, rows, self.key_ranking.partition_columns) >= 0
        if progress is not None and self.time_to_live is not None and is_duplicate.any():
            keys.append((self._as_keys(rows.filter(pa.array(is_duplicate)), progress),))
        return rows.filter(pa.array(~is_duplicate))

    def _as_keys(self, rows: pa.Table, progress: TimeProgress) -> pa.Table:
        ttl = self.time_to_live
        if ttl is not None:
            return ttl.touch([rows], progress.now_us)
        return rows.select(self._key_schema.names).cast(self._key_schema)

    def _take_passed(
        self, waiting: TimeBucketStore, rows: pa.Table, progress: TimeProgress
    ) -> pa.Table:
        """Return the waiting and new rows that the watermark has passed; store the others."""
        watermark_us = progress.watermark_us
        is_passed = np.zeros(rows.num_rows, np.bool_)
        stored = []
        if watermark_us is not None:
            is_passed = int_column(rows, STORE_TIME) <= watermark_us
            stored = [part[0] for part in waiting.load(None, watermark_us + 1)]
            waiting.drop_before(watermark_us + 1)
        rest = rows.filter(pa.array(~is_passed))
        if rest.num_rows:
            waiting.append((rest,))
        return pa.concat_tables([*stored, rows.filter(pa.array(is_passed))])
