"""Rows that wait for the watermark: each is emitted once, by time, in any key group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.harness import Harness, L, Row, hash_of, state_limits
from tidegate.columns import HASH, STORE_TIME
from tidegate.operators.hold import HoldOperator

SCHEMA = pa.schema([("c0", L), ("c1", L)])


def table(rows: Sequence[Row]) -> pa.Table:
    """Return rows with their id and their time; their pane is right after their time."""
    return pa.table(
        {
            STORE_TIME: pa.array([row.ts + 1 for row in rows], L),
            HASH: pa.array([hash_of((row.id,)) for row in rows], L),
            "c0": pa.array([row.id for row in rows], L),
            "c1": pa.array([row.ts for row in rows], L),
        }
    )


@settings(deadline=None, max_examples=100, database=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 60), max_size=12), st.integers(0, 50)), max_size=8),
    st.booleans(),
    st.booleans(),
)
def test_emits_every_row_on_time_once_and_by_time(
    epochs: list[tuple[list[int], int]], small: bool, restarts: bool
) -> None:
    run = Harness(lambda: HoldOperator(SCHEMA), table, key_groups=3)
    watermark, next_id = -1, 0
    expected: list[tuple[int, int]] = []
    emitted: list[tuple[Any, ...]] = []
    with state_limits(small):
        for times, drawn_watermark in epochs:
            rows = [Row(ts, id=next_id + index) for index, ts in enumerate(times)]
            next_id += len(rows)
            expected += [(row.id, row.ts) for row in rows if row.ts >= watermark]
            watermark = max(watermark, drawn_watermark)
            epoch = run.rows(rows, watermark)
            assert all(ts < watermark for _, ts in epoch.rows)
            assert_sorted_in_key_groups(epoch.rows, key_groups=3)
            emitted += epoch.rows
            if restarts:
                run.restart()
        last = run.end().rows
        assert_sorted_in_key_groups(last, key_groups=3)
    assert sorted(emitted + last) == sorted(expected)
    assert run.stored_names() == []


def assert_sorted_in_key_groups(rows: list[tuple[Any, ...]], key_groups: int) -> None:
    """Check that the rows of each key group are sorted by time."""
    for key_group in range(key_groups):
        times = [ts for id, ts in rows if hash_of((id,)) % key_groups == key_group]
        assert times == sorted(times)


@pytest.mark.parametrize("key_groups", [1, 4])
def test_rows_with_the_same_time_keep_their_order(key_groups: int) -> None:
    run = Harness(lambda: HoldOperator(SCHEMA), table, key_groups=key_groups)
    for first in range(0, 40, 10):
        run.rows([Row(5, id=first + index) for index in range(10)], 0)
    emitted = [id for id, _ in run.end().rows]
    for key_group in range(key_groups):
        ids = [id for id in emitted if hash_of((id,)) % key_groups == key_group]
        assert ids == sorted(ids)
