"""Time buckets: how many segments an epoch writes, and how many rows closing reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.operators.harness import Query, Row, harness_of
from tidegate.columns import STORE_TIME
from tidegate.operators.aggregate.groups import WindowPanes
from tidegate.operators.kernels.arrays import int_column
from tidegate.operators.operator import KeyGroupState, Tables
from tidegate.operators.store import time_buckets
from tidegate.operators.store.time_buckets import TimeBucketStore
from tidegate.state.memory import MemoryStore

SCHEMA = pa.schema([(STORE_TIME, pa.int64()), ("n", pa.int64())])
SECOND = 1_000_000
HOUR = 3_600 * SECOND


class CountingState(KeyGroupState):
    """State that counts tables written, rows written and rows read."""

    def __init__(self) -> None:
        super().__init__(MemoryStore().backend(0, 0), b"fingerprint")
        self.tables_written = self.rows_read = self.rows_written = 0

    def put(self, name: str, key: bytes, tables: Tables) -> int:
        self.tables_written += 1
        self.rows_written += tables[0].num_rows
        return super().put(name, key, tables)

    def get(self, name: str, key: bytes, schemas: Any) -> Tables | None:
        tables = super().get(name, key, schemas)
        self.rows_read += tables[0].num_rows if tables is not None else 0
        return tables


def store_of(state: KeyGroupState) -> TimeBucketStore:
    return TimeBucketStore(state, (SCHEMA,), None)


def rows_at(times: Any) -> Tables:
    times = np.asarray(times, np.int64)
    return (pa.table([times, np.arange(len(times))], schema=SCHEMA),)


def random_rows(count: int, span_us: int, start_us: int = 0, seed: int = 1) -> Tables:
    """Return rows at random times of a span, unordered."""
    return rows_at(start_us + np.random.default_rng(seed).integers(0, span_us, count))


def load_panes(store: TimeBucketStore, first: int | None, limit: int) -> list[int]:
    return sorted(
        int(p) for part in store.load(first, limit) for p in int_column(part[0], STORE_TIME)
    )


@pytest.mark.parametrize("minutes", [1, 10, 60])
def test_segments_of_the_first_epoch_do_not_depend_on_its_time_span(minutes: int) -> None:
    state = CountingState()
    store_of(state).append(random_rows(60_000, minutes * 60 * SECOND))
    assert state.tables_written <= 60_000 // time_buckets._BUCKET_ROWS + 1
    assert state.rows_written == 60_000


def test_closing_reads_at_most_one_bucket_more_than_the_due_rows() -> None:
    state = CountingState()
    store = store_of(state)
    store.append(random_rows(60_000, HOUR))
    closing = load_panes(store, None, 60 * SECOND)
    assert len(closing) == pytest.approx(1_000, rel=0.2)
    assert state.rows_read <= len(closing) + time_buckets._BUCKET_ROWS
    store.drop_before(60 * SECOND)
    assert load_panes(store, None, 60 * SECOND) == []


def test_sparse_first_rows_do_not_make_later_buckets_wide() -> None:
    state = CountingState()
    store = store_of(state)
    store.append(random_rows(20, 24 * HOUR))
    for minute in range(40):
        store.append(random_rows(2_000, 60 * SECOND, minute * 60 * SECOND, minute))
    state.rows_read = 0
    closing = load_panes(store, None, 60 * SECOND)
    assert len(closing) >= 2_000
    assert state.rows_read <= len(closing) + 3 * time_buckets._BUCKET_ROWS


def test_rows_are_rewritten_only_a_few_times() -> None:
    state = CountingState()
    store = store_of(state)
    for epoch in range(600):
        store.append(random_rows(100, 5 * SECOND, epoch * SECOND, epoch))
        store.drop_before((epoch - 120) * SECOND)
        store.save()
    assert state.rows_written <= 4 * 60_000
    assert len(store.buckets) <= 12


def test_large_pane_is_not_read_when_the_next_one_starts() -> None:
    state = CountingState()
    store = store_of(state)
    store.append(rows_at(np.zeros(50_000)))
    for epoch in range(5):
        store.append(rows_at(np.full(100, 10 + epoch)))
    assert state.rows_read == 0
    store.append(rows_at(np.full(100, 0)))
    assert (state.rows_read, len(store.buckets)) == (0, 2)


def test_number_of_buckets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_buckets, "_BUCKET_ROWS", 4)
    monkeypatch.setattr(time_buckets, "_MAX_BUCKETS", 16)
    state = CountingState()
    store = store_of(state)
    expected: list[int] = []
    for epoch in range(200):
        new = random_rows(50, HOUR, 0, epoch)
        expected += int_column(new[0], STORE_TIME).tolist()
        store.append(new)
    assert len(store.buckets) <= 16
    starts = [bucket.first_us for bucket in store.buckets]
    ends = [bucket.last_us for bucket in store.buckets]
    assert all(end < start for end, start in zip(ends, starts[1:], strict=False))
    assert load_panes(store, None, HOUR) == sorted(expected)


def test_rows_of_a_pane_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_buckets, "_BUCKET_ROWS", 3)
    monkeypatch.setattr(time_buckets, "_FANOUT", 2)
    state = CountingState()
    store = store_of(state)
    random = np.random.default_rng(1)
    for epoch in range(50):
        panes = random.integers(0, 6, 7)
        values = epoch * 10 + np.arange(7)
        store.append((pa.table([panes, values], schema=SCHEMA),))
    for pane in range(6):
        numbers = [
            n for part in store.load(pane, pane + 1) for n in part[0].column("n").to_pylist()
        ]
        assert numbers == sorted(numbers)
    assert sum(bucket.rows for bucket in store.buckets) == 350


def test_index_survives_a_restart() -> None:
    state = CountingState()
    store = store_of(state)
    store.append(random_rows(20_000, HOUR))
    store.drop_before(HOUR // 2)
    store.save()
    again = store_of(state)
    assert again.buckets == store.buckets
    assert load_panes(again, None, HOUR) == load_panes(store, None, HOUR)


def test_buckets_of_dense_rows_after_a_restart() -> None:
    """The buckets of the stored index and those of new rows must not overlap."""
    run = harness_of(Query(panes=WindowPanes("TUMBLE", 1, 1)), key_groups=1)
    for first in (0, 100):
        run.rows([Row(first + number) for number in range(100)], -5)
        run.restart()
    assert sorted(run.end().rows) == [(number, number + 1, 1) for number in range(200)]
