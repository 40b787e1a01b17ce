"""A hash of keys of any type, the same on every machine and in every version.

It decides in which key group the state of a key lies, so it must never change. Keys that are equal
have equal hashes: one for both zeros, one for all NaN, and maps in whatever order they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.keys import Column, Ids, as_array, canonical, parts_of

Words = npt.NDArray[np.uint64]
_NULL = np.uint64(0x9E37_79B9_7F4A_7C15)
_WORD = 8
_SLICE = 65_536
# Which bits of the last word count, by how many bytes are in it; 0 stands for all eight.
_LAST: Words = np.array([2**64 - 1, *(2 ** (8 * count) - 1 for count in range(1, 8))], np.uint64)


def hash_of(columns: Sequence[Column], rows: int) -> npt.NDArray[np.int64]:
    """One hash per row."""
    return _combined(columns, rows).view(np.int64)


def mixed(words: Words) -> Words:
    """The finisher of splitmix64: every bit of the input reaches every bit of the output."""
    words = words + _NULL
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return words ^ (words >> np.uint64(31))


def _combined(columns: Sequence[Column], rows: int) -> Words:
    hashes: Words = np.full(rows, len(columns), np.uint64)
    for column in columns:
        hashes = mixed(hashes ^ mixed(_words(as_array(column))))
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
        doubles = canonical(pc.fill_null(pc.cast(array, pa.float64()), 0.0))
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
    lengths, values = parts_of(array)
    ends = np.cumsum(lengths)
    each = mixed(_words(values))
    if not pa.types.is_map(kind):
        each = mixed(each ^ _place_words(lengths, ends))
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
    return _sums(mixed(words ^ _place_words(counts, ends)), counts, ends, lengths)


def _extents(array: pa.Array) -> tuple[Ids, Ids, npt.NDArray[np.uint8]]:
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


def _place_words(counts: Ids, ends: Ids) -> Words:
    """For each part of a value mixed bits of its place in that value."""
    by_place = mixed(np.arange(int(counts.max(initial=0)), dtype=np.uint64))
    return by_place[_places(counts, ends)]


def _places(counts: Ids, ends: Ids) -> Ids:
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)


def _sums(each: Words, counts: Ids, ends: Ids, lengths: Ids) -> Words:
    """The sum of the parts of each value, with how long it is."""
    totals = np.concatenate((np.zeros(1, np.uint64), np.cumsum(each, dtype=np.uint64)))
    sums: Words = totals[ends] - totals[ends - counts]
    return sums ^ mixed(lengths.astype(np.uint64))
