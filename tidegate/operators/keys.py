"""Which values are equal, and rows grouped by them, for every type of Arrow that Spark sends.

Two relations are used, and no third. *Equal* is what SQL means by it for keys: −0.0 equals 0.0, NaN
equals NaN, and a map does not depend on the order of its entries; `canonical` gives equal values
equal bits, also inside of structs, arrays and maps, and every operator applies it to its keys where
it reads them. *Identical* is what a retraction means: the row that was sent, with the sign of its
zeros. Groups are of identical values, so over canonical columns they are of equal ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Column: TypeAlias = pa.ChunkedArray | pa.Array
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_ROW = "_first_row"


def as_array(column: Column) -> pa.Array:
    """A column in one piece."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def valid_mask(column: Column) -> Mask:
    """Where a column is not NULL."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    mask: Mask = as_array(pc.is_valid(column)).to_numpy(zero_copy_only=False)
    return mask


# What is equal


def groupable(kind: pa.DataType) -> bool:
    """Whether values of a type can be keys; entries of a map need keys that have an order."""
    if pa.types.is_map(kind):
        return not pa.types.is_nested(kind.key_type) and groupable(kind.item_type)
    if pa.types.is_struct(kind):
        return all(groupable(field.type) for field in kind)
    if _is_list(kind):
        return groupable(kind.value_type)
    return not pa.types.is_nested(kind)


def comparable(kind: pa.DataType) -> bool:
    """Whether values of a type can be compared by =, as Spark has it: not if there is a map."""
    if pa.types.is_struct(kind):
        return all(comparable(field.type) for field in kind)
    if _is_list(kind):
        return comparable(kind.value_type)
    return not pa.types.is_nested(kind)


def canonical(column: Column) -> Column:
    """Values that are equal as keys get equal bits; what is shown of them is 0.0 and NaN."""
    kind = column.type
    if pa.types.is_floating(kind):
        return pc.add(one_nan(column), pa.scalar(0.0, kind))
    return _canonical_nested(as_array(column)) if _has_synonyms(kind) else column


def one_nan(column: Column) -> Column:
    """All NaN get equal bits; zeros keep their sign."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)


def _has_synonyms(kind: pa.DataType) -> bool:
    """Whether values of a type can be equal and have other bits."""
    if pa.types.is_struct(kind):
        return any(_has_synonyms(field.type) for field in kind)
    if _is_list(kind):
        return _has_synonyms(kind.value_type)
    return bool(pa.types.is_map(kind) or pa.types.is_floating(kind))


def _canonical_nested(array: pa.Array) -> pa.Array:
    kind, missing = array.type, pc.is_null(array)
    if pa.types.is_struct(kind):
        children = [canonical(child) for child in array.flatten()]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)
    lengths, values = parts_of(array)
    offsets = np.zeros(len(lengths) + 1, np.int64 if pa.types.is_large_list(kind) else np.int32)
    np.cumsum(lengths, out=offsets[1:])
    if pa.types.is_map(kind):
        return _sorted_maps(kind, pa.array(offsets), lengths, values, missing)
    whole = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return whole.from_arrays(pa.array(offsets), canonical(values), type=kind, mask=missing)


def _sorted_maps(
    kind: pa.DataType, offsets: pa.Array, lengths: Ids, entries: pa.Array, missing: pa.Array
) -> pa.Array:
    """Entries in the order of their keys, as Spark shows a map by which it has grouped."""
    keys, items = (canonical(part) for part in entries.flatten())
    rows = np.repeat(np.arange(len(lengths)), lengths)
    order = pa.array(np.lexsort((ranks(keys), rows)))
    keys, items = as_array(keys).take(order), as_array(items).take(order)
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=missing)


def parts_of(array: pa.Array) -> tuple[Ids, pa.Array]:
    """The elements of arrays or the entries of maps, end to end, and how many each row has."""
    if pa.types.is_map(array.type):
        entry = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
        array = array.cast(pa.list_(entry))
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return np.asarray(lengths, np.int64), array.flatten()


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def ranks(column: Column) -> Ids:
    """A number per value of a flat type, in the order of the values; NaN is above all numbers."""
    values = as_array(column)
    found = pc.rank(values, sort_keys="ascending", tiebreaker="dense").to_numpy()
    found = found.astype(np.int64)
    if pa.types.is_floating(values.type):
        nan = pc.fill_null(pc.is_nan(values), False).to_numpy(zero_copy_only=False)
        found[nan] = len(values) + 1
    result: Ids = found
    return result


# What is identical


def flat(column: Column) -> Column:
    """A column that Arrow can group by, identical where this one is; numbers for nested values."""
    if pa.types.is_nested(column.type):
        return pa.array(_nested_ids(as_array(column)))
    return one_nan(column)


