"""Aggregation that updates its results: EMIT ON UPDATE, CHANGES or EVERY, or once at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidegate.columns import HASH, INSERT, PANE, ROWS
from tidegate.operators.aggregate.group_by import (
    AccumulatorStateFormat,
    GroupByOperator,
    GroupStateFormat,
    RowStateFormat,
    combine_changes,
)
from tidegate.operators.aggregate.groups import GroupSpec, OutputLayout, WindowPanes
from tidegate.operators.aggregate.window import assign_windows
from tidegate.operators.kernels.arrays import Ints, Mask, concat, int_column
from tidegate.operators.kernels.keys import find_rows
from tidegate.operators.kernels.weighted_rows import diff_results
from tidegate.operators.late_rows import LateRowFormat
from tidegate.operators.operator import (
    NO_LIMITS,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    TimeProgress,
    with_op,
)
from tidegate.operators.store.sorted_runs import SortedRunStore, TimeToLive

# ---- EMIT EVERY: changes are pending until the next emission
#
# The changes of an epoch are appended without reading the pending ones, so an epoch costs its
# input. Changes of a group that is deleted, because its window closes or its time to live ends, are
# emitted immediately.


class PendingChanges:
    """The changes of one key group that have not been emitted.

    `schemas` are those of a change. With `closes`, changes belong to windows that end at their
    pane.
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
        self.store = SortedRunStore(state, schemas, combine, due=due, name="pending")

    def add(self, change: Tables) -> None:
        """Append a change."""
        if any(table.num_rows for table in change):
            self.store.append(change)

    def load(self, hashes: Ints) -> Tables:
        """Return the changes of these keys without removing them."""
        return self.store.load(hashes)

    def is_due(self, progress: TimeProgress) -> bool:
        """Return whether the changes are to be emitted in this epoch."""
        last_us = self.state.meta.get("emitted_us")
        return last_us is None or progress.now_us >= last_us + self.every_us or progress.ended

    @property
    def timer_us(self) -> int | None:
        """The processing time at which the changes are emitted; None if there are none."""
        last_us = self.state.meta.get("emitted_us")
        return last_us + self.every_us if last_us is not None and self.store.rows else None

    def set_emitted(self, now_us: int) -> None:
        """Record the time of an emission."""
        self.state.meta["emitted_us"] = now_us

    def pop_all(self) -> Tables:
        """Remove and return all changes."""
        tables = self.store.load_all()
        self.store.clear()
        return tables

    def pop_closed(self, limit_us: int) -> Tables:
        """Remove and return the changes of windows that end at or before `limit_us`."""
        tables = self.store.load(self.store.due_hashes(limit_us))
        self.store.drop_due(limit_us)
        masks = [int_column(table, PANE) <= limit_us for table in tables]
        return _filter(tables, masks)

    def pop_keys(self, hashes: Ints, select: Callable[[pa.Table], Mask]) -> Tables:
        """Remove and return the changes with these hashes that `select` returns true for."""
        tables = self.store.load(hashes)
        if not any(table.num_rows for table in tables):
            return tables
        masks = [select(table) for table in tables]
        self.store.replace(hashes, _filter(tables, [~mask for mask in masks]))
        return _filter(tables, masks)


def _filter(tables: Tables, masks: Sequence[Mask]) -> Tables:
    return tuple(table.filter(pa.array(mask)) for table, mask in zip(tables, masks, strict=True))


# ---- The operator


