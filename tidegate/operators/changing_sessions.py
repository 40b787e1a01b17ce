"""GROUP BY a session, of rows that may be retracted: a row that goes may cut a session in two.

Rows are kept until their session is over, because only they tell where it falls apart. Rows that
are added and retracted in one epoch were never there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidegate.operators.contract import Moment, OperatorState, Output, Tables
from tidegate.operators.group_by_base import Grouped
from tidegate.operators.group_contents import Rows
from tidegate.operators.group_kernels import HASH, PANE, WEIGHT, GroupSpec, concat
from tidegate.operators.kept_rows import content_ids
from tidegate.operators.keys import group_ids
from tidegate.operators.late import LateRows
from tidegate.operators.layout import Layout
from tidegate.operators.limits import NO_LIMITS, Limits
from tidegate.operators.matching import Ints, Mask, ints
from tidegate.operators.ordering import ROW_NUMBER, ranks_of
from tidegate.operators.runs import RunLog
from tidegate.operators.session_aggregate import SessionAggregate
from tidegate.operators.window_aggregate import with_pane


@dataclass(frozen=True)
class ChangingSessions(Grouped):
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
    def rows(self) -> Rows:
        return Rows(self.spec)

    @property
    def packed(self) -> tuple[tuple[pa.Schema, ...], ...]:
        return super().packed if self.late_rows is not None else (self.rows.schemas,)

    # Where the rows are

    def partials(self, rows: pa.Table) -> Tables:
        """Rows as they are: what is late is judged row by row."""
        return (self.rows.select(rows),)

    def merged(self, tables: Tables) -> Tables:
        return tables

    # Where the state is

    def step(self, state: OperatorState, inputs: list[list[Tables]], moment: Moment) -> Output:
        output, after = Output(), moment.after_us
        log = self._log(state, after)
        came = self._left(pa.concat_tables([self._nothing, *(part[0] for part in inputs[0])]))
        hashes = ints(came, HASH)
        if after is not None:
            hashes = np.concatenate([hashes, log.due_hashes(after)])
        state.count_unknown(0)
        if len(hashes):
            stored = log.load(hashes)
            new = self._on_time(state, stored[0], came, moment, output)
            now = self.rows.standing(concat([stored, (new,)]))
            was = self._visible(stored, moment.before_us)
            output.main += self.sessions.changed(was, self._visible(now, after))
            log.replace(hashes, self._open(now, after))
        self.limits.enforce(self.name, log, state.gauges)
        return output

    def _log(self, state: OperatorState, after: int | None) -> RunLog:
        """The rows of a hash lie together: they are read and replaced."""
        due = lambda rows: self._due(rows, after)  # noqa: E731
        return RunLog(state, self.rows.schemas, self.rows.combine, self.rows.standing, due)

    @property
    def _nothing(self) -> pa.Table:
        return self.packed[0][0].empty_table()

    def _left(self, came: pa.Table) -> pa.Table:
        """Rows of an epoch without those that were added and retracted in it."""
        weights = ints(came, WEIGHT)
        if not came.num_rows or weights.min() > 0:
            return came
        ids, count = content_ids(self.rows.select(came))
        balance = np.bincount(ids, weights, count).astype(np.int64)[ids]
        # Of equal rows the last ones stay, as many as are left over.
        stays = weights == np.sign(balance)
        late_first = -np.arange(came.num_rows)[stays]
        nth = ranks_of(ROW_NUMBER, ids[stays], [late_first])[0]
        stays[stays] = nth <= np.abs(balance[stays])
        return came.filter(pa.array(stays))

    def _visible(self, tables: Tables, mark: int | None) -> pa.Table:
        rows = self.rows.kept.one_by_one(tables[0])
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
        times = ints(rows, PANE)
        starts = self.sessions.starts(rows, times, times)
        ids, count = group_ids(with_pane(rows, starts), self.groups.by)
        last = np.full(count, np.iinfo(np.int64).min)
        np.maximum.at(last, ids, times)
        return starts, self.sessions.closes_us(last[ids])

    # Late rows

    def _on_time(
        self, state: OperatorState, stored: pa.Table, came: pa.Table, moment: Moment, output: Output
    ) -> pa.Table:
        """What came, without what is late and retractions of what is not there."""
        rows = self.rows.select(came)
        late, starts, closes = self._judged(stored, rows, moment.before_us)
        if late.any():
            state.count_late(int(late.sum()))
            if self.late_rows is not None:
                gone = came.filter(pa.array(late))
                ends = closes[late] - 1
                marked = self.late_rows.marked(gone, starts[late], ends, moment.before_us)
                output.late.append(marked)
            rows = rows.filter(pa.array(~late))
        known, unknown = self.rows.kept.known(stored, rows)
        state.count_unknown(unknown)
        return known

    def _judged(
        self, stored: pa.Table, rows: pa.Table, before: int | None
    ) -> tuple[Mask, Ints, Ints]:
        """Return which rows are late, and the start and closing of the session of each.

        A row is late if its session is over and has no row that is kept; so is a retraction of a
        row that is not kept, if the row alone would be a session that is over.
        """
        times, added = ints(rows, PANE), ints(rows, WEIGHT) > 0
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
        there = np.bincount(ids[:cut], ints(stored, WEIGHT), count)
        nth = ranks_of(ROW_NUMBER, ids[cut:], [])[0]
        return np.asarray(nth > there[ids[cut:]], np.bool_)
