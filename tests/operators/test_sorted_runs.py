"""Sorted runs equal a dict; and what an epoch reads and writes while the state grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.columns import HASH
from tidegate.operators.kernels.keys import group_ids
from tidegate.operators.operator import KeyGroupState, Limits, Tables
from tidegate.operators.store import sorted_runs
from tidegate.operators.store.sorted_runs import SortedRunStore, hashes_of
from tidegate.state.memory import MemoryStore
from tidegate.state.state_file import StateBackend

L = pa.int64()
# A table with one row per key, where n = 0 deletes the key; and a table of values in order.
KEYS = pa.schema([(HASH, L), ("k", L), ("at", L), ("n", L)])
VALUES = pa.schema([(HASH, L), ("at", L), ("v", L)])
EXTREMES = (-(2**63), -1, 0, 2**63 - 1)
DEFAULTS = {
    name: getattr(sorted_runs, name) for name in ("_FANOUT", "_SMALL_RUN_ROWS", "_SLICE_BYTES")
}


def keep_newest(tables: Tables) -> Tables:
    keys, values = tables
    ids, count = group_ids(keys, [HASH, "k"])
    last = np.zeros(count, np.int64)
    last[ids] = np.arange(keys.num_rows)
    return keys.take(pa.array(np.sort(last))), values


def drop_deleted(tables: Tables) -> Tables:
    keys, values = keep_newest(tables)
    return keys.filter(pc.not_equal(keys.column("n"), 0)), values


def store_of(state: KeyGroupState, tables_with_timers: int = 1) -> SortedRunStore:
    due = lambda table: np.asarray(table.column("at").to_numpy(), np.int64)  # noqa: E731
    return SortedRunStore(state, (KEYS, VALUES), keep_newest, drop_deleted, due, tables_with_timers)


def state_of(backend: StateBackend, stored: bytes | None = None) -> KeyGroupState:
    state = KeyGroupState(backend, b"fingerprint")
    if stored is not None:
        state.from_bytes(memoryview(stored))
    return state


def tables_of(keys: Sequence[tuple[int, ...]], values: Sequence[tuple[int, ...]]) -> Tables:
    columns = [list(zip(*rows, strict=True)) or [[]] * 4 for rows in (keys, values)]
    pairs = zip(columns, (KEYS, VALUES), strict=True)
    return tuple(
        pa.table([pa.array(c, L) for c in values[: len(schema)]], schema=schema)
        for values, schema in pairs
    )


# Against a model

HASHES = st.sampled_from([*EXTREMES, 1, 2, 3, 7])
KEY_ROWS = st.lists(
    st.tuples(HASHES, st.integers(0, 1), st.integers(0, 30), st.integers(0, 2)), max_size=5
)
VALUE_ROWS = st.lists(st.tuples(HASHES, st.integers(0, 30), st.integers(0, 99)), max_size=4)
HASH_LISTS = st.lists(HASHES, max_size=4)
OPERATIONS = st.one_of(
    st.tuples(st.just("append"), KEY_ROWS, VALUE_ROWS),
    st.tuples(st.just("replace"), HASH_LISTS, KEY_ROWS, VALUE_ROWS),
    st.tuples(st.just("load"), HASH_LISTS),
    st.tuples(st.just("due"), st.integers(0, 6)),
    st.tuples(st.just("load_all")),
    st.tuples(st.just("compact")),
    st.tuples(st.just("save")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("clear")),
)


class Model:
    """The content of a store: the rows of keys, and values in order."""

    def __init__(self) -> None:
        self.keys: dict[tuple[int, int], tuple[int, int]] = {}
        self.values: list[tuple[int, int, int]] = []
        # The keys whose timers have fired in earlier epochs, and in this epoch.
        self.fired: set[tuple[int, int]] = set()
        self.firing: set[tuple[int, int]] = set()

    def append(self, keys: Any, values: Any) -> None:
        for hashed, key, at, number in keys:
            self.keys[hashed, key] = (at, number)
            self.fired.discard((hashed, key))
            self.firing.discard((hashed, key))
        self.values += values

    def remove(self, hashes: set[int]) -> None:
        self.keys = {key: row for key, row in self.keys.items() if key[0] not in hashes}
        self.values = [row for row in self.values if row[0] not in hashes]

    def rows(self, hashes: set[int] | None = None) -> tuple[list[Any], list[Any]]:
        keys = [(*k, *row) for k, row in self.keys.items() if row[1]]
        if hashes is not None:
            keys = [row for row in keys if row[0] in hashes]
        values = [row for row in self.values if hashes is None or row[0] in hashes]
        return sorted(keys), sorted(values, key=lambda row: row[0])

    def due(self, until: int) -> set[int]:
        """Return the hashes whose timers must fire."""
        keys = {k for k, (at, number) in self.keys.items() if number and at <= until}
        self.firing |= keys
        return {hashed for hashed, key in keys if (hashed, key) not in self.fired}

    def save(self) -> None:
        self.fired |= self.firing
        self.firing = set()


def to_lists(tables: Tables) -> tuple[list[Any], list[Any]]:
    keys, values = ([tuple(row.values()) for row in table.to_pylist()] for table in tables)
    # Python's sort is stable, so the values of a hash keep their order.
    return sorted(keys), sorted(values, key=lambda row: row[0])


def to_array(hashes: Sequence[int]) -> Any:
    return np.asarray(hashes, np.int64)


@settings(deadline=None, max_examples=400)
@given(st.lists(OPERATIONS, max_size=30), st.sampled_from([2, 3, 100]))
def test_store_equals_a_dict(operations: list[tuple[Any, ...]], fanout: int) -> None:
    """The fanout determines the number of runs."""
    with patch.multiple(sorted_runs, _FANOUT=fanout, _SMALL_RUN_ROWS=0):
        compare_with_model(operations)


def compare_with_model(operations: list[tuple[Any, ...]]) -> None:
    backend, model, until = MemoryStore().backend(0, 0), Model(), 0
    state = state_of(backend)
    store = store_of(state)
    for name, *arguments in operations:
        if name == "append":
            store.append(tables_of(*arguments))
            model.append(*arguments)
        elif name == "replace":
            hashes, keys, values = arguments
            replaced = set(hashes)
            rows = tuple([r for r in table if r[0] in replaced] for table in (keys, values))
            store.replace(to_array(hashes), tables_of(*rows))
            model.remove(replaced)
            model.append(*rows)
        elif name == "load":
            assert to_lists(store.load(to_array(arguments[0]))) == model.rows(set(arguments[0]))
        elif name == "due":
            until += arguments[0]
            assert model.due(until) <= set(store.due_hashes(until).tolist())
        elif name == "load_all":
            assert to_lists(store.load_all()) == model.rows()
        elif name == "clear":
            store.clear()
            model = Model()
        else:
            if name == "compact":
                store.compact()
            store.save()
            model.save()
            keys, values = model.rows()
            is_compact = name == "compact"
            assert state.metrics["rows"] >= len(keys) + len(values)
            assert state.metrics["groups"] >= len(keys)
            assert not is_compact or state.metrics["groups"] == len(keys)
            if name == "restart":
                state = state_of(backend, state.to_bytes())
            store = store_of(state)
            all_hashes = [*EXTREMES, 1, 2, 3, 7]
            assert to_lists(store.load(to_array(all_hashes))) == model.rows()
    assert to_lists(store.load_all()) == model.rows()


EXPIRING = st.lists(
    st.tuples(
        st.lists(st.tuples(HASHES, st.integers(0, 1), st.integers(1, 9)), max_size=5),
        st.lists(st.tuples(HASHES, st.integers(1, 9)), max_size=3),
        st.integers(0, 4),
    ),
    max_size=20,
)


@settings(deadline=None, max_examples=200)
@given(EXPIRING)
def test_due_rows_expire_without_a_lookup(epochs: list[tuple[Any, Any, int]]) -> None:
    backend, floor, stored = MemoryStore().backend(0, 0), 0, None
    expected: list[tuple[int, ...]] = []
    for number, (keys, values, step) in enumerate(epochs):
        state = state_of(backend, stored)
        store = store_of(state, tables_with_timers=2)
        rows = [(hashed, floor + ahead, number) for hashed, ahead in values]
        store.append(tables_of([(h, k, floor + ahead, 1) for h, k, ahead in keys], rows))
        expected += rows
        floor += step
        store.drop_due(floor)
        expected = [row for row in expected if row[1] > floor]
        assert to_lists(store.load_all())[1] == sorted(expected, key=lambda row: row[0])
        store.save()
        stored = state.to_bytes()
    state = state_of(backend, stored)
    store = store_of(state, tables_with_timers=2)
    store.drop_due(floor + 10)
    store.save()
    assert state.metrics == {"rows": 0, "groups": 0, "bytes": 0}
    assert not state.inline and list(backend.scan("run")) == []


def test_load_returns_all_rows_with_the_same_hash() -> None:
    """Also if a run has several slices."""
    state = state_of(MemoryStore().backend(0, 0))
    store = store_of(state)
    for epoch in range(6):
        store.append(tables_of([(h % 3, epoch * 10 + h, 0, 1) for h in range(9)], []))
        store.save()
    assert max(len(run.slices) for run in store.runs) > 1
    keys, _ = store.load(to_array([1]))
    assert sorted(keys.column("k").to_pylist()) == [10 * e + h for e in range(6) for h in (1, 4, 7)]


def test_limit_counts_every_group_once() -> None:
    state = state_of(MemoryStore().backend(0, 0))
    store = store_of(state)
    for _ in range(3):
        store.append(tables_of([(h, 0, 0, 1) for h in range(10)], []))
        Limits(max_groups=10).enforce("test", store, state.metrics)
    assert state.metrics["groups"] == 10


def test_timer_of_a_row_added_after_due_hashes_fires_in_the_next_epoch() -> None:
    """Also if the store is compacted in between, as `Limits` does."""
    state = state_of(MemoryStore().backend(0, 0))
    store = store_of(state)
    assert len(store.due_hashes(5)) == 0
    store.append(tables_of([(1, 0, 3, 1), (2, 0, 7, 1)], []))
    store.save()
    store.append(tables_of([(1, 1, 4, 1)], []))
    store.compact()
    store.save()
    again = store_of(state)
    assert again.due_hashes(5).tolist() == [1]
    again.save()
    assert store_of(state).due_hashes(6).tolist() == []
    assert store_of(state).due_hashes(7).tolist() == [2]


# Costs


class CountingState(KeyGroupState):
    """State that counts entries read, rows taken and rows written."""

    def __init__(self) -> None:
        super().__init__(MemoryStore().backend(0, 0), b"fingerprint")
        self.entries_read = self.rows_taken = self.rows_written = 0

    def put(self, name: str, key: bytes, tables: Tables) -> int:
        self.rows_written += sum(table.num_rows for table in tables[:-1])
        return super().put(name, key, tables)

    def get(self, name: str, key: bytes, schemas: Any) -> Tables | None:
        self.entries_read += 1
        return super().get(name, key, schemas)


@pytest.fixture
def _default_sizes() -> Iterator[None]:
    with patch.multiple(sorted_runs, **DEFAULTS):
        yield


def state_with_groups(groups: int) -> CountingState:
    """Return state with this number of groups, written in epochs of some thousands."""
    state = CountingState()
    hashes = np.random.default_rng(1).permutation(np.arange(groups)) * 1_000_003
    for start in range(0, groups, 5_000):
        store = store_of(state)
        store.append(rows_of_keys(hashes[start : start + 5_000], 0))
        store.save()
    return state


def rows_of_keys(hashes: Any, at: int) -> Tables:
    count = len(hashes)
    keys = [hashes, np.zeros(count, int), np.full(count, at), np.ones(count, int)]
    return pa.table(keys, schema=KEYS), VALUES.empty_table()


def cost_of_epochs(
    state: CountingState, groups: int, monkeypatch: Any
) -> tuple[float, float, float]:
    """Return the mean entries read, rows taken and rows written per epoch of 100 random keys."""
    take = sorted_runs._take

    def counting_take(table: pa.Table, hashes: Any) -> pa.Table:
        rows = take(table, hashes)
        state.rows_taken += rows.num_rows
        return rows

    random = np.random.default_rng(2)
    state.entries_read = state.rows_written = 0
    with monkeypatch.context() as patched:
        patched.setattr(sorted_runs, "_take", counting_take)
        for epoch in range(100):
            store = store_of(state)
            expired = store.due_hashes(epoch)[:10]
            store.replace(expired, tuple(table.slice(0, 0) for table in store.load(expired)))
            hashes = random.choice(groups, 100, replace=False) * 1_000_003
            store.load(hashes)
            store.append(rows_of_keys(hashes, epoch + 10))
            store.save()
    return state.entries_read / 100, state.rows_taken / 100, state.rows_written / 100


@pytest.mark.usefixtures("_default_sizes")
def test_cost_of_an_epoch_does_not_depend_on_the_state_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, large = (
        cost_of_epochs(state_with_groups(groups), groups, monkeypatch)
        for groups in (5_000, 200_000)
    )
    assert large[0] <= small[0] + 8, "entries read"
    assert large[1] <= 2 * small[1], "rows taken"
    assert large[2] <= 2 * small[2], "rows written"
    assert large[1] <= 400 and large[2] <= 1_000


@pytest.mark.usefixtures("_default_sizes")
def test_number_of_runs_and_rewrites_is_small() -> None:
    state, max_runs = CountingState(), 0
    for epoch in range(1_000):
        store = store_of(state)
        store.append(rows_of_keys(np.arange(epoch * 100, epoch * 100 + 100) * 1_000_003, 0))
        store.save()
        max_runs = max(max_runs, len(store.runs))
    assert max_runs <= 20
    assert state.rows_written <= 8 * 100_000
    assert len(hashes_of(store.load_all()[0])) == 100_000


@pytest.mark.usefixtures("_default_sizes")
def test_state_of_mostly_dead_rows_is_compacted() -> None:
    state = CountingState()
    store = store_of(state)
    store.append(rows_of_keys(np.arange(10_000), 0))
    store.save()
    state.rows_written = 0
    for start in range(0, 9_900, 100):
        store = store_of(state)
        store.replace(np.arange(start, start + 100), tables_of([], []))
        store.save()
    assert state.rows_written <= 6 * 10_000, "tombstones are merged by size too"
    assert sum(run.rows for run in store.runs) <= 2 * state.metrics["rows"] + 200
    assert state.metrics["rows"] == 100
