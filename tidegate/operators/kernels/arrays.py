"""Arrow columns as NumPy arrays and back, and vectorized steps over rows that belong to groups.

`ids` is the group of each row, a number below `groups`. A table of groups has one row per id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import STORE_TIME
from tidegate.operators.operator import Tables

Column: TypeAlias = pa.ChunkedArray | pa.Array
Ints = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def arrow_bytes(table: pa.Table) -> bytes:
    """Serialize a table in the Arrow file format."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    return bytes(out.getvalue())


# ---- From Arrow to NumPy


def as_array(column: Column) -> pa.Array:
    """Return a column as one contiguous array, without a copy if it has a single chunk."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def int_column(table: pa.Table, name: str) -> Ints:
    """Return a BIGINT column without NULLs."""
    return np.asarray(table.column(name).to_numpy(), np.int64)


def valid_mask(column: Column) -> Mask:
    """Return where a column is not NULL."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    mask: Mask = as_array(pc.is_valid(column)).to_numpy(zero_copy_only=False)
    return mask


def to_ints(column: Column) -> Ints:
    """Convert an integer column, NULL to 0."""
    filled = as_array(pc.fill_null(column, 0) if column.null_count else column)
    ints: Ints = filled.to_numpy(zero_copy_only=False)
    return ints


def to_flags(column: Column) -> Mask:
    """Convert a boolean column, NULL to false."""
    flags: Mask = as_array(pc.fill_null(column, False)).to_numpy(zero_copy_only=False)
    return flags


def to_doubles(column: Column) -> Doubles:
    """Convert a column of numbers, dates or intervals, NULL to 0."""
    data_type = column.type
    if pa.types.is_decimal(data_type):
        # Arrow's cast from decimal can be off by one bit; its cast from text is exact.
        column = pc.cast(pc.cast(column, pa.string()), pa.float64())
    elif pa.types.is_date32(data_type):
        column = pc.cast(pc.cast(column, pa.int32()), pa.float64())
    elif pa.types.is_temporal(data_type):
        column = pc.cast(pc.cast(column, pa.int64()), pa.float64())
    elif not pa.types.is_float64(data_type):
        # A BIGINT beyond 2⁵³ is rounded, as in Spark.
        column = pc.cast(column, pa.float64(), safe=False)
    filled = as_array(pc.fill_null(column, 0.0) if column.null_count else column)
    doubles: Doubles = filled.to_numpy(zero_copy_only=False)
    return doubles


# ---- From NumPy to Arrow


def with_nulls(values: npt.NDArray[np.generic], valid: Mask, data_type: pa.DataType) -> pa.Array:
    """Return an array of a type that is NULL where `valid` is false."""
    array = pa.array(values) if valid.all() else pa.array(values, mask=~valid)
    return array if array.type == data_type else array.cast(data_type)


def take_or_null(column: Column, indices: Ints) -> pa.Array:
    """Take the values at these indices, NULL where the index is −1."""
    return as_array(column).take(pa.array(indices, mask=indices < 0))


def null_unless(column: Column, keep: Mask) -> Column:
    """Return a column of any type that is NULL where `keep` is false."""
    if keep.all():
        return column
    return take_or_null(column, np.where(keep, np.arange(len(keep)), -1))


# ---- Reductions by group


def first_rows(ids: Ints, groups: int, candidates: Mask) -> Ints:
    """Return the index of the first candidate row of every group, or −1."""
    # If an index occurs several times, NumPy keeps the last value that is written to it.
    rows = np.flatnonzero(candidates)[::-1]
    indices = np.full(groups, -1, np.int64)
    indices[ids[rows]] = rows
    return indices


def last_rows(ids: Ints, groups: int, candidates: Mask) -> Ints:
    """Return the index of the last candidate row of every group, or −1."""
    rows = np.flatnonzero(candidates)
    indices = np.full(groups, -1, np.int64)
    indices[ids[rows]] = rows
    return indices


def reduce_groups(column: Column, ids: Ints, groups: int, kernel: str) -> pa.Array:
    """Reduce the values of every group with an Arrow kernel; NULL for a group without rows."""
    table = pa.table([pa.array(ids), column], names=["id", "x"])
    merged = table.group_by("id", use_threads=False).aggregate([("x", kernel)])
    indices = np.full(groups, -1, np.int64)
    indices[merged.column(0).to_numpy()] = np.arange(merged.num_rows)
    return take_or_null(merged.column(1), indices)


def sum_groups(column: Column, ids: Ints, groups: int) -> Ints:
    """Sum an integer column by group, NULL as 0."""
    sums = np.zeros(groups, np.int64)
    values = to_ints(column)
    if values.any():
        np.add.at(sums, ids, values)
    return sums


def with_int_column(table: pa.Table, name: str, values: Ints) -> pa.Table:
    """Replace the values of a BIGINT column."""
    index = table.schema.get_field_index(name)
    return table.set_column(index, pa.field(name, pa.int64()), pa.array(values, pa.int64()))


# ---- Several tables at once


def concat(parts: Sequence[Tables]) -> Tables:
    """Concatenate several partial results, table by table."""
    return tuple(pa.concat_tables(tables) for tables in zip(*parts, strict=True))


def filter_by_time(tables: Tables, keep: Callable[[Ints], Mask]) -> Tables:
    """Keep the rows of all tables whose STORE_TIME (or pane) satisfies `keep`."""
    return tuple(_filter(table, keep(table.column(STORE_TIME).to_numpy())) for table in tables)


def _filter(table: pa.Table, mask: Mask) -> pa.Table:
    if mask.all():
        return table
    return table.filter(pa.array(mask))
