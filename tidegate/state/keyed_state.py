"""Keyed state on a state backend: a value, a list, a sorted map, or a reduced value per key.

Pipelines do not use this module yet; it is meant for process functions, which handle keys one by
one. A state object is bound to one name and one user key. It is cheap to create, because all data
is in the backend. A name must be used with one kind of state only.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tidegate.state.state_file import StateBackend

# ---- Keys: order-preserving encodings
#
# In the memory store, a full key is `[operator id 4 B | key group 2 B | state name | user key]`. An
# operator, a range of its key groups and one state of a key group are therefore contiguous ranges
# of keys. A user key encodes a tuple of column values.

KeyPart = int | str | bytes | float | bool | None

KEY_GROUPS = 128
KEY_GROUPS_MAX = 1 << 16
OPERATORS_MAX = 1 << 32

_WORD = 0xFFFFFFFF
_SIGN = 1 << 63
_PREFIX_BYTES = 6
# A zero byte is escaped with two bytes. The terminator sorts before the escape.
_ZERO, _ZERO_ESCAPED, _END = b"\x00", b"\x00\xff", b"\x00\x01"


@dataclass(frozen=True)
class FullKey:
    """The parts of a full key."""

    operator_id: int
    key_group: int
    name: str
    user_key: bytes


def delimit(raw: bytes) -> bytes:
    """Escape and terminate bytes, so that more bytes may follow; preserves the order."""
    return raw.replace(_ZERO, _ZERO_ESCAPED) + _END


def undelimit(data: bytes, start: int = 0) -> tuple[bytes, int]:
    """Decode the delimited bytes at `start`; return them and the position after them."""
    end = data.find(_END, start)
    if end < 0:
        raise ValueError(f"missing terminator of the bytes at {start}")
    return data[start:end].replace(_ZERO_ESCAPED, _ZERO), end + len(_END)


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the smallest key after all keys with this prefix, or None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def group_prefix(operator_id: int, key_group: int) -> bytes:
    """Return the prefix of all keys of an operator in a key group."""
    assert 0 <= operator_id < OPERATORS_MAX, f"operator id {operator_id} out of range"
    assert 0 <= key_group < KEY_GROUPS_MAX, f"key group {key_group} out of range"
    return ((operator_id << 16) | key_group).to_bytes(_PREFIX_BYTES, "big")


def name_prefix(operator_id: int, key_group: int, name: str) -> bytes:
    """Return the prefix of all keys of one named state in a key group."""
    return group_prefix(operator_id, key_group) + delimit(name.encode())


def group_range(operator_id: int, first: int, last: int) -> tuple[bytes, bytes | None]:
    """Return start and end of the keys of an operator in the key groups [first, last)."""
    assert 0 <= first <= last <= KEY_GROUPS_MAX, f"key groups [{first}, {last}) out of range"
    if first == last:
        return b"", b""
    return group_prefix(operator_id, first), prefix_end(group_prefix(operator_id, last - 1))


def encode_full_key(key: FullKey) -> bytes:
    """Encode a full key."""
    return name_prefix(key.operator_id, key.key_group, key.name) + key.user_key


def decode_full_key(data: bytes) -> FullKey:
    """Decode a full key; raise `ValueError` if it is malformed."""
    if len(data) < _PREFIX_BYTES:
        raise ValueError("a full key starts with an operator id and a key group")
    operator_id, key_group = struct.unpack_from(">IH", data)
    name, end = undelimit(data, _PREFIX_BYTES)
    return FullKey(operator_id, key_group, name.decode(), data[end:])


def murmur3(data: bytes, seed: int = 0) -> int:
    """Return the 32-bit MurmurHash3 (x86 variant) as an unsigned integer."""
    mixed, aligned = seed, len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:aligned]):
        mixed ^= _scramble(word)
        mixed = ((mixed << 13) | (mixed >> 19)) & _WORD
        mixed = (mixed * 5 + 0xE6546B64) & _WORD
    mixed ^= _scramble(int.from_bytes(data[aligned:], "little")) ^ len(data)
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & _WORD
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & _WORD
    return mixed ^ (mixed >> 16)


def _scramble(word: int) -> int:
    word = (word * 0xCC9E2D51) & _WORD
    word = ((word << 15) | (word >> 17)) & _WORD
    return (word * 0x1B873593) & _WORD


def key_group_of(user_key: bytes, key_groups: int = KEY_GROUPS) -> int:
    """Return the key group of an encoded user key.

    Operators of queries use `hash_rows` of their key columns instead.
    """
    assert 0 < key_groups <= KEY_GROUPS_MAX, f"{key_groups} key groups"
    return murmur3(user_key) % key_groups


def _encode_float(value: float) -> bytes:
    """Encode a float. -0.0 equals 0.0 and all NaN are equal and largest, as in Spark's GROUP BY."""
    value = math.nan if math.isnan(value) else value + 0.0
    (bits,) = struct.unpack(">Q", struct.pack(">d", value))
    flipped = bits ^ (2 * _SIGN - 1) if bits & _SIGN else bits | _SIGN
    return b"\x04" + int(flipped).to_bytes(8, "big")


