"""Lookup joins: the rows of a lookup table by key, from memory or from a cache.

A batch is looked up at once: only its distinct keys are processed one by one, everything else is
vectorized. Python workers import this module, so it must not load more than Arrow and NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

Keys = list[Hashable]


@dataclass(frozen=True)
class LookupResult:
    """Rows of a lookup table, and for each key of the request its first row and number of rows."""

    rows: pa.Table
    starts: np.ndarray
    counts: np.ndarray


# ---- Keys


def encode_keys(columns: Sequence[pa.Array]) -> tuple[list[pa.Array], np.ndarray]:
    """Return the distinct keys as columns, and for each row the index of its key."""
    firsts: np.ndarray | None = None
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = column.dictionary_encode()
        column_codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        combined = codes * max(len(encoded.dictionary), 1) + column_codes
        # After every column there are at most as many codes as rows, so this cannot overflow.
        _, firsts, codes = np.unique(combined, return_index=True, return_inverse=True)
    assert firsts is not None, "a lookup has keys"
    indices = pa.array(firsts)
    return [column.take(indices) for column in columns], codes


def key_values(columns: Sequence[pa.Array]) -> Keys:
    """Return keys as Python values; times are integers, which can represent all of them."""
    lists = [_with_plain_times(column).to_pylist() for column in columns]
    return lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))


def _with_plain_times(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column


def key_columns(rows: pa.Table, names: Sequence[str]) -> list[pa.Array]:
    """Return the key columns as contiguous arrays."""
    return [rows.column(name).combine_chunks() for name in names]


def drop_null_keys(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Drop rows with NULL in their key: NULL equals nothing, so no lookup returns them."""
    for name in names:
        if rows.column(name).null_count:
            rows = rows.filter(rows.column(name).is_valid())
    return rows


def group_by_key(
    rows: pa.Table, names: Sequence[str]
) -> tuple[pa.Table, Keys, np.ndarray, np.ndarray]:
    """Return rows grouped by key, the keys, and each key's first row and number of rows."""
    rows = drop_null_keys(rows, names)
    if not rows.num_rows:
        return rows, [], np.zeros(0, np.int64), np.zeros(0, np.int64)
    keys, codes = encode_keys(key_columns(rows, names))
    counts = np.bincount(codes, minlength=len(keys[0])).astype(np.int64)
    starts = np.cumsum(counts) - counts
    grouped = rows.take(pa.array(np.argsort(codes, kind="stable"))).combine_chunks()
    return grouped, key_values(keys), starts, counts


# ---- Tables


class PreloadedTable:
    """A lookup table in memory; without keys every lookup returns all rows."""

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        self.rows, self.ranges = rows.combine_chunks(), {}
        self.has_keys = bool(keys)
        if self.has_keys:
            self.rows, values, starts, counts = group_by_key(rows, keys)
            ranges = zip(starts.tolist(), counts.tolist(), strict=True)
            self.ranges = dict(zip(values, ranges, strict=True))

    def find(self, keys: list[pa.Array]) -> LookupResult:
        """Return the rows of these keys."""
        if not self.has_keys:
            count = len(keys[0])
            return LookupResult(
                self.rows, np.zeros(count, np.int64), np.full(count, self.rows.num_rows, np.int64)
            )
        distinct, codes = encode_keys(keys)
        ranges = [self.ranges.get(key, (0, 0)) for key in key_values(distinct)]
        by_row = np.array(ranges, np.int64).reshape(-1, 2)[codes]
        return LookupResult(self.rows, by_row[:, 0], by_row[:, 1])


