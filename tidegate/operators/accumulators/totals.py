"""Ways to add up: integers and decimals exactly, doubles so that NaN and ∞ can be taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.accumulators.base import Call, Column, overflow, unsupported
from tidegate.operators.accumulators.kernels import to_ints

# What still fits if as many rows are added up as one stream ever has.
_NARROW_BITS = 32


class Total(Protocol):
    """The states of a sum, each merged by adding."""

    fields: tuple[pa.DataType, ...]

    def lift(self, values: Column, weights: Column | None) -> list[Column]:
        """The states of single values."""

    def value(self, states: Sequence[Column]) -> Column:
        """The sum."""


class NarrowTotal:
    """Integers of up to 32 bits: their sum fits a BIGINT."""

    fields = (pa.int64(),)

    def lift(self, values: Column, weights: Column | None) -> list[Column]:
        return [_signed(pc.cast(values, pa.int64()), weights)]

    def value(self, states: Sequence[Column]) -> Column:
        return states[0]


class WideTotal:
    """BIGINT and intervals: the sum modulo 2⁶⁴, and the sum of the upper halves.

    Partial sums may leave the range and come back; together the two say what the sum really is, as
    the lower halves add up to less than 2⁶⁴ for fewer than 2³² rows.
    """

    fields = (pa.int64(), pa.int64())

    def __init__(self, call: Call) -> None:
        self.call = call

    def lift(self, values: Column, weights: Column | None) -> list[Column]:
        ints = pc.cast(values, pa.int64())
        upper = pc.shift_right(ints, 32)
        return [_signed(ints, weights), _signed(upper, weights)]

    def value(self, states: Sequence[Column]) -> Column:
        wrapped, upper = to_ints(states[0]), to_ints(states[1])
        lower = (wrapped - (upper << 32)).view(np.uint64)
        top = upper + (lower >> np.uint64(32)).astype(np.int64)
        if len(top) and (top.min() < -(2**31) or top.max() >= 2**31):
            raise overflow(self.call)
        return (
            states[0]
            if pa.types.is_int64(self.call.result)
            else pc.cast(states[0], self.call.result)
        )


class DecimalTotal:
    """Decimals, kept in a type with room to notice an overflow of `limit`."""

    def __init__(self, call: Call, limit: pa.DataType) -> None:
        self.call, self.limit = call, limit
        roomy = limit.precision < 38
        self.state = (pa.decimal128 if roomy else pa.decimal256)(38 if roomy else 76, limit.scale)
        self.fields = (self.state,)

    def lift(self, values: Column, weights: Column | None) -> list[Column]:
        wide = pc.cast(values, self.state)
        if weights is None:
            return [wide]
        return [pc.if_else(pc.less(weights, 0), pc.negate(wide), wide)]

    def value(self, states: Sequence[Column]) -> Column:
        try:
            return pc.cast(states[0], self.limit)
        except pa.ArrowInvalid:
            raise overflow(self.call) from None


class DoubleTotal:
    """Doubles that stay."""

    fields = (pa.float64(),)

    def lift(self, values: Column, weights: Column | None) -> list[Column]:
        doubles = pc.cast(values, pa.float64(), safe=False)
        return [doubles if weights is None else pc.multiply(doubles, pc.cast(weights, "float64"))]

    def value(self, states: Sequence[Column]) -> Column:
        # A sum starts at 0.0, so that the sum of −0.0 is 0.0.
        return pc.add(states[0], 0.0)


class RetractableDoubleTotal:
    """Doubles that can be taken back: NaN, ∞ and −∞ are counted, the others added up."""

    fields = (pa.float64(), pa.int64(), pa.int64(), pa.int64())

    def lift(self, values: Column, weights: Column | None) -> list[Column]:
        doubles = pc.cast(values, pa.float64())
        finite = pc.if_else(pc.is_finite(doubles), doubles, 0.0)
        nan = pc.is_nan(doubles)
        plus = pc.equal(doubles, float("inf"))
        minus = pc.equal(doubles, float("-inf"))
        sign = None if weights is None else pc.cast(weights, pa.float64())
        counts = [_signed(pc.cast(mask, pa.int64()), weights) for mask in (nan, plus, minus)]
        return [finite if sign is None else pc.multiply(finite, sign), *counts]

    def value(self, states: Sequence[Column]) -> Column:
        finite, nan, plus, minus = states
        any_plus, any_minus = pc.not_equal(plus, 0), pc.not_equal(minus, 0)
        is_nan = pc.or_(pc.not_equal(nan, 0), pc.and_(any_plus, any_minus))
        infinite = pc.if_else(any_minus, float("-inf"), pc.add(finite, 0.0))
        infinite = pc.if_else(any_plus, float("inf"), infinite)
        return pc.if_else(is_nan, float("nan"), infinite)


def total_of(call: Call, averaged: bool = False) -> Total:
    """How the argument of a call is added up."""
    kind = call.arguments[0]
    if pa.types.is_duration(kind):
        return WideTotal(call)
    if pa.types.is_decimal(kind):
        # An average needs the sum; Spark keeps it with ten more digits, 38 at most.
        precision = min(kind.precision + 10, 38) if averaged else call.result.precision
        return DecimalTotal(call, pa.decimal128(precision, kind.scale))
    if pa.types.is_floating(kind):
        return RetractableDoubleTotal() if call.retracts else DoubleTotal()
    if not pa.types.is_integer(kind):
        hint = "cast the argument to a number, for example CAST(… AS DOUBLE)."
        raise unsupported(call, f"is not supported over {kind}", hint)
    if averaged:
        return DoubleTotal()
    return WideTotal(call) if kind.bit_width > _NARROW_BITS else NarrowTotal()


def _signed(ints: Column, weights: Column | None) -> Column:
    return ints if weights is None else pc.multiply(ints, weights)
