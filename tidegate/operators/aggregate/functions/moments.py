"""skewness and kurtosis, of all there is."""

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

# ---- stddev and variance, over samples and populations.

# Up to so many states of a group are merged one after the other.
_MOST_TURNS = 100


class _Spread(PlainAccumulator):
    """Keeps the number of values, their mean, and the squares of what they are off the mean.

    Means and squares are merged as Chan, Golub and LeVeque do it: no large squares are subtracted,
    so that values close together far from zero keep their digits.
    """

    rounds = True
    fields = (pa.float64(), pa.float64(), pa.float64())
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
            # Zero, or NaN for NaN and ∞, which have no variance.
            squares = values - values
        return [pa.array(counts), pa.array(values), pa.array(squares)]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        counts, means, squares = (to_doubles(state) for state in states)
        turns = _turns(ids, groups)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            if len(turns) and turns.max() >= _MOST_TURNS:
                merged = _at_once(counts, means, squares, ids, groups)
            else:
                merged = _one_by_one(counts, means, squares, ids, groups, turns)
        return [pa.array(column) for column in merged]

    def evaluate(self, states: Sequence[Column]) -> Column:
        counts, squares = to_doubles(states[0]), to_doubles(states[2])
        freedom = counts - 1 if self.is_sample else counts
        result = squares / np.maximum(freedom, 1)
        return pa.array(np.sqrt(result) if self.is_root else result, mask=freedom <= 0)


class StddevSample(_Spread):
    """stddev: the root of the variance of a sample."""

    names = ("stddev_samp", "stddev", "std")
    is_sample, is_root = True, True


class StddevPopulation(_Spread):
    """stddev_pop: the root of the variance of all there is."""

    names = ("stddev_pop",)
    is_sample, is_root = False, True


class VarianceSample(_Spread):
    """variance: of a sample."""

    names = ("var_samp", "variance")
    is_sample, is_root = True, False


class VariancePopulation(_Spread):
    """var_pop: the variance of all there is."""

    names = ("var_pop",)
    is_sample, is_root = False, False


def _turns(ids: Ints, groups: int) -> Ints:
    """Which row of its group each row is."""
    order = np.argsort(ids, kind="stable")
    firsts = np.searchsorted(ids[order], np.arange(groups))
    turns: Ints = np.empty_like(ids)
    turns[order] = np.arange(len(ids)) - firsts[ids[order]]
    return turns


def _one_by_one(
    counts: Doubles, means: Doubles, squares: Doubles, ids: Ints, groups: int, turns: Ints
) -> tuple[Doubles, Doubles, Doubles]:
    """Each state into what came before it: merged again later, it is the same to the bit."""
    total, mean, spread = (np.zeros(groups) for _ in range(3))
    for turn in range(int(turns.max(initial=-1)) + 1):
        rows = np.flatnonzero((turns == turn) & (counts > 0))
        at = ids[rows]
        before, more = total[at], counts[rows]
        both = before + more
        off = means[rows] - mean[at]
        first = before == 0
        mean[at] = np.where(first, means[rows], mean[at] + off * (more / both))
        apart = np.where(first, 0.0, off * off * (before * more / both))
        spread[at] += squares[rows] + apart
        total[at] = both
    return total, mean, spread


def _at_once(
    counts: Doubles, means: Doubles, squares: Doubles, ids: Ints, groups: int
) -> tuple[Doubles, Doubles, Doubles]:
    """Many states of a group in a few steps."""
    total = np.bincount(ids, counts, groups).astype(np.float64)
    divisor = np.maximum(total, 1)
    mean = np.bincount(ids, counts * means, groups) / divisor
    off = means - mean[ids]
    # What rounding the mean left over, once more.
    rest = np.bincount(ids, counts * off, groups) / divisor
    spread = np.bincount(ids, squares + counts * off * off, groups) - total * rest * rest
    return total, mean + rest, np.maximum(spread, 0)


def require_numbers(call: AggregateCall) -> None:
    """Spark casts texts by rules of its own; that is left to Spark."""
    for kind in call.arguments:
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or _is_decimal(kind)):
            hint = "cast the argument to a number, for example CAST(… AS DOUBLE)."
            raise unsupported_call(call, f"is not supported over {kind}", hint)


