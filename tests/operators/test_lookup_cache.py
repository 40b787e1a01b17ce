"""Lookup results, from memory and from a cache: equal to a search through all rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidegate.operators.join.lookup_cache import (
    LookupCache,
    LookupResult,
    PreloadedTable,
    encode_keys,
    key_values,
    to_list_array,
)

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("x", pa.int64())])
KEYS = ("a", "b")
LISTS = pa.list_(pa.field("element", pa.struct(list(SCHEMA))))
TableRow = tuple[int | None, str | None, int]
Key = tuple[int, str]
ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 4)),
        st.sampled_from(["p", "q", None]),
        st.integers(0, 99),
    ),
    max_size=20,
)
REQUESTS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["p", "q", "r"])), min_size=1, max_size=12
)


def table(rows: list[TableRow]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [[], [], []]
    return pa.table(
        [pa.array(list(c), f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def columns_of(keys: list[Key]) -> list[pa.Array]:
    return [pa.array([a for a, _ in keys], pa.int64()), pa.array([b for _, b in keys])]


def values_of(result: LookupResult, count: int) -> list[list[int]]:
    """Return the x of the rows for each requested key."""
    lists = to_list_array(result, np.arange(count), count, LISTS).to_pylist()
    return [sorted(item["x"] for item in rows) for rows in lists]


def search(rows: list[TableRow], keys: list[Key]) -> list[list[int]]:
    return [sorted(x for a, b, x in rows if (a, b) == key) for key in keys]


@given(ROWS, REQUESTS)
def test_preloaded_table_returns_the_rows_of_each_key(
    rows: list[TableRow], keys: list[Key]
) -> None:
    result = PreloadedTable(table(rows), KEYS).find(columns_of(keys))
    assert values_of(result, len(keys)) == search(rows, keys)


@given(ROWS, st.integers(1, 12))
def test_preloaded_table_without_keys_returns_all_rows(rows: list[TableRow], count: int) -> None:
    result = PreloadedTable(table(rows), ()).find([pa.array([True] * count)])
    assert values_of(result, count) == [sorted(x for _, _, x in rows)] * count


class Database:
    """Returns rows by key and records the requests."""

    def __init__(self, rows: list[TableRow]) -> None:
        self.rows = rows
        self.requests: list[list] = []

    def fetch(self, columns: list[pa.Array]) -> pa.Table:
        keys = key_values(columns)
        self.requests.append(keys)
        return table([row for row in self.rows if (row[0], row[1]) in keys])


@given(ROWS, st.lists(REQUESTS, min_size=1, max_size=6), st.integers(0, 6))
def test_cache_of_any_size_returns_the_rows_of_each_key(
    rows: list[TableRow], batches: list[list[Key]], max_rows: int
) -> None:
    database = Database(rows)
    cache = LookupCache(SCHEMA, KEYS, max_rows, 1_000)
    for keys in batches:
        result = cache.find(columns_of(keys), 0, database.fetch)
        assert values_of(result, len(keys)) == search(rows, keys)
        assert cache.size <= max_rows
        counts = [int(cache.counts[entry]) for entry in cache.entries.values()]
        assert (cache.size, cache.cached_rows) == (sum(max(n, 1) for n in counts), sum(counts))
    assert all(len(set(keys)) == len(keys) for keys in database.requests), "each key once"


def test_cache_fetches_missing_and_expired_keys_once_per_batch() -> None:
    database = Database([(1, "p", 10), (1, "p", 11), (2, "p", 20)])
    cache = LookupCache(SCHEMA, KEYS, 100, 1_000)

    def find(*keys: Key, now_us: int) -> list[list[int]]:
        return values_of(cache.find(columns_of(list(keys)), now_us, database.fetch), len(keys))

    first = find((1, "p"), (2, "p"), (3, "p"), (1, "p"), now_us=0)
    assert first == [[10, 11], [20], [], [10, 11]]
    assert database.requests == [[(1, "p"), (2, "p"), (3, "p")]]
    # A key without rows is cached as well.
    assert find((3, "p"), (2, "p"), now_us=999) == [[], [20]]
    assert len(database.requests) == 1
    database.rows = [(2, "p", 21)]
    assert find((2, "p"), (3, "p"), now_us=1_000) == [[21], []]
    assert database.requests[1:] == [[(2, "p"), (3, "p")]]


def test_cache_evicts_the_least_recently_used_key() -> None:
    database = Database([(key, "p", key) for key in range(9)])
    cache = LookupCache(SCHEMA, KEYS, 3, 1_000)
    for key in (1, 2, 3, 1, 4):
        cache.find(columns_of([(key, "p")]), 0, database.fetch)
    assert set(cache.entries) == {(3, "p"), (1, "p"), (4, "p")}


def test_cache_compacts_unreferenced_rows() -> None:
    cache = LookupCache(SCHEMA, KEYS, 10, 1_000)
    for key in range(5_000):
        cache.find(columns_of([(key, "p")]), 0, lambda keys: table([(keys[0][0].as_py(), "p", 7)]))
    assert cache.rows.num_rows < 2_000
    assert len(cache.starts) < 2_000
    assert len(cache.entries) == 10


def test_codes_of_keys_with_many_columns_do_not_overflow() -> None:
    columns = [pa.array(np.arange(70_000) * (index + 1)) for index in range(5)]
    distinct, codes = encode_keys(columns)
    assert len(distinct[0]) == 70_000
    for keys, column in zip(distinct, columns, strict=True):
        assert keys.take(pa.array(codes)).equals(column)
