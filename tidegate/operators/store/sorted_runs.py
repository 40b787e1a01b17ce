"""Keyed state as a log-structured merge tree: runs of rows that are sorted by key hash.

Every epoch writes one run with its changes. A lookup is a binary search in every run; runs are
memory-mapped, so it reads only the pages that it needs. Runs of about the same size are merged,
which keeps their number small and rewrites each row only a few times: the cost of an epoch depends
on its changes and not on the size of the state.

A run that replaces the rows of a hash contains a tombstone for this hash. Rows of the hash in older
runs are dead, and merging removes them.

A run also has timers: pairs of a time and a hash, in order of time, for rows that become due then.
Timers are not removed when their row is replaced. Such a timer causes a lookup without result.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import pyarrow as pa

from tidegate.columns import HASH
from tidegate.operators.kernels.arrays import Ints, Mask, as_array, concat, int_column
from tidegate.operators.kernels.keys import find_rows, merge_rows
from tidegate.operators.operator import KeyGroupState, Tables

Combine = Callable[[Tables], Tables]
# This many runs of a size class are merged; each class is larger than the previous one by this
# factor.
_FANOUT = 4
# Runs up to this size are always merged: they are not worth a lookup each.
_SMALL_RUN_ROWS = 256
# Larger runs are stored in slices: merging then needs memory for a few slices only, and no string
# column exceeds Arrow's limit of 2 GiB.
_SLICE_BYTES = 256 << 20
# Identifies the layout of runs and their index; part of an operator's state format.
FORMAT = "runs 1"

_DUE = "_due"
_TOMBSTONES = pa.schema([(HASH, pa.int64())])
_TIMERS = pa.schema([(_DUE, pa.int64()), (HASH, pa.int64())])
_NO_HASHES: Ints = np.zeros(0, np.int64)


@dataclass
class _Slice:
    """The index entry of a slice: a stored value with the hashes from `first` to `last`.

    The fields are stored by position. `tombstones` and `timers` are numbers of entries. Of the
    timers, the first `fired_timers` have fired, and `next_timer_us` is the time of the next one.
    `dead_rows` and `dead_groups` count rows that have tombstones in newer runs.
    """

    number: int
    first: int
    last: int
    tombstones: int
    rows: int
    groups: int
    bytes: int
    timers: int
    next_timer_us: int | None
    fired_timers: int = 0
    dead_rows: int = 0
    dead_groups: int = 0


@dataclass
class _Run:
    """The slices of a run, which do not overlap, in order of hash."""

    slices: list[_Slice] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.slices)

    @property
    def size(self) -> int:
        """The cost of merging the run."""
        return sum(part.rows + part.tombstones for part in self.slices)


@dataclass(frozen=True)
class _SliceContent:
    """The content of a slice: tables in order of hash, and the tombstones for older runs."""

    tombstones: Ints
    tables: Tables
    timers: pa.Table | None = None

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables)

    @property
    def size(self) -> int:
        return self.rows + len(self.tombstones)

    def take(self, hashes: Ints) -> Tables:
        """Return the rows with these hashes."""
        return tuple(_take(table, hashes) for table in self.tables)

    def counts(self, hashes: Ints) -> list[Ints]:
        """Return the number of rows that each table has of each hash."""
        return [_search(hashes_of(table), hashes)[1] for table in self.tables]

    def without(self, hashes: Ints) -> Tables:
        """Return the rows with other hashes."""
        return tuple(_drop(table, hashes) for table in self.tables)

    def between(self, first: int | None, limit: int | None) -> _SliceContent:
        """Return the part with first ≤ hash < limit, without copying."""
        start, stop = _range(self.tombstones, first, limit)
        tombstones = self.tombstones[start:stop]
        tables = []
        for table in self.tables:
            start, stop = _range(hashes_of(table), first, limit)
            tables.append(table.slice(start, stop - start))
        return _SliceContent(tombstones, tuple(tables))


class SortedRunStore:
    """The runs of one operator and key group. Their index is stored in the operator's `meta`.

    `combine` merges the rows of a group when more of them may be in older runs; `combine_all` when
    all of them are present. `due` returns when each row of the first `tables_with_timers` tables is
    due.

    Rows are found by the hash of their key, so a lookup may return rows of other keys with the same
    hash: callers must compare keys.
    """

    def __init__(
        self,
        state: KeyGroupState,
        schemas: Sequence[pa.Schema],
        combine: Combine,
        combine_all: Combine | None = None,
        due: Callable[[pa.Table], Ints] | None = None,
        tables_with_timers: int = 1,
        name: str = "",
    ) -> None:
        self.state = state
        # An operator can have several stores; the metrics describe the one without a name.
        self.name = f"run_{name}" if name else "run"
        self.index = f"runs_{name}" if name else "runs"
        self.schemas = tuple(schemas)
        self.combine = combine
        self.combine_all = combine_all or combine
        self.due = due
        self.tables_with_timers = tables_with_timers
        index = state.meta.get(self.index, {})
        self.next = int(index.get("next", 0))
        # Rows that are due at or before the floor have expired, even if a slice still has them.
        self.floor_us: int | None = index.get("floor")
        self.runs = [_Run([_Slice(*part) for part in run]) for run in index.get("runs", [])]
        # The changes of this epoch, oldest first; `save` writes them as a run.
        self.unsaved: list[_SliceContent] = []
        self.cache: dict[int, _SliceContent] = {}
        # The timers up to this time have been returned by `due_hashes`.
        self.fired_until_us: int | None = None

    # ---- Reading

    def load(self, hashes: Ints) -> Tables:
        """Return the rows with these hashes, combined."""
        matches = self._find(np.unique(hashes))
        parts = [content.take(some_hashes) for _, content, some_hashes in matches]
        return self._combine_layers(parts[::-1])

    def load_all(self) -> Tables:
        """Return all rows, combined."""
        return self._combine_layers(_live_rows(self._layers(self.runs))[0])

    def due_hashes(self, until_us: int) -> Ints:
        """Return the hashes with a timer at or before this time; each timer fires in one epoch."""
        if self.fired_until_us is None or until_us > self.fired_until_us:
            self.fired_until_us = until_us
        parts = [_NO_HASHES]
        for content in self.unsaved:
            timers = self._build_timers(content.tables)
            if timers is not None:
                parts.append(hashes_of(timers)[_column(timers, _DUE) <= until_us])
        for part in self._slices():
            if part.next_timer_us is not None and part.next_timer_us <= until_us:
                parts.append(self._pending_timers(part, until_us))
        return np.unique(np.concatenate(parts))

    def _pending_timers(self, part: _Slice, until_us: int) -> Ints:
        """Return the hashes of the timers of a slice that are due by then and have not fired."""
        timers = self._content(part).timers
        assert timers is not None, "a slice that has something due has timers"
        stop = int(np.searchsorted(_column(timers, _DUE), until_us, "right"))
        return hashes_of(timers)[part.fired_timers : stop]

    def _find(self, hashes: Ints) -> Iterator[tuple[_Slice | None, _SliceContent, Ints]]:
        """Yield, newest first, contents that may have live rows, with the hashes to look up."""
        for content in reversed(self.unsaved):
            yield None, content, hashes
            hashes = hashes[~_contains(content.tombstones, hashes)]
        for run in reversed(self.runs):
            tombstones = []
            for part in run.slices:
                start = np.searchsorted(hashes, part.first)
                in_slice = hashes[start : np.searchsorted(hashes, part.last, "right")]
                if len(in_slice):
                    content = self._content(part)
                    yield part, content, in_slice
                    tombstones.append(content.tombstones)
            for deleted in tombstones:
                hashes = hashes[~_contains(deleted, hashes)]

    def _slices(self) -> Iterator[_Slice]:
        return (part for run in self.runs for part in run.slices)

    def _content(self, part: _Slice) -> _SliceContent:
        """Read a slice, once per epoch."""
        if part.number not in self.cache:
            timers = (_TIMERS,) if self.due is not None else ()
            schemas = (_TOMBSTONES, *self.schemas, *timers)
            stored = self.state.get(self.name, _key(part.number), schemas)
            assert stored is not None, "every slice of the index is stored"
            tombstones, *tables = stored
            count = len(self.schemas)
            self.cache[part.number] = _SliceContent(
                hashes_of(tombstones), tuple(tables[:count]), tables[count] if timers else None
            )
        return self.cache[part.number]

    def _layers(self, runs: Sequence[_Run]) -> list[_SliceContent]:
        """Return the contents of runs and of the unsaved changes, oldest first."""
        return [*(self._content(part) for run in runs for part in run.slices), *self.unsaved]

    def _combine_layers(self, parts: Sequence[Tables]) -> Tables:
        if not parts:
            return tuple(schema.empty_table() for schema in self.schemas)
        return self.combine_all(self._drop_expired(concat(parts)))

    def _drop_expired(self, tables: Tables) -> Tables:
        """Remove rows that are due at or before the floor."""
        if self.floor_us is None or self.due is None:
            return tables
        floor, due = self.floor_us, self.due
        return tuple(table.filter(pa.array(due(table) > floor)) for table in tables)

    # ---- Writing

    def append(self, tables: Tables) -> None:
        """Add rows without reading the existing ones."""
        self._add(_NO_HASHES, tables)

    def replace(self, hashes: Ints, tables: Tables) -> None:
        """Replace all rows with these hashes."""
        self._add(self._count_dead(np.unique(hashes)), tables)

    def drop_due(self, until_us: int) -> None:
        """Expire all rows that are due at or before this time, in all tables.

        Callers must not add rows that are due by then afterwards.
        """
        if self.floor_us is None or until_us > self.floor_us:
            self.floor_us = until_us

    def clear(self) -> None:
        """Delete all rows."""
        for run in self.runs:
            self._delete_run(run)
        self.runs, self.unsaved = [], []

    def _add(self, tombstones: Ints, tables: Tables) -> None:
        content = _SliceContent(tombstones, tuple(_sort_by_hash(table) for table in tables))
        if content.size:
            self.unsaved.append(content)

    def _count_dead(self, hashes: Ints) -> Ints:
        """Count the rows with these hashes as dead; return the hashes that have rows."""
        parts = [_NO_HASHES]
        for part, content, in_content in self._find(hashes):
            counts = content.counts(in_content)
            totals = np.sum(counts, axis=0)
            parts.append(in_content[totals > 0])
            if part is not None:
                part.dead_rows += int(totals.sum())
                part.dead_groups += int(counts[0].sum())
        return np.unique(np.concatenate(parts))

    def save(self) -> None:
        """Write the changes of the epoch, store the index in `meta`, and set the metrics."""
        self._consume_timers()
        while self.runs and not self._live_row_count(self.runs[0]):
            self._delete_run(self.runs.pop(0))
        if 2 * self.rows < sum(run.rows for run in self.runs):
            self._merge_newest(len(self.runs))
        elif self.unsaved:
            self._merge_newest(self._runs_to_merge())
        runs = [[list(vars(part).values()) for part in run.slices] for run in self.runs]
        self.state.meta[self.index] = {"next": self.next, "floor": self.floor_us, "runs": runs}
        if self.index == "runs":
            self.state.metrics.update(rows=self.rows, groups=self.groups, bytes=self.bytes)

    def compact(self) -> None:
        """Merge all runs, so that the metrics count every group once."""
        self._consume_timers()
        stored = sum(run.rows for run in self.runs)
        if len(self.runs) + len(self.unsaved) > 1 or self.rows < stored:
            self._merge_newest(len(self.runs))

    @property
    def rows(self) -> int:
        """The number of live rows in runs, estimated if some have expired."""
        return sum(self._live_row_count(run) for run in self.runs)

    def _live_row_count(self, run: _Run) -> int:
        return sum(self._estimate_live(part, part.rows - part.dead_rows) for part in run.slices)

    @property
    def groups(self) -> int:
        """The number of groups in runs; a group in several runs counts several times."""
        counts = ((part, part.groups - part.dead_groups) for part in self._slices())
        return sum(self._estimate_live(part, count) for part, count in counts)

    def _estimate_live(self, part: _Slice, count: int) -> int:
        """Estimate how many of `count` rows have not expired; 0 only if all have."""
        if self.floor_us is None or not part.fired_timers:
            return count
        return -(-count * (part.timers - part.fired_timers) // part.timers)

    @property
    def bytes(self) -> int:
        """The size of all slices."""
        return sum(part.bytes for part in self._slices())

    def _consume_timers(self) -> None:
        """Advance every slice past the timers that have fired or whose rows have expired."""
        limits = [us for us in (self.fired_until_us, self.floor_us) if us is not None]
        for part in self._slices():
            if limits and part.next_timer_us is not None and part.next_timer_us <= max(limits):
                part.fired_timers += len(self._pending_timers(part, max(limits)))
                timers = self._content(part).timers
                dues = _column(timers, _DUE)
                part.next_timer_us = (
                    int(dues[part.fired_timers]) if part.fired_timers < len(dues) else None
                )
        self.fired_until_us = None

    def _runs_to_merge(self) -> int:
        """Return how many of the newest runs to merge with the changes of the epoch."""
        sizes = [run.size for run in reversed(self.runs)]
        count = sum(1 for _ in takewhile(lambda size: size <= _SMALL_RUN_ROWS, sizes))
        size = sum(content.size for content in self.unsaved) + sum(sizes[:count])
        while True:
            more = 0
            while count + more < len(sizes) and sizes[count + more] <= _FANOUT * max(size, 1):
                more += 1
            if more + 1 < _FANOUT:
                return count
            size += sum(sizes[count : count + more])
            count += more

    def _merge_newest(self, count: int) -> None:
        """Merge the newest `count` runs and the changes of the epoch into one run."""
        older = len(self.runs) - count
        layers = self._layers(self.runs[older:])
        merged = _Run()
        for first, limit in _slice_ranges(layers):
            parts = layers
            if first is not None or limit is not None:
                parts = [content.between(first, limit) for content in layers]
            merged.slices += self._write_slice(self._merge_layers(parts, is_oldest=older == 0))
        for run in self.runs[older:]:
            self._delete_run(run)
        self.runs = [*self.runs[:older], *([merged] if merged.slices else [])]
        self.unsaved = []

    def _merge_layers(self, layers: Sequence[_SliceContent], is_oldest: bool) -> _SliceContent:
        """Merge contents; the oldest run needs no tombstones."""
        parts, tombstones = _live_rows(layers)
        if is_oldest:
            tables, tombstones = self._combine_layers(parts), _NO_HASHES
        else:
            tables = self._drop_expired(concat(parts))
            tables = tables if len(parts) == 1 else self.combine(tables)
        return _SliceContent(tombstones, tuple(_sort_by_hash(table) for table in tables))

    def _write_slice(self, content: _SliceContent) -> list[_Slice]:
        """Write a slice and return its index entry; empty content is not written."""
        hashes = [content.tombstones, *map(hashes_of, content.tables)]
        ends = [
            (sorted_hashes[0], sorted_hashes[-1]) for sorted_hashes in hashes if len(sorted_hashes)
        ]
        if not ends:
            return []
        timers = self._build_timers(content.tables)
        tables = (pa.table([content.tombstones], schema=_TOMBSTONES), *content.tables)
        size = self.state.put(
            self.name, _key(self.next), tables if timers is None else (*tables, timers)
        )
        due = None if timers is None or not timers.num_rows else int(_column(timers, _DUE)[0])
        first, last = int(min(end[0] for end in ends)), int(max(end[1] for end in ends))
        counts = (len(content.tombstones), content.rows, content.tables[0].num_rows)
        timer_count = 0 if timers is None else timers.num_rows
        self.next += 1
        return [_Slice(self.next - 1, first, last, *counts, size, timer_count, due)]

    def _build_timers(self, tables: Tables) -> pa.Table | None:
        """Return the timers of rows, in order of time."""
        if self.due is None:
            return None
        timed = [table for table in tables[: self.tables_with_timers] if table.num_rows]
        dues = np.concatenate([_NO_HASHES, *map(self.due, timed)])
        hashes = np.concatenate([_NO_HASHES, *map(hashes_of, timed)])
        order = np.argsort(dues, kind="stable")
        return pa.table([dues[order], hashes[order]], schema=_TIMERS)

    def _delete_run(self, run: _Run) -> None:
        for part in run.slices:
            self.state.delete(self.name, _key(part.number))
            self.cache.pop(part.number, None)


# ---- Rows by hash


def hashes_of(table: pa.Table) -> Ints:
    """Return the hashes of rows."""
    return _column(table, HASH)


def split_by_hashes(tables: Tables, hashes: Ints) -> tuple[Tables, Tables]:
    """Return the rows with these hashes, and the rows with other hashes."""
    hashes = np.unique(hashes)
    masks = [_contains(hashes, hashes_of(table)) for table in tables]
    pairs = list(zip(tables, masks, strict=True))
    matches = tuple(table.filter(pa.array(mask)) for table, mask in pairs)
    return matches, tuple(table.filter(pa.array(~mask)) for table, mask in pairs)


def load_same_keys(
    store: SortedRunStore, tables: Sequence[pa.Table], keys: Sequence[str]
) -> list[pa.Table]:
    """Load the rows of both sides of a join that have the same keys as these rows."""
    by = [HASH, *keys]
    key_rows = pa.concat_tables([table.select(by) for table in tables])
    stored = store.load(int_column(key_rows, HASH))[-2:]
    masks = [find_rows(key_rows, table.select(by), by) >= 0 for table in stored]
    return [table.filter(pa.array(mask)) for table, mask in zip(stored, masks, strict=True)]


def _column(table: pa.Table, name: str) -> Ints:
    """Return a column without copying it, so that mapped files are read only where needed."""
    array = as_array(table.column(name))
    return np.asarray(array.to_numpy(), np.int64)


def _sort_by_hash(table: pa.Table) -> pa.Table:
    """Sort rows by hash; rows with the same hash keep their order."""
    hashes = hashes_of(table)
    if np.all(hashes[1:] >= hashes[:-1]):
        return table
    return table.take(pa.array(np.argsort(hashes, kind="stable")))


def _search(sorted_hashes: Ints, hashes: Ints) -> tuple[Ints, Ints]:
    """Return where each hash starts in sorted hashes, and how often it occurs."""
    first = np.searchsorted(sorted_hashes, hashes)
    counts = np.zeros(len(hashes), np.int64)
    if len(sorted_hashes):
        exists = sorted_hashes[np.minimum(first, len(sorted_hashes) - 1)] == hashes
        counts[exists] = np.searchsorted(sorted_hashes, hashes[exists], "right") - first[exists]
    return first, counts


def _take(table: pa.Table, hashes: Ints) -> pa.Table:
    if not table.num_rows:
        return table
    first, counts = _search(hashes_of(table), hashes)
    total = int(counts.sum())
    if not total:
        return table.slice(0, 0)
    shifts = first - (np.cumsum(counts) - counts)
    return table.take(pa.array(np.repeat(shifts, counts) + np.arange(total)))


def _contains(sorted_hashes: Ints, hashes: Ints) -> Mask:
    """Return which hashes are among the sorted ones."""
    if not len(sorted_hashes):
        return np.zeros(len(hashes), np.bool_)
    indices = np.minimum(np.searchsorted(sorted_hashes, hashes), len(sorted_hashes) - 1)
    result: Mask = sorted_hashes[indices] == hashes
    return result


def _drop(table: pa.Table, hashes: Ints) -> pa.Table:
    if not len(hashes) or not table.num_rows:
        return table
    dropped = _contains(hashes, hashes_of(table))
    return table.filter(pa.array(~dropped)) if dropped.any() else table


def _range(sorted_hashes: Ints, first: int | None, limit: int | None) -> tuple[int, int]:
    """Return the range of sorted hashes with first ≤ hash < limit."""
    start = 0 if first is None else int(np.searchsorted(sorted_hashes, first))
    stop = len(sorted_hashes) if limit is None else int(np.searchsorted(sorted_hashes, limit))
    return start, stop


def _live_rows(layers: Sequence[_SliceContent]) -> tuple[list[Tables], Ints]:
    """Return the rows of each layer without tombstones in newer ones, and all tombstones."""
    parts, tombstones = [], _NO_HASHES
    for content in reversed(layers):
        parts.append(content.without(tombstones))
        if len(content.tombstones):
            tombstones = np.union1d(tombstones, content.tombstones)
    return parts[::-1], tombstones


def _slice_ranges(layers: Sequence[_SliceContent]) -> list[tuple[int | None, int | None]]:
    """Divide the hashes of layers into ranges of about the size of a slice."""
    size = sum(table.nbytes for content in layers for table in content.tables)
    count = -(-size // _SLICE_BYTES)
    if count <= 1:
        return [(None, None)]
    hashes = np.sort(np.concatenate([hashes_of(t) for content in layers for t in content.tables]))
    bounds = [int(bound) for bound in np.unique(hashes[:: -(-len(hashes) // count)])[1:]]
    return list(zip([None, *bounds], [*bounds, None], strict=True))


def _key(number: int) -> bytes:
    return struct.pack(">Q", number)


# ---- Time to live: keys expire some processing time after their last row
#
# In a store with a time to live, the first table has the time at which each key was last touched.
# It is written when rows arrive, even if their output is emitted later. A row that is retracted in
# its own epoch does not touch its key, and neither does a retraction of an expired row.

TOUCHED = "_touched"


@dataclass(frozen=True)
class TimeToLive:
    """The time to live of keys; `keys` are the key columns without the hash."""

    ttl_us: int
    keys: tuple[pa.Field, ...]

    @property
    def by(self) -> list[str]:
        """The names of the key columns, with the hash."""
        return [HASH, *(item.name for item in self.keys)]

    @property
    def schema(self) -> pa.Schema:
        """The schema of the table of touches."""
        fields = [pa.field(HASH, pa.int64()), *self.keys, pa.field(TOUCHED, pa.int64())]
        return pa.schema(fields)

    def touch(self, tables: Sequence[pa.Table], now_us: int) -> pa.Table:
        """Return the keys of these rows, touched now."""
        keys = pa.concat_tables([table.select(self.by) for table in tables])
        times = pa.array(np.full(keys.num_rows, now_us, np.int64))
        return self.keep_latest(keys.append_column(TOUCHED, times).cast(self.schema))

    def keep_latest(self, touches: pa.Table) -> pa.Table:
        """Keep the last touch of each key."""
        if touches.num_rows <= 1:
            return touches
        return merge_rows(touches, self.by, [(TOUCHED, "max")]).cast(self.schema)

    def due(self, touches: pa.Table) -> Ints:
        """Return when each key expires."""
        return np.asarray(touches.column(TOUCHED).to_numpy(), np.int64) + self.ttl_us

    def expired(self, store: SortedRunStore, now_us: int) -> pa.Table:
        """Return the keys that have expired."""
        return self._select_expired(store.load(store.due_hashes(now_us))[0], now_us)

    def _select_expired(self, touches: pa.Table, now_us: int) -> pa.Table:
        return touches.filter(pa.array(self.due(touches) <= now_us))

    def drop_expired(self, store: SortedRunStore, now_us: int) -> None:
        """Delete expired keys and their rows. Must run before rows of the epoch are added."""
        tables = store.load(store.due_hashes(now_us))
        hashes = hashes_of(self._select_expired(tables[0], now_us))
        if len(hashes):
            # Keys that have not expired and share their hash with one that has must stay.
            (touches, *rows), _ = split_by_hashes(tables, hashes)
            alive = touches.filter(pa.array(self.due(touches) > now_us))
            store.replace(hashes, (alive, *(self.rows_of_keys(alive, table) for table in rows)))

    def rows_of_keys(self, keys: pa.Table, rows: pa.Table) -> pa.Table:
        """Return the rows that have one of these keys."""
        return rows.filter(pa.array(self.has_key(keys, rows))) if rows.num_rows else rows

    def has_key(self, keys: pa.Table, rows: pa.Table) -> Mask:
        """Return which rows have one of these keys."""
        return find_rows(keys, rows, self.by) >= 0
