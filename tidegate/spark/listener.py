"""Hears of the progress of queries and hands it to whoever runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

Progress = dict[str, Any]


class ProgressListener(StreamingQueryListener):
    """One per SparkSession; dispatches by the run id of the query."""

    def __init__(self) -> None:
        self._watchers: dict[str, Callable[[Progress], None]] = {}

    def watch(self, run_id: str, watcher: Callable[[Progress], None]) -> None:
        self._watchers[run_id] = watcher

    def forget(self, run_id: str) -> None:
        self._watchers.pop(run_id, None)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing to tell yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """An idle query changes no counter."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self.forget(str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        watcher = self._watchers.get(str(event.progress.runId))
        if watcher is not None:
            watcher(json.loads(event.progress.json))
