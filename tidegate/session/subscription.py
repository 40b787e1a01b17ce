"""A subscriber's view of a stream: its epochs, in order, as Arrow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.memory import connector as memory
from tidegate.errors import RunError
from tidegate.observe.status import html_table
from tidegate.storage import Store

_POLL_SECONDS = 0.02
_COARSE_NS = 2_000_000_000
# So many rows are shown in a notebook.
_SHOWN = 20


@dataclass(frozen=True, repr=False)
class Batch:
    """The rows one epoch gave out, as an Arrow table."""

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
        """The rows as dicts."""
        return list(self.table.to_pylist())

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.to_pylist())

    def __repr__(self) -> str:
        columns = ", ".join(self.table.column_names)
        return f"<tidegate.Batch of epoch {self.epoch}: {len(self):,} rows of {columns}>"

    def _repr_html_(self) -> str:
        shown = self.table.slice(0, _SHOWN).to_pylist()
        return html_table(self.table.column_names, shown, repr(self)[1:-1])


class Subscription:
    """Iterate to get every epoch, old and new.

    It waits for the next one and ends when the stream has ended or was stopped, or when nothing has
    come for `timeout` seconds; if the stream
    failed, it raises that error; if the stream went back to a checkpoint, it says so, and iterating
    again goes on from there.
    """

    def __init__(
        self,
        store: Store,
        from_epoch: int | None = None,
        may_come: Callable[[], bool] = lambda: False,
        timeout: float | None = None,
        name: str = "",
    ) -> None:
        self.name = name
        self.timeout = timeout
        self._store = store
        self._may_come = may_come
        self._next = from_epoch or 0
        # Whether it is known which epoch comes next, so that none may be missing.
        self._placed = from_epoch is not None
        # The last epoch that was taken; whoever asks for later ones has those before.
        self._taken = self._next - 1
        self._closed = False
        self._listed_ns = -1

    def take_all(self) -> list[Batch]:
        """Every epoch that is there and was not taken yet, without waiting."""
        if not self._changed():
            return []
        self._require_same_line()
        epochs = [e for e in memory.stored_epochs(self._store) if e >= self._next]
        if self._placed and epochs and memory.last_expired(self._store) >= self._next:
            # It says which epoch is gone, and what to do.
            memory.read_epoch(self._store, self._next)
        batches = [Batch(epoch, memory.read_epoch(self._store, epoch)) for epoch in epochs]
        if epochs:
            self._taken = epochs[-1]
            self._next = self._taken + 1
            self._placed = True
        return batches

    def _require_same_line(self) -> None:
        """Epochs that were taken may have been given up since; that is said once."""
        for last, first in memory.rolled_back_ranges(self._store):
            if not last < self._taken < first:
                continue
            taken, self._taken, self._next = self._taken, last, first
            self._listed_ns = -1
            raise RunError(
                "TG-611",
                f"the stream went back to epoch {last}: what was taken after it, up to epoch "
                f"{taken}, never was, and comes again from epoch {first} on",
                hint=f"forget what you made of epochs after {last}, and read on: this subscription "
                "goes on with what comes now.",
            )

    def _changed(self) -> bool:
        """Listing costs as much as is kept: it is done when something has changed."""
        if not self._store.local:
            return True
        try:
            changed_ns = self._store.local_path("out").stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if changed_ns == self._listed_ns:
            return False
        # A file system's clock is coarse: what changed just now may change again unseen.
        settled = time.time_ns() - changed_ns > _COARSE_NS
        self._listed_ns = changed_ns if settled else -1
        return True

    def __iter__(self) -> Iterator[Batch]:
        waiting = time.monotonic()
        while not self._closed:
            more = self._may_come()
            batches = self.take_all()
            yield from batches
            if batches:
                waiting = time.monotonic()
                continue
            patient = self.timeout is None or time.monotonic() - waiting < self.timeout
            if not more or not patient:
                return
            time.sleep(_POLL_SECONDS)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"next: epoch {self._next}"
        return f"<tidegate.Subscription to {self.name or 'a stream'}, {state}>"

    def close(self) -> None:
        """End the iteration."""
        self._closed = True
