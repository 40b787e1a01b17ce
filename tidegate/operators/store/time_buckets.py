"""State as a log: what comes in is appended, what is due is read, and nothing else is touched.

Rows lie in segments, segments in buckets. A bucket is a stretch of time with a few thousand rows,
as long or short as the rows make it, and buckets do not overlap. An epoch appends one segment to
each bucket it touches, without reading. Where a bucket has many segments of about the same size
they become one, and where it has too many rows it is cut: a row is rewritten a few times in its
life, however much there is, so the cost of an epoch follows its input and not the state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.columns import PANE
from tidegate.operators.kernels.arrays import Ints, concat, filter_panes
from tidegate.operators.operator import KeyGroupState, Tables

# A bucket takes new panes until it has so many rows, and is cut when it has twice as many; where
# there are very many rows, buckets are larger instead of more than the index should hold.
_BUCKET_ROWS = 4_096
_MOST_BUCKETS = 128
# So many segments of a size class become one; a class is so much larger than the one before.
_FANOUT = 8
_MOST_SEGMENTS = 64
_EARLIEST_US = -(2**63)
# How the index is laid out: part of how operators with a log store it.
FORMAT = "segments 2"

Combine = Callable[[Tables], Tables]


class _Segment(NamedTuple):
    number: int
    rows: int
    groups: int
    bytes: int
    first_us: int
    last_us: int


@dataclass
class _Bucket:
    """Segments in the order they were written, which some rows need."""

    segments: list[_Segment] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def first_us(self) -> int:
        return min(segment.first_us for segment in self.segments)

    @property
    def last_us(self) -> int:
        return max(segment.last_us for segment in self.segments)


class TimeBucketStore:
    """The segments of one operator and key group; its index lives in the operator's meta."""

    def __init__(
        self,
        state: KeyGroupState,
        schemas: Sequence[pa.Schema],
        combine: Combine | None,
        name: str = "",
    ) -> None:
        self.state = state
        # An operator may keep several logs.
        self.index = f"log_{name}" if name else "log"
        self.name = f"segment_{name}" if name else "segment"
        self.schemas = schemas
        self.combine = combine
        kept = state.meta.get(self.index, {})
        self.next = int(kept.get("next", 0))
        # Panes before the floor are gone, even if a segment still holds some of their rows.
        self.floor_us: int | None = kept.get("floor")
        self.buckets = [
            _Bucket([_Segment(*segment) for segment in segments])
            for segments in kept.get("buckets", [])
        ]

    def save(self) -> None:
        """Put the index back into the meta, and say how much there is."""
        self.state.meta[self.index] = {
            "next": self.next,
            "floor": self.floor_us,
            "buckets": [[list(segment) for segment in b.segments] for b in self.buckets],
        }
        self.state.gauges.update(self.sizes())

    def sizes(self) -> dict[str, int]:
        kept = [segment for bucket in self.buckets for segment in bucket.segments]
        return {
            "rows": sum(segment.rows for segment in kept),
            "groups": sum(segment.groups for segment in kept),
            "bytes": sum(segment.bytes for segment in kept),
        }

    # Writing

    def append(self, tables: Tables) -> None:
        """Add rows to the buckets of their panes."""
        full = self._full_rows()
        starts, owners = self._regions(full)
        buckets = []
        for owner, piece in zip(owners, split_at(sort_by_pane(tables), starts), strict=True):
            buckets += self._append_to(owner, piece, full)
        self.buckets = [bucket for bucket in buckets if bucket.segments]
        if len(self.buckets) > _MOST_BUCKETS:
            self._join_small(full)

    def compact(self) -> None:
        """One segment in each bucket, so that every group is counted once."""
        for bucket in self.buckets:
            if len(bucket.segments) > 1:
                self._merge(bucket, len(bucket.segments))
        self.buckets = [bucket for bucket in self.buckets if bucket.segments]

    def _full_rows(self) -> int:
        rows = sum(bucket.rows for bucket in self.buckets)
        return max(_BUCKET_ROWS, 2 * rows // _MOST_BUCKETS)

    def _regions(self, full: int) -> tuple[list[int], list[_Bucket]]:
        """Where each bucket begins. What lies beside a full one gets a bucket of its own."""
        starts, owners = [], []
        if not self.buckets or self.buckets[0].rows >= full:
            starts, owners = [_EARLIEST_US], [_Bucket()]
        for bucket in self.buckets:
            starts.append(bucket.first_us if owners else _EARLIEST_US)
            owners.append(bucket)
            if bucket.rows >= full:
                starts.append(bucket.last_us + 1)
                owners.append(_Bucket())
        return starts, owners

    def _append_to(self, bucket: _Bucket, tables: Tables, full: int) -> list[_Bucket]:
        """The bucket with these rows, or several if they are too many for one."""
        rows = _rows(tables)
        if not rows:
            return [bucket]
        if bucket.rows + rows > 2 * full:
            known = [bucket.first_us, bucket.last_us] if bucket.segments else []
            panes = [*_span(tables), *known]
            if min(panes) < max(panes):
                return self._split(bucket, tables, full)
        self._write(bucket, tables)
        while (count := _alike(bucket)) >= _FANOUT:
            self._merge(bucket, count)
        if len(bucket.segments) > _MOST_SEGMENTS:
            self._merge(bucket, len(bucket.segments))
        return [bucket]

    def _split(self, bucket: _Bucket, tables: Tables, full: int) -> list[_Bucket]:
        """Buckets with about so many rows each; a pane is never cut."""
        if bucket.segments:
            old = self._taken(bucket, len(bucket.segments))
            tables = sort_by_pane(self._combined(concat([*old, tables])))
        buckets = []
        for piece in split_at(tables, _even_starts(tables, full)):
            buckets.append(_Bucket())
            self._write(buckets[-1], piece)
        return buckets

    def _write(self, bucket: _Bucket, tables: Tables) -> None:
        rows = _rows(tables)
        if not rows:
            return
        size = self.state.put(self.name, _key(self.next), tables)
        segment = _Segment(self.next, rows, tables[0].num_rows, size, *_span(tables))
        bucket.segments.append(segment)
        self.next += 1

    def _merge(self, bucket: _Bucket, count: int) -> None:
        """The last segments of a bucket as one."""
        self._write(bucket, self._combined(concat(self._taken(bucket, count))))

    def _taken(self, bucket: _Bucket, count: int) -> list[Tables]:
        """The last segments of a bucket, which no longer has them."""
        taken = bucket.segments[-count:]
        bucket.segments = bucket.segments[:-count]
        parts = [self._read(segment) for segment in taken]
        for segment in taken:
            self.state.delete(self.name, _key(segment.number))
        return parts

    def _combined(self, tables: Tables) -> Tables:
        if self.floor_us is not None:
            floor = self.floor_us
            tables = filter_panes(tables, lambda pane: pane >= floor)
        return self.combine(tables) if self.combine is not None else tables

    def _join_small(self, full: int) -> None:
        """Small neighbours become one bucket; only the index changes."""
        joined: list[_Bucket] = []
        for bucket in self.buckets:
            if joined and joined[-1].rows + bucket.rows <= 2 * full:
                both = [*joined[-1].segments, *bucket.segments]
                joined[-1] = _Bucket(sorted(both))
            else:
                joined.append(bucket)
        self.buckets = joined

    # Reading

    def load(self, first_us: int | None, limit_us: int) -> list[Tables]:
        """All rows with first ≤ pane < limit, oldest segments first within a bucket."""
        bounds = [us for us in (self.floor_us, first_us) if us is not None]
        low = max(bounds, default=_EARLIEST_US)
        parts = []
        for segment in self._segments():
            if segment.first_us >= limit_us or segment.last_us < low:
                continue
            tables = self._read(segment)
            inside = segment.first_us >= low and segment.last_us < limit_us
            parts.append(tables if inside else filter_panes(tables, panes_between(low, limit_us)))
        return parts

    def _segments(self) -> Iterator[_Segment]:
        return (segment for bucket in self.buckets for segment in bucket.segments)

    def _read(self, segment: _Segment) -> Tables:
        tables = self.state.get(self.name, _key(segment.number), self.schemas)
        assert tables is not None, "a segment of the index is there"
        return tables

    def drop_before(self, floor_us: int) -> None:
        """Forget all panes before this one."""
        if self.floor_us is None or floor_us > self.floor_us:
            self.floor_us = floor_us
        for segment in self._segments():
            if segment.last_us < self.floor_us:
                self.state.delete(self.name, _key(segment.number))
        for bucket in self.buckets:
            bucket.segments = [s for s in bucket.segments if s.last_us >= self.floor_us]
        self.buckets = [bucket for bucket in self.buckets if bucket.segments]


def sort_by_pane(tables: Tables) -> Tables:
    """The rows of each table by pane; those of a pane in the order they were."""
    ordered = []
    for table in tables:
        panes = panes_of(table)
        if np.any(panes[1:] < panes[:-1]):
            table = table.take(pa.array(np.argsort(panes, kind="stable")))
        ordered.append(table)
    return tuple(ordered)


def split_at(tables: Tables, starts: Sequence[int]) -> list[Tables]:
    """Ordered tables in pieces: what is before the second start, before the third, and so on."""
    if len(starts) == 1:
        return [tables]
    cuts = []
    for table in tables:
        inner = np.searchsorted(panes_of(table), np.asarray(starts[1:], np.int64))
        cuts.append([0, *inner.tolist(), table.num_rows])
    return [
        tuple(
            table.slice(places[number], places[number + 1] - places[number])
            for table, places in zip(tables, cuts, strict=True)
        )
        for number, _ in enumerate(starts)
    ]


def panes_of(table: pa.Table) -> Ints:
    return np.asarray(table.column(PANE).to_numpy(), np.int64)


def _even_starts(tables: Tables, rows: int) -> list[int]:
    """Panes at which to cut, so that a piece of several panes has no more than so many rows."""
    panes, counts = np.unique(np.concatenate([*map(panes_of, tables)]), return_counts=True)
    ends = np.cumsum(counts)
    # A pane belongs to the piece before it as long as both begin and end in the same stretch.
    begins, finishes = (ends - counts) // rows, (ends - 1) // rows
    new = (np.diff(begins, prepend=-1) != 0) | (np.diff(finishes, prepend=-1) != 0)
    return [int(pane) for pane in panes[new]]


def _rows(tables: Tables) -> int:
    return sum(table.num_rows for table in tables)


def _span(tables: Tables) -> tuple[int, int]:
    panes = [panes_of(table) for table in tables if table.num_rows]
    return min(int(p.min()) for p in panes), max(int(p.max()) for p in panes)


def _alike(bucket: _Bucket) -> int:
    """How many segments at the end are no larger, by class, than the last one."""
    if len(bucket.segments) < _FANOUT:
        return 0
    limit = _FANOUT * max(bucket.segments[-1].rows, 1)
    count = 0
    for segment in reversed(bucket.segments):
        if segment.rows > limit:
            break
        count += 1
    return count


def _key(segment: int) -> bytes:
    return struct.pack(">Q", segment)


def panes_between(first_us: int | None, limit_us: int) -> Callable[[Ints], npt.NDArray[np.bool_]]:
    """Whether first ≤ pane < limit, for `filter_all`."""
    first = _EARLIEST_US if first_us is None else first_us
    return lambda pane: (pane >= first) & (pane < limit_us)
