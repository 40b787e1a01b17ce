"""The four shapes of state over a backend: one value, a list, a sorted map, a running reduction.

Each is bound to one user key of one named state, cheap to make and without memory of its own: all
it knows is in the backend. A name belongs to one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidegate.state.backend import StateBackend
from tidegate.state.keys import KeyPart, decode_key, delimit, encode_key, prefix_end

T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True)
class Serializer(Generic[T]):
    """How values of a type become bytes and come back."""

    to_bytes: Callable[[T], bytes]
    from_bytes: Callable[[bytes], T]
    keeps_order: bool


def _int_to_bytes(value: int) -> bytes:
    """As short as it can be, so that sums never overflow; does not keep the order."""
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _int_from_bytes(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


BYTES: Serializer[bytes] = Serializer(bytes, bytes, keeps_order=True)
TEXT: Serializer[str] = Serializer(str.encode, bytes.decode, keeps_order=True)
INT: Serializer[int] = Serializer(_int_to_bytes, _int_from_bytes, keeps_order=False)
KEY: Serializer[tuple[KeyPart, ...]] = Serializer(encode_key, decode_key, keeps_order=True)


@dataclass(frozen=True)
class ValueState(Generic[T]):
    """One value of a user key."""

    backend: StateBackend
    name: str
    serializer: Serializer[T]
    key: bytes = b""

    def get(self) -> T | None:
        """The value, if there is one."""
        stored = self.backend.get(self.name, self.key)
        return None if stored is None else self.serializer.from_bytes(bytes(stored))

    def put(self, value: T) -> None:
        """Set the value."""
        self.backend.put(self.name, self.key, self.serializer.to_bytes(value))

    def clear(self) -> None:
        """Forget the value."""
        self.backend.delete(self.name, self.key)


@dataclass(frozen=True)
class ReducingState(Generic[T]):
    """One value of a user key, into which others are reduced."""

    backend: StateBackend
    name: str
    serializer: Serializer[T]
    reduce: Callable[[T, T], T]
    key: bytes = b""

    def get(self) -> T | None:
        """The reduction of all values so far, if there were any."""
        return self._value.get()

    def add(self, value: T) -> None:
        """Reduce one more value into it."""
        before = self._value.get()
        self._value.put(value if before is None else self.reduce(before, value))

    def clear(self) -> None:
        """Forget all values."""
        self._value.clear()

    @property
    def _value(self) -> ValueState[T]:
        return ValueState(self.backend, self.name, self.serializer, self.key)


@dataclass(frozen=True)
class ListState(Generic[T]):
    """A list of a user key; appending reads how many elements there are, never an element."""

    backend: StateBackend
    name: str
    serializer: Serializer[T]
    key: bytes = b""

    def __len__(self) -> int:
        stored = self.backend.get(self.name, delimit(self.key))
        return 0 if stored is None else int.from_bytes(stored, "big")

    def get(self) -> list[T]:
        """The elements in the order they were appended."""
        return [self.serializer.from_bytes(bytes(raw)) for _, raw in self._scan()]

    def append(self, value: T) -> None:
        """Add one element at the end."""
        self.extend((value,))

    def extend(self, values: Iterable[T]) -> None:
        """Add elements at the end, reading the counter once."""
        prefix, count = delimit(self.key), len(self)
        for value in values:
            raw = self.serializer.to_bytes(value)
            self.backend.put(self.name, prefix + _sequence(count), raw)
            count += 1
        if count:
            self.backend.put(self.name, prefix, _sequence(count))

    def clear(self) -> None:
        """Forget all elements."""
        prefix = delimit(self.key)
        for sequence in range(len(self)):
            self.backend.delete(self.name, prefix + _sequence(sequence))
        self.backend.delete(self.name, prefix)

    def _scan(self) -> Iterator[tuple[bytes, bytes | memoryview]]:
        prefix = delimit(self.key)
        # The counter is the prefix itself and sorts before the first element.
        return self.backend.scan(self.name, prefix + _sequence(0), prefix_end(prefix))


def _sequence(number: int) -> bytes:
    return number.to_bytes(8, "big")


@dataclass(frozen=True)
class MapState(Generic[K, T]):
    """A map of a user key, walked in the order of its keys."""

    backend: StateBackend
    name: str
    keys_as: Serializer[K]
    values_as: Serializer[T]
    key: bytes = b""

    def __post_init__(self) -> None:
        assert self.keys_as.keeps_order, "map keys need a serializer that keeps their order: KEY"

    def get(self, map_key: K) -> T | None:
        """The value of a map key, if it has one."""
        stored = self.backend.get(self.name, self._entry(map_key))
        return None if stored is None else self.values_as.from_bytes(bytes(stored))

    def put(self, map_key: K, value: T) -> None:
        """Set the value of a map key."""
        self.backend.put(self.name, self._entry(map_key), self.values_as.to_bytes(value))

    def remove(self, map_key: K) -> None:
        """Forget a map key; no error if there is none."""
        self.backend.delete(self.name, self._entry(map_key))

    def items(self) -> Iterator[tuple[K, T]]:
        """Keys and values, sorted by key."""
        prefix = delimit(self.key)
        for key, raw in self.backend.scan(self.name, prefix, prefix_end(prefix)):
            yield self.keys_as.from_bytes(key[len(prefix) :]), self.values_as.from_bytes(bytes(raw))

    def keys(self) -> Iterator[K]:
        """The map keys, sorted."""
        return (key for key, _ in self.items())

    def clear(self) -> None:
        """Forget all map keys."""
        prefix = delimit(self.key)
        for key, _ in self.backend.scan(self.name, prefix, prefix_end(prefix)):
            self.backend.delete(self.name, key)

    def _entry(self, map_key: K) -> bytes:
        return delimit(self.key) + self.keys_as.to_bytes(map_key)
