"""What a driver asks the brokers: which partitions there are, and how far they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate.connectors.kafka_client import (
    ANSWER_SECONDS,
    Complaints,
    Connection,
    is_login,
    require_client,
)

# A topic and the number of a partition.
Place = tuple[str, int]
EARLIEST, LATEST = "earliest", "latest"


class Topics:
    """Asks brokers; what they do not answer is a `SystemAway`."""

    def __init__(self, connection: Connection) -> None:
        require_client()
        from confluent_kafka.admin import AdminClient

        self.connection = connection
        self.complaints = Complaints(connection)
        try:
            settings: dict[str, Any] = {**connection.settings, "error_cb": self.complaints}
            self.admin = AdminClient(settings)
        except Exception as error:
            raise connection.refused(error) from None

    def partitions(self) -> tuple[str, dict[str, int]]:
        """The id of the cluster, and how many partitions each topic has."""
        from confluent_kafka import KafkaException

        try:
            found = self.admin.list_topics(timeout=ANSWER_SECONDS)
        except KafkaException as error:
            self.admin.poll(0)
            raise self.complaints.error(error.args[0]) from None
        counts = {
            name: len(topic.partitions)
            for name, topic in found.topics.items()
            if topic.error is None
        }
        return str(found.cluster_id), counts

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """What tells a topic from one of its name that was created later."""
        from confluent_kafka import TopicCollection

        asked = self.admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=ANSWER_SECONDS
        )
        return {name: str(self._result(future).topic_id) for name, future in asked.items()}

    def offsets(self, places: Iterable[Place], at: str | int) -> dict[Place, int]:
        """The first or the last offset, or that of a time in milliseconds; what transactions have
        not committed yet is behind the end."""
        from confluent_kafka import IsolationLevel, TopicPartition, admin

        specs: Any = admin.OffsetSpec  # type: ignore[attr-defined]
        spec = getattr(specs, at)() if isinstance(at, str) else specs.for_timestamp(at)
        wanted = {TopicPartition(*place): spec for place in places}
        if not wanted:
            return {}
        asked = self.admin.list_offsets(
            wanted,
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=ANSWER_SECONDS,
        )
        return {
            (place.topic, place.partition): int(self._result(future).offset)
            for place, future in asked.items()
        }

    def _result(self, future: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return future.result(2 * ANSWER_SECONDS)
        except KafkaException as error:
            self.admin.poll(0)
            if is_login(error.args[0]):
                raise self.connection.login_refused(error.args[0]) from None
            raise self.complaints.error(error.args[0]) from None
        except TimeoutError:
            self.admin.poll(0)
            raise self.complaints.error("they do not answer") from None
