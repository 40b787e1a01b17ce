"""What a consumer of Kafka tells instead of records. No broker is needed."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from tidegate.connectors import kafka_tasks
from tidegate.connectors.kafka_client import Connection
from tidegate.connectors.kafka_tasks import KafkaReader
from tidegate.errors import SystemAway

CONNECTION = Connection("the source s", "b:9092", {"bootstrap.servers": "b:9092"})
# Offsets 5 and 6 of partition 0.
PART = [0, "t", 0, 5, 7, 0]


class Complaint:
    """No record: an error of a partition, with an offset far behind the range."""

    def __init__(self, code: int) -> None:
        self.code = code

    def error(self) -> KafkaError:
        return KafkaError(self.code)

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 1000


def read(monkeypatch: pytest.MonkeyPatch, code: int) -> int:
    """The rows of the range, from a consumer that only complains."""

    class Consumer:
        def __init__(self, _: dict[str, Any]) -> None: ...

        def consume(self, _: int, __: float) -> list[Complaint]:
            time.sleep(0.005)
            return [Complaint(code)]

        def assign(self, _: Any) -> None: ...

        def unassign(self) -> None: ...

        def incremental_unassign(self, _: Any) -> None: ...

    monkeypatch.setattr(kafka_tasks, "_consumers", {})
    monkeypatch.setattr(kafka_tasks, "_SILENT_SECONDS", 0.05)
    monkeypatch.setattr(confluent_kafka, "Consumer", Consumer)
    return sum(count for _, count in KafkaReader(CONNECTION, ()).read([PART]))


def test_a_complaint_ends_no_range(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemAway, match="silent"):
        read(monkeypatch, KafkaError.UNKNOWN_TOPIC_OR_PART)


def test_the_end_of_a_partition_ends_a_range_whose_last_offsets_hold_no_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert read(monkeypatch, KafkaError._PARTITION_EOF) == 0
