"""Something for the console to show, without a session."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from tests.compiling import compile_with_sources
from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Stream
from tidegate.checkpoint.checkpoints import Checkpoint, Wanted
from tidegate.console.graph import Graph, graph_of
from tidegate.console.providers import Described
from tidegate.observe.status import OperatorStatus, State, StreamStatus
from tidegate.observe.timeline import EpochSums, EpochTimes
from tidegate.physical.explain import explain
from tidegate.queries.engine import QueryResult

STATUS = StreamStatus(
    "bids", State.RUNNING, 3, 10, 4, 5.0, 2.0, operators=(OperatorStatus("window", bytes=7),)
)


class Fake:
    """Shows what it is told to, and notes what it was asked to do."""

    title = "shop.sql"

    def __init__(self, live: bool = True) -> None:
        self.live = live
        self.now: tuple[StreamStatus, ...] = (STATUS,)
        self.times = [EpochTimes("main", 3, 50.0, (("cut", 0.5), ("run", 1.0)), 10, 4)]
        self.said: list[Any] = []
        self.error: Exception | None = None
        self.catalog = Catalog()

    def _do(self, *what: Any) -> None:
        self.said.append(what)
        if self.error is not None:
            raise self.error

    def statuses(self) -> tuple[StreamStatus, ...]:
        if self.error is not None:
            raise self.error
        return self.now

    def epochs(self) -> list[EpochTimes]:
        return self.times

    def sums(self) -> list[EpochSums]:
        return [EpochSums("main", 1)]

    def graph(self) -> Graph:
        return graph_of(self.catalog)

    def described(self, name: str) -> Described:
        self._do("described", name)
        return Described(name, "CREATE STREAM bids …;", "the plan")

    def checkpoints(self) -> list[Any]:
        return []

    def peek(self, stream: str, rows: int) -> QueryResult:
        self._do("peek", stream, rows)
        return QueryResult(pa.table({"a": [1, None], "b": [b"x", None]}))

    def keep(self, name: str | None) -> str:
        self._do("keep", name)
        return name or "checkpoint-1"

    def restore(self, wanted: Wanted) -> list[str]:
        self._do("restore", wanted)
        return ["rows are there twice"]


SHOP = """
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
CREATE MATERIALIZED VIEW top_prices AS
SELECT auction, max(price) AS top FROM bids GROUP BY auction EMIT ON UPDATE;
CREATE SINK names FROM named WITH (connector = 'files', path = 'out/names');
CREATE SINK spreads FROM spread WITH (connector = 'blackhole');
CREATE SINK too_late FROM late_bids WITH (connector = 'memory');
"""
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Shop(Fake):
    """A shop whose numbers change with every `go_on`."""

    def __init__(self, live: bool = True) -> None:
        super().__init__(live)
        self.catalog = compile_with_sources(SHOP).catalog
        for unread in ("rates", "orders", "plain", "history"):
            self.catalog.remove(unread)
        nodes = graph_of(self.catalog).nodes.values()
        self._operators = {node.stream: node.name for node in nodes if node.kind == "operator"}
        self.times, self.epoch = [], -1
        self.go_on()

    def go_on(self) -> None:
        self.epoch += 1
        rate = 4000 + 1500 * math.sin(self.epoch / 6)
        run = 0.12 + 0.05 * math.sin(self.epoch / 3)
        steps = (("cut", 0.01), ("run", run), ("decide", 0.02), ("commit", 0.03))
        self.times.append(EpochTimes("main", self.epoch, time.time(), steps, int(rate), 900))
        streams = ("per_minute", "spread", "named", "top_prices")
        self.now = tuple(self._status(name, n + 1, rate) for n, name in enumerate(streams))

    def _status(self, name: str, place: int, rate: float) -> StreamStatus:
        mark = _NOON.replace(minute=self.epoch // 60 % 60, second=self.epoch % 60)
        kept = 300_000 + self.epoch * 900 * place
        own = [self._operators[name]] if name in self._operators else []
        return StreamStatus(
            name,
            State.RUNNING,
            self.epoch,
            rows_in=self.epoch * 4000,
            rows_out=self.epoch * 900,
            rows_in_per_second=rate * place / 3,
            rows_out_per_second=rate / (place + 1),
            watermark=mark,
            watermark_lag_seconds=2 + math.sin(self.epoch / 5) + place / 4,
            late_rows=self.epoch * place // 7,
            dead_letters=2,
            state_bytes=kept if own else 0,
            operators=tuple(OperatorStatus(o, mark, 3, 20, 4, 1200, kept) for o in own),
        )

    def described(self, name: str) -> Described:
        declared = self.catalog.get(name)
        assert declared is not None
        plan = explain(declared.plan, name) if isinstance(declared, Stream) else None
        return Described(name, declared.create_sql(), plan)

    def checkpoints(self) -> list[Any]:
        last = Checkpoint("main", None, 0, self.epoch, _NOON, 4, self.epoch * 4000, 310_000)
        return [last, Checkpoint("main", "before-change", 0, 0, _NOON, 4, 48_000, 300_000)]
