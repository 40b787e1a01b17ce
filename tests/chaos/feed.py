"""Rows in topics: some by plain producers, some in transactions, of which some are aborted."""

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
# A transaction whose producer cannot end it holds the readers of its partition for so long.
_TIMEOUT_MS = 10_000
# The id of what was aborted.
NOISE = -1

Row = dict[str, Any]


class Feed:
    """Two topics that grow by ten seconds of rows at a time."""

    def __init__(self, broker: Broker, topic: str, dice: random.Random) -> None:
        self.broker, self.topic, self.random = broker, topic, dice
        self.seconds = 0
        self.ids = 0
        # The ids of rows that were surely committed.
        self.sure: set[int] = set()
        self.transactions = self.aborted = 0
        self._held: list[Producer] = []
        for name in SOURCES:
            broker.create(f"{topic}-{name}", PARTITIONS)

    def add(self) -> None:
        """Ten seconds of rows in every partition."""
        for name in SOURCES:
            for partition in range(PARTITIONS):
                topic = f"{self.topic}-{name}"
                rows = [self._row() for _ in range(ROWS)]
                self.sure.update(row["id"] for row in rows)
                if self.random.random() < 0.7:
                    self.broker.produce(topic, [json.dumps(row) for row in rows], partition)
                    continue
                noise = [{**row, "id": NOISE} for row in rows]
                self._begin(topic, partition, noise).abort_transaction(60)
                self._begin(topic, partition, rows).commit_transaction(60)
                self.transactions, self.aborted = self.transactions + 1, self.aborted + 1
        self.seconds += SECONDS

    def hold(self) -> None:
        """Leave a transaction open: readers wait before it, whatever is killed meanwhile."""
        topic = f"{self.topic}-{self.random.choice(SOURCES)}"
        rows = [self._row() for _ in range(ROWS)]
        self._held.append(self._begin(topic, self.random.randrange(PARTITIONS), rows))

    def release(self) -> None:
        """End what was left open; if a broker has lost it, only the topic knows how it ended."""
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
        assert producer.flush(60) == 0, "the broker takes all of them"
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
        """What a reader of committed records finds; all that was surely committed is there once."""
        found = {
            name: [json.loads(m.value) for m in self.broker.read(f"{self.topic}-{name}")]
            for name in SOURCES
        }
        ids = [row["id"] for rows in found.values() for row in rows]
        assert len(ids) == len(set(ids)) and self.sure <= set(ids), "the input itself is there once"
        assert NOISE not in ids, "what was aborted is not there"
        return found
