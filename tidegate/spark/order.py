"""The order of an epoch: what the driver tells the tasks of a frame that is built once.

A frame outlives its epochs, so what changes between them cannot be part of it. The driver writes an
order before it runs the job, and every task reads it: which ranges to read, where the state of each
key group lies, what time it is. Orders are forgotten with the job; nothing is recovered from them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from tidegate.storage import open_store


@dataclass(frozen=True)
class Order:
    """What the tasks of one epoch need to know."""

    generation: int
    epoch: int
    now_us: int
    # Whether this is the end of all input: no row comes after it.
    ends: bool = False
    # By source: what each task reads of it.
    shares: dict[str, list[list[Any]]] = field(default_factory=dict)
    # By operator and key group: where the state is.
    heads: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    # By lookup table: what tasks must know to see it as it is in this epoch.
    lookups: dict[str, Any] = field(default_factory=dict)
    # By source: how many partitions it has, where each has a watermark of its own.
    partitions: dict[str, int] = field(default_factory=dict)

    @property
    def stamp(self) -> str:
        """Begins the names of all files of this epoch."""
        return f"{self.generation:03d}-{self.epoch:012d}"


@dataclass(frozen=True)
class OrderPlace:
    """Where a driver leaves its orders. Each driver has its own place, so that one that should be
    dead cannot speak to the tasks of another."""

    uri: str
    name: str

    def write(self, order: Order) -> None:
        text = json.dumps(asdict(order), separators=(",", ":"))
        open_store(self.uri).put(self.name, text.encode(), durable=False)

    def read(self) -> Order:
        return Order(**json.loads(open_store(self.uri).get(self.name)))

    def forget(self) -> None:
        open_store(self.uri).delete([self.name])
