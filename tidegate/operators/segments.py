"""State as a log: what comes in is appended, what is due is read, and nothing else is touched.

Rows lie in segments, segments in buckets of neighbouring panes. An epoch appends one segment to
each bucket it touches, without reading. A bucket is rewritten when what was appended outgrows what
it began with, so the cost of an epoch follows its input and not the state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tidegate.operators.contract import OperatorState, Tables
from tidegate.operators.groups import PANE, concat, filter_all

_NAME = "segment"
_MOST_BUCKETS = 128
_MOST_SEGMENTS = 16
_Bucket = list[int]  # base rows, rows, bytes, then the numbers of its segments
_FIXED = 3

Combine = Callable[[Tables], Tables]


class SegmentLog:
    """The segments of one operator and key group; its index lives in the operator's meta."""

    def __init__(
        self,
        state: OperatorState,
        schemas: Sequence[pa.Schema],
        combine: Combine | None,
        width_us: int,
    ) -> None:
        self.state = state
        self.schemas = schemas
        self.combine = combine
        kept = state.meta.get("log", {})
        self.width_us = int(kept.get("width", width_us))
        self.next = int(kept.get("next", 0))
        # Panes before the floor are gone, even if a bucket still holds some of their rows.
        self.floor_us: int | None = kept.get("floor")
        self.buckets: dict[int, _Bucket] = {int(k): v for k, v in kept.get("buckets", {}).items()}

    def save(self) -> None:
        """Put the index back into the meta, and say how much there is."""
        self.state.meta["log"] = {
            "width": self.width_us,
            "next": self.next,
            "floor": self.floor_us,
            "buckets": self.buckets,
        }
        self.state.gauges["rows"] = sum(bucket[1] for bucket in self.buckets.values())
        self.state.gauges["bytes"] = sum(bucket[2] for bucket in self.buckets.values())
        self.state.gauges["buckets"] = len(self.buckets)

    @property
    def rows(self) -> int:
        return sum(bucket[1] for bucket in self.buckets.values())

    def append(self, tables: Tables) -> None:
        """Add rows to the buckets of their panes."""
        panes = [table.column(PANE).to_numpy() for table in tables]
        buckets = np.unique(np.concatenate([pane // self.width_us for pane in panes]))
        for number in buckets.tolist():
            part = tables
            if len(buckets) > 1:
                part = filter_all(tables, self._in_bucket(number))
            self._append_to(number, part)
        while len(self.buckets) > _MOST_BUCKETS:
            self._widen()

    def _in_bucket(self, number: int) -> Callable[[np.ndarray], np.ndarray]:
        return lambda pane: pane // self.width_us == number

    def _append_to(self, number: int, tables: Tables) -> None:
        rows = sum(table.num_rows for table in tables)
        bucket = self.buckets.get(number)
        if bucket is None:
            bucket = self.buckets[number] = [rows, 0, 0]
        self._write(bucket, tables, rows)
        appended = bucket[1] - bucket[0]
        segments = len(bucket) - _FIXED
        if segments > 1 and (segments > _MOST_SEGMENTS or appended > max(bucket[0], 10_000)):
            self._compact(number)

    def _write(self, bucket: _Bucket, tables: Tables, rows: int) -> None:
        size = self.state.put(_NAME, _key(self.next), tables)
        bucket.append(self.next)
        bucket[1] += rows
        bucket[2] += size
        self.next += 1

    def _compact(self, number: int) -> None:
        bucket = self.buckets[number]
        tables = concat(self._read(bucket))
        if self.floor_us is not None:
            floor = self.floor_us
            tables = filter_all(tables, lambda pane: pane >= floor)
        if self.combine is not None:
            tables = self.combine(tables)
        self.remove(number)
        rows = sum(table.num_rows for table in tables)
        fresh = self.buckets[number] = [rows, 0, 0]
        self._write(fresh, tables, rows)

    def _widen(self) -> None:
        """Twice as wide: neighbours become one; only the index changes."""
        self.width_us *= 2
        merged: dict[int, _Bucket] = {}
        for number in sorted(self.buckets):
            bucket = self.buckets[number]
            known = merged.get(number // 2)
            if known is None:
                merged[number // 2] = bucket
                continue
            segments = sorted([*known[_FIXED:], *bucket[_FIXED:]])
            totals = [known[place] + bucket[place] for place in range(_FIXED)]
            merged[number // 2] = [*totals, *segments]
        self.buckets = merged

    def _read(self, bucket: _Bucket) -> list[Tables]:
        parts = []
        for segment in bucket[_FIXED:]:
            tables = self.state.get(_NAME, _key(segment), self.schemas)
            assert tables is not None, "a segment of the index is there"
            parts.append(tables)
        return parts

    def load(self, first_us: int | None, limit_us: int) -> list[Tables]:
        """All rows with first ≤ pane < limit, oldest segments first within a bucket."""
        parts = []
        low = first_us if self.floor_us is None else max(self.floor_us, first_us or self.floor_us)
        for number in sorted(self.buckets):
            begins, ends = number * self.width_us, (number + 1) * self.width_us
            if begins >= limit_us or (low is not None and ends <= low):
                continue
            inside = ends <= limit_us and (low is None or begins >= low)
            for tables in self._read(self.buckets[number]):
                parts.append(tables if inside else filter_all(tables, _between(low, limit_us)))
        return parts

    def holds(self, first_us: int, limit_us: int) -> bool:
        """Whether there may be rows with first ≤ pane < limit."""
        return any(
            number * self.width_us < limit_us and (number + 1) * self.width_us > first_us
            for number in self.buckets
        )

    def drop_before(self, floor_us: int) -> None:
        """Forget all panes before this one."""
        if self.floor_us is None or floor_us > self.floor_us:
            self.floor_us = floor_us
        for number in list(self.buckets):
            if (number + 1) * self.width_us <= self.floor_us:
                self.remove(number)

    def remove(self, number: int) -> None:
        for segment in self.buckets.pop(number)[_FIXED:]:
            self.state.delete(_NAME, _key(segment))


def _key(segment: int) -> bytes:
    return struct.pack(">Q", segment)


def _between(first_us: int | None, limit_us: int) -> Callable[[np.ndarray], np.ndarray]:
    def inside(pane: np.ndarray) -> np.ndarray:
        below = pane < limit_us
        return below if first_us is None else below & (pane >= first_us)

    return inside
