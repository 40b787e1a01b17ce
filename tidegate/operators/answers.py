"""Rows of a lookup table by their keys. Python workers import it: it must load little.

Keys are handled as columns: the distinct ones of a batch are looked up one by one, everything else
is done for whole batches.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

Keys = list[Hashable]


@dataclass(frozen=True)
class Found:
    """Rows of a lookup table, and for each row that asked where its rows begin and how many."""

    rows: pa.Table
    starts: np.ndarray
    counts: np.ndarray


def distinct(columns: Sequence[pa.Array]) -> tuple[list[pa.Array], np.ndarray]:
    """The different keys of rows, as columns, and for each row which of them it has."""
    firsts: np.ndarray | None = None
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = column.dictionary_encode()
        own = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        both = codes * max(len(encoded.dictionary), 1) + own
        # After every column there are no more codes than rows, so they never overflow.
        _, firsts, codes = np.unique(both, return_index=True, return_inverse=True)
    assert firsts is not None, "a lookup has keys"
    places = pa.array(firsts)
    return [column.take(places) for column in columns], codes


def key_values(columns: Sequence[pa.Array]) -> Keys:
    """Keys as Python values; times as numbers, which all of them have."""
    lists = [_plain(column).to_pylist() for column in columns]
    return lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column


def key_columns(rows: pa.Table, names: Sequence[str]) -> list[pa.Array]:
    return [rows.column(name).combine_chunks() for name in names]


def without_null_keys(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """NULL equals nothing, so nobody finds such rows."""
    for name in names:
        if rows.column(name).null_count:
            rows = rows.filter(rows.column(name).is_valid())
    return rows


def by_key(rows: pa.Table, names: Sequence[str]) -> tuple[pa.Table, Keys, np.ndarray, np.ndarray]:
    """Rows side by side that have the same key: the keys, where each begins, how many it has."""
    rows = without_null_keys(rows, names)
    if not rows.num_rows:
        return rows, [], np.zeros(0, np.int64), np.zeros(0, np.int64)
    keys, codes = distinct(key_columns(rows, names))
    counts = np.bincount(codes, minlength=len(keys[0])).astype(np.int64)
    starts = np.cumsum(counts) - counts
    ordered = rows.take(pa.array(np.argsort(codes, kind="stable"))).combine_chunks()
    return ordered, key_values(keys), starts, counts


class WholeTable:
    """A table that is held in memory."""

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        self.rows, found, starts, counts = by_key(rows, keys)
        pairs = zip(starts.tolist(), counts.tolist(), strict=True)
        self.places = dict(zip(found, pairs, strict=True))

    def find(self, keys: list[pa.Array]) -> Found:
        asked, codes = distinct(keys)
        places = [self.places.get(key, (0, 0)) for key in key_values(asked)]
        at = np.array(places, np.int64).reshape(-1, 2)[codes]
        return Found(self.rows, at[:, 0], at[:, 1])


@dataclass
class _Entry:
    start: int
    count: int
    until_us: int


@dataclass
class Cache:
    """Answers that were given lately: the rows of keys, and keys that have none.

    The one that was not asked for the longest goes first. An answer counts as one row if it has
    none. `fetch` asks for keys that are not here: all at once.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    most_rows: int
    ttl_us: int
    rows: pa.Table = field(init=False)
    places: dict[Hashable, _Entry] = field(default_factory=dict)
    kept: int = 0

    def __post_init__(self) -> None:
        self.rows = self.schema.empty_table()

    def find(
        self, keys: list[pa.Array], now_us: int, fetch: Callable[[list[pa.Array]], pa.Table]
    ) -> Found:
        asked, codes = distinct(keys)
        values = key_values(asked)
        missing = [place for place, key in enumerate(values) if not self._has(key, now_us)]
        if missing:
            self._learn([column.take(pa.array(missing)) for column in asked], now_us, fetch)
        places = [self._used(key) for key in values]
        at = np.array(places, np.int64).reshape(-1, 2)[codes]
        found = Found(self.rows, at[:, 0], at[:, 1])
        self._shrink()
        return found

    def _has(self, key: Hashable, now_us: int) -> bool:
        entry = self.places.get(key)
        return entry is not None and entry.until_us > now_us

    def _used(self, key: Hashable) -> tuple[int, int]:
        entry = self.places[key] = self.places.pop(key)
        return entry.start, entry.count

    def _learn(
        self, keys: list[pa.Array], now_us: int, fetch: Callable[[list[pa.Array]], pa.Table]
    ) -> None:
        rows, found, starts, counts = by_key(fetch(keys), self.keys)
        until_us = now_us + self.ttl_us
        first = self.rows.num_rows
        asked = set(key_values(keys))
        for key in asked:
            self._put(key, _Entry(0, 0, until_us))
        for key, start, count in zip(found, starts.tolist(), counts.tolist(), strict=True):
            if key in asked:
                self._put(key, _Entry(first + start, count, until_us))
        self.rows = pa.concat_tables([self.rows, rows])

    def _put(self, key: Hashable, entry: _Entry) -> None:
        before = self.places.pop(key, None)
        self.kept += max(entry.count, 1) - (max(before.count, 1) if before is not None else 0)
        self.places[key] = entry

    def _shrink(self) -> None:
        """Forget what is too much; rows that nobody knows of go when they are the most."""
        while self.kept > self.most_rows and self.places:
            key = next(iter(self.places))
            self.kept -= max(self.places.pop(key).count, 1)
        known = sum(entry.count for entry in self.places.values())
        if self.rows.num_rows > 2 * known + 1_024:
            self._pack(known)
        elif self.rows.column(0).num_chunks > 64:
            self.rows = self.rows.combine_chunks()

    def _pack(self, known: int) -> None:
        taken = np.zeros(known, np.int64)
        at = 0
        for entry in self.places.values():
            taken[at : at + entry.count] = np.arange(entry.start, entry.start + entry.count)
            entry.start = at
            at += entry.count
        self.rows = self.rows.take(pa.array(taken)).combine_chunks()


def listed(found: Found, asked: np.ndarray, count: int, kind: pa.DataType) -> pa.Array:
    """The answers as one list per row; `asked` are the rows that had a key to ask for."""
    counts = np.zeros(count, np.int64)
    counts[asked] = found.counts
    offsets = np.concatenate([[0], np.cumsum(counts)])
    total = int(offsets[-1])
    firsts = np.repeat(found.starts - offsets[:-1][asked], found.counts)
    taken = found.rows.take(pa.array(firsts + np.arange(total))).combine_chunks()
    arrays: list[Any] = [
        taken.column(place).combine_chunks().cast(kind.value_type.field(place).type)
        for place in range(kind.value_type.num_fields)
    ]
    fields = [kind.value_type.field(place) for place in range(kind.value_type.num_fields)]
    rows = pa.StructArray.from_arrays(arrays, fields=fields)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), rows, type=kind)
