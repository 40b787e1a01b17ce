"""The hash of keys: equal keys have equal ones, for ever, and both its halves are spread evenly."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.driving import B, D, L
from tidegate.operators.hashing import has_fixed_width, hash_of

DATE, TIME = pa.date32(), pa.timestamp("us", "UTC")
GOLDEN_LONGS = [
    627_405_149_472_732_430,
    -1_586_005_623_519_383_010,
    7_521_888_212_171_461_645,
    -3_367_409_060_305_705_028,
    6_728_581_669_027_343_264,
]
GOLDEN_ALL = [
    556_653_916_155_506_724,
    6_285_498_865_646_955_901,
    6_428_204_434_335_545_797,
    320_647_468_713_026_324,
    5_421_856_508_858_697_857,
]


def hashes(*columns: pa.Array) -> list[int]:
    chunked = [pa.chunked_array([column]) for column in columns]
    return [int(found) for found in hash_of(chunked, len(columns[0]))]


def test_hashes_never_change() -> None:
    """State lies where they say."""
    longs = pa.array([0, 1, -1, 2**63 - 1, None], L)
    doubles = pa.array([0.0, 1.5, float("nan"), float("inf"), None], D)
    days = pa.array([date(1970, 1, 2), date(1969, 12, 31), None, date(1, 1, 1), date.max], DATE)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    times = pa.array([epoch, None, epoch, epoch, epoch], TIME)
    flags = pa.array([True, False, None, True, False], B)
    assert hashes(longs) == GOLDEN_LONGS
    assert hashes(longs, doubles, days, times, flags) == GOLDEN_ALL


def test_zeros_and_nans_that_are_equal_have_equal_hashes() -> None:
    (other_nan,) = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))
    column = pa.array(np.array([0.0, -0.0, np.nan, -np.nan, other_nan]))
    zero, minus_zero, *nans = hashes(column)
    assert zero == minus_zero and len(set(nans)) == 1


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=1), st.data())
def test_a_hash_does_not_depend_on_other_rows(
    values: list[int | None], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(values)))
    chunks = pa.chunked_array([pa.array(values[:cut], L), pa.array(values[cut:], L)])
    together = hash_of([chunks], len(values)).tolist()
    assert together == [hashes(pa.array([value], L))[0] for value in values]


def test_the_order_of_columns_and_their_number_matter() -> None:
    one, two = pa.array([1], L), pa.array([2], L)
    assert len({hashes(one)[0], hashes(one, two)[0], hashes(two, one)[0], hashes(one, one)[0]}) == 4


def test_both_halves_are_spread_evenly() -> None:
    """The lower half chooses the key group, the upper one the part in it."""
    found = hash_of([pa.chunked_array([pa.array(np.arange(64_000))])], 64_000)
    for half in (found, found >> 32):
        counts = np.bincount(np.mod(half, 64))
        assert counts.min() > 800 and counts.max() < 1200


def test_text_and_decimals_are_left_to_spark() -> None:
    kinds = (L, pa.int8(), B, DATE, TIME, D)
    assert all(map(has_fixed_width, kinds))
    assert not any(map(has_fixed_width, (pa.string(), pa.decimal128(10, 2), pa.float32())))
