"""Transactions of a Kafka sink: the rows of an epoch and its commit marker become visible together.

The commit marker is a committed offset of a consumer group without consumers. Its number is the
epoch, and its metadata has the generation and the sink that wrote it. It is only read after
`init_transactions`, which aborts the transaction of an earlier producer: before that, it may be
stale.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.base import EpochId
from tidegate.connectors.kafka.client import (
    RESPONSE_TIMEOUT_S,
    ClientErrors,
    Connection,
    is_login_error,
    require_client,
)
from tidegate.errors import RunError, TidegateError

# How long a coordinator may take to respond.
_COORDINATOR_TIMEOUT_S = 20.0
# How much longer than its own timeout a call may take before its producer is abandoned.
_GRACE_S = 5.0
_RECORDS_PER_POLL = 1_000
# Producers with a call that does not return. Destroying them would not return either.
_ABANDONED: list[Any] = []
# After a broker restart, a producer may wait for a response that never comes.
_SOCKET_TIMEOUT_MS = 15_000
_DEFAULTS = {
    # The same key goes to the same partition as with the Java producer.
    "partitioner": "murmur2_random",
    "linger.ms": 10,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 512 << 10,
}

# Pairs of key and value.
Records = Iterable[tuple[bytes | None, bytes | None]]


class ProducerFenced(Exception):
    """The broker rejects this producer: another one took over, or the transaction timed out."""


class HangingTransaction(Exception):
    """The commit marker cannot be read, because a transaction was left open.

    Initializing the producer did not end it: the coordinator considers it complete. Kafka 4.3.0 and
    4.3.1 do this after a crash (KAFKA-20734). `marker` is the last one that can be read.
    """

    def __init__(self, marker: TopicMarker | None) -> None:
        super().__init__()
        self.marker = marker


@dataclass(frozen=True)
class TopicMarker:
    """The commit marker of a topic: the last epoch that it contains, and the sink that wrote it."""

    epoch: EpochId
    # A random ID of the `KafkaSink`.
    instance_id: str

    @property
    def offset(self) -> int:
        # A sink without an epoch, -1, has the offset 0: offsets cannot be negative.
        return self.epoch.epoch + 1

    def metadata(self) -> str:
        """Return the text that is stored with the offset."""
        return json.dumps({"generation": self.epoch.generation, "instance_id": self.instance_id})

    @classmethod
    def from_metadata(cls, offset: int, metadata: str) -> TopicMarker:
        """Create a marker from a committed offset."""
        fields = json.loads(metadata)
        return cls(EpochId(int(fields["generation"]), offset - 1), str(fields["instance_id"]))


class Transactions:
    """A transactional producer and its commit marker. After any error it has to be opened again."""

    def __init__(self, connection: Connection, name: str, topic: str, timeout_us: int) -> None:
        require_client()
        self.connection = connection
        # The transactional.id of the producer and the group of the marker.
        self.name = name
        self.topic = topic
        self.timeout_ms = timeout_us // 1000
        self.client_errors = ClientErrors(connection)
        self.producer: Any = None
        self.consumer: Any = None
        self._delivery_error: Any = None

    # Opening

    def open(self) -> TopicMarker | None:
        """Abort the transaction of an earlier producer, then read the commit marker.

        If this fails, the producer is closed: rows may only be written after the marker was read.
        Only after a `HangingTransaction` it stays open, because the caller may know the last epoch.
        """
        self.close()
        self.client_errors = ClientErrors(self.connection)
        from confluent_kafka import Consumer, KafkaException, Producer

        # The client requires that a response takes no longer than a transaction.
        timeout = {"socket.timeout.ms": min(_SOCKET_TIMEOUT_MS, self.timeout_ms)}
        producer_settings = {
            **_DEFAULTS,
            **timeout,
            **self.connection.settings,
            "error_cb": self.client_errors,
            "transactional.id": self.name,
            "transaction.timeout.ms": self.timeout_ms,
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivery_error,
        }
        consumer_settings = {
            **self.connection.settings,
            "error_cb": self.client_errors,
            "group.id": self.name,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        try:
            self.producer = Producer(producer_settings)
            self.consumer = Consumer(consumer_settings)
        except Exception as error:
            self.close()
            raise self.connection.setting_error(error) from None
        try:
            self.producer.init_transactions(_COORDINATOR_TIMEOUT_S)
            return self._read_marker()
        except HangingTransaction:
            raise
        except KafkaException as error:
            failure = self._failure(error.args[0])
            self.close()
            raise failure from None
        except BaseException:
            self.close()
            raise

    def _read_marker(self) -> TopicMarker | None:
        from confluent_kafka import KafkaException, TopicPartition

        deadline = time.monotonic() + _COORDINATOR_TIMEOUT_S
        while True:
            try:
                (position,) = self.consumer.committed(
                    [TopicPartition(self.topic, 0)], timeout=RESPONSE_TIMEOUT_S
                )
                return self._marker(position)
            except KafkaException as error:
                if is_login_error(error.args[0]):
                    raise
                # A coordinator that has just started does not know its groups yet.
                if time.monotonic() > deadline:
                    self._require_no_hanging_transaction()
                    raise
                time.sleep(0.1)

    def _marker(self, position: Any) -> TopicMarker | None:
        from confluent_kafka import OFFSET_INVALID

        if position.offset == OFFSET_INVALID:
            return None
        try:
            return TopicMarker.from_metadata(position.offset, position.metadata)
        except (ValueError, KeyError, TypeError):
            raise RunError(
                "TG-526",
                f"{self.connection.label}: the group {self.name} has an offset that is not a "
                "commit marker",
                hint=f"only the sink may commit offsets of the group {self.name}.",
            ) from None

    def _require_no_hanging_transaction(self) -> None:
        """Raise `HangingTransaction` if the broker responds but withholds the marker."""
        from confluent_kafka import (
            ConsumerGroupTopicPartitions,
            KafkaError,
            KafkaException,
            TopicPartition,
        )
        from confluent_kafka.admin import AdminClient

        group = ConsumerGroupTopicPartitions(self.name, [TopicPartition(self.topic, 0)])

        def position(stable: bool) -> Any:
            groups = admin.list_consumer_group_offsets(
                [group], require_stable=stable, request_timeout=RESPONSE_TIMEOUT_S
            )
            return groups[self.name].result(2 * RESPONSE_TIMEOUT_S).topic_partitions[0]

        try:
            settings: dict[str, Any] = {
                **self.connection.settings,
                "error_cb": self.client_errors,
            }
            admin = AdminClient(settings)
            error = position(stable=True).error
            if error is None or error.code() != KafkaError.UNSTABLE_OFFSET_COMMIT:
                return
            last = position(stable=False)
        except (KafkaException, TimeoutError):
            # The broker is unavailable, which the caller reports.
            return
        raise HangingTransaction(self._marker(last))

    # Writing

    def write(self, records: Records, marker: TopicMarker) -> None:
        """Write records and the marker in one transaction: all of them become visible, or none.

        If this fails, the producer is closed. The transaction may still have been committed.
        """
        from confluent_kafka import KafkaException, TopicPartition

        self._delivery_error = None
        position = TopicPartition(self.topic, 0, marker.offset, metadata=marker.metadata())
        try:
            self.producer.begin_transaction()
            number = -1
            for number, (key, value) in enumerate(records):
                self._produce(key, value, number)
            group = self.consumer.consumer_group_metadata()
            send_offsets = self.producer.send_offsets_to_transaction
            commit = self.producer.commit_transaction
            self._call(send_offsets, _COORDINATOR_TIMEOUT_S, [position], group)
            self._before_commit()
            # Records may take as long as the transaction may. A transaction with only a marker must
            # not wait that long for an unavailable coordinator.
            timeout_s = self.timeout_ms / 1000 if number >= 0 else 0.0
            self._call(commit, max(timeout_s, _COORDINATOR_TIMEOUT_S))
        except KafkaException as error:
            self._poll_delivery_errors()
            failure = self._failure(error.args[0])
            self._abort()
            raise failure from None
        except BaseException:
            self._abort()
            raise

    def _call(self, function: Callable[..., Any], timeout_s: float, *arguments: Any) -> None:
        """Call a function of the producer that takes a timeout, but may ignore it.

        An idle producer that loses its coordinator does not find it again. Such a producer is
        abandoned, and the next one fences it.
        """
        errors: list[BaseException] = []

        def run() -> None:
            try:
                function(*arguments, timeout_s)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(timeout_s + _GRACE_S)
        if thread.is_alive():
            _ABANDONED.append(self.producer)
            self.producer = None
            raise self.client_errors.error("the coordinator does not respond")
        if errors:
            raise errors[0]

    def _before_commit(self) -> None:
        """Do nothing. Tests replace this."""

    def _produce(self, key: bytes | None, value: bytes | None, number: int) -> None:
        if number % _RECORDS_PER_POLL == 0:
            self.producer.poll(0)
            self._require_delivered()
        while True:
            try:
                self.producer.produce(self.topic, value, key)
                return
            except BufferError:
                self.producer.poll(0.1)
                self._require_delivered()

    def _on_delivery_error(self, error: Any, _: Any) -> None:
        self._delivery_error = self._delivery_error or error

    def _poll_delivery_errors(self) -> None:
        """Receive pending delivery errors: calls may fail before the error of a record arrives."""
        from confluent_kafka import KafkaException

        # The client may set an error of its own while it runs the callback.
        with suppress(KafkaException, SystemError):
            self.producer.poll(0)

    def _require_delivered(self) -> None:
        from confluent_kafka import KafkaException

        if self._delivery_error is not None:
            raise KafkaException(self._delivery_error)

    def _abort(self) -> None:
        """Abort the transaction if possible, and close. Otherwise the next producer aborts it."""
        from confluent_kafka import KafkaException

        try:
            if self.producer is not None:
                self.producer.purge()
                self._call(self.producer.abort_transaction, RESPONSE_TIMEOUT_S)
        except (KafkaException, TidegateError):
            pass
        self.close()

    def close(self) -> None:
        """Release the clients."""
        if self.consumer is not None:
            self.consumer.close()
        self.producer = self.consumer = None

    @property
    def is_open(self) -> bool:
        """Whether `write` may be called: opened, and no connection lost since."""
        if self.producer is None:
            return False
        self.producer.poll(0)
        return not self.client_errors.disturbed

    # Errors

    def _failure(self, error: Any) -> Exception:
        """Translate the error of a call. A failed delivery is its cause, if there is one."""
        from confluent_kafka import KafkaError

        cause = self._delivery_error or error
        if cause.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD):
            return RunError(
                "TG-504",
                f"the topic {self.topic} rejected a record of {self.connection.label}: "
                f"{self.connection.describe(cause)}",
                hint="raise max.message.bytes of the topic and the option "
                "kafka.message.max.bytes, then restart. No data was lost.",
            )
        if error.code() in _fencing_errors():
            return ProducerFenced()
        if is_login_error(error) or is_login_error(cause):
            return self.connection.login_rejected(cause)
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return RunError(
                "TG-207",
                f"{self.connection.label}: the broker does not allow a transaction_timeout of "
                f"{self.timeout_ms} ms",
                hint="choose a shorter one, or raise transaction.max.timeout.ms of the broker.",
            )
        return self.client_errors.error(cause)


def _fencing_errors() -> tuple[int, ...]:
    from confluent_kafka import KafkaError

    return (
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError._STATE,
    )


def spooled_records(tables: Iterable[Any]) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield the keys and values of tables whose two columns are key and value."""
    for table in tables:
        for batch in table.to_batches():
            keys, values = (batch.column(index).cast("binary").to_pylist() for index in (0, 1))
            yield from zip(keys, values, strict=True)
