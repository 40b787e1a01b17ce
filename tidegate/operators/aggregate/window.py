"""Window aggregation that emits each window once, when the watermark passes its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import INSERT, PANE, ROWS
from tidegate.operators.aggregate.group_by import GroupByOperator
from tidegate.operators.aggregate.groups import GroupSpec, OutputLayout, WindowPanes
from tidegate.operators.kernels.arrays import (
    Ints,
    Mask,
    concat,
    filter_by_time,
    int_column,
    with_int_column,
)
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
from tidegate.operators.store.time_buckets import FORMAT, TimeBucketStore, times_between

# Counting open windows keeps at most this many panes in the state's metadata.
MAX_COUNTED_PANES = 256


@dataclass(frozen=True)
class WindowAggregate(GroupByOperator):
    """GROUP BY over tumbling, hopping and cumulating windows, and groups that the watermark closes.

    Rows are pre-aggregated before the shuffle. Partial aggregates are appended to the pane they
    belong to; closing a window combines its panes. Closed windows are kept for `lateness_us`: late
    rows that arrive in this time update them.
    """

    store_format: ClassVar[str] = FORMAT
    spec: GroupSpec
    panes: WindowPanes
    layout: OutputLayout
    lateness_us: int = 0
    late_rows: LateRowFormat | None = None
    limits: Limits = NO_LIMITS
    name: str = "window_aggregate"

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        store = TimeBucketStore(state, self.aggregator.schemas, self.aggregator.combine)
        output = StepOutput()
        previous_us, watermark_us = progress.previous_watermark_us, progress.watermark_us
        new = self._drop_late_rows(state, inputs[0], progress, output)
        if self.lateness_us and previous_us is not None and new[0].num_rows:
            output.rows += self._update_closed_windows(store, new, previous_us)
        if watermark_us is not None:
            if watermark_us != previous_us:
                output.rows += self._close_windows(store, new, previous_us, watermark_us)
            floor = self.panes.first_open_pane(watermark_us - self.lateness_us)
            store.drop_before(floor)
            if new[0].num_rows:
                new = filter_by_time(new, lambda pane: pane >= floor)
        if new[0].num_rows:
            store.append(new)
        self.limits.enforce(self.name, store, state.metrics)
        state.metrics["open_windows"] = self._count_open_windows(
            state, new, watermark_us, store.floor_us
        )
        return output

    def _count_open_windows(
        self, state: KeyGroupState, new: Tables, watermark_us: int | None, floor: int | None
    ) -> int:
        """Count the windows that have rows; if there are very many panes, the earliest ones."""
        stored_panes = state.meta.get("panes", [])
        open_panes = {pane for pane in stored_panes if floor is None or pane >= floor}
        if new[0].num_rows:
            open_panes.update(distinct_panes(new[0]).tolist())
        panes = state.meta["panes"] = sorted(open_panes)[:MAX_COUNTED_PANES]
        if not panes or not self.panes.shared:
            return len(panes)
        ends = self.panes.ends(np.array(panes, np.int64))
        if watermark_us is None:
            return len(ends)
        return int((ends > watermark_us - self.lateness_us).sum())

    def _drop_late_rows(
        self, state: KeyGroupState, parts: list[Tables], progress: TimeProgress, output: StepOutput
    ) -> Tables:
        """Return the partial aggregates without rows whose windows are all closed.

        Late rows are counted and, if the stream declares LATE DATA TO, emitted to it.
        """
        previous_us = progress.previous_watermark_us
        limit_us = None if previous_us is None else previous_us - self.lateness_us
        if self.late_rows is not None:
            rows, late = self.late_rows.split([part[0] for part in parts], self.panes, limit_us)
            state.count_late(late.num_rows)
            if late.num_rows:
                output.late.append(self.late_rows.with_last_window(late, self.panes, previous_us))
            return self.aggregator.pre_aggregate(rows)
        new = self.aggregator.combine_parts(parts)
        if limit_us is None or not new[0].num_rows:
            return new
        main = new[0]
        is_late = self.panes.last_end(main.column(PANE).to_numpy()) <= limit_us
        if is_late.any():
            state.count_late(int(self.aggregator.input_rows(main)[is_late].sum()))
            new = filter_by_time(new, lambda pane: self.panes.last_end(pane) > limit_us)
        return new

    def _close_windows(
        self, store: TimeBucketStore, new: Tables, previous_us: int | None, watermark_us: int
    ) -> list[pa.Table]:
        """Return the results of the windows that the watermark has passed in this epoch."""
        closing = self.panes.closing_panes(previous_us, watermark_us)
        if closing is None:
            return []
        parts = store.load(*closing)
        if new[0].num_rows:
            parts.append(filter_by_time(new, times_between(*closing)))
        if len(parts) > 1:
            tables = concat(parts)
        else:
            tables = parts[0] if parts else self.aggregator.empty()
        if not self.panes.shared:
            # Every pane is a window, and all of these panes close.
            results = self._evaluate(tables, combined=len(parts) == 1)
        else:
            ends = self.panes.ends(distinct_panes(tables[0]))
            ends = ends[_is_closing(ends, previous_us, watermark_us)]
            windows = tuple(assign_windows(table, self.panes, ends) for table in tables)
            results = self._evaluate(windows)
        if results is None:
            return []
        if not self.panes.shared:
            results = with_int_column(results, PANE, self.panes.last_end(int_column(results, PANE)))
        if self.layout.with_op:
            results = with_op(results, INSERT)
        return [self.layout.to_output(results)]

    def _update_closed_windows(
        self, store: TimeBucketStore, new: Tables, previous_us: int
    ) -> list[pa.Table]:
        """Return the changes of windows that have been emitted, and that late rows update."""
        ends = self.panes.ends(distinct_panes(new[0]))
        ends = ends[(ends <= previous_us) & (ends > previous_us - self.lateness_us)]
        if not len(ends):
            return []
        first = self.panes.first_pane(int(ends.min()))
        limit = int(ends.max()) + (1 if self.panes.kind == "CLOSING_TIME" else 0)
        parts = store.load(first, limit)
        old = concat(parts) if parts else self.aggregator.empty()
        both = concat([old, new])
        before = self._evaluate(tuple(assign_windows(table, self.panes, ends) for table in old))
        after = self._evaluate(tuple(assign_windows(table, self.panes, ends) for table in both))
        no_results = self.aggregator.evaluate(self.aggregator.empty())
        changes = diff_results(before or no_results, after or no_results, self.aggregator.by)
        return [self.layout.to_output(changes)] if changes.num_rows else []

    def _evaluate(self, windows: Tables, combined: bool = False) -> pa.Table | None:
        """Return the results of windows; None if there are none."""
        if not windows[0].num_rows:
            return None
        groups = windows if combined else self.aggregator.combine(windows)
        if self.spec.retracts:
            not_empty = pc.greater(groups[0].column(ROWS), 0)
            groups = (groups[0].filter(not_empty), *groups[1:])
        return self.aggregator.evaluate(groups) if groups[0].num_rows else None


def _is_closing(ends: Ints, previous_us: int | None, watermark_us: int) -> Mask:
    """Return which ends the watermark has passed in this epoch."""
    is_closed = ends <= watermark_us
    return is_closed if previous_us is None else is_closed & (ends > previous_us)


def distinct_panes(table: pa.Table) -> Ints:
    """Return the distinct panes of a table."""
    return np.asarray(pc.unique(table.column(PANE)).to_numpy(), np.int64)


def assign_windows(table: pa.Table, panes: WindowPanes, ends: Ints) -> pa.Table:
    """Copy every row into each of its windows with one of these ends; the end replaces the pane."""
    row_panes = table.column(PANE).to_numpy()
    if not panes.shared:
        last = panes.last_end(row_panes)
        in_window = np.isin(last, ends)
        return with_int_column(table.filter(pa.array(in_window)), PANE, last[in_window])
    order = np.argsort(row_panes, kind="stable")
    ordered = row_panes[order]
    lows = np.searchsorted(ordered, panes.start(ends))
    highs = np.searchsorted(ordered, ends)
    pieces = [order[low:high] for low, high in zip(lows, highs, strict=True)]
    rows = np.concatenate(pieces) if pieces else np.array([], np.int64)
    return with_int_column(table.take(pa.array(rows)), PANE, np.repeat(ends, highs - lows))
