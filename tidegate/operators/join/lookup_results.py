"""Rows of a lookup table by their keys. Python workers import it: it must load little.

Keys are handled as columns: the distinct ones of a batch are looked up one by one, everything else
is done for whole batches.
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
    """A table that is held in memory; without keys every row that asks gets all of it."""

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        self.rows, self.places = rows.combine_chunks(), {}
        self.keyed = bool(keys)
        if self.keyed:
            self.rows, found, starts, counts = by_key(rows, keys)
            pairs = zip(starts.tolist(), counts.tolist(), strict=True)
            self.places = dict(zip(found, pairs, strict=True))

    def find(self, keys: list[pa.Array]) -> LookupResult:
        if not self.keyed:
            count = len(keys[0])
            return LookupResult(
                self.rows, np.zeros(count, np.int64), np.full(count, self.rows.num_rows, np.int64)
            )
        asked, codes = distinct(keys)
        places = [self.places.get(key, (0, 0)) for key in key_values(asked)]
        at = np.array(places, np.int64).reshape(-1, 2)[codes]
        return LookupResult(self.rows, at[:, 0], at[:, 1])


@dataclass
class Cache:
    """Answers that were given lately: the rows of keys, and keys that have none.

    The one that was not asked for the longest goes first. An answer counts as one row if it has
    none. `fetch` asks for keys that are not here: all at once. An answer has a number, under which
    columns say where its rows begin and how many they are, until when it holds, and when it was
    asked for: only finding the numbers is work for each key.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    most_rows: int
    ttl_us: int
    rows: pa.Table = field(init=False)
    numbers: dict[Hashable, int] = field(default_factory=dict)
    starts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    until_us: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    used: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    # How often keys were asked for, what answers count as, and how many rows they have.
    asked: int = 0
    kept: int = 0
    known: int = 0

    def __post_init__(self) -> None:
        self.rows = self.schema.empty_table()

    def find(
        self, keys: list[pa.Array], now_us: int, fetch: Callable[[list[pa.Array]], pa.Table]
    ) -> LookupResult:
        asked, codes = distinct(keys)
        values = key_values(asked)
        at = self._numbers(values)
        missing = np.flatnonzero((at < 0) | (self._of(self.until_us, at) <= now_us))
        if len(missing):
            self._learn([column.take(pa.array(missing)) for column in asked], now_us, fetch)
            at = self._numbers(values)
        self.used[at] = self.asked + np.arange(len(at))
        self.asked += len(at)
        found = LookupResult(self.rows, self.starts[at][codes], self.counts[at][codes])
        self._shrink()
        return found

    def _numbers(self, values: Keys) -> np.ndarray:
        return np.fromiter(map(self.numbers.get, values, repeat(-1)), np.int64, len(values))

    def _of(self, column: np.ndarray, at: np.ndarray) -> np.ndarray:
        return column[at] if len(column) else np.zeros(len(at), np.int64)

    def _learn(
        self, keys: list[pa.Array], now_us: int, fetch: Callable[[list[pa.Array]], pa.Table]
    ) -> None:
        rows, found, starts, counts = by_key(fetch(keys), self.keys)
        answers = dict.fromkeys(key_values(keys), (0, 0))
        first = self.rows.num_rows
        for key, start, count in zip(found, starts.tolist(), counts.tolist(), strict=True):
            if key in answers:
                answers[key] = (first + start, count)
        before = self._numbers(list(answers))
        self._forget(before[before >= 0])
        self.numbers |= {key: len(self.starts) + place for place, key in enumerate(answers)}
        told = np.array(list(answers.values()), np.int64).reshape(-1, 2)
        self.starts = np.concatenate([self.starts, told[:, 0]])
        self.counts = np.concatenate([self.counts, told[:, 1]])
        until_us = np.full(len(told), now_us + self.ttl_us, np.int64)
        self.until_us = np.concatenate([self.until_us, until_us])
        self.used = np.concatenate([self.used, np.zeros(len(told), np.int64)])
        self.kept += int(np.maximum(told[:, 1], 1).sum())
        self.known += int(told[:, 1].sum())
        self.rows = pa.concat_tables([self.rows, rows])

    def _forget(self, at: np.ndarray) -> None:
        """Answers that nobody gets any more."""
        self.kept -= int(np.maximum(self.counts[at], 1).sum())
        self.known -= int(self.counts[at].sum())

    def _shrink(self) -> None:
        """Forget what is too much; rows that nobody knows of go when they are the most."""
        if self.kept > self.most_rows:
            keys, at = self._in_order()
            left = self.kept - np.cumsum(np.maximum(self.counts[at], 1))
            gone = int(np.argmax(left <= self.most_rows)) + 1
            self._forget(at[:gone])
            for key in keys[:gone]:
                del self.numbers[key]
        most = 2 * max(self.known, len(self.numbers)) + 1_024
        if max(self.rows.num_rows, len(self.starts)) > most:
            self._pack()
        elif self.rows.column(0).num_chunks > 64:
            self.rows = self.rows.combine_chunks()

    def _in_order(self) -> tuple[list[Hashable], np.ndarray]:
        """All keys and the numbers of their answers, the one not asked for the longest first."""
        at = np.fromiter(self.numbers.values(), np.int64, len(self.numbers))
        order = np.argsort(self.used[at])
        keys = list(self.numbers)
        return [keys[place] for place in order.tolist()], at[order]

    def _pack(self) -> None:
        at = np.fromiter(self.numbers.values(), np.int64, len(self.numbers))
        counts = self.counts[at]
        starts = np.cumsum(counts) - counts
        taken = np.repeat(self.starts[at] - starts, counts) + np.arange(self.known)
        self.rows = self.rows.take(pa.array(taken)).combine_chunks()
        self.numbers = dict(zip(self.numbers, range(len(at)), strict=True))
        self.starts, self.counts = starts, counts
        self.until_us, self.used = self.until_us[at], self.used[at]


def listed(found: LookupResult, asked: np.ndarray, count: int, kind: pa.DataType) -> pa.Array:
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
