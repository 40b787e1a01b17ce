"""Equality, grouping and hashing of keys, for every Arrow type that Spark sends.

Two relations are used:

- *Equal* is SQL equality of keys: −0.0 equals 0.0, NaN equals NaN, and the order of a map's entries
  does not matter. `canonicalize` gives equal values equal bits, also inside structs, arrays and
  maps. Every operator applies it to its keys when it reads them.
- *Identical* is what a retraction needs: it matches the row that was added, including the sign of
  zeros. Grouping is by identical values, so grouping canonicalized columns is by equal values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.kernels.arrays import Column, Ints, Mask, as_array

_ROW = "_first_row"


# ---- Equality


def is_groupable(data_type: pa.DataType) -> bool:
    """Return whether values of a type can be keys; the keys of a map must have an order."""
    if pa.types.is_map(data_type):
        return not pa.types.is_nested(data_type.key_type) and is_groupable(data_type.item_type)
    if pa.types.is_struct(data_type):
        return all(is_groupable(field.type) for field in data_type)
    if _is_list(data_type):
        return is_groupable(data_type.value_type)
    return not pa.types.is_nested(data_type)


def is_comparable(data_type: pa.DataType) -> bool:
    """Return whether Spark can compare values of a type with `=`: everything but maps."""
    if pa.types.is_struct(data_type):
        return all(is_comparable(field.type) for field in data_type)
    if _is_list(data_type):
        return is_comparable(data_type.value_type)
    return not pa.types.is_nested(data_type)


def canonicalize(column: Column) -> Column:
    """Give values that are equal as keys equal bits: zeros become 0.0, and all NaN are the same."""
    data_type = column.type
    if pa.types.is_floating(data_type):
        return pc.add(unify_nan(column), pa.scalar(0.0, data_type))
    return _canonicalize_nested(as_array(column)) if _has_equal_variants(data_type) else column


def unify_nan(column: Column) -> Column:
    """Give all NaN equal bits; zeros keep their sign."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)


def _has_equal_variants(data_type: pa.DataType) -> bool:
    """Return whether two values of a type can be equal and differ in their bits."""
    if pa.types.is_struct(data_type):
        return any(_has_equal_variants(field.type) for field in data_type)
    if _is_list(data_type):
        return _has_equal_variants(data_type.value_type)
    return bool(pa.types.is_map(data_type) or pa.types.is_floating(data_type))


def _canonicalize_nested(array: pa.Array) -> pa.Array:
    data_type, null_mask = array.type, pc.is_null(array)
    if pa.types.is_struct(data_type):
        children = [canonicalize(child) for child in array.flatten()]
        return pa.StructArray.from_arrays(children, fields=list(data_type), mask=null_mask)
    lengths, values = flatten_lists(array)
    offsets = np.zeros(
        len(lengths) + 1, np.int64 if pa.types.is_large_list(data_type) else np.int32
    )
    np.cumsum(lengths, out=offsets[1:])
    if pa.types.is_map(data_type):
        return _sort_map_entries(data_type, pa.array(offsets), lengths, values, null_mask)
    list_class = pa.LargeListArray if pa.types.is_large_list(data_type) else pa.ListArray
    return list_class.from_arrays(
        pa.array(offsets), canonicalize(values), type=data_type, mask=null_mask
    )


def _sort_map_entries(
    data_type: pa.DataType, offsets: pa.Array, lengths: Ints, entries: pa.Array, null_mask: pa.Array
) -> pa.Array:
    """Sort the entries of every map by key, as Spark does for maps in GROUP BY."""
    keys, items = (canonicalize(part) for part in entries.flatten())
    rows = np.repeat(np.arange(len(lengths)), lengths)
    order = pa.array(np.lexsort((dense_ranks(keys), rows)))
    keys, items = as_array(keys).take(order), as_array(items).take(order)
    return pa.MapArray.from_arrays(offsets, keys, items, type=data_type, mask=null_mask)


def flatten_lists(array: pa.Array) -> tuple[Ints, pa.Array]:
    """Return the number of elements (or map entries) in every row, and all of them end to end."""
    if pa.types.is_map(array.type):
        entry = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
        array = array.cast(pa.list_(entry))
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return np.asarray(lengths, np.int64), array.flatten()


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def dense_ranks(column: Column) -> Ints:
    """Number the values of a flat type in ascending order; equal values share a number.

    NaN is the largest.
    """
    values = as_array(column)
    ranks = pc.rank(values, sort_keys="ascending", tiebreaker="dense").to_numpy()
    ranks = ranks.astype(np.int64)
    if pa.types.is_floating(values.type):
        nan = pc.fill_null(pc.is_nan(values), False).to_numpy(zero_copy_only=False)
        ranks[nan] = len(values) + 1
    result: Ints = ranks
    return result


