"""Kernels of vectorized expressions."""

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

MIN_BIGINT, MAX_BIGINT = -(2**63), 2**63 - 1


def floor(value: int | None, offset: int, size: int) -> int | None:
    inputs = (
        VectorColumn("x"),
        VectorConstant(offset, pa.int64()),
        VectorConstant(size, pa.int64()),
    )
    stage = VectorStage((("y", VectorCall("floor", inputs), pa.int64()),))
    batch = pa.record_batch({"x": pa.array([value], pa.int64()), "_tg_selected": pa.array([True])})
    result: int | None = stage.apply(batch, ()).column("y")[0].as_py()
    return result


@given(st.integers(-(2**62), 2**62), st.integers(-(10**12), 10**12), st.integers(1, 10**15))
def test_floor_aligns_to_the_offset_also_before_1970(value: int, offset: int, size: int) -> None:
    assert floor(value, offset, size) == (value - offset) // size * size + offset


def test_floor_of_null_is_null() -> None:
    assert floor(None, 0, 10) is None


def test_overflow_raises_vector_failed() -> None:
    with pytest.raises(VectorFailed):
        floor(MIN_BIGINT, 5, 10)
    with pytest.raises(VectorFailed):
        floor(MAX_BIGINT, -5, 10)
