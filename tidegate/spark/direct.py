"""Sources that tasks read and judge themselves: no row goes to Spark's SQL and back.

What cannot be used is counted as everywhere: records that cannot be read, without a value where one
must be, without an event time, or with one too far in the future.
"""

from __future__ import annotations

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
from tidegate.operators.vectorized import Vector, VectorFailed
from tidegate.operators.watermark import UNHEARD_US, Tick
from tidegate.spark.order import Order

if TYPE_CHECKING:
    from tidegate.connectors.base import Read, ShareReader

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
