"""min, max, bool_and, bool_or, bit_and, bit_or and bit_xor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.aggregate.functions.base import (
    AggregateCall,
    PlainAccumulator,
    require_no_weights,
    unsupported_call,
)
from tidegate.operators.aggregate.functions.sums import require_boolean
from tidegate.operators.kernels.arrays import (
    Column,
    Ints,
    as_array,
    to_ints,
    valid_mask,
)

_FLIP = np.int64(0x7FFF_FFFF_FFFF_FFFF)


class _Extreme(PlainAccumulator):
    """min or max. Doubles are compared as in Spark: NaN is the largest."""

    idempotent = True
    kernel: ClassVar[str]

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        self.argument = call.arguments[0]
        require_sortable(call, self.argument)
        self.state_types = (sortable_type(self.argument),)
        self.merge_kernels = (self.kernel,)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        return [to_sortable(arguments[0])]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return from_sortable(states[0], self.argument)

    def partial_sql(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        return (f"{self.kernel}({arguments[0]})",)

    def from_partials(self, columns: Sequence[Column]) -> list[Column]:
        return self.pre_aggregate(columns, None)


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
    state_types = (pa.bool_(),)

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        require_boolean(call)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        return [arguments[0]]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return states[0]

    def partial_sql(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        return (f"{self.names[0]}({arguments[0]})",)


class BoolAnd(_AllOrAny):
    """bool_and: whether all values are true."""

    names = ("bool_and", "every")
    merge_kernels = ("min",)


class BoolOr(_AllOrAny):
    """bool_or: whether any value is true."""

    names = ("bool_or", "any", "some")
    merge_kernels = ("max",)


class _Bits(PlainAccumulator):
    """A bitwise operation over integers; `neutral` is its result for no values."""

    ufunc: ClassVar[np.ufunc]
    neutral: ClassVar[int]

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        if not pa.types.is_integer(call.arguments[0]):
            raise unsupported_call(call, f"is not supported over {call.arguments[0]}")
        self.state_types = (call.arguments[0],)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        return [arguments[0]]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        valid = valid_mask(states[0])
        values, ids = to_ints(states[0])[valid], ids[valid]
        merged = np.full(groups, self.neutral, values.dtype)
        type(self).ufunc.at(merged, ids, values)
        return [pa.array(merged, mask=np.bincount(ids, minlength=groups) == 0)]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return states[0]

    def partial_sql(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        return (f"{self.names[0]}({arguments[0]})",)


class BitAnd(_Bits):
    """bit_and: the bits that are set in all values."""

    names = ("bit_and",)
    idempotent = True
    ufunc = np.bitwise_and
    neutral = -1


class BitOr(_Bits):
    """bit_or: the bits that are set in any value."""

    names = ("bit_or",)
    idempotent = True
    ufunc = np.bitwise_or
    neutral = 0


class BitXor(_Bits):
    """bit_xor: the bits that are set in an odd number of values."""

    names = ("bit_xor",)
    ufunc = np.bitwise_xor
    neutral = 0


def require_sortable(call: AggregateCall, data_type: pa.DataType) -> None:
    """Reject types that have no order in Arrow."""
    if pa.types.is_nested(data_type):
        hint = "compare one of its fields instead."
        raise unsupported_call(
            call, f"is not supported: it would compare values of {data_type}", hint
        )


def sortable_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of `to_sortable`: one that Arrow orders as Spark does."""
    if pa.types.is_floating(data_type) or pa.types.is_duration(data_type):
        return pa.int64()
    return data_type


def to_sortable(column: Column) -> Column:
    """Convert doubles and durations to integers of the same order: −0.0 before 0.0, NaN last."""
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


def from_sortable(column: Column, data_type: pa.DataType) -> Column:
    """Convert the results of `to_sortable` back."""
    if pa.types.is_duration(data_type):
        return pc.cast(column, data_type)
    if not pa.types.is_floating(data_type):
        return column
    bits = to_ints(column)
    doubles = np.where(bits < 0, bits ^ _FLIP, bits).view(np.float64)
    return pc.cast(pa.array(doubles, pa.float64(), mask=~valid_mask(column)), data_type)
