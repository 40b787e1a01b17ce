"""Between Spark's rows and operators: rows are packed by key group, and unpacked behind them.

`Packer` runs in the tasks that read: it lifts rows to partials, cuts them by key group, and sends
a blob to each, with a tick of how far time is; where rows are many, several. `unpack` runs behind
an operator and turns its blobs into rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import LATE, LIVE, MARK, NOW, ORIGIN
from tidegate.operators.clock import END_US, Tick, encode_ticks
from tidegate.operators.contract import Operator, Tables
from tidegate.operators.group_kernels import HASH, PANE
from tidegate.operators.hashing import hash_of
from tidegate.operators.panes import Grid
from tidegate.spark.worker import keep_what_is_loaded
from tidegate.state.codec import table_from_bytes, tables_to_bytes

Batches = Iterator[pa.RecordBatch]
# `task` and `part` say in which order rows were read: a shuffle does not keep it.
PACKED_SCHEMA = "kg INT, port INT, task INT, part INT, now BIGINT, ticks BINARY, data BINARY"
# What a processor hands on: rows of a port, late rows, or a tick.
OUT_SCHEMA = "port INT, mark BIGINT, idle BOOLEAN, data BINARY"
MAIN, LATE_PORT, TICK_PORT = 0, 1, 2
# Late rows that only pass through an operator further up come in by this port.
PASSING = -1
# Partials of a task are merged when they have grown to this many rows.
_ROWS_TO_SHRINK = 1_000_000
# What a task holds before it sends: a batch of Arrow cannot have more than 2 GiB of blobs.
_BYTES_TO_SEND = 64 << 20


@dataclass(frozen=True)
class PackSpec:
    """How the rows of one port are packed.

    `columns` pairs the operator's names with those of the stage, which holds equal arguments once.
    `delays` are the microseconds the watermark of each origin stays behind.
    """

    operator: Operator
    port: int
    columns: tuple[tuple[str, str], ...]
    delays: tuple[tuple[int, int], ...]
    key_groups: int
    grid: Grid | None = None
    hashed: tuple[str, ...] | None = None


def packer(spec: PackSpec) -> Callable[[Batches], Batches]:
    """The function for mapInArrow."""

    def pack(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        work = Packer(spec, context.partitionId() if context is not None else 0)
        for batch in batches:
            yield from work.add(batch)
        yield from work.finish()
        keep_what_is_loaded()

    return pack


class Packer:
    """The packing of one task."""

    def __init__(self, spec: PackSpec, task: int) -> None:
        self.spec = spec
        self.task = task
        self.delays = dict(spec.delays)
        self.marks: dict[int, int] = {}
        self.now_us = -1
        self.parts: list[Tables] = []
        self.rows = 0
        self.bytes = 0
        self.late: list[bytes] = []
        self.sent = 0

    def add(self, batch: pa.RecordBatch) -> Batches:
        """Take in rows; what has become too much to hold is sent."""
        if batch.num_rows:
            self._lift(batch)
        if self.bytes > _BYTES_TO_SEND:
            self._shrink()
            # Shrinking again is only worth it once as much again can come.
            if self.bytes > _BYTES_TO_SEND // 2:
                yield self._blobs(b"", -1)

    def _lift(self, batch: pa.RecordBatch) -> None:
        table = pa.Table.from_batches([batch])
        self._hear(table)
        names = table.column_names
        if LATE in names:
            passing = table.column(LATE)
            if passing.null_count < len(passing):
                self.late += passing.drop_null().to_pylist()
                self.bytes += passing.nbytes
        live = table.column(LIVE)
        if pc.all(live, skip_nulls=False).as_py() is not True:
            table = table.filter(live)
        if not table.num_rows:
            return
        part = self.spec.operator.lift(self.spec.port, self._rows(table))
        if self.spec.hashed is not None:
            part = tuple(_hashed(lifted, self.spec.hashed) for lifted in part)
        self._keep(part)

    def _rows(self, table: pa.Table) -> pa.Table:
        """The columns that the operator knows; its panes are found here."""
        columns = {own: table.column(name) for own, name in self.spec.columns}
        if PANE not in columns:
            columns[PANE] = _zeros(table.num_rows)
        elif self.spec.grid is not None:
            columns[PANE] = _on_grid(columns[PANE], self.spec.grid)
        if HASH not in columns:
            columns[HASH] = _zeros(table.num_rows)
        return pa.table(columns)

    def _keep(self, part: Tables) -> None:
        self.parts.append(part)
        self.rows += sum(table.num_rows for table in part)
        self.bytes += sum(table.nbytes for table in part)
        if self.rows > _ROWS_TO_SHRINK:
            self._shrink()

    def _shrink(self) -> None:
        if len(self.parts) > 1:
            self.parts = [self.spec.operator.shrink(self.spec.port, self.parts)]
        held = sum(table.nbytes for part in self.parts for table in part)
        self.bytes = held + sum(map(len, self.late))
        # Shrinking again is only worth it once as much again has come.
        self.rows = 0

    def _hear(self, table: pa.Table) -> None:
        """How far time is at each origin, and what time it is."""
        if NOW in table.column_names:
            self.now_us = max(self.now_us, pc.max(table.column(NOW)).as_py() or -1)
        if len(self.delays) == 1:
            (origin,) = self.delays
            self._mark(origin, pc.max(table.column(MARK)).as_py())
            return
        if not self.delays:
            return
        seen = table.select([ORIGIN, MARK]).group_by(ORIGIN, use_threads=False)
        for row in seen.aggregate([(MARK, "max")]).to_pylist():
            if row[ORIGIN] is not None:
                self._mark(row[ORIGIN], row[f"{MARK}_max"])

    def _mark(self, origin: int, seen_us: int | None) -> None:
        if seen_us is None:
            return
        mark = seen_us if seen_us == END_US else seen_us - self.delays.get(origin, 0)
        self.marks[origin] = max(mark, self.marks.get(origin, mark))

    def finish(self) -> Batches:
        """The ticks for all key groups, and what has not been sent yet."""
        ticks = encode_ticks(Tick(origin, 0, mark) for origin, mark in sorted(self.marks.items()))
        last = self._blobs(ticks, self.now_us)
        if last.num_rows:
            yield last

    def _blobs(self, ticks: bytes, now_us: int) -> pa.RecordBatch:
        """A row for each key group: the partials of each, and the time for all of them."""
        groups = self.spec.key_groups
        blobs: list[bytes | None] = [None] * groups
        if self.parts:
            blobs = split(self.spec.operator.shrink(self.spec.port, self.parts), groups)
        numbers = [kg for kg in range(groups) if ticks or now_us >= 0 or blobs[kg] is not None]
        rows = [(kg, self.spec.port, blobs[kg]) for kg in numbers]
        rows += [(0, PASSING, blob) for blob in self.late]
        part = self.sent
        self.parts, self.late, self.rows, self.bytes, self.sent = [], [], 0, 0, part + 1
        return pa.record_batch(
            {
                "kg": pa.array([row[0] for row in rows], pa.int32()),
                "port": pa.array([row[1] for row in rows], pa.int32()),
                "task": pa.array([self.task] * len(rows), pa.int32()),
                "part": pa.array([part] * len(rows), pa.int32()),
                "now": pa.array([now_us] * len(rows), pa.int64()),
                "ticks": pa.array([ticks] * len(rows), pa.binary()),
                "data": pa.array([row[2] for row in rows], pa.binary()),
            }
        )


def split(tables: Tables, key_groups: int) -> list[bytes | None]:
    """The tables cut by key group, each piece as bytes."""
    cuts = []
    for table in tables:
        owner = np.mod(table.column(HASH).to_numpy(), key_groups)
        order = np.argsort(owner, kind="stable")
        bounds = np.searchsorted(owner[order], np.arange(key_groups + 1))
        cuts.append((table.take(pa.array(order)).combine_chunks(), bounds))
    blobs: list[bytes | None] = []
    for kg in range(key_groups):
        pieces = [table.slice(b[kg], b[kg + 1] - b[kg]) for table, b in cuts]
        some = any(piece.num_rows for piece in pieces)
        blobs.append(tables_to_bytes(pieces) if some else None)
    return blobs


def _zeros(count: int) -> pa.Array:
    return pa.array(np.zeros(count, np.int64))


def _on_grid(times: pa.ChunkedArray, grid: Grid) -> pa.Array:
    """The start of the pane of each time; right before 1970 too."""
    us = times.to_numpy()
    return pa.array(us - np.mod(us - grid.offset_us, grid.width_us))


def _hashed(table: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    hashes = hash_of([table.column(key) for key in keys], table.num_rows)
    return table.set_column(table.schema.get_field_index(HASH), HASH, pa.array(hashes))


@dataclass(frozen=True)
class UnpackSpec:
    """`names` are the columns to hand out; with `origin` the hidden columns come along."""

    schema: pa.Schema
    names: tuple[str, ...]
    origin: int | None
    with_late: bool

    @property
    def output(self) -> pa.Schema:
        fields = [
            pa.field(name, field.type) for name, field in zip(self.names, self.schema, strict=True)
        ]
        return pa.schema([*fields, *self.hidden])

    @property
    def hidden(self) -> list[pa.Field]:
        fields = []
        if self.origin is not None:
            fields = [
                pa.field(ORIGIN, pa.int32()),
                pa.field(MARK, pa.int64()),
                pa.field(LIVE, pa.bool_()),
            ]
        return [*fields, pa.field(LATE, pa.binary())] if self.with_late else fields


def unpacker(spec: UnpackSpec) -> Callable[[Batches], Batches]:
    """The function for mapInArrow behind a processor."""

    def unpack(batches: Batches) -> Batches:
        for batch in batches:
            columns = (batch.column(i) for i in range(4))
            for port, mark, idle, data in zip(*(c.to_pylist() for c in columns), strict=True):
                yield from _unpacked(spec, port, mark, idle, data)
        keep_what_is_loaded()

    return unpack


def _unpacked(
    spec: UnpackSpec, port: int, mark: int | None, idle: bool | None, data: bytes | None
) -> Batches:
    if port == MAIN:
        assert data is not None, "rows come as bytes"
        yield from _data(spec, table_from_bytes(data, spec.schema))
    elif port == LATE_PORT and spec.with_late:
        yield _hidden_row(spec, None, None, data)
    elif port == TICK_PORT and spec.origin is not None:
        yield _hidden_row(spec, spec.origin, mark, None)


def _data(spec: UnpackSpec, table: pa.Table) -> Batches:
    count = table.num_rows
    arrays = [*table.columns]
    if spec.origin is not None:
        arrays += [
            pa.nulls(count, pa.int32()),
            pa.nulls(count, pa.int64()),
            pa.repeat(pa.scalar(True), count),
        ]
    if spec.with_late:
        arrays.append(pa.nulls(count, pa.binary()))
    yield from pa.table(arrays, schema=spec.output).to_batches()


def _hidden_row(
    spec: UnpackSpec, origin: int | None, mark: int | None, late: bytes | None
) -> pa.RecordBatch:
    arrays = [pa.nulls(1, field.type) for field in spec.schema]
    if spec.origin is not None:
        arrays += [pa.array([origin], pa.int32()), pa.array([mark], pa.int64()), pa.array([False])]
    if spec.with_late:
        arrays.append(pa.array([late], pa.binary()))
    return pa.record_batch(arrays, schema=spec.output)
