"""skewness and kurtosis, of all there is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.operators.accumulators.base import Call, PlainAccumulator, require_no_weights
from tidegate.operators.accumulators.kernels import Doubles, to_doubles
from tidegate.operators.accumulators.pairwise import State, merge_pairwise
from tidegate.operators.accumulators.variance import require_numbers
from tidegate.operators.keys import Column, Ids, valid_mask


class _Moments(PlainAccumulator):
    """Keeps the number of values, their mean, and the sums of the powers of what they are off it.

    They are merged by the formulas of Chan and Pébay, as in Spark: equal values stay at zero.
    """

    rounds = True
    fields = (pa.float64(),) * 5

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        require_numbers(call)

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        values = to_doubles(arguments[0])
        counts = valid_mask(arguments[0]).astype(np.float64)
        with np.errstate(invalid="ignore"):
            # Zero, or NaN for NaN and ∞, which have no moments.
            powers = pa.array(values - values)
        return [pa.array(counts), pa.array(values), powers, powers, powers]

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
        doubles = [to_doubles(state) for state in states]
        with np.errstate(invalid="ignore", over="ignore"):
            merged = merge_pairwise(doubles, ids, groups, _merged)
        return [pa.array(column) for column in merged]

    def evaluate(self, states: Sequence[Column]) -> Column:
        count, _, second, third, fourth = (to_doubles(state) for state in states)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            result = self.shape(count, second, third, fourth)
        # Values that are all equal have no shape.
        return pa.array(result, mask=(count == 0) | (second == 0))

    def shape(self, count: Doubles, second: Doubles, third: Doubles, fourth: Doubles) -> Doubles:
        """The result from the sums of powers."""
        raise NotImplementedError


class Skewness(_Moments):
    """skewness: how far the values lean to one side."""

    names = ("skewness",)

    def shape(self, count: Doubles, second: Doubles, third: Doubles, fourth: Doubles) -> Doubles:
        result: Doubles = np.sqrt(count) * third / np.sqrt(second * second * second)
        return result


class Kurtosis(_Moments):
    """kurtosis: how heavy the tails are; 0 for a normal distribution."""

    names = ("kurtosis",)

    def shape(self, count: Doubles, second: Doubles, third: Doubles, fourth: Doubles) -> Doubles:
        return count * fourth / (second * second) - 3.0


def _merged(one: State, other: State) -> State:
    n, mean, second, third, fourth = one
    m, _, second_m, third_m, fourth_m = other
    both = n + m
    off = other[1] - mean
    step = off / both
    return (
        both,
        mean + step * m,
        second + second_m + off * step * n * m,
        third
        + third_m
        + step * step * off * n * m * (n - m)
        + 3 * step * (n * second_m - m * second),
        fourth
        + fourth_m
        + step * step * step * off * n * m * (n * n - n * m + m * m)
        + 6 * step * step * (n * n * second_m + m * m * second)
        + 4 * step * (n * third_m - m * third),
    )
