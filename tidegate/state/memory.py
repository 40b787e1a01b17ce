"""State in memory, for tests: the entries of all operators and key groups, sorted by full key.

Pipelines do not use this module.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidegate.errors import DataDirectoryError
from tidegate.state.codec import fingerprint
from tidegate.state.keyed_state import (
    FullKey,
    decode_full_key,
    delimit,
    group_prefix,
    group_range,
    prefix_end,
)
from tidegate.state.state_file import StateBackend

# Up to this many new keys are inserted one by one; beyond that, sorting the list is cheaper.
_MAX_INSERTS = 64


class SortedMap:
    """A dict and a sorted list of its keys. The list is updated when the map is scanned."""

    def __init__(self, entries: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._values: dict[bytes, bytes] = dict(entries)
        # All keys except new ones; may contain deleted keys.
        self._order: list[bytes] = sorted(self._values)
        self._new: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        return self._values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        if key not in self._values:
            self._new.add(key)
        # Callers may change a bytearray later. `bytes` does not copy a bytes object.
        self._values[key] = bytes(value)

    def delete(self, key: bytes) -> None:
        """Remove a key; missing keys are ignored."""
        self._values.pop(key, None)
        self._new.discard(key)

    def scan(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries in [start, end), except those deleted during the scan."""
        keys = self._keys(start, end)
        values = self._values
        return ((key, values[key]) for key in keys if key in values)

    def delete_range(self, start: bytes, end: bytes | None) -> None:
        """Remove all keys in [start, end)."""
        for key in self._keys(start, end):
            self.delete(key)

    def _keys(self, start: bytes, end: bytes | None) -> list[bytes]:
        self._update_order()
        order = self._order
        last = len(order) if end is None else bisect_left(order, end)
        return order[bisect_left(order, start) : last]

    def _update_order(self) -> None:
        """Insert new keys into the list; drop deleted keys if they are the majority."""
        mostly_deleted = len(self._order) + len(self._new) > 2 * len(self._values) + _MAX_INSERTS
        if mostly_deleted or len(self._new) > _MAX_INSERTS:
            remaining = (key for key in self._order if key in self._values and key not in self._new)
            self._order = [*remaining, *self._new]
            self._order.sort()
        else:
            for key in self._new:
                self._insert(key)
        self._new.clear()

    def _insert(self, key: bytes) -> None:
        position = bisect_left(self._order, key)
        # A key that was deleted and added again is still in the list.
        if position == len(self._order) or self._order[position] != key:
            self._order.insert(position, key)


# A snapshot starts with this header and a CRC-32 of header and entries.
_HEADER = struct.Struct("<8sI8sQ")
_CHECKSUM = struct.Struct("<I")
_MAGIC, _VERSION = b"TIDEGATE", 1
_FINGERPRINT = fingerprint("snapshot of a memory store")
_LENGTHS = struct.Struct("<IQ")


class MemoryStore:
    """The state of all operators of a pipeline, for tests and small programs."""

    def __init__(self) -> None:
        self._entries = SortedMap()

    def backend(self, operator_id: int, key_group: int) -> StateBackend:
        """Return the state of one operator in one key group."""
        return MemoryBackend(self._entries, group_prefix(operator_id, key_group))

    def scan_key_groups(
        self, operator_id: int, first: int, last: int
    ) -> Iterator[tuple[FullKey, bytes]]:
        """Yield the entries of an operator in the key groups [first, last), sorted by full key."""
        start, end = group_range(operator_id, first, last)
        return ((decode_full_key(key), value) for key, value in self._entries.scan(start, end))

    def snapshot(self) -> bytes:
        """Serialize all entries."""
        parts: list[bytes] = []
        for key, value in self._entries.scan():
            parts += (_LENGTHS.pack(len(key), len(value)), key, value)
        payload = b"".join(parts)
        header = _HEADER.pack(_MAGIC, _VERSION, _FINGERPRINT, len(payload))
        return header + _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(header))) + payload

    @classmethod
    def restore(cls, snapshot: bytes) -> MemoryStore:
        """Create a store from a snapshot; raise `DataDirectoryError` if it is damaged."""
        size = _HEADER.size
        header, payload = snapshot[:size], snapshot[size + _CHECKSUM.size :]
        checksum = _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(header)))
        expected = _HEADER.pack(_MAGIC, _VERSION, _FINGERPRINT, len(payload)) + checksum
        if snapshot[: size + _CHECKSUM.size] != expected:
            reason = "it is damaged, or another version wrote it"
            raise DataDirectoryError("TG-605", f"the snapshot cannot be read: {reason}")
        store = cls()
        store._entries = SortedMap(_entries_of(payload))
        return store


def _entries_of(payload: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 0
    while position < len(payload):
        key_bytes, value_bytes = _LENGTHS.unpack_from(payload, position)
        middle = position + _LENGTHS.size + key_bytes
        end = middle + value_bytes
        yield payload[position + _LENGTHS.size : middle], payload[middle:end]
        position = end


@dataclass(frozen=True)
class MemoryBackend:
    """The entries of one operator and key group in the map of all entries."""

    entries: SortedMap
    prefix: bytes

    def get(self, name: str, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        return self.entries.get(self._map_prefix(name) + key)

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        self.entries.put(self._map_prefix(name) + key, value)

    def delete(self, name: str, key: bytes) -> None:
        """Remove a key; missing keys are ignored."""
        self.entries.delete(self._map_prefix(name) + key)

    def scan(
        self, name: str, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries in [start, end), sorted by key."""
        prefix = self._map_prefix(name)
        last = prefix_end(prefix) if end is None else prefix + end
        return (
            (key[len(prefix) :], value) for key, value in self.entries.scan(prefix + start, last)
        )

    def clear(self) -> None:
        """Remove all entries of this operator and key group."""
        self.entries.delete_range(self.prefix, prefix_end(self.prefix))

    def _map_prefix(self, name: str) -> bytes:
        return self.prefix + delimit(name.encode())
