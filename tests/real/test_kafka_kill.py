"""kill -9 of a pipeline between topics, in the middle of a transaction.

Transactions of another producer, committed and aborted, are in the input. `test_kafka_loop` dies at
every step of an epoch, in one process.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.real.kafka import Broker
from tests.spark.helpers import bag

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("kafka_kill_program.py")
START = datetime(2026, 1, 1, tzinfo=UTC)
PARTITIONS = 3
BATCH = """SELECT auction, (us - us % 15000000)::BIGINT AS window_start, count(*) AS n,
    sum(price)::BIGINT AS total FROM bids GROUP BY ALL"""


class Input:
    """Rows that go to all partitions; some of the transactions are aborted."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.broker, self.topic = broker, topic
        self.random = random.Random(11)
        self.rows: list[dict[str, Any]] = []
        self.seconds = 0
        broker.create(topic, PARTITIONS)
        for name in ("sales", "cheap", "again"):
            broker.create(f"{topic}-{name}", 2)

    def add(self) -> None:
        """Ten seconds of rows."""
        for partition in range(PARTITIONS):
            rows = [self._row() for _ in range(40)]
            self.rows += rows
            texts = [json.dumps(row) for row in rows]
            if partition == 1:
                self.broker.produce_in_transaction(self.topic, texts, partition, commit=True)
                noise = [json.dumps({**row, "id": -1}) for row in rows]
                self.broker.produce_in_transaction(self.topic, noise, partition, commit=False)
            else:
                self.broker.produce(self.topic, texts, partition)
        self.seconds += 10

    def _row(self) -> dict[str, Any]:
        at = START + timedelta(seconds=self.seconds + self.random.uniform(0, 10))
        return {
            "id": len(self.rows) * 1000 + self.random.randrange(1000),
            "auction": self.random.randrange(10),
            "price": self.random.randrange(1000),
            "ts": at.isoformat(),
        }

    def expected_sales(self) -> list[dict[str, Any]]:
        micros = [
            int(datetime.fromisoformat(row["ts"]).timestamp() * 1_000_000) for row in self.rows
        ]
        table = pa.Table.from_pylist(
            [{**r, "us": us} for r, us in zip(self.rows, micros, strict=True)]
        )
        with duckdb.connect() as connection:
            connection.register("bids", table)
            found = connection.sql(BATCH).to_arrow_table().to_pylist()
        return [{**row, "window_start": start_text(row["window_start"])} for row in found]


def start_text(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def life(data: Path, broker: Broker, topic: str, *more: str) -> tuple[int, str]:
    """One life of the pipeline: its exit code and its last words."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(data), broker.brokers, topic, *more],
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROGRAM.parents[2],
        env={**os.environ, "PYTHONPATH": str(PROGRAM.parents[2])},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        code = process.wait(timeout=300)
    finally:
        # Spark's JVM would live on for minutes, and has the other end of the pipe.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    shown = process.stdout.read()
    process.stdout.close()
    return code, shown.splitlines()[-1] if shown else ""


def values(broker: Broker, topic: str) -> list[dict[str, Any]]:
    return [json.loads(message.value) for message in broker.read(topic)]


def test_killed_around_its_transactions_every_row_is_there_once(
    broker: Broker, tmp_path: Path
) -> None:
    topic = f"bids-{uuid.uuid4().hex[:8]}"
    given = Input(broker, topic)
    data = tmp_path / "data"
    for _ in range(4):
        given.add()
    # In the third epoch or so: some transactions are committed, and rows of another one are there.
    killed, _ = life(data, broker, topic, "--kill", "150")
    assert killed == -9, "it was not killed"
    for _ in range(2):
        given.add()
    assert life(data, broker, topic, "--until-end") == (0, "done, 0 late rows")
    sales = values(broker, f"{topic}-sales")
    assert bag(sales) == bag(given.expected_sales()) and len(sales) > 30
    cheap = values(broker, f"{topic}-cheap")
    expected = [
        {"id": row["id"], "price": row["price"]} for row in given.rows if row["price"] < 500
    ]
    assert bag({"id": row["id"], "price": row["price"]} for row in cheap) == bag(expected)
    # Rows with a random number: whoever computes them again gives another one.
    assert bag(cheap) == bag(values(broker, f"{topic}-again"))
