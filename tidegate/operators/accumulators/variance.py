"""stddev and variance, over samples and populations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tidegate.operators.accumulators.base import (
    Call,
    PlainAccumulator,
    require_no_weights,
    unsupported,
)
from tidegate.operators.accumulators.kernels import Doubles, to_doubles
from tidegate.operators.keys import Column, Ids, valid_mask

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

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        require_numbers(call)

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        values = to_doubles(arguments[0])
        counts = valid_mask(arguments[0]).astype(np.float64)
        with np.errstate(invalid="ignore"):
            # Zero, or NaN for NaN and ∞, which have no variance.
            squares = values - values
        return [pa.array(counts), pa.array(values), pa.array(squares)]

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
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


def _turns(ids: Ids, groups: int) -> Ids:
    """Which row of its group each row is."""
    order = np.argsort(ids, kind="stable")
    firsts = np.searchsorted(ids[order], np.arange(groups))
    turns: Ids = np.empty_like(ids)
    turns[order] = np.arange(len(ids)) - firsts[ids[order]]
    return turns


def _one_by_one(
    counts: Doubles, means: Doubles, squares: Doubles, ids: Ids, groups: int, turns: Ids
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
    counts: Doubles, means: Doubles, squares: Doubles, ids: Ids, groups: int
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


def require_numbers(call: Call) -> None:
    """Spark casts texts by rules of its own; that is left to Spark."""
    for kind in call.arguments:
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or _is_decimal(kind)):
            hint = "cast the argument to a number, for example CAST(… AS DOUBLE)."
            raise unsupported(call, f"is not supported over {kind}", hint)


def _is_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind))
