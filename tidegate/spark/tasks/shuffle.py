"""The shuffle write: pre-aggregate rows and partition them by key group.

`ShuffleWriter` runs in the tasks that read rows. It sends a blob of rows to each key group, with
the watermark updates of the task; large inputs are sent in several parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

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
from tidegate.operators.operator import Tables
from tidegate.operators.watermark import END_OF_INPUT_US, WatermarkUpdate, encode_updates
from tidegate.physical.job_graph import REPORTS, ShuffleWrite
from tidegate.spark.tasks.protocol import (
    ControlMessages,
    EpochSpec,
    TaskReport,
    dead_letter_rows,
    encode_report,
)
from tidegate.state.codec import table_to_bytes, tables_to_bytes

Batches = Iterator[pa.RecordBatch]
# `target` is the operator that receives a blob, a stage in Spark SQL, or the driver. `task` and
# `part` restore the order in which rows were read, which a shuffle loses.
SHUFFLE_SCHEMA = (
    "target INT, key_group INT, port INT, task INT, part INT, watermark_updates BINARY, data BINARY"
)
# Partial aggregates of a task are merged when they have this many rows.
_MAX_UNCOMBINED_ROWS = 1_000_000
# The size of a task's buffer: an Arrow batch cannot contain more than 2 GiB of blobs.
BYTES_TO_SEND = 64 << 20


class ShuffleWriter:
    """The shuffle write of one task."""

    def __init__(
        self,
        spec: ShuffleWrite,
        task: int,
        epoch_spec: EpochSpec,
        limit: int | None = None,
        sends_to_all: bool | None = None,
    ) -> None:
        # Every key group runs in every epoch, so at least one task of a writer sends to all.
        self.sends_to_all = task == 0 if sends_to_all is None else sends_to_all
        self.spec = spec
        self.limit = limit or BYTES_TO_SEND
        self.task = task
        self.epoch_spec = epoch_spec
        self.delays = dict(spec.delays)
        # By origin and partition.
        self.watermarks_us: dict[tuple[int, int], int] = {}
        self.malformed = self.failed = 0
        # The number of groups that Spark has pre-aggregated, and of the rows in them.
        self.groups = self.rows_in_groups = 0
        self.parts: list[Tables] = []
        self.rows = 0
        self.bytes = 0
        self.control = ControlMessages()
        self.updates: list[WatermarkUpdate] = []
        self.reports: list[TaskReport] = []
        self.part = 0

    def add(self, batch: pa.RecordBatch) -> Batches:
        """Add rows; flush when the buffer is full."""
        if batch.num_rows:
            self._pre_aggregate(batch)
        if self.bytes > self.limit:
            self._combine()
            # Merge again only after the buffer has room for as many new rows.
            if self.bytes > self.limit // 2:
                yield from self._blobs(b"", last=False)

    def add_update(self, update: WatermarkUpdate) -> None:
        """Send a watermark update of an operator to all key groups."""
        self.updates.append(update)

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
        part = self._groups(table) if self.spec.pre_aggregated else self._partials(table)
        if self.spec.hashed is not None:
            part = tuple(_hashed(piece, self.spec.hashed) for piece in part)
        self._keep(part)

    def _partials(self, table: pa.Table) -> Tables:
        return self.spec.operator.pre_aggregate(self.spec.port, self._rows(table))

    def _groups(self, table: pa.Table) -> Tables:
        """Return the groups that Spark has pre-aggregated, with their panes."""
        operator = self.spec.operator
        assert isinstance(operator, GroupByOperator), "only a GROUP BY has partials"
        self.groups += table.num_rows
        self.rows_in_groups += pc.sum(table.column(ROWS)).as_py()
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
        times = table.column(EVENT_TIME)
        least, most = pc.min_max(times).as_py().values()
        if least == MALFORMED_EVENT_TIME:
            self.malformed += self._count(table, pc.equal(times, MALFORMED_EVENT_TIME))
        if not self.delays:
            return
        if ORIGIN not in table.column_names:
            (origin,) = self.delays
            self._advance(origin, 0, most)
            return
        seen = table.select([ORIGIN, EVENT_TIME]).group_by(ORIGIN, use_threads=False)
        for row in seen.aggregate([(EVENT_TIME, "max")]).to_pylist():
            if row[ORIGIN] is not None:
                self._advance(*decode_origin(row[ORIGIN]), row[f"{EVENT_TIME}_max"])

    def _count(self, table: pa.Table, mask: pa.ChunkedArray) -> int:
        """Return the number of rows where a mask is true, counting the rows in groups."""
        if not self.spec.pre_aggregated:
            return int(pc.sum(mask).as_py())
        return int(pc.sum(pc.if_else(mask, table.column(ROWS), 0)).as_py())

    def _advance(self, origin: int, partition: int, time_us: int | None) -> None:
        """Raise the watermark of a partition to an event time minus the delay."""
        if time_us is None or time_us == MALFORMED_EVENT_TIME:
            return
        delay_us = 0 if time_us == END_OF_INPUT_US else self.delays.get(origin, 0)
        key, watermark_us = (origin, partition), time_us - delay_us
        self.watermarks_us[key] = max(watermark_us, self.watermarks_us.get(key, watermark_us))

    def finish(self) -> Batches:
        """Flush the rows, with the watermark updates for all key groups."""
        if self.epoch_spec.ends:
            self.watermarks_us |= {(origin, 0): END_OF_INPUT_US for origin in self.spec.sources}
        updates = [
            WatermarkUpdate(*partition, watermark_us)
            for partition, watermark_us in sorted(self.watermarks_us.items())
        ]
        sent = [
            replace(update, origin=position)
            for update in (*updates, *self.updates, *self.control.updates)
            for position in self.spec.positions[update.origin]
        ]
        reports = self.control.reports
        yield from self._blobs(encode_updates(sent), last=True)
        yield from report_rows(self.task, [*reports, *map(encode_report, self._reports())])

    def _reports(self) -> Iterator[TaskReport]:
        streams = self.spec.streams
        if self.malformed:
            yield {"streams": streams, "malformed": self.malformed}
        if self.failed:
            yield {"streams": streams, "failed": self.failed}
        if self.groups:
            yield {
                "pre_aggregated": self.spec.pre_aggregated,
                "rows": self.rows_in_groups,
                "groups": self.groups,
            }

    def _blobs(self, updates: bytes, last: bool) -> Batches:
        """Yield a row for each key group: its partial aggregates and the watermark updates."""
        groups = self.spec.key_groups
        blobs: list[bytes | None] = [None] * groups
        if self.parts:
            blobs = split(self.spec.operator.combine(self.spec.port, self.parts), groups)
        # Every key group gets the watermark updates.
        to_all = updates or (last and self.sends_to_all)
        numbers = [kg for kg in range(groups) if to_all or blobs[kg] is not None]
        rows = [(kg, self.spec.port, blobs[kg]) for kg in numbers]
        part, letters = self.part, self.control.failed
        reports = self.control.reports
        self.updates += self.control.updates
        self.parts, self.control = [], ControlMessages(reports=[] if last else reports)
        self.rows, self.bytes, self.part = 0, 0, part + 1
        if rows:
            yield packed_rows(self.spec.target, self.task, part, updates, rows)
        self.failed += len(letters)
        if letters and self.spec.dead_letters is not None:
            yield exposed_rows(self.spec.dead_letters, self.task, part, dead_letter_rows(letters))


def packed_rows(
    target: int,
    task: int,
    part: int,
    updates: bytes,
    rows: Sequence[tuple[int, int, bytes | None]],
) -> pa.RecordBatch:
    """Return rows of a shuffle: key groups, ports and blobs."""
    count = len(rows)
    return pa.record_batch(
        {
            "target": pa.array([target] * count, pa.int32()),
            "key_group": pa.array([row[0] for row in rows], pa.int32()),
            "port": pa.array([row[1] for row in rows], pa.int32()),
            "task": pa.array([task] * count, pa.int32()),
            "part": pa.array([part] * count, pa.int32()),
            "watermark_updates": pa.array([updates] * count, pa.binary()),
            "data": pa.array([row[2] for row in rows], pa.binary()),
        }
    )


def report_rows(task: int, reports: Sequence[bytes]) -> Batches:
    """Yield rows of a shuffle that carry task reports to the driver."""
    if reports:
        yield packed_rows(REPORTS, task, 0, b"", [(task, 0, report) for report in reports])


def exposed_rows(
    target: int, task: int, part: int, table: pa.Table, updates: bytes = b""
) -> pa.RecordBatch:
    """Return a row of a shuffle that carries rows to a stage in Spark SQL."""
    data = table_to_bytes(table) if table.num_rows else None
    return packed_rows(target, task, part, updates, [(task, 0, data)])


def split(tables: Tables, key_groups: int) -> list[bytes | None]:
    """Split tables by key group and serialize each piece."""
    ranges = []
    for table in tables:
        owner = _key_groups_of(table.column(HASH).to_numpy(), key_groups)
        order = np.argsort(owner, kind="stable")
        bounds = np.searchsorted(owner[order], np.arange(key_groups + 1))
        ranges.append((table.take(pa.array(order)).combine_chunks(), bounds))
    blobs: list[bytes | None] = []
    for kg in range(key_groups):
        pieces = [table.slice(b[kg], b[kg + 1] - b[kg]) for table, b in ranges]
        some = any(piece.num_rows for piece in pieces)
        blobs.append(tables_to_bytes(pieces) if some else None)
    return blobs


def _key_groups_of(hashes: np.ndarray[Any, Any], key_groups: int) -> np.ndarray[Any, Any]:
    """Return the key group of each hash, in a type whose stable sort is a radix sort."""
    if key_groups & (key_groups - 1) == 0:
        numbers = np.bitwise_and(hashes, key_groups - 1)
    else:
        numbers = np.mod(hashes, key_groups)
    small: np.ndarray[Any, Any] = numbers.astype(np.uint8 if key_groups <= 256 else np.uint16)
    return small


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