def _nested_ids(array: pa.Array) -> Ids:
    """A number per value, the same for identical ones: from the leaves up, level by level."""
    valid = pc.is_valid(array)
    if pa.types.is_struct(array.type):
        return _ids([valid, *(flat(child) for child in array.flatten())])[0]
    lengths, values = parts_of(array)
    elements = _ids([flat(values)])[0]
    # The numbers of the elements, as the bytes of one value per row.
    ends = np.concatenate(([0], np.cumsum(lengths))) * elements.itemsize
    buffers = [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(elements)]
    packed = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(array), buffers)
    return _ids([valid, packed])[0]


def _ids(columns: Sequence[Column]) -> tuple[Ids, int]:
    """A number per row, the same where all of these flat columns are the same, and how many."""
    rows = len(columns[0])
    names = [f"c{place}" for place, _ in enumerate(columns)]
    table = pa.table([*columns, pa.array(np.arange(rows))], names=[*names, _ROW])
    grouped = table.group_by(names, use_threads=False).aggregate([(_ROW, "list")])
    return ids_of(grouped.column(len(names)), rows), grouped.num_rows


def ids_of(lists: Column, rows: int) -> Ids:
    """From the rows of every group to the group of every row."""
    array = as_array(lists)
    ids = np.empty(rows, np.int64)
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    ids[array.flatten().to_numpy()] = np.repeat(np.arange(len(array)), lengths)
    return ids


def group_ids(table: pa.Table, keys: Sequence[str]) -> tuple[Ids, int]:
    """A number per row, the same for rows whose keys are identical, and how many there are."""
    return _ids([flat(table.column(key)) for key in keys])


def places_of(table: pa.Table, rows: pa.Table, keys: Sequence[str]) -> Ids:
    """For each of `rows` the place in `table` of the row with the same keys, or −1."""
    both = pa.concat_tables([table.select(keys), rows.select(keys)])
    ids, count = group_ids(both, keys)
    places = np.full(count, -1, np.int64)
    places[ids[: table.num_rows]] = np.arange(table.num_rows)
    found: Ids = places[ids[table.num_rows :]]
    return found


def merge_rows(table: pa.Table, keys: Sequence[str], merges: list[tuple[str, str]]) -> pa.Table:
    """One row per key; the named columns are merged by kernels of Arrow and keep their names."""
    nested = [key for key in keys if pa.types.is_nested(table.schema.field(key).type)]
    names = [*keys, *(name for name, _ in merges)]
    if not nested:
        return _aggregated(table, tuple(keys), tuple(merges)).select(names)
    rows = table.append_column(_ROW, pa.array(np.arange(table.num_rows)))
    for key in nested:
        rows = rows.set_column(rows.schema.get_field_index(key), key, flat(table.column(key)))
    merged = rows.group_by(list(keys), use_threads=False).aggregate([*merges, (_ROW, "min")])
    merged = merged.rename_columns([*names, _ROW])
    for key in nested:
        values = as_array(table.column(key)).take(as_array(merged.column(_ROW)))
        merged = merged.set_column(names.index(key), key, values)
    return merged.select(range(len(names)))


def _aggregated(
    table: pa.Table, by: tuple[str, ...], merges: tuple[tuple[str, str], ...]
) -> pa.Table:
    """One row per group; columns keep their names. A plan costs more than a few hundred rows do,
    so what is the same each time is made once."""
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    plan = acero.Declaration("aggregate", _aggregation(by, merges), inputs=[source])
    return plan.to_table(use_threads=False)


@lru_cache(maxsize=256)
def _aggregation(by: tuple[str, ...], merges: tuple[tuple[str, str], ...]) -> Any:
    from pyarrow import acero

    calls = [(name, f"hash_{kernel}", None, name) for name, kernel in merges]
    return acero.AggregateNodeOptions(calls, keys=list(by))


def rows_identical(left: pa.Table, right: pa.Table) -> Mask:
    """Row by row: NULL is NULL, NaN is NaN, −0.0 is not 0.0."""
    same = np.ones(left.num_rows, np.bool_)
    for one, other in zip(left.columns, right.columns, strict=True):
        same &= _identical(one, other)
    return same


def _identical(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Mask:
    if pa.types.is_null(one.type):
        return np.ones(len(one), np.bool_)
    if pa.types.is_nested(one.type):
        both = pa.chunked_array([*one.chunks, *other.chunks], one.type)
        ids = _nested_ids(as_array(both))
        same: Mask = ids[: len(one)] == ids[len(one) :]
        return same
    one, other = _bits(one), _bits(other)
    equal = pc.fill_null(pc.equal(one, other), False)
    equal = pc.or_(equal, pc.and_(pc.is_null(one), pc.is_null(other)))
    return np.asarray(as_array(equal).to_numpy(zero_copy_only=False), np.bool_)


def _bits(column: Column) -> Column:
    """Floating numbers as the integers that have their bits."""
    if not pa.types.is_floating(column.type):
        return column
    whole = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width]
    return as_array(one_nan(column)).view(whole)
