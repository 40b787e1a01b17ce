"""A Kafka broker for tests."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from examples import systems

USER, PASSWORD = "alice", "zz-right-password-zz"
_SASL = """
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
"""


class Broker(systems.Broker):
    """A broker that tests fill, read and kill. It has a second listener that requires a login."""

    def _settings(self) -> str:
        plain = f"listeners=PLAINTEXT://{self.brokers}"
        text = super()._settings().replace(plain, f"{plain},SASL_PLAINTEXT://{self.sasl_brokers}")
        text = text.replace("T:PLAINTEXT\n", "T:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT\n")
        return text + _SASL.format(user=USER, password=PASSWORD)

    @property
    def sasl_brokers(self) -> str:
        return f"127.0.0.1:{self.spare_port}"

    # Operations of tests

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})

    def create(self, topic: str, partitions: int = 1, **config: str) -> str:
        admin = self.admin()
        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, partitions, 1, config=settings)
        admin.create_topics([new])[topic].result(30)
        self._until_led(topic)
        return topic

    def _until_led(self, topic: str) -> None:
        """Wait until a topic has leaders: a new topic has none for a moment."""
        deadline = time.monotonic() + 30
        while True:
            try:
                self._ends(self.admin(), topic, True)
                return
            except (KafkaException, KeyError):
                assert time.monotonic() < deadline, f"{topic} has no leader"
                time.sleep(0.02)

    def grow(self, topic: str, partitions: int) -> None:
        admin = self.admin()
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
        self._until_led(topic)

    def drop(self, topic: str) -> None:
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(30)

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records before an offset, as retention would."""
        admin = self.admin()
        position = TopicPartition(topic, partition, offset)
        admin.delete_records([position])[position].result(30)

    def produce(
        self,
        topic: str,
        values: Sequence[str | bytes | None],
        partition: int = 0,
        keys: Sequence[str | bytes | None] | None = None,
        **more: Any,
    ) -> None:
        producer = Producer({"bootstrap.servers": self.brokers, "linger.ms": 5, "log_level": 0})
        _produce_all(producer, topic, values, partition, keys, more)
        assert producer.flush(60) == 0

    def produce_in_transaction(
        self, topic: str, values: Sequence[str | bytes | None], partition: int, commit: bool
    ) -> None:
        """Produce records in a transaction, and commit or abort it."""
        name = f"other-{uuid.uuid4().hex}"
        producer = Producer({"bootstrap.servers": self.brokers, "transactional.id": name})
        producer.init_transactions(60)
        producer.begin_transaction()
        _produce_all(producer, topic, values, partition, None, {})
        producer.flush(60)
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
        self.settle(topic)

    def settle(self, topic: str) -> None:
        """Wait until no transaction is open. Brokers write the markers after the commit returns."""
        admin = self.admin()
        deadline = time.monotonic() + 60
        while self._ends(admin, topic, True) != self._ends(admin, topic, False):
            assert time.monotonic() < deadline, f"{topic} has an open transaction"
            time.sleep(0.02)

    def _ends(self, admin: AdminClient, topic: str, committed: bool) -> list[int]:
        levels = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
        request = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
        futures = admin.list_offsets(request, isolation_level=levels[0 if committed else 1])
        return [future.result(30).offset for _, future in sorted(futures.items())]

    def read(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        """Return all messages of a topic, ordered by partition and offset."""
        if isolation == "read_committed":
            self.settle(topic)
        consumer = Consumer(
            {
                "bootstrap.servers": self.brokers,
                "group.id": f"test-{uuid.uuid4().hex}",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        try:
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            messages: list[Message] = []
            open_partitions = set(partitions)
            deadline = time.monotonic() + 60
            while open_partitions:
                assert time.monotonic() < deadline, f"{topic} has no end"
                for message in consumer.consume(1000, 0.5):
                    error = message.error()
                    if error is None:
                        messages.append(Message(message))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        open_partitions.discard(message.partition())
                    else:
                        raise KafkaException(error)
            return sorted(messages, key=lambda item: (item.partition, item.offset))
        finally:
            consumer.close()


class Message:
    """The parts of a message that tests compare."""

    def __init__(self, message: Any) -> None:
        self.partition, self.offset = message.partition(), message.offset()
        self.key, self.value = message.key(), message.value()
        self.headers = message.headers() or []


def _produce_all(
    producer: Producer,
    topic: str,
    values: Sequence[str | bytes | None],
    partition: int,
    keys: Sequence[str | bytes | None] | None,
    more: Mapping[str, Any],
) -> None:
    errors: list[Any] = []

    def on_delivery(error: Any, _: Any) -> None:
        if error is not None:
            errors.append(error)

    for key, value in zip(keys or [None] * len(values), values, strict=True):
        producer.produce(topic, value, key, partition, on_delivery=on_delivery, **more)
        producer.poll(0)
    producer.flush(60)
    assert not errors, errors[0]
