"""Aggregates that pick one row of a group: first, last, any_value, min_by, max_by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from tidegate.operators.accumulators.extremes import require_sortable, sortable_type, to_sortable
from tidegate.operators.accumulators.kernels import (
    first_places,
    last_places,
    reduce_by,
    take_or_null,
    to_flags,
    where,
)
from tidegate.operators.keys import Column, Ids, Mask, as_array, canonical, valid_mask

Pick = Callable[[Ids, int, Mask], Ids]


def skips_nulls(constants: Sequence[object], default: bool) -> bool:
    """The literal behind the argument of first, last and the like."""
    return bool(constants[0]) if constants else default


class _ByArrival(PlainAccumulator):
    """The value that came first or last; NULL is one unless the call ignores it."""

    idempotent = True
    in_order = True
    constants_from = 1
    pick: ClassVar[Pick]

    @classmethod
    def ignores_nulls(cls, constants: Sequence[object]) -> bool:
        return skips_nulls(constants, default=False)

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.fields = (call.arguments[0], pa.bool_())
        self.skips_nulls = skips_nulls(call.constants, default=False)
        self.null_place = 0 if self.skips_nulls else None

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        value = arguments[0]
        if self.skips_nulls:
            return [value, pc.is_valid(value)]
        if self.call.filtered:
            return [value, pc.fill_null(arguments[1], False)]
        return [value, pa.array(np.ones(len(value), np.bool_))]

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
        there = to_flags(states[1])
        places = type(self).pick(ids, groups, there)
        return [take_or_null(states[0], places), pa.array(places >= 0)]

    def evaluate(self, states: Sequence[Column]) -> Column:
        # A lone row that the filter leaves out still has its value.
        return where(states[0], to_flags(states[1]))


class First(_ByArrival):
    """first: the value that came first."""

    names = ("first", "first_value", "any_value")
    pick = first_places


class Last(_ByArrival):
    """last: the value that came last."""

    names = ("last", "last_value")
    pick = last_places


class _ExtremeBy(PlainAccumulator):
    """The value beside the smallest or largest; of several the earliest."""

    idempotent = True
    in_order = True
    constants_from = 2
    null_place = 1
    kernel: ClassVar[str]

    @classmethod
    def ignores_nulls(cls, constants: Sequence[object]) -> bool:
        return False

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        if call.constants or len(call.arguments) != 2:
            raise unsupported(call, "is not supported with a literal: it takes two columns")
        value, order = call.arguments
        require_sortable(call, order)
        self.fields = (value, sortable_type(order))

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        return [arguments[0], to_sortable(canonical(arguments[1]))]

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
        value, order = states[0], as_array(states[1])
        best = reduce_by(order, ids, groups, self.kernel)
        is_best = to_flags(pc.equal(order, best.take(pa.array(ids))))
        places = first_places(ids, groups, is_best)
        return [take_or_null(value, places), best]

    def evaluate(self, states: Sequence[Column]) -> Column:
        # A lone row without an order still has its value.
        return where(states[0], valid_mask(states[1]))

    def partials(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        value, order = arguments
        return (f"{self.kernel}_by({value}, {order})", f"{self.kernel}({order})")

    def from_partials(self, columns: Sequence[Column]) -> list[Column]:
        # The row that is left of a group is its state.
        return self.lift(columns, None)


class MinBy(_ExtremeBy):
    """min_by: the value beside the smallest."""

    names = ("min_by",)
    kernel = "min"


class MaxBy(_ExtremeBy):
    """max_by: the value beside the largest."""

    names = ("max_by",)
    kernel = "max"
