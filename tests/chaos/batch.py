"""Expected rows of a batch run over the topics, and the rows of each sink."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.chaos.feed import Row
from tests.real.kafka import Broker
from tests.real.postgres import Postgres
from tests.support.sessions import bag

# The queries of `program` over all rows; times are microseconds.
QUERIES = {
    "sales": """SELECT auction, us - us % 15000000 AS window_start,
        us - us % 15000000 + 15000000 AS window_end, count(*) AS n, sum(price)::BIGINT AS total,
        max(price) AS top FROM bids GROUP BY ALL""",
    "pairs": """SELECT b.id AS bid, a.id AS ask, a.price - b.price AS spread FROM bids b JOIN asks a
        ON a.auction = b.auction AND a.us BETWEEN b.us - 2000000 AND b.us + 2000000""",
    "best": """SELECT us - us % 15000000 + 15000000 AS window_end, id, price FROM bids QUALIFY
        row_number() OVER (PARTITION BY us - us % 15000000 ORDER BY price DESC, id) <= 3""",
    "named": "SELECT b.id, b.price, s.name FROM bids b LEFT JOIN sellers s ON b.auction = s.auction",
    "totals": "SELECT auction, count(*) AS n, sum(price)::BIGINT AS total FROM bids GROUP BY ALL",
}
_TIMES = ("window_start", "window_end")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Difference:
    """How the rows of a sink differ from the batch."""

    rows: int
    missing: int
    unexpected: int

    @property
    def is_none(self) -> bool:
        return not self.missing and not self.unexpected


def expected(
    topics: Mapping[str, Sequence[Row]], sellers: Mapping[int, str]
) -> dict[str, list[Row]]:
    """Compute the rows of each stream from all rows in the topics."""
    named = pa.table({"auction": list(sellers), "name": list(sellers.values())})
    with duckdb.connect() as connection:
        connection.register("sellers", named)
        for name, rows in topics.items():
            timed = [{**row, "us": _micros(datetime.fromisoformat(row["ts"]))} for row in rows]
            connection.register(name, pa.Table.from_pylist(timed))
        return {
            name: connection.sql(sql).to_arrow_table().to_pylist() for name, sql in QUERIES.items()
        }


@dataclass(frozen=True)
class Sinks:
    """The sinks of the pipeline."""

    broker: Broker
    topic: str
    postgres: Postgres
    out: Path

    def rows(self, kind: str, stream: str) -> list[Row]:
        """Return all rows of a stream in one kind of sink."""
        rows: list[Row] = getattr(self, f"_{kind}")(stream)
        return [{name: _plain(name, value) for name, value in row.items()} for row in rows]

    def _kafka(self, stream: str) -> list[Row]:
        messages = self.broker.read(f"{self.topic}-{stream}")
        if all(message.key is None for message in messages):
            return [json.loads(message.value) for message in messages]
        # The last record of a key is its value, as in a compacted topic.
        last = {message.key: message.value for message in messages}
        return [json.loads(value) for value in last.values() if value is not None]

    def _postgres(self, stream: str) -> list[Row]:
        return [row for (row,) in self.postgres.query(f"SELECT to_jsonb(t) FROM {stream} AS t")]

    def _delta(self, stream: str) -> list[Row]:
        return list(DeltaTable(str(self.out / "delta" / stream)).to_pyarrow_table().to_pylist())

    def _files(self, stream: str) -> list[Row]:
        paths = sorted((self.out / "files" / stream).glob("*.parquet"))
        return [row for path in paths for row in pq.read_table(path).to_pylist()]


def compare(
    sinks: Sinks, kinds: Mapping[str, Sequence[str]], batch: Mapping[str, list[Row]]
) -> dict[str, Difference]:
    """Compare every sink with the batch, and rows with a random number between sinks: recomputing
    them would change the number."""
    differences: dict[str, Difference] = {}
    rolled: dict[str, Counter[str]] = {}
    for kind, streams in kinds.items():
        for stream in streams:
            # JSON records have no fields for NULL.
            columns = dict.fromkeys(batch[stream][0])
            rows = [{**columns, **row} for row in sinks.rows(kind, stream)]
            plain = [{name: v for name, v in row.items() if name != "dice"} for row in rows]
            differences[f"{stream} in {kind}"] = _difference(bag(batch[stream]), bag(plain))
            if stream == "named":
                rolled[kind] = bag(rows)
    first, *others = rolled
    for kind in others:
        differences[f"dice in {first} and {kind}"] = _difference(rolled[first], rolled[kind])
    return differences


def _difference(expected_rows: Counter[str], rows: Counter[str]) -> Difference:
    return Difference(rows.total(), (expected_rows - rows).total(), (rows - expected_rows).total())


def _plain(name: str, value: Any) -> Any:
    if name not in _TIMES:
        return value
    return _micros(datetime.fromisoformat(value) if isinstance(value, str) else value)


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)
