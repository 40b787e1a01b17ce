"""EMIT ON WINDOW CLOSE over rows: each is kept until the watermark has passed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.columns import OP
from tidegate.operators.aggregate.groups import HASH, PANE, concat
from tidegate.operators.late_rows import LateRows
from tidegate.operators.operator import (
    NO_LIMITS,
    EpochTime,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
)
from tidegate.operators.store.time_buckets import FORMAT, TimeBucketStore
from tidegate.state.codec import schema_text


def spread_by(output: pa.Schema) -> tuple[str, ...]:
    """The columns whose hash gives a row its key group: any will do, so all that have a hash.

    Changes of a window must stay in order, so they stay together.
    """
    if OP in output.names:
        return (PANE,)
    plain = (item.name for item in output if not pa.types.is_nested(item.type))
    return (PANE, *plain)


@dataclass(frozen=True)
class HoldOperator:
    """The pane of a row is the moment at which it may go; `output` are the columns it has.

    In a key group rows come out in the order of their panes.
    """

    output: pa.Schema
    # The column with the start of the window that a row waits for.
    start: str | None = None
    late_rows: LateRows | None = None
    limits: Limits = NO_LIMITS
    name: str = "hold_until_close"

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        hidden = [pa.field(PANE, pa.int64()), pa.field(HASH, pa.int64())]
        return ((pa.schema([*hidden, *self.output]),),)

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    def stored_as(self) -> tuple[str, ...]:
        return (FORMAT, schema_text(self.output))

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        schema = self.shuffle_schemas[0][0]
        return (pa.table([rows.column(name) for name in schema.names], schema=schema),)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        return concat(parts)

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        log = TimeBucketStore(state, self.shuffle_schemas[0], None)
        output = StepOutput()
        rows = concat(inputs[0])[0] if inputs[0] else self.shuffle_schemas[0][0].empty_table()
        if epoch_time.previous_watermark_us is not None and rows.num_rows:
            late = rows.column(PANE).to_numpy() <= epoch_time.previous_watermark_us
            state.count_late(int(late.sum()))
            if late.any():
                self._keep_late(rows.filter(pa.array(late)), epoch_time, output)
                rows = rows.filter(pa.array(~late))
        after = epoch_time.watermark_us
        if after is not None:
            due = [part[0] for part in log.load(None, after + 1)]
            now = rows.column(PANE).to_numpy() <= after
            if now.any():
                due.append(rows.filter(pa.array(now)))
                rows = rows.filter(pa.array(~now))
            log.drop_before(after + 1)
            output.main += self._in_order(due)
        if rows.num_rows:
            log.append((rows,))
        self.limits.enforce(self.name, log, state.gauges)
        return output

    def _in_order(self, parts: list[pa.Table]) -> list[pa.Table]:
        if not parts:
            return []
        rows = pa.concat_tables(parts)
        order = np.argsort(rows.column(PANE).to_numpy(), kind="stable")
        return [rows.take(pa.array(order)).select(self.output.names)] if rows.num_rows else []

    def _keep_late(self, rows: pa.Table, epoch_time: EpochTime, output: StepOutput) -> None:
        if self.late_rows is None:
            return
        names = dict(zip(self.late_rows.names, self.output.names, strict=False))
        renamed = pa.table([rows.column(own) for own in names.values()], names=list(names))
        ends = np.asarray(rows.column(PANE).to_numpy(), np.int64)
        starts = ends
        if self.start is not None:
            starts = np.asarray(rows.column(self.start).cast(pa.int64()).to_numpy(), np.int64)
        output.late.append(
            self.late_rows.marked(renamed, starts, ends, epoch_time.previous_watermark_us)
        )
