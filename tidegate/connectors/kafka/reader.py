"""Consumes the splits of a Kafka source in tasks.

Python workers import this module, so it must load little.
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from tidegate.columns import (
    ARRIVAL_FILE,
    ARRIVAL_ROW,
    MALFORMED_RECORD,
    PARTITION,
    RECORD_FILE,
    RECORD_LINE,
)
from tidegate.connectors.formats.json import decode_json
from tidegate.connectors.formats.lines import FIRST, TEXT_BYTES
from tidegate.connectors.kafka.avro import AVRO_REASON, AvroDecoder
from tidegate.connectors.kafka.client import ClientErrors, Connection, Partition, is_login_error
from tidegate.errors import SystemUnavailable, TidegateError
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS
from tidegate.operators.vectorized import RecordFailed

# The hidden column that is true for records without a value, which delete their key.
TOMBSTONE = "_tg_tombstone"
_BATCH_BYTES = 16 << 20
_BATCH_RECORDS = 10_000
# How long brokers may be silent before a task fails. The epoch is then planned again.
_SILENCE_TIMEOUT_S = 20.0
_POLL_S = 0.05
_MESSAGES_PER_POLL = 2_000
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# The metadata of a record that a source may declare as METADATA columns.
METADATA_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "key": pa.binary(),
    "headers": _HEADERS,
}
_SETTINGS = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    # Reading always starts at a known offset. If it does not exist, that is an error.
    "auto.offset.reset": "error",
    # The records of a range exist already, so fetching does not need to wait for them.
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 65536,
}


def metadata_column(name: str) -> str:
    """Return the hidden column with this metadata of a record."""
    return f"_tg_meta_{name}"


@dataclass(frozen=True)
class TombstoneKey:
    """Converts the key of a tombstone to a record.

    The key is a JSON object with the key columns, or the value of one `column`. Such a value is
    JSON if it `is_json`, and otherwise text.
    """

    column: str | None
    is_json: bool

    def record(self, key: bytes | None) -> bytes:
        """Return the JSON record that contains only the key."""
        if key is None or self.column is None:
            return key or b""
        text = key if self.is_json else json.dumps(key.decode("utf-8", "replace")).encode()
        return b'{"' + json.dumps(self.column)[1:-1].encode() + b'": ' + text + b"}"


@dataclass(frozen=True)
class KafkaReader:
    """Reads records as bytes, which Spark decodes. Implements `SplitReader`.

    A split is a list of parts [number, topic, partition, start, end, range_number], at most one for
    each partition. `number` is the position of the partition in the source, `range_number` that of
    the input range in the stream.
    """

    connection: Connection
    # The metadata that the source declares as columns.
    metadata: tuple[str, ...]
    # How keys of tombstones are read; None if their records are not needed.
    keys: TombstoneKey | None = None
    # Converts values to JSON if they are Avro.
    decoder: AvroDecoder | None = None

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(
            [
                (TEXT_BYTES, pa.binary()),
                (RECORD_FILE, pa.string()),
                (RECORD_LINE, pa.int64()),
                (FIRST, pa.bool_()),
                (ARRIVAL_FILE, pa.string()),
                (ARRIVAL_ROW, pa.int64()),
                (PARTITION, pa.int32()),
                (TOMBSTONE, pa.bool_()),
                *((metadata_column(name), METADATA_TYPES[name]) for name in self.metadata),
                *([(AVRO_REASON, pa.string())] if self.decoder is not None else []),
            ]
        )

    def read(self, split: list[list[Any]]) -> Iterator[tuple[pa.RecordBatch, int]]:
        schema = self.schema
        for batch in partition_batches(self.connection, split):
            yield self._record_batch(batch, schema), len(batch.messages)

    def _record_batch(self, batch: PartitionBatch, schema: pa.Schema) -> pa.RecordBatch:
        messages, count = batch.messages, len(batch.messages)
        values = batch.values
        offsets = pa.array(batch.offsets, pa.int64())
        tombstones = [value is None for value in values]
        texts, reasons = self._texts(messages, values)
        arrays: list[Any] = [
            pa.array(texts, pa.binary()),
            pa.repeat(pa.scalar(batch.path), count),
            offsets,
            pa.repeat(pa.scalar(False), count),
            pa.repeat(pa.scalar(batch.arrival), count),
            offsets,
            pa.repeat(pa.scalar(batch.number, pa.int32()), count),
            pa.array(tombstones, pa.bool_()),
        ]
        arrays += [
            pa.array(_metadata(name, messages), METADATA_TYPES[name]) for name in self.metadata
        ]
        arrays += [pa.array(reasons, pa.string())] if self.decoder is not None else []
        return pa.record_batch(arrays, schema=schema)

    def _texts(
        self, messages: list[Any], values: list[bytes | None]
    ) -> tuple[list[bytes], list[str | None]]:
        """Return the texts of values, and the reasons why they are malformed.

        The text of a tombstone is made from its key.
        """
        reasons: list[str | None] = [None] * len(values)
        texts = [b"" if value is None else value for value in values]
        if self.decoder is not None:
            indexes = [index for index, value in enumerate(values) if value is not None]
            decoded = self.decoder.texts([texts[index] for index in indexes])
            for index, text, reason in zip(indexes, *decoded, strict=True):
                texts[index], reasons[index] = text, reason
        if self.keys is not None:
            for index, value in enumerate(values):
                if value is None:
                    texts[index] = self.keys.record(messages[index].key())
        return texts, reasons


def _metadata(name: str, messages: list[Any]) -> list[Any]:
    """Return this metadata of each record."""
    if name == "timestamp":
        timestamps = [message.timestamp() for message in messages]
        return [ms * 1000 if kind else None for kind, ms in timestamps]
    if name == "headers":
        return [
            [{"key": key, "value": value} for key, value in message.headers() or []]
            for message in messages
        ]
    return [getattr(message, name)() for message in messages]


@dataclass(frozen=True)
class PartitionBatch:
    """Records of one partition, in order."""

    messages: list[Any]
    offsets: list[int]
    # The position of the partition in the source.
    number: int
    # The topic and the partition, as dead letters show them.
    path: str
    # Orders batches by their arrival.
    arrival: str

    @property
    def values(self) -> list[bytes | None]:
        from confluent_kafka import Message

        return list(map(Message.value, self.messages))


def partition_batches(connection: Connection, split: list[list[Any]]) -> Iterator[PartitionBatch]:
    """Yield the records of a split in batches of one partition each."""
    consumer = _consumer(connection)
    try:
        yield from _batches(consumer, split)
    except TidegateError:
        # The brokers may be available, but not to this consumer. The next task opens another one.
        consumer.forget()
        raise


def _batches(consumer: _Consumer, split: list[list[Any]]) -> Iterator[PartitionBatch]:
    parts = {(part[1], part[2]): part for part in split}
    buffered: dict[Partition, list[RecordRun]] = {partition: [] for partition in parts}
    count = size = 0
    for run in consumer.runs(parts.values()):
        buffered[run.partition].append(run)
        count, size = count + len(run.messages), size + sum(map(len, run.messages))
        if count >= _BATCH_RECORDS or size >= _BATCH_BYTES:
            yield from _flush(buffered, parts)
            count = size = 0
    yield from _flush(buffered, parts)


def _flush(
    buffered: dict[Partition, list[RecordRun]], parts: dict[Partition, list[Any]]
) -> Iterator[PartitionBatch]:
    for (topic, partition), runs in buffered.items():
        if runs:
            part = parts[topic, partition]
            number, range_number = part[0], part[5]
            messages = [message for run in runs for message in run.messages]
            offsets = [offset for run in runs for offset in run.offsets]
            arrival = f"{range_number:012d} {number:06d}"
            yield PartitionBatch(messages, offsets, number, f"{topic}/{partition}", arrival)
            runs.clear()


@dataclass(frozen=True)
class RecordRun:
    """Records of one partition that a consumer returned one after the other."""

    partition: Partition
    messages: list[Any]
    offsets: list[int]


def _grouped(messages: list[Any]) -> Iterator[tuple[Partition, bool, list[Any]]]:
    """Group messages by partition and by whether they are records, in their order."""
    from confluent_kafka import Message

    # No line of Python per record: that would cost as much as fetching it.
    topics: list[Any] = list(map(Message.topic, messages))
    partitions: list[Any] = list(map(Message.partition, messages))
    are_records: list[Any] = [error is None for error in map(Message.error, messages)]
    if messages and all(
        items.count(items[0]) == len(messages) for items in (topics, partitions, are_records)
    ):
        yield (topics[0], partitions[0]), are_records[0], messages
        return
    start = 0
    keys = zip(topics, partitions, are_records, strict=True)
    for (topic, partition, is_record), group in groupby(keys):
        count = len(list(group))
        yield (topic, partition), is_record, messages[start : start + count]
        start += count


class _Consumer:
    """A consumer that is used by all tasks of a worker: connecting takes longer than reading."""

    def __init__(self, connection: Connection) -> None:
        from confluent_kafka import Consumer

        self.connection = connection
        self.client_errors = ClientErrors(connection)
        settings = {**connection.settings, **_SETTINGS, "group.id": f"tidegate-{os.getpid()}"}
        self.consumer: Any = Consumer({**settings, "error_cb": self.client_errors})

    def forget(self) -> None:
        """Remove this consumer from the cache of the worker."""
        for key in [key for key, (_, consumer) in _consumers.items() if consumer is self]:
            del _consumers[key]

    def runs(self, parts: Iterable[list[Any]]) -> Iterator[RecordRun]:
        """Yield the records of all parts, in order within each partition.

        Some offsets have no record: transactions use offsets for their markers.
        """
        from confluent_kafka import TopicPartition

        starts = [TopicPartition(part[1], part[2], part[3]) for part in parts]
        self.consumer.assign(starts)
        try:
            yield from self._consume({(part[1], part[2]): [part[3], part[4]] for part in parts})
        finally:
            self.consumer.unassign()

    def _consume(self, open_parts: dict[Partition, list[int]]) -> Iterator[RecordRun]:
        """Read until no part is open; a part is the next offset of a partition and its end."""
        from confluent_kafka import Message

        last_response = time.monotonic()
        while open_parts:
            remaining = sum(end - position for position, end in open_parts.values())
            polled = self.consumer.consume(min(remaining, _MESSAGES_PER_POLL), _POLL_S)
            for partition, are_records, messages in _grouped(polled):
                part = open_parts.get(partition)
                if not are_records:
                    messages = [message for message in messages if self._is_end(message, part)]
                if part is None or not messages:
                    continue
                last_response = time.monotonic()
                offsets: list[Any] = list(map(Message.offset, messages))
                count = bisect_left(offsets, part[1]) if are_records else 0
                if count:
                    yield RecordRun(partition, messages[:count], offsets[:count])
                part[0] = max(part[0], offsets[-1], offsets[count - 1] + 1 if count else 0)
                if part[0] >= part[1]:
                    self._close(partition)
                    del open_parts[partition]
            if time.monotonic() - last_response > _SILENCE_TIMEOUT_S:
                raise self.client_errors.error("they are silent")

    def _close(self, partition: Partition) -> None:
        from confluent_kafka import TopicPartition

        self.consumer.incremental_unassign([TopicPartition(*partition)])

    def _is_end(self, message: Any, part: list[int] | None) -> bool:
        """Return whether a message without a record marks the end of its partition.

        Other errors that may be temporary do not count as a response: the records are still
        expected.
        """
        from confluent_kafka import KafkaError

        error = message.error()
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            start = "" if part is None else f" from offset {part[0]} on"
            raise SystemUnavailable(
                f"{self.connection.label}: records{start} do not exist anymore",
                "the epoch will be planned again.",
            )
        if is_login_error(error):
            raise self.connection.login_rejected(error)
        if error.fatal():
            raise self.connection.unavailable(error)
        return bool(error.code() == KafkaError._PARTITION_EOF)


_consumers: dict[int, tuple[Connection, _Consumer]] = {}


def _consumer(connection: Connection) -> _Consumer:
    """Return the consumer of this worker for a connection."""
    key = hash((connection.brokers, json.dumps(dict(connection.settings), sort_keys=True)))
    cached = _consumers.get(key)
    if cached is None or cached[0] != connection:
        _consumers[key] = (connection, _Consumer(connection))
    return _consumers[key][1]


# ---- Records that tasks decode, without Spark.


@dataclass(frozen=True)
class JsonReader:
    """Reads and decodes plain JSON records. Implements `SplitReader`.

    It returns the columns `names`, and the position of each record if `arrival` is true. A split is
    that of `KafkaReader`.
    """

    connection: Connection
    decoded: pa.Schema
    names: tuple[str, ...]
    arrival: bool

    @property
    def schema(self) -> pa.Schema:
        fields = [self.decoded.field(name) for name in self.names]
        if self.arrival:
            fields += ARRIVAL_FIELDS
        return pa.schema(
            [*fields, pa.field(MALFORMED_RECORD, pa.string()), pa.field(PARTITION, pa.int32())]
        )

    def read(self, split: list[list[Any]]) -> Iterator[tuple[pa.RecordBatch, int]]:
        for batch in partition_batches(self.connection, split):
            yield self._record_batch(batch), len(batch.messages)

    def _record_batch(self, batch: PartitionBatch) -> pa.RecordBatch:
        texts = [value for value in batch.values if value is not None]
        if len(texts) != len(batch.messages):
            raise RecordFailed("a record without a value")
        rows = decode_json(texts, self.decoded)
        arrays = [rows.column(name).combine_chunks() for name in self.names]
        if self.arrival:
            arrays.append(pa.repeat(pa.scalar(batch.arrival), len(texts)))
            arrays.append(pa.array(batch.offsets, pa.int64()))
        arrays.append(rows.column(MALFORMED_RECORD).combine_chunks())
        arrays.append(pa.repeat(pa.scalar(batch.number, pa.int32()), len(texts)))
        return pa.record_batch(arrays, schema=self.schema)
