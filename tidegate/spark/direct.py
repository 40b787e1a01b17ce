"""Sources that tasks read and judge themselves: no row goes to Spark's SQL and back.

What cannot be used is counted as everywhere: records that cannot be read, without a value where one
must be, without an event time, or with one too far in the future.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

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
from tidegate.operators.clock import UNHEARD_US, Tick
from tidegate.operators.vectors import Vector, VectorFailed, VectorStage
from tidegate.spark.order import Order, OrderPlace
from tidegate.spark.pack import Batches
from tidegate.spark.sides import Note, note_bytes, tick_bytes
from tidegate.spark.staging import Staging, StagingSpec
from tidegate.spark.worker import keep_what_is_loaded, task_number

if TYPE_CHECKING:
    from tidegate.connectors.protocols import Read, ShareReader

_HIDDEN = (ORIGIN, MARK, LIVE, SIDE)
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

    def batches(self, order: Order, tasks: Iterator[int]) -> Iterator[pa.RecordBatch]:
        """The rows of some tasks, with hidden columns, then a note of how many they were."""
        shares = order.shares.get(self.share, [])
        for task in tasks:
            records = 0
            known = self.partitions_of(order) if task == 0 else []
            if known:
                yield self._noted(tick_bytes(*known))
            for share in shares[task] if task < len(shares) else []:
                for batch, count in self.reader.read(share):
                    records += count
                    yield self.scanned(batch, order.now_us, self.judged(batch, order.now_us))
            if records:
                yield self._noted(note_bytes(self.count_of(task, records, self.streams)))

    def partitions_of(self, order: Order) -> list[Tick]:
        """The partitions that have watermarks of their own, before anything came of them."""
        if not self.partitioned:
            return []
        partitions = range(order.partitions.get(self.share, 0))
        return [Tick(self.index, number, UNHEARD_US) for number in partitions]

    def count_of(self, task: int, records: int, streams: Sequence[str]) -> Note:
        """What a task tells some streams."""
        return {"streams": streams, "source": self.share, "task": task, "rows": records}

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

    def _noted(self, note: bytes) -> pa.RecordBatch:
        """A row that is none, with a note on its side."""
        schema = self.schema
        given = {LIVE: pa.array([False]), SIDE: pa.array([note], pa.binary())}
        return pa.record_batch(
            [given.get(item.name, pa.nulls(1, item.type)) for item in schema], schema=schema
        )

    @property
    def schema(self) -> pa.Schema:
        """That of its batches."""
        given = self.reader.schema
        empty = pa.record_batch([pa.nulls(0, item.type) for item in given], schema=given)
        return self.scanned(empty, 0, self.judged(empty, 0)).schema


def _array(value: Any, count: int) -> pa.Array:
    return pa.repeat(value, count) if isinstance(value, pa.Scalar) else value


def scan_and_stage(
    scan: DirectScan, stage: VectorStage, spec: StagingSpec, place: OrderPlace
) -> Callable[[Batches], Batches]:
    """A stream without operators: its source, its one stage, and its sinks."""

    def run(batches: Batches) -> Batches:
        order = place.read()
        staging = Staging(spec, order, task_number())
        for batch in scan.batches(order, task_numbers(batches)):
            staging.add(pa.Table.from_batches([stage.apply(batch, _HIDDEN)]))
        yield staging.notes()
        keep_what_is_loaded()

    return run


def task_numbers(batches: Batches) -> Iterator[int]:
    """Of which tasks this one is to read the shares."""
    for batch in batches:
        yield from batch.column(0).to_pylist()
