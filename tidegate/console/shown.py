"""What the console can show, and do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidegate.checkpoint.checkpoints import Checkpoint, Wanted
from tidegate.console.graph import Graph
from tidegate.observe.status import StreamStatus
from tidegate.observe.timeline import EpochSums, EpochTimes

if TYPE_CHECKING:
    from tidegate.queries.result import QueryResult


@dataclass(frozen=True)
class Described:
    """A declaration as SQL, secrets masked, and the plan of a stream."""

    name: str
    sql: str
    plan: str | None = None


class Shown(Protocol):
    """A session, or a data directory. Everything but `statuses` and `epochs` may take a while."""

    title: str
    # Whether streams run in this process; else it only reads what another one has stored.
    live: bool

    def statuses(self) -> tuple[StreamStatus, ...]: ...

    def epochs(self) -> list[EpochTimes]:
        """The last epochs of all pipelines; numbers of a pipeline only grow."""

    def sums(self) -> list[EpochSums]: ...

    def graph(self) -> Graph: ...

    def described(self, name: str) -> Described:
        """Raises what a person can read if there is nothing of that name."""

    def checkpoints(self) -> list[Checkpoint]: ...

    def peek(self, stream: str, rows: int) -> QueryResult: ...

    def keep(self, name: str | None) -> str:
        """Keep a checkpoint; returns its name."""

    def restore(self, wanted: Wanted) -> list[str]:
        """Go back; returns what there is to know about it."""
