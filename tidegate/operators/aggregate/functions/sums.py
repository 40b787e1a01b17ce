"""count, count_if, sum and avg."""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.aggregate.functions.base import (
    AggregateCall,
    PlainAccumulator,
    overflow_error,
    unsupported_call,
)
from tidegate.operators.kernels.arrays import (
    Column,
    Doubles,
    Ints,
    Mask,
    as_array,
    sum_groups,
    to_ints,
    valid_mask,
    with_nulls,
)

# ---- Exact sums of doubles: the same result for any order and split of additions and retractions
#
# A sum is a list of doubles with that exact sum: digits to the base 2³². Each digit is a multiple
# of its place value and at most half of the next one, so digits do not overlap. Adding up to 2²⁰
# digits of one place stays below 2⁵³ units, so it is exact in a double in any order. NaN and
# infinities are counted separately. The result is the exact sum, rounded once to the nearest
# double; Spark rounds after every addition, so the last bits may differ.

_DIGIT_BITS = 32
# This many digits of a place can be added exactly.
_MAX_ADDENDS = 2**20
# The highest place is 2⁹⁶⁰: its digits leave room for sums. Multiples of 2⁹⁹² are counted as an
# integer ("top").
_HIGHEST_PLACE = 30
_TOP_BITS = (_HIGHEST_PLACE + 1) * _DIGIT_BITS
_LIST = pa.list_(pa.float64())
# Digits of every group, by place.
Digits = dict[int, Doubles]


class ExactTotal:
    """The digits of a sum, its multiples of 2⁹⁹², and the numbers of NaN, ∞ and −∞."""

    state_types = (_LIST, pa.int64(), pa.int64(), pa.int64(), pa.int64())
    merge_kernels = ()

    def pre_aggregate(self, values: Column, weights: Column | None) -> list[Column]:
        doubles = as_array(pc.fill_null(pc.cast(values, pa.float64()), 0.0))
        doubles = doubles.to_numpy(zero_copy_only=False)
        signs = np.ones(len(doubles), np.int64) if weights is None else to_ints(weights)
        finite = np.isfinite(doubles)
        has_digit = finite & (doubles != 0)
        digits, top = _split_top(doubles[has_digit] * signs[has_digit])
        tops = np.zeros(len(doubles), np.int64)
        tops[has_digit] = top
        specials = _count_specials(doubles, signs, finite)
        return [_lists(has_digit, digits), *(pa.array(ints) for ints in (tops, *specials))]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        """Add up the digits of each group."""
        lists = as_array(states[0])
        lengths = pc.fill_null(lists.value_lengths(), 0).to_numpy(zero_copy_only=False)
        values = lists.flatten().to_numpy(zero_copy_only=False)
        digits, carry = digit_sums(values, np.repeat(ids, lengths), groups)
        top, *specials = (sum_groups(state, ids, groups) for state in states[1:])
        matrix = np.zeros((groups, len(digits)))
        for column, place in enumerate(sorted(digits, reverse=True)):
            matrix[:, column] = digits[place]
        nonzero = matrix != 0
        ints = (top + carry, *specials)
        return [
            _lists(nonzero.sum(axis=1), matrix[nonzero]),
            *(pa.array(column) for column in ints),
        ]

    def value(self, states: Sequence[Column]) -> Column:
        """Return the sum, rounded once."""
        lists = as_array(states[0])
        top, nan, plus, minus = (to_ints(state) for state in states[1:])
        result = round_digits(_to_matrix(lists))
        for group in np.flatnonzero(top):
            result[group] = _round_with_top(lists[group].as_py() or [], int(top[group]))
        result[minus != 0] = -math.inf
        result[plus != 0] = math.inf
        result[(nan != 0) | ((plus != 0) & (minus != 0))] = math.nan
        return pa.array(result)

    def partial_sql(self, argument: str) -> tuple[str, ...] | None:
        return None


