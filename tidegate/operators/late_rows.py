"""Rows that came too late, kept as they were, with what made them late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.aggregate.groups import PANE, SEEN, Panes
from tidegate.operators.kernels.matching import ints
from tidegate.operators.operator import EpochTime, KeyGroupState, Operator, Tables

TIMESTAMP = pa.timestamp("us", "UTC")
# What a late stream tells besides the row.
REASON = (
    ("late_operator", pa.string()),
    ("late_window_start", TIMESTAMP),
    ("late_window_end", TIMESTAMP),
    ("late_watermark", TIMESTAMP),
)


@dataclass(frozen=True)
class LateRows:
    """The columns `l0`, `l1`, … are the row as it was; the others are what the operator needs.

    A late stream of several inputs has the columns of all: `stream` are their types, and `sources`
    says which column of this row each of them is, if any.
    """

    operator: str
    needed: pa.Schema
    original: tuple[pa.DataType, ...]
    stream: tuple[pa.DataType, ...] | None = None
    sources: tuple[int | None, ...] | None = None

    @property
    def names(self) -> list[str]:
        return [f"l{index}" for index, _ in enumerate(self.original)]

    @property
    def shuffle_schemas(self) -> pa.Schema:
        own = [pa.field(*pair) for pair in zip(self.names, self.original, strict=True)]
        return pa.schema([*self.needed, *own])

    @property
    def schema(self) -> pa.Schema:
        kinds = self.original if self.stream is None else self.stream
        own = [pa.field(f"l{index}", kind) for index, kind in enumerate(kinds)]
        return pa.schema([*own, *(pa.field(*pair) for pair in REASON)])

    def select(self, rows: pa.Table) -> pa.Table:
        schema = self.shuffle_schemas
        return pa.table(
            [rows.column(name).cast(schema.field(name).type) for name in schema.names],
            schema=schema,
        )

    def split(
        self, parts: Sequence[pa.Table], panes: Panes, limit_us: int | None
    ) -> tuple[pa.Table, pa.Table]:
        """The rows that still count, and those whose last window the watermark has passed."""
        rows = pa.concat_tables(parts) if parts else self.shuffle_schemas.empty_table()
        if limit_us is None or not rows.num_rows:
            return rows, rows.slice(0, 0)
        late = panes.last_end(rows.column(PANE).to_numpy()) <= limit_us
        if not late.any():
            return rows, rows.slice(0, 0)
        return rows.filter(pa.array(~late)), rows.filter(pa.array(late))

    def mark(self, rows: pa.Table, panes: Panes, watermark_us: int | None) -> pa.Table:
        """Add which operator, window and watermark made them late."""
        ends = panes.last_end(rows.column(PANE).to_numpy())
        return self.marked(rows, panes.start(ends), ends, watermark_us)

    def of_windows(
        self, rows: pa.Table, start: str | None, watermark_us: int | None
    ) -> list[pa.Table]:
        """The same where the pane of a row is the end of its window, and a column its start."""
        if not rows.num_rows:
            return []
        ends = starts = np.asarray(rows.column(PANE).to_numpy(), np.int64)
        if start is not None:
            starts = np.asarray(rows.column(start).cast(pa.int64()).to_numpy(), np.int64)
        return [self.marked(rows, starts, ends, watermark_us)]

    def marked(
        self,
        rows: pa.Table,
        starts: np.ndarray | None,
        ends: np.ndarray | None,
        watermark_us: int | None,
    ) -> pa.Table:
        count = rows.num_rows
        made = [
            pa.repeat(pa.scalar(self.operator), count),
            _times(starts, count),
            _times(ends, count),
            pa.repeat(pc.cast(pa.scalar(watermark_us, pa.int64()), TIMESTAMP), count),
        ]
        return pa.table([*self._row(rows), *made], schema=self.schema)

    def _row(self, rows: pa.Table) -> list[pa.ChunkedArray | pa.Array]:
        if self.stream is None or self.sources is None:
            return [rows.column(name) for name in self.names]
        return [
            pa.nulls(rows.num_rows, kind) if source is None else rows.column(f"l{source}")
            for kind, source in zip(self.stream, self.sources, strict=True)
        ]


def split_late(
    shuffle_schemas: pa.Schema, parts: Sequence[Tables], state: KeyGroupState, epoch_time: EpochTime
) -> tuple[pa.Table, pa.Table]:
    """Rows whose pane the watermark has not passed, and those whose pane it has, which are counted.

    Where rows were left behind before they came here, SEEN says how many each stands for.
    """
    rows = pa.concat_tables([shuffle_schemas.empty_table(), *(part[0] for part in parts)])
    if epoch_time.previous_watermark_us is None or not rows.num_rows:
        return rows, rows.slice(0, 0)
    is_late = ints(rows, PANE) <= epoch_time.previous_watermark_us
    late = rows.filter(pa.array(is_late))
    state.count_late(
        int(ints(late, SEEN).sum()) if SEEN in shuffle_schemas.names else late.num_rows
    )
    return rows.filter(pa.array(~is_late)), late


def with_late_columns(
    operator: Any,
    stream: tuple[pa.DataType, ...],
    sources: Mapping[int, tuple[int | None, ...]],
) -> Operator:
    """An operator whose late rows have the columns of a stream, by the sources of each port.

    A port that finds nothing late has none of the columns.
    """
    several = isinstance(operator.late_rows, tuple)
    ports = operator.late_rows if several else (operator.late_rows,)
    nothing = (None,) * len(stream)
    wide = tuple(
        replace(own, stream=stream, sources=sources.get(port, nothing))
        for port, own in enumerate(ports)
    )
    same: Operator = replace(operator, late_rows=wide if several else wide[0])
    return same


def _times(values: np.ndarray | None, count: int) -> pa.Array:
    if values is None:
        return pa.nulls(count, TIMESTAMP)
    return pa.array(values, pa.int64()).cast(TIMESTAMP)
