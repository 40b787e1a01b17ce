"""Vectorised steps that accumulators and tables of groups share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.accumulators.base import PlainAccumulator
from tidegate.operators.keys import Column, Ids, Mask, as_array

Doubles = npt.NDArray[np.float64]


def to_ints(column: Column) -> Ids:
    """An integer column as numbers, NULL as 0."""
    filled = as_array(pc.fill_null(column, 0) if column.null_count else column)
    ints: Ids = filled.to_numpy(zero_copy_only=False)
    return ints


def to_flags(column: Column) -> Mask:
    """A boolean column, NULL as false."""
    flags: Mask = as_array(pc.fill_null(column, False)).to_numpy(zero_copy_only=False)
    return flags


def to_doubles(column: Column) -> Doubles:
    """A column of numbers, dates or intervals as doubles, NULL as 0."""
    kind = column.type
    if pa.types.is_decimal(kind):
        # Arrow's own cast is off by a bit where the text is not.
        column = pc.cast(pc.cast(column, pa.string()), pa.float64())
    elif pa.types.is_date32(kind):
        column = pc.cast(pc.cast(column, pa.int32()), pa.float64())
    elif pa.types.is_temporal(kind):
        column = pc.cast(pc.cast(column, pa.int64()), pa.float64())
    elif not pa.types.is_float64(kind):
        # A BIGINT beyond 2⁵³ is rounded, as Spark does it.
        column = pc.cast(column, pa.float64(), safe=False)
    filled = as_array(pc.fill_null(column, 0.0) if column.null_count else column)
    doubles: Doubles = filled.to_numpy(zero_copy_only=False)
    return doubles


def first_places(ids: Ids, groups: int, candidates: Mask) -> Ids:
    """The first candidate of every group, or −1. Of equal indices numpy keeps the last write."""
    rows = np.flatnonzero(candidates)[::-1]
    places = np.full(groups, -1, np.int64)
    places[ids[rows]] = rows
    return places


def last_places(ids: Ids, groups: int, candidates: Mask) -> Ids:
    """The last candidate of every group, or −1."""
    rows = np.flatnonzero(candidates)
    places = np.full(groups, -1, np.int64)
    places[ids[rows]] = rows
    return places


def take_or_null(column: Column, places: Ids) -> pa.Array:
    """The values at some places, NULL where the place is −1."""
    return as_array(column).take(pa.array(places, mask=places < 0))


def where(column: Column, there: Mask) -> Column:
    """A column of any type with NULL where nothing is there."""
    if there.all():
        return column
    return take_or_null(column, np.where(there, np.arange(len(there)), -1))


def with_nulls(values: npt.NDArray[np.generic], there: Mask, kind: pa.DataType) -> pa.Array:
    """An array that is NULL where nothing is there."""
    array = pa.array(values) if there.all() else pa.array(values, mask=~there)
    return array if array.type == kind else array.cast(kind)


def reduce_by(column: Column, ids: Ids, groups: int, kernel: str) -> pa.Array:
    """One value per group, merged by a kernel of Arrow; NULL for a group without rows."""
    table = pa.table([pa.array(ids), column], names=["id", "x"])
    merged = table.group_by("id", use_threads=False).aggregate([("x", kernel)])
    places = np.full(groups, -1, np.int64)
    places[merged.column(0).to_numpy()] = np.arange(merged.num_rows)
    return take_or_null(merged.column(1), places)


def int_sums(column: Column, ids: Ids, groups: int) -> Ids:
    """The sum of an integer column per group, NULL as 0."""
    sums = np.zeros(groups, np.int64)
    values = to_ints(column)
    if values.any():
        np.add.at(sums, ids, values)
    return sums


def aggregate(plain: PlainAccumulator, values: Sequence[Column], ids: Ids, groups: int) -> Column:
    """The result of a plain accumulator over rows that are all here."""
    states = plain.lift(values, None)
    if not plain.merges:
        return plain.evaluate(plain.combine(states, ids, groups))
    pairs = zip(states, plain.merges, strict=True)
    return plain.evaluate([reduce_by(state, ids, groups, kernel) for state, kernel in pairs])
