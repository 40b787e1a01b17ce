"""GROUP BY a window, each window once: when the watermark has passed its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import INSERT, PANE, ROWS
from tidegate.operators.aggregate.group_by import GroupByOperator
from tidegate.operators.aggregate.groups import GroupSpec, Layout, Panes
from tidegate.operators.kernels.arrays import Ints, concat, filter_panes, int_column
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
from tidegate.operators.store.time_buckets import FORMAT, TimeBucketStore, panes_between

# So many panes are remembered to count the open windows.
_MOST_COUNTED = 256
_PANE_FIELD = pa.field(PANE, pa.int64())


@dataclass(frozen=True)
class WindowAggregate(GroupByOperator):
    """Tumbling, hopping and cumulating windows, and groups that the watermark closes.

    Rows become partials where they are read; partials are appended to the panes of their windows;
    a window is put together from its panes when it closes. Late rows within `lateness_us` make the
    windows that they change fire again.
    """

    stored_in: ClassVar[str] = FORMAT
    spec: GroupSpec
    panes: Panes
    layout: Layout
    lateness_us: int = 0
    late_rows: LateRows | None = None
    limits: Limits = NO_LIMITS
    name: str = "window_aggregate"

    # Where the state is

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        log = TimeBucketStore(state, self.groups.schemas, self.groups.combine)
        output = StepOutput()
        new = self._on_time(state, inputs[0], epoch_time, output)
        if self.lateness_us and epoch_time.previous_watermark_us is not None and new[0].num_rows:
            output.main += self._fire_again(log, new, epoch_time.previous_watermark_us)
        after = epoch_time.watermark_us
        if after is not None:
            if after != epoch_time.previous_watermark_us:
                output.main += self._fire(log, new, epoch_time.previous_watermark_us, after)
            floor = self.panes.floor_after(after - self.lateness_us)
            log.drop_before(floor)
            if new[0].num_rows:
                new = filter_panes(new, lambda pane: pane >= floor)
        if new[0].num_rows:
            log.append(new)
        self.limits.enforce(self.name, log, state.gauges)
        state.gauges["open_windows"] = self._open_windows(state, new, after, log.floor_us)
        return output

    def _open_windows(
        self, state: KeyGroupState, new: Tables, after: int | None, floor: int | None
    ) -> int:
        """Windows that have rows and are kept; of very many panes the first ones count."""
        known = {pane for pane in state.meta.get("panes", []) if floor is None or pane >= floor}
        if new[0].num_rows:
            known.update(distinct_panes(new[0]).tolist())
        panes = state.meta["panes"] = sorted(known)[:_MOST_COUNTED]
        if not panes or not self.panes.shared:
            return len(panes)
        ends = self.panes.ends(np.array(panes, np.int64))
        return len(ends) if after is None else int((ends > after - self.lateness_us).sum())

    def _on_time(
        self, state: KeyGroupState, parts: list[Tables], epoch_time: EpochTime, output: StepOutput
    ) -> Tables:
        """What is not too late for all of its windows; the rest is counted, and kept if asked."""
        before = epoch_time.previous_watermark_us
        limit = None if before is None else before - self.lateness_us
        if self.late_rows is not None:
            rows, late = self.late_rows.split([part[0] for part in parts], self.panes, limit)
            state.count_late(late.num_rows)
            if late.num_rows:
                output.late.append(self.late_rows.with_last_window(late, self.panes, before))
            return self.groups.pre_aggregate(rows)
        new = self.groups.merge(parts)
        if limit is None or not new[0].num_rows:
            return new
        main = new[0]
        too_late = self.panes.last_end(main.column(PANE).to_numpy()) <= limit
        if too_late.any():
            state.count_late(int(self.groups.seen(main)[too_late].sum()))
            new = filter_panes(new, lambda pane: self.panes.last_end(pane) > limit)
        return new

    def _fire(
        self, log: TimeBucketStore, new: Tables, before: int | None, after: int
    ) -> list[pa.Table]:
        """The windows with before < end ≤ after, put together and evaluated."""
        span = self.panes.closing(before, after)
        if span is None:
            return []
        parts = log.load(*span)
        if new[0].num_rows:
            parts.append(filter_panes(new, panes_between(*span)))
        tables = concat(parts) if len(parts) > 1 else parts[0] if parts else self.groups.empty()
        if not self.panes.shared:
            # These panes are all of the windows that close, so none of their rows stays behind.
            results = self._results(tables, combined=len(parts) == 1)
        else:
            ends = self.panes.ends(distinct_panes(tables[0]))
            ends = ends[_passed(ends, before, after)]
            results = self._results(
                tuple(assign_windows(table, self.panes, ends) for table in tables)
            )
        if results is None:
            return []
        if not self.panes.shared:
            results = with_pane(results, self.panes.last_end(int_column(results, PANE)))
        if self.layout.with_op:
            results = with_op(results, INSERT)
        return [self.layout.rows(results)]

    def _fire_again(self, log: TimeBucketStore, new: Tables, before: int) -> list[pa.Table]:
        """The windows that had fired, are still kept, and are changed by late rows."""
        ends = self.panes.ends(distinct_panes(new[0]))
        ends = ends[(ends <= before) & (ends > before - self.lateness_us)]
        if not len(ends):
            return []
        first = self.panes.first_pane(int(ends.min()))
        parts = log.load(first, int(ends.max()) + (1 if self.panes.kind == "DUE" else 0))
        old = concat(parts) if parts else self.groups.empty()
        was = self._results(tuple(assign_windows(table, self.panes, ends) for table in old))
        both = concat([old, new])
        now = self._results(tuple(assign_windows(table, self.panes, ends) for table in both))
        nothing = self.groups.evaluate(self.groups.empty())
        result = diff_results(was or nothing, now or nothing, self.groups.by)
        return [self.layout.rows(result)] if result.num_rows else []

    def _results(self, windows: Tables, combined: bool = False) -> pa.Table | None:
        """The evaluated groups of windows."""
        if not windows[0].num_rows:
            return None
        found = windows if combined else self.groups.combine(windows)
        if self.spec.retracts:
            alive = pc.greater(found[0].column(ROWS), 0)
            found = (found[0].filter(alive), *found[1:])
        return self.groups.evaluate(found) if found[0].num_rows else None


def _passed(ends: Ints, before: int | None, after: int) -> npt.NDArray[np.bool_]:
    """Which ends a watermark has passed that was `before` and is `after`."""
    return ends <= after if before is None else (ends <= after) & (ends > before)


def distinct_panes(table: pa.Table) -> Ints:
    """The panes of a table, each once."""
    return np.asarray(pc.unique(table.column(PANE)).to_numpy(), np.int64)


def assign_windows(table: pa.Table, panes: Panes, ends: Ints) -> pa.Table:
    """Every row once per window with one of these ends; the end takes the place of the pane."""
    found = table.column(PANE).to_numpy()
    if not panes.shared:
        last = panes.last_end(found)
        inside = np.isin(last, ends)
        return with_pane(table.filter(pa.array(inside)), last[inside])
    order = np.argsort(found, kind="stable")
    ordered = found[order]
    lows = np.searchsorted(ordered, panes.start(ends))
    highs = np.searchsorted(ordered, ends)
    pieces = [order[low:high] for low, high in zip(lows, highs, strict=True)]
    rows = np.concatenate(pieces) if pieces else np.array([], np.int64)
    return with_pane(table.take(pa.array(rows)), np.repeat(ends, highs - lows))


def with_pane(table: pa.Table, panes: Ints) -> pa.Table:
    """The table, which begins with its panes, with others."""
    return table.set_column(0, _PANE_FIELD, pa.array(panes, pa.int64()))
