"""A hash of keys of fixed width, the same on every machine and in every version.

It decides in which key group the state of a key lies, so it must never change. Keys with text in
them are hashed by Spark, which does it faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words = npt.NDArray[np.uint64]
_NULL = np.uint64(0x9E37_79B9_7F4A_7C15)


def has_fixed_width(kind: pa.DataType) -> bool:
    """Whether values of a type are whole numbers, or can be seen as such."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_float64(kind)
    )


def hash_of(columns: Sequence[pa.ChunkedArray], rows: int) -> npt.NDArray[np.int64]:
    """One hash a row."""
    hashes: Words = np.full(rows, len(columns), np.uint64)
    for column in columns:
        hashes = _mixed(hashes ^ _mixed(_words(column)))
    return hashes.view(np.int64)


def _words(column: pa.ChunkedArray) -> Words:
    missing = column.null_count
    if pa.types.is_float64(column.type):
        # Adding zero makes one zero of two; all NaN get the same bits.
        doubles = pc.fill_null(column, 0.0).to_numpy() + 0.0
        words = np.where(np.isnan(doubles), np.nan, doubles).view(np.uint64)
    elif pa.types.is_timestamp(column.type):
        words = pc.fill_null(pc.cast(column, pa.int64()), 0).to_numpy().view(np.uint64)
    else:
        whole = (
            pc.cast(pc.cast(column, pa.int32()), pa.int64())
            if pa.types.is_date32(column.type)
            else pc.cast(column, pa.int64())
        )
        words = (pc.fill_null(whole, 0) if missing else whole).to_numpy().view(np.uint64)
    if missing:
        words = np.where(pc.is_null(column).to_numpy(), _NULL, words)
    return words


def _mixed(words: Words) -> Words:
    """The finisher of splitmix64: every bit of the input reaches every bit of the output."""
    words = words + _NULL
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return words ^ (words >> np.uint64(31))
