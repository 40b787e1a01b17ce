"""Keys as bytes: they sort like what they stand for and come back as they were."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from tidegate.state import keyed_state as keys
from tidegate.state.keyed_state import FullKey, decode_key, encode_key, key_group_of, murmur3

INT64 = some.integers(-(2**63), 2**63 - 1)
FLOATS = some.floats(allow_nan=False)
COLUMNS = (INT64, some.text(), some.binary(), FLOATS, some.booleans())
# Zero and 255 are what escaping is about.
AWKWARD_BYTES = some.lists(some.sampled_from([0, 1, 2, 254, 255])).map(bytes)
NAMES = some.one_of(some.text(max_size=4), some.text("\x00\x01a", max_size=4))
FULL_KEYS = some.builds(
    FullKey,
    some.one_of(some.sampled_from([0, 1, 255, 256, 2**32 - 1]), some.integers(0, 2**32 - 1)),
    some.one_of(some.sampled_from([0, 63, 64, 255, 256, 65535]), some.integers(0, 65535)),
    NAMES,
    some.one_of(some.binary(max_size=4), AWKWARD_BYTES),
)


def rank(parts: tuple[keys.KeyPart, ...]) -> tuple[tuple[int, object], ...]:
    """A tuple that Python can compare although some parts are null."""
    return tuple((0, 0) if part is None else (1, part) for part in parts)


@some.composite
def two_keys_of_one_table(draw: some.DrawFn) -> list[tuple[keys.KeyPart, ...]]:
    columns = draw(some.lists(some.sampled_from(COLUMNS), max_size=4))
    one = some.tuples(*(some.none() | column for column in columns))
    first, second = draw(one), draw(one)
    shared = draw(some.integers(0, len(columns)))
    return [first, first[:shared] + second[shared:]]


@given(two_keys_of_one_table())
@example([("a",), ("a\x00",)])
@example([(b"", 1), (b"\x00", 0)])
@example([(-math.inf,), (-1e-300,)])
@example([(-(2**63),), (2**63 - 1,)])
def test_user_keys_sort_like_their_tuples(pair: list[tuple[keys.KeyPart, ...]]) -> None:
    first, second = pair
    assert (encode_key(first) < encode_key(second)) == (rank(first) < rank(second))
    assert (encode_key(first) == encode_key(second)) == (rank(first) == rank(second))


@given(some.lists(some.one_of(some.none(), *COLUMNS)).map(tuple))
def test_user_keys_come_back_with_their_types(parts: tuple[keys.KeyPart, ...]) -> None:
    back = decode_key(encode_key(parts))
    assert back == parts
    assert [type(part) for part in back] == [type(part) for part in parts]


@given(some.lists(INT64, min_size=1), some.lists(INT64))
def test_a_shorter_key_sorts_before_the_longer_ones_it_begins(
    start: list[int], more: list[int]
) -> None:
    longer = encode_key((*start, *more))
    assert longer.startswith(encode_key(tuple(start)))


def test_null_sorts_before_every_value() -> None:
    lowest = (-(2**63), "", b"", -math.inf, False)
    assert all(encode_key((None,)) < encode_key((value,)) for value in lowest)


def test_not_a_number_is_one_key_after_infinity() -> None:
    other_nan = float.fromhex("-0x0p0") * math.inf
    assert math.isnan(other_nan)
    assert encode_key((math.nan,)) == encode_key((other_nan,)) == encode_key((-math.nan,))
    assert encode_key((math.inf,)) < encode_key((math.nan,))
    assert math.isnan(decode_key(encode_key((math.nan,)))[0])  # type: ignore[arg-type]


def test_negative_zero_is_zero() -> None:
    assert encode_key((-0.0,)) == encode_key((0.0,))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_integers_beyond_64_bits_are_rejected(value: int) -> None:
    with pytest.raises(OverflowError):
        encode_key((value,))


def test_other_types_are_rejected_by_name() -> None:
    with pytest.raises(TypeError, match="list"):
        encode_key(([1],))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "damaged", [b"\x09", b"\x00", b"\x05\x80", b"\x04", b"\x06abc", b"\x07\x00\xff"]
)
def test_bytes_that_are_no_key_are_rejected(damaged: bytes) -> None:
    with pytest.raises(ValueError, match=r"at [01]"):
        decode_key(damaged)


@given(FULL_KEYS)
def test_full_keys_come_back(key: FullKey) -> None:
    assert keys.decode_full(keys.encode_full(key)) == key


@given(FULL_KEYS, FULL_KEYS, some.integers(0, 3))
def test_full_keys_sort_by_operator_group_name_and_user_key(
    first: FullKey, other: FullKey, shared: int
) -> None:
    parts = [vars(key).values() for key in (first, other)]
    second = FullKey(*[*parts[0]][:shared], *[*parts[1]][shared:])
    by_bytes = keys.encode_full(first) < keys.encode_full(second)
    assert by_bytes == (tuple(vars(first).values()) < tuple(vars(second).values()))


def test_the_layout_of_a_full_key() -> None:
    key = FullKey(0x01020304, 0x0506, "n\x00", b"user")
    assert keys.encode_full(key) == b"\x01\x02\x03\x04\x05\x06" + b"n\x00\xff\x00\x01" + b"user"


@pytest.mark.parametrize("damaged", [b"", b"\0\0\0\0\0", b"\0\0\0\0\0\0name"])
def test_bytes_that_are_no_full_key_are_rejected(damaged: bytes) -> None:
    with pytest.raises(ValueError):
        keys.decode_full(damaged)


@given(some.one_of(some.binary(), AWKWARD_BYTES), some.one_of(some.binary(), AWKWARD_BYTES))
def test_the_end_of_a_prefix_is_after_all_that_begin_with_it(prefix: bytes, more: bytes) -> None:
    end = keys.prefix_end(prefix)
    assert (end is None) == (prefix.strip(b"\xff") == b"")
    assert end is None or prefix + more < end
    if end is not None and not more.startswith(prefix):
        assert (more < prefix) or (more >= end)


@given(FULL_KEYS, FULL_KEYS, some.integers(0, 65536), some.integers(0, 65536))
def test_a_range_of_key_groups_holds_exactly_their_keys(
    key: FullKey, other: FullKey, one: int, two: int
) -> None:
    first, last = sorted((one, two))
    start, end = keys.group_range(key.operator_id, first, last)
    for candidate in (key, other):
        raw = keys.encode_full(candidate)
        inside = candidate.operator_id == key.operator_id and first <= candidate.key_group < last
        assert (start <= raw and (end is None or raw < end)) == inside


# Published with the reference implementation and in widely used ports of it.
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
def test_murmur3_gives_the_published_values(data: bytes, seed: int, expected: int) -> None:
    assert murmur3(data, seed) == expected


def test_the_key_group_is_murmur3_modulo_128() -> None:
    assert key_group_of(b"test") == 0xBA6BD213 % 128
    assert key_group_of(b"test", 16) == 0xBA6BD213 % 16


def test_key_groups_are_used_evenly() -> None:
    counts = [0] * 128
    for number in range(12_800):
        counts[key_group_of(encode_key((number,)))] += 1
    assert 50 < min(counts) <= max(counts) < 200