def _decode_float(data: bytes, start: int) -> tuple[float, int]:
    flipped, end = _decode_word(data, start)
    bits = flipped ^ _SIGN if flipped & _SIGN else flipped ^ (2 * _SIGN - 1)
    return struct.unpack(">d", bits.to_bytes(8, "big"))[0], end


def _decode_int(data: bytes, start: int) -> tuple[int, int]:
    flipped, end = _decode_word(data, start)
    return flipped - _SIGN, end


def _decode_word(data: bytes, start: int) -> tuple[int, int]:
    if start + 8 > len(data):
        raise ValueError(f"truncated number at {start}")
    return int.from_bytes(data[start : start + 8], "big"), start + 8


def _decode_text(data: bytes, start: int) -> tuple[str, int]:
    raw, end = undelimit(data, start)
    return raw.decode(), end


# The first byte of a part is its type. NULL sorts before all values.
_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"\x01",
    bool: lambda value: b"\x03" if value else b"\x02",
    float: _encode_float,
    int: lambda value: b"\x05" + int(value + _SIGN).to_bytes(8, "big"),
    str: lambda value: b"\x06" + delimit(value.encode()),
    bytes: lambda value: b"\x07" + delimit(value),
}
_DECODERS: dict[int, Callable[[bytes, int], tuple[KeyPart, int]]] = {
    1: lambda _, start: (None, start),
    2: lambda _, start: (False, start),
    3: lambda _, start: (True, start),
    4: _decode_float,
    5: _decode_int,
    6: _decode_text,
    7: undelimit,
}


def encode_key(parts: tuple[KeyPart, ...]) -> bytes:
    """Encode a user key so that bytes sort like tuples; integers and timestamps have 64 bits."""
    try:
        return b"".join([_ENCODERS[type(part)](part) for part in parts])
    except KeyError as error:
        raise TypeError(f"a key cannot contain {error.args[0]}") from None


def decode_key(data: bytes) -> tuple[KeyPart, ...]:
    """Decode a user key; raise `ValueError` if it is malformed."""
    parts: list[KeyPart] = []
    position = 0
    while position < len(data):
        decoder = _DECODERS.get(data[position])
        if decoder is None:
            raise ValueError(f"unknown type of a key part: {data[position]} at {position}")
        part, position = decoder(data, position + 1)
        parts.append(part)
    return tuple(parts)


# ---- Serializers

T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True)
class Serializer(Generic[T]):
    """Converts values of a type to bytes and back.

    `keeps_order`: the bytes sort like the values, which keys of a `MapState` need.
    """

    to_bytes: Callable[[T], bytes]
    from_bytes: Callable[[bytes], T]
    keeps_order: bool


