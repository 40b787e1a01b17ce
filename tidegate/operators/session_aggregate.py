"""GROUP BY a session: rows of a key that are no more than the gap apart belong together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.accumulators import Call
from tidegate.operators.changes import changes
from tidegate.operators.contract import Moment, OperatorState, Output, Tables
from tidegate.operators.group_by_base import Grouped
from tidegate.operators.group_kernels import PANE, Groups, GroupSpec, concat
from tidegate.operators.keys import group_ids, places_of
from tidegate.operators.late import LateRows
from tidegate.operators.layout import START, Layout
from tidegate.operators.limits import NO_LIMITS, Limits
from tidegate.operators.matching import Ints, Mask
from tidegate.operators.runs import RunLog, hashes_of, of_hashes
from tidegate.operators.window_aggregate import with_pane


@dataclass(frozen=True)
class SessionAggregate(Grouped):
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
        assert not self.spec.retracts, "sessions of rows that retract are ChangingSessions"

    @cached_property
    def groups(self) -> Groups:
        last = Call("max", "the last row of a session", (pa.int64(),), pa.int64())
        return Groups(replace(self.spec, calls=(*self.spec.calls, last)))

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
        return self.groups.lift(rows.set_column(place, PANE, pa.array(starts)))

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
            places = places_of(main, bag, self.groups.by)
            moved.append(with_pane(bag, starts[places]))
        return self.groups.combine(tuple(moved))

    def _span(self, main: pa.Table) -> tuple[Ints, Ints]:
        first = np.asarray(main.column(PANE).to_numpy(), np.int64)
        return first, np.asarray(main.column(self._last).to_numpy(), np.int64)

    # Where the state is

    def step(self, state: OperatorState, inputs: list[list[Tables]], moment: Moment) -> Output:
        output = Output()
        after = moment.after_us
        due = lambda main: self._due(main, after)  # noqa: E731
        log = RunLog(state, self.groups.schemas, self.merged, due=due)
        new = self._on_time(state, log, inputs[0], moment, output)
        hashes = log.due_hashes(after) if after is not None else np.zeros(0, np.int64)
        if self.early or self.lateness_us:
            hashes = np.concatenate([hashes, hashes_of(new[0])])
        elif after is not None:
            # What comes in and closes at once must meet what is stored.
            closing = self._closes(new[0]) <= after
            hashes = np.concatenate([hashes, hashes_of(new[0])[closing]])
        if len(hashes):
            new = self._update(log, hashes, new, moment, output)
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
        state: OperatorState,
        log: RunLog,
        parts: list[Tables],
        moment: Moment,
        output: Output,
    ) -> Tables:
        """Islands without those that are over and touch no session that is still kept."""
        rows: pa.Table | None = None
        if self.late_rows is not None:
            empty = self.late_rows.packed.empty_table()
            rows = pa.concat_tables([empty, *(part[0] for part in parts)])
            new = self.partials(rows)
        else:
            new = self.merged(concat(parts)) if parts else self.groups.empty()
        before = moment.before_us
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
            table.filter(pa.array(places_of(gone, table, self.groups.by) < 0)) for table in new
        )

    def _not_rescued(self, log: RunLog, new: Tables, over: Mask, limit: int) -> Mask:
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
        places = places_of(gone, by_island, self.groups.by)
        late = rows.filter(pa.array(places >= 0))
        starts = np.asarray(late.column(PANE).to_numpy(), np.int64)
        return self.late_rows.marked(late, starts, starts + self.gap_us, before)

    def _update(
        self, log: RunLog, hashes: Ints, new: Tables, moment: Moment, output: Output
    ) -> Tables:
        """Read these hashes, let new islands join, and emit what there is to say.

        Returns the islands that have other hashes.
        """
        own, rest = of_hashes(new, hashes)
        stored = log.load(hashes)
        joined = self.merged(concat([stored, own])) if own[0].num_rows else stored
        was = self.visible(stored, moment.before_us)
        output.main += self.changed(was, self.visible(joined, moment.after_us))
        after = moment.after_us
        if after is not None:
            kept = self._closes(joined[0]) + self.lateness_us > after
            if not kept.all():
                joined = self._only(joined, kept)
        log.replace(hashes, joined)
        return rest

    def changed(self, was: pa.Table, now: pa.Table) -> list[pa.Table]:
        """What comes out. A session with another end is another row: it is known by both ends."""
        result = changes(was, now, [*self.groups.by, self._last_result])
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
        known = [pa.array(places_of(main, bag, self.groups.by) >= 0) for bag in tables[1:]]
        return (main, *(b.filter(mask) for b, mask in zip(tables[1:], known, strict=True)))

    def _with_ends(self, result: pa.Table) -> pa.Table:
        """The start beside the pane, and in the pane the end, as the layout wants it."""
        starts = result.column(PANE)
        last = result.column(self._last_result)
        ends = pc.add(last, pa.scalar(self.gap_us, pa.int64()))
        place = result.schema.get_field_index(PANE)
        return result.set_column(place, PANE, ends).append_column(START, starts)
