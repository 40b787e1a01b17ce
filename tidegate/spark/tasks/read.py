"""Reading: a task reads splits, detects malformed records and computes the columns of each scan.

A record is read and decoded once for all branches of a program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

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
from tidegate.operators.vectorized import VectorFailed
from tidegate.operators.watermark import NO_WATERMARK_US, WatermarkUpdate
from tidegate.physical.job_graph import Read, ScanColumns
from tidegate.spark.tasks.protocol import EpochSpec


@dataclass(frozen=True)
class CheckedRecords:
    """Records with their event time; `malformed` is None if all of them are valid."""

    batch: pa.RecordBatch
    event_time: pa.Array
    malformed: pa.Array | None


def check_records(read: Read, batch: pa.RecordBatch, now_us: int) -> CheckedRecords:
    """Detect malformed records.

    These are unreadable records, NULL in a NOT NULL column, a missing event time, or one too far in
    the future.
    """
    try:
        return _check(read, batch, now_us)
    except (pa.ArrowException, ValueError) as error:
        raise VectorFailed(str(error)) from None


def _check(read: Read, batch: pa.RecordBatch, now_us: int) -> CheckedRecords:
    tests = [pc.is_null(_array(vector.evaluate(batch), batch.num_rows)) for vector in read.required]
    if MALFORMED_RECORD in batch.schema.names:
        tests.append(pc.is_valid(batch.column(MALFORMED_RECORD)))
    if read.time is None:
        time = pa.nulls(batch.num_rows, pa.int64())
    else:
        time = _array(read.time.evaluate(batch), batch.num_rows)
        tests.append(pc.is_null(time))
        if read.max_future_us is not None:
            limit = pa.scalar(now_us + read.max_future_us, pa.int64())
            tests.append(pc.fill_null(pc.greater(time, limit), False))
    failures = [test for test in tests if pc.any(test).as_py()]
    if not failures:
        return CheckedRecords(batch, time, None)
    malformed = failures[0]
    for test in failures[1:]:
        malformed = pc.or_(malformed, test)
    time = pc.if_else(malformed, pa.scalar(MALFORMED_EVENT_TIME, pa.int64()), time)
    return CheckedRecords(batch, time, malformed)


def scan_columns(scan: ScanColumns, records: CheckedRecords, now_us: int) -> pa.RecordBatch:
    """Return the columns of a scan and the hidden columns."""
    batch, count = records.batch, records.batch.num_rows
    try:
        columns = [_array(vector.evaluate(batch), count) for _, vector in scan.columns]
    except (pa.ArrowException, ValueError) as error:
        raise VectorFailed(str(error)) from None
    valid = records.malformed is None
    hidden: dict[str, Any] = {
        ORIGIN: _origin(scan, batch),
        EVENT_TIME: records.event_time,
        SELECTED: pa.repeat(pa.scalar(True), count) if valid else pc.invert(records.malformed),
        CONTROL: pa.nulls(count, pa.binary()),
        NOW: pa.repeat(pa.scalar(now_us, pa.int64()), count),
    }
    hidden |= {name: batch.column(name) for name in ARRIVAL if name in batch.schema.names}
    names = [*(name for name, _ in scan.columns), *hidden]
    return pa.record_batch([*columns, *hidden.values()], names=names)


def _origin(scan: ScanColumns, batch: pa.RecordBatch) -> pa.Array:
    if not scan.partitioned:
        return pa.repeat(pa.scalar(scan.origin, pa.int32()), batch.num_rows)
    numbers = pc.shift_left(batch.column(PARTITION).cast(pa.int64()), PARTITION_SHIFT)
    return pc.add(numbers, scan.origin)


def _array(value: Any, count: int) -> pa.Array:
    return pa.repeat(value, count) if isinstance(value, pa.Scalar) else value


def initial_updates(origin: int, split: str, epoch_spec: EpochSpec) -> list[WatermarkUpdate]:
    """Return a watermark update for each partition of a source that has its own watermarks."""
    partitions = range(epoch_spec.partitions.get(split, 0))
    return [WatermarkUpdate(origin, number, NO_WATERMARK_US) for number in partitions]
