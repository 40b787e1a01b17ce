"""A map from bytes to bytes that can be walked in the order of its keys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

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
