"""GROUP BY a session: rows of a key that are no more than the gap apart belong together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import HASH, PANE, WEIGHT
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.group_by import GroupByOperator, RowState
from tidegate.operators.aggregate.groups import START, Aggregator, GroupSpec, Layout
from tidegate.operators.aggregate.window import with_pane
from tidegate.operators.kernels.arrays import Ints, Mask, concat, int_column
from tidegate.operators.kernels.keys import find_rows, group_ids
from tidegate.operators.kernels.ordering import ROW_NUMBER, rank_rows
from tidegate.operators.kernels.weighted_rows import content_ids, diff_results
from tidegate.operators.late_rows import LateRows
from tidegate.operators.operator import (
    NO_LIMITS,
    EpochTime,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
)
from tidegate.operators.store.sorted_runs import SortedRunStore, hashes_of, split_by_hashes


@dataclass(frozen=True)
class SessionAggregate(GroupByOperator):
    """Sessions as islands: the pane of an island is its first row, a hidden max its last.

    Islands of the same key merge when they touch, whatever order they come in; so what is stored is
    a log of islands. `early` emits sessions while they are open, as changes.
    """

    spec: GroupSpec
    gap_us: int
    layout: Layout
    lateness_us: int = 0
    early: bool = False
    late_rows: LateRows | None = None
    limits: Limits = NO_LIMITS
    name: str = "session_aggregate"

    def __post_init__(self) -> None:
        # A row that goes may cut a session in two, and an island has forgotten where.
        assert not self.spec.retracts, "sessions of rows that retract are UpdatingSessions"

    @cached_property
    def groups(self) -> Aggregator:
        last = AggregateCall("max", "the last row of a session", (pa.int64(),), pa.int64())
        return Aggregator(replace(self.spec, calls=(*self.spec.calls, last)))

    @property
    def _last(self) -> str:
        """The state column with the time of the last row."""
        return f"s{len(self.spec.calls)}_0"

    @property
    def _last_argument(self) -> str:
        return f"a{len(self.spec.calls)}_0"

    @property
    def _last_result(self) -> str:
        return f"r{len(self.spec.calls)}"

    # Where the rows are

    def partials(self, rows: pa.Table) -> Tables:
        """Rows with their time as the pane, as islands."""
        times = np.asarray(rows.column(PANE).to_numpy(), np.int64)
        starts = self.starts(rows, times, times)
        place = rows.schema.get_field_index(PANE)
        rows = rows.append_column(self._last_argument, rows.column(PANE))
        return self.groups.pre_aggregate(rows.set_column(place, PANE, pa.array(starts)))

    def starts(self, table: pa.Table, first: Ints, last: Ints) -> Ints:
        """For each island the first moment of the session it belongs to."""
        if not len(first):
            return first
        keys = self.groups.keys
        ids = group_ids(table, keys)[0] if keys else np.zeros(len(first), np.int64)
        order = np.lexsort((first, ids))
        ids, first, last = ids[order], first[order], last[order]
        reach = pd.Series(last).groupby(ids).cummax().to_numpy()
        apart = np.ones(len(first), np.bool_)
        apart[1:] = (ids[1:] != ids[:-1]) | (first[1:] - reach[:-1] > self.gap_us)
        begins: Ints = first[apart][np.cumsum(apart) - 1]
        starts: Ints = np.empty_like(begins)
        starts[order] = begins
        return starts

    def merged(self, tables: Tables) -> Tables:
        """Islands that touch become one."""
        main = tables[0]
        if main.num_rows <= 1:
            return self.groups.combine(tables)
        first, last = self._span(main)
        starts = self.starts(main, first, last)
        if np.array_equal(starts, first):
            return self.groups.combine(tables)
        moved = [with_pane(main, starts)]
        for bag in tables[1:]:
            # Equal islands that came apart have equal starts, so any of them will do.
            places = find_rows(main, bag, self.groups.by)
            moved.append(with_pane(bag, starts[places]))
        return self.groups.combine(tuple(moved))

    def _span(self, main: pa.Table) -> tuple[Ints, Ints]:
        first = np.asarray(main.column(PANE).to_numpy(), np.int64)
        return first, np.asarray(main.column(self._last).to_numpy(), np.int64)

    # Where the state is

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        output = StepOutput()
        after = epoch_time.watermark_us
        due = lambda main: self._due(main, after)  # noqa: E731
        log = SortedRunStore(state, self.groups.schemas, self.merged, due=due)
        new = self._on_time(state, log, inputs[0], epoch_time, output)
        hashes = log.due_hashes(after) if after is not None else np.zeros(0, np.int64)
        if self.early or self.lateness_us:
            hashes = np.concatenate([hashes, hashes_of(new[0])])
        elif after is not None:
            # What comes in and closes at once must meet what is stored.
            closing = self._closes(new[0]) <= after
            hashes = np.concatenate([hashes, hashes_of(new[0])[closing]])
        if len(hashes):
            new = self._update(log, hashes, new, epoch_time, output)
        if new[0].num_rows:
            log.append(new)
        self.limits.enforce(self.name, log, state.gauges)
        return output

    def closes_us(self, last: Ints) -> Ints:
        """Return the watermark that closes a session with its last row at this time.

        A row at the watermark is not late and joins a session that ends there. So the watermark
        must have passed the end: this is one instant more than what is reported as `window_end`.
        """
        return last + self.gap_us + 1

    def _closes(self, main: pa.Table) -> Ints:
        return self.closes_us(self._span(main)[1])

    def _due(self, main: pa.Table, after: int | None) -> Ints:
        """When a session fires; once it has, when it goes."""
        closes = self._closes(main)
        if after is None or not self.lateness_us:
            return closes
        return np.where(closes <= after, closes + self.lateness_us, closes)

    def _on_time(
        self,
        state: KeyGroupState,
        log: SortedRunStore,
        parts: list[Tables],
        epoch_time: EpochTime,
        output: StepOutput,
    ) -> Tables:
        """Islands without those that are over and touch no session that is still kept."""
        rows: pa.Table | None = None
        if self.late_rows is not None:
            empty = self.late_rows.input_schema.empty_table()
            rows = pa.concat_tables([empty, *(part[0] for part in parts)])
            new = self.partials(rows)
        else:
            new = self.merged(concat(parts)) if parts else self.groups.empty()
        before = epoch_time.previous_watermark_us
        if before is None or not new[0].num_rows:
            return new
        limit = before - self.lateness_us
        over = self._closes(new[0]) <= limit
        late = self._not_rescued(log, new, over, limit) if over.any() else over
        if not late.any():
            return new
        state.count_late(int(self.groups.seen(new[0])[late].sum()))
        gone = new[0].filter(pa.array(late))
        if rows is not None and self.late_rows is not None:
            output.late.append(self._late_table(rows, gone, before))
        return tuple(
            table.filter(pa.array(find_rows(gone, table, self.groups.by) < 0)) for table in new
        )

    def _not_rescued(self, log: SortedRunStore, new: Tables, over: Mask, limit: int) -> Mask:
        """Which of the islands that are over do not join a session that is kept."""
        stored = log.load(hashes_of(new[0])[over])[0]
        both = pa.concat_tables([stored, new[0]])
        first, last = self._span(both)
        starts = self.starts(both, first, last)
        merged = with_pane(both, starts)
        ids, count = group_ids(merged, self.groups.by)
        closes = np.full(count, np.iinfo(np.int64).min)
        np.maximum.at(closes, ids, self.closes_us(last))
        return np.asarray(over & (closes[ids[stored.num_rows :]] <= limit), np.bool_)

    def _late_table(self, rows: pa.Table, gone: pa.Table, before: int) -> pa.Table:
        assert self.late_rows is not None, "somebody asked for late rows"
        times = np.asarray(rows.column(PANE).to_numpy(), np.int64)
        by_island = with_pane(rows, self.starts(rows, times, times))
        # Late islands may have been merged across tasks: a row belongs to the one that covers it.
        places = find_rows(gone, by_island, self.groups.by)
        late = rows.filter(pa.array(places >= 0))
        starts = np.asarray(late.column(PANE).to_numpy(), np.int64)
        return self.late_rows.with_reason(late, starts, starts + self.gap_us, before)

    def _update(
        self,
        log: SortedRunStore,
        hashes: Ints,
        new: Tables,
        epoch_time: EpochTime,
        output: StepOutput,
    ) -> Tables:
        """Read these hashes, let new islands join, and emit what there is to say.

        Returns the islands that have other hashes.
        """
        own, rest = split_by_hashes(new, hashes)
        stored = log.load(hashes)
        joined = self.merged(concat([stored, own])) if own[0].num_rows else stored
        was = self.visible(stored, epoch_time.previous_watermark_us)
        output.main += self.changed(was, self.visible(joined, epoch_time.watermark_us))
        after = epoch_time.watermark_us
        if after is not None:
            kept = self._closes(joined[0]) + self.lateness_us > after
            if not kept.all():
                joined = self._only(joined, kept)
        log.replace(hashes, joined)
        return rest

    def changed(self, was: pa.Table, now: pa.Table) -> list[pa.Table]:
        """What comes out. A session with another end is another row: it is known by both ends."""
        result = diff_results(was, now, [*self.groups.by, self._last_result])
        return [self.layout.rows(self._with_ends(result))] if result.num_rows else []

    def visible(self, tables: Tables, mark: int | None) -> pa.Table:
        """The evaluated sessions that have come out by this watermark."""
        if not self.early:
            if mark is None:
                return self.groups.evaluate(self.groups.empty())
            tables = self._only(tables, self._closes(tables[0]) <= mark)
        return self.groups.evaluate(tables)

    def _only(self, tables: Tables, chosen: Mask) -> Tables:
        main = tables[0].filter(pa.array(chosen))
        known = [pa.array(find_rows(main, bag, self.groups.by) >= 0) for bag in tables[1:]]
        return (main, *(b.filter(mask) for b, mask in zip(tables[1:], known, strict=True)))

    def _with_ends(self, result: pa.Table) -> pa.Table:
        """The start beside the pane, and in the pane the end, as the layout wants it."""
        starts = result.column(PANE)
        last = result.column(self._last_result)
        ends = pc.add(last, pa.scalar(self.gap_us, pa.int64()))
        place = result.schema.get_field_index(PANE)
        return result.set_column(place, PANE, ends).append_column(START, starts)


# ---- GROUP BY a session, of rows that may be retracted: a row that goes may cut a session in two.
#
# Rows are kept until their session is over, because only they tell where it falls apart. Rows that
# are added and retracted in one epoch were never there.


@dataclass(frozen=True)
class UpdatingSessions(GroupByOperator):
    """The pane of a row is its time. `early` emits sessions while they are open, as changes."""

    spec: GroupSpec
    gap_us: int
    layout: Layout
    lateness_us: int = 0
    early: bool = False
    late_rows: LateRows | None = None
    limits: Limits = NO_LIMITS
    name: str = "session_aggregate"

    @cached_property
    def sessions(self) -> SessionAggregate:
        """How rows that are there make sessions."""
        spec = replace(self.spec, retracts=False)
        return SessionAggregate(spec, self.gap_us, self.layout, self.lateness_us, self.early)

    @cached_property
    def rows(self) -> RowState:
        return RowState(self.spec)

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        return super().shuffle_schemas if self.late_rows is not None else (self.rows.schemas,)

    # Where the rows are

    def partials(self, rows: pa.Table) -> Tables:
        """Rows as they are: what is late is judged row by row."""
        return (self.rows.select(rows),)

    def merged(self, tables: Tables) -> Tables:
        return tables

    # Where the state is

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        output, after = StepOutput(), epoch_time.watermark_us
        log = self._log(state, after)
        came = self._left(pa.concat_tables([self._nothing, *(part[0] for part in inputs[0])]))
        hashes = int_column(came, HASH)
        if after is not None:
            hashes = np.concatenate([hashes, log.due_hashes(after)])
        state.count_unknown_retractions(0)
        if len(hashes):
            stored = log.load(hashes)
            new = self._on_time(state, stored[0], came, epoch_time, output)
            now = self.rows.standing(concat([stored, (new,)]))
            was = self._visible(stored, epoch_time.previous_watermark_us)
            output.main += self.sessions.changed(was, self._visible(now, after))
            log.replace(hashes, self._open(now, after))
        self.limits.enforce(self.name, log, state.gauges)
        return output

    def _log(self, state: KeyGroupState, after: int | None) -> SortedRunStore:
        """The rows of a hash lie together: they are read and replaced."""
        due = lambda rows: self._due(rows, after)  # noqa: E731
        return SortedRunStore(state, self.rows.schemas, self.rows.combine, self.rows.standing, due)

    @property
    def _nothing(self) -> pa.Table:
        return self.shuffle_schemas[0][0].empty_table()

    def _left(self, came: pa.Table) -> pa.Table:
        """Rows of an epoch without those that were added and retracted in it."""
        weights = int_column(came, WEIGHT)
        if not came.num_rows or weights.min() > 0:
            return came
        ids, count = content_ids(self.rows.select(came))
        balance = np.bincount(ids, weights, count).astype(np.int64)[ids]
        # Of equal rows the last ones stay, as many as are left over.
        stays = weights == np.sign(balance)
        late_first = -np.arange(came.num_rows)[stays]
        nth = rank_rows(ROW_NUMBER, ids[stays], [late_first])[0]
        stays[stays] = nth <= np.abs(balance[stays])
        return came.filter(pa.array(stays))

    def _visible(self, tables: Tables, mark: int | None) -> pa.Table:
        rows = self.rows.kept.expand(tables[0])
        return self.sessions.visible(self.sessions.partials(rows), mark)

    def _open(self, tables: Tables, after: int | None) -> Tables:
        """The rows of sessions that can still change."""
        if after is None or not tables[0].num_rows:
            return tables
        closes = self._clusters(tables[0])[1]
        return (tables[0].filter(pa.array(closes + self.lateness_us > after)),)

    def _due(self, rows: pa.Table, after: int | None) -> Ints:
        """When the session of a row fires; once it has, when it goes."""
        closes = self._clusters(rows)[1]
        if after is None or not self.lateness_us:
            return closes
        return np.where(closes <= after, closes + self.lateness_us, closes)

    def _clusters(self, rows: pa.Table) -> tuple[Ints, Ints]:
        """Return the start of each row's session among these rows, and when that closes."""
        times = int_column(rows, PANE)
        starts = self.sessions.starts(rows, times, times)
        ids, count = group_ids(with_pane(rows, starts), self.groups.by)
        last = np.full(count, np.iinfo(np.int64).min)
        np.maximum.at(last, ids, times)
        return starts, self.sessions.closes_us(last[ids])

    # Late rows

    def _on_time(
        self,
        state: KeyGroupState,
        stored: pa.Table,
        came: pa.Table,
        epoch_time: EpochTime,
        output: StepOutput,
    ) -> pa.Table:
        """What came, without what is late and retractions of what is not there."""
        rows = self.rows.select(came)
        late, starts, closes = self._judged(stored, rows, epoch_time.previous_watermark_us)
        if late.any():
            state.count_late(int(late.sum()))
            if self.late_rows is not None:
                gone = came.filter(pa.array(late))
                ends = closes[late] - 1
                marked = self.late_rows.with_reason(
                    gone, starts[late], ends, epoch_time.previous_watermark_us
                )
                output.late.append(marked)
            rows = rows.filter(pa.array(~late))
        known, unknown = self.rows.kept.drop_unknown_retractions(stored, rows)
        state.count_unknown_retractions(unknown)
        return known

    def _judged(
        self, stored: pa.Table, rows: pa.Table, before: int | None
    ) -> tuple[Mask, Ints, Ints]:
        """Return which rows are late, and the start and closing of the session of each.

        A row is late if its session is over and has no row that is kept; so is a retraction of a
        row that is not kept, if the row alone would be a session that is over.
        """
        times, added = int_column(rows, PANE), int_column(rows, WEIGHT) > 0
        starts, closes = times.copy(), self.sessions.closes_us(times)
        late = np.zeros(rows.num_rows, np.bool_)
        if before is None or not rows.num_rows:
            return late, starts, closes
        limit = before - self.lateness_us
        both = pa.concat_tables([stored, rows.filter(pa.array(added))])
        begins, over = self._clusters(both)
        ids, count = group_ids(with_pane(both, begins), self.groups.by)
        kept = np.zeros(count, np.bool_)
        kept[ids[: stored.num_rows]] = True
        cut = stored.num_rows
        starts[added], closes[added] = begins[cut:], over[cut:]
        late[added] = ~kept[ids[cut:]] & (closes[added] <= limit)
        late[~added] = self._unknown(stored, rows.filter(pa.array(~added))) & (
            closes[~added] <= limit
        )
        return late, starts, closes

    def _unknown(self, stored: pa.Table, retractions: pa.Table) -> Mask:
        """Which retractions are of rows that are not kept."""
        ids, count = content_ids(pa.concat_tables([stored, retractions]))
        cut = stored.num_rows
        there = np.bincount(ids[:cut], int_column(stored, WEIGHT), count)
        nth = rank_rows(ROW_NUMBER, ids[cut:], [])[0]
        return np.asarray(nth > there[ids[cut:]], np.bool_)
