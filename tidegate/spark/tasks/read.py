"""Tasks that read sources directly, for all streams of a pipeline at once.

A record is read and decoded once, and packed for every operator that reads it. The packed rows of
all operators go through one shuffle. The rows of streams without operators are staged by the
reading task; their reports go through the shuffle too.
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
    CONTROL,
    EVENT_TIME,
    MALFORMED_EVENT_TIME,
    MALFORMED_RECORD,
    NOW,
    ORIGIN,
    PARTITION,
    PARTITION_SHIFT,
    SELECTED,
)
from tidegate.operators.vectorized import Vector, VectorFailed, VectorStage
from tidegate.operators.watermark import NO_WATERMARK_US, WatermarkUpdate
from tidegate.spark.tasks.protocol import (
    REPORT,
    EpochSpec,
    EpochSpecStore,
    InputKey,
    keep_loaded_modules,
    report_bytes,
    task_number,
    watermark_bytes,
)
from tidegate.spark.tasks.shuffle import (
    BYTES_TO_SEND,
    PASSING,
    Batches,
    ShuffleSpec,
    ShuffleWriter,
    packed_rows,
)
from tidegate.spark.tasks.sink_write import Staging, StagingSpec

if TYPE_CHECKING:
    from tidegate.connectors.base import ScanRequest, SplitReader


# ---- Sources that tasks read and check directly, without Spark SQL.
#
# Malformed records are counted like those of other sources: unreadable ones, NULL in a NOT NULL
# column, a missing event time, or one too far in the future.

# The event time of records, and which of them are malformed; None if there are none.
Judged = tuple[pa.Array, pa.Array | None]


@dataclass(frozen=True)
class DirectScan:
    """A source that tasks read directly for a stream; `columns` are those of the scan."""

    read: ScanRequest
    reader: SplitReader
    # The stream and the source, in lower case.
    range_key: tuple[str, str]
    # The streams that the number of records is attributed to.
    streams: tuple[str, ...]
    index: int
    columns: tuple[tuple[str, Vector], ...]
    # Columns that must not be NULL; the event time in microseconds, and its limit in the future.
    required: tuple[Vector, ...]
    time: Vector | None
    max_future_us: int | None
    # True if each of its partitions has its own watermark.
    partitioned: bool = False

    @property
    def split(self) -> str:
        """Its name in epoch specs."""
        return "/".join(self.range_key)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Hidden columns for an operator; the origin is omitted if there is only one."""
        return (*([ORIGIN] if self.partitioned else []), EVENT_TIME, SELECTED, CONTROL)

    def partitions_of(self, epoch_spec: EpochSpec) -> list[WatermarkUpdate]:
        """Return initial watermark updates of partitions that have their own watermarks."""
        if not self.partitioned:
            return []
        partitions = range(epoch_spec.partitions.get(self.split, 0))
        return [WatermarkUpdate(self.index, number, NO_WATERMARK_US) for number in partitions]

    def scanned(self, batch: pa.RecordBatch, now_us: int, judged: Judged) -> pa.RecordBatch:
        """Return the columns of the scan and the hidden columns of checked records."""
        count = batch.num_rows
        mark, bad = judged
        try:
            columns = [_array(vector.evaluate(batch), count) for _, vector in self.columns]
        except (pa.ArrowException, ValueError) as error:
            raise VectorFailed(str(error)) from None
        hidden: dict[str, Any] = {
            ORIGIN: self._origin(batch),
            EVENT_TIME: mark,
            SELECTED: pa.repeat(pa.scalar(True), count) if bad is None else pc.invert(bad),
            CONTROL: pa.nulls(count, pa.binary()),
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
        """Return the event time of records, and which of them are malformed."""
        try:
            return self._judged(batch, now_us)
        except (pa.ArrowException, ValueError) as error:
            raise VectorFailed(str(error)) from None

    def _judged(self, batch: pa.RecordBatch, now_us: int) -> Judged:
        tests = [
            pc.is_null(_array(vector.evaluate(batch), batch.num_rows)) for vector in self.required
        ]
        if MALFORMED_RECORD in batch.schema.names:
            tests.append(pc.is_valid(batch.column(MALFORMED_RECORD)))
        if self.time is None:
            mark = pa.nulls(batch.num_rows, pa.int64())
        else:
            mark = _array(self.time.evaluate(batch), batch.num_rows)
            tests.append(pc.is_null(mark))
            if self.max_future_us is not None:
                late = pc.greater(mark, pa.scalar(now_us + self.max_future_us, pa.int64()))
                tests.append(pc.fill_null(late, False))
        failures = [test for test in tests if pc.any(test).as_py()]
        if not failures:
            return mark, None
        bad = failures[0]
        for test in failures[1:]:
            bad = pc.or_(bad, test)
        return pc.if_else(bad, pa.scalar(MALFORMED_EVENT_TIME, pa.int64()), mark), bad


def _array(value: Any, count: int) -> pa.Array:
    return pa.repeat(value, count) if isinstance(value, pa.Scalar) else value


# The minimum buffer of each reader.
_LEAST_BYTES = 8 << 20


class Taker(Protocol):
    """A consumer of the rows that a task has read."""

    def add(self, batch: pa.RecordBatch) -> Batches:
        """Buffer rows; flush when the buffer is full."""

    def add_report(self, report: bytes) -> None:
        """Send a report to the driver."""

    def finish(self) -> Batches:
        """Flush the remaining rows."""


@dataclass(frozen=True)
class ReadPort:
    """A port of an operator whose rows tasks read and compute."""

    scan: DirectScan
    stage: VectorStage
    pack: ShuffleSpec

    @property
    def hidden(self) -> tuple[str, ...]:
        return self.scan.hidden

    def taker(self, epoch_spec: EpochSpec, tasks: Sequence[int], limit: int) -> Taker:
        shuffle_writer = ShuffleWriter(self.pack, task_number(), epoch_spec, limit)
        shuffle_writer.updates += self.scan.partitions_of(epoch_spec) if 0 in tasks else []
        return shuffle_writer


@dataclass(frozen=True)
class ReadStream:
    """A stream without operators whose rows tasks read, compute and stage."""

    scan: DirectScan
    stage: VectorStage
    staging: StagingSpec
    # The operator that passes on its reports; None if the task sends them to the driver.
    by: int | None = None
    hidden = (ORIGIN, EVENT_TIME, SELECTED, CONTROL)

    def taker(self, epoch_spec: EpochSpec, tasks: Sequence[int], limit: int) -> Taker:
        return _SinkBuffer(Staging(self.staging, epoch_spec, task_number()), self.by)


@dataclass
class _SinkBuffer:
    work: Staging
    by: int | None

    def add(self, batch: pa.RecordBatch) -> Batches:
        self.work.add(pa.Table.from_batches([batch]))
        return iter(())

    def add_report(self, report: bytes) -> None:
        self.work.control.reports.append(report[1:])

    def finish(self) -> Batches:
        reports = self.work.reports()
        if self.by is None:
            yield reports
            return
        listed = [REPORT + report for report in reports.column("report").to_pylist()]
        yield packed_rows(
            self.by, task_number(), 0, b"", [(0, PASSING, report) for report in listed]
        )


Reader = ReadPort | ReadStream


@dataclass(frozen=True)
class ReadRange:
    """A range of a source, read once for all readers."""

    reader: SplitReader
    readers: tuple[Reader, ...]

    def run(self, epoch_spec: EpochSpec, tasks: Sequence[int]) -> Batches:
        """Read the splits of some tasks and distribute the rows to all readers."""
        limit = max(BYTES_TO_SEND // len(self.readers), _LEAST_BYTES)
        takers = [(each, each.taker(epoch_spec, tasks, limit)) for each in self.readers]
        first = self.readers[0].scan
        splits = epoch_spec.splits.get(first.split, [])
        for task in tasks:
            records = 0
            for split in splits[task] if task < len(splits) else []:
                for batch, count in self.reader.read(split):
                    records += count
                    judged = first.judged(batch, epoch_spec.now_us)
                    for each, taker in takers:
                        rows = each.scan.scanned(batch, epoch_spec.now_us, judged)
                        yield from taker.add(each.stage.apply(rows, each.hidden))
            if records:
                streams = [stream for each in self.readers for stream in each.scan.streams]
                about = {"streams": streams, "source": first.split, "task": task, "rows": records}
                takers[0][1].add_report(report_bytes(about))
        for _, taker in takers:
            yield from taker.finish()


def reading(
    ranges: Sequence[ReadRange], epoch_specs: EpochSpecStore
) -> Callable[[Batches], Batches]:
    """Return the function for mapInArrow: rows for a shuffle, or reports of streams without
    operators.
    """

    def run(batches: Batches) -> Batches:
        epoch_spec = epoch_specs.read()
        tasks = [task for batch in batches for task in batch.column(0).to_pylist()]
        for each in ranges:
            yield from each.run(epoch_spec, tasks)
        keep_loaded_modules()

    return run


def ranges_of(
    readers: Iterable[Reader],
    first_of: Mapping[InputKey, InputKey],
    reader_of: Callable[[Sequence[DirectScan]], SplitReader | None],
) -> tuple[ReadRange, ...]:
    """Group readers by range; `first_of` maps (stream, source) to the first one with the same
    range.
    """
    groups: dict[InputKey, list[Reader]] = {}
    for each in readers:
        range_key = each.scan.range_key
        groups.setdefault(first_of.get(range_key, range_key), []).append(each)
    ranges: list[ReadRange] = []
    for range_key, group in groups.items():
        reader = reader_of([each.scan for each in group])
        if reader is None:
            ranges += [ReadRange(each.scan.reader, (each,)) for each in group]
            continue
        same = tuple(replace(each, scan=replace(each.scan, range_key=range_key)) for each in group)
        ranges.append(ReadRange(reader, same))
    return tuple(ranges)


@dataclass
class Reading:
    """The ranges that tasks read for a pipeline, and the shuffled rows of all operators."""

    ranges: tuple[ReadRange, ...] = ()
    # The indexes of operators in the shuffle.
    operator_indexes: dict[Hashable, int] = field(default_factory=dict)
    # Streams, in lower case, whose rows are staged where they are read.
    streams: set[str] = field(default_factory=set)
    shuffled: DataFrame | None = None

    def packed(self, operator_index: int) -> DataFrame:
        """Return the shuffled rows of one operator."""
        assert self.shuffled is not None, "the ranges were read"
        if len(set(self.operator_indexes.values())) == 1:
            return self.shuffled
        # Spark would push a plain comparison below the shuffle, and run a shuffle for each reader.
        return self.shuffled.where(f"if(spark_partition_id() < 0, -1, operator) = {operator_index}")


# ---- The leaves of a frame: tasks read the splits of their epoch spec and count the records.

_HIDDEN = [pa.field(CONTROL, pa.binary()), pa.field(NOW, pa.int64())]


@dataclass(frozen=True)
class ReadFrame:
    """The leaf of a frame that reads a source; `split` is its name in epoch specs."""

    spark: SparkSession
    split: str
    # The streams that the number of records is attributed to.
    streams: tuple[str, ...]
    epoch_specs: EpochSpecStore
    tasks: int
    # The origin of this scan, if each of its partitions has its own watermark.
    origin: int | None = None

    def read_frame(self, reader: SplitReader) -> DataFrame:
        """Return the rows that tasks read, and a report with their number."""
        schema = pa.schema([*reader.schema, *_HIDDEN])
        read = _reading(reader, self, schema)
        numbers = self.spark.range(0, self.tasks, 1, self.tasks)
        return numbers.mapInArrow(read, from_arrow_schema(schema))

    def count_rows(self, frame: DataFrame) -> DataFrame:
        """Add a report with the number of rows to a frame that Spark reads."""
        frame_schema = to_arrow_schema(frame.schema, timezone="UTC")
        # In a report all other columns are NULL, even those that were declared NOT NULL.
        schema = pa.schema([field.with_nullable(True) for field in frame_schema])
        # Spark parses the names of columns that go to Python, and names may contain any character.
        plain = frame.toDF(*[f"c{index}" for index, _ in enumerate(schema)])
        return plain.mapInArrow(_counting(self.streams, schema), from_arrow_schema(schema))


def _counting(streams: tuple[str, ...], schema: pa.Schema) -> Callable[[Batches], Batches]:
    def count(batches: Batches) -> Batches:
        rows = 0
        for batch in batches:
            rows += batch.column(schema.get_field_index(CONTROL)).null_count
            yield pa.record_batch(batch.columns, schema=schema)
        if rows:
            report = {"streams": streams, "task": task_number(), "rows": rows}
            yield _control_row(report_bytes(report), schema)

    return count


def _reading(
    reader: SplitReader, leaf: ReadFrame, schema: pa.Schema
) -> Callable[[Batches], Batches]:
    # The closure of tasks must not contain the session.
    source, streams, epoch_specs, origin = leaf.split, leaf.streams, leaf.epoch_specs, leaf.origin

    def read(batches: Batches) -> Batches:
        epoch_spec = epoch_specs.read()
        splits = epoch_spec.splits.get(source, [])
        for task in (task for batch in batches for task in batch.column(0).to_pylist()):
            records = 0
            if task == 0 and origin is not None and source in epoch_spec.partitions:
                updates = [
                    WatermarkUpdate(origin, n, NO_WATERMARK_US)
                    for n in range(epoch_spec.partitions[source])
                ]
                yield _control_row(watermark_bytes(*updates), schema)
            for split in splits[task] if task < len(splits) else []:
                for batch, count in reader.read(split):
                    records += count
                    yield _with_hidden(batch, epoch_spec.now_us, schema)
            if records:
                # Pre-aggregation would merge equal reports: the task number keeps them distinct.
                about = {"streams": streams, "source": source, "task": task}
                yield _control_row(report_bytes({**about, "rows": records}), schema)
        keep_loaded_modules()

    return read


def _with_hidden(batch: pa.RecordBatch, now_us: int, schema: pa.Schema) -> pa.RecordBatch:
    count = batch.num_rows
    hidden: list[Any] = [
        pa.nulls(count, pa.binary()),
        pa.repeat(pa.scalar(now_us, pa.int64()), count),
    ]
    return pa.record_batch([*batch.columns, *hidden], schema=schema)


def _control_row(report: bytes, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.nulls(1, field.type) for field in schema]
    arrays[schema.get_field_index(CONTROL)] = pa.array([report], pa.binary())
    return pa.record_batch(arrays, schema=schema)
