"""Joins that time bounds: rows match by their keys and by how far apart their times are.

Both sides are kept until the watermark proves that no match can come any more, in logs by the
moment at which that is so. A pair comes out in the epoch that completes it, a row without a match
when it is certain that it stays without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.aggregate.groups import HASH, PANE, concat
from tidegate.operators.kernels.keys import canonical
from tidegate.operators.kernels.matching import (
    TIME,
    TRACKED,
    Matching,
    columns_of,
    ints,
    output_kinds,
)
from tidegate.operators.late_rows import LateRows
from tidegate.operators.operator import (
    NO_LIMITS,
    EpochTime,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
)
from tidegate.operators.store.time_buckets import FORMAT, TimeBucketStore
from tidegate.state.codec import schema_text

Ints = npt.NDArray[np.int64]
ID = "_id"
_SIDES = ("left", "right")
# Kept rows are compared by key only if this many bits of their hash fit those of a new row.
_HASH_BITS = 20


@dataclass(frozen=True)
class IntervalJoin:
    """left time − right time lies in [lower, upper].

    A row is closed, and late, once the watermark is `step_us` past its time: 1 for event times,
    0 for the ends of windows. With `at_close` a pair waits until its row of the outer side (or the
    left one) can get no more matches. `late_rows` and `starts`, the column with the start of a
    row's window, are those of the left and right side.
    """

    matching: Matching
    columns: tuple[tuple[pa.DataType, ...], tuple[pa.DataType, ...]]
    how: str
    step_us: int = 1
    at_close: bool = False
    limits: Limits = NO_LIMITS
    name: str = "interval_join"
    late_rows: tuple[LateRows, LateRows] | None = None
    starts: tuple[str | None, str | None] = (None, None)

    def __post_init__(self) -> None:
        assert self.how in TRACKED, self.how

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        hidden = [pa.field(PANE, pa.int64()), pa.field(HASH, pa.int64())]
        return tuple(
            (pa.schema([*hidden, *self.matching.fields, *columns_of(self.columns[p])]),)
            for p in (0, 1)
        )

    def stored(self, port: int) -> pa.Schema:
        """The pane of a stored row is the moment from which nothing can match it."""
        hidden = [pa.field(name, pa.int64()) for name in (PANE, HASH, TIME, ID)]
        return pa.schema([*hidden, *self.matching.fields, *columns_of(self.columns[port])])

    @property
    def output(self) -> pa.Schema:
        return pa.schema(columns_of(output_kinds(self.columns, self.how)))

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows[0].schema if self.late_rows is not None else None

    def stored_as(self) -> tuple[str, ...]:
        return (FORMAT, *(schema_text(self.stored(port)) for port in (0, 1)))

    # Where the rows are

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        schema = self.shuffle_schemas[port][0]
        columns = [rows.column(PANE), rows.column(HASH)]
        columns += [canonical(rows.column(item.name)) for item in self.matching.fields]
        columns += [rows.column(item.name) for item in columns_of(self.columns[port])]
        table = pa.table(columns, schema=schema)
        if not TRACKED[self.how][port]:
            # A row that matches nothing, and does not come out by itself, has nothing to do here.
            table = table.filter(pa.array(self.matching.matchable(table)))
        return (table,)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        return concat(parts)

    # Where the state is

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        epoch = _Epoch(self, state, epoch_time)
        left, right = (epoch.on_time(port, inputs[port]) for port in (0, 1))
        epoch.match(left, pa.concat_tables([epoch.candidates(1, left), right]))
        epoch.match(epoch.candidates(0, right), right)
        for port, new in ((0, left), (1, right)):
            epoch.store(port, new)
        output = StepOutput(epoch.finish(), epoch.late)
        self.limits.check(self.name, state.gauges)
        return output


@dataclass
class _Epoch:
    """One epoch of a join: what comes out is collected, and the logs are brought up to date."""

    join: IntervalJoin
    state: KeyGroupState
    epoch_time: EpochTime
    results: list[pa.Table] = field(default_factory=list)
    late: list[pa.Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        join = self.join
        self.tracked = TRACKED[join.how]
        self.rows = [
            TimeBucketStore(self.state, (join.stored(p),), None, _SIDES[p]) for p in (0, 1)
        ]
        marks = (pa.schema([(PANE, pa.int64()), (ID, pa.int64())]),)
        self.matched = [
            TimeBucketStore(self.state, marks, _once, f"matched_{_SIDES[p]}") for p in (0, 1)
        ]
        self.held = TimeBucketStore(self.state, (self._held_schema,), None, "held")
        # What found a match in this epoch, by side.
        self.newly: list[list[pa.Table]] = [[], []]

    @property
    def _held_schema(self) -> pa.Schema:
        return pa.schema([pa.field(PANE, pa.int64()), *self.join.output])

    # In

    def on_time(self, port: int, parts: list[Tables]) -> pa.Table:
        """The new rows of a side with their due time; late ones are counted, and kept if asked."""
        join, before = self.join, self.epoch_time.previous_watermark_us
        rows = concat(parts)[0] if parts else join.shuffle_schemas[port][0].empty_table()
        times = ints(rows, PANE)
        if before is not None and len(times):
            late = times + join.step_us <= before
            if late.any():
                self._keep_late(port, rows.filter(pa.array(late)))
                rows, times = rows.filter(pa.array(~late)), times[~late]
        reach = -join.matching.lower_us if port == 0 else join.matching.upper_us
        first = int(self.state.meta.get("next_id", 0))
        self.state.meta["next_id"] = first + len(times)
        hidden = {
            PANE: pa.array(times + reach + join.step_us),
            TIME: pa.array(times),
            ID: pa.array(first + np.arange(len(times))),
        }
        schema = join.stored(port)
        columns = [hidden[name] if name in hidden else rows.column(name) for name in schema.names]
        return pa.table(columns, schema=schema)

    def _keep_late(self, port: int, rows: pa.Table) -> None:
        self.state.count_late(rows.num_rows)
        if self.join.late_rows is None:
            return
        keeper, start = self.join.late_rows[port], self.join.starts[port]
        own = {
            name: rows.column(item.name)
            for name, item in zip(keeper.names, columns_of(self.join.columns[port]), strict=True)
        }
        # Without a window there is only the time of the row itself.
        ends = ints(rows, PANE) if start is not None else None
        starts = None if start is None else ints(_as_micros(rows, start), start)
        self.late.append(
            keeper.marked(pa.table(own), starts, ends, self.epoch_time.previous_watermark_us)
        )

    def candidates(self, port: int, others: pa.Table) -> pa.Table:
        """The stored rows of a side that are near enough to new rows of the other."""
        schema = self.join.stored(port)
        if not others.num_rows:
            return schema.empty_table()
        times, step = ints(others, TIME), self.join.step_us
        span = self.join.matching.upper_us - self.join.matching.lower_us
        first, limit = int(times.min()) + step, int(times.max()) + span + step + 1
        wanted = np.zeros(1 << _HASH_BITS, np.bool_)
        wanted[_upper_bits(others)] = True
        kept = [tables[0] for tables in self.rows[port].load(first, limit)]
        parts = [rows.take(pa.array(np.flatnonzero(wanted[_upper_bits(rows)]))) for rows in kept]
        return pa.concat_tables(parts) if parts else schema.empty_table()

    # Matches

    def match(self, left: pa.Table, right: pa.Table) -> None:
        left_places, right_places = self.join.matching.pairs(left, right)
        if not len(left_places):
            return
        for port, table, places in ((0, left, left_places), (1, right, right_places)):
            if self.tracked[port]:
                self.newly[port].append(table.take(pa.array(np.unique(places))))
        if self.join.how in ("SEMI", "ANTI"):
            return
        ours, theirs = left.take(pa.array(left_places)), right.take(pa.array(right_places))
        due = {
            "RIGHT": ints(theirs, PANE),
            "FULL": np.maximum(ints(ours, PANE), ints(theirs, PANE)),
        }
        self._add(due.get(self.join.how, ints(ours, PANE)), ours, theirs)

    def _add(self, due: Ints, ours: pa.Table | None, theirs: pa.Table | None) -> None:
        """Results, with the moment at which they are final; a side that is not there is NULL."""
        join, count = self.join, len(due)
        columns = [pa.array(due)]
        for port, table in enumerate((ours, theirs)):
            if port == 1 and join.how in ("SEMI", "ANTI"):
                break
            for item in columns_of(join.columns[port]):
                there = table.column(item.name) if table is not None else None
                columns.append(pa.nulls(count, item.type) if there is None else there)
        self.results.append(pa.table(columns, schema=self._held_schema))

    # Out

    def store(self, port: int, new: pa.Table) -> None:
        """Keep what may still match, and let go of what cannot."""
        after = self.epoch_time.watermark_us
        if self.tracked[port]:
            self._track(port, new)
        if after is not None:
            self.rows[port].drop_before(after + 1)
            self.matched[port].drop_before(after + 1)
            new = new.filter(pa.array(ints(new, PANE) > after))
        if new.num_rows:
            self.rows[port].append((new,))

    def _track(self, port: int, new: pa.Table) -> None:
        """What this epoch's matches and the watermark mean for rows that wait for a match."""
        after = self.epoch_time.watermark_us
        newly = self._first_matches(port)
        if newly.num_rows:
            if self.join.how == "SEMI":
                self._add(ints(newly, PANE), newly, None)
            marks = newly.select([PANE, ID])
            if after is not None:
                marks = marks.filter(pa.array(ints(marks, PANE) > after))
            if marks.num_rows:
                self.matched[port].append((marks,))
        if after is None or self.join.how == "SEMI":
            return
        due = [tables[0] for tables in self.rows[port].load(None, after + 1)]
        due.append(new.filter(pa.array(ints(new, PANE) <= after)))
        rows = pa.concat_tables(due)
        known = [tables[0] for tables in self.matched[port].load(None, after + 1)]
        found = np.concatenate([ints(table, ID) for table in (*known, newly)])
        alone = rows.filter(pa.array(~np.isin(ints(rows, ID), found)))
        if alone.num_rows:
            sides = (alone, None) if port == 0 else (None, alone)
            self._add(ints(alone, PANE), *sides)

    def _first_matches(self, port: int) -> pa.Table:
        """The rows that have a match since this epoch."""
        if not self.newly[port]:
            return self.join.stored(port).empty_table()
        rows = pa.concat_tables(self.newly[port])
        _, places = np.unique(ints(rows, ID), return_index=True)
        rows = rows.take(pa.array(places))
        due = ints(rows, PANE)
        known = self.matched[port].load(int(due.min()), int(due.max()) + 1)
        if not known:
            return rows
        seen = np.concatenate([ints(tables[0], ID) for tables in known])
        return rows.filter(pa.array(~np.isin(ints(rows, ID), seen)))

    def finish(self) -> list[pa.Table]:
        """Save the logs; what comes out now."""
        results = self._final() if self.join.at_close else self.results
        logs = [*self.rows, *self.matched, self.held]
        for log in logs:
            log.save()
        for what in ("rows", "groups", "bytes"):
            self.state.gauges[what] = sum(log.sizes()[what] for log in logs)
        names = self.join.output.names
        return [table.select(names) for table in results if table.num_rows]

    def _final(self) -> list[pa.Table]:
        """The results that the watermark has passed; the others are held."""
        after = self.epoch_time.watermark_us
        final = []
        if after is not None:
            final = [tables[0] for tables in self.held.load(None, after + 1)]
            self.held.drop_before(after + 1)
        for table in self.results:
            waits = np.ones(table.num_rows, np.bool_)
            if after is not None:
                waits = ints(table, PANE) > after
            final.append(table.filter(pa.array(~waits)))
            if waits.any():
                self.held.append((table.filter(pa.array(waits)),))
        return final


def _upper_bits(table: pa.Table) -> Ints:
    """The lower bits of a hash chose the key group."""
    return np.right_shift(ints(table, HASH), 32) & ((1 << _HASH_BITS) - 1)


def _as_micros(rows: pa.Table, name: str) -> pa.Table:
    return pa.table({name: rows.column(name).cast(pa.int64())})


def _once(tables: Tables) -> Tables:
    """Each mark once."""
    _, places = np.unique(ints(tables[0], ID), return_index=True)
    return (tables[0].take(pa.array(places)),)
