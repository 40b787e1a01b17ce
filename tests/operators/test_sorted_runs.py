"""The log of keyed state, against a dict; and what an epoch reads and writes while it grows."""

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
from tidegate.operators.store import sorted_runs as runs
from tidegate.operators.store.sorted_runs import SortedRunStore, hashes_of
from tidegate.state.memory import MemoryStore
from tidegate.state.state_file import StateBackend

L = pa.int64()
# A row per key, of which the newest counts and n = 0 removes it; and values in the order they came.
KEYS = pa.schema([(HASH, L), ("k", L), ("at", L), ("n", L)])
VALUES = pa.schema([(HASH, L), ("at", L), ("v", L)])
EXTREMES = (-(2**63), -1, 0, 2**63 - 1)
AS_THEY_ARE = {name: getattr(runs, name) for name in ("_FANOUT", "_SMALL_RUN_ROWS", "_SLICE_BYTES")}


def newest(tables: Tables) -> Tables:
    keys, values = tables
    ids, count = group_ids(keys, [HASH, "k"])
    last = np.zeros(count, np.int64)
    last[ids] = np.arange(keys.num_rows)
    return keys.take(pa.array(np.sort(last))), values


def standing(tables: Tables) -> Tables:
    keys, values = newest(tables)
    return keys.filter(pc.not_equal(keys.column("n"), 0)), values


def log_of(state: KeyGroupState, timed: int = 1) -> SortedRunStore:
    due = lambda table: np.asarray(table.column("at").to_numpy(), np.int64)  # noqa: E731
    return SortedRunStore(state, (KEYS, VALUES), newest, standing, due, timed)


def state_of(backend: StateBackend, stored: bytes | None = None) -> KeyGroupState:
    state = KeyGroupState(backend, b"the runs")
    if stored is not None:
        state.from_bytes(memoryview(stored))
    return state


def tables_of(keys: Sequence[tuple[int, ...]], values: Sequence[tuple[int, ...]]) -> Tables:
    columns = [list(zip(*rows, strict=True)) or [[]] * 4 for rows in (keys, values)]
    pairs = zip(columns, (KEYS, VALUES), strict=True)
    return tuple(
        pa.table([pa.array(c, L) for c in made[: len(schema)]], schema=schema)
        for made, schema in pairs
    )


# Against a model

HASHES = st.sampled_from([*EXTREMES, 1, 2, 3, 7])
KEY_ROWS = st.lists(
    st.tuples(HASHES, st.integers(0, 1), st.integers(0, 30), st.integers(0, 2)), max_size=5
)
VALUE_ROWS = st.lists(st.tuples(HASHES, st.integers(0, 30), st.integers(0, 99)), max_size=4)
ASKED = st.lists(HASHES, max_size=4)
OPERATIONS = st.one_of(
    st.tuples(st.just("append"), KEY_ROWS, VALUE_ROWS),
    st.tuples(st.just("replace"), ASKED, KEY_ROWS, VALUE_ROWS),
    st.tuples(st.just("load"), ASKED),
    st.tuples(st.just("due"), st.integers(0, 6)),
    st.tuples(st.just("everything")),
    st.tuples(st.just("compact")),
    st.tuples(st.just("save")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("clear")),
)


class Model:
    """What a log holds: of each hash the rows by key, and values in order."""

    def __init__(self) -> None:
        self.keys: dict[tuple[int, int], tuple[int, int]] = {}
        self.values: list[tuple[int, int, int]] = []
        # Keys that were handed out as due, in an epoch before this one and in this one.
        self.handed: set[tuple[int, int]] = set()
        self.handing: set[tuple[int, int]] = set()

    def append(self, keys: Any, values: Any) -> None:
        for hashed, key, at, number in keys:
            self.keys[hashed, key] = (at, number)
            self.handed.discard((hashed, key))
            self.handing.discard((hashed, key))
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

    def due(self, mark: int) -> set[int]:
        """The hashes that must be handed out."""
        keys = {k for k, (at, number) in self.keys.items() if number and at <= mark}
        self.handing |= keys
        return {hashed for hashed, key in keys if (hashed, key) not in self.handed}

    def saved(self) -> None:
        self.handed |= self.handing
        self.handing = set()


def listed(tables: Tables) -> tuple[list[Any], list[Any]]:
    keys, values = ([tuple(row.values()) for row in table.to_pylist()] for table in tables)
    # Python's sort is stable: the values of a hash stay in their order.
    return sorted(keys), sorted(values, key=lambda row: row[0])


def ints_of(hashes: Sequence[int]) -> Any:
    return np.asarray(hashes, np.int64)


