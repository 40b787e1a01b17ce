"""Which values are equal, and rows grouped by them, for every type of Arrow that Spark sends.

Two relations are used, and no third. *Equal* is what SQL means by it for keys: −0.0 equals 0.0, NaN
equals NaN, and a map does not depend on the order of its entries; `canonical` gives equal values
equal bits, also inside of structs, arrays and maps, and every operator applies it to its keys where
it reads them. *Identical* is what a retraction means: the row that was sent, with the sign of its
zeros. Groups are of identical values, so over canonical columns they are of equal ones.
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


# What is equal


def is_groupable(kind: pa.DataType) -> bool:
    """Whether values of a type can be keys; entries of a map need keys that have an order."""
    if pa.types.is_map(kind):
        return not pa.types.is_nested(kind.key_type) and is_groupable(kind.item_type)
    if pa.types.is_struct(kind):
        return all(is_groupable(field.type) for field in kind)
    if _is_list(kind):
        return is_groupable(kind.value_type)
    return not pa.types.is_nested(kind)


def is_comparable(kind: pa.DataType) -> bool:
    """Whether values of a type can be compared by =, as Spark has it: not if there is a map."""
    if pa.types.is_struct(kind):
        return all(is_comparable(field.type) for field in kind)
    if _is_list(kind):
        return is_comparable(kind.value_type)
    return not pa.types.is_nested(kind)


def canonicalize(column: Column) -> Column:
    """Values that are equal as keys get equal bits; what is shown of them is 0.0 and NaN."""
    kind = column.type
    if pa.types.is_floating(kind):
        return pc.add(unify_nan(column), pa.scalar(0.0, kind))
    return _canonical_nested(as_array(column)) if _has_synonyms(kind) else column


def unify_nan(column: Column) -> Column:
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
        children = [canonicalize(child) for child in array.flatten()]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)
    lengths, values = flatten_lists(array)
    offsets = np.zeros(len(lengths) + 1, np.int64 if pa.types.is_large_list(kind) else np.int32)
    np.cumsum(lengths, out=offsets[1:])
    if pa.types.is_map(kind):
        return _sorted_maps(kind, pa.array(offsets), lengths, values, missing)
    whole = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return whole.from_arrays(pa.array(offsets), canonicalize(values), type=kind, mask=missing)


def _sorted_maps(
    kind: pa.DataType, offsets: pa.Array, lengths: Ints, entries: pa.Array, missing: pa.Array
) -> pa.Array:
    """Entries in the order of their keys, as Spark shows a map by which it has grouped."""
    keys, items = (canonicalize(part) for part in entries.flatten())
    rows = np.repeat(np.arange(len(lengths)), lengths)
    order = pa.array(np.lexsort((dense_ranks(keys), rows)))
    keys, items = as_array(keys).take(order), as_array(items).take(order)
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=missing)


def flatten_lists(array: pa.Array) -> tuple[Ints, pa.Array]:
    """The elements of arrays or the entries of maps, end to end, and how many each row has."""
    if pa.types.is_map(array.type):
        entry = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
        array = array.cast(pa.list_(entry))
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return np.asarray(lengths, np.int64), array.flatten()


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def dense_ranks(column: Column) -> Ints:
    """A number per value of a flat type, in the order of the values; NaN is above all numbers."""
    values = as_array(column)
    found = pc.rank(values, sort_keys="ascending", tiebreaker="dense").to_numpy()
    found = found.astype(np.int64)
    if pa.types.is_floating(values.type):
        nan = pc.fill_null(pc.is_nan(values), False).to_numpy(zero_copy_only=False)
        found[nan] = len(values) + 1
    result: Ints = found
    return result


# What is identical


def to_groupable(column: Column) -> Column:
    """A column that Arrow can group by, identical where this one is; numbers for nested values."""
    if pa.types.is_nested(column.type):
        return pa.array(_nested_ids(as_array(column)))
    return unify_nan(column)


def _nested_ids(array: pa.Array) -> Ints:
    """A number per value, the same for identical ones: from the leaves up, level by level."""
    valid = pc.is_valid(array)
    if pa.types.is_struct(array.type):
        return _ids([valid, *(to_groupable(child) for child in array.flatten())])[0]
    lengths, values = flatten_lists(array)
    elements = _ids([to_groupable(values)])[0]
    # The numbers of the elements, as the bytes of one value per row.
    ends = np.concatenate(([0], np.cumsum(lengths))) * elements.itemsize
    buffers = [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(elements)]
    shuffle_schemas = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(array), buffers)
    return _ids([valid, shuffle_schemas])[0]


def _ids(columns: Sequence[Column]) -> tuple[Ints, int]:
    """A number per row, the same where all of these flat columns are the same, and how many."""
    rows = len(columns[0])
    names = [f"c{place}" for place, _ in enumerate(columns)]
    table = pa.table([*columns, pa.array(np.arange(rows))], names=[*names, _ROW])
    grouped = table.group_by(names, use_threads=False).aggregate([(_ROW, "list")])
    return invert_groups(grouped.column(len(names)), rows), grouped.num_rows


def invert_groups(lists: Column, rows: int) -> Ints:
    """From the rows of every group to the group of every row."""
    array = as_array(lists)
    ids = np.empty(rows, np.int64)
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    ids[array.flatten().to_numpy()] = np.repeat(np.arange(len(array)), lengths)
    return ids


def group_ids(table: pa.Table, keys: Sequence[str]) -> tuple[Ints, int]:
    """A number per row, the same for rows whose keys are identical, and how many there are."""
    return _ids([to_groupable(table.column(key)) for key in keys])


def find_rows(table: pa.Table, rows: pa.Table, keys: Sequence[str]) -> Ints:
    """For each of `rows` the place in `table` of the row with the same keys, or −1."""
    both = pa.concat_tables([table.select(keys), rows.select(keys)])
    ids, count = group_ids(both, keys)
    places = np.full(count, -1, np.int64)
    places[ids[: table.num_rows]] = np.arange(table.num_rows)
    found: Ints = places[ids[table.num_rows :]]
    return found


def merge_rows(table: pa.Table, keys: Sequence[str], merges: list[tuple[str, str]]) -> pa.Table:
    """One row per key; the named columns are merged by kernels of Arrow and keep their names."""
    nested = [key for key in keys if pa.types.is_nested(table.schema.field(key).type)]
    names = [*keys, *(name for name, _ in merges)]
    if not nested:
        return _aggregated(table, tuple(keys), tuple(merges)).select(names)
    rows = table.append_column(_ROW, pa.array(np.arange(table.num_rows)))
    for key in nested:
        rows = rows.set_column(
            rows.schema.get_field_index(key), key, to_groupable(table.column(key))
        )
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
    return as_array(unify_nan(column)).view(whole)


# ---- Merging a few rows of whole numbers: Arrow needs longer for a plan than numpy for all of it.

# Above that Arrow is faster.
MAX_SMALL_ROWS = 1_000
_WHOLE = pa.int64()
# They give what the kernels of Arrow with these names give.
_FOLDS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True)
class SmallMerge:
    """How tables of one shape are merged: by which columns, and the others by which function."""

    schema: pa.Schema
    keys: tuple[int, ...]
    folds: tuple[tuple[int, np.ufunc], ...]

    def merge(self, table: pa.Table) -> pa.Table | None:
        """One row per key, in the order of first rows; None if a plan of Arrow must do it."""
        if table.num_rows > MAX_SMALL_ROWS:
            return None
        columns = table.columns
        if any(column.null_count for column in columns):
            return None
        values = [column.to_numpy() for column in columns]
        # What all rows share sorts nothing: a window that closes is one pane.
        by = [values[key] for key in self.keys]
        by = [numbers for numbers in by if (numbers != numbers[0]).any()]
        order = np.lexsort(by[::-1]) if by else np.arange(table.num_rows)
        new = np.zeros(table.num_rows, np.bool_)
        new[0] = True
        for numbers in by:
            placed = numbers[order]
            new[1:] |= placed[1:] != placed[:-1]
        starts = np.flatnonzero(new)
        shown = np.argsort(order[starts])
        firsts = order[starts][shown]
        for key in self.keys:
            values[key] = values[key][firsts]
        for place, fold in self.folds:
            values[place] = fold.reduceat(values[place][order], starts)[shown]
        return pa.Table.from_arrays([pa.array(numbers) for numbers in values], schema=self.schema)


def plan_small_merge(
    schema: pa.Schema, keys: Sequence[str], merges: Sequence[tuple[str, str]]
) -> SmallMerge | None:
    """A merge of all columns of a schema, if they are whole numbers that numpy can merge."""
    known = all(kernel in _FOLDS for _, kernel in merges)
    if not known or any(kind != _WHOLE for kind in schema.types):
        return None
    assert len(keys) + len(merges) == len(schema), "every column is a key or merged"
    folds = ((schema.get_field_index(name), _FOLDS[kernel]) for name, kernel in merges)
    return SmallMerge(schema, tuple(schema.get_field_index(key) for key in keys), tuple(folds))


# ---- A hash of keys of any type, the same on every machine and in every version.
#
# It decides in which key group the state of a key lies, so it must never change. Keys that are equal
# have equal hashes: one for both zeros, one for all NaN, and maps in whatever order they are.

Words = npt.NDArray[np.uint64]
_NULL = np.uint64(0x9E37_79B9_7F4A_7C15)
_WORD = 8
_SLICE = 65_536
# Which bits of the last word count, by how many bytes are in it; 0 stands for all eight.
_LAST: Words = np.array([2**64 - 1, *(2 ** (8 * count) - 1 for count in range(1, 8))], np.uint64)


def hash_rows(columns: Sequence[Column], rows: int) -> npt.NDArray[np.int64]:
    """One hash per row."""
    return _combined(columns, rows).view(np.int64)


def mix_bits(words: Words) -> Words:
    """The finisher of splitmix64: every bit of the input reaches every bit of the output."""
    words = words + _NULL
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return words ^ (words >> np.uint64(31))


def _combined(columns: Sequence[Column], rows: int) -> Words:
    hashes: Words = np.full(rows, len(columns), np.uint64)
    for column in columns:
        hashes = mix_bits(hashes ^ mix_bits(_words(as_array(column))))
    return hashes


def _words(array: pa.Array) -> Words:
    """64 bits per value, which still have to be mixed."""
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), _NULL, np.uint64)
    if pa.types.is_nested(kind):
        words = _nested(array)
    elif _is_bytes(kind):
        words = _bytes(array)
    else:
        words = _whole(array)
    if array.null_count:
        words = np.where(pc.is_null(array).to_numpy(zero_copy_only=False), _NULL, words)
    return words


def _whole(array: pa.Array) -> Words:
    """Values that are a number of at most 64 bits, or can be seen as one."""
    kind = array.type
    if pa.types.is_floating(kind):
        doubles = canonicalize(pc.fill_null(pc.cast(array, pa.float64()), 0.0))
        return _as_words(doubles)
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        array = pc.cast(array, pa.int32())
    return _as_words(pc.fill_null(pc.cast(array, pa.int64(), safe=False), 0))


def _as_words(column: Column) -> Words:
    words: Words = as_array(column).to_numpy(zero_copy_only=False).view(np.uint64)
    return words


def _nested(array: pa.Array) -> Words:
    """Structs by their fields, arrays by elements and places, maps by entries in any order."""
    kind = array.type
    if pa.types.is_struct(kind):
        return _combined(array.flatten(), len(array))
    lengths, values = flatten_lists(array)
    ends = np.cumsum(lengths)
    each = mix_bits(_words(values))
    if not pa.types.is_map(kind):
        each = mix_bits(each ^ _place_words(lengths, ends))
    return _sums(each, lengths, ends, lengths)


def _bytes(array: pa.Array) -> Words:
    """Text, binary and decimals, so many rows at a time that they stay in the processor's cache."""
    slices = [_some_bytes(array.slice(row, _SLICE)) for row in range(0, len(array), _SLICE)]
    return np.concatenate([np.zeros(0, np.uint64), *slices])


