"""Reads ranges of partitions in tasks. Python workers import it: it must load little."""

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
    BAD_RECORD,
    PARTITION,
    RECORD_FILE,
    RECORD_LINE,
)
from tidegate.connectors.formats.json import decode_json
from tidegate.connectors.formats.lines import FIRST, TEXT_BYTES
from tidegate.connectors.kafka.avro import REASON, AvroDecoder
from tidegate.connectors.kafka.client import ClientErrors, Connection, is_login
from tidegate.errors import SystemUnavailable, TidegateError
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS
from tidegate.operators.vectorized import RecordFailed

# A topic and a partition of it.
Place = tuple[str, int]
# Whether a record has no value: it deletes its key.
TOMBSTONE = "_tg_tombstone"
_BATCH_BYTES = 16 << 20
_BATCH_RECORDS = 10_000
# How long brokers may be silent before a task gives up, and the epoch is cut anew.
_SILENT_SECONDS = 20.0
_POLL_SECONDS = 0.05
_CONSUMED = 2_000
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# What a record tells besides its content, as hidden columns.
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
    # Where nobody has read yet is known: an offset that is not there is an error.
    "auto.offset.reset": "error",
    # What is asked for is there already.
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 65536,
}


def metadata_column(name: str) -> str:
    """The hidden column that holds what a record tells."""
    return f"_tg_meta_{name}"


@dataclass(frozen=True)
class KeyText:
    """How the key of a tombstone becomes a record: as it is, or as the value of one column."""

    column: str | None
    plain: bool

    def record(self, key: bytes | None) -> bytes:
        if key is None or self.column is None:
            return key or b""
        text = key if self.plain else json.dumps(key.decode("utf-8", "replace")).encode()
        return b'{"' + json.dumps(self.column)[1:-1].encode() + b'": ' + text + b"}"


@dataclass(frozen=True)
class KafkaReader:
    """Reads shares, which are lists of parts [number, topic, partition, start, end, cut], at most
    one for each partition."""

    connection: Connection
    # What is wanted of a record besides its content.
    metadata: tuple[str, ...]
    # How keys of tombstones are read; None if there are none.
    keys: KeyText | None = None
    # What makes texts of values that are none.
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
                *([(REASON, pa.string())] if self.decoder is not None else []),
            ]
        )

    def read(self, split: list[list[Any]]) -> Iterator[tuple[pa.RecordBatch, int]]:
        schema = self.schema
        for taken in taken_of(self.connection, split):
            yield self._batch(taken, schema), len(taken.messages)

    def _batch(self, taken: Taken, schema: pa.Schema) -> pa.RecordBatch:
        messages, count = taken.messages, len(taken.messages)
        values = taken.values
        offsets = pa.array(taken.offsets, pa.int64())
        gone = [value is None for value in values]
        texts, reasons = self._texts(messages, values)
        arrays: list[Any] = [
            pa.array(texts, pa.binary()),
            pa.repeat(pa.scalar(taken.shown), count),
            offsets,
            pa.repeat(pa.scalar(False), count),
            pa.repeat(pa.scalar(taken.arrival), count),
            offsets,
            pa.repeat(pa.scalar(taken.number, pa.int32()), count),
            pa.array(gone, pa.bool_()),
        ]
        arrays += [pa.array(_told(name, messages), METADATA_TYPES[name]) for name in self.metadata]
        arrays += [pa.array(reasons, pa.string())] if self.decoder is not None else []
        return pa.record_batch(arrays, schema=schema)

    def _texts(
        self, messages: list[Any], values: list[bytes | None]
    ) -> tuple[list[bytes], list[str | None]]:
        """The texts of values, and why there is none; that of a tombstone is made of its key."""
        reasons: list[str | None] = [None] * len(values)
        texts = [b"" if value is None else value for value in values]
        if self.decoder is not None:
            places = [place for place, value in enumerate(values) if value is not None]
            read, why = self.decoder.texts([texts[place] for place in places])
            for place, text, reason in zip(places, read, why, strict=True):
                texts[place], reasons[place] = text, reason
        if self.keys is not None:
            for place, value in enumerate(values):
                if value is None:
                    texts[place] = self.keys.record(messages[place].key())
        return texts, reasons


