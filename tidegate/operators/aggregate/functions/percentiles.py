"""Percentiles, median and mode: exact, from the values of a group and their counts."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidegate.operators.aggregate.functions.base import (
    AggregateCall,
    BagAccumulator,
    require_groupable,
    unsupported_call,
)
from tidegate.operators.aggregate.functions.min_max import (
    from_sortable,
    require_sortable,
    to_sortable,
)
from tidegate.operators.kernels.arrays import (
    Column,
    Doubles,
    Ints,
    Mask,
    as_array,
    reduce_groups,
    to_doubles,
)
from tidegate.operators.kernels.keys import canonicalize

_ROUND = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)
# Returns the elements of all groups at these ranks, one per group.
Elements = Callable[[Ints], Doubles]


class _Fractions(BagAccumulator):
    """The values at fractions of the sorted group; `interpolates` between two neighbors."""

    interpolates: ClassVar[bool] = True

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        data_type = call.arguments[0]
        if len(call.arguments) > 1 or not _is_number_like(data_type):
            raise unsupported_call(
                call, f"is not supported over {', '.join(map(str, call.arguments))}"
            )
        constants = self.fractions_of(call)
        if not constants:
            raise unsupported_call(call, "needs its fraction as a literal")
        if self.interpolates and len(constants) > 1:
            raise unsupported_call(call, "is not supported with frequencies")
        self.is_array = isinstance(constants[0], Iterable)
        fractions = constants[0] if self.is_array else (constants[0],)
        self.fractions = tuple(float(fraction) for fraction in fractions)
        self.error = 1 / float(constants[1]) if len(constants) > 1 else 1e-4

    def fractions_of(self, call: AggregateCall) -> tuple[Any, ...]:
        """Return the fraction or array of fractions, and the literals after it."""
        return call.constants

    def pre_aggregate(
        self, arguments: Sequence[Column], ones: Column
    ) -> tuple[list[Column], Column]:
        return [canonicalize(arguments[0])], ones

    def evaluate_bag(
        self, values: Sequence[Column], counts: Ints, ids: Ints, groups: int
    ) -> Column:
        # Spark computes with doubles too, for every type.
        doubles = to_doubles(values[0])
        order = np.lexsort((doubles, ids))
        doubles, ends = doubles[order], np.cumsum(counts[order])
        if self.call.distinct:
            ends = np.arange(1, len(order) + 1)
        sizes = np.diff(_ends_of_groups(ids[order], ends, groups), prepend=0)
        starts = np.cumsum(sizes) - sizes

        def element(ranks: Ints) -> Doubles:
            indices = np.searchsorted(ends, starts + ranks + 1)
            result: Doubles = doubles[np.minimum(indices, len(doubles) - 1)]
            return result

        not_empty = sizes > 0
        columns = [
            self._value_at(fraction, sizes, element) if len(doubles) else np.zeros(groups)
            for fraction in self.fractions
        ]
        return self._to_result(columns, not_empty)

    def _value_at(self, fraction: float, sizes: Ints, element: Elements) -> Doubles:
        last = np.maximum(sizes - 1, 0)
        if self.interpolates:
            return _interpolate(fraction * last, element)
        if fraction <= self.error:
            return element(np.zeros_like(last))
        if fraction >= 1 - self.error:
            return element(last)
        ranks = np.ceil(fraction * sizes).astype(np.int64) - 1
        return element(np.clip(ranks, 0, last))

    def _to_result(self, columns: list[Doubles], valid: Mask) -> Column:
        data_type = self.call.result
        if not self.is_array:
            return from_doubles(columns[0], valid, data_type)
        flat = np.stack(columns, axis=1).reshape(-1)
        values = from_doubles(flat, np.repeat(valid, len(columns)), data_type.value_type)
        offsets = np.arange(len(valid) + 1, dtype=np.int32) * len(columns)
        return pa.ListArray.from_arrays(
            pa.array(offsets), values, type=data_type, mask=pa.array(~valid)
        )


class ApproxPercentile(_Fractions):
    """approx_percentile: the element at the fraction; exact, where Spark approximates."""

    names = ("approx_percentile", "percentile_approx")
    constants_from = 1
    interpolates = False


class Percentile(_Fractions):
    """percentile: the value at the fraction, interpolated between two neighbors."""

    names = ("percentile",)
    constants_from = 1


class Median(_Fractions):
    """median: the percentile at 0.5."""

    names = ("median",)

    def fractions_of(self, call: AggregateCall) -> tuple[Any, ...]:
        return (0.5,)


class Mode(BagAccumulator):
    """mode: the most frequent value; if there are several, the smallest."""

    names = ("mode",)
    constants_from = 1

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        require_groupable(call, "it would compare values of")
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
        max_counts = np.zeros(groups, np.int64)
        np.maximum.at(max_counts, ids, counts)
        rows = np.flatnonzero(counts == max_counts[ids])
        sortable = as_array(to_sortable(values[0])).take(pa.array(rows))
        return from_sortable(reduce_groups(sortable, ids[rows], groups, "min"), self.values[0])


def _is_number_like(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_decimal(data_type)
        or pa.types.is_temporal(data_type)
    )


def _ends_of_groups(ids: Ints, ends: Ints, groups: int) -> Ints:
    """Return the number of values up to the end of each group; `ids` ascend."""
    indices = np.searchsorted(ids, np.arange(groups), side="right")
    result: Ints = np.concatenate(([0], ends))[indices]
    return result


def _interpolate(position: Doubles, element: Elements) -> Doubles:
    """Interpolate between two neighbors. Equal ones are returned, because they may be ∞."""
    lower, higher = np.floor(position), np.ceil(position)
    below, above = element(lower.astype(np.int64)), element(higher.astype(np.int64))
    with np.errstate(invalid="ignore"):
        mixed = (higher - position) * below + (position - lower) * above
    result: Doubles = np.where((lower == higher) | (below == above), below, mixed)
    return result


def from_doubles(values: Doubles, valid: Mask, data_type: pa.DataType) -> pa.Array:
    """Convert doubles back to the type of the values, truncating as Java does."""
    if pa.types.is_floating(data_type):
        return pa.array(values, mask=~valid).cast(data_type)
    if pa.types.is_decimal(data_type):
        return pa.array(_to_decimals(values, valid, data_type), data_type)
    too_large = values >= 2.0**63
    with np.errstate(invalid="ignore"):
        truncated = np.where(too_large, np.iinfo(np.int64).max, np.trunc(values).astype(np.int64))
    ints = pa.array(truncated, mask=~valid)
    return (
        ints.cast(pa.int32()).cast(data_type)
        if pa.types.is_date32(data_type)
        else ints.cast(data_type)
    )


def _to_decimals(values: Doubles, valid: Mask, data_type: pa.DataType) -> list[Any]:
    quantum = decimal.Decimal(1).scaleb(-data_type.scale)
    return [
        _ROUND.quantize(decimal.Decimal(repr(value)), quantum) if is_valid else None
        for value, is_valid in zip(values.tolist(), valid.tolist(), strict=True)
    ]