def _count_specials(doubles: Doubles, signs: Ints, finite: Mask) -> list[Ints]:
    """Return for each value whether it is NaN, ∞ or −∞, with its sign."""
    if finite.all():
        return [np.zeros(len(doubles), np.int64)] * 3
    masks = (np.isnan(doubles), doubles == math.inf, doubles == -math.inf)
    return [np.where(mask, signs, 0) for mask in masks]


def digit_sums(values: Doubles, ids: Ints, groups: int) -> tuple[Digits, Ints]:
    """Sum finite values below 2⁹⁹² by group; return the digits and the multiples of 2⁹⁹²."""
    total: Digits = {}
    carry = np.zeros(groups, np.int64)
    for start in range(0, len(values), _MAX_ADDENDS):
        rows = slice(start, start + _MAX_ADDENDS)
        part = _extract_digits(values[rows], ids[rows], groups)
        carry += _propagate_carries(part)
        for place, digits in part.items():
            total[place] = total[place] + digits if place in total else digits
    if len(values) > _MAX_ADDENDS:
        carry += _propagate_carries(total)
    return total, carry


def _extract_digits(rest: Doubles, ids: Ints, groups: int) -> Digits:
    """Sum values digit by digit, from the highest place down."""
    result: Digits = {}
    while True:
        largest = max(rest.max(initial=0.0), -rest.min(initial=0.0))
        if largest == 0:
            return result
        place = (math.frexp(largest)[1] - 1) // _DIGIT_BITS
        digits = _round_to_place(rest, place)
        result[place] = np.bincount(ids, digits, groups).astype(np.float64, copy=False)
        rest = rest - digits


def _round_to_place(values: Doubles, place: int) -> Doubles:
    """Round values below 2⁵¹ units of a place to it.

    Adding a number that large drops all smaller bits; subtracting it again is exact.
    """
    large = math.ldexp(1.5, place * _DIGIT_BITS + 52)
    return (values + large) - large


def _propagate_carries(digits: Digits) -> Ints:
    """Reduce every digit to at most half a unit of the next place; return what exceeds 2⁹⁹²."""
    place = min(digits, default=_HIGHEST_PLACE + 1)
    while place <= min(max(digits, default=place), _HIGHEST_PLACE - 1):
        if place in digits:
            carry = _round_to_place(digits[place], place + 1)
            if carry.any():
                digits[place] = digits[place] - carry
                digits[place + 1] = digits.get(place + 1, 0.0) + carry
        place += 1
    if _HIGHEST_PLACE not in digits:
        return np.zeros(1, np.int64)
    digits[_HIGHEST_PLACE], top = _split_top(digits[_HIGHEST_PLACE])
    return top


def _split_top(values: Doubles) -> tuple[Doubles, Ints]:
    """Split values into a rest below 2⁹⁹² and a multiple of 2⁹⁹²."""
    if not len(values) or np.abs(values).max() < math.ldexp(1.0, _TOP_BITS):
        return values, np.zeros(len(values), np.int64)
    units = np.trunc(np.ldexp(values, -_TOP_BITS))
    return values - np.ldexp(units, _TOP_BITS), units.astype(np.int64)


def round_digits(digits: Doubles) -> Doubles:
    """Round the sum of each row of digits, largest first, to the nearest double."""
    rows = len(digits)
    high, low, after = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    for column in digits.T:
        exact = low == 0
        total = high + column
        low = np.where(exact, column - (total - high), low)
        after = np.where(~exact & (after == 0), column, after)
        high = np.where(exact, total, high)
    # Halfway between two doubles, the next digit decides.
    twice = 2 * low
    neighbor = high + twice
    is_beyond = (np.sign(low) == np.sign(after)) & (low != 0) & (neighbor - high == twice)
    return np.where(is_beyond, neighbor, high)


