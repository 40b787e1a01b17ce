"""State in memory: all operators and key groups in one sorted map by full key."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.errors import DataDirectoryError
from tidegate.state import codec, keys
from tidegate.state.backend import StateBackend
from tidegate.state.keys import FullKey
from tidegate.state.sorted_map import SortedMap

_SNAPSHOT = codec.fingerprint("snapshot of a memory store")
_LENGTHS = struct.Struct("<IQ")


class MemoryStore:
    """The state of all operators of a pipeline."""

    def __init__(self) -> None:
        self._entries = SortedMap()

    def backend(self, operator_id: int, key_group: int) -> StateBackend:
        """The state of one operator in one key group."""
        return MemoryBackend(self._entries, keys.group_prefix(operator_id, key_group))

    def scan_key_groups(
        self, operator_id: int, first: int, last: int
    ) -> Iterator[tuple[FullKey, bytes]]:
        """The entries of an operator in the key groups [first, last), sorted by full key."""
        start, end = keys.group_range(operator_id, first, last)
        return ((keys.decode_full(key), value) for key, value in self._entries.scan(start, end))

    def snapshot(self) -> bytes:
        """Everything there is, to be restored by a later process."""
        parts: list[bytes] = []
        for key, value in self._entries.scan():
            parts += (_LENGTHS.pack(len(key), len(value)), key, value)
        return codec.encode(b"".join(parts), _SNAPSHOT)

    @classmethod
    def restore(cls, stored: bytes) -> MemoryStore:
        """The store of a snapshot."""
        what = "the snapshot of a memory store"
        payload = codec.decode(stored, _SNAPSHOT, what)
        if payload is None:
            raise DataDirectoryError("TG-605", f"{what} cannot be read: another version wrote it")
        store = cls()
        store._entries = SortedMap(_entries_of(bytes(payload)))
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
    """One operator's keys of one key group in the map of all."""

    entries: SortedMap
    prefix: bytes

    def get(self, name: str, key: bytes) -> bytes | None:
        """The value of a key; None if there is none."""
        return self.entries.get(self._named(name) + key)

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Set the value of a key, whatever was there."""
        self.entries.put(self._named(name) + key, value)

    def delete(self, name: str, key: bytes) -> None:
        """Forget a key; no error if there is none."""
        self.entries.delete(self._named(name) + key)

    def scan(
        self, name: str, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """The entries from `start` up to but without `end`, sorted by key."""
        named = self._named(name)
        last = keys.prefix_end(named) if end is None else named + end
        cut = len(named)
        return ((key[cut:], value) for key, value in self.entries.scan(named + start, last))

    def clear(self) -> None:
        """Forget everything of this operator and key group."""
        self.entries.delete_range(self.prefix, keys.prefix_end(self.prefix))

    def _named(self, name: str) -> bytes:
        return self.prefix + keys.delimit(name.encode())
