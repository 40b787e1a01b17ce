"""What an operator sees of its state: named, sorted maps from bytes to bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class StateBackend(Protocol):
    """The state of one operator in one key group."""

    def get(self, name: str, key: bytes) -> bytes | memoryview | None:
        """The value of a key; None if there is none."""
        ...

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Set the value of a key, whatever was there."""
        ...

    def delete(self, name: str, key: bytes) -> None:
        """Forget a key; no error if there is none."""
        ...

    def scan(
        self, name: str, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes | memoryview]]:
        """The entries from `start` up to but without `end`, sorted by key.

        State may change during a scan: what was deleted no longer comes, nor does what was added.
        """
        ...

    def clear(self) -> None:
        """Forget everything of this operator and key group."""
        ...