def _round_with_top(digits: Sequence[float], top: int) -> float:
    exact = sum(map(Fraction, digits), Fraction(top * 2**_TOP_BITS))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _to_matrix(lists: pa.Array) -> Doubles:
    """Return a row per list, padded with zeros."""
    lengths = pc.fill_null(lists.value_lengths(), 0).to_numpy(zero_copy_only=False)
    matrix = np.zeros((len(lists), int(lengths.max(initial=0))))
    used: Mask = np.arange(matrix.shape[1]) < lengths[:, None]
    matrix[used] = lists.flatten().to_numpy(zero_copy_only=False)
    return matrix


def _lists(lengths: Mask | Ints, values: Doubles) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=_LIST)


# ---- How a type is summed: integers and decimals exactly, and doubles too if rows are retracted

# Sums of integers up to this width fit a BIGINT, for as many rows as a stream can have.
_NARROW_BITS = 32
_LOWER_MASK = 2**32 - 1


class Total(Protocol):
    """The state of a sum; without `merge_kernels` it has a `combine` like an accumulator."""

    @property
    def state_types(self) -> tuple[pa.DataType, ...]: ...

    @property
    def merge_kernels(self) -> tuple[str, ...]: ...

    def pre_aggregate(self, values: Column, weights: Column | None) -> list[Column]:
        """Return the states of single values."""

    def value(self, states: Sequence[Column]) -> Column:
        """Return the sum."""

    def partial_sql(self, argument: str) -> tuple[str, ...] | None:
        """Return the states as Spark aggregates of an argument."""


class NarrowTotal:
    """A sum of integers of up to 32 bits, which fits a BIGINT."""

    state_types = (pa.int64(),)
    merge_kernels = ("sum",)

    def pre_aggregate(self, values: Column, weights: Column | None) -> list[Column]:
        return [_apply_weights(pc.cast(values, pa.int64()), weights)]

    def value(self, states: Sequence[Column]) -> Column:
        return states[0]

    def partial_sql(self, argument: str) -> tuple[str, ...] | None:
        return (f"sum({argument})",)


class WideTotal:
    """A sum of BIGINTs or intervals, as the sums of the upper and of the lower 32 bits.

    A partial sum may leave the range of BIGINT and return to it; the halves never overflow for
    fewer than 2³¹ rows.
    """

    state_types = (pa.int64(), pa.int64())
    merge_kernels = ("sum", "sum")

    def __init__(self, call: AggregateCall) -> None:
        self.call = call

    def pre_aggregate(self, values: Column, weights: Column | None) -> list[Column]:
        ints = pc.cast(values, pa.int64())
        halves = pc.shift_right(ints, 32), pc.bit_wise_and(ints, _LOWER_MASK)
        return [_apply_weights(half, weights) for half in halves]

    def value(self, states: Sequence[Column]) -> Column:
        upper, lower = to_ints(states[0]), to_ints(states[1])
        upper = upper + (lower >> 32)
        if len(upper) and (upper.min() < -(2**31) or upper.max() >= 2**31):
            raise overflow_error(self.call)
        total = (upper << 32) | (lower & _LOWER_MASK)
        return with_nulls(total, valid_mask(states[0]), self.call.result)

    def partial_sql(self, argument: str) -> tuple[str, ...] | None:
        if pa.types.is_duration(self.call.arguments[0]):
            return None
        return f"sum(shiftright({argument}, 32))", f"sum({argument} & {_LOWER_MASK}L)"


class WideTotalAsDouble(WideTotal):
    """The sum of an average: converted to a double, rounded once."""

    def value(self, states: Sequence[Column]) -> Column:
        upper, lower = to_ints(states[0]), to_ints(states[1])
        doubles = upper.astype(np.float64) * 2.0**32 + lower.astype(np.float64)
        return pa.array(doubles, mask=~valid_mask(states[0]))


