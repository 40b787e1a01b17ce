"""What the tasks of an epoch are told, made of its cuts and of the last manifest."""

from __future__ import annotations

from tidegate.checkpoint.manifest import Manifest
from tidegate.connectors.base import Share
from tidegate.runtime.cutting import Epoch
from tidegate.spark.order import Order


def order_of(manifest: Manifest, epoch: Epoch, number: int, now_us: int, tasks: int) -> Order:
    """The order of an epoch, which is run by so many tasks."""
    return Order(
        manifest.generation,
        number,
        now_us,
        epoch.ends,
        {
            f"{stream}/{source}": _shared_out(cut.shares, tasks)
            for (stream, source), cut in epoch.cuts.items()
        },
        {key: operator.heads for key, operator in manifest.operators.items()},
        partitions=epoch.partitions,
    )


def _shared_out(shares: list[Share], tasks: int) -> list[Share]:
    """What tasks read; one task reads all."""
    return shares if tasks > 1 else [[part for share in shares for part in share]]
