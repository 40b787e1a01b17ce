"""Aggregates of two columns: corr, covar_pop, covar_samp, and the regr_ family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tidegate.operators.accumulators.base import Call, PlainAccumulator, require_no_weights
from tidegate.operators.accumulators.kernels import Doubles, to_doubles, where
from tidegate.operators.accumulators.numbers import Average, Count
from tidegate.operators.accumulators.pairwise import State, merge_pairwise
from tidegate.operators.accumulators.variance import require_numbers
from tidegate.operators.keys import Column, Ids, Mask, valid_mask

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

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        require_numbers(call)

    @property
    def required(self) -> tuple[int, ...]:
        return _BOTH

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        y, x = (to_doubles(argument) for argument in arguments)
        counts = _both_there(arguments).astype(np.float64)
        with np.errstate(invalid="ignore"):
            # Zero, or NaN for NaN and ∞, which have no spread.
            products = (y - y, x - x, (y - y) * (x - x))
        return [pa.array(column) for column in (counts, y, x, *products)]

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
        doubles = [to_doubles(state) for state in states]
        with np.errstate(invalid="ignore", over="ignore"):
            merged = merge_pairwise(doubles, ids, groups, _merged)
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

    def __init__(self, call: Call) -> None:
        super().__init__(replace(call, arguments=(call.arguments[self.side],)))
        require_numbers(call)

    @property
    def required(self) -> tuple[int, ...]:
        return _BOTH

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        return super().lift([where(arguments[self.side], _both_there(arguments))], weights)

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


def _merged(one: State, other: State) -> State:
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