def _is_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind))


# ---- Merging the states of a group two by two, for aggregates whose merge is a formula of two.

# A state of several groups: the number of values first, then what is kept of them.
State = Sequence[Doubles]


def merge_pairwise(
    states: State, ids: Ints, groups: int, merge: Callable[[State, State], State]
) -> list[Doubles]:
    """One state per group: neighbours are merged until one is left, so that little is rounded."""
    order = np.argsort(ids, kind="stable")
    order = order[states[0][order] > 0]
    kept, left = [column[order] for column in states], ids[order]
    while True:
        turns = np.arange(len(left)) - np.searchsorted(left, left)
        seconds = np.flatnonzero(turns % 2 == 1)
        if not len(seconds):
            break
        firsts = seconds - 1
        both = merge([column[firsts] for column in kept], [column[seconds] for column in kept])
        for column, merged in zip(kept, both, strict=True):
            column[firsts] = merged
        stay = turns % 2 == 0
        kept, left = [column[stay] for column in kept], left[stay]
    result = [np.zeros(groups) for _ in states]
    for column, values in zip(result, kept, strict=True):
        column[left] = values
    return result


class _Moments(PlainAccumulator):
    """Keeps the number of values, their mean, and the sums of the powers of what they are off it.

    They are merged by the formulas of Chan and Pébay, as in Spark: equal values stay at zero.
    """

    rounds = True
    fields = (pa.float64(),) * 5

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        require_numbers(call)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        values = to_doubles(arguments[0])
        counts = valid_mask(arguments[0]).astype(np.float64)
        with np.errstate(invalid="ignore"):
            # Zero, or NaN for NaN and ∞, which have no moments.
            powers = pa.array(values - values)
        return [pa.array(counts), pa.array(values), powers, powers, powers]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        doubles = [to_doubles(state) for state in states]
        with np.errstate(invalid="ignore", over="ignore"):
            merged = merge_pairwise(doubles, ids, groups, _merged_moments)
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


def _merged_moments(one: State, other: State) -> State:
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


# ---- Aggregates of two columns: corr, covar_pop, covar_samp, and the regr_ family.

_BOTH = (0, 1)


@dataclass(frozen=True)
class Fit:
    """The pairs of every group: `yy`, `xx` and `xy` are sums of products about the means."""

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


class _Pairs(PlainAccumulator):
    """Keeps the number of pairs (y, x), both means, and the sums of products of what is off them.

    A pair counts if neither side is NULL. They are merged as Chan does it: equal values stay at 0.
    """

    rounds = True
    fields = (pa.float64(),) * 6

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        require_numbers(call)

    @property
    def required(self) -> tuple[int, ...]:
        return _BOTH

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        y, x = (to_doubles(argument) for argument in arguments)
        counts = _both_there(arguments).astype(np.float64)
        with np.errstate(invalid="ignore"):
            # Zero, or NaN for NaN and ∞, which have no spread.
            products = (y - y, x - x, (y - y) * (x - x))
        return [pa.array(column) for column in (counts, y, x, *products)]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        doubles = [to_doubles(state) for state in states]
        with np.errstate(invalid="ignore", over="ignore"):
            merged = merge_pairwise(doubles, ids, groups, _merged_comoments)
        return [pa.array(column) for column in merged]

    def evaluate(self, states: Sequence[Column]) -> Column:
        fit = Fit(*(to_doubles(state) for state in states))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            result = self.answer(fit)
        return pa.array(result, mask=(fit.count == 0) | self.is_null(fit))

    def answer(self, fit: Fit) -> Doubles:
        """The result of every group that has one."""
        raise NotImplementedError

    def is_null(self, fit: Fit) -> Mask:
        """The groups whose pairs are too few, or do not differ."""
        null: Mask = fit.count == 0
        return null


class Correlation(_Pairs):
    """corr(y, x): Pearson's coefficient."""

    names = ("corr",)

    def answer(self, fit: Fit) -> Doubles:
        return fit.correlation

    def is_null(self, fit: Fit) -> Mask:
        null: Mask = fit.xx * fit.yy == 0
        return null


