"""Rows that wait for the watermark: whatever key group they are in, each comes out once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.harness import Harness, L, Row, hash_of, state_limits
from tidegate.columns import HASH, PANE
from tidegate.operators.hold import HoldOperator

SCHEMA = pa.schema([("c0", L), ("c1", L)])


def table(rows: Sequence[Row]) -> pa.Table:
    """A row is its number and its time, and may go when the watermark has passed its time."""
    return pa.table(
        {
            PANE: pa.array([row.ts + 1 for row in rows], L),
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
def test_every_row_in_time_comes_out_once_and_in_order(
    epochs: list[tuple[list[int], int]], small: bool, restart: bool
) -> None:
    run = Harness(lambda: HoldOperator(SCHEMA), table, key_groups=3)
    mark, number = -1, 0
    expected: list[tuple[int, int]] = []
    out: list[tuple[Any, ...]] = []
    with state_limits(small):
        for times, forward in epochs:
            rows = [Row(ts, id=number + place) for place, ts in enumerate(times)]
            number += len(rows)
            expected += [(row.id, row.ts) for row in rows if row.ts >= mark]
            mark = max(mark, forward)
            epoch = run.rows(rows, mark)
            assert all(ts < mark for _, ts in epoch.main)
            _in_order_of_time(epoch.main)
            out += epoch.main
            if restart:
                run.restart()
        last = run.end().main
        _in_order_of_time(last)
    assert sorted(out + last) == sorted(expected)
    assert run.stored_names() == []


def _in_order_of_time(rows: list[tuple[Any, ...]]) -> None:
    for key_group in range(3):
        own = [ts for number, ts in rows if hash_of((number,)) % 3 == key_group]
        assert own == sorted(own)


@pytest.mark.parametrize("key_groups", [1, 4])
def test_ties_come_out_as_they_came_in(key_groups: int) -> None:
    run = Harness(lambda: HoldOperator(SCHEMA), table, key_groups=key_groups)
    for first in range(0, 40, 10):
        run.rows([Row(5, id=first + place) for place in range(10)], 0)
    numbers = [number for number, _ in run.end().main]
    for key_group in range(key_groups):
        own = [n for n in numbers if hash_of((n,)) % key_groups == key_group]
        assert own == sorted(own)
