"""What lies staged and was never committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.connectors.protocols import Decided
    from tidegate.storage import Store


def sweep_staged(store: Store, folder: str, decided: Decided) -> None:
    """Remove what was staged for decided epochs, and what was written half.

    The names of staged files begin with the stamp of their epoch. Those of the next epoch are left
    alone: a process that should be dead could still decide it, and then its rows must be there.
    """
    over: list[str] = []
    if decided.last is not None:
        last = decided.last.stamp
        names = [item.name for item in store.list(folder)]
        over = [name for name in names if name.rpartition("/")[2][: len(last)] <= last]
    store.delete([*over, *(item.name for item in store.asides(folder))])
