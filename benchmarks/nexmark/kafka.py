"""NEXMark events in temporary Kafka topics."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.nexmark.scripts import WATERMARK
from tidegate.connectors.generator.nexmark import TABLES
from tidegate.connectors.kafka.client import RESPONSE_TIMEOUT_S, Connection, Topics

_PARTITIONS = 2
_QUEUED = 100_000


@dataclass(frozen=True)
class KafkaEvents:
    """Events in Kafka: one topic per table, all with the same prefix."""

    brokers: str
    prefix: str

    def topic(self, table: str) -> str:
        return f"{self.prefix}-{table}"

    def declaration(self, table: str) -> str:
        columns = ", ".join(f"{name} {kind}" for name, kind in TABLES[table].columns)
        return (
            f"CREATE SOURCE {table} ({columns}, {WATERMARK}) WITH (connector = 'kafka', "
            f"topic = '{self.topic(table)}', brokers = '{self.brokers}', max_future = 'off');"
        )


@contextlib.contextmanager
def temporary_topics(stored: Path, brokers: str) -> Iterator[KafkaEvents]:
    """Create topics with the events of Parquet files as JSON; delete the topics at the end."""
    settings = {"bootstrap.servers": brokers, "log_level": 0}
    connection = Connection("NEXMark", brokers, settings)
    topics = Topics(connection)
    # Fail early if no broker responds.
    topics.partitions()
    events = KafkaEvents(brokers, f"nexmark-{uuid.uuid4().hex[:8]}")
    names = [events.topic(table) for table in TABLES]
    try:
        _create(topics.admin, names, connection)
        for table in TABLES:
            _send(connection, stored / table, events.topic(table))
        yield events
    finally:
        for future in topics.admin.delete_topics(names).values():
            with contextlib.suppress(Exception):
                future.result(RESPONSE_TIMEOUT_S)


def _create(admin: Any, names: list[str], connection: Connection) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    try:
        for future in admin.create_topics([NewTopic(name, _PARTITIONS) for name in names]).values():
            future.result(RESPONSE_TIMEOUT_S)
    except KafkaException as error:
        raise connection.unavailable(error.args[0]) from None


def _send(connection: Connection, folder: Path, topic: str) -> None:
    """Send the rows of the files in order, round-robin over the partitions."""
    import pyarrow.parquet as pq
    from confluent_kafka import Producer

    producer = Producer(
        {**connection.settings, "linger.ms": 50, "queue.buffering.max.messages": 2 * _QUEUED}
    )
    failed: list[Any] = []
    number = 0
    for path in sorted(folder.glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            text = json.dumps(row, default=lambda time: time.isoformat())
            producer.produce(
                topic,
                text,
                partition=number % _PARTITIONS,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            number += 1
            if number % _QUEUED == 0:
                _flush(producer, failed, connection)
    _flush(producer, failed, connection)


def _flush(producer: Any, failed: list[Any], connection: Connection) -> None:
    if producer.flush(60) or failed:
        raise connection.unavailable(failed[0] if failed else "the events were not acknowledged")