@settings(deadline=None, max_examples=400)
@given(st.lists(OPERATIONS, max_size=30), st.sampled_from([2, 3, 100]))
def test_a_log_holds_what_a_dict_holds(operations: list[tuple[Any, ...]], fanout: int) -> None:
    """With another fanout more or fewer runs lie above each other."""
    with patch.multiple(runs, _FANOUT=fanout, _SMALL_RUN_ROWS=0):
        compare(operations)


def compare(operations: list[tuple[Any, ...]]) -> None:
    backend, model, mark = MemoryStore().backend(0, 0), Model(), 0
    state = state_of(backend)
    log = log_of(state)
    for name, *given_to in operations:
        if name == "append":
            log.append(tables_of(*given_to))
            model.append(*given_to)
        elif name == "replace":
            hashes, keys, values = given_to
            own = set(hashes)
            rows = [r for r in keys if r[0] in own], [r for r in values if r[0] in own]
            log.replace(ints_of(hashes), tables_of(*rows))
            model.remove(own)
            model.append(*rows)
        elif name == "load":
            assert listed(log.load(ints_of(given_to[0]))) == model.rows(set(given_to[0]))
        elif name == "due":
            mark += given_to[0]
            assert model.due(mark) <= set(log.due_hashes(mark).tolist())
        elif name == "everything":
            assert listed(log.load_all()) == model.rows()
        elif name == "clear":
            log.clear()
            model = Model()
        else:
            if name == "compact":
                log.compact()
            log.save()
            model.saved()
            keys, values = model.rows()
            exact = name == "compact"
            assert state.gauges["rows"] >= len(keys) + len(values)
            assert state.gauges["groups"] >= len(keys)
            assert not exact or state.gauges["groups"] == len(keys)
            if name == "restart":
                state = state_of(backend, state.to_bytes())
            log = log_of(state)
            every = [*EXTREMES, 1, 2, 3, 7]
            assert listed(log.load(ints_of(every))) == model.rows()
    assert listed(log.load_all()) == model.rows()


FALLING = st.lists(
    st.tuples(
        st.lists(st.tuples(HASHES, st.integers(0, 1), st.integers(1, 9)), max_size=5),
        st.lists(st.tuples(HASHES, st.integers(1, 9)), max_size=3),
        st.integers(0, 4),
    ),
    max_size=20,
)


@settings(deadline=None, max_examples=200)
@given(FALLING)
def test_rows_that_are_due_fall(epochs: list[tuple[Any, Any, int]]) -> None:
    """What comes is due after the mark; the mark passes it without a lookup."""
    backend, mark, stored = MemoryStore().backend(0, 0), 0, None
    expected: list[tuple[int, ...]] = []
    for number, (keys, values, step) in enumerate(epochs):
        state = state_of(backend, stored)
        log = log_of(state, timed=2)
        rows = [(hashed, mark + ahead, number) for hashed, ahead in values]
        log.append(tables_of([(h, k, mark + ahead, 1) for h, k, ahead in keys], rows))
        expected += rows
        mark += step
        log.drop_due(mark)
        expected = [row for row in expected if row[1] > mark]
        assert listed(log.load_all())[1] == sorted(expected, key=lambda row: row[0])
        log.save()
        stored = state.to_bytes()
    state = state_of(backend, stored)
    log = log_of(state, timed=2)
    log.drop_due(mark + 10)
    log.save()
    assert state.gauges == {"rows": 0, "groups": 0, "bytes": 0}
    assert not state.inline and list(backend.scan("run")) == []


def test_hashes_collide_and_slices_end_between_hashes() -> None:
    """All rows of a hash are found, however many there are and wherever a slice was cut."""
    state = state_of(MemoryStore().backend(0, 0))
    log = log_of(state)
    for epoch in range(6):
        log.append(tables_of([(h % 3, epoch * 10 + h, 0, 1) for h in range(9)], []))
        log.save()
    assert max(len(run.slices) for run in log.runs) > 1
    keys, _ = log.load(ints_of([1]))
    assert sorted(keys.column("k").to_pylist()) == [10 * e + h for e in range(6) for h in (1, 4, 7)]


def test_a_limit_counts_every_group_once() -> None:
    state = state_of(MemoryStore().backend(0, 0))
    log = log_of(state)
    for _ in range(3):
        log.append(tables_of([(h, 0, 0, 1) for h in range(10)], []))
        Limits(groups=10).enforce("test", log, state.gauges)
    assert state.gauges["groups"] == 10


