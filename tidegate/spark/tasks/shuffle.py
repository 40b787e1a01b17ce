"""The shuffle write: pre-aggregate rows and partition them by key group.

`ShuffleWriter` runs in the tasks that read rows. It sends a blob of rows to each key group, with
the watermark updates of the task; large inputs are sent in several parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import (
    CONTROL,
    EVENT_TIME,
    HASH,
    MALFORMED_EVENT_TIME,
    ORIGIN,
    PANE,
    PARTITION_SHIFT,
    ROWS,
    SELECTED,
)
from tidegate.operators.aggregate.group_by import GroupByOperator
from tidegate.operators.aggregate.groups import PaneGrid, from_partials
from tidegate.operators.kernels.keys import hash_rows
from tidegate.operators.operator import Operator, Tables
from tidegate.operators.watermark import END_OF_INPUT_US, WatermarkUpdate, encode_updates
from tidegate.spark.tasks.protocol import (
    ControlMessages,
    EpochSpec,
    EpochSpecStore,
    keep_loaded_modules,
    report_bytes,
    task_number,
)
from tidegate.state.codec import tables_to_bytes

Batches = Iterator[pa.RecordBatch]
# `task` and `part` restore the order in which rows were read, which a shuffle loses.
# `operator` is the index of the operator, if several share a shuffle.
SHUFFLE_SCHEMA = (
    "operator INT, key_group INT, port INT, task INT, part INT, "
    "watermark_updates BINARY, data BINARY"
)
# The port of control messages that the operator passes on.
PASSING = -1
# Partial aggregates of a task are merged when they have this many rows.
_MAX_UNCOMBINED_ROWS = 1_000_000
# The size of a task's buffer: an Arrow batch cannot contain more than 2 GiB of blobs.
BYTES_TO_SEND = 64 << 20


@dataclass(frozen=True)
class ShuffleSpec:
    """The shuffle write of one port.

    `columns` pairs the operator's names with those of the stage, which holds equal arguments once.
    `delays` are the microseconds the watermark of each origin stays behind; `sources` are those
    origins that end when the input does. Operators identify origins by their position in the port
    (`local`), which does not change with the rest of the query. A shared origin has several
    positions: one for each part of the query that reads it.
    """

    # The streams that malformed records are attributed to.
    streams: tuple[str, ...]
    operator: Operator
    port: int
    columns: tuple[tuple[str, str], ...]
    delays: tuple[tuple[int, int], ...]
    sources: tuple[int, ...]
    local: tuple[tuple[int, int], ...]
    key_groups: int
    grid: PaneGrid | None = None
    hashed: tuple[str, ...] | None = None
    # True if Spark has pre-aggregated the rows.
    grouped: bool = False
    # The name of the operator in reports.
    key: str = ""
    # Its index among the operators that share a shuffle.
    operator_index: int = 0

    @cached_property
    def positions(self) -> dict[int, tuple[int, ...]]:
        """Return all positions of each origin: each of them gets the origin's watermark updates."""
        origin_ids: dict[int, tuple[int, ...]] = {}
        for origin, origin_id in self.local:
            origin_ids[origin] = (*origin_ids.get(origin, ()), origin_id)
        return origin_ids


def shuffle_writer(spec: ShuffleSpec, epoch_specs: EpochSpecStore) -> Callable[[Batches], Batches]:
    """Return the function for mapInArrow that packs the rows of a port."""

    def pack(batches: Batches) -> Batches:
        work = ShuffleWriter(spec, task_number(), epoch_specs.read())
        for batch in batches:
            yield from work.add(batch)
        yield from work.finish()
        keep_loaded_modules()

    return pack


