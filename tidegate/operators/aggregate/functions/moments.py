"""Aggregates from moments: variance, skewness, kurtosis, covariance and linear regression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tidegate.operators.aggregate.functions.base import (
    AggregateCall,
    PlainAccumulator,
    require_no_weights,
    unsupported_call,
)
from tidegate.operators.aggregate.functions.sums import Average, Count
from tidegate.operators.kernels.arrays import (
    Column,
    Doubles,
    Ints,
    Mask,
    null_unless,
    to_doubles,
    valid_mask,
)

# ---- stddev and variance, of samples and populations

# Groups with more states than this are merged in a few steps instead of one state at a time.
_MAX_SEQUENTIAL_STATES = 100


class _SquaredDeviations(PlainAccumulator):
    """Keeps the number of values, their mean, and the sum of squared deviations from the mean.

    States are merged by the formulas of Chan, Golub and LeVeque. They do not subtract large
    squares, so values that are close together and far from zero keep their digits.
    """

    rounds = True
    state_types = (pa.float64(), pa.float64(), pa.float64())
    is_sample: ClassVar[bool]
    is_root: ClassVar[bool]

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        require_numbers(call)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        values = to_doubles(arguments[0])
        counts = valid_mask(arguments[0]).astype(np.float64)
        with np.errstate(invalid="ignore"):
            # 0, or NaN for NaN and ∞, whose variance is undefined.
            squares = values - values
        return [pa.array(counts), pa.array(values), pa.array(squares)]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        counts, means, squares = (to_doubles(state) for state in states)
        numbers = _number_in_group(ids, groups)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            if len(numbers) and numbers.max() >= _MAX_SEQUENTIAL_STATES:
                merged = _merge_at_once(counts, means, squares, ids, groups)
            else:
                merged = _merge_sequentially(counts, means, squares, ids, groups, numbers)
        return [pa.array(column) for column in merged]

    def evaluate(self, states: Sequence[Column]) -> Column:
        counts, squares = to_doubles(states[0]), to_doubles(states[2])
        freedom = counts - 1 if self.is_sample else counts
        result = squares / np.maximum(freedom, 1)
        return pa.array(np.sqrt(result) if self.is_root else result, mask=freedom <= 0)


class StddevSample(_SquaredDeviations):
    """stddev: the standard deviation of a sample."""

    names = ("stddev_samp", "stddev", "std")
    is_sample, is_root = True, True


class StddevPopulation(_SquaredDeviations):
    """stddev_pop: the standard deviation of a population."""

    names = ("stddev_pop",)
    is_sample, is_root = False, True


class VarianceSample(_SquaredDeviations):
    """variance: the variance of a sample."""

    names = ("var_samp", "variance")
    is_sample, is_root = True, False


class VariancePopulation(_SquaredDeviations):
    """var_pop: the variance of a population."""

    names = ("var_pop",)
    is_sample, is_root = False, False


def _number_in_group(ids: Ints, groups: int) -> Ints:
    """Number the rows of each group from 0."""
    order = np.argsort(ids, kind="stable")
    starts = np.searchsorted(ids[order], np.arange(groups))
    numbers: Ints = np.empty_like(ids)
    numbers[order] = np.arange(len(ids)) - starts[ids[order]]
    return numbers


def _merge_sequentially(
    counts: Doubles, means: Doubles, squares: Doubles, ids: Ints, groups: int, numbers: Ints
) -> tuple[Doubles, Doubles, Doubles]:
    """Merge the states of a group in order of arrival.

    Merging them in several steps, as epochs do, then gives the same result to the last bit.
    """
    total, mean, spread = (np.zeros(groups) for _ in range(3))
    for number in range(int(numbers.max(initial=-1)) + 1):
        rows = np.flatnonzero((numbers == number) & (counts > 0))
        group = ids[rows]
        before, more = total[group], counts[rows]
        both = before + more
        delta = means[rows] - mean[group]
        is_first = before == 0
        mean[group] = np.where(is_first, means[rows], mean[group] + delta * (more / both))
        between = np.where(is_first, 0.0, delta * delta * (before * more / both))
        spread[group] += squares[rows] + between
        total[group] = both
    return total, mean, spread


def _merge_at_once(
    counts: Doubles, means: Doubles, squares: Doubles, ids: Ints, groups: int
) -> tuple[Doubles, Doubles, Doubles]:
    """Merge many states of a group in a few vectorized steps."""
    total = np.bincount(ids, counts, groups).astype(np.float64)
    divisor = np.maximum(total, 1)
    mean = np.bincount(ids, counts * means, groups) / divisor
    delta = means - mean[ids]
    # The rounding error of the mean, as a correction.
    rest = np.bincount(ids, counts * delta, groups) / divisor
    spread = np.bincount(ids, squares + counts * delta * delta, groups) - total * rest * rest
    return total, mean + rest, np.maximum(spread, 0)


def require_numbers(call: AggregateCall) -> None:
    """Reject arguments that are not numbers; only Spark can cast text to numbers by its rules."""
    for data_type in call.arguments:
        if not (
            pa.types.is_integer(data_type)
            or pa.types.is_floating(data_type)
            or _is_decimal(data_type)
        ):
            hint = "cast the argument to a number, for example CAST(… AS DOUBLE)."
            raise unsupported_call(call, f"is not supported over {data_type}", hint)


def _is_decimal(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(data_type))


# ---- Merging the states of a group pairwise, for aggregates that define how to merge two states

# The columns of states; the first is the number of values.
State = Sequence[Doubles]


def merge_pairwise(
    states: State, ids: Ints, groups: int, merge: Callable[[State, State], State]
) -> list[Doubles]:
    """Merge adjacent states of a group until one is left, which keeps rounding errors small."""
    order = np.argsort(ids, kind="stable")
    order = order[states[0][order] > 0]
    columns, column_ids = [column[order] for column in states], ids[order]
    while True:
        numbers = np.arange(len(column_ids)) - np.searchsorted(column_ids, column_ids)
        seconds = np.flatnonzero(numbers % 2 == 1)
        if not len(seconds):
            break
        firsts = seconds - 1
        pairs = [column[firsts] for column in columns], [column[seconds] for column in columns]
        for column, merged in zip(columns, merge(*pairs), strict=True):
            column[firsts] = merged
        remaining = numbers % 2 == 0
        columns, column_ids = [column[remaining] for column in columns], column_ids[remaining]
    result = [np.zeros(groups) for _ in states]
    for column, values in zip(result, columns, strict=True):
        column[column_ids] = values
    return result


# ---- skewness and kurtosis


class _Moments(PlainAccumulator):
    """Keeps the number of values, their mean, and sums of powers of the deviations from the mean.

    States are merged by the formulas of Chan and Pébay, as in Spark: for equal values the sums
    remain exactly zero.
    """

    rounds = True
    state_types = (pa.float64(),) * 5

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        require_numbers(call)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        values = to_doubles(arguments[0])
        counts = valid_mask(arguments[0]).astype(np.float64)
        with np.errstate(invalid="ignore"):
            # 0, or NaN for NaN and ∞, whose moments are undefined.
            powers = pa.array(values - values)
        return [pa.array(counts), pa.array(values), powers, powers, powers]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        doubles = [to_doubles(state) for state in states]
        with np.errstate(invalid="ignore", over="ignore"):
            merged = merge_pairwise(doubles, ids, groups, _merge_moments)
        return [pa.array(column) for column in merged]

    def evaluate(self, states: Sequence[Column]) -> Column:
        count, _, second, third, fourth = (to_doubles(state) for state in states)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            result = self.shape(count, second, third, fourth)
        # Equal values have neither skewness nor kurtosis.
        return pa.array(result, mask=(count == 0) | (second == 0))

    def shape(self, count: Doubles, second: Doubles, third: Doubles, fourth: Doubles) -> Doubles:
        """Return the result from the sums of powers."""
        raise NotImplementedError


class Skewness(_Moments):
    """skewness: the asymmetry of the values about their mean."""

    names = ("skewness",)

    def shape(self, count: Doubles, second: Doubles, third: Doubles, fourth: Doubles) -> Doubles:
        result: Doubles = np.sqrt(count) * third / np.sqrt(second * second * second)
        return result


class Kurtosis(_Moments):
    """kurtosis: the weight of the tails, 0 for a normal distribution."""

    names = ("kurtosis",)

    def shape(self, count: Doubles, second: Doubles, third: Doubles, fourth: Doubles) -> Doubles:
        return count * fourth / (second * second) - 3.0


def _merge_moments(one: State, other: State) -> State:
    n, mean, second, third, fourth = one
    m, _, second_m, third_m, fourth_m = other
    both = n + m
    delta = other[1] - mean
    step = delta / both
    return (
        both,
        mean + step * m,
        second + second_m + delta * step * n * m,
        third
        + third_m
        + step * step * delta * n * m * (n - m)
        + 3 * step * (n * second_m - m * second),
        fourth
        + fourth_m
        + step * step * step * delta * n * m * (n * n - n * m + m * m)
        + 6 * step * step * (n * n * second_m + m * m * second)
        + 4 * step * (n * third_m - m * third),
    )


# ---- Aggregates of two columns: corr, covar_pop, covar_samp and regr_…

_BOTH = (0, 1)


@dataclass(frozen=True)
class Comoments:
    """The state of every group; `yy`, `xx` and `xy` are sums of products of deviations."""

    count: Doubles
    mean_y: Doubles
    mean_x: Doubles
    yy: Doubles
    xx: Doubles
    xy: Doubles

    @property
    def slope(self) -> Doubles:
        return self.xy / self.xx

    @property
    def correlation(self) -> Doubles:
        result: Doubles = self.xy / np.sqrt(self.xx * self.yy)
        return result


class _PairedMoments(PlainAccumulator):
    """Keeps the number of pairs (y, x), both means, and sums of products of the deviations.

    A pair counts if neither value is NULL. States are merged by Chan's formula: for equal values
    the sums remain exactly zero.
    """

    rounds = True
    state_types = (pa.float64(),) * 6

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        require_numbers(call)

    @property
    def required_arguments(self) -> tuple[int, ...]:
        return _BOTH

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        y, x = (to_doubles(argument) for argument in arguments)
        counts = _both_valid(arguments).astype(np.float64)
        with np.errstate(invalid="ignore"):
            # 0, or NaN for NaN and ∞, whose deviations are undefined.
            products = (y - y, x - x, (y - y) * (x - x))
        return [pa.array(column) for column in (counts, y, x, *products)]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        doubles = [to_doubles(state) for state in states]
        with np.errstate(invalid="ignore", over="ignore"):
            merged = merge_pairwise(doubles, ids, groups, _merge_comoments)
        return [pa.array(column) for column in merged]

    def evaluate(self, states: Sequence[Column]) -> Column:
        comoments = Comoments(*(to_doubles(state) for state in states))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            result = self.compute(comoments)
        return pa.array(result, mask=(comoments.count == 0) | self.is_null(comoments))

    def compute(self, comoments: Comoments) -> Doubles:
        """Return the result of every group; it may be undefined where `is_null` is true."""
        raise NotImplementedError

    def is_null(self, comoments: Comoments) -> Mask:
        """Return the groups without a result: too few pairs, or all pairs are equal."""
        null: Mask = comoments.count == 0
        return null


class Correlation(_PairedMoments):
    """corr(y, x): Pearson's correlation coefficient."""

    names = ("corr",)

    def compute(self, comoments: Comoments) -> Doubles:
        return comoments.correlation

    def is_null(self, comoments: Comoments) -> Mask:
        null: Mask = comoments.xx * comoments.yy == 0
        return null


