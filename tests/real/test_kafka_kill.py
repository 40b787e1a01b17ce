"""Kill a pipeline between Kafka topics in the middle of a transaction.

The input contains committed and aborted transactions of another producer. `test_kafka_loop` kills
the pipeline at every step of an epoch, in one process.
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
from tests.support.sessions import bag

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("kafka_kill_program.py")
START = datetime(2026, 1, 1, tzinfo=UTC)
PARTITIONS = 3
BATCH = """SELECT auction, (us - us % 15000000)::BIGINT AS window_start, count(*) AS n,
    sum(price)::BIGINT AS total FROM bids GROUP BY ALL"""


class Input:
    """Produces rows to all partitions. Some of the transactions are aborted."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.broker, self.topic = broker, topic
        self.random = random.Random(11)
        self.rows: list[dict[str, Any]] = []
        self.seconds = 0
        broker.create(topic, PARTITIONS)
        for name in ("sales", "cheap", "again"):
            broker.create(f"{topic}-{name}", 2)

    def add(self) -> None:
        """Produce ten seconds of rows."""
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
            rows = connection.sql(BATCH).to_arrow_table().to_pylist()
        return [{**row, "window_start": start_text(row["window_start"])} for row in rows]


def start_text(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def run_program(data: Path, broker: Broker, topic: str, *more: str) -> tuple[int, str]:
    """Run the pipeline in a process; return its exit code and its last line of output."""
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
        # Spark's JVM would continue for minutes, and it holds the other end of the pipe.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    output = process.stdout.read()
    process.stdout.close()
    return code, output.splitlines()[-1] if output else ""


def values(broker: Broker, topic: str) -> list[dict[str, Any]]:
    return [json.loads(message.value) for message in broker.read(topic)]


def test_writes_every_row_once_after_kill_in_transaction(broker: Broker, tmp_path: Path) -> None:
    topic = f"bids-{uuid.uuid4().hex[:8]}"
    bids = Input(broker, topic)
    data = tmp_path / "data"
    for _ in range(4):
        bids.add()
    # About the third epoch: some transactions are committed, and one is open.
    killed, _ = run_program(data, broker, topic, "--kill", "150")
    assert killed == -9, "it was not killed"
    for _ in range(2):
        bids.add()
    assert run_program(data, broker, topic, "--until-end") == (0, "done, 0 late rows")
    sales = values(broker, f"{topic}-sales")
    assert bag(sales) == bag(bids.expected_sales()) and len(sales) > 30
    cheap = values(broker, f"{topic}-cheap")
    expected = [{"id": row["id"], "price": row["price"]} for row in bids.rows if row["price"] < 500]
    assert bag({"id": row["id"], "price": row["price"]} for row in cheap) == bag(expected)
    # The rows contain random numbers: computing them again would change them.
    assert bag(cheap) == bag(values(broker, f"{topic}-again"))