class ShuffleWriter:
    """The shuffle write of one task."""

    def __init__(
        self, spec: ShuffleSpec, task: int, epoch_spec: EpochSpec, limit: int | None = None
    ) -> None:
        self.spec = spec
        self.limit = limit or BYTES_TO_SEND
        self.task = task
        self.epoch_spec = epoch_spec
        self.delays = dict(spec.delays)
        # By origin and partition.
        self.marks: dict[tuple[int, int], int] = {}
        self.bad = 0
        # The number of groups from Spark, and of the rows in them.
        self.grouped = self.groups_of = 0
        self.parts: list[Tables] = []
        self.rows = 0
        self.bytes = 0
        self.control = ControlMessages()
        self.updates: list[WatermarkUpdate] = []
        self.reports: list[bytes] = []
        self.sent = 0

    def add(self, batch: pa.RecordBatch) -> Batches:
        """Add rows; flush when the buffer is full."""
        if batch.num_rows:
            self._pre_aggregate(batch)
        if self.bytes > self.limit:
            self._combine()
            # Merge again only after the buffer has room for as many new rows.
            if self.bytes > self.limit // 2:
                yield self._blobs(b"", last=False)

    def add_report(self, report: bytes) -> None:
        """Add a report for the driver."""
        self.reports.append(report)

    def _pre_aggregate(self, batch: pa.RecordBatch) -> None:
        table = pa.Table.from_batches([batch])
        self._track_event_times(table)
        before = self.control.size
        self.control.add(table.column(CONTROL))
        self.bytes += self.control.size - before
        live = table.column(SELECTED)
        if pc.all(live, skip_nulls=False).as_py() is not True:
            table = table.filter(live)
        if not table.num_rows:
            return
        part = self._grouped(table) if self.spec.grouped else self._partials(table)
        if self.spec.hashed is not None:
            part = tuple(_hashed(piece, self.spec.hashed) for piece in part)
        self._keep(part)

    def _partials(self, table: pa.Table) -> Tables:
        return self.spec.operator.pre_aggregate(self.spec.port, self._rows(table))

    def _grouped(self, table: pa.Table) -> Tables:
        """Groups that Spark has made, with their panes."""
        operator = self.spec.operator
        assert isinstance(operator, GroupByOperator), "only a GROUP BY has partials"
        self.grouped += table.num_rows
        self.groups_of += pc.sum(table.column(ROWS)).as_py()
        columns = {name: table.column(name) for name in table.column_names}
        columns.setdefault(PANE, _zeros(table.num_rows))
        columns[HASH] = _zeros(table.num_rows)
        return from_partials(operator.aggregator, pa.table(columns))

    def _rows(self, table: pa.Table) -> pa.Table:
        """Return the columns that the operator reads, with the pane of each row."""
        columns = {operator_name: table.column(name) for operator_name, name in self.spec.columns}
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
        if self.rows > _MAX_UNCOMBINED_ROWS:
            self._combine()

    def _combine(self) -> None:
        if len(self.parts) > 1:
            self.parts = [self.spec.operator.combine(self.spec.port, self.parts)]
        held = sum(table.nbytes for part in self.parts for table in part)
        self.bytes = held + self.control.size
        # Merge again only after as many new rows were added.
        self.rows = 0

    def _track_event_times(self, table: pa.Table) -> None:
        """Update the largest event time of each origin, and count malformed records."""
        marks = table.column(EVENT_TIME)
        least, most = pc.min_max(marks).as_py().values()
        if least == MALFORMED_EVENT_TIME:
            self.bad += self._count(table, pc.equal(marks, MALFORMED_EVENT_TIME))
        if not self.delays:
            return
        if ORIGIN not in table.column_names:
            (origin,) = self.delays
            self._mark(origin, 0, most)
            return
        seen = table.select([ORIGIN, EVENT_TIME]).group_by(ORIGIN, use_threads=False)
        for row in seen.aggregate([(EVENT_TIME, "max")]).to_pylist():
            if row[ORIGIN] is not None:
                self._mark(*decode_origin(row[ORIGIN]), row[f"{EVENT_TIME}_max"])

    def _count(self, table: pa.Table, chosen: pa.ChunkedArray) -> int:
        """Return the number of selected rows, counting the rows in groups."""
        if not self.spec.grouped:
            return int(pc.sum(chosen).as_py())
        return int(pc.sum(pc.if_else(chosen, table.column(ROWS), 0)).as_py())

    def _mark(self, origin: int, partition: int, seen_us: int | None) -> None:
        if seen_us is None or seen_us == MALFORMED_EVENT_TIME:
            return
        mark = seen_us if seen_us == END_OF_INPUT_US else seen_us - self.delays.get(origin, 0)
        key = (origin, partition)
        self.marks[key] = max(mark, self.marks.get(key, mark))

    def finish(self) -> Batches:
        """Flush the rows, with the watermark updates for all key groups."""
        if self.epoch_spec.ends:
            self.marks |= {(origin, 0): END_OF_INPUT_US for origin in self.spec.sources}
        if self.bad:
            self.reports.append(report_bytes({"streams": self.spec.streams, "malformed": self.bad}))
        if self.grouped:
            pre_aggregated = {
                "pre_aggregated": self.spec.key,
                "rows": self.groups_of,
                "groups": self.grouped,
            }
            self.reports.append(report_bytes(pre_aggregated))
        updates = [
            WatermarkUpdate(*partition, mark) for partition, mark in sorted(self.marks.items())
        ]
        sent = [
            replace(update, origin=position)
            for update in (*updates, *self.updates, *self.control.updates)
            for position in self.spec.positions[update.origin]
        ]
        last = self._blobs(encode_updates(sent), last=True)
        if last.num_rows:
            yield last

    def _blobs(self, updates: bytes, last: bool) -> pa.RecordBatch:
        """Build a row for each key group: its partial aggregates and the watermark updates."""
        groups = self.spec.key_groups
        blobs: list[bytes | None] = [None] * groups
        if self.parts:
            blobs = split(self.spec.operator.combine(self.spec.port, self.parts), groups)
        # Every key group runs in every epoch and gets the watermark updates.
        to_all = updates or (last and self.task == 0)
        numbers = [kg for kg in range(groups) if to_all or blobs[kg] is not None]
        rows = [(kg, self.spec.port, blobs[kg]) for kg in numbers]
        rows += [(0, PASSING, item) for item in (*self.control.passing(), *self.reports)]
        part = self.sent
        self.updates += self.control.updates
        self.parts, self.control, self.reports = [], ControlMessages(), []
        self.rows, self.bytes, self.sent = 0, 0, part + 1
        return packed_rows(self.spec.operator_index, self.task, part, updates, rows)