def _some_bytes(array: pa.Array) -> Words:
    """Words of eight bytes by what they are and where they stand in their value."""
    starts, lengths, data = _extents(array)
    counts = (lengths + 7) >> 3
    ends = np.cumsum(counts)
    # A word may begin at any byte, and the last one may reach beyond the end.
    padded = np.zeros(len(data) + _WORD, np.uint8)
    padded[: len(data)] = data
    anywhere = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))
    words = anywhere[np.repeat(starts, counts) + _places(counts, ends) * _WORD]
    some = counts > 0
    words[ends[some] - 1] &= _LAST[lengths[some] & 7]
    return _sums(mix_bits(words ^ _place_words(counts, ends)), counts, ends, lengths)


def _extents(array: pa.Array) -> tuple[Ints, Ints, npt.NDArray[np.uint8]]:
    """Where the bytes of each value begin, how many they are, and all bytes."""
    first, rows = array.offset, len(array)
    if _has_fixed_bytes(array.type):
        width = array.type.byte_width
        data = np.frombuffer(array.buffers()[1], np.uint8)[first * width : (first + rows) * width]
        return np.arange(rows) * width, np.full(rows, width, np.int64), data
    array = array.cast(pa.large_binary())
    first = array.offset
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[first : first + rows + 1]
    held = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    return ends[:-1] - ends[0], np.diff(ends), held


def _has_fixed_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_interval(kind)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return _has_fixed_bytes(kind) or any(is_kind(kind) for is_kind in (*text, *binary))


def _place_words(counts: Ints, ends: Ints) -> Words:
    """For each part of a value mixed bits of its place in that value."""
    by_place = mix_bits(np.arange(int(counts.max(initial=0)), dtype=np.uint64))
    return by_place[_places(counts, ends)]


def _places(counts: Ints, ends: Ints) -> Ints:
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)


def _sums(each: Words, counts: Ints, ends: Ints, lengths: Ints) -> Words:
    """The sum of the parts of each value, with how long it is."""
    totals = np.concatenate((np.zeros(1, np.uint64), np.cumsum(each, dtype=np.uint64)))
    sums: Words = totals[ends] - totals[ends - counts]
    return sums ^ mix_bits(lengths.astype(np.uint64))
