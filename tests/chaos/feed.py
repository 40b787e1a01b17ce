"""Rows in topics: from plain producers, and in transactions, some of which are aborted."""

from __future__ import annotations

import json
import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.real.kafka import Broker

START = datetime(2026, 1, 1, tzinfo=UTC)
SOURCES = ("bids", "asks")
PARTITIONS = 3
AUCTIONS = 20
ROWS = 15
SECONDS = 10
# If a producer cannot end its transaction, readers of its partition wait for this time.
_TIMEOUT_MS = 10_000
# The ID of aborted rows.
NOISE = -1

Row = dict[str, Any]


class Feed:
    """Two topics that grow by ten seconds of rows at a time."""

    def __init__(self, broker: Broker, topic: str, dice: random.Random) -> None:
        self.broker, self.topic, self.random = broker, topic, dice
        self.seconds = 0
        self.ids = 0
        # The IDs of committed rows. Transactions with an unknown result are not among them.
        self.committed: set[int] = set()
        self.transactions = self.aborted = 0
        self._held: list[Producer] = []
        for name in SOURCES:
            broker.create(f"{topic}-{name}", PARTITIONS)

    def add(self) -> None:
        """Add ten seconds of rows to every partition."""
        for name in SOURCES:
            for partition in range(PARTITIONS):
                topic = f"{self.topic}-{name}"
                rows = [self._row() for _ in range(ROWS)]
                self.committed.update(row["id"] for row in rows)
                if self.random.random() < 0.7:
                    self.broker.produce(topic, [json.dumps(row) for row in rows], partition)
                    continue
                noise = [{**row, "id": NOISE} for row in rows]
                self._begin(topic, partition, noise).abort_transaction(60)
                self._begin(topic, partition, rows).commit_transaction(60)
                self.transactions, self.aborted = self.transactions + 1, self.aborted + 1
        self.seconds += SECONDS

    def hold(self) -> None:
        """Leave a transaction open: readers wait for its end."""
        topic = f"{self.topic}-{self.random.choice(SOURCES)}"
        rows = [self._row() for _ in range(ROWS)]
        self._held.append(self._begin(topic, self.random.randrange(PARTITIONS), rows))

    def release(self) -> None:
        """End the open transactions. If a broker has lost one, only the topic shows its result."""
        for producer in self._held:
            end = self.random.choice([producer.commit_transaction, producer.abort_transaction])
            try:
                end(60)
            except KafkaException:
                continue
            self.transactions += 1
        self._held.clear()

    def _begin(self, topic: str, partition: int, rows: list[Row]) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.broker.brokers,
                "transactional.id": f"other-{uuid.uuid4().hex}",
                "transaction.timeout.ms": _TIMEOUT_MS,
                "log_level": 0,
            }
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        for row in rows:
            producer.produce(topic, json.dumps(row), partition=partition)
        assert producer.flush(60) == 0, "the broker did not accept all rows"
        return producer

    def _row(self) -> Row:
        self.ids += 1
        at = START + timedelta(seconds=self.seconds + self.random.uniform(0, SECONDS))
        return {
            "id": self.ids,
            "auction": self.random.randrange(AUCTIONS),
            "price": self.random.randrange(1000),
            "ts": at.isoformat(),
        }

    def read(self) -> dict[str, list[Row]]:
        """Read the committed records; require that known committed rows exist once."""
        topics = {
            name: [json.loads(m.value) for m in self.broker.read(f"{self.topic}-{name}")]
            for name in SOURCES
        }
        ids = [row["id"] for rows in topics.values() for row in rows]
        assert len(ids) == len(set(ids)) and self.committed <= set(ids), (
            "the input has missing or duplicate rows"
        )
        assert NOISE not in ids, "the input has aborted rows"
        return topics
