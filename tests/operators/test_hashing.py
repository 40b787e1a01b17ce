"""Hashes of keys: they never change, equal keys have equal hashes, and they are evenly distributed."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.harness import B, D, L
from tidegate.operators.kernels.keys import hash_rows

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
    return [int(value) for value in hash_rows(chunked, len(columns[0]))]


def test_hashes_never_change() -> None:
    """They decide in which key group state is stored."""
    longs = pa.array([0, 1, -1, 2**63 - 1, None], L)
    doubles = pa.array([0.0, 1.5, float("nan"), float("inf"), None], D)
    days = pa.array([date(1970, 1, 2), date(1969, 12, 31), None, date(1, 1, 1), date.max], DATE)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    times = pa.array([epoch, None, epoch, epoch, epoch], TIME)
    flags = pa.array([True, False, None, True, False], B)
    assert hashes(longs) == GOLDEN_LONGS
    assert hashes(longs, doubles, days, times, flags) == GOLDEN_ALL


def test_zeros_and_nans_have_equal_hashes() -> None:
    (other_nan,) = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))
    column = pa.array(np.array([0.0, -0.0, np.nan, -np.nan, other_nan]))
    zero, minus_zero, *nans = hashes(column)
    assert zero == minus_zero and len(set(nans)) == 1


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=1), st.data())
def test_hash_does_not_depend_on_other_rows(values: list[int | None], data: st.DataObject) -> None:
    split = data.draw(st.integers(0, len(values)))
    chunks = pa.chunked_array([pa.array(values[:split], L), pa.array(values[split:], L)])
    all_hashes = hash_rows([chunks], len(values)).tolist()
    assert all_hashes == [hashes(pa.array([value], L))[0] for value in values]


def test_hash_depends_on_order_and_number_of_columns() -> None:
    one, two = pa.array([1], L), pa.array([2], L)
    assert len({hashes(one)[0], hashes(one, two)[0], hashes(two, one)[0], hashes(one, one)[0]}) == 4


def test_both_halves_are_evenly_distributed() -> None:
    result = hash_rows([pa.chunked_array([pa.array(np.arange(64_000))])], 64_000)
    for half in (result, result >> 32):
        counts = np.bincount(np.mod(half, 64))
        assert counts.min() > 800 and counts.max() < 1200


NESTED = pa.struct([("a", L), ("b", pa.list_(pa.string()))])
MAP = pa.map_(pa.string(), D)
# Values of each type that Spark sends, and NULL.
GOLDEN: list[tuple[pa.DataType, list[Any], list[int]]] = [
    (pa.string(), ["", "a", "naïve", "longer than two words", None], [3_400_964_856_525_257_824, -5_777_231_956_989_992_864, 7_953_064_782_244_495_583, 4_789_468_111_813_970_540, 6_728_581_669_027_343_264]),
    (pa.binary(), [b"", b"\0", None], [3_400_964_856_525_257_824, 6_840_570_681_593_501_766, 6_728_581_669_027_343_264]),
    (pa.decimal128(10, 2), [Decimal("0.10"), Decimal("-99999999.99"), None], [1_809_521_043_626_039_031, -2_458_846_620_585_835_075, 6_728_581_669_027_343_264]),
    (pa.float32(), [0.1, -0.0, None], [-5_265_685_388_080_042_018, 627_405_149_472_732_430, 6_728_581_669_027_343_264]),
    (pa.int8(), [-128, 127, None], [5_181_055_118_266_526_991, -966_628_654_965_121_767, 6_728_581_669_027_343_264]),
    (pa.duration("us"), [timedelta(microseconds=1), timedelta(-1), None], [-1_586_005_623_519_383_010, -4_701_505_784_102_196_927, 6_728_581_669_027_343_264]),
    (pa.timestamp("us"), [datetime(1969, 12, 31), datetime(2024, 2, 29, 12), None], [-4_701_505_784_102_196_927, 7_624_688_837_931_158_187, 6_728_581_669_027_343_264]),
    (pa.null(), [None], [6_728_581_669_027_343_264]),
    (NESTED, [{"a": 1, "b": ["x", None]}, {"a": None, "b": None}, None], [-1_219_985_910_070_045_686, 1_064_923_019_698_097_144, 6_728_581_669_027_343_264]),
    (pa.list_(D), [[0.0, 1.5], [], None], [-1_068_464_585_448_139_743, 3_400_964_856_525_257_824, 6_728_581_669_027_343_264]),
    (MAP, [[("a", 0.0), ("b", None)], [], None], [-2_924_821_122_852_052_004, 3_400_964_856_525_257_824, 6_728_581_669_027_343_264]),
]  # fmt: skip


@pytest.mark.parametrize("kind, values, expected", GOLDEN, ids=lambda item: str(item)[:30])
def test_hashes_of_all_types_never_change(
    kind: pa.DataType, values: list[Any], expected: list[int]
) -> None:
    assert hashes(pa.array(values, kind)) == expected
    # A slice of a larger array has the same hashes.
    padded = pa.array([*values, *values], kind).slice(len(values))
    assert hashes(padded) == expected


def test_texts_with_other_lengths_bytes_or_order_have_other_hashes() -> None:
    texts = ["", "\0", "\0\0", "a", "a\0", "aa", "a" * 8, "a" * 9, "a" * 16, "a" * 17]
    texts += ["abcdefgh12345678", "12345678abcdefgh", "é", "e\u0301"]
    assert len(set(hashes(pa.array([*texts, None])))) == len(texts) + 1
    assert hashes(pa.array(texts)) == hashes(pa.array(texts, pa.large_string()))
    assert hashes(pa.array(texts)) == hashes(pa.array([t.encode() for t in texts], pa.binary()))


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=40)), min_size=1, max_size=30))
def test_hash_of_text_does_not_depend_on_other_rows(texts: list[str | None]) -> None:
    all_hashes = hashes(pa.array(texts, pa.string()))
    assert all_hashes == [hashes(pa.array([text], pa.string()))[0] for text in texts]
    assert len(set(all_hashes)) == len(set(texts))


def test_many_texts_are_evenly_distributed_without_collisions() -> None:
    texts = pa.array([f"user-{number}" for number in range(200_000)])
    result = hash_rows([texts], len(texts))
    assert len(np.unique(result)) == len(texts)
    for half in (result, result >> 32):
        counts = np.bincount(np.mod(half, 64))
        assert counts.min() > 2_800 and counts.max() < 3_450


def test_equal_nested_values_have_equal_hashes() -> None:
    zeros = pa.struct([("x", D), ("y", pa.list_(D))])
    one, other = hashes(pa.array([{"x": 0.0, "y": [-0.0]}, {"x": -0.0, "y": [0.0]}], zeros))
    assert one == other
    maps = [[("a", 0.0), ("b", 1.0)], [("b", 1.0), ("a", -0.0)], [("a", 1.0), ("b", 0.0)]]
    first, reordered, other_map = hashes(pa.array(maps, MAP))
    assert first == reordered != other_map


def test_arrays_with_other_order_or_length_have_other_hashes() -> None:
    lists = [[], [1], [1, 2], [2, 1], [1, 2, 0], [None], [None, None], None]
    assert len(set(hashes(pa.array(lists, pa.list_(L))))) == len(lists)
    structs = [{"a": None, "b": None}, None, {"a": None, "b": []}, {"a": 1, "b": ["x", "y"]}]
    assert len(set(hashes(pa.array(structs, NESTED)))) == len(structs)
