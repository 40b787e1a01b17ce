"""The Kafka source: plans input ranges on the driver. Offsets are stored in manifests."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidegate.connectors.base import FrameBuilder, InputRange, Offset, ScanRequest, SourceContext
from tidegate.connectors.kafka.avro import require_avro
from tidegate.connectors.kafka.client import EARLIEST, LATEST, Connection, Partition, Topics
from tidegate.connectors.kafka.spec import parse_start, topic_names
from tidegate.errors import DataDirectoryError, RunError, SystemUnavailable, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tidegate.catalog.objects import Source
    from tidegate.connectors.kafka.avro import AvroDecoder
    from tidegate.connectors.kafka.reader import JsonReader, TombstoneKey

# How often to look for new partitions.
_REFRESH_S = 1.0
# A part with fewer records is not worth a task.
_MIN_PART_RECORDS = 1_000
# The approximate size of a record.
_RECORD_BYTES = 200
_JSON_KEY_TYPES = (
    "TINYINT",
    "SMALLINT",
    "INT",
    "BIGINT",
    "DECIMAL",
    "FLOAT",
    "DOUBLE",
    "BOOLEAN",
)


@dataclass(frozen=True)
class KafkaOffsets:
    """The offset of a stream: the next offset to read from each partition.

    A partition is identified by its position in `next_offsets`, which only grows.
    """

    cluster: str
    # Topic IDs by name. A topic that was deleted and created again has another ID.
    topics: dict[str, str]
    # The number of ranges that were planned. It orders the arrival of records.
    range_count: int
    next_offsets: dict[Partition, int]

    @classmethod
    def from_offset(cls, offset: Offset) -> KafkaOffsets:
        """Parse the JSON value of a manifest."""
        positions = {(topic, number): next_ for topic, number, next_ in offset["partitions"]}
        return cls(offset["cluster"], dict(offset["topics"]), offset["range_count"], positions)

    def as_json(self) -> Offset:
        """Return the JSON value for a manifest."""
        positions = [[topic, number, next_] for (topic, number), next_ in self.next_offsets.items()]
        return {
            "cluster": self.cluster,
            "topics": self.topics,
            "range_count": self.range_count,
            "partitions": positions,
        }


class KafkaSource:
    """Reads one or several topics. Implements `SourceConnector`."""

    def __init__(self, context: SourceContext) -> None:
        self.source: Source = context.source
        self.options = context.source.options
        self.connection = connection_of(f"the source {self.source.name}", self.options)
        self.topics = Topics(self.connection)
        if self.options["format"] == "avro":
            require_avro()
        self.context = context
        self.start = parse_start(self.options["start"])
        self._lock = threading.Lock()
        self._refreshed_at = 0.0
        self._partitions: list[Partition] = []
        self._cluster = ""
        self._require_topics()

    # Topics and partitions

    def _require_topics(self) -> None:
        """Check that the topics exist. A missing topic would look like a silent one."""
        self._refresh()
        topic = self.options["topic"]
        existing = {name for name, _ in self._partitions}
        missing = (
            []
            if topic.startswith("^")
            else [name for name in topic_names(topic) if name not in existing]
        )
        if self._partitions and not missing:
            return
        _, partition_counts = self.topics.partitions()
        candidates = [name for name in partition_counts if not name.startswith("__")]
        problem = (
            f"the topic {missing[0]}, which does not exist"
            if missing
            else f"topics that match {topic}, but there are none"
        )
        raise RunError(
            "TG-522",
            f"the source {self.source.name} reads {problem} on {self.options['brokers']}",
            hint=did_you_mean(missing[0] if missing else topic, candidates, "topics"),
        )

    def _refresh(self) -> None:
        """List the partitions, unless that was done a moment ago."""
        if time.monotonic() - self._refreshed_at < _REFRESH_S and self._partitions:
            return
        self._cluster, counts = self.topics.partitions()
        topic = self.options["topic"]
        if topic.startswith("^"):
            pattern = re.compile(topic)
            names = sorted(n for n in counts if pattern.fullmatch(n) and not n.startswith("__"))
        else:
            names = [name for name in topic_names(topic) if name in counts]
        self._partitions = [(name, number) for name in names for number in range(counts[name])]
        self._refreshed_at = time.monotonic()

    # Planning

    def plan_range(self, since: Offset | None, tasks: int) -> InputRange | None:
        with self._lock:
            self._refresh()
            previous = KafkaOffsets.from_offset(since) if since is not None else None
            partitions = list(self._partitions)
            removed = [
                p for p in (previous.next_offsets if previous else ()) if p not in partitions
            ]
            if removed:
                self._refreshed_at = 0.0
                raise SystemUnavailable(
                    f"{self.connection.label}: {_describe(removed[0])} does not exist anymore"
                )
            ends = self.topics.offsets(partitions, LATEST)
            positions, lost = self._positions(previous, ends)
            is_same = previous is not None and positions.next_offsets == previous.next_offsets
            if is_same and not _has_records(positions, ends):
                return None
            return self._range(positions, ends, lost, tasks)

    def _positions(
        self, previous: KafkaOffsets | None, ends: dict[Partition, int]
    ) -> tuple[KafkaOffsets, int]:
        """Return the positions at which the range starts, and the number of lost records."""
        if previous is None:
            ids = self.topics.ids({topic for topic, _ in ends})
            return KafkaOffsets(self._cluster, ids, 0, self._first_positions(ends)), 0
        if previous.cluster != self._cluster:
            raise self._other_cluster(previous)
        added = [partition for partition in ends if partition not in previous.next_offsets]
        if not added and not _has_changed(previous, ends):
            return previous, 0
        ids = self.topics.ids({topic for topic, _ in ends})
        firsts = self.topics.offsets(ends, EARLIEST)
        # New partitions are read from their beginning, even if the stream started elsewhere: their
        # first records may have arrived before the partition was found.
        positions = {
            **previous.next_offsets,
            **{partition: firsts[partition] for partition in added},
        }
        lost = self._lost_records(previous, firsts, ids)
        positions = {
            (topic, number): max(
                firsts[topic, number], 0 if ids[topic] != previous.topics.get(topic) else position
            )
            for (topic, number), position in positions.items()
        }
        return replace(previous, topics=ids, next_offsets=positions), lost

    def _lost_records(
        self, previous: KafkaOffsets, firsts: dict[Partition, int], ids: dict[str, str]
    ) -> int:
        """Count the records that were removed before they were read.

        Raises an error unless the source declares on_data_loss = 'continue'.
        """
        lost = 0
        for partition, position in previous.next_offsets.items():
            topic = partition[0]
            if ids[topic] != previous.topics[topic]:
                reason = f"the topic {topic} was deleted and created again"
                lost += firsts[partition]
            elif firsts[partition] > position:
                reason = (
                    f"{_describe(partition)} begins at offset {firsts[partition]}, but the next "
                    f"offset to read is {position}"
                )
                lost += firsts[partition] - position
            else:
                continue
            if self.options["on_data_loss"] == "fail":
                raise RunError(
                    "TG-528",
                    f"the source {self.source.name} has lost records: {reason}",
                    hint="to count lost records and continue: on_data_loss = 'continue'.",
                )
        return lost

    def _other_cluster(self, previous: KafkaOffsets) -> DataDirectoryError:
        return DataDirectoryError(
            "TG-603",
            f"the source {self.source.name} was read from the cluster {previous.cluster}, but "
            f"{self.options['brokers']} is the cluster {self._cluster}, where its offsets are not "
            "valid",
            hint="correct the option brokers; or CREATE STREAM … WITH (on_change = 'restart').",
        )

    def _first_positions(self, ends: dict[Partition, int]) -> dict[Partition, int]:
        """Return the first positions of a stream that has not read anything yet."""
        if self.start == LATEST:
            return dict(ends)
        firsts = self.topics.offsets(ends, EARLIEST)
        if isinstance(self.start, dict):
            return self._declared_positions(self.start, firsts, ends)
        if self.start == EARLIEST or isinstance(self.start, str):
            return firsts
        at_time = self.topics.offsets(ends, self.start)
        # A partition without records after the time has the offset -1.
        return {p: at_time[p] if at_time[p] >= 0 else ends[p] for p in ends}

    def _declared_positions(
        self,
        declared: dict[str, dict[int, int]],
        firsts: dict[Partition, int],
        ends: dict[Partition, int],
    ) -> dict[Partition, int]:
        for topic, offsets in declared.items():
            for number, offset in offsets.items():
                partition = (topic, number)
                exists = partition in ends
                if not exists or not firsts[partition] <= offset <= ends[partition]:
                    problem = (
                        f"has {firsts[partition]} to {ends[partition]}"
                        if exists
                        else "does not exist"
                    )
                    raise RunError(
                        "TG-528",
                        f"the source {self.source.name} cannot start at offset {offset} of "
                        f"{_describe(partition)}, which {problem}",
                        hint="correct the option start.",
                    )
        return {
            (topic, number): declared.get(topic, {}).get(number, first)
            for (topic, number), first in firsts.items()
        }

    def _range(
        self, positions: KafkaOffsets, ends: dict[Partition, int], lost: int, tasks: int
    ) -> InputRange:
        available = {
            p: max(ends[p] - position, 0) for p, position in positions.next_offsets.items()
        }
        total = sum(available.values())
        limit = self._limit()
        if total > limit:
            # Read from all partitions in proportion to their backlog, so that their event times
            # stay close to each other.
            counts = {p: -(-count * limit // total) for p, count in available.items()}
        else:
            counts = available
        stops = {p: position + counts[p] for p, position in positions.next_offsets.items()}
        offset = replace(
            positions, range_count=positions.range_count + 1, next_offsets=stops
        ).as_json()
        behind = total - sum(counts.values())
        return InputRange(
            offset,
            self._splits(positions, counts, tasks),
            has_more=behind > 0,
            size=sum(counts.values()) * _RECORD_BYTES,
            partitions=len(positions.next_offsets),
            lost_records=lost,
            pending_records=behind,
        )

    def _limit(self) -> int:
        """Return the maximum number of records of an epoch."""
        limit = self.options["rows_per_epoch"] or self.context.settings["rows_per_epoch"]
        return min(int(limit), max(self.context.sizer.bytes // _RECORD_BYTES, 1))

    def _splits(
        self, positions: KafkaOffsets, counts: dict[Partition, int], tasks: int
    ) -> list[list[Any]]:
        """Divide the records into splits of equal size, one per task.

        The splits are consecutive: the records of a partition stay in order, whatever the number of
        tasks.
        """
        total = sum(counts.values())
        length = max(-(-total // tasks), _MIN_PART_RECORDS)
        splits: list[list[Any]] = [[]]
        room = length
        for number, (partition, position) in enumerate(positions.next_offsets.items()):
            remaining = counts[partition]
            while remaining:
                if not room:
                    splits.append([])
                    room = length
                count = min(remaining, room)
                start = position + counts[partition] - remaining
                splits[-1].append([number, *partition, start, start + count, positions.range_count])
                remaining, room = remaining - count, room - count
        # The reader gets all parts of a task at once and reads their partitions in parallel.
        return [[parts] for parts in splits if parts]

    def on_commit(self, offset: Offset) -> None:
        """Do nothing: offsets are in manifests, and brokers do not need them."""

    # Reading

    def create_reader(self, request: ScanRequest) -> JsonReader | None:
        # Only Spark finds the reason why a record is malformed.
        if request.with_location or not request.decode_in_tasks:
            return None
        from tidegate.connectors.formats.json import json_schema
        from tidegate.connectors.kafka.decoding import RecordDecoder
        from tidegate.connectors.kafka.reader import JsonReader

        decoder = RecordDecoder(self.source, request.with_arrival, request.with_location)
        options = self.options
        needs_spark = options["changelog"] or options["timestamp_format"] is not None
        if decoder.format != "json" or needs_spark or decoder.upserts or decoder.metadata:
            return None
        schema = json_schema(decoder.record_columns)
        if schema is None:
            return None
        names = tuple(name for name, _ in request.columns)
        return JsonReader(self.connection, schema, names, request.with_arrival)

    def frame(self, spark: SparkSession, request: ScanRequest, builder: FrameBuilder) -> DataFrame:
        from tidegate.connectors.kafka.decoding import RecordDecoder
        from tidegate.connectors.kafka.reader import KafkaReader

        json_reader = self.create_reader(request)
        if json_reader is not None:
            return builder.read_frame(json_reader)
        decoder = RecordDecoder(self.source, request.with_arrival, request.with_location)
        metadata = tuple(dict.fromkeys(name for _, name, _ in decoder.metadata))
        avro = self._avro_decoder(decoder.text_columns) if decoder.format == "avro" else None
        reader = KafkaReader(self.connection, metadata, self._tombstone_key(), avro)
        return decoder.read(builder.read_frame(reader))

    def _avro_decoder(self, columns: Sequence[tuple[str, str]]) -> AvroDecoder:
        import pyarrow as pa

        from tidegate.connectors.kafka.avro import AvroDecoder, SchemaRegistryClient
        from tidegate.physical.typed import arrow_type

        schema = pa.schema([(name, arrow_type(sql_type)) for name, sql_type in columns])
        registry = SchemaRegistryClient.from_options(self.connection.label, self.options)
        return AvroDecoder(schema, self.options["avro_schema"], registry)

    def _tombstone_key(self) -> TombstoneKey | None:
        """Return how to convert the key of a tombstone to JSON; None if tombstones are not read."""
        from tidegate.connectors.kafka.reader import TombstoneKey

        if not self.source.primary_key or self.options["format"] not in ("json", "avro"):
            return None
        if self.options["key_format"] == "json":
            return TombstoneKey(None, False)
        (key,) = self.source.primary_key
        column = next(c for c in self.source.columns if c.name.lower() == key.lower())
        return TombstoneKey(column.name, str(column.type).startswith(_JSON_KEY_TYPES))

    def spark_read_frame(
        self, spark: SparkSession, request: ScanRequest, input_range: InputRange
    ) -> DataFrame:
        raise AssertionError("tasks read all records")


def connection_of(label: str, options: Any) -> Connection:
    """Create the connection of a declared source or sink."""
    return Connection.from_options(label, options, options.secrets())


def _describe(partition: Partition) -> str:
    return f"partition {partition[1]} of the topic {partition[0]}"


def _has_records(positions: KafkaOffsets, ends: dict[Partition, int]) -> bool:
    return any(ends[partition] > position for partition, position in positions.next_offsets.items())


def _has_changed(positions: KafkaOffsets, ends: dict[Partition, int]) -> bool:
    """Return whether a partition has new records, or fewer records than were read."""
    return any(
        ends[partition] != position for partition, position in positions.next_offsets.items()
    )
