"""Exact sums of doubles: whatever is added or retracted, in any order and split, nothing drifts.

A sum is kept as a list of doubles whose exact sum it is: digits to the base 2³², each a multiple of
its place and at most half of the next, so that they do not overlap. Adding the digits of up to 2²⁰
values at one place stays below 2⁵³ units and is exact in a double, whatever the order. NaN and the
infinities are counted beside it. The value is the exact sum of all that is there, rounded once to
the nearest double; Spark, which rounds after each addition, may differ from it in the last bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.accumulators.kernels import Doubles, int_sums, to_ints
from tidegate.operators.keys import Column, Ids, Mask, as_array

_DIGIT_BITS = 32
# So many values can be added up at one place.
_MOST_ROWS = 2**20
# Places end at 2⁹⁶⁰, where a double still has room for sums; what is larger is counted in units.
_HIGHEST = 30
_TOP_BITS = (_HIGHEST + 1) * _DIGIT_BITS
_LIST = pa.list_(pa.float64())
Digits = dict[int, Doubles]


class ExactTotal:
    """The digits of a sum, how many 2⁹⁹² go beside them, and how many NaN, ∞ and −∞."""

    fields = (_LIST, pa.int64(), pa.int64(), pa.int64(), pa.int64())
    merges = ()

    def lift(self, values: Column, weights: Column | None) -> list[Column]:
        doubles = as_array(pc.fill_null(pc.cast(values, pa.float64()), 0.0))
        doubles = doubles.to_numpy(zero_copy_only=False)
        signs = np.ones(len(doubles), np.int64) if weights is None else to_ints(weights)
        finite = np.isfinite(doubles)
        there = finite & (doubles != 0)
        digits, top = _without_top(doubles[there] * signs[there])
        tops = np.zeros(len(doubles), np.int64)
        tops[there] = top
        specials = _specials(doubles, signs, finite)
        return [_lists(there, digits), *(pa.array(ints) for ints in (tops, *specials))]

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
        """The digits of each group added up, with carries."""
        lists = as_array(states[0])
        lengths = pc.fill_null(lists.value_lengths(), 0).to_numpy(zero_copy_only=False)
        values = lists.flatten().to_numpy(zero_copy_only=False)
        digits, carried = digit_sums(values, np.repeat(ids, lengths), groups)
        top, *specials = (int_sums(state, ids, groups) for state in states[1:])
        places = np.zeros((groups, len(digits)))
        for column, place in enumerate(sorted(digits, reverse=True)):
            places[:, column] = digits[place]
        there = places != 0
        ints = (top + carried, *specials)
        return [_lists(there.sum(axis=1), places[there]), *(pa.array(column) for column in ints)]

    def value(self, states: Sequence[Column]) -> Column:
        """The sum, rounded once."""
        lists = as_array(states[0])
        top, nan, plus, minus = (to_ints(state) for state in states[1:])
        result = rounded(_matrix(lists))
        for group in np.flatnonzero(top):
            result[group] = _rounded_with_top(lists[group].as_py() or [], int(top[group]))
        result[minus != 0] = -math.inf
        result[plus != 0] = math.inf
        result[(nan != 0) | ((plus != 0) & (minus != 0))] = math.nan
        return pa.array(result)

    def partials(self, argument: str) -> tuple[str, ...] | None:
        return None


def _specials(doubles: Doubles, signs: Ids, finite: Mask) -> list[Ids]:
    """For each value whether it is NaN, ∞ or −∞, with its sign."""
    if finite.all():
        return [np.zeros(len(doubles), np.int64)] * 3
    masks = (np.isnan(doubles), doubles == math.inf, doubles == -math.inf)
    return [np.where(mask, signs, 0) for mask in masks]


def digit_sums(values: Doubles, ids: Ids, groups: int) -> tuple[Digits, Ids]:
    """The sum of finite values below 2⁹⁹² per group: digits by place, and what goes above them."""
    total: Digits = {}
    carried = np.zeros(groups, np.int64)
    for start in range(0, len(values), _MOST_ROWS):
        rows = slice(start, start + _MOST_ROWS)
        found = _digits_of(values[rows], ids[rows], groups)
        carried += _carry(found)
        for place, digits in found.items():
            total[place] = total[place] + digits if place in total else digits
    if len(values) > _MOST_ROWS:
        carried += _carry(total)
    return total, carried


def _digits_of(rest: Doubles, ids: Ids, groups: int) -> Digits:
    """From the highest place down: round to it, add up, go on with what is left."""
    found: Digits = {}
    while True:
        largest = max(rest.max(initial=0.0), -rest.min(initial=0.0))
        if largest == 0:
            return found
        place = (math.frexp(largest)[1] - 1) // _DIGIT_BITS
        digits = _to_place(rest, place)
        found[place] = np.bincount(ids, digits, groups).astype(np.float64, copy=False)
        rest = rest - digits


def _to_place(values: Doubles, place: int) -> Doubles:
    """Values below 2⁵¹ units of a place, rounded to it: a sum this large has no smaller bits."""
    large = math.ldexp(1.5, place * _DIGIT_BITS + 52)
    return (values + large) - large


def _carry(digits: Digits) -> Ids:
    """Leave at most half a unit of the next place in each place; returns what goes above all."""
    place = min(digits, default=_HIGHEST + 1)
    while place <= min(max(digits, default=place), _HIGHEST - 1):
        if place in digits:
            more = _to_place(digits[place], place + 1)
            if more.any():
                digits[place] = digits[place] - more
                digits[place + 1] = digits.get(place + 1, 0.0) + more
        place += 1
    if _HIGHEST not in digits:
        return np.zeros(1, np.int64)
    digits[_HIGHEST], above = _without_top(digits[_HIGHEST])
    return above


def _without_top(values: Doubles) -> tuple[Doubles, Ids]:
    """Values below 2⁹⁹², and how many 2⁹⁹² were taken off them."""
    if not len(values) or np.abs(values).max() < math.ldexp(1.0, _TOP_BITS):
        return values, np.zeros(len(values), np.int64)
    units = np.trunc(np.ldexp(values, -_TOP_BITS))
    return values - np.ldexp(units, _TOP_BITS), units.astype(np.int64)


def rounded(digits: Doubles) -> Doubles:
    """The sum of each row of digits, largest first and not overlapping, to the nearest double."""
    rows = len(digits)
    high, low, after = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    for column in digits.T:
        exact = low == 0
        total = high + column
        low = np.where(exact, column - (total - high), low)
        after = np.where(~exact & (after == 0), column, after)
        high = np.where(exact, total, high)
    # Half way between two doubles the next digit decides.
    twice = 2 * low
    moved = high + twice
    beyond = (np.sign(low) == np.sign(after)) & (low != 0) & (moved - high == twice)
    return np.where(beyond, moved, high)


def _rounded_with_top(digits: Sequence[float], top: int) -> float:
    exact = sum(map(Fraction, digits), Fraction(top * 2**_TOP_BITS))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _matrix(lists: pa.Array) -> Doubles:
    """A row per list, filled up with zeros."""
    lengths = pc.fill_null(lists.value_lengths(), 0).to_numpy(zero_copy_only=False)
    matrix = np.zeros((len(lists), int(lengths.max(initial=0))))
    there: Mask = np.arange(matrix.shape[1]) < lengths[:, None]
    matrix[there] = lists.flatten().to_numpy(zero_copy_only=False)
    return matrix


def _lists(lengths: Mask | Ids, values: Doubles) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=_LIST)
