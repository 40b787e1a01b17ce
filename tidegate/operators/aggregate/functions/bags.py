"""Aggregates over the values themselves: DISTINCT, and whatever cannot retract a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tidegate.operators.aggregate.functions.base import (
    BagAccumulator,
    Call,
    PlainAccumulator,
    aggregate,
    first_places,
    require_groupable,
)
from tidegate.operators.kernels.keys import (
    Column,
    Ids,
    Mask,
    as_array,
    canonical,
    group_ids,
    merge_rows,
    one_nan,
    ranks,
)


class OverBag(BagAccumulator):
    """A plain aggregate of the values that are there."""

    def __init__(self, call: Call, plain: type[PlainAccumulator]) -> None:
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
        self.same = canonical if is_set and not self.keeps_order else one_nan

    @property
    def required(self) -> tuple[int, ...]:
        return self.plain.required

    def pre_aggregate(
        self, arguments: Sequence[Column], ones: Column
    ) -> tuple[list[Column], Column]:
        return [self.same(argument) for argument in arguments], ones

    def evaluate_bag(self, values: Sequence[Column], counts: Ids, ids: Ids, groups: int) -> Column:
        if self.once and self.keeps_order:
            values = [canonical(value) for value in values]
            rows = np.flatnonzero(_first_of_each(values, ids))
        else:
            rows = np.arange(len(ids)) if self.once else np.repeat(np.arange(len(ids)), counts)
        if self.plain.rounds:
            # The result is then one of the values, and not of how they came and went.
            rows = rows[np.lexsort([ranks(value)[rows] for value in reversed(values)])]
        taken = [as_array(value).take(pa.array(rows)) for value in values]
        return aggregate(self.plain, taken, ids[rows], groups)

    def partial_keys(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        return None if self.in_order or self.call.retracts else tuple(arguments)


def _first_of_each(values: Sequence[Column], ids: Ids) -> Mask:
    """The rows that are not a repetition within their group."""
    names = ["id", *(f"v{place}" for place, _ in enumerate(values))]
    which, count = group_ids(pa.table([pa.array(ids), *values], names=names), names)
    first = np.zeros(len(ids), np.bool_)
    first[first_places(which, count, np.ones(len(ids), np.bool_))] = True
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


def cancel_pairs(table: pa.Table, keys: list[str], count: str) -> pa.Table:
    """Rows as they came, without those that were retracted.

    A row that is retracted is the latest identical one before it: so opening and closing brackets
    match, and like them they can be matched in any part first. What finds no match stays.
    """
    signs = table.column(count).to_numpy()
    if len(signs) == 0 or signs.min() > 0:
        return table
    ids, _ = group_ids(table, keys)
    order = np.argsort(ids, kind="stable")
    keep = np.empty(len(ids), np.bool_)
    keep[order] = unmatched(ids[order], signs[order])
    return table if keep.all() else table.filter(pa.array(keep))


def unmatched(ids: Ids, signs: Ids) -> Mask:
    """Brackets without a partner in their run of equal ids; ids ascend."""
    runs = np.cumsum(np.diff(ids, prepend=ids[0]) != 0)
    starts = np.flatnonzero(np.diff(ids, prepend=ids[0] - 1) != 0)
    sums = np.cumsum(signs)
    before = np.concatenate(([0], sums))[starts]
    depth = sums - before[runs]
    # Runs are moved so far apart that the smallest of one never reaches into another.
    apart = runs * (2 * len(ids) + 2)
    later = np.minimum.accumulate((depth + apart)[::-1])[::-1] - apart
    lowest = np.minimum.accumulate(np.minimum(depth, 0) - apart) + apart
    earlier = np.concatenate(([0], lowest[:-1]))
    earlier[starts] = 0
    free: Mask = np.where(signs > 0, later >= depth, depth < earlier)
    return free


def cancel_owed(table: pa.Table, keys: list[str], count: str) -> pa.Table:
    """Only rows that are there: a retraction without a pair removes the earliest identical row."""
    signs = table.column(count).to_numpy()
    if len(signs) == 0 or signs.min() > 0:
        return table
    ids, number = group_ids(table, keys)
    owed = np.bincount(ids[signs < 0], minlength=number)
    order = np.argsort(ids, kind="stable")
    there = signs[order] > 0
    total = np.cumsum(there)
    starts = np.flatnonzero(np.diff(ids[order], prepend=-1) != 0)
    before = (total - there)[starts]
    rank = total - before[ids[order]]
    keep = np.empty(len(ids), np.bool_)
    keep[order] = there & (rank > owed[ids[order]])
    return table.filter(pa.array(keep))
