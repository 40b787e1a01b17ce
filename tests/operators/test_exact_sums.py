"""Sums and averages of doubles with retractions are exact and rounded once."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.operators.aggregate_inputs import INF, NAN, D, L, call_of, input_rows
from tidegate.operators.aggregate.functions import sums
from tidegate.operators.aggregate.groups import Aggregator, GroupSpec

FLOAT = pa.float32()
FINITE = st.floats(allow_nan=False, allow_infinity=False)
# Values that cancel out, half units, the smallest and the largest.
CORNERS = [1.0, 1e16, -1e16, 1e308, -1e308, 5e-324, 2.0**53, 0.1, -0.1, 2.0**992, 2.0**1023]


def result_of(
    function: str, kind: pa.DataType, changes: list[tuple[Any, int]], part_size: int = 3
) -> Any:
    """Return the result of one group over values with weights, combined from parts."""
    aggregator = Aggregator(GroupSpec((L,), (call_of(function, [kind], D),), retracts=True))
    parts = []
    for start in range(0, len(changes), part_size):
        part = changes[start : start + part_size]
        values = pa.array([value for value, _ in part], kind)
        weights = [weight for _, weight in part]
        parts.append(
            aggregator.pre_aggregate(input_rows([7] * len(part), {"a0_0": values}, weights))
        )
    while len(parts) > 1:
        parts = [
            aggregator.combine_parts(parts[index : index + 2]) for index in range(0, len(parts), 2)
        ]
    return aggregator.evaluate(parts[0])["r0"][0].as_py()


def nearest_sum(values: list[float]) -> float:
    """Return the double that is nearest to the exact sum."""
    total = sum(map(Fraction, values), Fraction(0))
    try:
        return float(total)
    except OverflowError:
        return INF if total > 0 else -INF


def bits(value: float) -> str:
    return value.hex()


@pytest.mark.parametrize("part_size", [1, 2, 3])
def test_retracting_a_large_value_restores_the_sum(part_size: int) -> None:
    changes = [(1.0, 1), (1e16, 1), (1e16, -1)]
    assert result_of("sum", D, changes, part_size) == 1.0
    assert result_of("avg", D, changes, part_size) == 1.0


def test_running_sum_returns_to_zero() -> None:
    pick = random.Random(3)
    values = [pick.uniform(-1, 1) * 10.0 ** pick.randrange(-20, 20) for _ in range(500)]
    added = [(value, 1) for value in values]
    retracted = [(value, -1) for value in pick.sample(values, len(values))]
    assert bits(result_of("sum", D, [*added, (0.0, 1), *retracted], 50)) == bits(0.0)
    assert bits(result_of("sum", D, [*added, (0.1, 1), *retracted], 50)) == bits(0.1)


def test_infinities_and_nan_can_be_retracted() -> None:
    changes: list[tuple[Any, int]] = [(1.5, 1), (INF, 1), (-INF, 1), (NAN, 1)]
    assert math.isnan(result_of("sum", D, changes))
    changes.append((NAN, -1))
    assert math.isnan(result_of("sum", D, changes))
    changes.append((-INF, -1))
    assert result_of("sum", D, changes) == INF and result_of("avg", D, changes) == INF
    changes.append((INF, -1))
    assert result_of("sum", D, changes) == 1.5


def test_result_is_null_after_all_values_are_retracted() -> None:
    assert result_of("sum", D, [(1.5, 1), (1.5, -1), (None, 1)]) is None
    assert result_of("avg", D, [(1.5, 1), (1.5, -1), (None, 1)]) is None


def test_sum_may_leave_the_range_of_doubles_and_return() -> None:
    huge = [(1e308, 1)] * 9
    assert result_of("sum", D, [*huge, *[(1e308, -1)] * 8]) == 1e308
    assert result_of("sum", D, [*huge, (2.5, 1), *[(1e308, -1)] * 9]) == 2.5
    assert result_of("sum", D, huge) == INF
    assert result_of("sum", D, [(-1e308, 1)] * 9) == -INF


@pytest.mark.parametrize("values", [[5, 7, -3], [2**53, 1, 1], [2**62, 2**62, 1, -(2**62)]])
def test_averages_of_integers_are_exact(values: list[int]) -> None:
    changes = [(value, 1) for value in values]
    expected = float(sum(values)) / len(values)
    assert result_of("avg", L, changes) == expected
    assert result_of("avg", L, [(2**63 - 1, 1), *changes, (2**63 - 1, -1)]) == expected


def test_floats_are_summed_as_doubles() -> None:
    values = np.array([0.1, 1e30, -3.5e-20, 0.1], np.float32)
    changes: list[tuple[Any, int]] = [(value, 1) for value in values]
    expected = nearest_sum([float(values[0]), float(values[2]), float(values[3])])
    assert result_of("sum", FLOAT, [*changes, (values[1], -1)]) == expected


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(FINITE, st.sampled_from(CORNERS)), max_size=25), st.data())
@example([2.0**53, 1.0, 5e-324], None)
@example([2.0**53, 1.0, -5e-324], None)
@example([2.0**53, 3.0, -5e-324], None)
@example([-(2.0**53), -1.0, -5e-324], None)
def test_sum_is_the_nearest_double(values: list[float], data: Any) -> None:
    noise = data.draw(st.lists(FINITE, max_size=8)) if data is not None else []
    part_size = data.draw(st.integers(1, 9)) if data is not None else 2
    changes = [*((value, 1) for value in [*noise, *values]), *((value, -1) for value in noise)]
    total = result_of("sum", D, [(0.0, 1), *changes], part_size)
    assert bits(total) == bits(nearest_sum(values) + 0.0)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 4), FINITE), max_size=60), st.integers(1, 7))
def test_many_rows_are_summed_in_pieces(rows: list[tuple[int, float]], max_addends: int) -> None:
    ids = np.array([group for group, _ in rows], np.int64)
    values = np.array([math.remainder(value, 2.0**900) for _, value in rows], np.float64)
    with patch.object(sums, "_MAX_ADDENDS", max_addends):
        digits, carry = sums.digit_sums(values, ids, 5)
    assert not carry.any()
    places = sorted(digits, reverse=True)
    matrix = np.array([digits[place] for place in places]).reshape(len(places), 5).T
    matrix = np.array([[*row[row != 0], *row[row == 0]] for row in matrix])
    expected = [nearest_sum(list(values[ids == group])) for group in range(5)]
    assert sums.round_digits(matrix.reshape(5, -1)).tolist() == expected


VARIANCES = ["stddev_samp", "stddev_pop", "var_samp", "var_pop"]


@pytest.mark.parametrize("function", VARIANCES)
@settings(deadline=None, max_examples=40)
@given(values=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=12), data=st.data())
def test_variances_equal_those_of_the_remaining_rows(
    function: str, values: list[float], data: st.DataObject
) -> None:
    noise = data.draw(st.lists(st.floats(-1e15, 1e15), max_size=6))
    mixed = data.draw(st.permutations([*values, *noise]))
    expected = result_of(function, D, [(value, 1) for value in values], len(values))
    changes = [*((value, 1) for value in mixed), *((value, -1) for value in noise)]
    assert repr(result_of(function, D, changes)) == repr(expected)