class DecimalTotal:
    """A sum of decimals, in a type that is wide enough to detect an overflow of `limit`."""

    merge_kernels = ("sum",)

    def __init__(self, call: AggregateCall, limit: pa.DataType) -> None:
        self.call, self.limit = call, limit
        fits_128 = limit.precision < 38
        decimal_type = pa.decimal128 if fits_128 else pa.decimal256
        self.state_type = decimal_type(38 if fits_128 else 76, limit.scale)
        self.state_types = (self.state_type,)

    def pre_aggregate(self, values: Column, weights: Column | None) -> list[Column]:
        wide = pc.cast(values, self.state_type)
        if weights is None:
            return [wide]
        return [pc.if_else(pc.less(weights, 0), pc.negate(wide), wide)]

    def value(self, states: Sequence[Column]) -> Column:
        try:
            return pc.cast(states[0], self.limit)
        except pa.ArrowInvalid:
            raise overflow_error(self.call) from None

    def partial_sql(self, argument: str) -> tuple[str, ...] | None:
        # Spark has no type for a sum of more than 38 digits.
        if pa.types.is_decimal256(self.state_type):
            return None
        return (f"CAST(sum({argument}) AS DECIMAL(38, {self.limit.scale}))",)


class DoubleTotal:
    """A sum of doubles without retractions, rounded after every addition as in Spark."""

    state_types = (pa.float64(),)
    merge_kernels = ("sum",)

    def pre_aggregate(self, values: Column, weights: Column | None) -> list[Column]:
        assert weights is None, "retractions need an exact sum"
        return [pc.cast(values, pa.float64())]

    def value(self, states: Sequence[Column]) -> Column:
        # A sum starts at 0.0, so the sum of −0.0 is 0.0.
        return pc.add(states[0], 0.0)

    def partial_sql(self, argument: str) -> tuple[str, ...] | None:
        return (f"sum({argument})",)


def total_of(call: AggregateCall, averaged: bool = False) -> Total:
    """Return how the argument of a call is summed."""
    data_type = call.arguments[0]
    if pa.types.is_duration(data_type):
        return WideTotal(call)
    if pa.types.is_decimal(data_type):
        # For an average, Spark computes the sum with ten more digits, 38 at most.
        precision = min(data_type.precision + 10, 38) if averaged else call.result.precision
        return DecimalTotal(call, pa.decimal128(precision, data_type.scale))
    if pa.types.is_floating(data_type):
        return ExactTotal() if call.retracts else DoubleTotal()
    if not pa.types.is_integer(data_type):
        hint = "cast the argument to a number, for example CAST(… AS DOUBLE)."
        raise unsupported_call(call, f"is not supported over {data_type}", hint)
    if data_type.bit_width <= _NARROW_BITS:
        return NarrowTotal()
    return WideTotalAsDouble(call) if averaged else WideTotal(call)


def _apply_weights(ints: Column, weights: Column | None) -> Column:
    return ints if weights is None else pc.multiply(ints, weights)


# ---- The functions

_DIVIDE = decimal.Context(prec=76, rounding=decimal.ROUND_DOWN)
_ROUND = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)


