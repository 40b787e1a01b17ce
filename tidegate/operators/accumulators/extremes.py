"""min, max, bool_and, bool_or, bit_and, bit_or, bit_xor, for rows that stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.accumulators.base import (
    Call,
    Column,
    CombiningAccumulator,
    Ids,
    PlainAccumulator,
    unsupported,
)
from tidegate.operators.accumulators.kernels import as_array, to_ints, valid_mask
from tidegate.operators.accumulators.numbers import require_boolean

_FLIP = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_BITS = {
    "bit_and": (np.bitwise_and, -1),
    "bit_or": (np.bitwise_or, 0),
    "bit_xor": (np.bitwise_xor, 0),
}


class Extreme(PlainAccumulator):
    """min or max. Floats are compared as Spark does it: NaN is the largest."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.argument = call.arguments[0]
        require_sortable(call, self.argument)
        self.fields = (sortable_type(self.argument),)
        self.merges = (call.function,)

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        assert weights is None, "rows that are taken back need the bag of values"
        return [to_sortable(arguments[0])]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return from_sortable(states[0], self.argument)


class AllOrAny(PlainAccumulator):
    """bool_and is the smallest, bool_or the largest of the values."""

    fields = (pa.bool_(),)

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        require_boolean(call)
        self.merges = ("min" if call.function == "bool_and" else "max",)

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        assert weights is None, "rows that are taken back need the bag of values"
        return [arguments[0]]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return states[0]


class Bits(CombiningAccumulator):
    """bit_and, bit_or, bit_xor of integers."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        if not pa.types.is_integer(call.arguments[0]):
            raise unsupported(call, f"is not supported over {call.arguments[0]}")
        self.fields = (call.arguments[0],)
        self.merge, self.neutral = _BITS[call.function]

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        assert weights is None, "rows that are taken back need the bag of values"
        return [arguments[0]]

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
        there = valid_mask(states[0])
        values, ids = to_ints(states[0])[there], ids[there]
        merged = np.full(groups, self.neutral, values.dtype)
        self.merge.at(merged, ids, values)
        return [pa.array(merged, mask=np.bincount(ids, minlength=groups) == 0)]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return states[0]


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