# ---- Grouping by identical values


def to_groupable(column: Column) -> Column:
    """Return a column that Arrow can group by: nested values are replaced by numbers."""
    if pa.types.is_nested(column.type):
        return pa.array(_nested_ids(as_array(column)))
    return unify_nan(column)


def _nested_ids(array: pa.Array) -> Ints:
    """Assign identical nested values the same number, from the leaves up."""
    valid = pc.is_valid(array)
    if pa.types.is_struct(array.type):
        return _row_ids([valid, *(to_groupable(child) for child in array.flatten())])[0]
    lengths, values = flatten_lists(array)
    element_ids = _row_ids([to_groupable(values)])[0]
    # Each list becomes one binary value: the bytes of the ids of its elements.
    ends = np.concatenate(([0], np.cumsum(lengths))) * element_ids.itemsize
    buffers = [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(element_ids)]
    id_lists = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(array), buffers)
    return _row_ids([valid, id_lists])[0]


def _row_ids(columns: Sequence[Column]) -> tuple[Ints, int]:
    """Assign rows that agree in all these flat columns the same number; return also the count."""
    rows = len(columns[0])
    names = [f"c{index}" for index, _ in enumerate(columns)]
    table = pa.table([*columns, pa.array(np.arange(rows))], names=[*names, _ROW])
    grouped = table.group_by(names, use_threads=False).aggregate([(_ROW, "list")])
    return invert_groups(grouped.column(len(names)), rows), grouped.num_rows


def invert_groups(lists: Column, rows: int) -> Ints:
    """Turn the list of row numbers of every group into the group of every row."""
    array = as_array(lists)
    ids = np.empty(rows, np.int64)
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    ids[array.flatten().to_numpy()] = np.repeat(np.arange(len(array)), lengths)
    return ids


def group_ids(table: pa.Table, keys: Sequence[str]) -> tuple[Ints, int]:
    """Assign rows with identical keys the same number; return also the number of keys."""
    return _row_ids([to_groupable(table.column(key)) for key in keys])


def find_rows(table: pa.Table, rows: pa.Table, keys: Sequence[str]) -> Ints:
    """Return for each of `rows` the index of the row of `table` with the same keys, or −1."""
    both = pa.concat_tables([table.select(keys), rows.select(keys)])
    ids, count = group_ids(both, keys)
    indices = np.full(count, -1, np.int64)
    indices[ids[: table.num_rows]] = np.arange(table.num_rows)
    result: Ints = indices[ids[table.num_rows :]]
    return result


def merge_rows(table: pa.Table, keys: Sequence[str], merges: list[tuple[str, str]]) -> pa.Table:
    """Merge the rows of every key; `merges` pairs the other columns with Arrow kernels."""
    nested = [key for key in keys if pa.types.is_nested(table.schema.field(key).type)]
    names = [*keys, *(name for name, _ in merges)]
    if not nested:
        return _aggregate(table, tuple(keys), tuple(merges)).select(names)
    rows = table.append_column(_ROW, pa.array(np.arange(table.num_rows)))
    for key in nested:
        ids = to_groupable(table.column(key))
        rows = rows.set_column(rows.schema.get_field_index(key), key, ids)
    merged = rows.group_by(list(keys), use_threads=False).aggregate([*merges, (_ROW, "min")])
    merged = merged.rename_columns([*names, _ROW])
    for key in nested:
        values = as_array(table.column(key)).take(as_array(merged.column(_ROW)))
        merged = merged.set_column(names.index(key), key, values)
    return merged.select(range(len(names)))


def _aggregate(
    table: pa.Table, by: tuple[str, ...], merges: tuple[tuple[str, str], ...]
) -> pa.Table:
    """Run Arrow's hash aggregation; columns keep their names.

    Preparing an Acero plan costs more than a few hundred rows do, so the options are cached.
    """
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    plan = acero.Declaration("aggregate", _aggregate_options(by, merges), inputs=[source])
    return plan.to_table(use_threads=False)


@lru_cache(maxsize=256)
def _aggregate_options(by: tuple[str, ...], merges: tuple[tuple[str, str], ...]) -> Any:
    from pyarrow import acero

    calls = [(name, f"hash_{kernel}", None, name) for name, kernel in merges]
    return acero.AggregateNodeOptions(calls, keys=list(by))


def rows_identical(left: pa.Table, right: pa.Table) -> Mask:
    """Compare two tables row by row: NULL is NULL, NaN is NaN, −0.0 is not 0.0."""
    identical = np.ones(left.num_rows, np.bool_)
    for one, other in zip(left.columns, right.columns, strict=True):
        identical &= _values_identical(one, other)
    return identical


