"""Time-ordered state as a log: new rows are appended, due rows are read, the rest is not touched.

Rows are stored in segments, and segments belong to buckets. A bucket is a range of time with a few
thousand rows; buckets do not overlap. Every epoch appends one segment to each bucket that it has
rows for, without reading it. Segments of about the same size are merged, and a bucket with too many
rows is split. A row is rewritten only a few times, so the cost of an epoch depends on its input and
not on the size of the state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.columns import STORE_TIME
from tidegate.operators.kernels.arrays import Ints, Mask, concat, filter_by_time, int_column
from tidegate.operators.operator import KeyGroupState, Tables

# A bucket with this many rows does not extend to new times; with twice as many it is split. If the
# store has very many rows, its buckets grow instead, because their number is limited.
_BUCKET_ROWS = 4_096
_MAX_BUCKETS = 128
# This many segments of a size class are merged; each class is larger than the previous one by this
# factor.
_FANOUT = 8
_MAX_SEGMENTS = 64
_EARLIEST_US = -(2**63)
# Identifies the layout of segments and their index; part of an operator's state format.
FORMAT = "segments 2"

Combine = Callable[[Tables], Tables]


class _Segment(NamedTuple):
    """The index entry of a segment. The fields are stored by position."""

    number: int
    rows: int
    groups: int
    bytes: int
    first_us: int
    last_us: int


@dataclass
class _Bucket:
    """The segments of a range of time, in the order in which they were written."""

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
    """The buckets of one operator and key group. Their index is stored in the operator's `meta`.

    The time of a row is STORE_TIME. `combine` merges the rows of a group when segments are merged.
    """

    def __init__(
        self,
        state: KeyGroupState,
        schemas: Sequence[pa.Schema],
        combine: Combine | None,
        name: str = "",
    ) -> None:
        self.state = state
        # An operator can have several stores.
        self.index = f"buckets_{name}" if name else "buckets"
        self.name = f"segment_{name}" if name else "segment"
        self.schemas = schemas
        self.combine = combine
        index = state.meta.get(self.index, {})
        self.next = int(index.get("next", 0))
        # Rows before the floor are deleted, even if a segment still has some of them.
        self.floor_us: int | None = index.get("floor")
        self.buckets = [
            _Bucket([_Segment(*segment) for segment in segments])
            for segments in index.get("buckets", [])
        ]

    def save(self) -> None:
        """Store the index in `meta` and set the metrics."""
        self.state.meta[self.index] = {
            "next": self.next,
            "floor": self.floor_us,
            "buckets": [[list(segment) for segment in b.segments] for b in self.buckets],
        }
        self.state.metrics.update(self.sizes())

    def sizes(self) -> dict[str, int]:
        """Return the number of rows, groups and bytes in all segments."""
        segments = list(self._segments())
        return {
            "rows": sum(segment.rows for segment in segments),
            "groups": sum(segment.groups for segment in segments),
            "bytes": sum(segment.bytes for segment in segments),
        }

    # ---- Writing

    def append(self, tables: Tables) -> None:
        """Add rows to the buckets of their times."""
        full = self._bucket_capacity()
        starts, owners = self._bucket_ranges(full)
        buckets = []
        for owner, piece in zip(owners, split_at(sort_by_time(tables), starts), strict=True):
            buckets += self._append_to(owner, piece, full)
        self.buckets = [bucket for bucket in buckets if bucket.segments]
        if len(self.buckets) > _MAX_BUCKETS:
            self._join_small_buckets(full)

    def compact(self) -> None:
        """Merge the segments of each bucket, so that the metrics count every group once."""
        for bucket in self.buckets:
            if len(bucket.segments) > 1:
                self._merge_newest(bucket, len(bucket.segments))
        self.buckets = [bucket for bucket in self.buckets if bucket.segments]

    def _bucket_capacity(self) -> int:
        """Return the number of rows at which a bucket is full."""
        rows = sum(bucket.rows for bucket in self.buckets)
        return max(_BUCKET_ROWS, 2 * rows // _MAX_BUCKETS)

    def _bucket_ranges(self, full: int) -> tuple[list[int], list[_Bucket]]:
        """Return where each bucket starts; times next to a full bucket get a new one."""
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
        """Append rows to a bucket; return it, or several buckets if it had to be split."""
        rows = _row_count(tables)
        if not rows:
            return [bucket]
        if bucket.rows + rows > 2 * full:
            bounds = [bucket.first_us, bucket.last_us] if bucket.segments else []
            times = [*_time_range(tables), *bounds]
            if min(times) < max(times):
                return self._split(bucket, tables, full)
        self._write(bucket, tables)
        while (count := _mergeable_segments(bucket)) >= _FANOUT:
            self._merge_newest(bucket, count)
        if len(bucket.segments) > _MAX_SEGMENTS:
            self._merge_newest(bucket, len(bucket.segments))
        return [bucket]

    def _split(self, bucket: _Bucket, tables: Tables, full: int) -> list[_Bucket]:
        """Divide rows into buckets of about `full` rows each; rows of one time stay together."""
        if bucket.segments:
            old = self._pop_segments(bucket, len(bucket.segments))
            tables = sort_by_time(self._combine(concat([*old, tables])))
        buckets = []
        for piece in split_at(tables, _even_starts(tables, full)):
            buckets.append(_Bucket())
            self._write(buckets[-1], piece)
        return buckets

    def _write(self, bucket: _Bucket, tables: Tables) -> None:
        """Append a segment to a bucket."""
        rows = _row_count(tables)
        if not rows:
            return
        size = self.state.put(self.name, _key(self.next), tables)
        segment = _Segment(self.next, rows, tables[0].num_rows, size, *_time_range(tables))
        bucket.segments.append(segment)
        self.next += 1

    def _merge_newest(self, bucket: _Bucket, count: int) -> None:
        """Merge the newest `count` segments of a bucket into one."""
        self._write(bucket, self._combine(concat(self._pop_segments(bucket, count))))

    def _pop_segments(self, bucket: _Bucket, count: int) -> list[Tables]:
        """Remove the newest `count` segments of a bucket and return their rows."""
        segments = bucket.segments[-count:]
        bucket.segments = bucket.segments[:-count]
        parts = [self._read(segment) for segment in segments]
        for segment in segments:
            self.state.delete(self.name, _key(segment.number))
        return parts

    def _combine(self, tables: Tables) -> Tables:
        """Merge the rows of each group, without rows before the floor."""
        if self.floor_us is not None:
            floor = self.floor_us
            tables = filter_by_time(tables, lambda times: times >= floor)
        return self.combine(tables) if self.combine is not None else tables

    def _join_small_buckets(self, full: int) -> None:
        """Join small adjacent buckets; this changes only the index."""
        joined: list[_Bucket] = []
        for bucket in self.buckets:
            if joined and joined[-1].rows + bucket.rows <= 2 * full:
                both = [*joined[-1].segments, *bucket.segments]
                joined[-1] = _Bucket(sorted(both))
            else:
                joined.append(bucket)
        self.buckets = joined

    # ---- Reading

    def load(self, first_us: int | None, limit_us: int) -> list[Tables]:
        """Return all rows with first ≤ time < limit; in a bucket, oldest segments first."""
        bounds = [us for us in (self.floor_us, first_us) if us is not None]
        low = max(bounds, default=_EARLIEST_US)
        parts = []
        for segment in self._segments():
            if segment.first_us >= limit_us or segment.last_us < low:
                continue
            tables = self._read(segment)
            inside = segment.first_us >= low and segment.last_us < limit_us
            parts.append(tables if inside else filter_by_time(tables, times_between(low, limit_us)))
        return parts

    def _segments(self) -> Iterator[_Segment]:
        return (segment for bucket in self.buckets for segment in bucket.segments)

    def _read(self, segment: _Segment) -> Tables:
        tables = self.state.get(self.name, _key(segment.number), self.schemas)
        assert tables is not None, "every segment of the index is stored"
        return tables

    def drop_before(self, floor_us: int) -> None:
        """Delete all rows before this time."""
        if self.floor_us is None or floor_us > self.floor_us:
            self.floor_us = floor_us
        for segment in self._segments():
            if segment.last_us < self.floor_us:
                self.state.delete(self.name, _key(segment.number))
        for bucket in self.buckets:
            bucket.segments = [s for s in bucket.segments if s.last_us >= self.floor_us]
        self.buckets = [bucket for bucket in self.buckets if bucket.segments]


def times_between(first_us: int | None, limit_us: int) -> Callable[[Ints], Mask]:
    """Return a predicate for first ≤ time < limit, for `filter_by_time`."""
    first = _EARLIEST_US if first_us is None else first_us
    return lambda times: (times >= first) & (times < limit_us)


def sort_by_time(tables: Tables) -> Tables:
    """Sort the rows of each table by time; rows of the same time keep their order."""
    ordered = []
    for table in tables:
        times = int_column(table, STORE_TIME)
        if np.any(times[1:] < times[:-1]):
            table = table.take(pa.array(np.argsort(times, kind="stable")))
        ordered.append(table)
    return tuple(ordered)


def split_at(tables: Tables, starts: Sequence[int]) -> list[Tables]:
    """Split tables that are sorted by time at the times in `starts`.

    The first piece begins with the first row, whatever its start.
    """
    if len(starts) == 1:
        return [tables]
    bounds = []
    for table in tables:
        inner = np.searchsorted(int_column(table, STORE_TIME), np.asarray(starts[1:], np.int64))
        bounds.append([0, *inner.tolist(), table.num_rows])
    return [
        tuple(
            table.slice(rows[number], rows[number + 1] - rows[number])
            for table, rows in zip(tables, bounds, strict=True)
        )
        for number, _ in enumerate(starts)
    ]


def _even_starts(tables: Tables, rows: int) -> list[int]:
    """Return the start times of pieces of at most `rows` rows.

    Rows of the same time stay together, so a piece with a single time may be larger.
    """
    all_times = np.concatenate([int_column(table, STORE_TIME) for table in tables])
    times, counts = np.unique(all_times, return_counts=True)
    ends = np.cumsum(counts)
    # Piece k is the rows from k * rows on. A time stays in the current piece if its rows lie in one
    # piece, and that is the piece of the time before it; otherwise it starts a new one.
    first_piece, last_piece = (ends - counts) // rows, (ends - 1) // rows
    starts = (np.diff(first_piece, prepend=-1) != 0) | (np.diff(last_piece, prepend=-1) != 0)
    return [int(time) for time in times[starts]]


def _row_count(tables: Tables) -> int:
    return sum(table.num_rows for table in tables)


def _time_range(tables: Tables) -> tuple[int, int]:
    """Return the first and the last time."""
    times = [int_column(table, STORE_TIME) for table in tables if table.num_rows]
    return min(int(t.min()) for t in times), max(int(t.max()) for t in times)


def _mergeable_segments(bucket: _Bucket) -> int:
    """Return how many of the newest segments are at most `_FANOUT` times as large as the last."""
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
