"""Aggregates over the values themselves: DISTINCT, and whatever cannot retract a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tidegate.operators.aggregate.functions.base import (
    AggregateCall,
    BagAccumulator,
    PlainAccumulator,
    aggregate_rows,
    require_groupable,
)
from tidegate.operators.kernels.arrays import Column, Ints, Mask, as_array, first_rows
from tidegate.operators.kernels.keys import (
    canonicalize,
    dense_ranks,
    group_ids,
    merge_rows,
    unify_nan,
)


class OverBag(BagAccumulator):
    """A plain aggregate of the values that are there."""

    def __init__(self, call: AggregateCall, plain: type[PlainAccumulator]) -> None:
        super().__init__(call)
        is_set = call.distinct or plain.once
        why = "DISTINCT needs" if is_set else "rows are retracted, which needs"
        require_groupable(call, f"{why} to tell apart values of")
        self.plain = plain(replace(call, distinct=False, filtered=False))
        self.null_place = self.plain.null_place
        # What does not care for repetitions need not see them.
        self.once = (is_set and not plain.idempotent) or (plain.idempotent and not plain.in_order)
        self.in_order = plain.in_order
        # If all rows stay, the order of first arrivals is enough.
        self.keeps_order = plain.in_order and call.retracts
        # With DISTINCT zeros are equal; a row that is retracted is the one with its sign.
        self.same = canonicalize if is_set and not self.keeps_order else unify_nan

    @property
    def required(self) -> tuple[int, ...]:
        return self.plain.required

    def pre_aggregate(
        self, arguments: Sequence[Column], ones: Column
    ) -> tuple[list[Column], Column]:
        return [self.same(argument) for argument in arguments], ones

    def evaluate_bag(
        self, values: Sequence[Column], counts: Ints, ids: Ints, groups: int
    ) -> Column:
        if self.once and self.keeps_order:
            values = [canonicalize(value) for value in values]
            rows = np.flatnonzero(_first_of_each(values, ids))
        else:
            rows = np.arange(len(ids)) if self.once else np.repeat(np.arange(len(ids)), counts)
        if self.plain.rounds:
            # The result is then one of the values, and not of how they came and went.
            rows = rows[np.lexsort([dense_ranks(value)[rows] for value in reversed(values)])]
        taken = [as_array(value).take(pa.array(rows)) for value in values]
        return aggregate_rows(self.plain, taken, ids[rows], groups)

    def partial_keys(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        return None if self.in_order or self.call.retracts else tuple(arguments)


def _first_of_each(values: Sequence[Column], ids: Ints) -> Mask:
    """The rows that are not a repetition within their group."""
    names = ["id", *(f"v{place}" for place, _ in enumerate(values))]
    which, count = group_ids(pa.table([pa.array(ids), *values], names=names), names)
    first = np.zeros(len(ids), np.bool_)
    first[first_rows(which, count, np.ones(len(ids), np.bool_))] = True
    return first


def combine_counts(
    table: pa.Table, keys: list[str], names: tuple[str, str], bag: BagAccumulator
) -> pa.Table:
    """One row per value; values that cancelled out are gone. `names`: the hash and the counts."""
    if table.num_rows == 0:
        return table
    schema, merges = table.schema, [(names[0], "min"), (names[1], bag.merge)]
    if bag.in_order:
        table = table.append_column("_row", pa.array(np.arange(table.num_rows)))
        merges.append(("_row", "min"))
    merged = merge_rows(table, keys, merges)
    if bag.in_order:
        # Groups come out in an order of their own.
        merged = merged.take(pa.array(np.argsort(merged.column("_row").to_numpy())))
    result = pa.table([merged.column(name) for name in schema.names], schema=schema)
    counts = result.column(names[1]).to_numpy()
    return result if counts.min() > 0 else result.filter(pa.array(counts != 0))
