"""State by key: runs of rows that are sorted by the hash of their key, and merged by size.

An epoch writes one run with what it changed. A lookup is a binary search in every run, which is
read where it is mapped, and takes the rows that were asked for. Runs of about the same size become
one, so there are few of them and a row is rewritten a few times in its life: an epoch costs what
it changes, however much is kept.

What replaces the rows of a hash lies in a newer run, which also says that the older ones are gone;
they are left out when runs are merged. A run knows when its rows are due, in the order of time. A
hint may be about a row that is gone or has changed since: it leads to one lookup more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.columns import HASH
from tidegate.operators.kernels.arrays import Ints, Mask, as_array, concat, int_column
from tidegate.operators.kernels.keys import find_rows, merge_rows
from tidegate.operators.operator import KeyGroupState, Tables

Combine = Callable[[Tables], Tables]
# So many runs of a size class become one; a class is so much larger than the one before.
_FANOUT = 4
# Runs that are this small are not worth a lookup of their own.
_FEW_ROWS = 256
# What is larger is stored in slices, so that merging needs no more memory than a few of them, and
# no column of texts gets too long for Arrow.
_SLICE_BYTES = 256 << 20
# How runs and their index are laid out: part of how operators with such a log store it.
FORMAT = "runs 1"

_DUE = "_due"
_GONE = pa.schema([(HASH, pa.int64())])
_HINTS = pa.schema([(_DUE, pa.int64()), (HASH, pa.int64())])
_NONE: Ints = np.zeros(0, np.int64)


@dataclass
class _Slice:
    """An entry of the state, with the hashes from `first` to `last`.

    Of `gone` hashes it says that older rows are dead; `dead` of its own are so by what newer runs
    say. Of its hints, the first `served` have been looked at or have fallen; `due` is the earliest
    of the others.
    """

    number: int
    first: int
    last: int
    gone: int
    rows: int
    groups: int
    bytes: int
    hints: int
    due: int | None
    served: int = 0
    dead: int = 0
    dead_groups: int = 0


@dataclass
class _Run:
    """Slices that do not overlap, by hash."""

    slices: list[_Slice] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.slices)

    @property
    def size(self) -> int:
        """What it costs to merge it."""
        return sum(part.rows + part.gone for part in self.slices)


@dataclass(frozen=True)
class _Content:
    """Rows by hash, those of a hash as they came; older rows of the hashes in `gone` are dead."""

    gone: Ints
    tables: Tables
    hints: pa.Table | None = None

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables)

    @property
    def size(self) -> int:
        return self.rows + len(self.gone)

    def take(self, hashes: Ints) -> Tables:
        return tuple(_taken(table, hashes) for table in self.tables)

    def counts(self, hashes: Ints) -> list[Ints]:
        """How many rows each table has of each hash."""
        return [_found(hashes_of(table), hashes)[1] for table in self.tables]

    def without(self, gone: Ints) -> Tables:
        return tuple(_without(table, gone) for table in self.tables)

    def between(self, first: int | None, limit: int | None) -> _Content:
        """The hashes with first ≤ hash < limit, without a copy."""
        begin, end = _span(self.gone, first, limit)
        tables = []
        for table in self.tables:
            start, stop = _span(hashes_of(table), first, limit)
            tables.append(table.slice(start, stop - start))
        return _Content(self.gone[begin:end], tuple(tables))


class SortedRunStore:
    """The runs of one operator and key group; their index lives in the operator's meta.

    `combine` merges rows of the same group, of which older runs may have more. `standing` does so
    where these are all rows of the group. `due` tells when each row is due, in the first `timed`
    tables. What is asked for may come with rows of other keys that have the same hash.
    """

    def __init__(
        self,
        state: KeyGroupState,
        schemas: Sequence[pa.Schema],
        combine: Combine,
        standing: Combine | None = None,
        due: Callable[[pa.Table], Ints] | None = None,
        timed: int = 1,
        name: str = "",
    ) -> None:
        self.state = state
        # An operator may keep several logs; the gauges are about the one without a name.
        self.name = f"run_{name}" if name else "run"
        self.index = f"runs_{name}" if name else "runs"
        self.schemas = tuple(schemas)
        self.combine = combine
        self.standing = standing or combine
        self.due = due
        self.timed = timed
        kept = state.meta.get(self.index, {})
        self.next = int(kept.get("next", 0))
        # Rows that were due by then are gone, even if a slice still holds them.
        self.floor_us: int | None = kept.get("floor")
        self.runs = [_Run([_Slice(*part) for part in run]) for run in kept.get("runs", [])]
        # What this epoch adds, oldest first; `save` makes a run of it.
        self.fresh: list[_Content] = []
        self.read: dict[int, _Content] = {}
        self.asked_us: int | None = None

    # Reading

    def load(self, hashes: Ints) -> Tables:
        """The rows of these hashes, combined."""
        parts = [content.take(some) for _, content, some in self._search(np.unique(hashes))]
        return self._combined(parts[::-1])

    def load_all(self) -> Tables:
        """All rows, combined."""
        return self._combined(_live(self._layers(self.runs))[0])

    def due_hashes(self, mark_us: int) -> Ints:
        """The hashes that may have a row that is due by then: each is handed out in one epoch."""
        self.asked_us = mark_us if self.asked_us is None else max(self.asked_us, mark_us)
        found = [_NONE]
        for content in self.fresh:
            hints = self._hints(content.tables)
            if hints is not None:
                found.append(hashes_of(hints)[_ints(hints, _DUE) <= mark_us])
        for part in self._slices():
            if part.due is not None and part.due <= mark_us:
                found.append(self._unserved(part, mark_us))
        return np.unique(np.concatenate(found))

    def _unserved(self, part: _Slice, mark_us: int) -> Ints:
        hints = self._content(part).hints
        assert hints is not None, "a slice with something due has hints"
        stop = int(np.searchsorted(_ints(hints, _DUE), mark_us, "right"))
        return hashes_of(hints)[part.served : stop]

    def _search(self, hashes: Ints) -> Iterator[tuple[_Slice | None, _Content, Ints]]:
        """What may hold live rows, newest first, each with the hashes to look for."""
        for content in reversed(self.fresh):
            yield None, content, hashes
            hashes = hashes[~_among(content.gone, hashes)]
        for run in reversed(self.runs):
            gone = []
            for part in run.slices:
                begin = np.searchsorted(hashes, part.first)
                some = hashes[begin : np.searchsorted(hashes, part.last, "right")]
                if len(some):
                    content = self._content(part)
                    yield part, content, some
                    gone.append(content.gone)
            for those in gone:
                hashes = hashes[~_among(those, hashes)]

    def _slices(self) -> Iterator[_Slice]:
        return (part for run in self.runs for part in run.slices)

    def _content(self, part: _Slice) -> _Content:
        if part.number not in self.read:
            hints = (_HINTS,) if self.due is not None else ()
            schemas = (_GONE, *self.schemas, *hints)
            stored = self.state.get(self.name, _key(part.number), schemas)
            assert stored is not None, "a slice of the index is there"
            gone, *tables = stored
            count = len(self.schemas)
            hinted = tables[count] if hints else None
            self.read[part.number] = _Content(hashes_of(gone), tuple(tables[:count]), hinted)
        return self.read[part.number]

    def _layers(self, runs: Sequence[_Run]) -> list[_Content]:
        """Runs and what is new, oldest first."""
        return [*(self._content(part) for run in runs for part in run.slices), *self.fresh]

    def _combined(self, parts: Sequence[Tables]) -> Tables:
        if not parts:
            return tuple(schema.empty_table() for schema in self.schemas)
        return self.standing(self._standing_up(concat(parts)))

    def _standing_up(self, tables: Tables) -> Tables:
        """Without the rows that have fallen."""
        if self.floor_us is None or self.due is None:
            return tables
        floor, due = self.floor_us, self.due
        return tuple(table.filter(pa.array(due(table) > floor)) for table in tables)

    # Writing

    def append(self, tables: Tables) -> None:
        """Add rows to what is there, without reading it."""
        self._add(_NONE, tables)

    def replace(self, hashes: Ints, tables: Tables) -> None:
        """These hashes hold exactly this from now on."""
        self._add(self._add_tombstones(np.unique(hashes)), tables)

    def drop_due(self, mark_us: int) -> None:
        """Forget all rows that are due by then, of all tables; none of them comes afterwards."""
        if self.floor_us is None or mark_us > self.floor_us:
            self.floor_us = mark_us

    def clear(self) -> None:
        """Forget everything."""
        for run in self.runs:
            self._delete(run)
        self.runs, self.fresh = [], []

    def _add(self, gone: Ints, tables: Tables) -> None:
        content = _Content(gone, tuple(_by_hash(table) for table in tables))
        if content.size:
            self.fresh.append(content)

    def _add_tombstones(self, hashes: Ints) -> Ints:
        """Count the rows of these hashes as dead; returns the hashes that have some."""
        found = [_NONE]
        for part, content, some in self._search(hashes):
            counts = content.counts(some)
            every = np.sum(counts, axis=0)
            found.append(some[every > 0])
            if part is not None:
                part.dead += int(every.sum())
                part.dead_groups += int(counts[0].sum())
        return np.unique(np.concatenate(found))

    def save(self) -> None:
        """Write what is new, put the index into the meta, and say how much there is."""
        self._note_served()
        while self.runs and not self._live_rows(self.runs[0]):
            self._delete(self.runs.pop(0))
        if 2 * self.rows < sum(run.rows for run in self.runs):
            self._merge(len(self.runs))
        elif self.fresh:
            self._merge(self._alike())
        runs = [[list(vars(part).values()) for part in run.slices] for run in self.runs]
        self.state.meta[self.index] = {"next": self.next, "floor": self.floor_us, "runs": runs}
        if self.index == "runs":
            self.state.gauges.update(rows=self.rows, groups=self.groups, bytes=self.bytes)

    def compact(self) -> None:
        """One run of everything, so that every group is counted once."""
        self._note_served()
        stored = sum(run.rows for run in self.runs)
        if len(self.runs) + len(self.fresh) > 1 or self.rows < stored:
            self._merge(len(self.runs))

    @property
    def rows(self) -> int:
        return sum(self._live_rows(run) for run in self.runs)

    def _live_rows(self, run: _Run) -> int:
        return sum(self._left(part, part.rows - part.dead) for part in run.slices)

    @property
    def groups(self) -> int:
        return sum(self._left(part, part.groups - part.dead_groups) for part in self._slices())

    def _left(self, part: _Slice, rows: int) -> int:
        """About how many of so many rows have not fallen; none only if that is so."""
        if self.floor_us is None or not part.served:
            return rows
        return -(-rows * (part.hints - part.served) // part.hints)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self._slices())

    def _note_served(self) -> None:
        """What was asked for has been handed out, and what fell is counted."""
        marks = [mark for mark in (self.asked_us, self.floor_us) if mark is not None]
        for part in self._slices():
            if marks and part.due is not None and part.due <= max(marks):
                part.served += len(self._unserved(part, max(marks)))
                hints = self._content(part).hints
                dues = _ints(hints, _DUE)
                part.due = int(dues[part.served]) if part.served < len(dues) else None
        self.asked_us = None

    def _alike(self) -> int:
        """How many of the newest runs are merged with what is new."""
        sizes = [run.size for run in reversed(self.runs)]
        taken = sum(1 for _ in takewhile(lambda size: size <= _FEW_ROWS, sizes))
        size = sum(content.size for content in self.fresh) + sum(sizes[:taken])
        while True:
            more = 0
            while taken + more < len(sizes) and sizes[taken + more] <= _FANOUT * max(size, 1):
                more += 1
            if more + 1 < _FANOUT:
                return taken
            size += sum(sizes[taken : taken + more])
            taken += more

    def _merge(self, count: int) -> None:
        """The newest runs and what is new as one run, slice by slice."""
        cut = len(self.runs) - count
        layers = self._layers(self.runs[cut:])
        merged = _Run()
        for first, limit in _ranges(layers):
            some = layers
            if first is not None or limit is not None:
                some = [content.between(first, limit) for content in layers]
            merged.slices += self._written(self._merged(some, whole=cut == 0))
        for run in self.runs[cut:]:
            self._delete(run)
        self.runs = [*self.runs[:cut], *([merged] if merged.slices else [])]
        self.fresh = []

    def _merged(self, layers: Sequence[_Content], whole: bool) -> _Content:
        parts, gone = _live(layers)
        if whole:
            tables, gone = self._combined(parts), _NONE
        else:
            tables = self._standing_up(concat(parts))
            tables = tables if len(parts) == 1 else self.combine(tables)
        return _Content(gone, tuple(_by_hash(table) for table in tables))

    def _written(self, content: _Content) -> list[_Slice]:
        """The content as a slice, or none if there is nothing."""
        hashes = [content.gone, *map(hashes_of, content.tables)]
        ends = [(own[0], own[-1]) for own in hashes if len(own)]
        if not ends:
            return []
        hints = self._hints(content.tables)
        tables = (pa.table([content.gone], schema=_GONE), *content.tables)
        size = self.state.put(
            self.name, _key(self.next), tables if hints is None else (*tables, hints)
        )
        due = None if hints is None or not hints.num_rows else int(_ints(hints, _DUE)[0])
        first, last = int(min(end[0] for end in ends)), int(max(end[1] for end in ends))
        counts = (len(content.gone), content.rows, content.tables[0].num_rows)
        hinted = 0 if hints is None else hints.num_rows
        self.next += 1
        return [_Slice(self.next - 1, first, last, *counts, size, hinted, due)]

    def _hints(self, tables: Tables) -> pa.Table | None:
        """When rows are due, by time."""
        if self.due is None:
            return None
        timed = [table for table in tables[: self.timed] if table.num_rows]
        dues = np.concatenate([_NONE, *map(self.due, timed)])
        hashes = np.concatenate([_NONE, *map(hashes_of, timed)])
        order = np.argsort(dues, kind="stable")
        return pa.table([dues[order], hashes[order]], schema=_HINTS)

    def _delete(self, run: _Run) -> None:
        for part in run.slices:
            self.state.delete(self.name, _key(part.number))
            self.read.pop(part.number, None)


def hashes_of(table: pa.Table) -> Ints:
    return _ints(table, HASH)


def split_by_hashes(tables: Tables, hashes: Ints) -> tuple[Tables, Tables]:
    """The rows with these hashes, and the others."""
    hashes = np.unique(hashes)
    masks = [_among(hashes, hashes_of(table)) for table in tables]
    pairs = list(zip(tables, masks, strict=True))
    own = tuple(table.filter(pa.array(mask)) for table, mask in pairs)
    return own, tuple(table.filter(pa.array(~mask)) for table, mask in pairs)


def _ints(table: pa.Table, name: str) -> Ints:
    """A column as it lies in memory."""
    array = as_array(table.column(name))
    return np.asarray(array.to_numpy(), np.int64)


def _by_hash(table: pa.Table) -> pa.Table:
    hashes = hashes_of(table)
    if np.all(hashes[1:] >= hashes[:-1]):
        return table
    return table.take(pa.array(np.argsort(hashes, kind="stable")))


def _found(own: Ints, hashes: Ints) -> tuple[Ints, Ints]:
    """Where each hash begins in sorted ones, and how often it is there."""
    first = np.searchsorted(own, hashes)
    counts = np.zeros(len(hashes), np.int64)
    if len(own):
        there = own[np.minimum(first, len(own) - 1)] == hashes
        counts[there] = np.searchsorted(own, hashes[there], "right") - first[there]
    return first, counts


def _taken(table: pa.Table, hashes: Ints) -> pa.Table:
    if not table.num_rows:
        return table
    first, counts = _found(hashes_of(table), hashes)
    total = int(counts.sum())
    if not total:
        return table.slice(0, 0)
    shifts = first - (np.cumsum(counts) - counts)
    return table.take(pa.array(np.repeat(shifts, counts) + np.arange(total)))


def _among(some: Ints, hashes: Ints) -> Mask:
    """Which hashes are among sorted ones."""
    if not len(some):
        return np.zeros(len(hashes), np.bool_)
    places = np.minimum(np.searchsorted(some, hashes), len(some) - 1)
    found: Mask = some[places] == hashes
    return found


def _without(table: pa.Table, gone: Ints) -> pa.Table:
    if not len(gone) or not table.num_rows:
        return table
    dead = _among(gone, hashes_of(table))
    return table.filter(pa.array(~dead)) if dead.any() else table


def _span(hashes: Ints, first: int | None, limit: int | None) -> tuple[int, int]:
    """Where first ≤ hash < limit lies in sorted hashes."""
    begin = 0 if first is None else int(np.searchsorted(hashes, first))
    return begin, len(hashes) if limit is None else int(np.searchsorted(hashes, limit))


def _live(layers: Sequence[_Content]) -> tuple[list[Tables], Ints]:
    """The rows of each layer that no newer one says are gone, and all that they say is gone."""
    parts, gone = [], _NONE
    for content in reversed(layers):
        parts.append(content.without(gone))
        gone = np.union1d(gone, content.gone) if len(content.gone) else gone
    return parts[::-1], gone


def _ranges(layers: Sequence[_Content]) -> list[tuple[int | None, int | None]]:
    """Ranges of hashes with about as much as a slice has."""
    size = sum(table.nbytes for content in layers for table in content.tables)
    count = -(-size // _SLICE_BYTES)
    if count <= 1:
        return [(None, None)]
    every = np.sort(np.concatenate([hashes_of(t) for content in layers for t in content.tables]))
    cuts = [int(cut) for cut in np.unique(every[:: -(-len(every) // count)])[1:]]
    return list(zip([None, *cuts], [*cuts, None], strict=True))


def _key(number: int) -> bytes:
    return struct.pack(">Q", number)


# ---- Keys are forgotten some time after their last row, in processing time.
#
# A log with a time to live has one more table, its first: when each key was last touched. It is
# written when rows arrive, whenever what they say comes out. A row counts if it is left after those
# of its epoch have cancelled out, and is not a retraction of what was forgotten.

TOUCHED = "_touched"


@dataclass(frozen=True)
class TimeToLive:
    """`keys` are the columns that make up a key, besides its hash."""

    ttl_us: int
    keys: tuple[pa.Field, ...]

    @property
    def by(self) -> list[str]:
        return [HASH, *(item.name for item in self.keys)]

    @property
    def schema(self) -> pa.Schema:
        stamps = [pa.field(HASH, pa.int64()), *self.keys, pa.field(TOUCHED, pa.int64())]
        return pa.schema(stamps)

    def touch(self, tables: Sequence[pa.Table], now_us: int) -> pa.Table:
        """The keys of these rows, touched now."""
        keys = pa.concat_tables([table.select(self.by) for table in tables])
        stamps = pa.array(np.full(keys.num_rows, now_us, np.int64))
        return self.keep_latest(keys.append_column(TOUCHED, stamps).cast(self.schema))

    def keep_latest(self, touches: pa.Table) -> pa.Table:
        """Each key once, with its last touch."""
        if touches.num_rows <= 1:
            return touches
        return merge_rows(touches, self.by, [(TOUCHED, "max")]).cast(self.schema)

    def due(self, touches: pa.Table) -> Ints:
        """When each key is forgotten."""
        return np.asarray(touches.column(TOUCHED).to_numpy(), np.int64) + self.ttl_us

    def expired(self, log: SortedRunStore, now_us: int) -> pa.Table:
        """The keys whose time is over."""
        return self._over(log.load(log.due_hashes(now_us))[0], now_us)

    def _over(self, touches: pa.Table, now_us: int) -> pa.Table:
        return touches.filter(pa.array(self.due(touches) <= now_us))

    def drop_expired(self, log: SortedRunStore, now_us: int) -> None:
        """Drop those keys and their rows, before anything is added to them."""
        tables = log.load(log.due_hashes(now_us))
        hashes = hashes_of(self._over(tables[0], now_us))
        if len(hashes):
            # Keys that live on and have the hash of one that does not.
            (touches, *rows), _ = split_by_hashes(tables, hashes)
            alive = touches.filter(pa.array(self.due(touches) > now_us))
            log.replace(hashes, (alive, *(self.rows_of_keys(alive, table) for table in rows)))

    def rows_of_keys(self, keys: pa.Table, rows: pa.Table) -> pa.Table:
        """The rows that have one of these keys."""
        return rows.filter(pa.array(self.has_key(keys, rows))) if rows.num_rows else rows

    def has_key(self, keys: pa.Table, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Which rows have one of these keys."""
        return find_rows(keys, rows, self.by) >= 0


def load_same_keys(
    log: SortedRunStore, came: Sequence[pa.Table], keys: Sequence[str]
) -> list[pa.Table]:
    """What is kept on both sides of a join of the keys that came in."""
    by = [HASH, *keys]
    found = pa.concat_tables([table.select(by) for table in came])
    stored = log.load(int_column(found, HASH))[-2:]
    known = [find_rows(found, table.select(by), by) >= 0 for table in stored]
    return [table.filter(pa.array(mask)) for table, mask in zip(stored, known, strict=True)]
