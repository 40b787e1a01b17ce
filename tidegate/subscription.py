"""A subscriber's view of a stream: its epochs, in order, as Arrow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.connectors import memory

_POLL_SECONDS = 0.02
_COARSE_NS = 2_000_000_000


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
        # Whether it is known which epoch comes next, so that none may be missing.
        self._placed = from_epoch is not None
        self._closed = False
        self._listed_ns = -1

    def take_all(self) -> list[Batch]:
        """Every epoch that is there and was not taken yet, without waiting."""
        epochs = self._new_epochs()
        if self._placed and epochs and memory.last_expired(self._directory) >= self._next:
            # It says which epoch is gone, and what to do.
            memory.read_epoch(self._directory, self._next)
        batches = [Batch(epoch, memory.read_epoch(self._directory, epoch)) for epoch in epochs]
        if epochs:
            self._next = epochs[-1] + 1
            self._placed = True
        return batches

    def _new_epochs(self) -> list[int]:
        """Listing costs as much as is kept: it is done when something has changed."""
        try:
            changed_ns = self._directory.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if changed_ns == self._listed_ns:
            return []
        # A file system's clock is coarse: what changed just now may change again unseen.
        settled = time.time_ns() - changed_ns > _COARSE_NS
        self._listed_ns = changed_ns if settled else -1
        return [e for e in memory.stored_epochs(self._directory) if e >= self._next]

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