def packed_rows(
    operator_index: int,
    task: int,
    part: int,
    updates: bytes,
    rows: Sequence[tuple[int, int, bytes | None]],
) -> pa.RecordBatch:
    """Return rows of a shuffle: key groups, ports and blobs."""
    count = len(rows)
    return pa.record_batch(
        {
            "operator": pa.array([operator_index] * count, pa.int32()),
            "key_group": pa.array([row[0] for row in rows], pa.int32()),
            "port": pa.array([row[1] for row in rows], pa.int32()),
            "task": pa.array([task] * count, pa.int32()),
            "part": pa.array([part] * count, pa.int32()),
            "watermark_updates": pa.array([updates] * count, pa.binary()),
            "data": pa.array([row[2] for row in rows], pa.binary()),
        }
    )


def split(tables: Tables, key_groups: int) -> list[bytes | None]:
    """Split tables by key group and serialize each piece."""
    ranges = []
    for table in tables:
        owner = np.mod(table.column(HASH).to_numpy(), key_groups)
        order = np.argsort(owner, kind="stable")
        bounds = np.searchsorted(owner[order], np.arange(key_groups + 1))
        ranges.append((table.take(pa.array(order)).combine_chunks(), bounds))
    blobs: list[bytes | None] = []
    for kg in range(key_groups):
        pieces = [table.slice(b[kg], b[kg + 1] - b[kg]) for table, b in ranges]
        some = any(piece.num_rows for piece in pieces)
        blobs.append(tables_to_bytes(pieces) if some else None)
    return blobs


def decode_origin(number: int) -> tuple[int, int]:
    """Decode a number in ORIGIN into the origin and the partition."""
    return number & ((1 << PARTITION_SHIFT) - 1), number >> PARTITION_SHIFT


def _zeros(count: int) -> pa.Array:
    return pa.array(np.zeros(count, np.int64))


def _on_grid(times: pa.ChunkedArray, grid: PaneGrid) -> pa.Array:
    """Return the start of the pane of each time; correct before 1970 too."""
    us = times.to_numpy()
    return pa.array(us - np.mod(us - grid.offset_us, grid.width_us))


def _hashed(table: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    hashes = hash_rows([table.column(key) for key in keys], table.num_rows)
    return table.set_column(table.schema.get_field_index(HASH), HASH, pa.array(hashes))