def test_what_comes_too_late_to_be_asked_for_is_handed_out_next() -> None:
    """Also if the log is compacted in between, as a limit does it."""
    state = state_of(MemoryStore().backend(0, 0))
    log = log_of(state)
    assert len(log.due_hashes(5)) == 0
    log.append(tables_of([(1, 0, 3, 1), (2, 0, 7, 1)], []))
    log.save()
    log.append(tables_of([(1, 1, 4, 1)], []))
    log.compact()
    log.save()
    again = log_of(state)
    assert again.due_hashes(5).tolist() == [1]
    again.save()
    assert log_of(state).due_hashes(6).tolist() == []
    assert log_of(state).due_hashes(7).tolist() == [2]


# What it costs


class Counting(KeyGroupState):
    """State that counts what is written and read."""

    def __init__(self) -> None:
        super().__init__(MemoryStore().backend(0, 0), b"the runs")
        self.entries_read = self.rows_taken = self.rows_written = 0

    def put(self, name: str, key: bytes, tables: Tables) -> int:
        self.rows_written += sum(table.num_rows for table in tables[:-1])
        return super().put(name, key, tables)

    def get(self, name: str, key: bytes, schemas: Any) -> Tables | None:
        self.entries_read += 1
        return super().get(name, key, schemas)


@pytest.fixture
def _sizes() -> Iterator[None]:
    with patch.multiple(runs, **AS_THEY_ARE):
        yield


def grown(groups: int) -> Counting:
    """A state of so many groups, by epochs of some thousands."""
    state = Counting()
    hashes = np.random.default_rng(1).permutation(np.arange(groups)) * 1_000_003
    for start in range(0, groups, 5_000):
        log = log_of(state)
        log.append(touched(hashes[start : start + 5_000], 0))
        log.save()
    return state


def touched(hashes: Any, at: int) -> Tables:
    count = len(hashes)
    keys = [hashes, np.zeros(count, int), np.full(count, at), np.ones(count, int)]
    return pa.table(keys, schema=KEYS), VALUES.empty_table()


def cost_of_epochs(state: Counting, groups: int, monkeypatch: Any) -> tuple[float, float, float]:
    """Entries read, rows taken and rows written per epoch of 100 scattered keys, on average."""
    taken = runs._take

    def counted(table: pa.Table, hashes: Any) -> pa.Table:
        found = taken(table, hashes)
        state.rows_taken += found.num_rows
        return found

    random = np.random.default_rng(2)
    state.entries_read = state.rows_written = 0
    with monkeypatch.context() as patched:
        patched.setattr(runs, "_take", counted)
        for epoch in range(100):
            log = log_of(state)
            forgotten = log.due_hashes(epoch)[:10]
            log.replace(forgotten, tuple(table.slice(0, 0) for table in log.load(forgotten)))
            hashes = random.choice(groups, 100, replace=False) * 1_000_003
            log.load(hashes)
            log.append(touched(hashes, epoch + 10))
            log.save()
    return state.entries_read / 100, state.rows_taken / 100, state.rows_written / 100


@pytest.mark.usefixtures("_sizes")
def test_an_epoch_costs_what_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (
        cost_of_epochs(grown(groups), groups, monkeypatch) for groups in (5_000, 200_000)
    )
    assert large[0] <= small[0] + 8, "entries that are read"
    assert large[1] <= 2 * small[1], "rows that are taken"
    assert large[2] <= 2 * small[2], "rows that are written"
    assert large[1] <= 400 and large[2] <= 1_000


@pytest.mark.usefixtures("_sizes")
def test_there_are_few_runs_and_a_row_is_rewritten_a_few_times() -> None:
    state, most = Counting(), 0
    for epoch in range(1_000):
        log = log_of(state)
        log.append(touched(np.arange(epoch * 100, epoch * 100 + 100) * 1_000_003, 0))
        log.save()
        most = max(most, len(log.runs))
    assert most <= 20
    assert state.rows_written <= 8 * 100_000
    assert len(hashes_of(log.load_all()[0])) == 100_000


@pytest.mark.usefixtures("_sizes")
def test_what_is_gone_is_given_up() -> None:
    """State that shrinks by replacing is stored anew before it is mostly dead rows."""
    state = Counting()
    log = log_of(state)
    log.append(touched(np.arange(10_000), 0))
    log.save()
    state.rows_written = 0
    for start in range(0, 9_900, 100):
        log = log_of(state)
        log.replace(np.arange(start, start + 100), tables_of([], []))
        log.save()
    assert state.rows_written <= 6 * 10_000, "what says that rows are gone is merged by size too"
    assert sum(run.rows for run in log.runs) <= 2 * state.gauges["rows"] + 200
    assert state.gauges["rows"] == 100
