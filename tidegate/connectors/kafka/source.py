"""Topics as a source: offsets are in manifests, tasks read ranges of partitions."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidegate.connectors.base import FrameBuilder, InputRange, Offset, Read, SourceContext
from tidegate.connectors.kafka.avro import require_avro
from tidegate.connectors.kafka.client import EARLIEST, LATEST, Connection, Place, Topics
from tidegate.connectors.kafka.spec import read_start, topics_of
from tidegate.errors import DataDirectoryError, RunError, SystemUnavailable, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tidegate.catalog.objects import Source
    from tidegate.connectors.kafka.avro import AvroDecoder
    from tidegate.connectors.kafka.reader import JsonReader

# New partitions are looked for about this often.
_LOOK_SECONDS = 1.0
# A part of a range that is worth a task of its own, and the bytes of a record, roughly.
_PART_RECORDS = 1_000
_RECORD_BYTES = 200
_NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL", "FLOAT", "DOUBLE", "BOOLEAN")


@dataclass(frozen=True)
class Positions:
    """How far a stream is. A partition is known by its place in the list, for good."""

    cluster: str
    # What tells topics from others of their names.
    topics: dict[str, str]
    # How many ranges were cut: rows of a later one arrived later.
    ranges: int
    next: dict[Place, int]

    @classmethod
    def of(cls, offset: Offset) -> Positions:
        ends = {(topic, number): end for topic, number, end in offset["partitions"]}
        return cls(offset["cluster"], dict(offset["topics"]), offset["cuts"], ends)

    def as_json(self) -> Offset:
        ends = [[topic, number, end] for (topic, number), end in self.next.items()]
        return {
            "cluster": self.cluster,
            "topics": self.topics,
            "cuts": self.ranges,
            "partitions": ends,
        }


class KafkaSource:
    """Topics that records are added to."""

    def __init__(self, context: SourceContext) -> None:
        self.source: Source = context.source
        self.options = context.source.options
        self.connection = connection_of(f"the source {self.source.name}", self.options)
        self.topics = Topics(self.connection)
        if self.options["format"] == "avro":
            require_avro()
        self.context = context
        self.start = read_start(self.options["start"])
        self._lock = threading.Lock()
        self._looked = 0.0
        self._there: list[Place] = []
        self._cluster = ""
        self._require_topics()

    # What is there

    def _require_topics(self) -> None:
        """A topic that does not exist would be silent for ever."""
        self._look()
        counts = {topic for topic, _ in self._there}
        wanted = self.options["topic"]
        missing = (
            [] if wanted.startswith("^") else [t for t in topics_of(wanted) if t not in counts]
        )
        if self._there and not missing:
            return
        _, known = self.topics.partitions()
        own = [name for name in known if not name.startswith("__")]
        what = f"the topic {missing[0]}" if missing else f"topics {wanted}"
        raise RunError(
            "TG-522",
            f"the source {self.source.name} reads {what}, and there is no such topic on "
            f"{self.options['brokers']}",
            hint=did_you_mean(missing[0] if missing else wanted, own, "topics there"),
        )

    def _look(self) -> None:
        """Which partitions there are; asked now and then."""
        if time.monotonic() - self._looked < _LOOK_SECONDS and self._there:
            return
        self._cluster, counts = self.topics.partitions()
        wanted = self.options["topic"]
        if wanted.startswith("^"):
            fits = re.compile(wanted)
            names = sorted(n for n in counts if fits.fullmatch(n) and not n.startswith("__"))
        else:
            names = [name for name in topics_of(wanted) if name in counts]
        self._there = [(name, number) for name in names for number in range(counts[name])]
        self._looked = time.monotonic()

    # Cutting

    def plan_range(self, since: Offset | None, tasks: int) -> InputRange | None:
        with self._lock:
            self._look()
            before = Positions.of(since) if since is not None else None
            there = list(self._there)
            gone = [place for place in (before.next if before else ()) if place not in there]
            if gone:
                self._looked = 0.0
                raise SystemUnavailable(
                    f"{self.connection.owner}: {_shown(gone[0])} is not there any more"
                )
            ends = self.topics.offsets(there, LATEST)
            at, lost = self._positions(before, ends)
            if before is not None and at.next == before.next and not _news(at, ends):
                return None
            return self._plan_range(at, ends, lost, tasks)

    def _positions(self, before: Positions | None, ends: dict[Place, int]) -> tuple[Positions, int]:
        """Where to go on, and how many records are lost."""
        if before is None:
            ids = self.topics.ids({topic for topic, _ in ends})
            return Positions(self._cluster, ids, 0, self._begin(ends)), 0
        if before.cluster != self._cluster:
            raise self._other_cluster(before)
        fresh = [place for place in ends if place not in before.next]
        if not fresh and not _news(before, ends, other=True):
            return before, 0
        ids = self.topics.ids({topic for topic, _ in ends})
        first = self.topics.offsets(ends, EARLIEST)
        # What came while nobody looked belongs to the stream, wherever it began.
        known = {**before.next, **{place: first[place] for place in fresh}}
        lost = self._lost(before, known, first, ids)
        known = {
            place: max(first[place], 0 if ids[place[0]] != before.topics.get(place[0]) else at)
            for place, at in known.items()
        }
        return replace(before, topics=ids, next=known), lost

    def _lost(
        self,
        before: Positions,
        known: dict[Place, int],
        first: dict[Place, int],
        ids: dict[str, str],
    ) -> int:
        """How many records are gone that were never read; an error unless that is fine."""
        lost = 0
        for place, at in before.next.items():
            if ids[place[0]] != before.topics[place[0]]:
                why = f"the topic {place[0]} was deleted and created again"
                lost += first[place]
            elif first[place] > at:
                why = (
                    f"{_shown(place)} begins at offset {first[place]}, and the next one to read "
                    f"was {at}"
                )
                lost += first[place] - at
            else:
                continue
            if self.options["on_data_loss"] == "fail":
                raise RunError(
                    "TG-528",
                    f"the source {self.source.name} has lost records: {why}",
                    hint="to count them and go on: on_data_loss = 'continue'.",
                )
        return lost

    def _other_cluster(self, before: Positions) -> DataDirectoryError:
        return DataDirectoryError(
            "TG-603",
            f"the source {self.source.name} was read from the cluster {before.cluster}, and "
            f"{self.options['brokers']} is {self._cluster}: offsets of the one say nothing about "
            "the other",
            hint="correct the option brokers; or CREATE STREAM … WITH (on_change = 'restart').",
        )

    def _begin(self, ends: dict[Place, int]) -> dict[Place, int]:
        """Where a stream begins that has never read."""
        if self.start == LATEST:
            return dict(ends)
        first = self.topics.offsets(ends, EARLIEST)
        if isinstance(self.start, dict):
            return self._begin_at(self.start, first, ends)
        if self.start == EARLIEST or isinstance(self.start, str):
            return first
        found = self.topics.offsets(ends, self.start)
        return {place: found[place] if found[place] >= 0 else ends[place] for place in ends}

    def _begin_at(
        self, given: dict[str, dict[int, int]], first: dict[Place, int], ends: dict[Place, int]
    ) -> dict[Place, int]:
        for topic, offsets in given.items():
            for number, offset in offsets.items():
                place = (topic, number)
                if place not in ends or not first[place] <= offset <= ends[place]:
                    has = (
                        f"has {first[place]} to {ends[place]}" if place in ends else "is not there"
                    )
                    raise RunError(
                        "TG-528",
                        f"the source {self.source.name} is to begin at offset {offset} of "
                        f"{_shown(place)}, which {has}",
                        hint="correct the option start.",
                    )
        return {place: given.get(place[0], {}).get(place[1], at) for place, at in first.items()}

    def _plan_range(
        self, at: Positions, ends: dict[Place, int], lost: int, tasks: int
    ) -> InputRange:
        spans = {place: max(ends[place] - begin, 0) for place, begin in at.next.items()}
        total = sum(spans.values())
        limit = self._limit()
        if total > limit:
            # All partitions move, those with more to read by more: their times stay together.
            taken = {place: -(-span * limit // total) for place, span in spans.items()}
        else:
            taken = spans
        stops = {place: begin + taken[place] for place, begin in at.next.items()}
        offset = replace(at, ranges=at.ranges + 1, next=stops).as_json()
        behind = total - sum(taken.values())
        return InputRange(
            offset,
            self._shares(at, taken, tasks),
            more=behind > 0,
            size=sum(taken.values()) * _RECORD_BYTES,
            partitions=len(at.next),
            lost=lost,
            behind=behind,
        )

    def _limit(self) -> int:
        """How many records an epoch reads at most."""
        given = self.options["rows_per_epoch"] or self.context.settings["rows_per_epoch"]
        return min(int(given), max(self.context.sizer.bytes // _RECORD_BYTES, 1))

    def _shares(self, at: Positions, taken: dict[Place, int], tasks: int) -> list[list[Any]]:
        """Parts of equal length, one for each task. They follow each other, so that rows of a
        partition stay in order however many tasks read it."""
        total = sum(taken.values())
        length = max(-(-total // tasks), _PART_RECORDS)
        splits: list[list[Any]] = [[]]
        room = length
        for number, (place, begin) in enumerate(at.next.items()):
            left = taken[place]
            while left:
                if not room:
                    splits.append([])
                    room = length
                part = min(left, room)
                start = begin + taken[place] - left
                splits[-1].append([number, *place, start, start + part, at.ranges])
                left, room = left - part, room - part
        # A task reads its partitions side by side.
        return [[parts] for parts in splits if parts]

    def on_commit(self, offset: Offset) -> None:
        """Offsets are in manifests; brokers need not know them."""

    # Reading

    def direct(self, read: Read) -> JsonReader | None:
        """Plain JSON is decoded by tasks, all else by Spark, which also says why it cannot."""
        # Only Spark says of a bad record what is wrong with it.
        if read.located or not read.vectors:
            return None
        from tidegate.connectors.formats.json import json_schema
        from tidegate.connectors.kafka.decoding import Records
        from tidegate.connectors.kafka.reader import JsonReader

        records = Records(self.source, read.arrival, read.located)
        options = self.options
        odd = options["changelog"] or options["timestamp_format"] is not None
        if records.format != "json" or odd or records.upserts or records.metadata:
            return None
        schema = json_schema(records.record_columns)
        if schema is None:
            return None
        names = tuple(name for name, _ in read.columns)
        return JsonReader(self.connection, schema, names, read.arrival)

    def frame(self, spark: SparkSession, read: Read, builder: FrameBuilder) -> DataFrame:
        from tidegate.connectors.kafka.decoding import Records
        from tidegate.connectors.kafka.reader import KafkaReader

        plain = self.direct(read)
        if plain is not None:
            return builder(plain)
        records = Records(self.source, read.arrival, read.located)
        told = tuple(dict.fromkeys(what for _, what, _ in records.metadata))
        decoder = self._decoder(records.text_columns) if records.format == "avro" else None
        return records.read(builder(KafkaReader(self.connection, told, self._keys(), decoder)))

    def _decoder(self, columns: Sequence[tuple[str, str]]) -> AvroDecoder:
        import pyarrow as pa

        from tidegate.connectors.kafka.avro import AvroDecoder, Registry
        from tidegate.physical.typed import arrow_type

        schema = pa.schema([(name, arrow_type(kind)) for name, kind in columns])
        registry = Registry.of(self.connection.owner, self.options)
        return AvroDecoder(schema, self.options["avro_schema"], registry)

    def _keys(self) -> Any:
        """How the key of a tombstone becomes a record that JSON can be read of."""
        from tidegate.connectors.kafka.reader import KeyText

        if not self.source.primary_key or self.options["format"] not in ("json", "avro"):
            return None
        if self.options["key_format"] == "json":
            return KeyText(None, False)
        (name,) = self.source.primary_key
        column = next(c for c in self.source.columns if c.name.lower() == name.lower())
        return KeyText(column.name, str(column.type).startswith(_NUMBERS))

    def native_frame(self, spark: SparkSession, read: Read, input_range: InputRange) -> DataFrame:
        raise AssertionError("tasks read all records")


def connection_of(owner: str, options: Any) -> Connection:
    """The connection of a declared source or sink."""
    return Connection.of(owner, options, options.secrets())


def _shown(place: Place) -> str:
    return f"partition {place[1]} of the topic {place[0]}"


def _news(at: Positions, ends: dict[Place, int], other: bool = False) -> bool:
    """Whether there is something to read; `other`: or less than was read."""
    return any(
        ends[place] > begin or (other and ends[place] < begin) for place, begin in at.next.items()
    )
