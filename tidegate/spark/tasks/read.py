"""What tasks read themselves, for all streams of a pipeline at once.

A record is read and decoded once, and packed for every operator that wants it. What was packed for
all of them goes through one shuffle, which Spark runs once, whoever reads it. Streams without
operators have their rows staged right there; their notes go with those of an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tidegate.columns import (
    ARRIVAL,
    BAD_MARK,
    BAD_RECORD,
    LIVE,
    MARK,
    NOW,
    ORIGIN,
    PARTITION,
    PARTITION_SHIFT,
    SIDE,
)
from tidegate.operators.vectorized import Vector, VectorFailed, VectorStage
from tidegate.operators.watermark import UNHEARD_US, Tick
from tidegate.spark.tasks.protocol import (
    NOTE,
    Order,
    OrderPlace,
    keep_what_is_loaded,
    note_bytes,
    task_number,
    tick_bytes,
)
from tidegate.spark.tasks.shuffle import (
    BYTES_TO_SEND,
    PASSING,
    Batches,
    Packer,
    PackSpec,
    packed_rows,
)
from tidegate.spark.tasks.sink_write import Staging, StagingSpec

if TYPE_CHECKING:
    from tidegate.connectors.base import Read, ShareReader


# ---- Sources that tasks read and judge themselves: no row goes to Spark's SQL and back.
#
# What cannot be used is counted as everywhere: records that cannot be read, without a value where one
# must be, without an event time, or with one too far in the future.

# The event time of records, and which of them are bad; None if none is.
Judged = tuple[pa.Array, pa.Array | None]


@dataclass(frozen=True)
class DirectScan:
    """How tasks read a source for a stream; `columns` are those of the scan."""

    read: Read
    reader: ShareReader
    # The stream and the source, in lower case.
    place: tuple[str, str]
    # Who is told how many records there were.
    streams: tuple[str, ...]
    index: int
    columns: tuple[tuple[str, Vector], ...]
    # What must not be NULL; the event time, in microseconds, and how far it may be ahead.
    required: tuple[Vector, ...]
    time: Vector | None
    max_future_us: int | None
    # Whether its partitions have watermarks of their own.
    partitioned: bool = False

    @property
    def share(self) -> str:
        """Its name in orders."""
        return "/".join(self.place)

    @property
    def hidden(self) -> tuple[str, ...]:
        """What goes to an operator besides columns: one origin alone need not be told."""
        return (*([ORIGIN] if self.partitioned else []), MARK, LIVE, SIDE)

    def partitions_of(self, order: Order) -> list[Tick]:
        """The partitions that have watermarks of their own, before anything came of them."""
        if not self.partitioned:
            return []
        partitions = range(order.partitions.get(self.share, 0))
        return [Tick(self.index, number, UNHEARD_US) for number in partitions]

    def scanned(self, batch: pa.RecordBatch, now_us: int, judged: Judged) -> pa.RecordBatch:
        """The columns of the scan, and hidden ones, of records and what they were found to be."""
        count = batch.num_rows
        mark, bad = judged
        try:
            columns = [_array(vector.of(batch), count) for _, vector in self.columns]
        except (pa.ArrowException, ValueError) as error:
            raise VectorFailed(str(error)) from None
        hidden: dict[str, Any] = {
            ORIGIN: self._origin(batch),
            MARK: mark,
            LIVE: pa.repeat(pa.scalar(True), count) if bad is None else pc.invert(bad),
            SIDE: pa.nulls(count, pa.binary()),
            NOW: pa.repeat(pa.scalar(now_us, pa.int64()), count),
        }
        hidden |= {name: batch.column(name) for name in ARRIVAL if name in batch.schema.names}
        names = [*(name for name, _ in self.columns), *hidden]
        return pa.record_batch([*columns, *hidden.values()], names=names)

    def _origin(self, batch: pa.RecordBatch) -> pa.Array:
        if not self.partitioned:
            return pa.repeat(pa.scalar(self.index, pa.int32()), batch.num_rows)
        numbers = pc.shift_left(batch.column(PARTITION).cast(pa.int64()), PARTITION_SHIFT)
        return pc.add(numbers, self.index)

    def judged(self, batch: pa.RecordBatch, now_us: int) -> Judged:
        """The event time of records, and which of them are bad."""
        try:
            return self._judged(batch, now_us)
        except (pa.ArrowException, ValueError) as error:
            raise VectorFailed(str(error)) from None

    def _judged(self, batch: pa.RecordBatch, now_us: int) -> Judged:
        tests = [pc.is_null(_array(vector.of(batch), batch.num_rows)) for vector in self.required]
        if BAD_RECORD in batch.schema.names:
            tests.append(pc.is_valid(batch.column(BAD_RECORD)))
        if self.time is None:
            mark = pa.nulls(batch.num_rows, pa.int64())
        else:
            mark = _array(self.time.of(batch), batch.num_rows)
            tests.append(pc.is_null(mark))
            if self.max_future_us is not None:
                late = pc.greater(mark, pa.scalar(now_us + self.max_future_us, pa.int64()))
                tests.append(pc.fill_null(late, False))
        found = [test for test in tests if pc.any(test).as_py()]
        if not found:
            return mark, None
        bad = found[0]
        for test in found[1:]:
            bad = pc.or_(bad, test)
        return pc.if_else(bad, pa.scalar(BAD_MARK, pa.int64()), mark), bad


def _array(value: Any, count: int) -> pa.Array:
    return pa.repeat(value, count) if isinstance(value, pa.Scalar) else value


# A stream and a source, in lower case.
Place = tuple[str, str]
# What a packer may hold at least, however many there are.
_LEAST_BYTES = 8 << 20


class Taker(Protocol):
    """What a task does with the rows that it has read."""

    def add(self, batch: pa.RecordBatch) -> Batches:
        """Take in rows; what has become too much to hold is sent."""

    def tell(self, note: bytes) -> None:
        """Pass a note on to the driver."""

    def finish(self) -> Batches:
        """What has not been sent yet."""


@dataclass(frozen=True)
class ReadPort:
    """A port of an operator whose rows tasks read and compute."""

    scan: DirectScan
    stage: VectorStage
    pack: PackSpec

    @property
    def hidden(self) -> tuple[str, ...]:
        return self.scan.hidden

    def taker(self, order: Order, tasks: Sequence[int], limit: int) -> Taker:
        packer = Packer(self.pack, task_number(), order, limit)
        packer.ticks += self.scan.partitions_of(order) if 0 in tasks else []
        return packer


@dataclass(frozen=True)
class ReadStream:
    """A stream without operators whose rows tasks read, compute and stage."""

    scan: DirectScan
    stage: VectorStage
    staging: StagingSpec
    # The operator by which its notes go to the driver; None if they go there themselves.
    by: int | None = None
    hidden = (ORIGIN, MARK, LIVE, SIDE)

    def taker(self, order: Order, tasks: Sequence[int], limit: int) -> Taker:
        return _Stager(Staging(self.staging, order, task_number()), self.by)


@dataclass
class _Stager:
    work: Staging
    by: int | None

    def add(self, batch: pa.RecordBatch) -> Batches:
        self.work.add(pa.Table.from_batches([batch]))
        return iter(())

    def tell(self, note: bytes) -> None:
        self.work.sides.notes.append(note[1:])

    def finish(self) -> Batches:
        notes = self.work.notes()
        if self.by is None:
            yield notes
            return
        listed = [NOTE + note for note in notes.column("note").to_pylist()]
        yield packed_rows(self.by, task_number(), 0, b"", [(0, PASSING, note) for note in listed])


Reader = ReadPort | ReadStream


@dataclass(frozen=True)
class ReadRange:
    """A range of a source, read once for all who want it."""

    reader: ShareReader
    readers: tuple[Reader, ...]

    def run(self, order: Order, tasks: Sequence[int]) -> Batches:
        """Read the shares of some tasks, and give everybody the rows that it wants."""
        limit = max(BYTES_TO_SEND // len(self.readers), _LEAST_BYTES)
        takers = [(each, each.taker(order, tasks, limit)) for each in self.readers]
        first = self.readers[0].scan
        shares = order.shares.get(first.share, [])
        for task in tasks:
            records = 0
            for share in shares[task] if task < len(shares) else []:
                for batch, count in self.reader.read(share):
                    records += count
                    judged = first.judged(batch, order.now_us)
                    for each, taker in takers:
                        rows = each.scan.scanned(batch, order.now_us, judged)
                        yield from taker.add(each.stage.apply(rows, each.hidden))
            if records:
                told = [stream for each in self.readers for stream in each.scan.streams]
                about = {"streams": told, "source": first.share, "task": task, "rows": records}
                takers[0][1].tell(note_bytes(about))
        for _, taker in takers:
            yield from taker.finish()


def reading(ranges: Sequence[ReadRange], place: OrderPlace) -> Callable[[Batches], Batches]:
    """The function for mapInArrow: rows for a shuffle, or notes where there are no operators."""

    def run(batches: Batches) -> Batches:
        order = place.read()
        tasks = [task for batch in batches for task in batch.column(0).to_pylist()]
        for each in ranges:
            yield from each.run(order, tasks)
        keep_what_is_loaded()

    return run


def ranges_of(
    readers: Iterable[Reader],
    first_of: Mapping[Place, Place],
    reader_of: Callable[[Sequence[DirectScan]], ShareReader | None],
) -> tuple[ReadRange, ...]:
    """What is read for all of them; `first_of` tells the first place where the same is read."""
    found: dict[Place, list[Reader]] = {}
    for each in readers:
        place = each.scan.place
        found.setdefault(first_of.get(place, place), []).append(each)
    ranges: list[ReadRange] = []
    for place, together in found.items():
        reader = reader_of([each.scan for each in together])
        if reader is None:
            ranges += [ReadRange(each.scan.reader, (each,)) for each in together]
            continue
        same = tuple(replace(each, scan=replace(each.scan, place=place)) for each in together)
        ranges.append(ReadRange(reader, same))
    return tuple(ranges)


@dataclass
class Reading:
    """What tasks read for a pipeline, and what was packed of it for all operators."""

    ranges: tuple[ReadRange, ...] = ()
    # The numbers of operators in the shuffle.
    members: dict[Hashable, int] = field(default_factory=dict)
    # Streams, in lower case, whose rows are staged where they are read.
    streams: set[str] = field(default_factory=set)
    shuffled: DataFrame | None = None

    def packed(self, member: int) -> DataFrame:
        """What came for one operator."""
        assert self.shuffled is not None, "nobody has read"
        if len(set(self.members.values())) == 1:
            return self.shuffled
        # A plain comparison would be moved below the shuffle, and every reader had its own then.
        return self.shuffled.where(f"if(spark_partition_id() < 0, -1, member) = {member}")


# ---- The leaves of a frame: tasks read the shares of their order, and count what they read.

_HIDDEN = [pa.field(SIDE, pa.binary()), pa.field(NOW, pa.int64())]


@dataclass(frozen=True)
class Leaf:
    """The place where a scan of a stream reads its source; `share` is its name in orders."""

    spark: SparkSession
    share: str
    # Those whose scans read here: each is told how many records there were.
    streams: tuple[str, ...]
    place: OrderPlace
    tasks: int
    # The origin of the time of this scan, if its partitions have watermarks of their own.
    origin: int | None = None

    def __call__(self, reader: ShareReader) -> DataFrame:
        """What tasks read, with a note of how many records that were, and the time."""
        schema = pa.schema([*reader.schema, *_HIDDEN])
        read = _reading(reader, self, schema)
        numbers = self.spark.range(0, self.tasks, 1, self.tasks)
        return numbers.mapInArrow(read, from_arrow_schema(schema))

    def counted(self, frame: DataFrame) -> DataFrame:
        """A frame with a note of how many rows it has, where readers cannot tell."""
        known = to_arrow_schema(frame.schema, timezone="UTC")
        # A note has no columns but its own, whatever was declared NOT NULL.
        schema = pa.schema([field.with_nullable(True) for field in known])
        # Spark parses the names of columns that go to Python, and a name may hold anything.
        plain = frame.toDF(*[f"c{place}" for place, _ in enumerate(schema)])
        return plain.mapInArrow(_counting(self.streams, schema), from_arrow_schema(schema))


def _counting(streams: tuple[str, ...], schema: pa.Schema) -> Callable[[Batches], Batches]:
    def count(batches: Batches) -> Batches:
        from pyspark import TaskContext

        rows = 0
        for batch in batches:
            rows += batch.column(schema.get_field_index(SIDE)).null_count
            yield pa.record_batch(batch.columns, schema=schema)
        if rows:
            context = TaskContext.get()
            task = context.partitionId() if context is not None else 0
            note = {"streams": streams, "task": task, "rows": rows}
            yield _note_row(note_bytes(note), schema)

    return count


def _reading(reader: ShareReader, leaf: Leaf, schema: pa.Schema) -> Callable[[Batches], Batches]:
    # What goes to tasks must not hold the session.
    source, streams, place, origin = leaf.share, leaf.streams, leaf.place, leaf.origin

    def read(batches: Batches) -> Batches:
        order = place.read()
        shares = order.shares.get(source, [])
        for task in (task for batch in batches for task in batch.column(0).to_pylist()):
            records = 0
            if task == 0 and origin is not None and source in order.partitions:
                known = [Tick(origin, n, UNHEARD_US) for n in range(order.partitions[source])]
                yield _note_row(tick_bytes(*known), schema)
            for share in shares[task] if task < len(shares) else []:
                for batch, count in reader.read(share):
                    records += count
                    yield _with_hidden(batch, order.now_us, schema)
            if records:
                # Where rows are grouped, equal notes would become one: the task tells them apart.
                about = {"streams": streams, "source": source, "task": task}
                yield _note_row(note_bytes({**about, "rows": records}), schema)
        keep_what_is_loaded()

    return read


def _with_hidden(batch: pa.RecordBatch, now_us: int, schema: pa.Schema) -> pa.RecordBatch:
    count = batch.num_rows
    hidden: list[Any] = [
        pa.nulls(count, pa.binary()),
        pa.repeat(pa.scalar(now_us, pa.int64()), count),
    ]
    return pa.record_batch([*batch.columns, *hidden], schema=schema)


def _note_row(note: bytes, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.nulls(1, field.type) for field in schema]
    arrays[schema.get_field_index(SIDE)] = pa.array([note], pa.binary())
    return pa.record_batch(arrays, schema=schema)
