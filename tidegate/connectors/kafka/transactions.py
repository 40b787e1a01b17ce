"""Transactions of a Kafka sink: the rows of an epoch and its marker become visible together.

The marker is a committed offset of a group that nobody reads by: its number says the epoch, its
metadata the generation and who wrote it. It is read behind `init_transactions`, which ends what an
earlier producer has left open: before that it may be stale.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.base import EpochId
from tidegate.connectors.kafka.client import (
    ANSWER_SECONDS,
    ClientErrors,
    Connection,
    is_login,
    require_client,
)
from tidegate.errors import RunError, TidegateError

# How long a coordinator may take to answer; whoever waits longer is told why.
_COORDINATOR_SECONDS = 20.0
# How much longer than it should a call may take before it is given up.
_GRACE_SECONDS = 5.0
_POLL_EVERY = 1_000
# Producers that are in a call which does not return: to end them would not return either.
_ABANDONED: list[Any] = []

Rows = Iterable[tuple[bytes | None, bytes | None]]


class Fenced(Exception):
    """Another producer has begun to write in our name, or the broker has given us up."""


class HangingTransaction(Exception):
    """The commit marker cannot be read, because a transaction was left open.

    Initializing the producer did not end it: the coordinator considers it complete. Kafka 4.3.0 and
    4.3.1 do this after a crash (KAFKA-20734). `marker` is the last one that can be read.
    """

    def __init__(self, marker: Marker | None) -> None:
        super().__init__()
        self.marker = marker


@dataclass(frozen=True)
class Marker:
    """The last epoch that a topic has, and who wrote it."""

    epoch: EpochId
    owner: str

    def metadata(self) -> str:
        return json.dumps({"generation": self.epoch.generation, "owner": self.owner})

    @property
    def offset(self) -> int:
        # The marker of a sink that has no epoch yet is 0.
        return self.epoch.epoch + 1

    @classmethod
    def of(cls, offset: int, metadata: str) -> Marker:
        told = json.loads(metadata)
        return cls(EpochId(int(told["generation"]), offset - 1), str(told["owner"]))


class Transactions:
    """One producer and its marker; whatever goes wrong, it is opened anew."""

    def __init__(self, connection: Connection, name: str, topic: str, timeout_us: int) -> None:
        require_client()
        self.connection = connection
        self.name = name
        self.topic = topic
        self.timeout_ms = timeout_us // 1000
        self.complaints = ClientErrors(connection)
        self.producer: Any = None
        self.consumer: Any = None
        self._failed: Any = None

    # Opening

    def open(self) -> Marker | None:
        """Abort the transaction of an earlier producer, then read the commit marker.

        If this fails, the producer is closed: rows may only be written after the marker was read.
        Only after a `HangingTransaction` it stays open, because the caller may know the last epoch.
        """
        self.close()
        self.complaints = ClientErrors(self.connection)
        from confluent_kafka import Consumer, KafkaException, Producer

        # The client wants no answer to take longer than a transaction.
        patience = {"socket.timeout.ms": min(_SOCKET_MS, self.timeout_ms)}
        given = {**_DEFAULTS, **patience, **self.connection.settings}
        settings = {**given, "error_cb": self.complaints}
        own = {
            "transactional.id": self.name,
            "transaction.timeout.ms": self.timeout_ms,
            "delivery.report.only.error": True,
            "on_delivery": self._undelivered,
        }
        reading = {"group.id": self.name, "enable.auto.commit": False}
        try:
            self.producer = Producer({**settings, **own})
            self.consumer = Consumer(
                {
                    **self.connection.settings,
                    **reading,
                    "isolation.level": "read_committed",
                    "error_cb": self.complaints,
                }
            )
        except Exception as error:
            self.close()
            raise self.connection.rejected(error) from None
        try:
            self.producer.init_transactions(_COORDINATOR_SECONDS)
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

    def _read_marker(self) -> Marker | None:
        from confluent_kafka import KafkaException, TopicPartition

        deadline = time.monotonic() + _COORDINATOR_SECONDS
        while True:
            try:
                (position,) = self.consumer.committed(
                    [TopicPartition(self.topic, 0)], timeout=ANSWER_SECONDS
                )
                return self._marker_of(position)
            except KafkaException as error:
                if is_login(error.args[0]):
                    raise
                # A coordinator that has just started does not know its groups yet.
                if time.monotonic() > deadline:
                    self._require_no_hanging_transaction()
                    raise
                time.sleep(0.1)

    def _marker_of(self, position: Any) -> Marker | None:
        from confluent_kafka import OFFSET_INVALID

        if position.offset == OFFSET_INVALID:
            return None
        try:
            return Marker.of(position.offset, position.metadata)
        except (ValueError, KeyError, TypeError):
            raise RunError(
                "TG-526",
                f"{self.connection.owner}: the group {self.name} has an offset that is not a "
                "commit marker",
                hint=f"only the sink may commit offsets of the group {self.name}.",
            ) from None

    def _require_no_hanging_transaction(self) -> None:
        """Raise `HangingTransaction` if the broker answers but withholds the marker."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
        from confluent_kafka import TopicPartition as Partition
        from confluent_kafka.admin import AdminClient

        group = ConsumerGroupTopicPartitions(self.name, [Partition(self.topic, 0)])

        def position(stable: bool) -> Any:
            groups = admin.list_consumer_group_offsets(
                [group], require_stable=stable, request_timeout=ANSWER_SECONDS
            )
            return groups[self.name].result(2 * ANSWER_SECONDS).topic_partitions[0]

        try:
            admin = AdminClient({**self.connection.settings, "error_cb": self.complaints})
            error = position(stable=True).error
            if error is None or error.code() != KafkaError.UNSTABLE_OFFSET_COMMIT:
                return
            last = position(stable=False)
        except (KafkaException, TimeoutError):
            # The broker does not answer either: the caller reports that.
            return
        raise HangingTransaction(self._marker_of(last))

    # Writing

    def write(self, rows: Rows, marker: Marker) -> None:
        """Rows and marker in one transaction: all of it is visible, or nothing."""
        from confluent_kafka import KafkaException, TopicPartition

        self._failed = None
        place = TopicPartition(self.topic, 0, marker.offset, metadata=marker.metadata())
        try:
            self.producer.begin_transaction()
            number = -1
            for number, (key, value) in enumerate(rows):
                self._produce(key, value, number)
            group = self.consumer.consumer_group_metadata()
            send, commit = (
                self.producer.send_offsets_to_transaction,
                self.producer.commit_transaction,
            )
            self._within(_COORDINATOR_SECONDS, send, [place], group)
            self._before_commit()
            # Rows may take as long as their transaction; without any, a coordinator that is gone
            # holds nobody for longer than it must.
            seconds = self.timeout_ms / 1000 if number >= 0 else 0.0
            self._within(max(seconds, _COORDINATOR_SECONDS), commit)
        except KafkaException as error:
            self._hear()
            found = self._failure(error.args[0])
            self._abort()
            raise found from None
        except BaseException:
            self._abort()
            raise

    def _within(self, seconds: float, call: Any, *given: Any) -> None:
        """A call that may never return: a producer that lost its coordinator while it had nothing
        to do does not find it again. It is left alone then, and fenced by the next one."""
        failed: list[BaseException] = []

        def run() -> None:
            try:
                call(*given, seconds)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(seconds + _GRACE_SECONDS)
        if thread.is_alive():
            _ABANDONED.append(self.producer)
            self.producer = None
            raise self.complaints.error("their coordinator is silent")
        if failed:
            raise failed[0]

    def _before_commit(self) -> None:
        """Nothing happens here; tests put something in its place."""

    def _produce(self, key: bytes | None, value: bytes | None, number: int) -> None:
        if number % _POLL_EVERY == 0:
            self.producer.poll(0)
            self._require_delivered()
        while True:
            try:
                self.producer.produce(self.topic, value, key)
                return
            except BufferError:
                self.producer.poll(0.1)
                self._require_delivered()

    def _undelivered(self, error: Any, _: Any) -> None:
        self._failed = self._failed or error

    def _hear(self) -> None:
        """A call may fail because of a row before it was told what became of that row."""
        from confluent_kafka import KafkaException

        # The client may set an error of its own while it calls back.
        with suppress(KafkaException, SystemError):
            self.producer.poll(0)

    def _require_delivered(self) -> None:
        from confluent_kafka import KafkaException

        if self._failed is not None:
            raise KafkaException(self._failed)

    def _abort(self) -> None:
        """Let go: the next one to open ends the transaction."""
        from confluent_kafka import KafkaException

        try:
            if self.producer is not None:
                self.producer.purge()
                self._within(ANSWER_SECONDS, self.producer.abort_transaction)
        except (KafkaException, TidegateError):
            pass
        self.close()

    def close(self) -> None:
        if self.consumer is not None:
            self.consumer.close()
        self.producer = self.consumer = None

    @property
    def is_open(self) -> bool:
        """Whether it can write: not if a connection was lost since it was opened."""
        if self.producer is None:
            return False
        self.producer.poll(0)
        return not self.complaints.disturbed

    # What goes wrong

    def _failure(self, error: Any) -> Exception:
        from confluent_kafka import KafkaError

        told = self._failed or error
        if told.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD):
            return RunError(
                "TG-504",
                f"{self.connection.owner} has a row that the topic {self.topic} does not take: "
                f"{self.connection.told(told)}",
                hint="raise max.message.bytes of the topic, and kafka.message.max.bytes here; then "
                "start again: nothing is lost.",
            )
        if error.code() in _fenced():
            return Fenced()
        if is_login(error) or is_login(told):
            return self.connection.login_rejected(told)
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return RunError(
                "TG-207",
                f"{self.connection.owner}: the broker allows no transaction_timeout of "
                f"{self.timeout_ms} ms",
                hint="choose a shorter one, or raise transaction.max.timeout.ms of the broker.",
            )
        return self.complaints.error(told)


# A producer whose broker came back may wait for an answer that never comes.
_SOCKET_MS = 15_000
_DEFAULTS = {
    # Records of a key are where the producers of Java put them.
    "partitioner": "murmur2_random",
    "linger.ms": 10,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 512 << 10,
}


def _fenced() -> tuple[int, ...]:
    from confluent_kafka import KafkaError

    return (
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError._STATE,
    )


def spooled(tables: Iterable[Any]) -> Iterator[tuple[bytes | None, bytes | None]]:
    """The keys and values of tables with these two columns."""
    for table in tables:
        for batch in table.to_batches():
            keys, values = (batch.column(place).cast("binary").to_pylist() for place in (0, 1))
            yield from zip(keys, values, strict=True)