@dataclass(frozen=True)
class UpdatingAggregate(GroupByOperator):
    """GROUP BY whose results are updated while groups are open.

    `panes` is None without windows. With `every_us`, changes are emitted at most that often; with
    `at_end`, everything is emitted once, when a bounded input has ended. Groups without a window
    expire after `ttl_us` of processing time without a row.
    """

    spec: GroupSpec
    layout: OutputLayout
    panes: WindowPanes | None = None
    lateness_us: int = 0
    every_us: int | None = None
    at_end: bool = False
    ttl_us: int | None = None
    late_rows: LateRowFormat | None = None
    limits: Limits = NO_LIMITS
    name: str = "group_aggregate"
    # Without keys: emit the result over no rows in the first epoch.
    emits_initial_row: bool = False

    @property
    def single(self) -> bool:
        """Whether there is always exactly one group: without keys and windows."""
        return not self.spec.keys and self.panes is None

    @cached_property
    def time_to_live(self) -> TimeToLive | None:
        """The time to live of groups; windows are deleted by the watermark instead."""
        if self.ttl_us is None or self.panes is not None or self.single:
            return None
        keys = zip(self.aggregator.keys, self.spec.keys, strict=True)
        return TimeToLive(self.ttl_us, tuple(pa.field(*pair) for pair in keys))

    @cached_property
    def group_format(self) -> GroupStateFormat:
        if self.spec.retracts and self.time_to_live is not None:
            return RowStateFormat(self.spec)
        return AccumulatorStateFormat(self.spec, self.single)

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        if self.late_rows is not None:
            return super().shuffle_schemas
        return (self.group_format.schemas,)

    def to_partials(self, rows: pa.Table) -> Tables:
        return self.group_format.pre_aggregate(rows)

    def combine_partials(self, tables: Tables) -> Tables:
        return self.group_format.combine(tables)

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        output = StepOutput()
        store, pending = self._open_store(state), self._open_pending(state)
        change = self._drop_late_rows(state, inputs[0], progress, output)
        output.rows += self._expire_groups(store, pending, progress)
        if (
            self.emits_initial_row
            and state.is_first_key_group
            and not state.meta.get("has_emitted")
        ):
            output.rows += self._update(store, self._empty_group(), None)
        change = self._drop_unknown_retractions(store, pending, change)
        if self.at_end:
            output.rows += self._collect(store, change, progress)
        elif pending is not None:
            output.rows += self._update_pending(store, pending, change, progress)
        else:
            output.rows += self._update(store, change, self._touch(change, progress))
        if output.rows:
            state.meta["has_emitted"] = 1
        elif self.single and progress.just_ended and not state.meta.get("has_emitted"):
            output.rows += self._evaluate_empty_group(state)
            state.meta["has_emitted"] = 1
        if self.panes is not None and progress.watermark_us is not None:
            store.drop_due(progress.watermark_us - self.lateness_us)
        self._save(store, pending)
        return output

    def _open_store(self, state: KeyGroupState) -> SortedRunStore:
        ttl, schemas = self.time_to_live, self.group_format.schemas
        if ttl is not None:
            schemas = (ttl.schema, *schemas)
            return SortedRunStore(state, schemas, self._combine, self._combine_all, ttl.due)
        due = None if self.panes is None else lambda main: int_column(main, PANE)
        return SortedRunStore(state, schemas, self._combine, self._combine_all, due)

    def _open_pending(self, state: KeyGroupState) -> PendingChanges | None:
        if self.every_us is None:
            return None
        closes, group_format = self.panes is not None, self.group_format
        return PendingChanges(
            state, self.every_us, group_format.schemas, group_format.combine, closes
        )

    def _save(self, store: SortedRunStore, pending: PendingChanges | None) -> None:
        metrics = store.state.metrics
        self.limits.enforce(self.name, store, metrics)
        if pending is not None:
            pending.store.save()
            metrics["rows"] += pending.store.rows
            store.state.timer_us = pending.timer_us
            metrics["bytes"] += pending.store.bytes
            self.limits.check(self.name, metrics)

    def _combine(self, tables: Tables) -> Tables:
        """Merge the changes (with `at_end`) or updates of each group in some runs."""
        group_format = self.group_format
        merge = group_format.combine if self.at_end else group_format.combine_updates
        return self._with_touches(tables, merge)

    def _combine_all(self, tables: Tables) -> Tables:
        """Merge the changes or updates of each group in all runs."""
        return self._with_touches(self._combine(tables), self.group_format.drop_deleted)

    def _with_touches(self, tables: Tables, merge: Callable[[Tables], Tables]) -> Tables:
        """Merge tables, the first of which has the touches of groups if they expire."""
        if self.time_to_live is None:
            return merge(tables)
        touches, *rest = tables
        return (self.time_to_live.keep_latest(touches), *merge(tuple(rest)))

    # ---- Input

    def _drop_late_rows(
        self, state: KeyGroupState, parts: list[Tables], progress: TimeProgress, output: StepOutput
    ) -> Tables:
        """Return the change of each window, without rows whose windows are all closed.

        Late rows are counted and, if the stream declares LATE DATA TO, emitted to it.
        """
        previous_us = progress.previous_watermark_us
        limit_us = None if previous_us is None else previous_us - self.lateness_us
        if self.late_rows is not None and self.panes is not None:
            rows, late = self.late_rows.split([p[0] for p in parts], self.panes, limit_us)
            state.count_late(late.num_rows)
            if late.num_rows:
                output.late.append(self.late_rows.with_last_window(late, self.panes, previous_us))
            change = self.aggregator.pre_aggregate(rows)
        else:
            change = combine_changes(self.group_format, parts)
            if self.panes is not None and limit_us is not None and change[0].num_rows:
                is_late = self.panes.last_end(int_column(change[0], PANE)) <= limit_us
                state.count_late(int(self.aggregator.input_rows(change[0])[is_late].sum()))
        if self.panes is None or not change[0].num_rows:
            return change
        ends = self.panes.ends(np.unique(int_column(change[0], PANE)))
        if limit_us is not None:
            ends = ends[ends > limit_us]
        windows = tuple(assign_windows(table, self.panes, ends) for table in change)
        return self.aggregator.combine(windows)

    def _drop_unknown_retractions(
        self, store: SortedRunStore, pending: PendingChanges | None, change: Tables
    ) -> Tables:
        """Remove retractions of rows that do not exist, for example because they have expired."""
        if not isinstance(self.group_format, RowStateFormat):
            return change
        hashes = int_column(change[0], HASH)
        old = self._load(store, hashes)
        if pending is not None:
            old = concat([old, pending.load(hashes)])
        change, unknown = self.group_format.drop_unknown_retractions(old, change)
        store.state.count_unknown_retractions(unknown)
        return change

    def _touch(self, change: Tables, progress: TimeProgress) -> pa.Table | None:
        ttl = self.time_to_live
        return ttl.touch([change[0]], progress.now_us) if ttl is not None else None

    def _expire_groups(
        self, store: SortedRunStore, pending: PendingChanges | None, progress: TimeProgress
    ) -> list[pa.Table]:
        """Delete groups whose time to live has ended; return their pending changes."""
        ttl = self.time_to_live
        if ttl is None:
            return []
        results = []
        if pending is not None:
            expired = ttl.expired(store, progress.now_us)
            change = pending.pop_keys(
                int_column(expired, HASH), lambda table: ttl.has_key(expired, table)
            )
            results = self._update(store, change, ttl.schema.empty_table())
        ttl.drop_expired(store, progress.now_us)
        return results

    # ---- Output

    def _update_pending(
        self, store: SortedRunStore, pending: PendingChanges, change: Tables, progress: TimeProgress
    ) -> list[pa.Table]:
        """Add a change to the pending ones; return results that are due or whose window closes."""
        pending.add(change)
        touches = self._touch(change, progress)
        if touches is not None and touches.num_rows:
            store.append((touches, *(schema.empty_table() for schema in self.group_format.schemas)))
        no_touches = None if touches is None else touches.slice(0, 0)
        if pending.is_due(progress):
            results = self._update(store, pending.pop_all(), no_touches)
            if results:
                pending.set_emitted(progress.now_us)
            return results
        if self.panes is None or progress.watermark_us is None:
            return []
        limit_us = progress.watermark_us - self.lateness_us
        return self._update(store, pending.pop_closed(limit_us), no_touches)

    def _update(
        self, store: SortedRunStore, change: Tables, touches: pa.Table | None
    ) -> list[pa.Table]:
        """Apply a change to its groups and return how their results have changed."""
        if not any(table.num_rows for table in change):
            return []
        by = self.aggregator.by
        stored = self._load(store, int_column(change[0], HASH))
        old = tuple(_rows_of_groups(change[0], table, by) for table in stored)
        before = self.group_format.evaluate(old)
        state = self.group_format.combine(concat([old, change]))
        after = self.group_format.evaluate(self.group_format.drop_deleted(state))
        update = self.group_format.to_update(state, change)
        store.append(update if touches is None else (touches, *update))
        results = diff_results(before, after, by)
        return [self.layout.to_output(results)] if results.num_rows else []

    def _load(self, store: SortedRunStore, hashes: Ints) -> Tables:
        """Return the stored state of the groups with these hashes."""
        tables = store.load(hashes)
        return tables if self.time_to_live is None else tables[1:]

    def _evaluate_empty_group(self, state: KeyGroupState) -> list[pa.Table]:
        """Return the result over no rows: an aggregate without keys always has one row."""
        if not state.is_first_key_group:
            return []
        return [self._insert(self.aggregator.evaluate(self._empty_group()))]

    def _empty_group(self) -> Tables:
        """Return the single group of an aggregate without keys, with no rows in it."""
        main = self.aggregator.schemas[0]
        zeros = {PANE: 0, HASH: 0, ROWS: 0}
        group = pa.table([pa.array([zeros.get(f.name)], f.type) for f in main], schema=main)
        return (group, *(schema.empty_table() for schema in self.aggregator.schemas[1:]))

    def _collect(
        self, store: SortedRunStore, change: Tables, progress: TimeProgress
    ) -> list[pa.Table]:
        """Store a change; return all results when the input has ended."""
        if change[0].num_rows:
            touches = self._touch(change, progress)
            store.append(change if touches is None else (touches, *change))
        if not progress.just_ended:
            return []
        tables = store.load_all()
        results = self.group_format.evaluate(tables if self.time_to_live is None else tables[1:])
        return [self._insert(results)] if results.num_rows else []

    def _insert(self, results: pa.Table) -> pa.Table:
        return self.layout.to_output(with_op(results, INSERT) if self.layout.with_op else results)


def _rows_of_groups(groups: pa.Table, rows: pa.Table, by: list[str]) -> pa.Table:
    """Return the rows of these groups."""
    return rows.filter(pa.array(find_rows(groups, rows, by) >= 0)) if rows.num_rows else rows
