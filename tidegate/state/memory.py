"""State in memory: all operators and key groups in one sorted map by full key."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidegate.errors import DataDirectoryError
from tidegate.state import codec
from tidegate.state import keyed_state as keys
from tidegate.state.keyed_state import FullKey
from tidegate.state.state_file import StateBackend

# ---- A map from bytes to bytes that can be walked in the order of its keys.

# Putting one key in place moves half of the list; beyond so many, sorting all at once is cheaper.
_FEW = 64


class SortedMap:
    """A dict for the values and a sorted list of its keys, brought up to date when it is walked."""

    def __init__(self, entries: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._values: dict[bytes, bytes] = dict(entries)
        # All keys but the new ones, and some that have been deleted since.
        self._order: list[bytes] = sorted(self._values)
        self._new: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, if it has one."""
        return self._values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        if key not in self._values:
            self._new.add(key)
        # What is kept must not change under us; bytes are not copied by this.
        self._values[key] = bytes(value)

    def delete(self, key: bytes) -> None:
        """Forget a key."""
        self._values.pop(key, None)
        self._new.discard(key)

    def scan(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The entries that are there now and still there when their turn comes."""
        keys = self._keys(start, end)
        values = self._values
        return ((key, values[key]) for key in keys if key in values)

    def delete_range(self, start: bytes, end: bytes | None) -> None:
        """Forget all keys of a range."""
        for key in self._keys(start, end):
            self.delete(key)

    def _keys(self, start: bytes, end: bytes | None) -> list[bytes]:
        self._put_in_order()
        order = self._order
        last = len(order) if end is None else bisect_left(order, end)
        return order[bisect_left(order, start) : last]

    def _put_in_order(self) -> None:
        """Put the new keys in their place, and drop deleted ones when they are most."""
        dead_many = len(self._order) + len(self._new) > 2 * len(self._values) + _FEW
        if dead_many or len(self._new) > _FEW:
            kept = (key for key in self._order if key in self._values and key not in self._new)
            self._order = [*kept, *self._new]
            self._order.sort()
        else:
            for key in self._new:
                self._insert(key)
        self._new.clear()

    def _insert(self, key: bytes) -> None:
        place = bisect_left(self._order, key)
        # A key that was deleted and came back is still there.
        if place == len(self._order) or self._order[place] != key:
            self._order.insert(place, key)


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
