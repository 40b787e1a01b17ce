"""count, count_if, sum, avg."""

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

# ---- Exact sums of doubles: whatever is added or retracted, in any order and split, nothing drifts.
#
# A sum is kept as a list of doubles whose exact sum it is: digits to the base 2³², each a multiple of
# its place and at most half of the next, so that they do not overlap. Adding the digits of up to 2²⁰
# values at one place stays below 2⁵³ units and is exact in a double, whatever the order. NaN and the
# infinities are counted beside it. The value is the exact sum of all that is there, rounded once to
# the nearest double; Spark, which rounds after each addition, may differ from it in the last bits.

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

    def pre_aggregate(self, values: Column, weights: Column | None) -> list[Column]:
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

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        """The digits of each group added up, with carries."""
        lists = as_array(states[0])
        lengths = pc.fill_null(lists.value_lengths(), 0).to_numpy(zero_copy_only=False)
        values = lists.flatten().to_numpy(zero_copy_only=False)
        digits, carried = digit_sums(values, np.repeat(ids, lengths), groups)
        top, *specials = (sum_groups(state, ids, groups) for state in states[1:])
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


def _specials(doubles: Doubles, signs: Ints, finite: Mask) -> list[Ints]:
    """For each value whether it is NaN, ∞ or −∞, with its sign."""
    if finite.all():
        return [np.zeros(len(doubles), np.int64)] * 3
    masks = (np.isnan(doubles), doubles == math.inf, doubles == -math.inf)
    return [np.where(mask, signs, 0) for mask in masks]


def digit_sums(values: Doubles, ids: Ints, groups: int) -> tuple[Digits, Ints]:
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


def _digits_of(rest: Doubles, ids: Ints, groups: int) -> Digits:
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


def _carry(digits: Digits) -> Ints:
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


def _without_top(values: Doubles) -> tuple[Doubles, Ints]:
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


def _lists(lengths: Mask | Ints, values: Doubles) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=_LIST)


# ---- Ways to add up: integers and decimals exactly; doubles too where rows are retracted.

# What still fits if as many rows are added up as one stream ever has.
_NARROW_BITS = 32
_LOWER = 2**32 - 1


class Total(Protocol):
    """The states of a sum; without `merges` it combines them itself."""

    @property
    def fields(self) -> tuple[pa.DataType, ...]: ...

    @property
    def merges(self) -> tuple[str, ...]: ...

    def pre_aggregate(self, values: Column, weights: Column | None) -> list[Column]:
        """The states of single values."""

    def value(self, states: Sequence[Column]) -> Column:
        """The sum."""

    def partials(self, argument: str) -> tuple[str, ...] | None:
        """The states as Spark's aggregates of an argument."""


class NarrowTotal:
    """Integers of up to 32 bits: their sum fits a BIGINT."""

    fields = (pa.int64(),)
    merges = ("sum",)

    def pre_aggregate(self, values: Column, weights: Column | None) -> list[Column]:
        return [_signed(pc.cast(values, pa.int64()), weights)]

    def value(self, states: Sequence[Column]) -> Column:
        return states[0]

    def partials(self, argument: str) -> tuple[str, ...] | None:
        return (f"sum({argument})",)


class WideTotal:
    """BIGINT and intervals: the sums of the upper and of the lower halves.

    Partial sums may leave the range and come back; the halves of fewer than 2³¹ rows never do.
    """

    fields = (pa.int64(), pa.int64())
    merges = ("sum", "sum")

    def __init__(self, call: AggregateCall) -> None:
        self.call = call

    def pre_aggregate(self, values: Column, weights: Column | None) -> list[Column]:
        ints = pc.cast(values, pa.int64())
        halves = pc.shift_right(ints, 32), pc.bit_wise_and(ints, _LOWER)
        return [_signed(half, weights) for half in halves]

    def value(self, states: Sequence[Column]) -> Column:
        upper, lower = to_ints(states[0]), to_ints(states[1])
        upper = upper + (lower >> 32)
        if len(upper) and (upper.min() < -(2**31) or upper.max() >= 2**31):
            raise overflow_error(self.call)
        whole = (upper << 32) | (lower & _LOWER)
        return with_nulls(whole, valid_mask(states[0]), self.call.result)

    def partials(self, argument: str) -> tuple[str, ...] | None:
        if pa.types.is_duration(self.call.arguments[0]):
            return None
        return f"sum(shiftright({argument}, 32))", f"sum({argument} & {_LOWER}L)"


