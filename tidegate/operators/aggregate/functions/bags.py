"""Aggregates over the values of a group: DISTINCT, and functions that cannot retract a row."""

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
    """A plain aggregate that is computed from the values of a group."""

    def __init__(self, call: AggregateCall, plain: type[PlainAccumulator]) -> None:
        super().__init__(call)
        is_set = call.distinct or plain.always_distinct
        reason = "DISTINCT needs" if is_set else "rows are retracted, which needs"
        require_groupable(call, f"{reason} to compare values of")
        self.plain = plain(replace(call, distinct=False, filtered=False))
        self.null_argument = self.plain.null_argument
        # Whether repeated values are dropped before the plain aggregate sees them.
        self.drops_repetitions = (is_set and not plain.idempotent) or (
            plain.idempotent and not plain.order_sensitive
        )
        self.order_sensitive = plain.order_sensitive
        # Without retractions, the order of first arrivals is sufficient.
        self.keeps_order = plain.order_sensitive and call.retracts
        # DISTINCT takes zeros as equal; a retraction must match the sign of its row.
        self.normalize = canonicalize if is_set and not self.keeps_order else unify_nan

    @property
    def required_arguments(self) -> tuple[int, ...]:
        return self.plain.required_arguments

    def pre_aggregate(
        self, arguments: Sequence[Column], ones: Column
    ) -> tuple[list[Column], Column]:
        return [self.normalize(argument) for argument in arguments], ones

    def evaluate_bag(
        self, values: Sequence[Column], counts: Ints, ids: Ints, groups: int
    ) -> Column:
        if self.drops_repetitions and self.keeps_order:
            values = [canonicalize(value) for value in values]
            rows = np.flatnonzero(_first_occurrences(values, ids))
        elif self.drops_repetitions:
            rows = np.arange(len(ids))
        else:
            rows = np.repeat(np.arange(len(ids)), counts)
        if self.plain.rounds:
            # Sorted, so that the result depends on the values only and not on their history.
            rows = rows[np.lexsort([dense_ranks(value)[rows] for value in reversed(values)])]
        columns = [as_array(value).take(pa.array(rows)) for value in values]
        return aggregate_rows(self.plain, columns, ids[rows], groups)


def _first_occurrences(values: Sequence[Column], ids: Ints) -> Mask:
    """Return the rows whose values do not occur earlier in their group."""
    names = ["id", *(f"v{index}" for index, _ in enumerate(values))]
    row_ids, count = group_ids(pa.table([pa.array(ids), *values], names=names), names)
    result = np.zeros(len(ids), np.bool_)
    result[first_rows(row_ids, count, np.ones(len(ids), np.bool_))] = True
    return result


def combine_counts(
    table: pa.Table, keys: list[str], names: tuple[str, str], bag: BagAccumulator
) -> pa.Table:
    """Merge equal values and their counts; `names` are the columns of hashes and counts.

    Values with a count of 0 are dropped.
    """
    if table.num_rows == 0:
        return table
    schema, merges = table.schema, [(names[0], "min"), (names[1], bag.count_kernel)]
    if bag.order_sensitive:
        table = table.append_column("_row", pa.array(np.arange(table.num_rows)))
        merges.append(("_row", "min"))
    merged = merge_rows(table, keys, merges)
    if bag.order_sensitive:
        # Arrow returns groups in no defined order.
        merged = merged.take(pa.array(np.argsort(merged.column("_row").to_numpy())))
    result = pa.table([merged.column(name) for name in schema.names], schema=schema)
    counts = result.column(names[1]).to_numpy()
    return result if counts.min() > 0 else result.filter(pa.array(counts != 0))
