"""Session windows: rows of a key that are at most a gap apart belong to the same session."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import HASH, PANE, WEIGHT
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.group_by import GroupByOperator, RowStateFormat
from tidegate.operators.aggregate.groups import START, Aggregator, GroupSpec, OutputLayout
from tidegate.operators.kernels.arrays import Ints, Mask, concat, int_column, with_int_column
from tidegate.operators.kernels.keys import find_rows, group_ids
from tidegate.operators.kernels.ordering import ROW_NUMBER, rank_rows
from tidegate.operators.kernels.weighted_rows import content_ids, diff_results
from tidegate.operators.late_rows import LateRowFormat
from tidegate.operators.operator import (
    NO_LIMITS,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    TimeProgress,
)
from tidegate.operators.store.sorted_runs import SortedRunStore, hashes_of, split_by_hashes

_MIN_TIME = np.iinfo(np.int64).min


# ---- Sessions of rows that are never retracted


@dataclass(frozen=True)
class SessionAggregate(GroupByOperator):
    """GROUP BY a session, for rows that are never retracted.

    Rows are pre-aggregated into partial sessions. The pane of a partial session is the time of its
    first row, and a hidden max aggregate is the time of its last row. Partial sessions of a key
    merge when they touch, in any order, so only partial sessions are stored. With `emits_updates`,
    sessions are emitted as a changelog while they are open.
    """

    spec: GroupSpec
    gap_us: int
    layout: OutputLayout
    lateness_us: int = 0
    emits_updates: bool = False
    late_rows: LateRowFormat | None = None
    limits: Limits = NO_LIMITS
    panes = None
    name: str = "session_aggregate"

    def __post_init__(self) -> None:
        # Retracting a row can split a session; a partial session does not have its single rows.
        assert not self.spec.retracts, "use RetractingSessionAggregate if rows can be retracted"

    @cached_property
    def aggregator(self) -> Aggregator:
        last = AggregateCall("max", "the last row of a session", (pa.int64(),), pa.int64())
        return Aggregator(replace(self.spec, calls=(*self.spec.calls, last)))

    @property
    def _last_argument(self) -> str:
        """The argument column of the hidden max aggregate."""
        return f"a{len(self.spec.calls)}_0"

    @property
    def _last_state(self) -> str:
        """The state column of the hidden max aggregate."""
        return f"s{len(self.spec.calls)}_0"

    @property
    def _last_result(self) -> str:
        """The result column of the hidden max aggregate."""
        return f"r{len(self.spec.calls)}"

    # ---- Partial sessions

    def to_partials(self, rows: pa.Table) -> Tables:
        """Return the partial sessions of rows, whose pane is their time."""
        times = np.asarray(rows.column(PANE).to_numpy(), np.int64)
        starts = self.session_starts(rows, times, times)
        index = rows.schema.get_field_index(PANE)
        rows = rows.append_column(self._last_argument, rows.column(PANE))
        return self.aggregator.pre_aggregate(rows.set_column(index, PANE, pa.array(starts)))

    def session_starts(self, table: pa.Table, first: Ints, last: Ints) -> Ints:
        """Return the start of the session that each row or partial session belongs to.

        `first` and `last` are the times of its first and its last row.
        """
        if not len(first):
            return first
        keys = self.aggregator.keys
        ids = group_ids(table, keys)[0] if keys else np.zeros(len(first), np.int64)
        order = np.lexsort((first, ids))
        ids, first, last = ids[order], first[order], last[order]
        last_so_far = pd.Series(last).groupby(ids).cummax().to_numpy()
        starts_session = np.ones(len(first), np.bool_)
        starts_session[1:] = (ids[1:] != ids[:-1]) | (first[1:] - last_so_far[:-1] > self.gap_us)
        ordered_starts: Ints = first[starts_session][np.cumsum(starts_session) - 1]
        starts: Ints = np.empty_like(ordered_starts)
        starts[order] = ordered_starts
        return starts

    def combine_partials(self, tables: Tables) -> Tables:
        """Merge the partial sessions that touch."""
        main = tables[0]
        if main.num_rows <= 1:
            return self.aggregator.combine(tables)
        first, last = self._first_and_last(main)
        starts = self.session_starts(main, first, last)
        if np.array_equal(starts, first):
            return self.aggregator.combine(tables)
        merged = [with_int_column(main, PANE, starts)]
        for bag in tables[1:]:
            # Several rows of `main` can have the same key and pane; their starts are equal too.
            rows = find_rows(main, bag, self.aggregator.by)
            merged.append(with_int_column(bag, PANE, starts[rows]))
        return self.aggregator.combine(tuple(merged))

    def _first_and_last(self, main: pa.Table) -> tuple[Ints, Ints]:
        """Return the times of the first and the last row of partial sessions."""
        first = np.asarray(main.column(PANE).to_numpy(), np.int64)
        return first, np.asarray(main.column(self._last_state).to_numpy(), np.int64)

    # ---- Steps

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        output = StepOutput()
        watermark_us = progress.watermark_us
        store = SortedRunStore(
            state,
            self.aggregator.schemas,
            self.combine_partials,
            due=lambda main: self._due(main, watermark_us),
        )
        new = self._drop_late_sessions(state, store, inputs[0], progress, output)
        hashes = np.zeros(0, np.int64)
        if watermark_us is not None:
            hashes = store.due_hashes(watermark_us)
        if self.emits_updates or self.lateness_us:
            hashes = np.concatenate([hashes, hashes_of(new[0])])
        elif watermark_us is not None:
            # A new session that closes at once must be merged with the stored ones first.
            is_closing = self._closing_times(new[0]) <= watermark_us
            hashes = np.concatenate([hashes, hashes_of(new[0])[is_closing]])
        if len(hashes):
            new = self._update(store, hashes, new, progress, output)
        if new[0].num_rows:
            store.append(new)
        self.limits.enforce(self.name, store, state.metrics)
        return output

    def closing_time_us(self, last: Ints) -> Ints:
        """Return the watermark that closes a session with its last row at this time.

        A row at the watermark is not late and joins a session that ends there. So the watermark
        must have passed the end: this is one microsecond more than `window_end`.
        """
        return last + self.gap_us + 1

    def _closing_times(self, main: pa.Table) -> Ints:
        return self.closing_time_us(self._first_and_last(main)[1])

    def _due(self, main: pa.Table, watermark_us: int | None) -> Ints:
        """Return when sessions close, and for closed ones, when they are deleted."""
        closing_times = self._closing_times(main)
        if watermark_us is None or not self.lateness_us:
            return closing_times
        is_closed = closing_times <= watermark_us
        return np.where(is_closed, closing_times + self.lateness_us, closing_times)

    def _update(
        self,
        store: SortedRunStore,
        hashes: Ints,
        new: Tables,
        progress: TimeProgress,
        output: StepOutput,
    ) -> Tables:
        """Merge new sessions with the stored ones of these hashes, and emit what has changed.

        Returns the new sessions with other hashes.
        """
        watermark_us = progress.watermark_us
        new, others = split_by_hashes(new, hashes)
        stored = store.load(hashes)
        merged = self.combine_partials(concat([stored, new])) if new[0].num_rows else stored
        before = self.visible_sessions(stored, progress.previous_watermark_us)
        output.rows += self.changes(before, self.visible_sessions(merged, watermark_us))
        if watermark_us is not None:
            keep = self._closing_times(merged[0]) + self.lateness_us > watermark_us
            if not keep.all():
                merged = self._filter(merged, keep)
        store.replace(hashes, merged)
        return others

    def visible_sessions(self, tables: Tables, watermark_us: int | None) -> pa.Table:
        """Return the results of the sessions that have been emitted at this watermark."""
        if not self.emits_updates:
            if watermark_us is None:
                return self.aggregator.evaluate(self.aggregator.empty())
            tables = self._filter(tables, self._closing_times(tables[0]) <= watermark_us)
        return self.aggregator.evaluate(tables)

    def changes(self, before: pa.Table, after: pa.Table) -> list[pa.Table]:
        """Return the changes between two results. A session with another end is another row."""
        rows = diff_results(before, after, [*self.aggregator.by, self._last_result])
        return [self.layout.to_output(self._with_ends(rows))] if rows.num_rows else []

    def _with_ends(self, results: pa.Table) -> pa.Table:
        """Move the start to its own column and the end to the pane, as the layout expects."""
        starts = results.column(PANE)
        last = results.column(self._last_result)
        ends = pc.add(last, pa.scalar(self.gap_us, pa.int64()))
        index = results.schema.get_field_index(PANE)
        return results.set_column(index, PANE, ends).append_column(START, starts)

    def _filter(self, tables: Tables, keep: Mask) -> Tables:
        """Keep some sessions, with their bags."""
        main = tables[0].filter(pa.array(keep))
        masks = [pa.array(find_rows(main, bag, self.aggregator.by) >= 0) for bag in tables[1:]]
        return (main, *(bag.filter(mask) for bag, mask in zip(tables[1:], masks, strict=True)))

    # ---- Late rows

    def _drop_late_sessions(
        self,
        state: KeyGroupState,
        store: SortedRunStore,
        parts: list[Tables],
        progress: TimeProgress,
        output: StepOutput,
    ) -> Tables:
        """Return the new sessions without closed ones that do not merge with a stored session."""
        rows: pa.Table | None = None
        if self.late_rows is not None:
            empty = self.late_rows.input_schema.empty_table()
            rows = pa.concat_tables([empty, *(part[0] for part in parts)])
            new = self.to_partials(rows)
        else:
            new = self.combine_partials(concat(parts)) if parts else self.aggregator.empty()
        previous_us = progress.previous_watermark_us
        if previous_us is None or not new[0].num_rows:
            return new
        limit_us = previous_us - self.lateness_us
        is_closed = self._closing_times(new[0]) <= limit_us
        is_late = is_closed
        if is_closed.any():
            is_late = is_closed & ~self._touches_open_session(store, new, is_closed, limit_us)
        if not is_late.any():
            return new
        state.count_late(int(self.aggregator.input_rows(new[0])[is_late].sum()))
        late = new[0].filter(pa.array(is_late))
        if rows is not None and self.late_rows is not None:
            output.late.append(self._late_table(rows, late, previous_us))
        return tuple(
            table.filter(pa.array(find_rows(late, table, self.aggregator.by) < 0)) for table in new
        )

    def _touches_open_session(
        self, store: SortedRunStore, new: Tables, is_closed: Mask, limit_us: int
    ) -> Mask:
        """Return which of the new sessions merge into a stored session."""
        stored = store.load(hashes_of(new[0])[is_closed])[0]
        both = pa.concat_tables([stored, new[0]])
        first, last = self._first_and_last(both)
        merged = with_int_column(both, PANE, self.session_starts(both, first, last))
        ids, count = group_ids(merged, self.aggregator.by)
        closing_times = np.full(count, _MIN_TIME)
        np.maximum.at(closing_times, ids, self.closing_time_us(last))
        return np.asarray(closing_times[ids[stored.num_rows :]] > limit_us, np.bool_)

    def _late_table(self, rows: pa.Table, late: pa.Table, previous_us: int) -> pa.Table:
        """Return the rows of late sessions with the reason."""
        assert self.late_rows is not None, "the stream has a late stream"
        times = np.asarray(rows.column(PANE).to_numpy(), np.int64)
        by_session = with_int_column(rows, PANE, self.session_starts(rows, times, times))
        # Sessions of several tasks may have merged; a row belongs to the one that contains it.
        in_late_session = find_rows(late, by_session, self.aggregator.by) >= 0
        late_rows = rows.filter(pa.array(in_late_session))
        starts = np.asarray(late_rows.column(PANE).to_numpy(), np.int64)
        return self.late_rows.with_reason(late_rows, starts, starts + self.gap_us, previous_us)


# ---- Sessions of rows that can be retracted
#
# Retracting a row can split a session, so rows are stored until their session is deleted. Rows that
# are added and retracted in the same epoch never existed.


@dataclass(frozen=True)
class RetractingSessionAggregate(GroupByOperator):
    """GROUP BY a session, for rows that can be retracted. The pane of a row is its time.

    With `emits_updates`, sessions are emitted as a changelog while they are open.
    """

    spec: GroupSpec
    gap_us: int
    layout: OutputLayout
    lateness_us: int = 0
    emits_updates: bool = False
    late_rows: LateRowFormat | None = None
    limits: Limits = NO_LIMITS
    panes = None
    name: str = "session_aggregate"

    @cached_property
    def sessions(self) -> SessionAggregate:
        """The aggregation of the rows that have not been retracted."""
        spec = replace(self.spec, retracts=False)
        return SessionAggregate(
            spec, self.gap_us, self.layout, self.lateness_us, self.emits_updates
        )

    @cached_property
    def row_format(self) -> RowStateFormat:
        return RowStateFormat(self.spec)

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        if self.late_rows is not None:
            return super().shuffle_schemas
        return (self.row_format.schemas,)

    def to_partials(self, rows: pa.Table) -> Tables:
        """Return rows without pre-aggregation, because lateness is decided for each row."""
        return (self.row_format.select(rows),)

    def combine_partials(self, tables: Tables) -> Tables:
        return tables

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        output, watermark_us = StepOutput(), progress.watermark_us
        store = SortedRunStore(
            state,
            self.row_format.schemas,
            self.row_format.combine,
            self.row_format.combine_all,
            due=lambda rows: self._due(rows, watermark_us),
        )
        empty = self.shuffle_schemas[0][0].empty_table()
        new = self._cancel_in_epoch(pa.concat_tables([empty, *(part[0] for part in inputs[0])]))
        hashes = int_column(new, HASH)
        if watermark_us is not None:
            hashes = np.concatenate([hashes, store.due_hashes(watermark_us)])
        state.count_unknown_retractions(0)
        if len(hashes):
            stored = store.load(hashes)
            change = self._drop_late_rows(state, stored[0], new, progress, output)
            merged = self.row_format.combine_all(concat([stored, (change,)]))
            before = self._visible_sessions(stored, progress.previous_watermark_us)
            after = self._visible_sessions(merged, watermark_us)
            output.rows += self.sessions.changes(before, after)
            store.replace(hashes, self._drop_closed(merged, watermark_us))
        self.limits.enforce(self.name, store, state.metrics)
        return output

    def _cancel_in_epoch(self, new: pa.Table) -> pa.Table:
        """Remove the rows that are added and retracted in this epoch."""
        weights = int_column(new, WEIGHT)
        if not new.num_rows or weights.min() > 0:
            return new
        ids, count = content_ids(self.row_format.select(new))
        balance = np.bincount(ids, weights, count).astype(np.int64)[ids]
        # Of identical rows, the last ones remain, as many as the balance.
        remains = weights == np.sign(balance)
        last_first = -np.arange(new.num_rows)[remains]
        nth = rank_rows(ROW_NUMBER, ids[remains], [last_first])[0]
        remains[remains] = nth <= np.abs(balance[remains])
        return new.filter(pa.array(remains))

    def _visible_sessions(self, tables: Tables, watermark_us: int | None) -> pa.Table:
        rows = self.row_format.weighted_rows.expand(tables[0])
        return self.sessions.visible_sessions(self.sessions.to_partials(rows), watermark_us)

    def _drop_closed(self, tables: Tables, watermark_us: int | None) -> Tables:
        """Return the rows of sessions that can still change."""
        if watermark_us is None or not tables[0].num_rows:
            return tables
        closing_times = self._sessions_of(tables[0])[1]
        return (tables[0].filter(pa.array(closing_times + self.lateness_us > watermark_us)),)

    def _due(self, rows: pa.Table, watermark_us: int | None) -> Ints:
        """Return when the session of each row closes, and for closed ones, when it is deleted."""
        closing_times = self._sessions_of(rows)[1]
        if watermark_us is None or not self.lateness_us:
            return closing_times
        is_closed = closing_times <= watermark_us
        return np.where(is_closed, closing_times + self.lateness_us, closing_times)

    def _sessions_of(self, rows: pa.Table) -> tuple[Ints, Ints]:
        """Return the start and the closing time of the session of each row, among these rows."""
        times = int_column(rows, PANE)
        starts = self.sessions.session_starts(rows, times, times)
        ids, count = group_ids(with_int_column(rows, PANE, starts), self.aggregator.by)
        last = np.full(count, _MIN_TIME)
        np.maximum.at(last, ids, times)
        return starts, self.sessions.closing_time_us(last[ids])

    # ---- Late rows

    def _drop_late_rows(
        self,
        state: KeyGroupState,
        stored: pa.Table,
        new: pa.Table,
        progress: TimeProgress,
        output: StepOutput,
    ) -> pa.Table:
        """Return new rows, without late ones and without retractions of rows that do not exist."""
        rows = self.row_format.select(new)
        previous_us = progress.previous_watermark_us
        is_late, starts, closing_times = self._find_late_rows(stored, rows, previous_us)
        if is_late.any():
            state.count_late(int(is_late.sum()))
            if self.late_rows is not None:
                late = new.filter(pa.array(is_late))
                ends = closing_times[is_late] - 1
                late = self.late_rows.with_reason(late, starts[is_late], ends, previous_us)
                output.late.append(late)
            rows = rows.filter(pa.array(~is_late))
        change, unknown = self.row_format.weighted_rows.drop_unknown_retractions(stored, rows)
        state.count_unknown_retractions(unknown)
        return change

    def _find_late_rows(
        self, stored: pa.Table, rows: pa.Table, previous_us: int | None
    ) -> tuple[Mask, Ints, Ints]:
        """Return which rows are late, and the start and the closing time of their sessions.

        An added row is late if its session has closed and has no stored row. A retraction is late
        if its row is not stored and would be a closed session by itself.
        """
        times, is_added = int_column(rows, PANE), int_column(rows, WEIGHT) > 0
        starts, closing_times = times.copy(), self.sessions.closing_time_us(times)
        is_late = np.zeros(rows.num_rows, np.bool_)
        if previous_us is None or not rows.num_rows:
            return is_late, starts, closing_times
        limit_us = previous_us - self.lateness_us
        both = pa.concat_tables([stored, rows.filter(pa.array(is_added))])
        both_starts, both_closing_times = self._sessions_of(both)
        ids, count = group_ids(with_int_column(both, PANE, both_starts), self.aggregator.by)
        has_stored_row = np.zeros(count, np.bool_)
        has_stored_row[ids[: stored.num_rows]] = True
        added = slice(stored.num_rows, None)
        starts[is_added], closing_times[is_added] = both_starts[added], both_closing_times[added]
        is_late[is_added] = ~has_stored_row[ids[added]] & (closing_times[is_added] <= limit_us)
        retractions = rows.filter(pa.array(~is_added))
        is_late[~is_added] = self._is_unknown(stored, retractions) & (
            closing_times[~is_added] <= limit_us
        )
        return is_late, starts, closing_times

    def _is_unknown(self, stored: pa.Table, retractions: pa.Table) -> Mask:
        """Return which retractions have no stored row."""
        ids, count = content_ids(pa.concat_tables([stored, retractions]))
        retraction_ids = ids[stored.num_rows :]
        stored_counts = np.bincount(ids[: stored.num_rows], int_column(stored, WEIGHT), count)
        nth = rank_rows(ROW_NUMBER, retraction_ids, [])[0]
        return np.asarray(nth > stored_counts[retraction_ids], np.bool_)
