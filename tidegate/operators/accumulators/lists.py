"""collect_list, array_agg, string_agg: the values in the order they came in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.accumulators.arrivals import skips_nulls
from tidegate.operators.accumulators.base import (
    Call,
    PlainAccumulator,
    require_no_weights,
    unsupported,
)
from tidegate.operators.accumulators.kernels import to_flags
from tidegate.operators.keys import Column, Ids, as_array, valid_mask


class CollectList(PlainAccumulator):
    """The values of a group as a list, empty if there are none."""

    names: ClassVar[tuple[str, ...]] = ("collect_list", "array_agg")
    in_order = True
    constants_from: ClassVar[int | None] = 1

    @classmethod
    def ignores_nulls(cls, constants: Sequence[object]) -> bool:
        return skips_nulls(constants, default=True)

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.fields = (pa.list_(call.arguments[0]),)
        self.skips_nulls = skips_nulls(call.constants, default=True)
        self.null_place = 0 if self.skips_nulls else None

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        value = as_array(arguments[0])
        there = np.ones(len(value), np.bool_)
        if self.skips_nulls:
            there = valid_mask(value)
        elif self.call.filtered:
            there = to_flags(arguments[1])
        kept = value if there.all() else value.filter(pa.array(there))
        return [_lists(there, kept, self.fields[0])]

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
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

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        kind = call.arguments[0]
        if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            hint = "cast the argument: CAST(… AS STRING)."
            raise unsupported(call, f"is not supported over {kind}", hint)
        self.lists = CollectList(replace(call, constants=()))
        self.fields = self.lists.fields
        separator = call.constants[0] if call.constants else None
        empty = "" if pa.types.is_string(kind) else b""
        self.separator = pa.scalar(empty if separator is None else separator, kind)

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        return self.lists.lift(arguments, weights)

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
        return self.lists.combine(states, ids, groups)

    def evaluate(self, states: Sequence[Column]) -> Column:
        lists = as_array(states[0])
        joined = pc.binary_join(lists, self.separator)
        empty = pc.equal(pc.list_value_length(lists), 0)
        return pc.if_else(empty, pa.scalar(None, joined.type), joined)


def _lengths(lists: pa.Array) -> Ids:
    lengths: Ids = pc.fill_null(lists.value_lengths(), 0).to_numpy(zero_copy_only=False)
    return lengths


def _lists(lengths: npt.NDArray[np.generic], values: pa.Array, kind: pa.DataType) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind)
