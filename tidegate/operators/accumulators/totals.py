"""Ways to add up: integers and decimals exactly; doubles too where rows are retracted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.accumulators.base import Call, overflow, unsupported
from tidegate.operators.accumulators.exact import ExactTotal
from tidegate.operators.accumulators.kernels import to_ints, with_nulls
from tidegate.operators.keys import Column, valid_mask

# What still fits if as many rows are added up as one stream ever has.
_NARROW_BITS = 32
_LOWER = 2**32 - 1


class Total(Protocol):
    """The states of a sum; without `merges` it combines them itself."""

    @property
    def fields(self) -> tuple[pa.DataType, ...]: ...

    @property
    def merges(self) -> tuple[str, ...]: ...

    def lift(self, values: Column, weights: Column | None) -> list[Column]:
        """The states of single values."""

    def value(self, states: Sequence[Column]) -> Column:
        """The sum."""

    def partials(self, argument: str) -> tuple[str, ...] | None:
        """The states as Spark's aggregates of an argument."""


class NarrowTotal:
    """Integers of up to 32 bits: their sum fits a BIGINT."""

    fields = (pa.int64(),)
    merges = ("sum",)

    def lift(self, values: Column, weights: Column | None) -> list[Column]:
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

    def __init__(self, call: Call) -> None:
        self.call = call

    def lift(self, values: Column, weights: Column | None) -> list[Column]:
        ints = pc.cast(values, pa.int64())
        halves = pc.shift_right(ints, 32), pc.bit_wise_and(ints, _LOWER)
        return [_signed(half, weights) for half in halves]

    def value(self, states: Sequence[Column]) -> Column:
        upper, lower = to_ints(states[0]), to_ints(states[1])
        upper = upper + (lower >> 32)
        if len(upper) and (upper.min() < -(2**31) or upper.max() >= 2**31):
            raise overflow(self.call)
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

    def partials(self, argument: str) -> tuple[str, ...] | None:
        # Spark has no type for a sum that does not fit 38 digits.
        if pa.types.is_decimal256(self.state):
            return None
        return (f"CAST(sum({argument}) AS DECIMAL(38, {self.limit.scale}))",)


class DoubleTotal:
    """Doubles that stay, added one after the other and rounded each time, as Spark does it."""

    fields = (pa.float64(),)
    merges = ("sum",)

    def lift(self, values: Column, weights: Column | None) -> list[Column]:
        assert weights is None, "what is retracted needs an exact sum"
        return [pc.cast(values, pa.float64())]

    def value(self, states: Sequence[Column]) -> Column:
        # A sum starts at 0.0, so that the sum of −0.0 is 0.0.
        return pc.add(states[0], 0.0)

    def partials(self, argument: str) -> tuple[str, ...] | None:
        return (f"sum({argument})",)


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
        return ExactTotal() if call.retracts else DoubleTotal()
    if not pa.types.is_integer(kind):
        hint = "cast the argument to a number, for example CAST(… AS DOUBLE)."
        raise unsupported(call, f"is not supported over {kind}", hint)
    if kind.bit_width <= _NARROW_BITS:
        return NarrowTotal()
    return WideTotalAsDouble(call) if averaged else WideTotal(call)


def _signed(ints: Column, weights: Column | None) -> Column:
    return ints if weights is None else pc.multiply(ints, weights)
