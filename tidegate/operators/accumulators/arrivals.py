"""Aggregates that pick one row of a group: first, last, any_value, min_by, max_by."""

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
    unsupported,
)
from tidegate.operators.accumulators.extremes import require_sortable, sortable_type, to_sortable
from tidegate.operators.accumulators.kernels import (
    as_array,
    first_places,
    last_places,
    normal,
    reduce_by,
    take_or_null,
    to_flags,
    valid_mask,
    where,
)


def skips_nulls(constants: Sequence[object], default: bool) -> bool:
    """The literal behind the argument of first, last and the like."""
    return bool(constants[0]) if constants else default


class FirstOrLast(CombiningAccumulator):
    """The value that came first or last; NULL is one unless the call ignores it."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.fields = (call.arguments[0], pa.bool_())
        self.skips_nulls = skips_nulls(call.constants, default=False)
        self.null_place = 0 if self.skips_nulls else None
        self.pick = last_places if call.function == "last" else first_places

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        assert weights is None, "rows that are taken back need the bag of values"
        value = arguments[0]
        if self.skips_nulls:
            return [value, pc.is_valid(value)]
        if self.call.filtered:
            return [value, pc.fill_null(arguments[1], False)]
        return [value, pa.array(np.ones(len(value), np.bool_))]

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
        there = to_flags(states[1])
        places = self.pick(ids, groups, there)
        return [take_or_null(states[0], places), pa.array(places >= 0)]

    def evaluate(self, states: Sequence[Column]) -> Column:
        # A lone row that the filter leaves out still has its value.
        return where(states[0], to_flags(states[1]))


class ExtremeBy(CombiningAccumulator):
    """min_by, max_by: the value beside the smallest or largest; of several the earliest."""

    null_place = 1

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        if call.constants or len(call.arguments) != 2:
            raise unsupported(call, "is not supported with a literal: it takes two columns")
        value, order = call.arguments
        require_sortable(call, order)
        self.fields = (value, sortable_type(order))
        self.kernel = call.function.removesuffix("_by")

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        assert weights is None, "rows that are taken back need the bag of values"
        return [arguments[0], to_sortable(normal(arguments[1]))]

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
        value, order = states[0], as_array(states[1])
        best = reduce_by(order, ids, groups, self.kernel)
        is_best = to_flags(pc.equal(order, best.take(pa.array(ids))))
        places = first_places(ids, groups, is_best)
        return [take_or_null(value, places), best]

    def evaluate(self, states: Sequence[Column]) -> Column:
        # A lone row without an order still has its value.
        return where(states[0], valid_mask(states[1]))
