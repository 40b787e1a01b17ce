"""Shows a session of this process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tidegate.catalog.objects import Stream
from tidegate.checkpoint.checkpoints import Checkpoint, Wanted
from tidegate.console.graph import Graph, graph_of
from tidegate.console.shown import Described
from tidegate.errors import RunError, did_you_mean
from tidegate.observe.status import StreamStatus
from tidegate.observe.timeline import EpochSums, EpochTimes

if TYPE_CHECKING:
    from tidegate.queries.result import QueryResult
    from tidegate.session import Session

_PEEK_SECONDS = 5.0


class RunningSession:
    """What a session does now; calls that change something wait for each other."""

    live = True

    def __init__(self, session: Session, title: str) -> None:
        self.title = title
        self._session = session
        self._lock = threading.Lock()

    def statuses(self) -> tuple[StreamStatus, ...]:
        return self._session.status()

    def epochs(self) -> list[EpochTimes]:
        return [epoch for timeline in self._session.timelines() for epoch in timeline.epochs()]

    def sums(self) -> list[EpochSums]:
        return [timeline.sums() for timeline in self._session.timelines()]

    def graph(self) -> Graph:
        return graph_of(self._session.catalog)

    def described(self, name: str) -> Described:
        catalog = self._session.catalog
        declared = catalog.get(name)
        if declared is None:
            hint = did_you_mean(name, catalog.names(), "names")
            raise RunError("TG-201", f"nothing is named {name}", hint=hint)
        plan = self._session.explain(name) if isinstance(declared, Stream) else None
        return Described(declared.name, declared.create_sql(), plan)

    def checkpoints(self) -> list[Checkpoint]:
        return self._session.checkpoints()

    def peek(self, stream: str, rows: int) -> QueryResult:
        with self._lock:
            return self._session.peek(stream, rows, _PEEK_SECONDS)

    def keep(self, name: str | None) -> str:
        with self._lock:
            return self._session.checkpoint(name)

    def restore(self, wanted: Wanted) -> list[str]:
        with self._lock:
            sinks = "keep" if wanted.keep else None
            self._session.restore(wanted.checkpoint, sinks=sinks, pipeline=wanted.pipeline)
            return [warning.message for warning in self._session.warnings]
