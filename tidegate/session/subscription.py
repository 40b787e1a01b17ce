"""Subscriptions: iterate over the epochs of a stream as Arrow tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.memory import connector as memory
from tidegate.errors import RunError
from tidegate.observe.rendering import html_table
from tidegate.storage import Store

_POLL_SECONDS = 0.02
_COARSE_NS = 2_000_000_000
# Rows of a batch that a notebook shows.
_NOTEBOOK_ROWS = 20


@dataclass(frozen=True, repr=False)
class Batch:
    """The rows that a stream emitted in one epoch. Iterate over it to get the rows as dicts."""

    epoch: int
    table: Any

    def to_arrow(self) -> Any:
        return self.table

    def to_pandas(self) -> Any:
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        import polars

        return polars.from_arrow(self.table)

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the rows as dicts."""
        return list(self.table.to_pylist())

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.to_pylist())

    def __repr__(self) -> str:
        columns = ", ".join(self.table.column_names)
        return f"<tidegate.Batch of epoch {self.epoch}: {len(self):,} rows of {columns}>"

    def _repr_html_(self) -> str:
        shown = self.table.slice(0, _NOTEBOOK_ROWS).to_pylist()
        return html_table(self.table.column_names, shown, repr(self)[1:-1])


class Subscription:
    """The epochs of a stream: iterate over it to get one `Batch` per epoch with rows.

    Iteration starts with the oldest stored epoch and waits for new ones. It ends when the stream
    ends or is stopped, or after `timeout` seconds without rows. If the stream fails, it raises the
    error of the stream. If the stream was restored to a checkpoint, it raises TG-611 once; a new
    iteration continues with the new epochs.
    """

    def __init__(
        self,
        store: Store,
        from_epoch: int | None = None,
        may_emit: Callable[[], bool] = lambda: False,
        timeout: float | None = None,
        name: str = "",
    ) -> None:
        self.name = name
        self.timeout = timeout
        self._store = store
        self._may_emit = may_emit
        self._next = from_epoch or 0
        # True once the next epoch is known; from then on no epoch may be missing.
        self._has_position = from_epoch is not None
        # The last epoch that was returned; with `from_epoch`, all earlier ones count as returned.
        self._last_returned = self._next - 1
        self._closed = False
        self._listed_ns = -1

    def take_all(self) -> list[Batch]:
        """Return all stored epochs that were not returned before, without waiting."""
        if not self._has_changed():
            return []
        self._require_not_restored()
        epochs = [e for e in memory.stored_epochs(self._store) if e >= self._next]
        if self._has_position and epochs and memory.last_expired(self._store) >= self._next:
            # Raises the error that names the expired epoch.
            memory.read_epoch(self._store, self._next)
        batches = [Batch(epoch, memory.read_epoch(self._store, epoch)) for epoch in epochs]
        if epochs:
            self._last_returned = epochs[-1]
            self._next = self._last_returned + 1
            self._has_position = True
        return batches

    def _require_not_restored(self) -> None:
        """Raise an error, once, if epochs that were returned have been rolled back."""
        for last, first in memory.rolled_back_ranges(self._store):
            if not last < self._last_returned < first:
                continue
            last_returned, self._last_returned, self._next = self._last_returned, last, first
            self._listed_ns = -1
            raise RunError(
                "TG-611",
                f"the stream was restored to epoch {last}: epochs up to "
                f"{last_returned}, which were returned, are rolled back; new rows start at epoch "
                f"{first}",
                hint=f"discard the rows of epochs after {last} and continue to iterate: this "
                "subscription continues with the new epochs.",
            )

    def _has_changed(self) -> bool:
        """Return whether files were added or removed; listing all files is expensive."""
        if not self._store.local:
            return True
        try:
            changed_ns = self._store.local_path("out").stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if changed_ns == self._listed_ns:
            return False
        # File system timestamps are coarse: a recent change may hide another one.
        settled = time.time_ns() - changed_ns > _COARSE_NS
        self._listed_ns = changed_ns if settled else -1
        return True

    def __iter__(self) -> Iterator[Batch]:
        idle_since_s = time.monotonic()
        while not self._closed:
            may_emit = self._may_emit()
            batches = self.take_all()
            yield from batches
            if batches:
                idle_since_s = time.monotonic()
                continue
            timed_out = self.timeout is not None and time.monotonic() - idle_since_s >= self.timeout
            if not may_emit or timed_out:
                return
            time.sleep(_POLL_SECONDS)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"next: epoch {self._next}"
        return f"<tidegate.Subscription to {self.name or 'a stream'}, {state}>"

    def close(self) -> None:
        """End the iteration."""
        self._closed = True
