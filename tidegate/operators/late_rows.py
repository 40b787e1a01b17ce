"""Late rows: the original row with the operator, window and watermark that made it late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import INPUT_ROWS, LATE_FIELDS, PANE, STORE_TIME
from tidegate.operators.aggregate.groups import WindowPanes
from tidegate.operators.kernels.arrays import int_column
from tidegate.operators.operator import KeyGroupState, Operator, Tables, TimeProgress

TIMESTAMP = pa.timestamp("us", "UTC")
_REASON_FIELDS = tuple(
    pa.field(name, TIMESTAMP if sql_type == "TIMESTAMP" else pa.string())
    for name, sql_type in LATE_FIELDS
)


@dataclass(frozen=True)
class LateRowFormat:
    """The rows that an operator emits to the stream that LATE DATA TO names.

    Input rows have the columns that the operator requires and the columns of the original row as
    `l0`, `l1`, …. A late stream of several inputs has the columns of all of them: `stream_types`
    are their types, and `column_indexes` has for each of them the index of the original column, or
    None.
    """

    operator: str
    required: pa.Schema
    original: tuple[pa.DataType, ...]
    stream_types: tuple[pa.DataType, ...] | None = None
    column_indexes: tuple[int | None, ...] | None = None

    @property
    def names(self) -> list[str]:
        """The names of the columns of the original row."""
        return [f"l{index}" for index, _ in enumerate(self.original)]

    @property
    def input_schema(self) -> pa.Schema:
        """The schema of the rows that the operator receives."""
        original = [pa.field(*pair) for pair in zip(self.names, self.original, strict=True)]
        return pa.schema([*self.required, *original])

    @property
    def schema(self) -> pa.Schema:
        """The schema of the late rows that the operator emits."""
        types = self.original if self.stream_types is None else self.stream_types
        columns = [pa.field(f"l{index}", data_type) for index, data_type in enumerate(types)]
        return pa.schema([*columns, *_REASON_FIELDS])

    def select(self, rows: pa.Table) -> pa.Table:
        """Return rows in the input schema."""
        schema = self.input_schema
        return pa.table(
            [rows.column(name).cast(schema.field(name).type) for name in schema.names],
            schema=schema,
        )

    def split(
        self, parts: Sequence[pa.Table], panes: WindowPanes, limit_us: int | None
    ) -> tuple[pa.Table, pa.Table]:
        """Return the rows that are on time, and those whose last window ends by `limit_us`."""
        rows = pa.concat_tables(parts) if parts else self.input_schema.empty_table()
        if limit_us is None or not rows.num_rows:
            return rows, rows.slice(0, 0)
        is_late = panes.last_end(rows.column(PANE).to_numpy()) <= limit_us
        if not is_late.any():
            return rows, rows.slice(0, 0)
        return rows.filter(pa.array(~is_late)), rows.filter(pa.array(is_late))

    def with_reason(
        self,
        rows: pa.Table,
        starts: np.ndarray | None,
        ends: np.ndarray | None,
        watermark_us: int | None,
    ) -> pa.Table:
        """Return late rows with the operator, their window (if it has any) and the watermark."""
        count = rows.num_rows
        reason = [
            pa.repeat(pa.scalar(self.operator), count),
            _timestamps(starts, count),
            _timestamps(ends, count),
            pa.repeat(pc.cast(pa.scalar(watermark_us, pa.int64()), TIMESTAMP), count),
        ]
        return pa.table([*self._columns(rows), *reason], schema=self.schema)

    def with_last_window(
        self, rows: pa.Table, panes: WindowPanes, watermark_us: int | None
    ) -> pa.Table:
        """Return late rows with the last window of their pane as the reason."""
        ends = panes.last_end(rows.column(PANE).to_numpy())
        return self.with_reason(rows, panes.start(ends), ends, watermark_us)

    def with_window(
        self, rows: pa.Table, start: str | None, watermark_us: int | None
    ) -> list[pa.Table]:
        """Return late rows, if any, where STORE_TIME is the window's end and `start` a column."""
        if not rows.num_rows:
            return []
        ends = starts = np.asarray(rows.column(STORE_TIME).to_numpy(), np.int64)
        if start is not None:
            starts = np.asarray(rows.column(start).cast(pa.int64()).to_numpy(), np.int64)
        return [self.with_reason(rows, starts, ends, watermark_us)]

    def _columns(self, rows: pa.Table) -> list[pa.ChunkedArray | pa.Array]:
        """Return the original columns, or those of the late stream."""
        if self.stream_types is None or self.column_indexes is None:
            return [rows.column(name) for name in self.names]
        return [
            pa.nulls(rows.num_rows, data_type) if index is None else rows.column(f"l{index}")
            for data_type, index in zip(self.stream_types, self.column_indexes, strict=True)
        ]


def split_late(
    schema: pa.Schema, parts: Sequence[Tables], state: KeyGroupState, progress: TimeProgress
) -> tuple[pa.Table, pa.Table]:
    """Return the rows whose STORE_TIME is after the previous watermark, and the late rows.

    Late rows are counted. A row with the column INPUT_ROWS stands for that many rows, because tasks
    have dropped the others before the shuffle.
    """
    rows = pa.concat_tables([schema.empty_table(), *(part[0] for part in parts)])
    if progress.previous_watermark_us is None or not rows.num_rows:
        return rows, rows.slice(0, 0)
    is_late = int_column(rows, STORE_TIME) <= progress.previous_watermark_us
    late = rows.filter(pa.array(is_late))
    state.count_late(
        int(int_column(late, INPUT_ROWS).sum()) if INPUT_ROWS in schema.names else late.num_rows
    )
    return rows.filter(pa.array(~is_late)), late


def with_late_columns(
    operator: Any,
    stream_types: tuple[pa.DataType, ...],
    column_indexes: Mapping[int, tuple[int | None, ...]],
) -> Operator:
    """Return an operator whose late rows have the columns of a stream of several inputs.

    `column_indexes` has the indexes of the original columns by input port. A port that is missing
    has no late rows.
    """
    has_ports = isinstance(operator.late_rows, tuple)
    ports = operator.late_rows if has_ports else (operator.late_rows,)
    no_columns = (None,) * len(stream_types)
    widened = tuple(
        replace(
            late_rows,
            stream_types=stream_types,
            column_indexes=column_indexes.get(port, no_columns),
        )
        for port, late_rows in enumerate(ports)
    )
    result: Operator = replace(operator, late_rows=widened if has_ports else widened[0])
    return result


def _timestamps(values: np.ndarray | None, count: int) -> pa.Array:
    if values is None:
        return pa.nulls(count, TIMESTAMP)
    return pa.array(values, pa.int64()).cast(TIMESTAMP)