class WideTotalAsDouble(WideTotal):
    """The same for an average: a sum that fits a double, rounded once."""

    def value(self, states: Sequence[Column]) -> Column:
        upper, lower = to_ints(states[0]), to_ints(states[1])
        doubles = upper.astype(np.float64) * 2.0**32 + lower.astype(np.float64)
        return pa.array(doubles, mask=~valid_mask(states[0]))


class DecimalTotal:
    """Decimals, kept in a type with room to notice an overflow of `limit`."""

    merges = ("sum",)

    def __init__(self, call: AggregateCall, limit: pa.DataType) -> None:
        self.call, self.limit = call, limit
        roomy = limit.precision < 38
        self.state = (pa.decimal128 if roomy else pa.decimal256)(38 if roomy else 76, limit.scale)
        self.fields = (self.state,)

    def pre_aggregate(self, values: Column, weights: Column | None) -> list[Column]:
        wide = pc.cast(values, self.state)
        if weights is None:
            return [wide]
        return [pc.if_else(pc.less(weights, 0), pc.negate(wide), wide)]

    def value(self, states: Sequence[Column]) -> Column:
        try:
            return pc.cast(states[0], self.limit)
        except pa.ArrowInvalid:
            raise overflow_error(self.call) from None

    def partials(self, argument: str) -> tuple[str, ...] | None:
        # Spark has no type for a sum that does not fit 38 digits.
        if pa.types.is_decimal256(self.state):
            return None
        return (f"CAST(sum({argument}) AS DECIMAL(38, {self.limit.scale}))",)


class DoubleTotal:
    """Doubles that stay, added one after the other and rounded each time, as Spark does it."""

    fields = (pa.float64(),)
    merges = ("sum",)

    def pre_aggregate(self, values: Column, weights: Column | None) -> list[Column]:
        assert weights is None, "what is retracted needs an exact sum"
        return [pc.cast(values, pa.float64())]

    def value(self, states: Sequence[Column]) -> Column:
        # A sum starts at 0.0, so that the sum of −0.0 is 0.0.
        return pc.add(states[0], 0.0)

    def partials(self, argument: str) -> tuple[str, ...] | None:
        return (f"sum({argument})",)


def total_of(call: AggregateCall, averaged: bool = False) -> Total:
    """How the argument of a call is added up."""
    kind = call.arguments[0]
    if pa.types.is_duration(kind):
        return WideTotal(call)
    if pa.types.is_decimal(kind):
        # An average needs the sum; Spark keeps it with ten more digits, 38 at most.
        precision = min(kind.precision + 10, 38) if averaged else call.result.precision
        return DecimalTotal(call, pa.decimal128(precision, kind.scale))
    if pa.types.is_floating(kind):
        return ExactTotal() if call.retracts else DoubleTotal()
    if not pa.types.is_integer(kind):
        hint = "cast the argument to a number, for example CAST(… AS DOUBLE)."
        raise unsupported_call(call, f"is not supported over {kind}", hint)
    if kind.bit_width <= _NARROW_BITS:
        return NarrowTotal()
    return WideTotalAsDouble(call) if averaged else WideTotal(call)


def _signed(ints: Column, weights: Column | None) -> Column:
    return ints if weights is None else pc.multiply(ints, weights)


_DIVIDE = decimal.Context(prec=76, rounding=decimal.ROUND_DOWN)
_ROUND = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)


