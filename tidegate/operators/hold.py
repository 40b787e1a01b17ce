"""EMIT ON WINDOW CLOSE for rows: every row is kept until the watermark passes its window's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.columns import HASH, OP, STORE_TIME
from tidegate.operators.kernels.arrays import concat
from tidegate.operators.late_rows import LateRowFormat, split_late
from tidegate.operators.operator import (
    NO_LIMITS,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    TimeProgress,
)
from tidegate.operators.store.time_buckets import FORMAT, TimeBucketStore
from tidegate.state.codec import schema_text


def hash_columns(output: pa.Schema) -> tuple[str, ...]:
    """Return the columns whose hash assigns a row to a key group.

    Rows are independent of each other, so all hashable columns are used to distribute them evenly.
    The changes of a window must stay in order: a changelog is distributed by window only.
    """
    if OP in output.names:
        return (STORE_TIME,)
    hashable = (item.name for item in output if not pa.types.is_nested(item.type))
    return (STORE_TIME, *hashable)


@dataclass(frozen=True)
class HoldOperator:
    """Holds rows until the watermark reaches their STORE_TIME, then emits them ordered by it."""

    output: pa.Schema
    # The column with the start of the window that a row waits for.
    start: str | None = None
    late_rows: LateRowFormat | None = None
    limits: Limits = NO_LIMITS
    panes = None
    name: str = "hold_until_close"

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        hidden = [pa.field(STORE_TIME, pa.int64()), pa.field(HASH, pa.int64())]
        return ((pa.schema([*hidden, *self.output]),),)

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    def state_format(self) -> tuple[str, ...]:
        return (FORMAT, schema_text(self.output))

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        schema = self.shuffle_schemas[0][0]
        return (pa.table([rows.column(name) for name in schema.names], schema=schema),)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        return concat(parts)

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        store = TimeBucketStore(state, self.shuffle_schemas[0], None)
        output = StepOutput()
        rows, late = split_late(self.shuffle_schemas[0][0], inputs[0], state, progress)
        if self.late_rows is not None:
            for late_name, name in zip(self.late_rows.names, self.output.names, strict=False):
                late = late.append_column(late_name, late.column(name))
            watermark_us = progress.previous_watermark_us
            output.late += self.late_rows.with_window(late, self.start, watermark_us)
        watermark_us = progress.watermark_us
        if watermark_us is not None:
            due = [part[0] for part in store.load(None, watermark_us + 1)]
            is_due = rows.column(STORE_TIME).to_numpy() <= watermark_us
            if is_due.any():
                due.append(rows.filter(pa.array(is_due)))
                rows = rows.filter(pa.array(~is_due))
            store.drop_before(watermark_us + 1)
            output.rows += self._sorted_by_time(due)
        if rows.num_rows:
            store.append((rows,))
        self.limits.enforce(self.name, store, state.metrics)
        return output

    def _sorted_by_time(self, parts: list[pa.Table]) -> list[pa.Table]:
        if not parts:
            return []
        rows = pa.concat_tables(parts)
        order = np.argsort(rows.column(STORE_TIME).to_numpy(), kind="stable")
        return [rows.take(pa.array(order)).select(self.output.names)] if rows.num_rows else []
