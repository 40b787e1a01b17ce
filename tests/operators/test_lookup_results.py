"""Rows by key, with a cache, against a plain dictionary."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidegate.operators.join.lookup_results import (
    LookupCache,
    LookupResult,
    PreloadedTable,
    encode_keys,
    key_values,
    to_list_array,
)

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("x", pa.int64())])
KINDS = pa.list_(pa.field("element", pa.struct(list(SCHEMA))))
row = st.tuples(
    st.one_of(st.none(), st.integers(0, 4)), st.sampled_from(["p", "q", None]), st.integers(0, 99)
)
keys = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["p", "q", "r"])), min_size=1, max_size=12
)


def table(rows: list[tuple[int | None, str | None, int]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [[], [], []]
    return pa.table(
        [pa.array(list(c), f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def asked(wanted: list[tuple[int, str]]) -> list[pa.Array]:
    return [pa.array([a for a, _ in wanted], pa.int64()), pa.array([b for _, b in wanted])]


def answers(found: LookupResult, count: int) -> list[list[int]]:
    lists = to_list_array(found, np.arange(count), count, KINDS).to_pylist()
    return [sorted(item["x"] for item in rows) for rows in lists]


@given(st.lists(row, max_size=20), keys)
def test_a_whole_table_finds_what_a_search_finds(rows: list, wanted: list) -> None:
    found = PreloadedTable(table(rows), ("a", "b")).find(asked(wanted))
    expected = [sorted(x for a, b, x in rows if (a, b) == key) for key in wanted]
    assert answers(found, len(wanted)) == expected


@given(st.lists(row, max_size=20), keys)
def test_without_keys_everybody_finds_the_whole_table(rows: list, wanted: list) -> None:
    found = PreloadedTable(table(rows), ()).find([pa.array([True] * len(wanted))])
    assert answers(found, len(wanted)) == [sorted(x for _, _, x in rows)] * len(wanted)


class Database:
    """Counts what it is asked."""

    def __init__(self, rows: list) -> None:
        self.rows = rows
        self.asked: list[list] = []

    def fetch(self, columns: list[pa.Array]) -> pa.Table:
        wanted = key_values(columns)
        self.asked.append(wanted)
        return table([row for row in self.rows if (row[0], row[1]) in wanted])


@given(st.lists(row, max_size=20), st.lists(keys, min_size=1, max_size=6), st.integers(0, 6))
def test_a_cache_of_any_size_gives_the_same_answers(rows: list, batches: list, most: int) -> None:
    database = Database(rows)
    cache = LookupCache(SCHEMA, ("a", "b"), most, 1_000)
    for wanted in batches:
        found = cache.find(asked(wanted), 0, database.fetch)
        expected = [sorted(x for a, b, x in rows if (a, b) == key) for key in wanted]
        assert answers(found, len(wanted)) == expected
        assert cache.size <= most
        counts = [int(cache.counts[number]) for number in cache.entries.values()]
        assert (cache.size, cache.cached_rows) == (sum(max(n, 1) for n in counts), sum(counts))
    assert all(len(set(batch)) == len(batch) for batch in database.asked), "each key once"


def test_one_question_per_batch_and_none_for_what_is_known() -> None:
    database = Database([(1, "p", 10), (1, "p", 11), (2, "p", 20)])
    cache = LookupCache(SCHEMA, ("a", "b"), 100, 1_000)
    first = [(1, "p"), (2, "p"), (3, "p"), (1, "p")]
    assert answers(cache.find(asked(first), 0, database.fetch), 4) == [[10, 11], [20], [], [10, 11]]
    assert database.asked == [[(1, "p"), (2, "p"), (3, "p")]]
    # What is not there is known too.
    assert answers(cache.find(asked([(3, "p"), (2, "p")]), 999, database.fetch), 2) == [[], [20]]
    assert len(database.asked) == 1
    database.rows = [(2, "p", 21)]
    assert answers(cache.find(asked([(2, "p"), (3, "p")]), 1_000, database.fetch), 2) == [[21], []]
    assert database.asked[1:] == [[(2, "p"), (3, "p")]]


def test_what_was_asked_for_least_lately_is_forgotten_first() -> None:
    database = Database([(key, "p", key) for key in range(9)])
    cache = LookupCache(SCHEMA, ("a", "b"), 3, 1_000)
    for key in (1, 2, 3, 1, 4):
        cache.find(asked([(key, "p")]), 0, database.fetch)
    assert set(cache.entries) == {(3, "p"), (1, "p"), (4, "p")}


def test_rows_that_nobody_knows_of_any_more_are_let_go() -> None:
    cache = LookupCache(SCHEMA, ("a", "b"), 10, 1_000)
    for key in range(5_000):
        cache.find(asked([(key, "p")]), 0, lambda columns: table([(columns[0][0].as_py(), "p", 7)]))
    assert cache.rows.num_rows < 2_000
    assert len(cache.starts) < 2_000
    assert len(cache.entries) == 10


def test_distinct_keys_of_many_columns_do_not_overflow() -> None:
    columns = [pa.array(np.arange(70_000) * (place + 1)) for place in range(5)]
    found, codes = encode_keys(columns)
    assert len(found[0]) == 70_000
    assert [
        column.take(pa.array(codes)).equals(given)
        for column, given in zip(found, columns, strict=True)
    ] == [True] * 5
