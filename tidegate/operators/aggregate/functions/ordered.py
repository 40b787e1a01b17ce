"""Aggregates that depend on the order of arrival: first, min_by, nth_value, collect_list, …"""

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
from tidegate.operators.aggregate.functions.min_max import (
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

# Picks one of the candidate rows of every group.
Pick = Callable[[Ints, int, Mask], Ints]


def skips_nulls(constants: Sequence[object], default: bool) -> bool:
    """Return whether a call ignores NULL, which is its first literal."""
    return bool(constants[0]) if constants else default


class _ByArrival(PlainAccumulator):
    """The value that arrived first or last; NULL counts unless the call ignores it."""

    idempotent = True
    order_sensitive = True
    constants_from = 1
    pick: ClassVar[Pick]

    @classmethod
    def ignores_nulls(cls, constants: Sequence[object]) -> bool:
        return skips_nulls(constants, default=False)

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        self.state_types = (call.arguments[0], pa.bool_())
        self.skips_nulls = skips_nulls(call.constants, default=False)
        self.null_argument = 0 if self.skips_nulls else None

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        value = arguments[0]
        if self.skips_nulls:
            return [value, pc.is_valid(value)]
        if self.call.filtered:
            return [value, pc.fill_null(arguments[1], False)]
        return [value, pa.array(np.ones(len(value), np.bool_))]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        candidates = to_flags(states[1])
        rows = type(self).pick(ids, groups, candidates)
        return [take_or_null(states[0], rows), pa.array(rows >= 0)]

    def evaluate(self, states: Sequence[Column]) -> Column:
        # The state of a single row has its value even if FILTER leaves the row out.
        return null_unless(states[0], to_flags(states[1]))


class First(_ByArrival):
    """first: the value that arrived first."""

    names = ("first", "first_value", "any_value")
    pick = first_rows


class Last(_ByArrival):
    """last: the value that arrived last."""

    names = ("last", "last_value")
    pick = last_rows


class _ExtremeBy(PlainAccumulator):
    """The value of the row with the smallest or largest order; of several the earliest."""

    idempotent = True
    order_sensitive = True
    constants_from = 2
    null_argument = 1
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
        self.state_types = (value, sortable_type(order))

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        return [arguments[0], to_sortable(canonicalize(arguments[1]))]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        value, order = states[0], as_array(states[1])
        best = reduce_groups(order, ids, groups, self.kernel)
        is_best = to_flags(pc.equal(order, best.take(pa.array(ids))))
        rows = first_rows(ids, groups, is_best)
        return [take_or_null(value, rows), best]

    def evaluate(self, states: Sequence[Column]) -> Column:
        # The state of a single row has its value even if its order is NULL.
        return null_unless(states[0], valid_mask(states[1]))

    def partial_sql(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        value, order = arguments
        return (f"{self.kernel}_by({value}, {order})", f"{self.kernel}({order})")

    def from_partials(self, columns: Sequence[Column]) -> list[Column]:
        return self.pre_aggregate(columns, None)


class MinBy(_ExtremeBy):
    """min_by: the value of the row with the smallest order."""

    names = ("min_by",)
    kernel = "min"


class MaxBy(_ExtremeBy):
    """max_by: the value of the row with the largest order."""

    names = ("max_by",)
    kernel = "max"


# ---- The nth value of a frame, counted from its first or its last row


class NthValue(PlainAccumulator):
    """nth_value(x, n): keeps the first n values. The constants are n and whether to ignore NULL."""

    names: ClassVar[tuple[str, ...]] = ("nth_value",)
    order_sensitive = True
    from_end: ClassVar[bool] = False

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        self.state_types = (pa.list_(call.arguments[0]),)
        self.nth = int(call.constants[0])
        self.skips_nulls = bool(call.constants[1])
        self.null_argument = 0 if self.skips_nulls else None
        assert self.nth >= 1, "values are counted from 1"

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        value = as_array(arguments[0])
        counted = valid_mask(value) if self.skips_nulls else np.ones(len(value), np.bool_)
        values = value if counted.all() else value.filter(pa.array(counted))
        return [_to_lists(counted, values, self.state_types[0])]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        lists = as_array(states[0])
        order = np.argsort(ids, kind="stable")
        lists = lists.take(pa.array(order))
        lengths = _list_lengths(lists)
        counts = np.bincount(ids[order], lengths, groups).astype(np.int64)
        ends = np.cumsum(counts)
        # The index of each value in its group, from the first or from the last value.
        indices = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
        if self.from_end:
            indices = np.repeat(counts, counts) - 1 - indices
        values = lists.flatten().filter(pa.array(indices < self.nth))
        return [_to_lists(np.minimum(counts, self.nth), values, self.state_types[0])]

    def evaluate(self, states: Sequence[Column]) -> Column:
        lists = as_array(states[0])
        lengths = _list_lengths(lists)
        starts = np.cumsum(lengths) - lengths
        indices = starts + (lengths - self.nth if self.from_end else self.nth - 1)
        return lists.flatten().take(pa.array(indices, mask=lengths < self.nth))


class NthValueFromEnd(NthValue):
    """lag(x, n) IGNORE NULLS: the nth value from the end of a frame of the preceding rows."""

    names = ("lag",)
    from_end = True


# ---- collect_list, array_agg, string_agg: the values in order of arrival


class CollectList(PlainAccumulator):
    """collect_list: the values of a group, an empty list if there are none."""

    names: ClassVar[tuple[str, ...]] = ("collect_list", "array_agg")
    order_sensitive = True
    constants_from: ClassVar[int | None] = 1

    @classmethod
    def ignores_nulls(cls, constants: Sequence[object]) -> bool:
        return skips_nulls(constants, default=True)

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        self.state_types = (pa.list_(call.arguments[0]),)
        self.skips_nulls = skips_nulls(call.constants, default=True)
        self.null_argument = 0 if self.skips_nulls else None

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        value = as_array(arguments[0])
        counted = np.ones(len(value), np.bool_)
        if self.skips_nulls:
            counted = valid_mask(value)
        elif self.call.filtered:
            counted = to_flags(arguments[1])
        values = value if counted.all() else value.filter(pa.array(counted))
        return [_to_lists(counted, values, self.state_types[0])]

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        lists = as_array(states[0])
        # A stable sort keeps the lists of a group in order of arrival.
        order = np.argsort(ids, kind="stable")
        values = lists.take(pa.array(order)).flatten()
        merged_lengths = np.bincount(ids, _list_lengths(lists), groups).astype(np.int64)
        return [_to_lists(merged_lengths, values, self.state_types[0])]

    def evaluate(self, states: Sequence[Column]) -> Column:
        lists = as_array(states[0])
        if not lists.null_count:
            return lists
        return _to_lists(_list_lengths(lists), lists.flatten(), self.state_types[0])


class CollectSet(CollectList):
    """collect_set: the distinct values, in order of their first arrival."""

    names = ("collect_set",)
    constants_from = None
    always_distinct = True


class StringAgg(PlainAccumulator):
    """string_agg, listagg: the values joined by a separator, NULL if there are none."""

    names = ("string_agg", "listagg")
    order_sensitive = True
    constants_from = 1

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        data_type = call.arguments[0]
        if not (pa.types.is_string(data_type) or pa.types.is_binary(data_type)):
            hint = "cast the argument: CAST(… AS STRING)."
            raise unsupported_call(call, f"is not supported over {data_type}", hint)
        self.lists = CollectList(replace(call, constants=()))
        self.state_types = self.lists.state_types
        separator = call.constants[0] if call.constants else None
        empty = "" if pa.types.is_string(data_type) else b""
        self.separator = pa.scalar(empty if separator is None else separator, data_type)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        return self.lists.pre_aggregate(arguments, weights)

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        return self.lists.combine(states, ids, groups)

    def evaluate(self, states: Sequence[Column]) -> Column:
        lists = as_array(states[0])
        joined = pc.binary_join(lists, self.separator)
        empty = pc.equal(pc.list_value_length(lists), 0)
        return pc.if_else(empty, pa.scalar(None, joined.type), joined)


def _list_lengths(lists: pa.Array) -> Ints:
    filled = lists.value_lengths().fill_null(0)
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.int64)


def _to_lists(
    lengths: npt.NDArray[np.generic], values: pa.Array, data_type: pa.DataType
) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=data_type)
