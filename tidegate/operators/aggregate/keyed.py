"""GROUP BY that tells what changed: EMIT ON UPDATE, EMIT CHANGES, EMIT EVERY, or all at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidegate.columns import HASH, INSERT, PANE, ROWS
from tidegate.operators.aggregate.group_by import (
    AggregateState,
    GroupByOperator,
    GroupState,
    RowState,
    merge,
)
from tidegate.operators.aggregate.groups import GroupSpec, Layout, Panes
from tidegate.operators.aggregate.window import assign_windows
from tidegate.operators.kernels.arrays import Ints, Mask, concat, int_column
from tidegate.operators.kernels.keys import find_rows
from tidegate.operators.kernels.weighted_rows import diff_results
from tidegate.operators.late_rows import LateRows
from tidegate.operators.operator import (
    NO_LIMITS,
    EpochTime,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    with_op,
)
from tidegate.operators.store.sorted_runs import SortedRunStore, TimeToLive

# ---- EMIT EVERY: what changes waits, and comes out at most so often.
#
# What arrives in an epoch is appended to what waits, without reading it, so an epoch costs what it
# brings. Some of it comes out before its time: the last words of a group that is about to be
# forgotten, because its window has closed or its time to live is over.


class PendingGroups:
    """The changes of one key group that have not come out; `schemas` are those of a change.

    `closes`: changes belong to windows, and the pane says when theirs closes.
    """

    def __init__(
        self,
        state: KeyGroupState,
        every_us: int,
        schemas: Sequence[pa.Schema],
        combine: Callable[[Tables], Tables],
        closes: bool,
    ) -> None:
        self.state, self.every_us = state, every_us
        due = (lambda table: int_column(table, PANE)) if closes else None
        self.log = SortedRunStore(state, schemas, combine, due=due, name="waiting")

    def add(self, new: Tables) -> None:
        if any(table.num_rows for table in new):
            self.log.append(new)

    def of_keys(self, hashes: Ints) -> Tables:
        """What waits of these keys; it goes on waiting."""
        return self.log.load(hashes)

    def is_time(self, epoch_time: EpochTime) -> bool:
        last = self.state.meta.get("emitted_us")
        return last is None or epoch_time.now_us >= last + self.every_us or epoch_time.ended

    @property
    def due_us(self) -> int | None:
        """When what waits is to come out; None if nothing does."""
        last = self.state.meta.get("emitted_us")
        return last + self.every_us if last is not None and self.log.rows else None

    def emitted(self, now_us: int) -> None:
        """Note that something came out because it was time."""
        self.state.meta["emitted_us"] = now_us

    def take_all(self) -> Tables:
        """All that waits; nothing waits afterwards."""
        tables = self.log.load_all()
        self.log.clear()
        return tables

    def take_closed(self, limit_us: int) -> Tables:
        """What belongs to windows that end by then."""
        tables = self.log.load(self.log.due_hashes(limit_us))
        self.log.drop_due(limit_us)
        return tuple(
            table.filter(pa.array(int_column(table, PANE) <= limit_us)) for table in tables
        )

    def take_keys(self, hashes: Ints, chosen: Callable[[pa.Table], Mask]) -> Tables:
        """What is chosen, of these keys."""
        return self._take(hashes, chosen)

    def _take(self, hashes: Ints, chosen: Callable[[pa.Table], Mask]) -> Tables:
        tables = self.log.load(hashes)
        if not any(table.num_rows for table in tables):
            return tables
        masks = [chosen(table) for table in tables]
        pairs = list(zip(tables, masks, strict=True))
        self.log.replace(hashes, tuple(table.filter(pa.array(~mask)) for table, mask in pairs))
        return tuple(table.filter(pa.array(mask)) for table, mask in pairs)


@dataclass(frozen=True)
class KeyedAggregate(GroupByOperator):
    """Groups that are updated while they are open.

    `panes` is None without windows. `every_us` lets changes wait and come out at most that often;
    `at_end` emits everything once, when a bounded input has ended. A group without window is
    forgotten after `ttl_us` of processing time without a row.
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
    # Without keys: the row of no rows comes out first.
    emits_initial_row: bool = False

    @property
    def single(self) -> bool:
        """Without keys and windows there is always one group, even if it has no rows."""
        return not self.spec.keys and self.panes is None

    @cached_property
    def time_to_live(self) -> TimeToLive | None:
        """Windows go with the watermark, and without keys there is nothing to forget."""
        if self.ttl_us is None or self.panes is not None or self.single:
            return None
        keys = zip(self.groups.keys, self.spec.keys, strict=True)
        return TimeToLive(self.ttl_us, tuple(pa.field(*pair) for pair in keys))

    @cached_property
    def contents(self) -> GroupState:
        if self.spec.retracts and self.time_to_live is not None:
            return RowState(self.spec)
        return AggregateState(self.spec, self.single)

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        return super().shuffle_schemas if self.late_rows is not None else (self.contents.schemas,)

    def partials(self, rows: pa.Table) -> Tables:
        return self.contents.pre_aggregate(rows)

    def merged(self, tables: Tables) -> Tables:
        return self.contents.combine(tables)

    # Where the state is

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        output = StepOutput()
        log, waiting = self._log(state), self._waiting(state)
        new = self._on_time(state, inputs[0], epoch_time, output)
        output.main += self._forget(log, waiting, epoch_time)
        if self.emits_initial_row and state.first_key_group and not state.meta.get("spoken"):
            output.main += self._update(log, self._no_rows(), None)
        new = self._known(log, waiting, new)
        if self.at_end:
            output.main += self._collect(log, new, epoch_time)
        elif waiting is not None:
            output.main += self._wait(log, waiting, new, epoch_time)
        else:
            output.main += self._update(log, new, self._touches(new, epoch_time))
        if output.main:
            state.meta["spoken"] = 1
        elif self._ends_silently(state, epoch_time):
            output.main += self._nothing_came(state)
            state.meta["spoken"] = 1
        self._drop_closed(log, epoch_time)
        self._save(log, waiting)
        return output

    def _ends_silently(self, state: KeyGroupState, epoch_time: EpochTime) -> bool:
        return self.single and epoch_time.just_ended and not state.meta.get("spoken")

    def _log(self, state: KeyGroupState) -> SortedRunStore:
        live = self.time_to_live
        if live is not None:
            schemas = (live.schema, *self.contents.schemas)
            return SortedRunStore(state, schemas, self._combine, self._standing, live.due)
        due = None if self.panes is None else lambda main: int_column(main, PANE)
        return SortedRunStore(state, self.contents.schemas, self._combine, self._standing, due)

    def _waiting(self, state: KeyGroupState) -> PendingGroups | None:
        if self.every_us is None:
            return None
        schemas, closes = self.contents.schemas, self.panes is not None
        return PendingGroups(state, self.every_us, schemas, self.contents.combine, closes)

    def _save(self, log: SortedRunStore, waiting: PendingGroups | None) -> None:
        gauges = log.state.gauges
        self.limits.enforce(self.name, log, gauges)
        if waiting is not None:
            waiting.log.save()
            gauges["rows"] += waiting.log.rows
            log.state.wake_us = waiting.due_us
            gauges["bytes"] += waiting.log.bytes
            self.limits.check(self.name, gauges)

    def _on_time(
        self, state: KeyGroupState, parts: list[Tables], epoch_time: EpochTime, output: StepOutput
    ) -> Tables:
        """The partials by window; what is too late for all its windows is counted."""
        before = (
            None
            if epoch_time.previous_watermark_us is None
            else epoch_time.previous_watermark_us - self.lateness_us
        )
        if self.late_rows is not None and self.panes is not None:
            rows, late = self.late_rows.split([p[0] for p in parts], self.panes, before)
            state.count_late(late.num_rows)
            if late.num_rows:
                output.late.append(
                    self.late_rows.with_last_window(
                        late, self.panes, epoch_time.previous_watermark_us
                    )
                )
            new = self.groups.pre_aggregate(rows)
        else:
            new = merge(self.contents, parts)
            if self.panes is not None and before is not None and new[0].num_rows:
                late_mask = self.panes.last_end(int_column(new[0], PANE)) <= before
                state.count_late(int(self.groups.seen(new[0])[late_mask].sum()))
        if self.panes is None or not new[0].num_rows:
            return new
        ends = self.panes.ends(np.unique(int_column(new[0], PANE)))
        if before is not None:
            ends = ends[ends > before]
        return self.groups.combine(tuple(assign_windows(table, self.panes, ends) for table in new))

    def _combine(self, tables: Tables) -> Tables:
        """What lies in some runs: additions at the end, else amendments."""
        contents = self.contents
        return self._by_touch(tables, contents.combine if self.at_end else contents.newest)

    def _standing(self, tables: Tables) -> Tables:
        """What lies in all runs."""
        return self._by_touch(self._combine(tables), self.contents.present)

    def _by_touch(self, tables: Tables, made: Callable[[Tables], Tables]) -> Tables:
        if self.time_to_live is None:
            return made(tables)
        touches, *rest = tables
        return (self.time_to_live.keep_latest(touches), *made(tuple(rest)))

    # Forgetting

    def _forget(
        self, log: SortedRunStore, waiting: PendingGroups | None, epoch_time: EpochTime
    ) -> list[pa.Table]:
        """Drop groups whose time to live is over, after what they still had to say."""
        live = self.time_to_live
        if live is None:
            return []
        last_words = []
        if waiting is not None:
            over = live.expired(log, epoch_time.now_us)
            last = waiting.take_keys(int_column(over, HASH), lambda t: live.has_key(over, t))
            last_words = self._update(log, last, live.schema.empty_table())
        live.drop_expired(log, epoch_time.now_us)
        return last_words

    def _known(self, log: SortedRunStore, waiting: PendingGroups | None, new: Tables) -> Tables:
        """What came, without retractions of what is not there."""
        if not isinstance(self.contents, RowState):
            return new
        hashes = int_column(new[0], HASH)
        old = self._stored(log, hashes)
        if waiting is not None:
            old = concat([old, waiting.of_keys(hashes)])
        new, unknown = self.contents.known(old, new)
        log.state.count_unknown_retractions(unknown)
        return new

    def _touches(self, new: Tables, epoch_time: EpochTime) -> pa.Table | None:
        live = self.time_to_live
        return live.touch([new[0]], epoch_time.now_us) if live is not None else None

    def _drop_closed(self, log: SortedRunStore, epoch_time: EpochTime) -> None:
        """Windows that the watermark has passed have said all."""
        if self.panes is None or epoch_time.watermark_us is None:
            return
        log.drop_due(epoch_time.watermark_us - self.lateness_us)

    # What comes out

    def _wait(
        self, log: SortedRunStore, waiting: PendingGroups, new: Tables, epoch_time: EpochTime
    ) -> list[pa.Table]:
        """With EMIT EVERY changes wait, unless it is time or their window closes."""
        waiting.add(new)
        touches = self._touches(new, epoch_time)
        if touches is not None and touches.num_rows:
            log.append((touches, *(schema.empty_table() for schema in self.contents.schemas)))
        nothing = None if touches is None else touches.slice(0, 0)
        if waiting.is_time(epoch_time):
            changed = self._update(log, waiting.take_all(), nothing)
            if changed:
                waiting.emitted(epoch_time.now_us)
            return changed
        if self.panes is None or epoch_time.watermark_us is None:
            return []
        return self._update(
            log, waiting.take_closed(epoch_time.watermark_us - self.lateness_us), nothing
        )

    def _update(self, log: SortedRunStore, new: Tables, touches: pa.Table | None) -> list[pa.Table]:
        """The groups that came in, before and after."""
        if not any(table.num_rows for table in new):
            return []
        stored = self._stored(log, int_column(new[0], HASH))
        old = tuple(_of_groups(new[0], table, self.groups.by) for table in stored)
        was = self.contents.results(old)
        whole = self.contents.combine(concat([old, new]))
        now = self.contents.results(self.contents.present(whole))
        amended = self.contents.amendment(whole, new)
        log.append(amended if touches is None else (touches, *amended))
        result = diff_results(was, now, self.groups.by)
        return [self.layout.rows(result)] if result.num_rows else []

    def _stored(self, log: SortedRunStore, hashes: Ints) -> Tables:
        """What is kept of the groups with these hashes."""
        tables = log.load(hashes)
        return tables if self.time_to_live is None else tables[1:]

    def _nothing_came(self, state: KeyGroupState) -> list[pa.Table]:
        """An aggregate without keys over no rows is one row all the same."""
        if not state.first_key_group:
            return []
        result = self.groups.evaluate(self._no_rows())
        return [self.layout.rows(with_op(result, INSERT) if self.layout.with_op else result)]

    def _no_rows(self) -> Tables:
        main = self.groups.schemas[0]
        zero = {PANE: 0, HASH: 0, ROWS: 0}
        one = pa.table([pa.array([zero.get(f.name)], f.type) for f in main], schema=main)
        return (one, *(schema.empty_table() for schema in self.groups.schemas[1:]))

    def _collect(self, log: SortedRunStore, new: Tables, epoch_time: EpochTime) -> list[pa.Table]:
        """For bounded input: add up silently, and emit everything at the end."""
        if new[0].num_rows:
            touches = self._touches(new, epoch_time)
            log.append(new if touches is None else (touches, *new))
        if not epoch_time.just_ended:
            return []
        tables = log.load_all()
        result = self.contents.results(tables if self.time_to_live is None else tables[1:])
        if not result.num_rows:
            return []
        return [self.layout.rows(with_op(result, INSERT) if self.layout.with_op else result)]


def _of_groups(groups: pa.Table, rows: pa.Table, by: list[str]) -> pa.Table:
    """The rows of these groups."""
    return rows.filter(pa.array(find_rows(groups, rows, by) >= 0)) if rows.num_rows else rows
