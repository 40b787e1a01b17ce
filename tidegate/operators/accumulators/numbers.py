"""count, count_if, sum, avg."""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.accumulators.base import Call, PlainAccumulator, overflow, unsupported
from tidegate.operators.accumulators.exact import ExactTotal
from tidegate.operators.accumulators.kernels import int_sums, to_ints, with_nulls
from tidegate.operators.accumulators.totals import Total, total_of
from tidegate.operators.keys import Column, Ids, valid_mask

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

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
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

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        require_boolean(call)

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        return [_counted(pc.fill_null(arguments[0], False), weights)]

    def evaluate(self, states: Sequence[Column]) -> Column:
        return pc.fill_null(states[0], 0)

    def partials(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        return None if self.call.retracts else (f"count_if({arguments[0]})",)


class _Totalled(PlainAccumulator):
    """A sum and, where that is needed, the number of values in it."""

    retractable = True

    def __init__(self, call: Call, total: Total, counts: bool) -> None:
        super().__init__(call)
        self.total, self.counts = total, counts
        self.fields = (*total.fields, *((pa.int64(),) if counts else ()))
        self.merges = (*total.merges, *(("sum",) if counts else ())) if total.merges else ()

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        states = self.total.lift(arguments[0], weights)
        if self.counts:
            states.append(_counted(pc.is_valid(arguments[0]), weights))
        return states

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
        assert isinstance(self.total, ExactTotal) and self.counts, "others are merged by kernels"
        combined = self.total.combine(states[:-1], ids, groups)
        return [*combined, pa.array(int_sums(states[-1], ids, groups))]

    def partials(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        sums = None if self.call.retracts else self.total.partials(arguments[0])
        if sums is None:
            return None
        return (*sums, f"count({arguments[0]})") if self.counts else sums


class Sum(_Totalled):
    """sum of numbers or intervals: NULL for a group without values."""

    names = ("sum",)

    def __init__(self, call: Call) -> None:
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

    def __init__(self, call: Call) -> None:
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
            raise overflow(self.call) from None


def require_boolean(call: Call) -> None:
    """Spark casts text to a boolean by rules of its own; that is left to Spark."""
    if not pa.types.is_boolean(call.arguments[0]):
        hint = "cast the argument: CAST(… AS BOOLEAN)."
        raise unsupported(call, f"is not supported over {call.arguments[0]}", hint)


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
