"""GROUP BY that tells what changed: EMIT ON UPDATE, EMIT CHANGES, EMIT EVERY, or all at the end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import INSERT
from tidegate.operators.changes import changes
from tidegate.operators.contract import Moment, OperatorState, Output, Tables, with_op
from tidegate.operators.group_by_base import Grouped
from tidegate.operators.group_kernels import (
    HASH,
    PANE,
    ROWS,
    GroupSpec,
    concat,
    filter_all,
    merge_rows,
    places_of,
)
from tidegate.operators.late import LateRows
from tidegate.operators.layout import Layout
from tidegate.operators.limits import NO_LIMITS, Limits
from tidegate.operators.panes import Panes
from tidegate.operators.parts import PartLog
from tidegate.operators.window_aggregate import spread

Ints = npt.NDArray[np.int64]
TOUCHED = "_touched"


@dataclass(frozen=True)
class KeyedAggregate(Grouped):
    """Groups that are updated while they are open.

    `panes` is None without windows. `every_us` collects changes and gives them out at most that
    often; `at_end` gives everything out once, when a bounded input has ended. After `ttl_us` of
    processing time without a row a group without window is forgotten.
    """

    spec: GroupSpec
    layout: Layout
    panes: Panes | None = None
    lateness_us: int = 0
    every_us: int | None = None
    at_end: bool = False
    ttl_us: int | None = None
    late_rows: LateRows | None = None
    limits: Limits = NO_LIMITS
    name: str = "group_aggregate"

    @property
    def single(self) -> bool:
        """Without keys and windows there is always one group, even if it has no rows."""
        return not self.spec.keys and self.panes is None

    @property
    def lives_us(self) -> int | None:
        """Windows go with the watermark; only groups without one have a time to live."""
        return self.ttl_us if self.panes is None else None

    def fingerprint(self) -> tuple[str, ...]:
        modes = (self.every_us is not None, self.at_end, self.lives_us is not None)
        return self.meaning(self.panes, modes)

    # Where the state is

    def step(self, state: OperatorState, inputs: list[list[Tables]], moment: Moment) -> Output:
        output = Output()
        log = PartLog(state, self.stored, self._combine, self._due if self._expires else None)
        new = self._on_time(state, inputs[0], moment, output)
        self._forget(log, moment)
        if self.at_end:
            output.main += self._collect(log, new, moment)
        else:
            ready = self._held_back(state, new, moment)
            if ready is not None and ready[0].num_rows:
                output.main += self._update(log, ready, moment)
            if output.main:
                state.meta["spoken"] = 1
            if self.single and moment.just_ended and not state.meta.get("spoken"):
                output.main += self._nothing_came(state)
                state.meta["spoken"] = 1
        self._close(log, moment)
        self.limits.enforce(self.name, log, state.gauges)
        return output

    def _on_time(
        self, state: OperatorState, parts: list[Tables], moment: Moment, output: Output
    ) -> Tables:
        """The partials by window; what is too late for all its windows is counted."""
        before = None if moment.before_us is None else moment.before_us - self.lateness_us
        if self.late_rows is not None and self.panes is not None:
            rows, late = self.late_rows.split([p[0] for p in parts], self.panes, before)
            state.count_late(late.num_rows)
            if late.num_rows:
                output.late.append(self.late_rows.mark(late, self.panes, moment.before_us))
            new = self.groups.lift(rows)
        else:
            new = self.groups.merge(parts)
            if self.panes is not None and before is not None and new[0].num_rows:
                late_mask = self.panes.last_end(new[0].column(PANE).to_numpy()) <= before
                state.count_late(int(self.groups.seen(new[0])[late_mask].sum()))
        if self.panes is None or not new[0].num_rows:
            return new
        ends = self.panes.ends(np.unique(new[0].column(PANE).to_numpy()))
        if before is not None:
            ends = ends[ends > before]
        return self.groups.combine(tuple(spread(table, self.panes, ends) for table in new))

    # Expiry: groups of closed windows, and groups that have not been touched for too long

    @property
    def _expires(self) -> bool:
        return self.panes is not None or self.lives_us is not None

    @property
    def stored(self) -> tuple[pa.Schema, ...]:
        if self.lives_us is None:
            return self.groups.schemas
        first = self.groups.schemas[0].append(pa.field(TOUCHED, pa.int64()))
        return (first, *self.groups.schemas[1:])

    def _combine(self, tables: Tables) -> Tables:
        if self.lives_us is None:
            return self._standing(self.groups.combine(tables))
        main = tables[0]
        combined = self.groups.combine((main.drop_columns([TOUCHED]), *tables[1:]))
        touched = merge_rows(main, self.groups.by, [(TOUCHED, "max")])
        places = places_of(touched, combined[0], self.groups.by)
        column = touched.column(TOUCHED).take(pa.array(places))
        return self._standing((combined[0].append_column(TOUCHED, column), *combined[1:]))

    def _standing(self, tables: Tables) -> Tables:
        """Groups all of whose rows were taken back are not there."""
        if not self.spec.retracts or self.single:
            return tables
        return (tables[0].filter(pc.not_equal(tables[0].column(ROWS), 0)), *tables[1:])

    def _due(self, main: pa.Table) -> Ints:
        if self.lives_us is not None:
            return np.asarray(main.column(TOUCHED).to_numpy(), np.int64) + self.lives_us
        return np.asarray(main.column(PANE).to_numpy(), np.int64)

    def _forget(self, log: PartLog, moment: Moment) -> None:
        """Drop groups whose time to live is over, before anything is added to them."""
        if self.lives_us is None:
            return
        for number in log.due_by(moment.now_us):
            tables = log.load([number])
            alive = self._due(tables[0]) > moment.now_us
            log.replace([number], self._only(tables, alive))

    def _only(self, tables: Tables, alive: npt.NDArray[np.bool_]) -> Tables:
        main = tables[0].filter(pa.array(alive))
        bags = []
        for bag in tables[1:]:
            places = places_of(main, bag, self.groups.by)
            bags.append(bag.filter(pa.array(places >= 0)))
        return (main, *bags)

    def _close(self, log: PartLog, moment: Moment) -> None:
        """Windows the watermark has passed are done: what they had to say, they have said."""
        if self.panes is None or moment.after_us is None:
            return
        after = moment.after_us - self.lateness_us
        for number in log.due_by(after):
            log.replace([number], filter_all(log.load([number]), lambda end: end > after))

    # Giving out

    def _held_back(self, state: OperatorState, new: Tables, moment: Moment) -> Tables | None:
        """With EMIT EVERY, what came in waits until the time is over."""
        if self.every_us is None:
            return new
        waiting = state.get("waiting", b"", self.groups.schemas)
        if waiting is not None:
            state.delete("waiting", b"")
            new = self.groups.combine(concat([waiting, new]))
        last = state.meta.get("given_us")
        due = last is None or moment.now_us >= last + self.every_us or moment.ended
        due = due or self._closes_some(new, moment)
        if due and new[0].num_rows:
            state.meta["given_us"] = moment.now_us
            return new
        if new[0].num_rows:
            state.put("waiting", b"", new)
        return None

    def _closes_some(self, new: Tables, moment: Moment) -> bool:
        """Whether a window that waits is about to be forgotten: then it must speak now."""
        if self.panes is None or moment.after_us is None or not new[0].num_rows:
            return False
        return bool(pc.min(new[0].column(PANE)).as_py() <= moment.after_us - self.lateness_us)

    def _update(self, log: PartLog, new: Tables, moment: Moment) -> list[pa.Table]:
        """The groups that came in, before and after."""
        hashes = np.asarray(new[0].column(HASH).to_numpy(), np.int64)
        old = self._same_groups(log.load(log.touched_by(hashes)), new)
        was = self._evaluate(old)
        now = self._evaluate(self.groups.combine(concat([old, new])))
        log.append(self._stamped(new, moment.now_us))
        result = changes(was, now, self.groups.by)
        return [self.layout.rows(result)] if result.num_rows else []

    def _stamped(self, new: Tables, now_us: int) -> Tables:
        if self.lives_us is None:
            return new
        stamp = pa.array(np.full(new[0].num_rows, now_us, np.int64))
        return (new[0].append_column(TOUCHED, stamp), *new[1:])

    def _same_groups(self, stored: Tables, new: Tables) -> Tables:
        """Of what is stored, the groups that came in."""
        main = stored[0]
        if self.lives_us is not None:
            main = main.drop_columns([TOUCHED])
        tables = (main, *stored[1:])
        return tuple(
            table.filter(pa.array(places_of(new[0], table, self.groups.by) >= 0))
            if table.num_rows
            else table
            for table in tables
        )

    def _evaluate(self, tables: Tables) -> pa.Table:
        if self.spec.retracts and not self.single:
            alive = pc.greater(tables[0].column(ROWS), 0)
            tables = (tables[0].filter(alive), *tables[1:])
        return self.groups.evaluate(tables)

    def _nothing_came(self, state: OperatorState) -> list[pa.Table]:
        """An aggregate without keys over no rows is one row all the same."""
        if not state.first_key_group:
            return []
        return [self.layout.rows(with_op(self.groups.evaluate(self._no_rows()), INSERT))]

    def _no_rows(self) -> Tables:
        main = self.groups.schemas[0]
        zero = {PANE: 0, HASH: 0, ROWS: 0}
        one = pa.table([pa.array([zero.get(f.name)], f.type) for f in main], schema=main)
        return (one, *(schema.empty_table() for schema in self.groups.schemas[1:]))

    def _collect(self, log: PartLog, new: Tables, moment: Moment) -> list[pa.Table]:
        """For bounded input: add up silently, and give everything out at the end."""
        if new[0].num_rows:
            log.append(self._stamped(new, moment.now_us))
        if not moment.just_ended:
            return []
        stored = log.load(range(len(log.parts)))
        tables = (stored[0].select(self.groups.schemas[0].names), *stored[1:])
        if self.single and not tables[0].num_rows:
            return self._nothing_came(log.state)
        result = self._evaluate(tables)
        if not result.num_rows:
            return []
        return [self.layout.rows(with_op(result, INSERT) if self.layout.with_op else result)]
