"""Runs the levels of a job graph in a task: the one function behind every job of a pipeline.

The same code runs in Spark's Python workers and in the local executor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import ARRIVAL, CONTROL, EVENT_TIME, NOW, ORIGIN, SELECTED
from tidegate.operators.watermark import WatermarkUpdate, decode_updates, encode_updates
from tidegate.physical.job_graph import (
    REPORTS,
    Branch,
    Evaluate,
    Expose,
    ExposedRows,
    Level,
    Read,
    Rename,
    ScanColumns,
    Select,
    ShuffleWrite,
    SinkWrite,
    Step,
    TaskProgram,
    hidden_fields,
)
from tidegate.spark.tasks.protocol import WATERMARKS, EpochSpec, encode_report, watermark_bytes
from tidegate.spark.tasks.read import CheckedRecords, check_records, initial_updates, scan_columns
from tidegate.spark.tasks.shuffle import (
    BYTES_TO_SEND,
    Batches,
    ShuffleWriter,
    exposed_rows,
    report_rows,
)
from tidegate.spark.tasks.sink_write import SinkStaging
from tidegate.spark.tasks.step import ShuffledRow, StepTask, control_batch, operator_batches
from tidegate.state.codec import table_from_bytes

# The minimum buffer of each branch that reads a range.
_MIN_BUFFER_BYTES = 8 << 20
# The largest blob for a stage in Spark SQL.
_MAX_BLOB_BYTES = 16 << 20
_HIDDEN = (ORIGIN, EVENT_TIME, SELECTED, CONTROL, NOW, *ARRIVAL)


# ---- The ends of branches


class Consumer(Protocol):
    """Takes the rows of a branch."""

    def add(self, batch: pa.RecordBatch) -> Batches:
        """Buffer rows; flush when the buffer is full."""

    def add_update(self, update: WatermarkUpdate) -> None:
        """Pass on the watermark update of the operator that the rows are from."""

    def finish(self) -> Batches:
        """Flush the remaining rows."""


@dataclass
class _SinkConsumer:
    staging: SinkStaging
    task: int

    def add(self, batch: pa.RecordBatch) -> Batches:
        self.staging.add(pa.Table.from_batches([batch]))
        return iter(())

    def add_update(self, update: WatermarkUpdate) -> None:
        """Do nothing: sinks have no watermark."""

    def finish(self) -> Batches:
        return report_rows(self.task, self.staging.finish())


@dataclass
class _Exposure:
    target: int
    task: int
    part: int = 0
    updates: list[WatermarkUpdate] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch) -> Batches:
        table = pa.Table.from_batches([batch])
        if SELECTED in table.column_names:
            table = table.filter(table.column(SELECTED))
        table = table.select([name for name in table.column_names if name not in _HIDDEN])
        rows = max(table.num_rows * _MAX_BLOB_BYTES // max(table.nbytes, 1), 1)
        for start in range(0, table.num_rows, rows):
            yield exposed_rows(self.target, self.task, self.part, table.slice(start, rows))
            self.part += 1

    def add_update(self, update: WatermarkUpdate) -> None:
        self.updates.append(update)

    def finish(self) -> Batches:
        if self.updates:
            updates = encode_updates(self.updates)
            yield exposed_rows(self.target, self.task, self.part, pa.table({}), updates)


class BranchTask:
    """A branch in one task."""

    def __init__(
        self,
        branch: Branch,
        epoch_spec: EpochSpec,
        task: int,
        limit: int | None = None,
        sends_to_all: bool | None = None,
    ) -> None:
        *self.instructions, end = branch
        self.now_us = epoch_spec.now_us
        self.consumer = _consumer_of(end, epoch_spec, task, limit, sends_to_all)

    def add_records(self, records: CheckedRecords) -> Batches:
        """Process the records of a source."""
        scan, *rest = self.instructions
        assert isinstance(scan, ScanColumns), "a branch of a source begins with its columns"
        return self._add(scan_columns(scan, records, self.now_us), rest)

    def add_decoded(self, batch: pa.RecordBatch, passes_reports: bool) -> Batches:
        """Process records that Spark has decoded; one branch passes on their reports."""
        select, *rest = self.instructions
        assert isinstance(select, Select), "the branch selects its columns"
        hidden = {name: batch.column(name) for name in batch.schema.names if name in _HIDDEN}
        hidden[CONTROL] = _control_of(hidden[CONTROL], select.origin, passes_reports)
        origin = hidden[ORIGIN]
        hidden[ORIGIN] = pc.add(origin, pa.scalar(select.origin, origin.type))
        columns = [batch.column(index) for index in select.indexes]
        rows = pa.record_batch([*columns, *hidden.values()], names=[*select.names, *hidden])
        return self._add(rows, rest)

    def add(self, batch: pa.RecordBatch) -> Batches:
        """Process the rows of an operator."""
        return self._add(batch, self.instructions)

    def _add(self, batch: pa.RecordBatch, instructions: Iterable[object]) -> Batches:
        for instruction in instructions:
            if isinstance(instruction, Rename):
                hidden = batch.schema.names[len(instruction.names) :]
                names = [*instruction.names, *hidden]
                batch = pa.record_batch(batch.columns, names=names)
            elif isinstance(instruction, Evaluate):
                batch = instruction.stage.apply(batch, instruction.hidden)
            else:
                raise AssertionError(f"{type(instruction).__name__} inside a branch")
        return self.consumer.add(batch)


def _control_of(control: pa.Array, origin: int, passes_reports: bool) -> pa.Array:
    """Return control messages for one branch: its watermark updates, and reports for one of all."""
    if control.null_count == len(control):
        return control
    messages: list[bytes | None] = []
    for message in control.to_pylist():
        if message is not None and message[:1] == WATERMARKS:
            updates = [replace(u, origin=origin) for u in decode_updates(message[1:])]
            message = watermark_bytes(encode_updates(updates))
        elif not passes_reports:
            message = None
        messages.append(message)
    return pa.array(messages, pa.binary())


def buffer_bytes(branches: int) -> int:
    """Return the size of the buffer of each of some branches that read the same records."""
    return max(BYTES_TO_SEND // branches, _MIN_BUFFER_BYTES)


def _consumer_of(
    end: object,
    epoch_spec: EpochSpec,
    task: int,
    limit: int | None,
    sends_to_all: bool | None,
) -> Consumer:
    """Return the consumer for the end of a branch."""
    if isinstance(end, ShuffleWrite):
        return ShuffleWriter(end, task, epoch_spec, limit, sends_to_all)
    if isinstance(end, SinkWrite):
        return _SinkConsumer(SinkStaging(end, epoch_spec, task), task)
    assert isinstance(end, Expose), "a branch ends with a write"
    return _Exposure(end.target, task)


# ---- Levels


class LevelTask:
    """One task of a level. Its output are rows of the shuffle to the next level."""

    def __init__(self, level: Level, epoch_spec: EpochSpec, tasks: int) -> None:
        self.level = level
        self.epoch_spec = epoch_spec
        self.tasks = tasks

    def read(self, numbers: Sequence[int]) -> Batches:
        """Run the programs that read splits, as the tasks with these numbers."""
        for program in self.level.programs:
            yield from self._read(program, numbers)

    def _read(self, program: TaskProgram, numbers: Sequence[int]) -> Batches:
        read, epoch_spec = program.head, self.epoch_spec
        assert isinstance(read, Read), "level 0 reads sources"
        task = numbers[0] if numbers else 0
        limit = buffer_bytes(len(program.branches))
        branches = [BranchTask(branch, epoch_spec, task, limit) for branch in program.branches]
        if 0 in numbers:
            for branch, branch_task in zip(program.branches, branches, strict=True):
                scan = branch[0]
                if isinstance(scan, ScanColumns) and scan.partitioned:
                    for update in initial_updates(scan.origin, read.split, epoch_spec):
                        branch_task.consumer.add_update(update)
        scans = [branch[0] for branch in program.branches if isinstance(branch[0], ScanColumns)]
        streams = [stream for scan in scans for stream in scan.streams]
        reports = []
        splits = epoch_spec.splits.get(read.split, [])
        for number in numbers:
            rows = 0
            for split in splits[number] if number < len(splits) else []:
                for batch, count in read.reader.read(split):
                    rows += count
                    records = check_records(read, batch, epoch_spec.now_us)
                    for branch_task in branches:
                        yield from branch_task.add_records(records)
            if rows:
                report = {"streams": streams, "source": read.split, "task": number, "rows": rows}
                reports.append(encode_report(report))
        for branch_task in branches:
            yield from branch_task.consumer.finish()
        yield from report_rows(task, reports)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Batches:
        """Relay the rows of later levels, and step the operators of this one."""
        inputs: dict[int, dict[int, list[ShuffledRow]]] = {
            program.head.id: {} for program in self.level.programs if isinstance(program.head, Step)
        }
        relayed = np.array([REPORTS, *self.level.relayed])
        own = np.array(list(inputs), dtype=np.int64)
        task = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            task = batch.column("key_group")[0].as_py() % self.tasks
            targets = batch.column("target").to_numpy()
            yield from _where(batch, np.isin(targets, relayed))
            for rows in _where(batch, np.isin(targets, own)):
                _collect(rows, inputs)
        for program in self.level.programs:
            assert isinstance(program.head, Step), "operators run behind a shuffle"
            yield from self._step(program, inputs.pop(program.head.id), task)

    def _step(
        self, program: TaskProgram, inputs: dict[int, list[ShuffledRow]], task: int
    ) -> Batches:
        step = program.head
        assert isinstance(step, Step), "operators run behind a shuffle"
        branches = [BranchTask(branch, self.epoch_spec, task) for branch in program.branches]
        late = [BranchTask(branch, self.epoch_spec, task) for branch in program.late]
        results, reports = StepTask(step, self.epoch_spec).run(inputs)
        inputs.clear()
        late_rows = 0
        columns = len(step.names)
        for key_group, result in results:
            for table in result.output.rows:
                for batch in _batches(step.output, columns, table, self.epoch_spec.now_us):
                    for branch in branches:
                        yield from branch.add(batch)
            for table in result.output.late:
                late_rows += table.num_rows
                for batch in table.to_batches() if table.num_rows else ():
                    for branch in late:
                        yield from branch.add(batch)
            # All key groups have the same watermark, so one of them reports it.
            if key_group == 0 and result.update is not None:
                for branch in branches:
                    branch.consumer.add_update(result.update)
        for branch in (*branches, *late):
            yield from branch.consumer.finish()
        if late_rows and step.late_readers:
            reports.append({"streams": step.late_readers, "rows": late_rows})
        yield from report_rows(task, [encode_report(report) for report in reports])


def _batches(schema: pa.Schema, columns: int, table: pa.Table, now_us: int) -> list[pa.RecordBatch]:
    return operator_batches(schema, columns, table, now_us) if table.num_rows else []


def _where(batch: pa.RecordBatch, mask: np.ndarray[Any, Any]) -> Batches:
    """Yield the rows where a mask is true, if there are any, without a copy if that is all."""
    if mask.all():
        yield batch
    elif mask.any():
        yield batch.filter(pa.array(mask))


def _collect(batch: pa.RecordBatch, inputs: dict[int, dict[int, list[ShuffledRow]]]) -> None:
    """Sort rows of the shuffle by operator and key group."""
    columns = [column.to_pylist() for column in batch.columns]
    for target, key_group, port, task, part, updates, data in zip(*columns, strict=True):
        rows = inputs[target].setdefault(key_group, [])
        rows.append((port, task, part, updates, data))


def run_levels(
    levels: Sequence[Level],
    epoch_spec: EpochSpec,
    tasks: int,
    batches: Iterable[pa.RecordBatch],
    reads: bool,
) -> Batches:
    """Run consecutive levels, one after the other; several of them only if there is one task.

    If the first level reads sources (`reads`), `batches` contain the numbers of this task.
    """
    first, *others = levels
    level = LevelTask(first, epoch_spec, tasks)
    if reads:
        rows = level.read([number for batch in batches for number in batch.column(0).to_pylist()])
    else:
        rows = level.run(batches)
    for other in others:
        rows = LevelTask(other, epoch_spec, tasks).run(rows)
    return rows


def reports_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Array]:
    """Yield the task reports among the rows of the last level, which sends nothing else."""
    for batch in batches:
        targets = batch.column("target")
        assert pc.all(pc.equal(targets, REPORTS)).as_py(), "the last level only sends reports"
        yield batch.column("data")


# ---- Rows for stages in Spark SQL


def exposed_schema(exposed: ExposedRows) -> pa.Schema:
    """Return the schema of exposed rows with the hidden columns."""
    return pa.schema([*exposed.schema, *hidden_fields(exposed.with_arrival, exposed.with_now)])


def unpack_exposed(
    exposed: ExposedRows, epoch_spec: EpochSpec, batches: Iterable[pa.RecordBatch]
) -> Batches:
    """Yield exposed rows with hidden columns, and control messages with watermark updates."""
    schema, columns = exposed_schema(exposed), len(exposed.schema)
    for batch in batches:
        payloads = batch.column("data").to_pylist()
        updates = batch.column("watermark_updates").to_pylist()
        for data, update in zip(payloads, updates, strict=True):
            if data is not None:
                table = table_from_bytes(data, exposed.schema)
                yield from operator_batches(schema, columns, table, epoch_spec.now_us)
            if update:
                yield control_batch(schema, [watermark_bytes(update)])