def _told(name: str, messages: list[Any]) -> list[Any]:
    """What records tell besides their content."""
    if name == "timestamp":
        stamps = [message.timestamp() for message in messages]
        return [ms * 1000 if kind else None for kind, ms in stamps]
    if name == "headers":
        return [
            [{"key": key, "value": value} for key, value in message.headers() or []]
            for message in messages
        ]
    return [getattr(message, name)() for message in messages]


@dataclass(frozen=True)
class Taken:
    """Records of one partition, in order: its number in the source, and where they stood."""

    messages: list[Any]
    offsets: list[int]
    number: int
    shown: str
    arrival: str

    @property
    def values(self) -> list[bytes | None]:
        from confluent_kafka import Message

        return list(map(Message.value, self.messages))


def taken_of(connection: Connection, split: list[list[Any]]) -> Iterator[Taken]:
    """The records of a share, some at a time."""
    consumer = _consumer(connection)
    try:
        yield from _taken(consumer, split)
    except TidegateError:
        # Brokers may be there, and it alone not find them: the next task asks with a new one.
        consumer.forget()
        raise


def _taken(consumer: _Consumer, split: list[list[Any]]) -> Iterator[Taken]:
    parts = {(part[1], part[2]): part for part in split}
    kept: dict[Place, list[Run]] = {place: [] for place in parts}
    count = size = 0
    for run in consumer.runs(parts.values()):
        kept[run.place].append(run)
        count, size = count + len(run.messages), size + sum(map(len, run.messages))
        if count >= _BATCH_RECORDS or size >= _BATCH_BYTES:
            yield from _by_partition(kept, parts)
            count = size = 0
    yield from _by_partition(kept, parts)


def _by_partition(kept: dict[Place, list[Run]], parts: dict[Place, list[Any]]) -> Iterator[Taken]:
    for (topic, partition), runs in kept.items():
        if runs:
            number, cut = parts[topic, partition][0], parts[topic, partition][5]
            messages = [message for run in runs for message in run.messages]
            offsets = [offset for run in runs for offset in run.offsets]
            arrival = f"{cut:012d} {number:06d}"
            yield Taken(messages, offsets, number, f"{topic}/{partition}", arrival)
            runs.clear()


@dataclass(frozen=True)
class Run:
    """Records of one partition that came one after the other."""

    place: Place
    messages: list[Any]
    offsets: list[int]


def _in_a_row(given: list[Any]) -> Iterator[tuple[Place, bool, list[Any]]]:
    """What a consumer has given, by partition and whether it is records, in its order."""
    from confluent_kafka import Message

    # No line of Python for each record: that would cost as much as fetching it.
    topics: list[Any] = list(map(Message.topic, given))
    partitions: list[Any] = list(map(Message.partition, given))
    records: list[Any] = [error is None for error in map(Message.error, given)]
    if given and all(
        items.count(items[0]) == len(given) for items in (topics, partitions, records)
    ):
        yield (topics[0], partitions[0]), records[0], given
        return
    at = 0
    for (topic, partition, plain), same in groupby(zip(topics, partitions, records, strict=True)):
        count = len(list(same))
        yield (topic, partition), plain, given[at : at + count]
        at += count