class CovariancePopulation(_PairedMoments):
    """covar_pop(y, x): the covariance of a population."""

    names = ("covar_pop",)

    def compute(self, comoments: Comoments) -> Doubles:
        return comoments.xy / comoments.count


class CovarianceSample(_PairedMoments):
    """covar_samp(y, x): the covariance of a sample."""

    names = ("covar_samp",)

    def compute(self, comoments: Comoments) -> Doubles:
        return comoments.xy / (comoments.count - 1)

    def is_null(self, comoments: Comoments) -> Mask:
        null: Mask = comoments.count == 1
        return null


class RegrSlope(_PairedMoments):
    """regr_slope(y, x): the slope of the regression line."""

    names = ("regr_slope",)

    def compute(self, comoments: Comoments) -> Doubles:
        return comoments.slope

    def is_null(self, comoments: Comoments) -> Mask:
        null: Mask = comoments.xx == 0
        return null


class RegrIntercept(_PairedMoments):
    """regr_intercept(y, x): the value of the regression line at x = 0."""

    names = ("regr_intercept",)

    def compute(self, comoments: Comoments) -> Doubles:
        return comoments.mean_y - comoments.slope * comoments.mean_x

    def is_null(self, comoments: Comoments) -> Mask:
        null: Mask = comoments.xx == 0
        return null


