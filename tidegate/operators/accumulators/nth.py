"""The nth value of a frame, counted from its first row or from its last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tidegate.operators.accumulators.base import Call, PlainAccumulator, require_no_weights
from tidegate.operators.keys import Column, Ids, as_array, valid_mask


class NthValue(PlainAccumulator):
    """nth_value(x, n): the constants are n, and whether NULL does not count.

    It keeps the first n values, and no more.
    """

    names: ClassVar[tuple[str, ...]] = ("nth_value",)
    in_order = True
    from_end: ClassVar[bool] = False

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.fields = (pa.list_(call.arguments[0]),)
        self.nth = int(call.constants[0])
        self.skips_nulls = bool(call.constants[1])
        self.null_place = 0 if self.skips_nulls else None
        assert self.nth >= 1, "values are counted from 1"

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        require_no_weights(weights)
        value = as_array(arguments[0])
        there = valid_mask(value) if self.skips_nulls else np.ones(len(value), np.bool_)
        kept = value if there.all() else value.filter(pa.array(there))
        return [self._lists(there.astype(np.int64), kept)]

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
        lists = as_array(states[0])
        order = np.argsort(ids, kind="stable")
        lists = lists.take(pa.array(order))
        lengths = _lengths(lists)
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
        lengths = _lengths(lists)
        begins = np.cumsum(lengths) - lengths
        places = begins + (lengths - self.nth if self.from_end else self.nth - 1)
        return lists.flatten().take(pa.array(places, mask=lengths < self.nth))

    def _lists(self, lengths: Ids, values: pa.Array) -> pa.Array:
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:], dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), values, type=self.fields[0])


class NthValueFromEnd(NthValue):
    """lag(x, n) IGNORE NULLS over the rows before: the nth of them from the last."""

    names = ("lag",)
    from_end = True


def _lengths(lists: pa.Array) -> Ids:
    filled = lists.value_lengths().fill_null(0)
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.int64)