class _Consumer:
    """A consumer of a worker, which outlives the task: connecting takes longer than reading."""

    def __init__(self, connection: Connection) -> None:
        from confluent_kafka import Consumer

        self.connection = connection
        self.complaints = ClientErrors(connection)
        settings = {**connection.settings, **_SETTINGS, "group.id": f"tidegate-{os.getpid()}"}
        self.consumer: Any = Consumer({**settings, "error_cb": self.complaints})

    def forget(self) -> None:
        """Nobody asks it any more."""
        for key in [key for key, (_, known) in _consumers.items() if known is self]:
            del _consumers[key]

    def runs(self, parts: Iterable[list[Any]]) -> Iterator[Run]:
        """The records of all parts, those of a partition in order; some offsets have none."""
        from confluent_kafka import TopicPartition

        starts = [TopicPartition(part[1], part[2], part[3]) for part in parts]
        self.consumer.assign(starts)
        try:
            yield from self._until({(part[1], part[2]): [part[3], part[4]] for part in parts})
        finally:
            self.consumer.unassign()

    def _until(self, open_parts: dict[Place, list[int]]) -> Iterator[Run]:
        """`open_parts` are where each partition is, and where it ends."""
        from confluent_kafka import Message

        heard = time.monotonic()
        while open_parts:
            left = sum(end - at for at, end in open_parts.values())
            given = self.consumer.consume(min(left, _CONSUMED), _POLL_SECONDS)
            for place, plain, messages in _in_a_row(given):
                part = open_parts.get(place)
                if not plain:
                    messages = [message for message in messages if self._is_end(message, part)]
                if part is None or not messages:
                    continue
                heard = time.monotonic()
                offsets: list[Any] = list(map(Message.offset, messages))
                inside = bisect_left(offsets, part[1]) if plain else 0
                if inside:
                    yield Run(place, messages[:inside], offsets[:inside])
                part[0] = max(part[0], offsets[-1], offsets[inside - 1] + 1 if inside else 0)
                if part[0] >= part[1]:
                    self._close(place)
                    del open_parts[place]
            if time.monotonic() - heard > _SILENT_SECONDS:
                raise self.complaints.error("they are silent")

    def _close(self, place: Place) -> None:
        from confluent_kafka import TopicPartition

        self.consumer.incremental_unassign([TopicPartition(*place)])

    def _is_end(self, message: Any, part: list[int] | None) -> bool:
        """Whether what is no record says that there are no more of them.

        What may pass by itself is no answer: the records are still to come.
        """
        from confluent_kafka import KafkaError

        error = message.error()
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            at = "" if part is None else f" from offset {part[0]} on"
            raise SystemUnavailable(
                f"{self.connection.owner}: records{at} are gone", "the epoch is cut anew."
            )
        if is_login(error):
            raise self.connection.login_rejected(error)
        if error.fatal():
            raise self.connection.away(error)
        return bool(error.code() == KafkaError._PARTITION_EOF)


_consumers: dict[int, tuple[Connection, _Consumer]] = {}


def _consumer(connection: Connection) -> _Consumer:
    """The consumer of this worker for a connection."""
    key = hash((connection.brokers, json.dumps(dict(connection.settings), sort_keys=True)))
    known = _consumers.get(key)
    if known is None or known[0] != connection:
        _consumers[key] = (connection, _Consumer(connection))
    return _consumers[key][1]


# ---- Topics whose records tasks decode themselves. Python workers import this: it must load little.


@dataclass(frozen=True)
class JsonReader:
    """Reads the columns `names` of records, and where they stood."""

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
            [*fields, pa.field(BAD_RECORD, pa.string()), pa.field(PARTITION, pa.int32())]
        )

    def read(self, split: list[list[Any]]) -> Iterator[tuple[pa.RecordBatch, int]]:
        for taken in taken_of(self.connection, split):
            yield self._batch(taken), len(taken.messages)

    def _batch(self, taken: Taken) -> pa.RecordBatch:
        texts = [value for value in taken.values if value is not None]
        if len(texts) != len(taken.messages):
            raise RecordFailed("a record without a value")
        rows = decode_json(texts, self.decoded)
        arrays = [rows.column(name).combine_chunks() for name in self.names]
        if self.arrival:
            arrays.append(pa.repeat(pa.scalar(taken.arrival), len(texts)))
            arrays.append(pa.array(taken.offsets, pa.int64()))
        arrays.append(rows.column(BAD_RECORD).combine_chunks())
        arrays.append(pa.repeat(pa.scalar(taken.number, pa.int32()), len(texts)))
        return pa.record_batch(arrays, schema=self.schema)