class RegrR2(_PairedMoments):
    """regr_r2(y, x): the coefficient of determination, 1 if all y are equal."""

    names = ("regr_r2",)

    def compute(self, comoments: Comoments) -> Doubles:
        return np.where(comoments.yy == 0, 1.0, comoments.correlation * comoments.correlation)

    def is_null(self, comoments: Comoments) -> Mask:
        null: Mask = comoments.xx == 0
        return null


class RegrSxx(_PairedMoments):
    """regr_sxx(y, x): the sum of squared deviations of x."""

    names = ("regr_sxx",)
    distinct_hint = "select the pairs with SELECT DISTINCT in a subquery first."

    def compute(self, comoments: Comoments) -> Doubles:
        return comoments.xx


class RegrSyy(_PairedMoments):
    """regr_syy(y, x): the sum of squared deviations of y."""

    names = ("regr_syy",)
    distinct_hint = RegrSxx.distinct_hint

    def compute(self, comoments: Comoments) -> Doubles:
        return comoments.yy


class RegrSxy(_PairedMoments):
    """regr_sxy(y, x): the sum of products of the deviations."""

    names = ("regr_sxy",)

    def compute(self, comoments: Comoments) -> Doubles:
        return comoments.xy


class RegrCount(Count):
    """regr_count(y, x): pairs in which neither value is NULL."""

    names = ("regr_count",)