class Count(PlainAccumulator):
    """count(a), count(a, b): rows in which nothing is NULL."""

    names = ("count",)
    retractable = True
    fields = (pa.int64(),)
    merges = ("sum",)

    @property
    def required(self) -> tuple[int, ...]:
        return tuple(range(len(self.call.arguments)))

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        there: Column | None = None
        for argument in arguments:
            valid = pc.is_valid(argument)
            there = valid if there is None else pc.and_(there, valid)
        assert there is not None, "count(*) is the number of rows of a group, which is kept anyway"
        return [_counted(there, weights)]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return pc.fill_null(states[0], 0)

    def partials(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        return None if self.call.retracts else (f"count({', '.join(arguments)})",)


class CountIf(PlainAccumulator):
    """count_if(c): rows in which c is true."""

    names = ("count_if",)
    retractable = True
    fields = (pa.int64(),)
    merges = ("sum",)

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        require_boolean(call)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        return [_counted(pc.fill_null(arguments[0], False), weights)]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return pc.fill_null(states[0], 0)

    def partials(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        return None if self.call.retracts else (f"count_if({arguments[0]})",)


class _Totalled(PlainAccumulator):
    """A sum and, where that is needed, the number of values in it."""

    retractable = True

    def __init__(self, call: AggregateCall, total: Total, counts: bool) -> None:
        super().__init__(call)
        self.total, self.counts = total, counts
        self.fields = (*total.fields, *((pa.int64(),) if counts else ()))
        self.merges = (*total.merges, *(("sum",) if counts else ())) if total.merges else ()

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        states = self.total.pre_aggregate(arguments[0], weights)
        if self.counts:
            states.append(_counted(pc.is_valid(arguments[0]), weights))
        return states

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        assert isinstance(self.total, ExactTotal) and self.counts, "others are merged by kernels"
        combined = self.total.combine(states[:-1], ids, groups)
        return [*combined, pa.array(sum_groups(states[-1], ids, groups))]

    def partials(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        sums = None if self.call.retracts else self.total.partials(arguments[0])
        if sums is None:
            return None
        return (*sums, f"count({arguments[0]})") if self.counts else sums


class Sum(_Totalled):
    """sum of numbers or intervals: NULL for a group without values."""

    names = ("sum",)

    def __init__(self, call: AggregateCall) -> None:
        # Rows that only come leave a NULL where there were none; a count has to say it otherwise.
        super().__init__(call, total_of(call), counts=call.retracts)

    def evaluate(self, states: Sequence[Column]) -> Column:
        if not self.counts:
            return self.total.value(states)
        total = self.total.value(states[:-1])
        return pc.if_else(pc.equal(states[-1], 0), pa.scalar(None, total.type), total)


class Average(_Totalled):
    """avg: a double for numbers, a wider decimal for decimals, an interval for intervals."""

    names: ClassVar[tuple[str, ...]] = ("avg", "mean")

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call, total_of(call, averaged=True), counts=True)

    def evaluate(self, states: Sequence[Column]) -> Column:
        total, count = self.total.value(states[:-1]), states[-1]
        count = pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.int64()), count)
        if pa.types.is_decimal(self.call.result):
            return self._decimal_quotients(total, count)
        if pa.types.is_duration(self.call.result):
            return _rounded_quotients(total, count, self.call.result)
        total = pc.cast(total, pa.float64(), safe=False)
        return pc.divide(total, pc.cast(count, pa.float64()))

    def _decimal_quotients(self, total: Column, count: Column) -> Column:
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
    """Spark casts text to a boolean by rules of its own; that is left to Spark."""
    if not pa.types.is_boolean(call.arguments[0]):
        hint = "cast the argument: CAST(… AS BOOLEAN)."
        raise unsupported_call(call, f"is not supported over {call.arguments[0]}", hint)


def _counted(there: Column, weights: Column | None) -> Column:
    ones = pc.cast(there, pa.int64())
    return ones if weights is None else pc.multiply(ones, weights)


def _rounded_quotients(total: Column, count: Column, kind: pa.DataType) -> Column:
    """Intervals divided by numbers, half a microsecond rounded away from zero."""
    there = valid_mask(count) & valid_mask(total)
    micros = to_ints(pc.cast(total, pa.int64()))
    counts = np.where(there, to_ints(count), 1)
    quotient, rest = np.divmod(np.abs(micros), np.abs(counts))
    rounded = quotient + (2 * rest >= np.abs(counts))
    signed = rounded * np.sign(micros) * np.sign(counts)
    return with_nulls(signed, there, kind)
