"""Kernels that tasks compute with."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.operators.vectorized import (
    VectorCall,
    VectorColumn,
    VectorConstant,
    VectorFailed,
    VectorStage,
)

LEAST, MOST = -(2**63), 2**63 - 1


def floored(value: int | None, offset: int, size: int) -> int | None:
    parts = (
        VectorColumn("x"),
        VectorConstant(offset, pa.int64()),
        VectorConstant(size, pa.int64()),
    )
    stage = VectorStage((("y", VectorCall("floor", parts), pa.int64()),))
    batch = pa.record_batch({"x": pa.array([value], pa.int64()), "_tg_selected": pa.array([True])})
    found: int | None = stage.apply(batch, ()).column("y")[0].as_py()
    return found


@given(st.integers(-(2**62), 2**62), st.integers(-(10**12), 10**12), st.integers(1, 10**15))
def test_a_window_starts_on_its_grid_also_before_1970(value: int, offset: int, size: int) -> None:
    assert floored(value, offset, size) == (value - offset) // size * size + offset


def test_without_a_time_there_is_no_window() -> None:
    assert floored(None, 0, 10) is None


def test_what_no_number_can_hold_is_left_to_spark() -> None:
    with pytest.raises(VectorFailed):
        floored(LEAST, 5, 10)
    with pytest.raises(VectorFailed):
        floored(MOST, -5, 10)