class _AverageOfPairs(Average):
    """The average of one value of the pairs in which neither is NULL."""

    argument: ClassVar[int]
    distinct_hint = RegrSxx.distinct_hint

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(replace(call, arguments=(call.arguments[self.argument],)))
        require_numbers(call)

    @property
    def required_arguments(self) -> tuple[int, ...]:
        return _BOTH

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        return super().pre_aggregate(
            [null_unless(arguments[self.argument], _both_valid(arguments))], weights
        )

    def partial_sql(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        value, other = arguments[self.argument], arguments[1 - self.argument]
        return super().partial_sql([f"CASE WHEN ({other}) IS NOT NULL THEN {value} END"])


class RegrAvgY(_AverageOfPairs):
    """regr_avgy(y, x): the average of y."""

    names = ("regr_avgy",)
    argument = 0


class RegrAvgX(_AverageOfPairs):
    """regr_avgx(y, x): the average of x."""

    names = ("regr_avgx",)
    argument = 1


def _both_valid(arguments: Sequence[Column]) -> Mask:
    return valid_mask(arguments[0]) & valid_mask(arguments[1])


def _merge_comoments(one: State, other: State) -> State:
    n, y, x, yy, xx, xy = one
    m, y_m, x_m, yy_m, xx_m, xy_m = other
    both = n + m
    delta_y, delta_x, weight = y_m - y, x_m - x, n * m / both
    return (
        both,
        y + delta_y * (m / both),
        x + delta_x * (m / both),
        yy + yy_m + delta_y * delta_y * weight,
        xx + xx_m + delta_x * delta_x * weight,
        xy + xy_m + delta_x * delta_y * weight,
    )