def _int_to_bytes(value: int) -> bytes:
    """Encode an integer of any size with as few bytes as possible; does not preserve the order."""
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _int_from_bytes(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


BYTES: Serializer[bytes] = Serializer(bytes, bytes, keeps_order=True)
TEXT: Serializer[str] = Serializer(str.encode, bytes.decode, keeps_order=True)
INT: Serializer[int] = Serializer(_int_to_bytes, _int_from_bytes, keeps_order=False)
KEY: Serializer[tuple[KeyPart, ...]] = Serializer(encode_key, decode_key, keeps_order=True)


# ---- State objects


@dataclass(frozen=True)
class ValueState(Generic[T]):
    """One value per user key."""

    backend: StateBackend
    name: str
    serializer: Serializer[T]
    key: bytes = b""

    def get(self) -> T | None:
        """Return the value, or None."""
        stored = self.backend.get(self.name, self.key)
        return None if stored is None else self.serializer.from_bytes(bytes(stored))

    def put(self, value: T) -> None:
        """Set the value."""
        self.backend.put(self.name, self.key, self.serializer.to_bytes(value))

    def clear(self) -> None:
        """Remove the value."""
        self.backend.delete(self.name, self.key)


@dataclass(frozen=True)
class ReducingState(Generic[T]):
    """One value per user key, combined from all added values with a reduce function."""

    backend: StateBackend
    name: str
    serializer: Serializer[T]
    reduce: Callable[[T, T], T]
    key: bytes = b""

    def get(self) -> T | None:
        """Return the reduced value, or None if no value was added."""
        return self._value.get()

    def add(self, value: T) -> None:
        """Combine the current value with a new one."""
        previous = self._value.get()
        self._value.put(value if previous is None else self.reduce(previous, value))

    def clear(self) -> None:
        """Remove the value."""
        self._value.clear()

    @property
    def _value(self) -> ValueState[T]:
        return ValueState(self.backend, self.name, self.serializer, self.key)


@dataclass(frozen=True)
class ListState(Generic[T]):
    """A list per user key. Appending reads the length of the list, but no element."""

    backend: StateBackend
    name: str
    serializer: Serializer[T]
    key: bytes = b""

    def __len__(self) -> int:
        stored = self.backend.get(self.name, delimit(self.key))
        return 0 if stored is None else int.from_bytes(stored, "big")

    def get(self) -> list[T]:
        """Return the elements in the order in which they were appended."""
        return [self.serializer.from_bytes(bytes(raw)) for _, raw in self._scan()]

    def append(self, value: T) -> None:
        """Append one element."""
        self.extend((value,))

    def extend(self, values: Iterable[T]) -> None:
        """Append elements; the length is read once."""
        prefix, count = delimit(self.key), len(self)
        for value in values:
            raw = self.serializer.to_bytes(value)
            self.backend.put(self.name, prefix + _sequence(count), raw)
            count += 1
        if count:
            self.backend.put(self.name, prefix, _sequence(count))

    def clear(self) -> None:
        """Remove all elements."""
        prefix = delimit(self.key)
        for sequence in range(len(self)):
            self.backend.delete(self.name, prefix + _sequence(sequence))
        self.backend.delete(self.name, prefix)

    def _scan(self) -> Iterator[tuple[bytes, bytes | memoryview]]:
        prefix = delimit(self.key)
        # The length is stored under the prefix itself, which sorts before the first element.
        return self.backend.scan(self.name, prefix + _sequence(0), prefix_end(prefix))


def _sequence(number: int) -> bytes:
    return number.to_bytes(8, "big")


@dataclass(frozen=True)
class MapState(Generic[K, T]):
    """A map per user key, iterated in the order of its keys."""

    backend: StateBackend
    name: str
    key_serializer: Serializer[K]
    value_serializer: Serializer[T]
    key: bytes = b""

    def __post_init__(self) -> None:
        assert self.key_serializer.keeps_order, (
            "map keys need a serializer that preserves the order, such as KEY"
        )

    def get(self, map_key: K) -> T | None:
        """Return the value of a map key, or None."""
        stored = self.backend.get(self.name, self._entry(map_key))
        return None if stored is None else self.value_serializer.from_bytes(bytes(stored))

    def put(self, map_key: K, value: T) -> None:
        """Set the value of a map key."""
        self.backend.put(self.name, self._entry(map_key), self.value_serializer.to_bytes(value))

    def remove(self, map_key: K) -> None:
        """Remove a map key; missing keys are ignored."""
        self.backend.delete(self.name, self._entry(map_key))

    def items(self) -> Iterator[tuple[K, T]]:
        """Yield keys and values, sorted by key."""
        prefix = delimit(self.key)
        for key, raw in self.backend.scan(self.name, prefix, prefix_end(prefix)):
            yield (
                self.key_serializer.from_bytes(key[len(prefix) :]),
                self.value_serializer.from_bytes(bytes(raw)),
            )

    def keys(self) -> Iterator[K]:
        """Yield the map keys, sorted."""
        return (key for key, _ in self.items())

    def clear(self) -> None:
        """Remove all map keys."""
        prefix = delimit(self.key)
        for key, _ in self.backend.scan(self.name, prefix, prefix_end(prefix)):
            self.backend.delete(self.name, key)

    def _entry(self, map_key: K) -> bytes:
        return delimit(self.key) + self.key_serializer.to_bytes(map_key)
