"""The right side of a join by nearness, as far as rows of the left can still see it.

Rows that are told apart by time lie in a log by time. Of what the watermark has passed, a join that
looks back keeps one row per key: the one that later rows of the left see.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.arrival import SEQ
from tidegate.operators.contract import OperatorState, Tables
from tidegate.operators.group_kernels import HASH, PANE
from tidegate.operators.keys import group_ids
from tidegate.operators.matching import ints
from tidegate.operators.nearest import BACKWARD, FORWARD, Nearest
from tidegate.operators.runs import RunLog
from tidegate.operators.segments import SegmentLog

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Reach:
    """How far rows of the left look, in microseconds: what it means for what is kept."""

    nearest: Nearest

    def floor_us(self, mark_us: int) -> int:
        """The earliest time of the right that still counts by itself at this watermark."""
        nearest = self.nearest
        bound = {BACKWARD: nearest.lower, FORWARD: nearest.upper}.get(nearest.direction)
        return mark_us - max(0, int(bound or 0))

    @property
    def keeps_last(self) -> bool:
        """Whether a row of the left may look back behind the watermark."""
        return self.nearest.direction != FORWARD

    def unseen_us(self, times: Ints) -> Ints:
        """The watermark from which on no row of the left reaches back to these times."""
        assert self.nearest.upper is not None, "it does not look back for ever"
        waits = min(0, int(self.nearest.lower or 0)) if self.nearest.direction == BACKWARD else 0
        return times + int(self.nearest.upper) - waits + 1


class RightRows:
    """The rows of one key group; `schema` has PANE (their time), HASH, the keys and SEQ."""

    def __init__(
        self, state: OperatorState, schema: pa.Schema, keys: list[str], nearest: Nearest
    ) -> None:
        self.schema = schema
        self.by = [HASH, *keys]
        self.reach = Reach(nearest)
        self.first = nearest.first
        self.log = SegmentLog(state, (schema,), None, "right")
        forgets = nearest.upper is not None
        due = (lambda rows: self.reach.unseen_us(ints(rows, PANE))) if forgets else None
        self.last = RunLog(state, (schema,), self._standing, due=due, name="last")

    def add(self, rows: pa.Table, before_us: int | None) -> tuple[pa.Table, pa.Table]:
        """Keep rows that can still be seen; returns those behind the floor, and which of them
        were of no use."""
        behind = rows.slice(0, 0)
        if before_us is not None and rows.num_rows:
            is_behind = ints(rows, PANE) < self.reach.floor_us(before_us)
            behind, rows = rows.filter(pa.array(is_behind)), rows.filter(pa.array(~is_behind))
        if rows.num_rows:
            self.log.append((rows,))
        if not behind.num_rows or before_us is None or not self.reach.keeps_last:
            return behind, behind
        known = self.last.load(ints(behind, HASH))[0]
        (standing,) = self._standing((pa.concat_tables([known, behind]),))
        used = np.isin(ints(behind, SEQ), ints(standing, SEQ))
        if self.last.due is not None:
            used &= self.reach.unseen_us(ints(behind, PANE)) > before_us
        if used.any():
            self.last.append((behind.filter(pa.array(used)),))
        return behind, behind.filter(pa.array(~used))

    def final(self, after_us: int) -> pa.Table:
        """The rows that the watermark has passed and that count by themselves, as they came."""
        found = [tables[0] for tables in self.log.load(None, after_us)]
        return _as_they_came(pa.concat_tables([self.schema.empty_table(), *found]))

    def with_last(self, final: pa.Table, hashes: Ints) -> pa.Table:
        """Those rows, and what is kept of these keys from before."""
        if not len(hashes):
            return final
        return _as_they_came(pa.concat_tables([self.last.load(hashes)[0], final]))

    def forget(self, final: pa.Table, after_us: int) -> None:
        """What nobody sees any more is gone; of the rest the last row of each key."""
        floor = self.reach.floor_us(after_us)
        if self.reach.keeps_last:
            passed = final.filter(pa.array(ints(final, PANE) < floor))
            if passed.num_rows:
                self.last.append(self._standing((passed,)))
            if self.last.due is not None:
                self.last.drop_due(after_us)
        self.log.drop_before(floor)

    def save(self) -> None:
        self.log.save()
        self.last.save()

    def _standing(self, tables: Tables) -> Tables:
        """Of each key the row with the latest time, and of those the last that came."""
        (rows,) = tables
        if rows.num_rows <= 1:
            return tables
        ids, count = group_ids(rows, self.by)
        order = np.lexsort((ints(rows, SEQ), ints(rows, PANE), ids))
        if self.first:
            order = order[::-1]
        stands = np.zeros(count, np.int64)
        stands[ids[order]] = order
        return (rows.take(pa.array(np.sort(stands))),)


def _as_they_came(rows: pa.Table) -> pa.Table:
    numbers = ints(rows, SEQ)
    if np.all(numbers[1:] > numbers[:-1]):
        return rows
    return rows.take(pa.array(np.argsort(numbers, kind="stable")))
