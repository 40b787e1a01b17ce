"""min, max, bool_and, bool_or, bit_and, bit_or, bit_xor, for rows that stay."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.aggregate.functions.base import (
    AggregateCall,
    BagAccumulator,
    PlainAccumulator,
    require_groupable,
    require_no_weights,
    unsupported_call,
)
from tidegate.operators.aggregate.functions.sums import require_boolean
from tidegate.operators.kernels.arrays import (
    Column,
    Doubles,
    Ints,
    Mask,
    as_array,
    reduce_groups,
    to_doubles,
    to_ints,
    valid_mask,
)
from tidegate.operators.kernels.keys import canonicalize

_FLIP = np.int64(0x7FFF_FFFF_FFFF_FFFF)


class _Extreme(PlainAccumulator):
    """Floats are compared as Spark does it: NaN is the largest."""

    idempotent = True
    kernel: ClassVar[str]

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        self.argument = call.arguments[0]
        require_sortable(call, self.argument)
        self.fields = (sortable_type(self.argument),)
        self.merges = (self.kernel,)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        return [to_sortable(arguments[0])]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return from_sortable(states[0], self.argument)

    def partials(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        return (f"{self.kernel}({arguments[0]})",)

    def from_partials(self, columns: Sequence[Column]) -> list[Column]:
        # The value that is left of a group is its state.
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
    fields = (pa.bool_(),)

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        require_boolean(call)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
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

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        if not pa.types.is_integer(call.arguments[0]):
            raise unsupported_call(call, f"is not supported over {call.arguments[0]}")
        self.fields = (call.arguments[0],)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        return [arguments[0]]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
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


def require_sortable(call: AggregateCall, kind: pa.DataType) -> None:
    """Reject what Arrow has no order for."""
    if pa.types.is_nested(kind):
        hint = "compare one of its fields instead."
        raise unsupported_call(call, f"is not supported: it would compare values of {kind}", hint)


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


# ---- approx_percentile, percentile, median, mode: exact, over values and how often each is there.

_ROUND = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)
Pick = Callable[[Ints], Doubles]


class _Fractions(BagAccumulator):
    """The values at given fractions: an element of the group, or between two of them."""

    interpolates: ClassVar[bool] = True

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        kind = call.arguments[0]
        if len(call.arguments) > 1 or not _is_number_like(kind):
            raise unsupported_call(
                call, f"is not supported over {', '.join(map(str, call.arguments))}"
            )
        constants = self.fractions_of(call)
        if not constants:
            raise unsupported_call(call, "needs its fraction as a literal")
        if self.interpolates and len(constants) > 1:
            raise unsupported_call(call, "is not supported with frequencies")
        self.is_array = isinstance(constants[0], Iterable)
        listed = constants[0] if self.is_array else (constants[0],)
        self.fractions = tuple(float(fraction) for fraction in listed)
        self.error = 1 / float(constants[1]) if len(constants) > 1 else 1e-4

    def fractions_of(self, call: AggregateCall) -> tuple[Any, ...]:
        """The fraction or fractions, and what follows them."""
        return call.constants

    def pre_aggregate(
        self, arguments: Sequence[Column], ones: Column
    ) -> tuple[list[Column], Column]:
        return [canonicalize(arguments[0])], ones

    def evaluate_bag(
        self, values: Sequence[Column], counts: Ints, ids: Ints, groups: int
    ) -> Column:
        # Spark, too, computes with doubles, whatever the type.
        doubles = to_doubles(values[0])
        order = np.lexsort((doubles, ids))
        doubles, ends = doubles[order], np.cumsum(counts[order])
        if self.call.distinct:
            ends = np.arange(1, len(order) + 1)
        sizes = np.diff(_ends_of_groups(ids[order], ends, groups), prepend=0)
        starts = np.cumsum(sizes) - sizes

        def element(ranks: Ints) -> Doubles:
            places = np.searchsorted(ends, starts + ranks + 1)
            picked: Doubles = doubles[np.minimum(places, len(doubles) - 1)]
            return picked

        there = sizes > 0
        columns = [
            self._at(fraction, sizes, element) if len(doubles) else np.zeros(groups)
            for fraction in self.fractions
        ]
        return self._result(columns, there)

    def _at(self, fraction: float, sizes: Ints, element: Pick) -> Doubles:
        last = np.maximum(sizes - 1, 0)
        if self.interpolates:
            return _between(fraction * last, element)
        if fraction <= self.error:
            return element(np.zeros_like(last))
        if fraction >= 1 - self.error:
            return element(last)
        ranks = np.ceil(fraction * sizes).astype(np.int64) - 1
        return element(np.clip(ranks, 0, last))

    def _result(self, columns: list[Doubles], there: Mask) -> Column:
        kind = self.call.result
        if not self.is_array:
            return from_doubles(columns[0], there, kind)
        flat = np.stack(columns, axis=1).reshape(-1)
        values = from_doubles(flat, np.repeat(there, len(columns)), kind.value_type)
        offsets = np.arange(len(there) + 1, dtype=np.int32) * len(columns)
        return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind, mask=pa.array(~there))


class ApproxPercentile(_Fractions):
    """approx_percentile: an element of the group, exactly the one at the fraction."""

    names = ("approx_percentile", "percentile_approx")
    constants_from = 1
    interpolates = False


class Percentile(_Fractions):
    """percentile: at the fraction, or between two neighbours."""

    names = ("percentile",)
    constants_from = 1


class Median(_Fractions):
    """median: the percentile of a half."""

    names = ("median",)

    def fractions_of(self, call: AggregateCall) -> tuple[Any, ...]:
        return (0.5,)


class Mode(BagAccumulator):
    """The value that is there most often; of several the smallest."""

    names = ("mode",)
    constants_from = 1

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        require_groupable(call, "it would tell apart values of")
        require_sortable(call, call.arguments[0])
        if call.distinct:
            raise unsupported_call(call, "is not supported with DISTINCT")

    def pre_aggregate(
        self, arguments: Sequence[Column], ones: Column
    ) -> tuple[list[Column], Column]:
        return [canonicalize(argument) for argument in arguments], ones

    def evaluate_bag(
        self, values: Sequence[Column], counts: Ints, ids: Ints, groups: int
    ) -> Column:
        most = np.zeros(groups, np.int64)
        np.maximum.at(most, ids, counts)
        often = np.flatnonzero(counts == most[ids])
        sortable = as_array(to_sortable(values[0])).take(pa.array(often))
        return from_sortable(reduce_groups(sortable, ids[often], groups, "min"), self.values[0])


def _is_number_like(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_temporal(kind)
    )


def _ends_of_groups(ids: Ints, ends: Ints, groups: int) -> Ints:
    """How many values there are up to the end of each group; ids ascend."""
    places = np.searchsorted(ids, np.arange(groups), side="right")
    padded: Ints = np.concatenate(([0], ends))[places]
    return padded


def _between(position: Doubles, element: Pick) -> Doubles:
    """Between two neighbours, in proportion; equal ones as they are, also if infinite."""
    lower, higher = np.floor(position), np.ceil(position)
    below, above = element(lower.astype(np.int64)), element(higher.astype(np.int64))
    with np.errstate(invalid="ignore"):
        mixed = (higher - position) * below + (position - lower) * above
    result: Doubles = np.where((lower == higher) | (below == above), below, mixed)
    return result


def from_doubles(values: Doubles, there: Mask, kind: pa.DataType) -> pa.Array:
    """Doubles as the type they came from, cut off as Java does it."""
    if pa.types.is_floating(kind):
        return pa.array(values, mask=~there).cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array(_decimals(values, there, kind), kind)
    too_large = values >= 2.0**63
    with np.errstate(invalid="ignore"):
        whole = np.where(too_large, np.iinfo(np.int64).max, np.trunc(values).astype(np.int64))
    ints = pa.array(whole, mask=~there)
    return ints.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else ints.cast(kind)


def _decimals(values: Doubles, there: Mask, kind: pa.DataType) -> list[Any]:
    quantum = decimal.Decimal(1).scaleb(-kind.scale)
    return [
        _ROUND.quantize(decimal.Decimal(repr(value)), quantum) if known else None
        for value, known in zip(values.tolist(), there.tolist(), strict=True)
    ]
