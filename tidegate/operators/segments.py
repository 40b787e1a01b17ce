"""State as a log: what comes in is appended, what is due is read, and nothing else is touched.

Rows lie in segments, segments in buckets of neighbouring panes. An epoch appends one segment to
each bucket it touches, without reading. When there are many segments of about the same size they
become one, and these again: a row is rewritten a few times in its life, however much there is, so
the cost of an epoch follows its input and not the state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidegate.operators.contract import OperatorState, Tables
from tidegate.operators.group_kernels import PANE, concat, filter_all

_MOST_BUCKETS = 128
# So many segments of a size class become one; a class is so much larger than the one before.
_FANOUT = 8
_MOST_SEGMENTS = 64

Combine = Callable[[Tables], Tables]


@dataclass
class _Bucket:
    """Neighbouring panes, and of each segment its number, rows, groups and bytes."""

    first_us: int | None = None
    last_us: int | None = None
    segments: list[tuple[int, int, int, int]] = field(default_factory=list)

    def covers(self, panes: np.ndarray) -> None:
        first, last = int(panes.min()), int(panes.max())
        self.first_us = first if self.first_us is None else min(self.first_us, first)
        self.last_us = last if self.last_us is None else max(self.last_us, last)

    def joined(self, other: _Bucket) -> _Bucket:
        firsts = [us for us in (self.first_us, other.first_us) if us is not None]
        lasts = [us for us in (self.last_us, other.last_us) if us is not None]
        return _Bucket(
            min(firsts, default=None),
            max(lasts, default=None),
            sorted([*self.segments, *other.segments], key=lambda segment: segment[0]),
        )


class SegmentLog:
    """The segments of one operator and key group; its index lives in the operator's meta."""

    def __init__(
        self,
        state: OperatorState,
        schemas: Sequence[pa.Schema],
        combine: Combine | None,
        width_us: int,
        name: str = "",
    ) -> None:
        self.state = state
        # An operator may keep several logs.
        self.index = f"log_{name}" if name else "log"
        self.name = f"segment_{name}" if name else "segment"
        self.schemas = schemas
        self.combine = combine
        kept = state.meta.get(self.index, {})
        self.width_us = int(kept.get("width", width_us))
        self.next = int(kept.get("next", 0))
        # Panes before the floor are gone, even if a bucket still holds some of their rows.
        self.floor_us: int | None = kept.get("floor")
        self.buckets = {int(k): _Bucket(*v) for k, v in kept.get("buckets", {}).items()}

    def save(self) -> None:
        """Put the index back into the meta, and say how much there is."""
        self.state.meta[self.index] = {
            "width": self.width_us,
            "next": self.next,
            "floor": self.floor_us,
            "buckets": {number: list(vars(b).values()) for number, b in self.buckets.items()},
        }
        self.state.gauges.update(self.sizes())

    def sizes(self) -> dict[str, int]:
        kept = [segment for bucket in self.buckets.values() for segment in bucket.segments]
        named = enumerate(("rows", "groups", "bytes"), 1)
        return {what: sum(segment[place] for segment in kept) for place, what in named}

    def open_panes(self, width_us: int) -> int:
        """How many panes there can be rows for, without looking at the rows."""
        count = 0
        for bucket in self.buckets.values():
            if bucket.first_us is not None and bucket.last_us is not None:
                floor = bucket.first_us if self.floor_us is None else self.floor_us
                first = max(bucket.first_us, floor)
                count += max(bucket.last_us - first, 0) // width_us + 1
        return count

    def compact(self) -> None:
        """Compact all buckets, so that every group is counted once."""
        for number in list(self.buckets):
            bucket = self.buckets[number]
            if len(bucket.segments) > 1:
                self._merge(bucket, len(bucket.segments))

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
        bucket = self.buckets.setdefault(number, _Bucket())
        self._write(bucket, tables)
        while (count := _alike(bucket)) >= _FANOUT:
            self._merge(bucket, count)
        if len(bucket.segments) > _MOST_SEGMENTS:
            self._merge(bucket, len(bucket.segments))

    def _write(self, bucket: _Bucket, tables: Tables) -> None:
        rows = sum(table.num_rows for table in tables)
        size = self.state.put(self.name, _key(self.next), tables)
        bucket.segments.append((self.next, rows, tables[0].num_rows, size))
        if tables[0].num_rows:
            bucket.covers(tables[0].column(PANE).to_numpy())
        self.next += 1

    def _merge(self, bucket: _Bucket, count: int) -> None:
        """The last segments of a bucket as one. Their order stays, because some rows need it."""
        merged = bucket.segments[-count:]
        parts = [self._segment(segment) for segment, *_ in merged]
        bucket.segments = bucket.segments[:-count]
        for segment, *_ in merged:
            self.state.delete(self.name, _key(segment))
        tables = concat(parts)
        if self.floor_us is not None:
            floor = self.floor_us
            tables = filter_all(tables, lambda pane: pane >= floor)
        self._write(bucket, self.combine(tables) if self.combine is not None else tables)

    def _widen(self) -> None:
        """Twice as wide: neighbours become one; only the index changes."""
        self.width_us *= 2
        merged: dict[int, _Bucket] = {}
        for number in sorted(self.buckets):
            bucket = self.buckets[number]
            known = merged.get(number // 2)
            merged[number // 2] = bucket if known is None else known.joined(bucket)
        self.buckets = merged

    def _read(self, bucket: _Bucket) -> list[Tables]:
        return [self._segment(segment) for segment, *_ in bucket.segments]

    def _segment(self, segment: int) -> Tables:
        tables = self.state.get(self.name, _key(segment), self.schemas)
        assert tables is not None, "a segment of the index is there"
        return tables

    def load(self, first_us: int | None, limit_us: int) -> list[Tables]:
        """All rows with first ≤ pane < limit, oldest segments first within a bucket."""
        parts = []
        bounds = [us for us in (self.floor_us, first_us) if us is not None]
        low = max(bounds, default=None)
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
        for segment, *_ in self.buckets.pop(number).segments:
            self.state.delete(self.name, _key(segment))


def _alike(bucket: _Bucket) -> int:
    """How many segments at the end are no larger, by class, than the last one."""
    if len(bucket.segments) < _FANOUT:
        return 0
    limit = _FANOUT * max(bucket.segments[-1][1], 1)
    count = 0
    for _, rows, *_ in reversed(bucket.segments):
        if rows > limit:
            break
        count += 1
    return count


def _key(segment: int) -> bytes:
    return struct.pack(">Q", segment)


def _between(first_us: int | None, limit_us: int) -> Callable[[np.ndarray], np.ndarray]:
    def inside(pane: np.ndarray) -> np.ndarray:
        below = pane < limit_us
        return below if first_us is None else below & (pane >= first_us)

    return inside