def _values_identical(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Mask:
    if pa.types.is_null(one.type):
        return np.ones(len(one), np.bool_)
    if pa.types.is_nested(one.type):
        both = pa.chunked_array([*one.chunks, *other.chunks], one.type)
        ids = _nested_ids(as_array(both))
        identical: Mask = ids[: len(one)] == ids[len(one) :]
        return identical
    one, other = _float_bits(one), _float_bits(other)
    equal = pc.fill_null(pc.equal(one, other), False)
    equal = pc.or_(equal, pc.and_(pc.is_null(one), pc.is_null(other)))
    return np.asarray(as_array(equal).to_numpy(zero_copy_only=False), np.bool_)


def _float_bits(column: Column) -> Column:
    """Reinterpret floating-point numbers as integers with the same bits."""
    if not pa.types.is_floating(column.type):
        return column
    int_type = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width]
    return as_array(unify_nan(column)).view(int_type)


# ---- Merging small tables of integers
#
# Below a thousand rows, Arrow needs longer to prepare a plan than NumPy for the whole merge.

MAX_SMALL_ROWS = 1_000
_INT = pa.int64()
# NumPy functions with the results of the Arrow kernels of these names.
_UFUNCS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True)
class SmallMerge:
    """Merges small tables of a schema; `ufuncs` merges the columns other than keys."""

    schema: pa.Schema
    keys: tuple[int, ...]
    ufuncs: tuple[tuple[int, np.ufunc], ...]

    def merge(self, table: pa.Table) -> pa.Table | None:
        """Merge the rows of every key, in the order of first rows; None if Arrow must do it."""
        if table.num_rows > MAX_SMALL_ROWS:
            return None
        columns = table.columns
        if any(column.null_count for column in columns):
            return None
        values = [column.to_numpy() for column in columns]
        # Sort only by keys that differ: a window that closes is a single pane.
        by = [values[key] for key in self.keys]
        by = [numbers for numbers in by if (numbers != numbers[0]).any()]
        order = np.lexsort(by[::-1]) if by else np.arange(table.num_rows)
        starts_key = np.zeros(table.num_rows, np.bool_)
        starts_key[0] = True
        for numbers in by:
            ordered = numbers[order]
            starts_key[1:] |= ordered[1:] != ordered[:-1]
        starts = np.flatnonzero(starts_key)
        output_order = np.argsort(order[starts])
        first_rows = order[starts][output_order]
        for key in self.keys:
            values[key] = values[key][first_rows]
        for index, ufunc in self.ufuncs:
            values[index] = ufunc.reduceat(values[index][order], starts)[output_order]
        return pa.Table.from_arrays([pa.array(numbers) for numbers in values], schema=self.schema)


def plan_small_merge(
    schema: pa.Schema, keys: Sequence[str], merges: Sequence[tuple[str, str]]
) -> SmallMerge | None:
    """Return how NumPy merges tables of a schema; None if it has no function for a column."""
    supported = all(kernel in _UFUNCS for _, kernel in merges)
    if not supported or any(data_type != _INT for data_type in schema.types):
        return None
    assert len(keys) + len(merges) == len(schema), "every column is a key or merged"
    ufuncs = ((schema.get_field_index(name), _UFUNCS[kernel]) for name, kernel in merges)
    return SmallMerge(schema, tuple(schema.get_field_index(key) for key in keys), tuple(ufuncs))


# ---- Hashing: 64 bits per key, the same on every machine and in every version
#
# The hash decides in which key group the state of a key is stored, so it must never change. Keys
# that are equal, as in `canonicalize`, have equal hashes: both zeros, all NaN, and maps with the
# same entries in any order.

Words = npt.NDArray[np.uint64]
_NULL = np.uint64(0x9E37_79B9_7F4A_7C15)
_WORD_BYTES = 8
_SLICE_ROWS = 65_536
# The bits of the last word that belong to the value, by its number of bytes; 0 stands for eight.
_LAST_WORD_MASKS: Words = np.array(
    [2**64 - 1, *(2 ** (8 * count) - 1 for count in range(1, 8))], np.uint64
)


def hash_rows(columns: Sequence[Column], rows: int) -> Ints:
    """Hash every row of these columns."""
    return _hash_columns(columns, rows).view(np.int64)


def mix_bits(words: Words) -> Words:
    """Apply the finalizer of splitmix64: every input bit affects every output bit."""
    words = words + _NULL
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return words ^ (words >> np.uint64(31))


def _hash_columns(columns: Sequence[Column], rows: int) -> Words:
    hashes: Words = np.full(rows, len(columns), np.uint64)
    for column in columns:
        hashes = mix_bits(hashes ^ mix_bits(_value_words(as_array(column))))
    return hashes


