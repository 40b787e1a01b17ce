"""A subscriber's view of a stream: its epochs, in order, as Arrow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.connectors import memory

_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Batch:
    """The rows one epoch gave out."""

    epoch: int
    table: Any


class Subscription:
    """Iterate to get every epoch, old and new; it blocks until the next one is there."""

    def __init__(self, directory: Path, from_epoch: int | None = None) -> None:
        self._directory = directory
        self._next = from_epoch or 0
        self._closed = False

    def take_all(self) -> list[Batch]:
        """Every epoch that is there and was not taken yet, without waiting."""
        epochs = [e for e in memory.stored_epochs(self._directory) if e >= self._next]
        batches = [Batch(epoch, memory.read_epoch(self._directory, epoch)) for epoch in epochs]
        if epochs:
            self._next = epochs[-1] + 1
        return batches

    def __iter__(self) -> Iterator[Batch]:
        while not self._closed:
            batches = self.take_all()
            yield from batches
            if not batches:
                time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """End the iteration."""
        self._closed = True
