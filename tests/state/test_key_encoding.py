"""Order-preserving encoding of keys, and key groups."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.state import keyed_state as keys
from tidegate.state.keyed_state import FullKey, decode_key, encode_key, key_group_of, murmur3

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
COLUMNS = (INT64, st.text(), st.binary(), FLOATS, st.booleans())
# Escaping concerns bytes 0 and 255.
AWKWARD_BYTES = st.lists(st.sampled_from([0, 1, 2, 254, 255])).map(bytes)
NAMES = st.one_of(st.text(max_size=4), st.text("\x00\x01a", max_size=4))
FULL_KEYS = st.builds(
    FullKey,
    st.one_of(st.sampled_from([0, 1, 255, 256, 2**32 - 1]), st.integers(0, 2**32 - 1)),
    st.one_of(st.sampled_from([0, 63, 64, 255, 256, 65535]), st.integers(0, 65535)),
    NAMES,
    st.one_of(st.binary(max_size=4), AWKWARD_BYTES),
)


def comparable(parts: tuple[keys.KeyPart, ...]) -> tuple[tuple[int, object], ...]:
    """Return a tuple that Python can compare even if some parts are None."""
    return tuple((0, 0) if part is None else (1, part) for part in parts)


@st.composite
def two_keys_of_one_table(draw: st.DrawFn) -> list[tuple[keys.KeyPart, ...]]:
    columns = draw(st.lists(st.sampled_from(COLUMNS), max_size=4))
    one = st.tuples(*(st.none() | column for column in columns))
    first, second = draw(one), draw(one)
    shared = draw(st.integers(0, len(columns)))
    return [first, first[:shared] + second[shared:]]


@given(two_keys_of_one_table())
@example([("a",), ("a\x00",)])
@example([(b"", 1), (b"\x00", 0)])
@example([(-math.inf,), (-1e-300,)])
@example([(-(2**63),), (2**63 - 1,)])
def test_encoded_keys_sort_like_tuples(pair: list[tuple[keys.KeyPart, ...]]) -> None:
    first, second = pair
    assert (encode_key(first) < encode_key(second)) == (comparable(first) < comparable(second))
    assert (encode_key(first) == encode_key(second)) == (comparable(first) == comparable(second))


@given(st.lists(st.one_of(st.none(), *COLUMNS)).map(tuple))
def test_user_key_round_trips_with_types(parts: tuple[keys.KeyPart, ...]) -> None:
    decoded = decode_key(encode_key(parts))
    assert decoded == parts
    assert [type(part) for part in decoded] == [type(part) for part in parts]


@given(st.lists(INT64, min_size=1), st.lists(INT64))
def test_encoding_of_prefix_is_prefix_of_encoding(start: list[int], more: list[int]) -> None:
    longer = encode_key((*start, *more))
    assert longer.startswith(encode_key(tuple(start)))


def test_null_sorts_before_every_value() -> None:
    lowest = (-(2**63), "", b"", -math.inf, False)
    assert all(encode_key((None,)) < encode_key((value,)) for value in lowest)


def test_all_nan_are_one_key_after_infinity() -> None:
    other_nan = float.fromhex("-0x0p0") * math.inf
    assert math.isnan(other_nan)
    assert encode_key((math.nan,)) == encode_key((other_nan,)) == encode_key((-math.nan,))
    assert encode_key((math.inf,)) < encode_key((math.nan,))
    assert math.isnan(decode_key(encode_key((math.nan,)))[0])  # type: ignore[arg-type]


def test_negative_zero_equals_zero() -> None:
    assert encode_key((-0.0,)) == encode_key((0.0,))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_rejects_integers_beyond_64_bits(value: int) -> None:
    with pytest.raises(OverflowError):
        encode_key((value,))


def test_rejects_unsupported_types() -> None:
    with pytest.raises(TypeError, match="list"):
        encode_key(([1],))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "damaged", [b"\x09", b"\x00", b"\x05\x80", b"\x04", b"\x06abc", b"\x07\x00\xff"]
)
def test_rejects_malformed_keys(damaged: bytes) -> None:
    with pytest.raises(ValueError, match=r"at [01]"):
        decode_key(damaged)


@given(FULL_KEYS)
def test_full_key_round_trips(key: FullKey) -> None:
    assert keys.decode_full_key(keys.encode_full_key(key)) == key


@given(FULL_KEYS, FULL_KEYS, st.integers(0, 3))
def test_full_keys_sort_by_operator_group_name_and_user_key(
    first: FullKey, other: FullKey, shared: int
) -> None:
    parts = [vars(key).values() for key in (first, other)]
    second = FullKey(*[*parts[0]][:shared], *[*parts[1]][shared:])
    by_bytes = keys.encode_full_key(first) < keys.encode_full_key(second)
    assert by_bytes == (tuple(vars(first).values()) < tuple(vars(second).values()))


def test_layout_of_full_key() -> None:
    key = FullKey(0x01020304, 0x0506, "n\x00", b"user")
    assert keys.encode_full_key(key) == b"\x01\x02\x03\x04\x05\x06" + b"n\x00\xff\x00\x01" + b"user"


@pytest.mark.parametrize("damaged", [b"", b"\0\0\0\0\0", b"\0\0\0\0\0\0name"])
def test_rejects_malformed_full_keys(damaged: bytes) -> None:
    with pytest.raises(ValueError):
        keys.decode_full_key(damaged)


@given(st.one_of(st.binary(), AWKWARD_BYTES), st.one_of(st.binary(), AWKWARD_BYTES))
def test_prefix_end_is_smallest_key_after_prefix(prefix: bytes, more: bytes) -> None:
    end = keys.prefix_end(prefix)
    assert (end is None) == (prefix.strip(b"\xff") == b"")
    assert end is None or prefix + more < end
    if end is not None and not more.startswith(prefix):
        assert (more < prefix) or (more >= end)


@given(FULL_KEYS, FULL_KEYS, st.integers(0, 65536), st.integers(0, 65536))
def test_group_range_contains_exactly_its_keys(
    key: FullKey, other: FullKey, one: int, two: int
) -> None:
    first, last = sorted((one, two))
    start, end = keys.group_range(key.operator_id, first, last)
    for candidate in (key, other):
        raw = keys.encode_full_key(candidate)
        is_in_range = (
            candidate.operator_id == key.operator_id and first <= candidate.key_group < last
        )
        assert (start <= raw and (end is None or raw < end)) == is_in_range


# Published with the reference implementation and its widely used ports.
VECTORS = [
    (b"", 0, 0x00000000),
    (b"", 1, 0x514E28B7),
    (b"", 0xFFFFFFFF, 0x81F16F39),
    (b"\xff\xff\xff\xff", 0, 0x76293B50),
    (b"\x21\x43\x65\x87", 0, 0xF55B516B),
    (b"\x21\x43\x65\x87", 0x5082EDEE, 0x2362F9DE),
    (b"\x21\x43\x65", 0, 0x7E4A8634),
    (b"\x21\x43", 0, 0xA0F7B07A),
    (b"\x21", 0, 0x72661CF4),
    (b"\x00\x00\x00\x00", 0, 0x2362F9DE),
    (b"\x00\x00\x00", 0, 0x85F0B427),
    (b"\x00\x00", 0, 0x30F4C306),
    (b"\x00", 0, 0x514E28B7),
    (b"test", 0, 0xBA6BD213),
    (b"Hello, world!", 0, 0xC0363E43),
    (b"The quick brown fox jumps over the lazy dog", 0, 0x2E4FF723),
    (b"Hello, world!", 0x9747B28C, 0x24884CBA),
    (b"The quick brown fox jumps over the lazy dog", 0x9747B28C, 0x2FA826CD),
]


@pytest.mark.parametrize(("data", "seed", "expected"), VECTORS)
def test_murmur3_returns_published_values(data: bytes, seed: int, expected: int) -> None:
    assert murmur3(data, seed) == expected


def test_key_group_is_murmur3_modulo_number_of_groups() -> None:
    assert key_group_of(b"test") == 0xBA6BD213 % 128
    assert key_group_of(b"test", 16) == 0xBA6BD213 % 16


def test_keys_are_distributed_evenly() -> None:
    counts = [0] * 128
    for number in range(12_800):
        counts[key_group_of(encode_key((number,)))] += 1
    assert 50 < min(counts) <= max(counts) < 200
