"""A test double for the data source of the console. Its values are constants, not measurements."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from tests.support.compiling import compile_with_sources
from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Stream
from tidegate.checkpoint.checkpoints import Checkpoint, RestoreRequest
from tidegate.console.graph import StreamGraph, graph_of
from tidegate.console.providers import ObjectDescription
from tidegate.observe.status import OperatorStatus, State, StreamStatus
from tidegate.observe.timeline import EpochDurations, EpochTotals
from tidegate.physical.explain import explain
from tidegate.queries.engine import QueryResult

STATUS = StreamStatus(
    "bids", State.RUNNING, 3, 10, 4, 5.0, 2.0, operators=(OperatorStatus("window", bytes=7),)
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class StubProvider:
    """A console provider with constant values.

    Tests assign `current_statuses`, `recent_epochs`, `catalog` and `error`. Calls of the other
    methods are recorded in `calls`; they raise `error` if it is set.
    """

    title = "shop.sql"

    def __init__(self, live: bool = True) -> None:
        self.live = live
        self.current_statuses: tuple[StreamStatus, ...] = (STATUS,)
        self.recent_epochs = [EpochDurations("main", 3, 50.0, (("plan", 0.5), ("run", 1.0)), 10, 4)]
        self.recent_checkpoints: list[Checkpoint] = []
        self.calls: list[Any] = []
        self.error: Exception | None = None
        self.catalog = Catalog()

    def _record(self, *call: Any) -> None:
        self.calls.append(call)
        if self.error is not None:
            raise self.error

    def statuses(self) -> tuple[StreamStatus, ...]:
        if self.error is not None:
            raise self.error
        return self.current_statuses

    def epochs(self) -> list[EpochDurations]:
        return self.recent_epochs

    def epoch_totals(self) -> list[EpochTotals]:
        return [EpochTotals("main", 1)]

    def graph(self) -> StreamGraph:
        return graph_of(self.catalog)

    def describe(self, name: str) -> ObjectDescription:
        self._record("describe", name)
        declared = self.catalog.get(name)
        if isinstance(declared, Stream):
            return ObjectDescription(name, declared.create_sql(), explain(declared.plan, name))
        return ObjectDescription(name, f"CREATE STREAM {name} …;", "the plan")

    def checkpoints(self) -> list[Checkpoint]:
        return self.recent_checkpoints

    def peek(self, stream: str, rows: int) -> QueryResult:
        self._record("peek", stream, rows)
        return QueryResult(pa.table({"a": [1, None], "b": [b"x", None]}))

    def create_checkpoint(self, name: str | None) -> str:
        self._record("create_checkpoint", name)
        return name or "checkpoint-1"

    def restore(self, request: RestoreRequest) -> list[str]:
        self._record("restore", request)
        return ["rows appear twice"]


STREAMS = """
CREATE STREAM dear AS
SELECT auction, bidder, price, ts FROM bids WHERE price > 10;
CREATE STREAM per_minute AS
SELECT auction, window_start, window_end, count(*) AS n, max(price) AS top
FROM dear
GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)
EMIT ON WINDOW CLOSE LATE DATA TO late_bids;
CREATE STREAM spread AS
SELECT b.auction, b.price AS bid, a.price AS ask
FROM bids AS b JOIN asks AS a
ON a.auction = b.auction AND a.ts BETWEEN b.ts - INTERVAL '1' MINUTE AND b.ts + INTERVAL '1' MINUTE;
CREATE STREAM named AS
SELECT c.name, p.n, p.top FROM per_minute AS p JOIN customers AS c ON p.auction = c.id;
CREATE SINK names FROM named WITH (connector = 'files', path = 'out/names');
CREATE SINK too_late FROM late_bids WITH (connector = 'memory');
"""


def provider_with_streams() -> StubProvider:
    """Return a provider with declared streams, their statuses, one epoch and two checkpoints."""
    provider = StubProvider()
    provider.catalog = compile_with_sources(STREAMS).catalog
    operators = {
        node.stream: node.name
        for node in provider.graph().nodes.values()
        if node.kind == "operator"
    }
    provider.current_statuses = tuple(
        StreamStatus(
            name,
            State.RUNNING,
            epoch=0,
            rows_in=100,
            rows_out=40,
            rows_in_per_second=20.0,
            rows_out_per_second=8.0,
            watermark=NOON,
            watermark_lag_seconds=2.0,
            operators=(OperatorStatus(operators[name], NOON, bytes=1024),)
            if name in operators
            else (),
        )
        for name in ("per_minute", "spread", "named")
    )
    provider.recent_epochs = []
    add_epoch(provider)
    provider.recent_checkpoints = [
        Checkpoint("main", None, 0, 5, NOON, 4, 100, 1024),
        Checkpoint("main", "before-change", 0, 0, NOON, 4, 20, 512),
    ]
    return provider


def add_epoch(provider: StubProvider) -> None:
    """Append an epoch of 200 ms."""
    steps = (("plan", 0.01), ("run", 0.14), ("commit", 0.02), ("publish", 0.03))
    number = len(provider.recent_epochs)
    provider.recent_epochs.append(EpochDurations("main", number, NOON.timestamp(), steps, 20, 8))
