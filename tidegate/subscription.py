"""A subscriber's view of a stream: its epochs, in order, as Arrow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
    """Iterate to get every epoch, old and new.

    It waits for the next one and ends when the stream has ended or was stopped; if the stream
    failed, it raises that error.
    """

    def __init__(
        self,
        directory: Path,
        from_epoch: int | None = None,
        may_come: Callable[[], bool] = lambda: False,
    ) -> None:
        self._directory = directory
        self._may_come = may_come
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
            more = self._may_come()
            batches = self.take_all()
            yield from batches
            if not batches and not more:
                return
            if not batches:
                time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """End the iteration."""
        self._closed = True
