"""Interval joins: rows match by their keys and by the distance between their times.

A row is stored until the watermark passes the last time of the other side that it can match. The
stores are sorted by this time. A pair is emitted in the epoch in which its second row arrives. A
row of an outer side without a match is emitted when the watermark proves that none can arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidegate.columns import HASH, STORE_TIME
from tidegate.operators.kernels.arrays import Ints, concat, int_column
from tidegate.operators.kernels.join_condition import (
    TIME,
    TRACKS_MATCHES,
    JoinCondition,
    numbered_fields,
    output_types,
)
from tidegate.operators.kernels.keys import canonicalize
from tidegate.operators.late_rows import LateRowFormat
from tidegate.operators.operator import (
    NO_LIMITS,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    TimeProgress,
)
from tidegate.operators.store.time_buckets import FORMAT, TimeBucketStore
from tidegate.state.codec import schema_text

ID = "_id"
_SIDES = ("left", "right")
# Stored rows are compared by key only if this many bits of their hash occur among the new rows.
_HASH_BITS = 20


@dataclass(frozen=True)
class IntervalJoin:
    """A join with left time − right time in [lower, upper].

    A row is late if the watermark has reached its time plus `close_delay_us`. The delay is 1 for
    event times and 0 for window ends.

    With `at_close`, pairs are held until they are final: until the watermark proves that no more
    matches of the outer row can arrive. In an INNER join this is the left row, in a FULL join both.

    `late_rows` and `starts` have an element per port. `starts` are the columns with the start of a
    row's window.
    """

    condition: JoinCondition
    columns: tuple[tuple[pa.DataType, ...], tuple[pa.DataType, ...]]
    how: str
    close_delay_us: int = 1
    at_close: bool = False
    limits: Limits = NO_LIMITS
    panes = None
    name: str = "interval_join"
    late_rows: tuple[LateRowFormat, LateRowFormat] | None = None
    starts: tuple[str | None, str | None] = (None, None)

    def __post_init__(self) -> None:
        assert self.how in TRACKS_MATCHES, self.how

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        hidden = [pa.field(STORE_TIME, pa.int64()), pa.field(HASH, pa.int64())]
        return tuple(
            (pa.schema([*hidden, *self.condition.fields, *numbered_fields(self.columns[port])]),)
            for port in (0, 1)
        )

    def stored_schema(self, port: int) -> pa.Schema:
        """Return the schema of a stored row; STORE_TIME is the watermark that closes it."""
        hidden = [pa.field(name, pa.int64()) for name in (STORE_TIME, HASH, TIME, ID)]
        return pa.schema([*hidden, *self.condition.fields, *numbered_fields(self.columns[port])])

    @property
    def output(self) -> pa.Schema:
        return pa.schema(numbered_fields(output_types(self.columns, self.how)))

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows[0].schema if self.late_rows is not None else None

    def state_format(self) -> tuple[str, ...]:
        return (FORMAT, *(schema_text(self.stored_schema(port)) for port in (0, 1)))

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        """Drop rows that can neither match nor be emitted without a match."""
        schema = self.shuffle_schemas[port][0]
        columns = [rows.column(STORE_TIME), rows.column(HASH)]
        columns += [canonicalize(rows.column(item.name)) for item in self.condition.fields]
        columns += [rows.column(item.name) for item in numbered_fields(self.columns[port])]
        table = pa.table(columns, schema=schema)
        if not TRACKS_MATCHES[self.how][port]:
            table = table.filter(pa.array(self.condition.can_match(table)))
        return (table,)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        return concat(parts)

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        epoch = _Epoch(self, state, progress)
        left, right = (epoch.drop_late_rows(port, inputs[port]) for port in (0, 1))
        epoch.match(left, pa.concat_tables([epoch.load_candidates(1, left), right]))
        epoch.match(epoch.load_candidates(0, right), right)
        for port, new in ((0, left), (1, right)):
            epoch.store(port, new)
        output = StepOutput(epoch.finish(), epoch.late)
        self.limits.check(self.name, state.metrics)
        return output


@dataclass
class _Epoch:
    """One epoch of an IntervalJoin in one key group."""

    join: IntervalJoin
    state: KeyGroupState
    progress: TimeProgress
    results: list[pa.Table] = field(default_factory=list)
    late: list[pa.Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        join = self.join
        self.tracked = TRACKS_MATCHES[join.how]
        self.rows = [
            TimeBucketStore(self.state, (join.stored_schema(port),), None, _SIDES[port])
            for port in (0, 1)
        ]
        # The ids of stored rows that have had a match, for sides whose matches are tracked.
        id_schema = (pa.schema([(STORE_TIME, pa.int64()), (ID, pa.int64())]),)
        self.matched = [
            TimeBucketStore(self.state, id_schema, _distinct_ids, f"matched_{_SIDES[port]}")
            for port in (0, 1)
        ]
        # Results that wait until they are final.
        self.held = TimeBucketStore(self.state, (self._result_schema,), None, "held")
        # Rows that matched in this epoch, by port.
        self.new_matches: list[list[pa.Table]] = [[], []]

    @property
    def _result_schema(self) -> pa.Schema:
        """A result; STORE_TIME is the watermark from which it is final."""
        return pa.schema([pa.field(STORE_TIME, pa.int64()), *self.join.output])

    # Input

    def drop_late_rows(self, port: int, parts: list[Tables]) -> pa.Table:
        """Return the new rows of a side that are on time, as stored rows."""
        join, previous_us = self.join, self.progress.previous_watermark_us
        rows = concat(parts)[0] if parts else join.shuffle_schemas[port][0].empty_table()
        times = int_column(rows, STORE_TIME)
        if previous_us is not None and len(times):
            is_late = times + join.close_delay_us <= previous_us
            if is_late.any():
                self._emit_late(port, rows.filter(pa.array(is_late)))
                rows, times = rows.filter(pa.array(~is_late)), times[~is_late]
        reach_us = -join.condition.lower_us if port == 0 else join.condition.upper_us
        first_id = int(self.state.meta.get("next_id", 0))
        self.state.meta["next_id"] = first_id + len(times)
        hidden = {
            STORE_TIME: pa.array(times + reach_us + join.close_delay_us),
            TIME: pa.array(times),
            ID: pa.array(first_id + np.arange(len(times))),
        }
        schema = join.stored_schema(port)
        columns = [hidden[name] if name in hidden else rows.column(name) for name in schema.names]
        return pa.table(columns, schema=schema)

    def _emit_late(self, port: int, rows: pa.Table) -> None:
        """Count late rows and emit them to the late stream, if there is one."""
        self.state.count_late(rows.num_rows)
        if self.join.late_rows is None:
            return
        late_rows, start = self.join.late_rows[port], self.join.starts[port]
        fields = numbered_fields(self.join.columns[port])
        original = {
            name: rows.column(item.name) for name, item in zip(late_rows.names, fields, strict=True)
        }
        # Rows without a window have no window in the late stream either.
        starts = ends = None
        if start is not None:
            starts = np.asarray(rows.column(start).cast(pa.int64()).to_numpy(), np.int64)
            ends = int_column(rows, STORE_TIME)
        previous_us = self.progress.previous_watermark_us
        self.late.append(late_rows.with_reason(pa.table(original), starts, ends, previous_us))

    def load_candidates(self, port: int, others: pa.Table) -> pa.Table:
        """Load the stored rows of a side that may match new rows of the other side."""
        schema = self.join.stored_schema(port)
        if not others.num_rows:
            return schema.empty_table()
        times, delay_us = int_column(others, TIME), self.join.close_delay_us
        span_us = self.join.condition.upper_us - self.join.condition.lower_us
        first_us = int(times.min()) + delay_us
        limit_us = int(times.max()) + span_us + delay_us + 1
        has_hash = np.zeros(1 << _HASH_BITS, np.bool_)
        has_hash[_upper_hash_bits(others)] = True
        parts = [
            rows.take(pa.array(np.flatnonzero(has_hash[_upper_hash_bits(rows)])))
            for (rows,) in self.rows[port].load(first_us, limit_us)
        ]
        return pa.concat_tables(parts) if parts else schema.empty_table()

    # Matches

    def match(self, left: pa.Table, right: pa.Table) -> None:
        """Collect the pairs of two sides, and their rows if matches are tracked."""
        left_indices, right_indices = self.join.condition.find_pairs(left, right)
        if not len(left_indices):
            return
        for port, rows, indices in ((0, left, left_indices), (1, right, right_indices)):
            if self.tracked[port]:
                self.new_matches[port].append(rows.take(pa.array(np.unique(indices))))
        if self.join.how in ("SEMI", "ANTI"):
            return
        left, right = left.take(pa.array(left_indices)), right.take(pa.array(right_indices))
        final_us = {
            "RIGHT": int_column(right, STORE_TIME),
            "FULL": np.maximum(int_column(left, STORE_TIME), int_column(right, STORE_TIME)),
        }
        self._add_results(final_us.get(self.join.how, int_column(left, STORE_TIME)), left, right)

    def _add_results(self, final_us: Ints, left: pa.Table | None, right: pa.Table | None) -> None:
        """Collect results. `final_us` are the watermarks that make them final; None means NULLs."""
        join, count = self.join, len(final_us)
        columns = [pa.array(final_us)]
        for port, rows in enumerate((left, right)):
            if port == 1 and join.how in ("SEMI", "ANTI"):
                break
            columns += [
                pa.nulls(count, item.type) if rows is None else rows.column(item.name)
                for item in numbered_fields(join.columns[port])
            ]
        self.results.append(pa.table(columns, schema=self._result_schema))

    # State and output

    def store(self, port: int, new: pa.Table) -> None:
        """Store new rows that may still match and drop closed rows."""
        watermark_us = self.progress.watermark_us
        if self.tracked[port]:
            self._track_matches(port, new)
        if watermark_us is not None:
            self.rows[port].drop_before(watermark_us + 1)
            self.matched[port].drop_before(watermark_us + 1)
            new = new.filter(pa.array(int_column(new, STORE_TIME) > watermark_us))
        if new.num_rows:
            self.rows[port].append((new,))

    def _track_matches(self, port: int, new: pa.Table) -> None:
        """Remember rows with a match, and emit closed rows without one."""
        watermark_us = self.progress.watermark_us
        first_matches = self._first_matches(port)
        if first_matches.num_rows:
            if self.join.how == "SEMI":
                self._add_results(int_column(first_matches, STORE_TIME), first_matches, None)
            ids = first_matches.select([STORE_TIME, ID])
            if watermark_us is not None:
                ids = ids.filter(pa.array(int_column(ids, STORE_TIME) > watermark_us))
            if ids.num_rows:
                self.matched[port].append((ids,))
        if watermark_us is None or self.join.how == "SEMI":
            return
        closed = [tables[0] for tables in self.rows[port].load(None, watermark_us + 1)]
        closed.append(new.filter(pa.array(int_column(new, STORE_TIME) <= watermark_us)))
        rows = pa.concat_tables(closed)
        earlier = [tables[0] for tables in self.matched[port].load(None, watermark_us + 1)]
        matched_ids = np.concatenate([int_column(ids, ID) for ids in (*earlier, first_matches)])
        unmatched = rows.filter(pa.array(~np.isin(int_column(rows, ID), matched_ids)))
        if unmatched.num_rows:
            sides = (unmatched, None) if port == 0 else (None, unmatched)
            self._add_results(int_column(unmatched, STORE_TIME), *sides)

    def _first_matches(self, port: int) -> pa.Table:
        """Return the rows that had their first match in this epoch."""
        if not self.new_matches[port]:
            return self.join.stored_schema(port).empty_table()
        rows = pa.concat_tables(self.new_matches[port])
        _, indices = np.unique(int_column(rows, ID), return_index=True)
        rows = rows.take(pa.array(indices))
        times = int_column(rows, STORE_TIME)
        earlier = self.matched[port].load(int(times.min()), int(times.max()) + 1)
        if not earlier:
            return rows
        matched_ids = np.concatenate([int_column(tables[0], ID) for tables in earlier])
        return rows.filter(pa.array(~np.isin(int_column(rows, ID), matched_ids)))

    def finish(self) -> list[pa.Table]:
        """Save the stores, report their sizes and return the results to emit."""
        results = self._take_final() if self.join.at_close else self.results
        stores = [*self.rows, *self.matched, self.held]
        for store in stores:
            store.save()
        for metric in ("rows", "groups", "bytes"):
            self.state.metrics[metric] = sum(store.sizes()[metric] for store in stores)
        names = self.join.output.names
        return [table.select(names) for table in results if table.num_rows]

    def _take_final(self) -> list[pa.Table]:
        """Return the results that are final, and hold the others."""
        watermark_us = self.progress.watermark_us
        final = []
        if watermark_us is not None:
            final = [tables[0] for tables in self.held.load(None, watermark_us + 1)]
            self.held.drop_before(watermark_us + 1)
        for table in self.results:
            waits = np.ones(table.num_rows, np.bool_)
            if watermark_us is not None:
                waits = int_column(table, STORE_TIME) > watermark_us
            final.append(table.filter(pa.array(~waits)))
            if waits.any():
                self.held.append((table.filter(pa.array(waits)),))
        return final


def _upper_hash_bits(table: pa.Table) -> Ints:
    """Return upper bits of the hashes; the lower ones are similar in a key group."""
    return np.right_shift(int_column(table, HASH), 32) & ((1 << _HASH_BITS) - 1)


def _distinct_ids(tables: Tables) -> Tables:
    _, indices = np.unique(int_column(tables[0], ID), return_index=True)
    return (tables[0].take(pa.array(indices)),)