def _value_words(array: pa.Array) -> Words:
    """Return 64 bits per value, which the caller must mix."""
    data_type = array.type
    if pa.types.is_null(data_type):
        return np.full(len(array), _NULL, np.uint64)
    if pa.types.is_nested(data_type):
        words = _nested_words(array)
    elif _is_bytes(data_type):
        words = _byte_words(array)
    else:
        words = _number_words(array)
    if array.null_count:
        words = np.where(pc.is_null(array).to_numpy(zero_copy_only=False), _NULL, words)
    return words


def _number_words(array: pa.Array) -> Words:
    """Hash types that fit a 64-bit number: numbers, booleans, dates and times."""
    data_type = array.type
    if pa.types.is_floating(data_type):
        doubles = canonicalize(pc.fill_null(pc.cast(array, pa.float64()), 0.0))
        return _as_words(doubles)
    if pa.types.is_date32(data_type) or pa.types.is_time32(data_type):
        array = pc.cast(array, pa.int32())
    return _as_words(pc.fill_null(pc.cast(array, pa.int64(), safe=False), 0))


def _as_words(column: Column) -> Words:
    words: Words = as_array(column).to_numpy(zero_copy_only=False).view(np.uint64)
    return words


def _nested_words(array: pa.Array) -> Words:
    """Hash structs by field, arrays by element and index, and maps by entry in any order."""
    data_type = array.type
    if pa.types.is_struct(data_type):
        return _hash_columns(array.flatten(), len(array))
    lengths, values = flatten_lists(array)
    ends = np.cumsum(lengths)
    elements = mix_bits(_value_words(values))
    if not pa.types.is_map(data_type):
        elements = mix_bits(elements ^ _index_words(lengths, ends))
    return _sum_words(elements, lengths, ends, lengths)


def _byte_words(array: pa.Array) -> Words:
    """Hash text, binary and decimals, in slices that fit the processor's cache."""
    starts = range(0, len(array), _SLICE_ROWS)
    slices = [_slice_byte_words(array.slice(start, _SLICE_ROWS)) for start in starts]
    return np.concatenate([np.zeros(0, np.uint64), *slices])


def _slice_byte_words(array: pa.Array) -> Words:
    """Hash values as words of eight bytes, each mixed with its index in the value."""
    starts, lengths, data = _byte_ranges(array)
    counts = (lengths + 7) >> 3
    ends = np.cumsum(counts)
    # A word can start at any byte, and the last word of the data can extend beyond its end.
    padded = np.zeros(len(data) + _WORD_BYTES, np.uint8)
    padded[: len(data)] = data
    unaligned = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))
    words = unaligned[np.repeat(starts, counts) + _indices(counts, ends) * _WORD_BYTES]
    not_empty = counts > 0
    words[ends[not_empty] - 1] &= _LAST_WORD_MASKS[lengths[not_empty] & 7]
    return _sum_words(mix_bits(words ^ _index_words(counts, ends)), counts, ends, lengths)


def _byte_ranges(array: pa.Array) -> tuple[Ints, Ints, npt.NDArray[np.uint8]]:
    """Return where the bytes of each value start, how many they are, and all bytes."""
    first, rows = array.offset, len(array)
    if _has_fixed_width(array.type):
        width = array.type.byte_width
        data = np.frombuffer(array.buffers()[1], np.uint8)[first * width : (first + rows) * width]
        return np.arange(rows) * width, np.full(rows, width, np.int64), data
    array = array.cast(pa.large_binary())
    first = array.offset
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[first : first + rows + 1]
    used_bytes = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    return ends[:-1] - ends[0], np.diff(ends), used_bytes


def _has_fixed_width(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_decimal(data_type)
        or pa.types.is_fixed_size_binary(data_type)
        or pa.types.is_interval(data_type)
    )


def _is_bytes(data_type: pa.DataType) -> bool:
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return _has_fixed_width(data_type) or any(is_kind(data_type) for is_kind in (*text, *binary))


def _index_words(counts: Ints, ends: Ints) -> Words:
    """Return the index of each part within its value, as mixed bits."""
    mixed = mix_bits(np.arange(int(counts.max(initial=0)), dtype=np.uint64))
    return mixed[_indices(counts, ends)]


def _indices(counts: Ints, ends: Ints) -> Ints:
    """Return the index of each part within its value.

    `counts` has the number of parts of each value, `ends` their running total.
    """
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)


def _sum_words(parts: Words, counts: Ints, ends: Ints, lengths: Ints) -> Words:
    """Add up the parts of each value and mix in its length."""
    totals = np.concatenate((np.zeros(1, np.uint64), np.cumsum(parts, dtype=np.uint64)))
    sums: Words = totals[ends] - totals[ends - counts]
    return sums ^ mix_bits(lengths.astype(np.uint64))
