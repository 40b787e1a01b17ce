"""Keys whose bytes sort like what they stand for.

A full key is `[operator id 4 B | key group 2 B | state name | user key]`, so that an operator, a
range of its key groups and one state of a group are each one range of keys. A user key is the bytes
of a tuple of column values.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

KeyPart = int | str | bytes | float | bool | None

KEY_GROUPS = 128
KEY_GROUPS_MAX = 1 << 16
OPERATORS_MAX = 1 << 32

_WORD = 0xFFFFFFFF
_SIGN = 1 << 63
_PREFIX_BYTES = 6
# A zero byte is written as two bytes, and the end of the text as two that sort below them.
_ZERO, _ZERO_ESCAPED, _END = b"\x00", b"\x00\xff", b"\x00\x01"


@dataclass(frozen=True)
class FullKey:
    """What a full key says."""

    operator_id: int
    key_group: int
    name: str
    user_key: bytes


def delimit(raw: bytes) -> bytes:
    """The bytes such that their end can be seen and more may follow; keeps the order."""
    return raw.replace(_ZERO, _ZERO_ESCAPED) + _END


def undelimit(data: bytes, start: int = 0) -> tuple[bytes, int]:
    """Delimited bytes at `start`, and where they end."""
    end = data.find(_END, start)
    if end < 0:
        raise ValueError(f"bytes without an end at {start}")
    return data[start:end].replace(_ZERO_ESCAPED, _ZERO), end + len(_END)


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after all that begin with the prefix; None if nothing can come after them."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def group_prefix(operator_id: int, key_group: int) -> bytes:
    """What all keys of an operator in a key group begin with."""
    assert 0 <= operator_id < OPERATORS_MAX, f"operator id {operator_id} out of range"
    assert 0 <= key_group < KEY_GROUPS_MAX, f"key group {key_group} out of range"
    return ((operator_id << 16) | key_group).to_bytes(_PREFIX_BYTES, "big")


def name_prefix(operator_id: int, key_group: int, name: str) -> bytes:
    """What all keys of one state of an operator in a key group begin with."""
    return group_prefix(operator_id, key_group) + delimit(name.encode())


def group_range(operator_id: int, first: int, last: int) -> tuple[bytes, bytes | None]:
    """Start and end of the keys of an operator in the key groups [first, last)."""
    assert 0 <= first <= last <= KEY_GROUPS_MAX, f"key groups [{first}, {last}) out of range"
    if first == last:
        return b"", b""
    return group_prefix(operator_id, first), prefix_end(group_prefix(operator_id, last - 1))


def encode_full(key: FullKey) -> bytes:
    """The bytes of a full key."""
    return name_prefix(key.operator_id, key.key_group, key.name) + key.user_key


def decode_full(data: bytes) -> FullKey:
    """The full key of its bytes."""
    if len(data) < _PREFIX_BYTES:
        raise ValueError("a full key has an operator id and a key group")
    operator_id, key_group = struct.unpack_from(">IH", data)
    name, end = undelimit(data, _PREFIX_BYTES)
    return FullKey(operator_id, key_group, name.decode(), data[end:])


def murmur3(data: bytes, seed: int = 0) -> int:
    """MurmurHash3, x86, 32 bits, unsigned."""
    mixed, whole = seed, len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed ^= _scramble(word)
        mixed = ((mixed << 13) | (mixed >> 19)) & _WORD
        mixed = (mixed * 5 + 0xE6546B64) & _WORD
    mixed ^= _scramble(int.from_bytes(data[whole:], "little")) ^ len(data)
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & _WORD
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & _WORD
    return mixed ^ (mixed >> 16)


def _scramble(word: int) -> int:
    word = (word * 0xCC9E2D51) & _WORD
    word = ((word << 15) | (word >> 17)) & _WORD
    return (word * 0x1B873593) & _WORD


def key_group_of(user_key: bytes, key_groups: int = KEY_GROUPS) -> int:
    """The key group that a user key belongs to."""
    assert 0 < key_groups <= KEY_GROUPS_MAX, f"{key_groups} key groups"
    return murmur3(user_key) % key_groups


def _encode_float(value: float) -> bytes:
    """Negative zero is zero and every NaN is the one after infinity, as when Spark groups."""
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
        raise ValueError(f"a number cut short at {start}")
    return int.from_bytes(data[start : start + 8], "big"), start + 8


def _decode_text(data: bytes, start: int) -> tuple[str, int]:
    raw, end = undelimit(data, start)
    return raw.decode(), end


# The first byte of a part says its type; a null sorts before every value.
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
    """The bytes of a user key, sorting like the tuple; integers (and timestamps) have 64 bits."""
    try:
        return b"".join([_ENCODERS[type(part)](part) for part in parts])
    except KeyError as error:
        raise TypeError(f"a key cannot hold {error.args[0]}") from None


def decode_key(data: bytes) -> tuple[KeyPart, ...]:
    """The tuple of a user key's bytes."""
    parts: list[KeyPart] = []
    position = 0
    while position < len(data):
        decoder = _DECODERS.get(data[position])
        if decoder is None:
            raise ValueError(f"no type of a key part: {data[position]} at {position}")
        part, position = decoder(data, position + 1)
        parts.append(part)
    return tuple(parts)
