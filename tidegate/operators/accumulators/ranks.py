"""approx_percentile, percentile, median, mode: exact, over values and how often each is there."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidegate.operators.accumulators.base import (
    BagAccumulator,
    Call,
    require_groupable,
    unsupported,
)
from tidegate.operators.accumulators.extremes import from_sortable, require_sortable, to_sortable
from tidegate.operators.accumulators.kernels import Doubles, reduce_by, to_doubles
from tidegate.operators.keys import Column, Ids, Mask, as_array, canonical

_ROUND = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)
Pick = Callable[[Ids], Doubles]


class _Fractions(BagAccumulator):
    """The values at given fractions: an element of the group, or between two of them."""

    interpolates: ClassVar[bool] = True

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        kind = call.arguments[0]
        if len(call.arguments) > 1 or not _is_number_like(kind):
            raise unsupported(call, f"is not supported over {', '.join(map(str, call.arguments))}")
        constants = self.fractions_of(call)
        if not constants:
            raise unsupported(call, "needs its fraction as a literal")
        if self.interpolates and len(constants) > 1:
            raise unsupported(call, "is not supported with frequencies")
        self.is_array = isinstance(constants[0], Iterable)
        listed = constants[0] if self.is_array else (constants[0],)
        self.fractions = tuple(float(fraction) for fraction in listed)
        self.error = 1 / float(constants[1]) if len(constants) > 1 else 1e-4

    def fractions_of(self, call: Call) -> tuple[Any, ...]:
        """The fraction or fractions, and what follows them."""
        return call.constants

    def lift(self, arguments: Sequence[Column], ones: Column) -> tuple[list[Column], Column]:
        return [canonical(arguments[0])], ones

    def evaluate_bag(self, values: Sequence[Column], counts: Ids, ids: Ids, groups: int) -> Column:
        # Spark, too, computes with doubles, whatever the type.
        doubles = to_doubles(values[0])
        order = np.lexsort((doubles, ids))
        doubles, ends = doubles[order], np.cumsum(counts[order])
        if self.call.distinct:
            ends = np.arange(1, len(order) + 1)
        sizes = np.diff(_ends_of_groups(ids[order], ends, groups), prepend=0)
        starts = np.cumsum(sizes) - sizes

        def element(ranks: Ids) -> Doubles:
            places = np.searchsorted(ends, starts + ranks + 1)
            picked: Doubles = doubles[np.minimum(places, len(doubles) - 1)]
            return picked

        there = sizes > 0
        columns = [
            self._at(fraction, sizes, element) if len(doubles) else np.zeros(groups)
            for fraction in self.fractions
        ]
        return self._result(columns, there)

    def _at(self, fraction: float, sizes: Ids, element: Pick) -> Doubles:
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

    def fractions_of(self, call: Call) -> tuple[Any, ...]:
        return (0.5,)


class Mode(BagAccumulator):
    """The value that is there most often; of several the smallest."""

    names = ("mode",)
    constants_from = 1

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        require_groupable(call, "it would tell apart values of")
        require_sortable(call, call.arguments[0])
        if call.distinct:
            raise unsupported(call, "is not supported with DISTINCT")

    def lift(self, arguments: Sequence[Column], ones: Column) -> tuple[list[Column], Column]:
        return [canonical(argument) for argument in arguments], ones

    def evaluate_bag(self, values: Sequence[Column], counts: Ids, ids: Ids, groups: int) -> Column:
        most = np.zeros(groups, np.int64)
        np.maximum.at(most, ids, counts)
        often = np.flatnonzero(counts == most[ids])
        sortable = as_array(to_sortable(values[0])).take(pa.array(often))
        return from_sortable(reduce_by(sortable, ids[often], groups, "min"), self.values[0])


def _is_number_like(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_temporal(kind)
    )


def _ends_of_groups(ids: Ids, ends: Ids, groups: int) -> Ids:
    """How many values there are up to the end of each group; ids ascend."""
    places = np.searchsorted(ids, np.arange(groups), side="right")
    padded: Ids = np.concatenate(([0], ends))[places]
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
