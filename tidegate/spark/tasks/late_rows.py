"""Late rows and dead letters of a stream as rows of a DataFrame."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tidegate.columns import (
    ARRIVAL_FILE,
    ARRIVAL_ROW,
    CONTROL,
    DEAD_LETTER_FIELDS,
    EVENT_TIME,
    NOW,
    ORIGIN,
    SELECTED,
)
from tidegate.physical.planner import ScanPlan
from tidegate.spark.tasks.protocol import ControlMessages, EpochSpecStore, report_bytes
from tidegate.spark.tasks.shuffle import Batches
from tidegate.sql.quoting import quote_identifier
from tidegate.state.codec import table_from_bytes

IS_LATE = "_tg_is_late"
_NOW = "_tg_late_now"


@dataclass(frozen=True)
class LateRowsFrame:
    """The rows of a stream and its late rows, which are not selected and have separate columns.

    `schema` has these columns by the names they have in the late stream.
    """

    frame: DataFrame
    schema: pa.Schema

    @property
    def columns(self) -> list[str]:
        return [_column(index) for index, _ in enumerate(self.schema)]


def with_late(
    frame: DataFrame,
    late: pa.Schema,
    names: tuple[str, ...],
    readers: tuple[str, ...],
    epoch_specs: EpochSpecStore,
) -> LateRowsFrame:
    """Add late rows as rows with separate columns, so that SQL can read them.

    Task reports among the rows of the stream attribute the number of late rows to each reader.
    """
    fields = [pa.field(_column(number), f.type) for number, f in enumerate(late)]
    hidden = [pa.field(_NOW, pa.int64()), pa.field(IS_LATE, pa.bool_())]
    # In a late row the columns of the stream are NULL, even if they are NOT NULL in the stream.
    stream_fields = [
        field.with_nullable(True) for field in to_arrow_schema(frame.schema, timezone="UTC")
    ]
    whole = pa.schema([*stream_fields, *fields, *hidden])

    def unpack(batches: Batches) -> Batches:
        now_us = epoch_specs.read().now_us
        count = 0
        for batch in batches:
            control = ControlMessages()
            control.add(pa.chunked_array([batch.column(batch.schema.get_field_index(CONTROL))]))
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns[IS_LATE] = pa.repeat(pa.scalar(False), batch.num_rows)
            yield filled(columns, batch.num_rows, whole)
            for data in control.late:
                for rows in table_from_bytes(data, late).to_batches():
                    count += rows.num_rows
                    late_columns = dict(zip((f.name for f in fields), rows.columns, strict=True))
                    yield filled(
                        late_columns | _hidden_late_columns(rows.num_rows, now_us),
                        rows.num_rows,
                        whole,
                    )
        if count and readers:
            yield _late_report(readers, count, whole)

    kinds = zip(names, late, strict=True)
    schema = pa.schema([pa.field(name, field.type) for name, field in kinds])
    return LateRowsFrame(frame.mapInArrow(unpack, from_arrow_schema(whole)), schema)


def late_scan(scan: ScanPlan, late: LateRowsFrame) -> DataFrame:
    """Return the late rows of another stream for a stage, with columns by id and hidden ones.

    They have no event time, because they are behind the watermark of their stream.
    """
    late_columns = {
        name.lower(): column for name, column in zip(late.schema.names, late.columns, strict=True)
    }
    columns = [
        f"{late_columns[item.name.lower()]} AS {quote_identifier(item.id)}"
        for item in scan.node.fields
    ]
    hidden = [f"{scan.index} AS {ORIGIN}", f"CAST(NULL AS BIGINT) AS {EVENT_TIME}"]
    hidden += [f"true AS {SELECTED}", f"CAST(NULL AS BINARY) AS {CONTROL}"]
    if scan.arrival:
        hidden += [f"'' AS {ARRIVAL_FILE}", f"0L AS {ARRIVAL_ROW}"]
    if scan.has_processing_time:
        hidden.append(f"{_NOW} AS {NOW}")
    return late.frame.where(IS_LATE).selectExpr(*columns, *hidden)


def _hidden_late_columns(count: int, now_us: int) -> dict[str, Any]:
    return {
        IS_LATE: pa.repeat(pa.scalar(True), count),
        SELECTED: pa.repeat(pa.scalar(False), count),
        _NOW: pa.repeat(pa.scalar(now_us, pa.int64()), count),
    }


def _late_report(readers: tuple[str, ...], count: int, whole: pa.Schema) -> pa.RecordBatch:
    report = report_bytes({"streams": readers, "rows": count})
    off = pa.array([False])
    return filled({CONTROL: pa.array([report], pa.binary()), SELECTED: off, IS_LATE: off}, 1, whole)


def filled(columns: dict[str, Any], count: int, whole: pa.Schema) -> pa.RecordBatch:
    """Return a batch with these columns, and NULL in all other columns."""
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in whole]
    return pa.record_batch(arrays, schema=whole)


def _column(index: int) -> str:
    return f"_tg_late_{index}"


# ---- Dead letters of a stream as rows of a frame, for the sinks that take them.

IS_FAILED = "_tg_is_failed"
FAILED_SCHEMA = pa.schema([pa.field(name, pa.string()) for name in DEAD_LETTER_FIELDS])
FAILED_COLUMNS = [f"_tg_failed_{name}" for name in DEAD_LETTER_FIELDS]


def with_failed(frame: DataFrame) -> DataFrame:
    """Add dead letters as rows that are not selected."""
    letter_fields = [pa.field(name, pa.string()) for name in FAILED_COLUMNS]
    # In a dead letter the columns of the stream are NULL, even if they are NOT NULL there.
    stream_fields = [
        field.with_nullable(True) for field in to_arrow_schema(frame.schema, timezone="UTC")
    ]
    whole = pa.schema([*stream_fields, *letter_fields, pa.field(IS_FAILED, pa.bool_())])

    def unpack(batches: Batches) -> Batches:
        for batch in batches:
            control = ControlMessages()
            control.add(pa.chunked_array([batch.column(batch.schema.get_field_index(CONTROL))]))
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns[IS_FAILED] = pa.repeat(pa.scalar(False), batch.num_rows)
            yield filled(columns, batch.num_rows, whole)
            if control.failed:
                yield filled(_letters(control.failed), len(control.failed), whole)

    return frame.mapInArrow(unpack, from_arrow_schema(whole))


def _letters(failed: list[bytes]) -> dict[str, pa.Array]:
    letters = [json.loads(item) for item in failed]
    columns = {
        column: pa.array([letter.get(name) for letter in letters], pa.string())
        for column, name in zip(FAILED_COLUMNS, DEAD_LETTER_FIELDS, strict=True)
    }
    columns[IS_FAILED] = pa.repeat(pa.scalar(True), len(letters))
    columns[SELECTED] = pa.repeat(pa.scalar(False), len(letters))
    return columns