class Count(PlainAccumulator):
    """count(a), count(a, b): rows in which no argument is NULL."""

    names = ("count",)
    retractable = True
    state_types = (pa.int64(),)
    merge_kernels = ("sum",)

    @property
    def required_arguments(self) -> tuple[int, ...]:
        return tuple(range(len(self.call.arguments)))

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        counted: Column | None = None
        for argument in arguments:
            valid = pc.is_valid(argument)
            counted = valid if counted is None else pc.and_(counted, valid)
        assert counted is not None, "count(*) is the number of rows, which every group has"
        return [_count(counted, weights)]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return pc.fill_null(states[0], 0)

    def partial_sql(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        return None if self.call.retracts else (f"count({', '.join(arguments)})",)


class CountIf(PlainAccumulator):
    """count_if(c): rows in which c is true."""

    names = ("count_if",)
    retractable = True
    state_types = (pa.int64(),)
    merge_kernels = ("sum",)

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        require_boolean(call)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        return [_count(pc.fill_null(arguments[0], False), weights)]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return pc.fill_null(states[0], 0)

    def partial_sql(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        return None if self.call.retracts else (f"count_if({arguments[0]})",)


class _SumAndCount(PlainAccumulator):
    """A sum and, with `counts`, the number of values in it."""

    retractable = True

    def __init__(self, call: AggregateCall, total: Total, counts: bool) -> None:
        super().__init__(call)
        self.total, self.counts = total, counts
        self.state_types = (*total.state_types, *((pa.int64(),) if counts else ()))
        kernels = (*total.merge_kernels, *(("sum",) if counts else ()))
        self.merge_kernels = kernels if total.merge_kernels else ()

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        states = self.total.pre_aggregate(arguments[0], weights)
        if self.counts:
            states.append(_count(pc.is_valid(arguments[0]), weights))
        return states

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        assert isinstance(self.total, ExactTotal) and self.counts, "kernels merge other totals"
        combined = self.total.combine(states[:-1], ids, groups)
        return [*combined, pa.array(sum_groups(states[-1], ids, groups))]

    def partial_sql(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        sums = None if self.call.retracts else self.total.partial_sql(arguments[0])
        if sums is None:
            return None
        return (*sums, f"count({arguments[0]})") if self.counts else sums


class Sum(_SumAndCount):
    """sum of numbers or intervals: NULL for a group without values."""

    names = ("sum",)

    def __init__(self, call: AggregateCall) -> None:
        # Without retractions, the sum of no values is NULL. Otherwise a count is needed.
        super().__init__(call, total_of(call), counts=call.retracts)

    def evaluate(self, states: Sequence[Column]) -> Column:
        if not self.counts:
            return self.total.value(states)
        total = self.total.value(states[:-1])
        return pc.if_else(pc.equal(states[-1], 0), pa.scalar(None, total.type), total)


class Average(_SumAndCount):
    """avg: a double for numbers, a wider decimal for decimals, an interval for intervals."""

    names: ClassVar[tuple[str, ...]] = ("avg", "mean")

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call, total_of(call, averaged=True), counts=True)

    def evaluate(self, states: Sequence[Column]) -> Column:
        total, count = self.total.value(states[:-1]), states[-1]
        count = pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.int64()), count)
        if pa.types.is_decimal(self.call.result):
            return self._divide_decimals(total, count)
        if pa.types.is_duration(self.call.result):
            return _divide_intervals(total, count, self.call.result)
        total = pc.cast(total, pa.float64(), safe=False)
        return pc.divide(total, pc.cast(count, pa.float64()))

    def _divide_decimals(self, total: Column, count: Column) -> Column:
        quantum = decimal.Decimal(1).scaleb(-self.call.result.scale)
        quotients = [
            None if t is None or n is None else _ROUND.quantize(_DIVIDE.divide(t, n), quantum)
            for t, n in zip(total.to_pylist(), count.to_pylist(), strict=True)
        ]
        try:
            return pa.array(quotients, self.call.result)
        except pa.ArrowInvalid:
            raise overflow_error(self.call) from None


def require_boolean(call: AggregateCall) -> None:
    """Reject arguments that are not boolean; only Spark can cast text to BOOLEAN by its rules."""
    if not pa.types.is_boolean(call.arguments[0]):
        hint = "cast the argument: CAST(… AS BOOLEAN)."
        raise unsupported_call(call, f"is not supported over {call.arguments[0]}", hint)


def _count(counted: Column, weights: Column | None) -> Column:
    """Return 1, or the weight if there are weights, for every counted row, and 0 for the others."""
    return _apply_weights(pc.cast(counted, pa.int64()), weights)


def _divide_intervals(total: Column, count: Column, data_type: pa.DataType) -> Column:
    """Divide intervals by numbers; half a microsecond is rounded away from zero."""
    valid = valid_mask(count) & valid_mask(total)
    micros = to_ints(pc.cast(total, pa.int64()))
    counts = np.where(valid, to_ints(count), 1)
    quotient, rest = np.divmod(np.abs(micros), np.abs(counts))
    rounded = quotient + (2 * rest >= np.abs(counts))
    signed = rounded * np.sign(micros) * np.sign(counts)
    return with_nulls(signed, valid, data_type)