class CovariancePopulation(_Pairs):
    """covar_pop(y, x): the covariance of all there is."""

    names = ("covar_pop",)

    def answer(self, fit: Fit) -> Doubles:
        return fit.xy / fit.count


class CovarianceSample(_Pairs):
    """covar_samp(y, x): the covariance of a sample."""

    names = ("covar_samp",)

    def answer(self, fit: Fit) -> Doubles:
        return fit.xy / (fit.count - 1)

    def is_null(self, fit: Fit) -> Mask:
        null: Mask = fit.count == 1
        return null


class RegrSlope(_Pairs):
    """regr_slope(y, x): of the line that fits best."""

    names = ("regr_slope",)

    def answer(self, fit: Fit) -> Doubles:
        return fit.slope

    def is_null(self, fit: Fit) -> Mask:
        null: Mask = fit.xx == 0
        return null


class RegrIntercept(_Pairs):
    """regr_intercept(y, x): where the line that fits best is at x = 0."""

    names = ("regr_intercept",)

    def answer(self, fit: Fit) -> Doubles:
        return fit.mean_y - fit.slope * fit.mean_x

    def is_null(self, fit: Fit) -> Mask:
        null: Mask = fit.xx == 0
        return null


class RegrR2(_Pairs):
    """regr_r2(y, x): how much of y the line explains; all of it where y is always the same."""

    names = ("regr_r2",)

    def answer(self, fit: Fit) -> Doubles:
        return np.where(fit.yy == 0, 1.0, fit.correlation * fit.correlation)

    def is_null(self, fit: Fit) -> Mask:
        null: Mask = fit.xx == 0
        return null


class RegrSxx(_Pairs):
    """regr_sxx(y, x): the sum of squares of x about its mean."""

    names = ("regr_sxx",)
    instead_of_distinct = "select the pairs with SELECT DISTINCT in a subquery first."

    def answer(self, fit: Fit) -> Doubles:
        return fit.xx


class RegrSyy(_Pairs):
    """regr_syy(y, x): the sum of squares of y about its mean."""

    names = ("regr_syy",)
    instead_of_distinct = RegrSxx.instead_of_distinct

    def answer(self, fit: Fit) -> Doubles:
        return fit.yy


class RegrSxy(_Pairs):
    """regr_sxy(y, x): the sum of products about the means."""

    names = ("regr_sxy",)

    def answer(self, fit: Fit) -> Doubles:
        return fit.xy


class RegrCount(Count):
    """regr_count(y, x): pairs in which nothing is NULL."""

    names = ("regr_count",)


class _AverageOfPairs(Average):
    """The average of one side of the pairs in which nothing is NULL."""

    side: ClassVar[int]
    instead_of_distinct = RegrSxx.instead_of_distinct

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(replace(call, arguments=(call.arguments[self.side],)))
        require_numbers(call)

    @property
    def required(self) -> tuple[int, ...]:
        return _BOTH

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        return super().pre_aggregate(
            [null_unless(arguments[self.side], _both_there(arguments))], weights
        )

    def partials(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        mine, other = arguments[self.side], arguments[1 - self.side]
        return super().partials([f"CASE WHEN ({other}) IS NOT NULL THEN {mine} END"])


class RegrAvgY(_AverageOfPairs):
    """regr_avgy(y, x): the average of y."""

    names = ("regr_avgy",)
    side = 0


class RegrAvgX(_AverageOfPairs):
    """regr_avgx(y, x): the average of x."""

    names = ("regr_avgx",)
    side = 1


def _both_there(arguments: Sequence[Column]) -> Mask:
    return valid_mask(arguments[0]) & valid_mask(arguments[1])


def _merged_comoments(one: State, other: State) -> State:
    n, y, x, yy, xx, xy = one
    m, y_m, x_m, yy_m, xx_m, xy_m = other
    both = n + m
    off_y, off_x, weight = y_m - y, x_m - x, n * m / both
    return (
        both,
        y + off_y * (m / both),
        x + off_x * (m / both),
        yy + yy_m + off_y * off_y * weight,
        xx + xx_m + off_x * off_x * weight,
        xy + xy_m + off_x * off_y * weight,
    )
