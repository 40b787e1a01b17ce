"""Aggregates that pick one row of a group: first, last, any_value, min_by, max_by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.aggregate.functions.base import (
    AggregateCall,
    PlainAccumulator,
    require_no_weights,
    unsupported_call,
)
from tidegate.operators.aggregate.functions.extremes import (
    require_sortable,
    sortable_type,
    to_sortable,
)
from tidegate.operators.kernels.arrays import (
    Column,
    Ints,
    Mask,
    as_array,
    first_rows,
    last_rows,
    null_unless,
    reduce_groups,
    take_or_null,
    to_flags,
    valid_mask,
)
from tidegate.operators.kernels.keys import canonicalize

Pick = Callable[[Ints, int, Mask], Ints]


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

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        self.fields = (call.arguments[0], pa.bool_())
        self.skips_nulls = skips_nulls(call.constants, default=False)
        self.null_place = 0 if self.skips_nulls else None

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        value = arguments[0]
        if self.skips_nulls:
            return [value, pc.is_valid(value)]
        if self.call.filtered:
            return [value, pc.fill_null(arguments[1], False)]
        return [value, pa.array(np.ones(len(value), np.bool_))]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        there = to_flags(states[1])
        places = type(self).pick(ids, groups, there)
        return [take_or_null(states[0], places), pa.array(places >= 0)]

    def evaluate(self, states: Sequence[Column]) -> Column:
        # A lone row that the filter leaves out still has its value.
        return null_unless(states[0], to_flags(states[1]))


class First(_ByArrival):
    """first: the value that came first."""

    names = ("first", "first_value", "any_value")
    pick = first_rows


class Last(_ByArrival):
    """last: the value that came last."""

    names = ("last", "last_value")
    pick = last_rows


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

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        if call.constants or len(call.arguments) != 2:
            raise unsupported_call(call, "is not supported with a literal: it takes two columns")
        value, order = call.arguments
        require_sortable(call, order)
        self.fields = (value, sortable_type(order))

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        return [arguments[0], to_sortable(canonicalize(arguments[1]))]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        value, order = states[0], as_array(states[1])
        best = reduce_groups(order, ids, groups, self.kernel)
        is_best = to_flags(pc.equal(order, best.take(pa.array(ids))))
        places = first_rows(ids, groups, is_best)
        return [take_or_null(value, places), best]

    def evaluate(self, states: Sequence[Column]) -> Column:
        # A lone row without an order still has its value.
        return null_unless(states[0], valid_mask(states[1]))

    def partials(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        value, order = arguments
        return (f"{self.kernel}_by({value}, {order})", f"{self.kernel}({order})")

    def from_partials(self, columns: Sequence[Column]) -> list[Column]:
        # The row that is left of a group is its state.
        return self.pre_aggregate(columns, None)


class MinBy(_ExtremeBy):
    """min_by: the value beside the smallest."""

    names = ("min_by",)
    kernel = "min"


class MaxBy(_ExtremeBy):
    """max_by: the value beside the largest."""

    names = ("max_by",)
    kernel = "max"


# ---- The nth value of a frame, counted from its first row or from its last.


class NthValue(PlainAccumulator):
    """nth_value(x, n): the constants are n, and whether NULL does not count.

    It keeps the first n values, and no more.
    """

    names: ClassVar[tuple[str, ...]] = ("nth_value",)
    in_order = True
    from_end: ClassVar[bool] = False

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        self.fields = (pa.list_(call.arguments[0]),)
        self.nth = int(call.constants[0])
        self.skips_nulls = bool(call.constants[1])
        self.null_place = 0 if self.skips_nulls else None
        assert self.nth >= 1, "values are counted from 1"

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        value = as_array(arguments[0])
        there = valid_mask(value) if self.skips_nulls else np.ones(len(value), np.bool_)
        kept = value if there.all() else value.filter(pa.array(there))
        return [self._lists(there.astype(np.int64), kept)]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        lists = as_array(states[0])
        order = np.argsort(ids, kind="stable")
        lists = lists.take(pa.array(order))
        lengths = _list_lengths(lists)
        counts = np.bincount(ids[order], lengths, groups).astype(np.int64)
        ends = np.cumsum(counts)
        # Which value of its group each is, from the side that counts.
        turns = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
        if self.from_end:
            turns = np.repeat(counts, counts) - 1 - turns
        values = lists.flatten().filter(pa.array(turns < self.nth))
        return [self._lists(np.minimum(counts, self.nth), values)]

    def evaluate(self, states: Sequence[Column]) -> Column:
        lists = as_array(states[0])
        lengths = _list_lengths(lists)
        begins = np.cumsum(lengths) - lengths
        places = begins + (lengths - self.nth if self.from_end else self.nth - 1)
        return lists.flatten().take(pa.array(places, mask=lengths < self.nth))

    def _lists(self, lengths: Ints, values: pa.Array) -> pa.Array:
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:], dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), values, type=self.fields[0])


class NthValueFromEnd(NthValue):
    """lag(x, n) IGNORE NULLS over the rows before: the nth of them from the last."""

    names = ("lag",)
    from_end = True


def _list_lengths(lists: pa.Array) -> Ints:
    filled = lists.value_lengths().fill_null(0)
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.int64)


# ---- collect_list, array_agg, string_agg: the values in the order they came in.


class CollectList(PlainAccumulator):
    """The values of a group as a list, empty if there are none."""

    names: ClassVar[tuple[str, ...]] = ("collect_list", "array_agg")
    in_order = True
    constants_from: ClassVar[int | None] = 1

    @classmethod
    def ignores_nulls(cls, constants: Sequence[object]) -> bool:
        return skips_nulls(constants, default=True)

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        self.fields = (pa.list_(call.arguments[0]),)
        self.skips_nulls = skips_nulls(call.constants, default=True)
        self.null_place = 0 if self.skips_nulls else None

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        value = as_array(arguments[0])
        there = np.ones(len(value), np.bool_)
        if self.skips_nulls:
            there = valid_mask(value)
        elif self.call.filtered:
            there = to_flags(arguments[1])
        kept = value if there.all() else value.filter(pa.array(there))
        return [_lists(there, kept, self.fields[0])]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        lists = as_array(states[0])
        # Stable, so that lists of a group follow each other as they came.
        order = np.argsort(ids, kind="stable")
        values = lists.take(pa.array(order)).flatten()
        merged = np.bincount(ids, _lengths(lists), groups).astype(np.int64)
        return [_lists(merged, values, self.fields[0])]

    def evaluate(self, states: Sequence[Column]) -> Column:
        lists = as_array(states[0])
        if not lists.null_count:
            return lists
        return _lists(_lengths(lists), lists.flatten(), self.fields[0])


class CollectSet(CollectList):
    """collect_set: different values, in the order they first came in."""

    names = ("collect_set",)
    constants_from = None
    once = True


class StringAgg(PlainAccumulator):
    """string_agg, listagg: the values with a separator in between, NULL if there are none."""

    names = ("string_agg", "listagg")
    in_order = True
    constants_from = 1

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        kind = call.arguments[0]
        if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            hint = "cast the argument: CAST(… AS STRING)."
            raise unsupported_call(call, f"is not supported over {kind}", hint)
        self.lists = CollectList(replace(call, constants=()))
        self.fields = self.lists.fields
        separator = call.constants[0] if call.constants else None
        empty = "" if pa.types.is_string(kind) else b""
        self.separator = pa.scalar(empty if separator is None else separator, kind)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        return self.lists.pre_aggregate(arguments, weights)

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        return self.lists.combine(states, ids, groups)

    def evaluate(self, states: Sequence[Column]) -> Column:
        lists = as_array(states[0])
        joined = pc.binary_join(lists, self.separator)
        empty = pc.equal(pc.list_value_length(lists), 0)
        return pc.if_else(empty, pa.scalar(None, joined.type), joined)


def _lengths(lists: pa.Array) -> Ints:
    lengths: Ints = pc.fill_null(lists.value_lengths(), 0).to_numpy(zero_copy_only=False)
    return lengths


def _lists(lengths: npt.NDArray[np.generic], values: pa.Array, kind: pa.DataType) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind)
