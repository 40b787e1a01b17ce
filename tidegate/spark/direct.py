"""Sources that tasks read and judge themselves: no row goes to Spark's SQL and back.

What cannot be used is counted as everywhere: records that cannot be read, without a value where one
must be, without an event time, or with one too far in the future.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from tidegate.spark.pack import Batches, Packer, PackSpec
from tidegate.spark.sides import note_bytes, tick_bytes
from tidegate.spark.staging import Staging, StagingSpec
from tidegate.spark.worker import keep_what_is_loaded, task_number

if TYPE_CHECKING:
    from tidegate.connectors.protocols import ShareReader

_HIDDEN = (ORIGIN, MARK, LIVE, SIDE)


@dataclass(frozen=True)
class DirectScan:
    """How tasks read a source: `share` is its name in orders, `columns` are those of the scan."""

    reader: ShareReader
    share: str
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
    def hidden(self) -> tuple[str, ...]:
        """What goes to an operator besides columns: one origin alone need not be told."""
        return (*([ORIGIN] if self.partitioned else []), MARK, LIVE, SIDE)

    def batches(self, order: Order, tasks: Iterator[int]) -> Iterator[pa.RecordBatch]:
        """The rows of some tasks, with hidden columns, then a note of how many they were."""
        shares = order.shares.get(self.share, [])
        for task in tasks:
            records = 0
            if task == 0 and self.partitioned and self.share in order.partitions:
                partitions = range(order.partitions[self.share])
                known = [Tick(self.index, number, UNHEARD_US) for number in partitions]
                yield self._noted(tick_bytes(*known))
            for share in shares[task] if task < len(shares) else []:
                for batch, count in self.reader.read(share):
                    records += count
                    yield self._scanned(batch, order)
            if records:
                about = {"streams": self.streams, "source": self.share, "task": task}
                yield self._noted(note_bytes({**about, "rows": records}))

    def _scanned(self, batch: pa.RecordBatch, order: Order) -> pa.RecordBatch:
        count = batch.num_rows
        try:
            columns = [_array(vector.of(batch), count) for _, vector in self.columns]
            mark, bad = self._judged(batch, order.now_us)
        except (pa.ArrowException, ValueError) as error:
            raise VectorFailed(str(error)) from None
        hidden: dict[str, Any] = {
            ORIGIN: self._origin(batch),
            MARK: mark,
            LIVE: pa.repeat(pa.scalar(True), count) if bad is None else pc.invert(bad),
            SIDE: pa.nulls(count, pa.binary()),
            NOW: pa.repeat(pa.scalar(order.now_us, pa.int64()), count),
        }
        hidden |= {name: batch.column(name) for name in ARRIVAL if name in batch.schema.names}
        names = [*(name for name, _ in self.columns), *hidden]
        return pa.record_batch([*columns, *hidden.values()], names=names)

    def _origin(self, batch: pa.RecordBatch) -> pa.Array:
        if not self.partitioned:
            return pa.repeat(pa.scalar(self.index, pa.int32()), batch.num_rows)
        numbers = pc.shift_left(batch.column(PARTITION).cast(pa.int64()), PARTITION_SHIFT)
        return pc.add(numbers, self.index)

    def _judged(self, batch: pa.RecordBatch, now_us: int) -> tuple[pa.Array, pa.Array | None]:
        """The event time of rows, and which of them are bad; None if none is."""
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
        return self._scanned(empty, Order(0, 0, 0, False, {}, {})).schema


def _array(value: Any, count: int) -> pa.Array:
    return pa.repeat(value, count) if isinstance(value, pa.Scalar) else value


def scan_and_pack(
    scan: DirectScan, stage: VectorStage, pack: PackSpec, place: OrderPlace
) -> Callable[[Batches], Batches]:
    """A source, the stage above it, and the packing of its rows for an operator."""

    def run(batches: Batches) -> Batches:
        order = place.read()
        packer = Packer(pack, task_number(), order)
        for batch in scan.batches(order, _numbers(batches)):
            yield from packer.add(stage.apply(batch, scan.hidden))
        yield from packer.finish()
        keep_what_is_loaded()

    return run


def scan_and_stage(
    scan: DirectScan, stage: VectorStage, spec: StagingSpec, place: OrderPlace
) -> Callable[[Batches], Batches]:
    """A stream without operators: its source, its one stage, and its sinks."""

    def run(batches: Batches) -> Batches:
        order = place.read()
        staging = Staging(spec, order, task_number())
        for batch in scan.batches(order, _numbers(batches)):
            staging.add(pa.Table.from_batches([stage.apply(batch, _HIDDEN)]))
        yield staging.notes()
        keep_what_is_loaded()

    return run


def _numbers(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()
