"""Vectorised steps that accumulators and tables of groups share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.accumulators.base import (
    Column,
    CombiningAccumulator,
    Ids,
    PlainAccumulator,
)

Doubles = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def as_array(column: Column) -> pa.Array:
    """A column in one piece."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def valid_mask(column: Column) -> Mask:
    """Where a column is not NULL."""
    mask: Mask = as_array(pc.is_valid(column)).to_numpy(zero_copy_only=False)
    return mask


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


def normal(column: Column) -> Column:
    """Values that are equal get equal bits: one NaN, one zero."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.add(one_nan(column), pa.scalar(0.0, column.type))


def one_nan(column: Column) -> Column:
    """All NaN get equal bits; zeros keep their sign."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)


def group_ids(table: pa.Table, keys: list[str]) -> tuple[Ids, int]:
    """A number for each row, the same for rows with the same keys."""
    rows = table.select(keys).append_column("_row", pa.array(np.arange(table.num_rows)))
    grouped = rows.group_by(keys, use_threads=False).aggregate([("_row", "list")])
    return ids_of(grouped.column(grouped.num_columns - 1), table.num_rows), grouped.num_rows


def ids_of(lists: Column, rows: int) -> Ids:
    """From the rows of every group to the group of every row."""
    array = as_array(lists)
    ids = np.empty(rows, np.int64)
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    ids[array.flatten().to_numpy()] = np.repeat(np.arange(len(array)), lengths)
    return ids


def places_of(table: pa.Table, rows: pa.Table, keys: list[str]) -> Ids:
    """For each of `rows` the place in `table` of the row with the same keys, or −1."""
    both = pa.concat_tables([table.select(keys), rows.select(keys)])
    ids, count = group_ids(both, keys)
    places = np.full(count, -1, np.int64)
    places[ids[: table.num_rows]] = np.arange(table.num_rows)
    found: Ids = places[ids[table.num_rows :]]
    return found


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
    return pa.array(values, mask=~there).cast(kind)


def reduce_by(column: Column, ids: Ids, groups: int, kernel: str) -> pa.Array:
    """One value a group, merged by a kernel of Arrow; NULL for a group without rows."""
    table = pa.table([pa.array(ids), column], names=["id", "x"])
    merged = table.group_by("id", use_threads=False).aggregate([("x", kernel)])
    places = np.full(groups, -1, np.int64)
    places[merged.column(0).to_numpy()] = np.arange(merged.num_rows)
    return take_or_null(merged.column(1), places)


def aggregate(plain: PlainAccumulator, values: Sequence[Column], ids: Ids, groups: int) -> Column:
    """The result of a plain accumulator over rows that are all here."""
    states = plain.lift(values, None)
    if isinstance(plain, CombiningAccumulator):
        return plain.evaluate(plain.combine(states, ids, groups))
    pairs = zip(states, plain.merges, strict=True)
    return plain.evaluate([reduce_by(state, ids, groups, kernel) for state, kernel in pairs])