@dataclass
class LookupCache:
    """An LRU cache of lookup results: the rows of keys, and keys without rows.

    `find` fetches all missing keys at once. An entry without rows counts as one row towards
    `max_rows`. Each cached key has an entry number, the index into the arrays with the first row,
    the number of rows, the expiry and the last use of the entries. So only the search for entry
    numbers is work per key.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    max_rows: int
    ttl_us: int
    rows: pa.Table = field(init=False)
    entries: dict[Hashable, int] = field(default_factory=dict)
    starts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    expires_us: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    last_use: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    # The number of requested keys so far, and of the entries the size towards the limit and the
    # rows.
    requests: int = 0
    size: int = 0
    cached_rows: int = 0

    def __post_init__(self) -> None:
        self.rows = self.schema.empty_table()

    def find(
        self, keys: list[pa.Array], now_us: int, fetch: Callable[[list[pa.Array]], pa.Table]
    ) -> LookupResult:
        """Return the rows of these keys; `fetch` returns the rows of keys that are not cached."""
        distinct, codes = encode_keys(keys)
        values = key_values(distinct)
        entries = self._find_entries(values)
        is_missing = entries < 0
        if len(self.expires_us):
            is_missing |= self.expires_us[entries] <= now_us
        missing = np.flatnonzero(is_missing)
        if len(missing):
            self._fetch([column.take(pa.array(missing)) for column in distinct], now_us, fetch)
            entries = self._find_entries(values)
        self.last_use[entries] = self.requests + np.arange(len(entries))
        self.requests += len(entries)
        result = LookupResult(self.rows, self.starts[entries][codes], self.counts[entries][codes])
        self._evict()
        return result

    def _find_entries(self, keys: Keys) -> np.ndarray:
        """Return the entry numbers of keys, −1 for a key that is not cached."""
        return np.fromiter(map(self.entries.get, keys, repeat(-1)), np.int64, len(keys))

    def _fetch(
        self, keys: list[pa.Array], now_us: int, fetch: Callable[[list[pa.Array]], pa.Table]
    ) -> None:
        """Fetch keys and add or replace their entries."""
        rows, fetched, starts, counts = group_by_key(fetch(keys), self.keys)
        ranges = dict.fromkeys(key_values(keys), (0, 0))
        offset = self.rows.num_rows
        for key, start, count in zip(fetched, starts.tolist(), counts.tolist(), strict=True):
            if key in ranges:
                ranges[key] = (offset + start, count)
        replaced = self._find_entries(list(ranges))
        self._subtract_size(replaced[replaced >= 0])
        self.entries |= {key: len(self.starts) + index for index, key in enumerate(ranges)}
        new = np.array(list(ranges.values()), np.int64).reshape(-1, 2)
        self.starts = np.concatenate([self.starts, new[:, 0]])
        self.counts = np.concatenate([self.counts, new[:, 1]])
        expires_us = np.full(len(new), now_us + self.ttl_us, np.int64)
        self.expires_us = np.concatenate([self.expires_us, expires_us])
        self.last_use = np.concatenate([self.last_use, np.zeros(len(new), np.int64)])
        self.size += int(np.maximum(new[:, 1], 1).sum())
        self.cached_rows += int(new[:, 1].sum())
        self.rows = pa.concat_tables([self.rows, rows])

    def _subtract_size(self, entries: np.ndarray) -> None:
        self.size -= int(np.maximum(self.counts[entries], 1).sum())
        self.cached_rows -= int(self.counts[entries].sum())

    def _evict(self) -> None:
        """Evict the least recently used entries; compact if most stored rows are unreferenced."""
        if self.size > self.max_rows:
            keys, entries = self._by_last_use()
            remaining = self.size - np.cumsum(np.maximum(self.counts[entries], 1))
            evicted = int(np.argmax(remaining <= self.max_rows)) + 1
            self._subtract_size(entries[:evicted])
            for key in keys[:evicted]:
                del self.entries[key]
        limit = 2 * max(self.cached_rows, len(self.entries)) + 1_024
        if max(self.rows.num_rows, len(self.starts)) > limit:
            self._compact()
        elif self.rows.column(0).num_chunks > 64:
            self.rows = self.rows.combine_chunks()

    def _by_last_use(self) -> tuple[list[Hashable], np.ndarray]:
        """Return all keys and their entry numbers, the least recently used first."""
        entries = np.fromiter(self.entries.values(), np.int64, len(self.entries))
        order = np.argsort(self.last_use[entries])
        keys = list(self.entries)
        return [keys[index] for index in order.tolist()], entries[order]

    def _compact(self) -> None:
        """Rewrite the rows and the entries without those that are not in use."""
        entries = np.fromiter(self.entries.values(), np.int64, len(self.entries))
        counts = self.counts[entries]
        starts = np.cumsum(counts) - counts
        indices = np.repeat(self.starts[entries] - starts, counts) + np.arange(self.cached_rows)
        self.rows = self.rows.take(pa.array(indices)).combine_chunks()
        self.entries = dict(zip(self.entries, range(len(entries)), strict=True))
        self.starts, self.counts = starts, counts
        self.expires_us, self.last_use = self.expires_us[entries], self.last_use[entries]


def to_list_array(
    result: LookupResult, requested: np.ndarray, count: int, data_type: pa.DataType
) -> pa.Array:
    """Return one list of rows per input row; `requested` are the input rows that had a key."""
    counts = np.zeros(count, np.int64)
    counts[requested] = result.counts
    offsets = np.concatenate([[0], np.cumsum(counts)])
    total = int(offsets[-1])
    firsts = np.repeat(result.starts - offsets[:-1][requested], result.counts)
    rows = result.rows.take(pa.array(firsts + np.arange(total))).combine_chunks()
    fields = [data_type.value_type.field(index) for index in range(data_type.value_type.num_fields)]
    arrays: list[Any] = [
        rows.column(index).combine_chunks().cast(item.type) for index, item in enumerate(fields)
    ]
    structs = pa.StructArray.from_arrays(arrays, fields=fields)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs, type=data_type)
