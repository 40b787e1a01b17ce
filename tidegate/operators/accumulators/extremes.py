"""min, max, bool_and, bool_or, bit_and, bit_or, bit_xor, for rows that stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.accumulators.base import (
    Call,
    PlainAccumulator,
    require_no_weights,
    unsupported,
)
from tidegate.operators.accumulators.kernels import to_ints
from tidegate.operators.accumulators.numbers import require_boolean
from tidegate.operators.keys import Column, Ids, as_array, valid_mask

_FLIP = np.int64(0x7FFF_FFFF_FFFF_FFFF)


class _Extreme(PlainAccumulator):
    """Floats are compared as Spark does it: NaN is the largest."""

    idempotent = True
    kernel: ClassVar[str]

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.argument = call.arguments[0]
        require_sortable(call, self.argument)
        self.fields = (sortable_type(self.argument),)
        self.merges = (self.kernel,)

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        return [to_sortable(arguments[0])]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return from_sortable(states[0], self.argument)

    def partials(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        return (f"{self.kernel}({arguments[0]})",)

    def from_partials(self, columns: Sequence[Column]) -> list[Column]:
        # The value that is left of a group is its state.
        return self.lift(columns, None)


class Min(_Extreme):
    """min: the smallest value."""

    names = ("min",)
    kernel = "min"


class Max(_Extreme):
    """max: the largest value."""

    names = ("max",)
    kernel = "max"


class _AllOrAny(PlainAccumulator):
    """Whether all values, or any of them, are true."""

    idempotent = True
    fields = (pa.bool_(),)

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        require_boolean(call)

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        return [arguments[0]]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return states[0]

    def partials(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        return (f"{self.names[0]}({arguments[0]})",)


class BoolAnd(_AllOrAny):
    """bool_and: the smallest of the values."""

    names = ("bool_and", "every")
    merges = ("min",)


class BoolOr(_AllOrAny):
    """bool_or: the largest of the values."""

    names = ("bool_or", "any", "some")
    merges = ("max",)


class _Bits(PlainAccumulator):
    """Integers, bit by bit."""

    merge: ClassVar[np.ufunc]
    neutral: ClassVar[int]

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        if not pa.types.is_integer(call.arguments[0]):
            raise unsupported(call, f"is not supported over {call.arguments[0]}")
        self.fields = (call.arguments[0],)

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        return [arguments[0]]

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
        there = valid_mask(states[0])
        values, ids = to_ints(states[0])[there], ids[there]
        merged = np.full(groups, self.neutral, values.dtype)
        type(self).merge.at(merged, ids, values)
        return [pa.array(merged, mask=np.bincount(ids, minlength=groups) == 0)]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return states[0]

    def partials(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        return (f"{self.names[0]}({arguments[0]})",)


class BitAnd(_Bits):
    """bit_and: bits that all values have."""

    names = ("bit_and",)
    idempotent = True
    merge = np.bitwise_and
    neutral = -1


class BitOr(_Bits):
    """bit_or: bits that some value has."""

    names = ("bit_or",)
    idempotent = True
    merge = np.bitwise_or
    neutral = 0


class BitXor(_Bits):
    """bit_xor: bits that an odd number of values has."""

    names = ("bit_xor",)
    merge = np.bitwise_xor
    neutral = 0


def require_sortable(call: Call, kind: pa.DataType) -> None:
    """Refuse what Arrow has no order for."""
    if pa.types.is_nested(kind):
        hint = "compare one of its fields instead."
        raise unsupported(call, f"is not supported: it would compare values of {kind}", hint)


def sortable_type(kind: pa.DataType) -> pa.DataType:
    """A type that Arrow's min and max understand and order as Spark does."""
    if pa.types.is_floating(kind) or pa.types.is_duration(kind):
        return pa.int64()
    return kind


def to_sortable(column: Column) -> Column:
    """Doubles as integers of the same order, −0.0 before 0.0, NaN last; durations as integers."""
    if pa.types.is_duration(column.type):
        return pc.cast(column, pa.int64())
    if not pa.types.is_floating(column.type):
        return column
    array = as_array(column)
    doubles = pc.fill_null(pc.cast(array, pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    doubles = np.where(np.isnan(doubles), np.nan, doubles)
    bits = doubles.view(np.int64)
    ordered = np.where(bits < 0, bits ^ _FLIP, bits)
    return pa.array(ordered, pa.int64(), mask=~valid_mask(array))


def from_sortable(column: Column, kind: pa.DataType) -> Column:
    """The values that `to_sortable` made integers of."""
    if pa.types.is_duration(kind):
        return pc.cast(column, kind)
    if not pa.types.is_floating(kind):
        return column
    bits = to_ints(column)
    doubles = np.where(bits < 0, bits ^ _FLIP, bits).view(np.float64)
    return pc.cast(pa.array(doubles, pa.float64(), mask=~valid_mask(column)), kind)
