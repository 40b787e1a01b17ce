"""The log of time-ordered state: how many segments an epoch writes, and what closing reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.columns import PANE
from tidegate.operators.kernels.arrays import int_column
from tidegate.operators.operator import KeyGroupState, Tables
from tidegate.operators.store import time_buckets as segments
from tidegate.operators.store.time_buckets import TimeBucketStore
from tidegate.state.memory import MemoryStore

SCHEMA = pa.schema([(PANE, pa.int64()), ("n", pa.int64())])
SECOND = 1_000_000
HOUR = 3_600 * SECOND


class Counting(KeyGroupState):
    """State that counts what is written and read."""

    def __init__(self) -> None:
        super().__init__(MemoryStore().backend(0, 0), b"segments", "a log")
        self.written = self.rows_read = self.rows_written = 0

    def put(self, name: str, key: bytes, tables: Tables) -> int:
        self.written += 1
        self.rows_written += tables[0].num_rows
        return super().put(name, key, tables)

    def get(self, name: str, key: bytes, schemas: Any) -> Tables | None:
        tables = super().get(name, key, schemas)
        self.rows_read += tables[0].num_rows if tables is not None else 0
        return tables


def log_of(state: KeyGroupState) -> TimeBucketStore:
    return TimeBucketStore(state, (SCHEMA,), None)


def rows(times: Any) -> Tables:
    times = np.asarray(times, np.int64)
    return (pa.table([times, np.arange(len(times))], schema=SCHEMA),)


def spread(count: int, span_us: int, start_us: int = 0, seed: int = 1) -> Tables:
    """Rows at random times of a span, in any order."""
    return rows(start_us + np.random.default_rng(seed).integers(0, span_us, count))


def loaded(log: TimeBucketStore, first: int | None, limit: int) -> list[int]:
    return sorted(int(p) for part in log.load(first, limit) for p in int_column(part[0], PANE))


@pytest.mark.parametrize("minutes", [1, 10, 60])
def test_a_first_epoch_writes_as_many_segments_however_long_it_is(minutes: int) -> None:
    state = Counting()
    log_of(state).append(spread(60_000, minutes * 60 * SECOND))
    assert state.written <= 60_000 // segments._BUCKET_ROWS + 1
    assert state.rows_written == 60_000


def test_closing_reads_what_closes_and_a_bucket_at_most() -> None:
    state = Counting()
    log = log_of(state)
    log.append(spread(60_000, HOUR))
    closing = loaded(log, None, 60 * SECOND)
    assert len(closing) == pytest.approx(1_000, rel=0.2)
    assert state.rows_read <= len(closing) + segments._BUCKET_ROWS
    log.drop_before(60 * SECOND)
    assert loaded(log, None, 60 * SECOND) == []


def test_few_rows_over_a_day_do_not_make_later_buckets_wide() -> None:
    """What comes first decides nothing: dense rows that follow lie in short buckets."""
    state = Counting()
    log = log_of(state)
    log.append(spread(20, 24 * HOUR))
    for minute in range(40):
        log.append(spread(2_000, 60 * SECOND, minute * 60 * SECOND, minute))
    state.rows_read = 0
    closing = loaded(log, None, 60 * SECOND)
    assert len(closing) >= 2_000
    assert state.rows_read <= len(closing) + 3 * segments._BUCKET_ROWS


def test_steady_epochs_rewrite_a_row_a_few_times() -> None:
    state = Counting()
    log = log_of(state)
    for epoch in range(600):
        log.append(spread(100, 5 * SECOND, epoch * SECOND, epoch))
        log.drop_before((epoch - 120) * SECOND)
        log.save()
    assert state.rows_written <= 4 * 60_000
    assert len(log.buckets) <= 12


def test_a_pane_of_many_rows_is_not_read_when_the_next_one_begins() -> None:
    state = Counting()
    log = log_of(state)
    log.append(rows(np.zeros(50_000)))
    for epoch in range(5):
        log.append(rows(np.full(100, 10 + epoch)))
    assert state.rows_read == 0
    log.append(rows(np.full(100, 0)))
    assert (state.rows_read, len(log.buckets)) == (0, 2)


def test_the_index_stays_small_with_very_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_BUCKET_ROWS", 4)
    monkeypatch.setattr(segments, "_MAX_BUCKETS", 16)
    state = Counting()
    log = log_of(state)
    expected: list[int] = []
    for epoch in range(200):
        new = spread(50, HOUR, 0, epoch)
        expected += int_column(new[0], PANE).tolist()
        log.append(new)
    assert len(log.buckets) <= 16
    starts = [bucket.first_us for bucket in log.buckets]
    ends = [bucket.last_us for bucket in log.buckets]
    assert all(end < start for end, start in zip(ends, starts[1:], strict=False))
    assert loaded(log, None, HOUR) == sorted(expected)


def test_rows_of_a_pane_stay_in_the_order_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_BUCKET_ROWS", 3)
    monkeypatch.setattr(segments, "_FANOUT", 2)
    state = Counting()
    log = log_of(state)
    random = np.random.default_rng(1)
    for epoch in range(50):
        panes = random.integers(0, 6, 7)
        numbers = epoch * 10 + np.arange(7)
        log.append((pa.table([panes, numbers], schema=SCHEMA),))
    for pane in range(6):
        found = [n for part in log.load(pane, pane + 1) for n in part[0].column("n").to_pylist()]
        assert found == sorted(found)
    assert sum(bucket.rows for bucket in log.buckets) == 350


def test_the_index_survives_a_restart() -> None:
    state = Counting()
    log = log_of(state)
    log.append(spread(20_000, HOUR))
    log.drop_before(HOUR // 2)
    log.save()
    again = log_of(state)
    assert again.buckets == log.buckets
    assert loaded(again, None, HOUR) == loaded(log, None, HOUR)
