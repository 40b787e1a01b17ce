"""The task of an operator: unpack the rows of its key groups, step, write the new state.

The task emits rows with hidden columns. Control messages contain the operator's watermark updates,
messages that are passed on, late rows, and a report with the state handle of each key group.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, CONTROL, EVENT_TIME, NOW, ORIGIN, SELECTED
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS
from tidegate.operators.runner import KeyGroupResult, OperatorRunner
from tidegate.operators.vectorized import VectorStage
from tidegate.operators.watermark import decode_updates
from tidegate.spark.tasks.protocol import (
    EpochSpec,
    EpochSpecStore,
    keep_loaded_modules,
    late_bytes,
    report_bytes,
    task_number,
    watermark_bytes,
)
from tidegate.spark.tasks.shuffle import PASSING, Batches, ShuffleSpec, ShuffleWriter
from tidegate.spark.tasks.sink_write import Staging, StagingSpec
from tidegate.state.codec import table_to_bytes, tables_from_bytes
from tidegate.state.state_file import StateFileBackend, StateFileBuilder, StateHandle
from tidegate.storage import Store, open_store

# A row of the shuffle without its key group: port, task, part, watermark updates, data.
_ShuffledRow = tuple[int, int, int, bytes, bytes | None]


class GivesRows(Protocol):
    """A task behind a shuffle that returns the rows of an operator."""

    @property
    def output(self) -> pa.Schema:
        """Its schema for the stage above."""

    @property
    def origin(self) -> int:
        """Return the origin of the watermark updates among its rows."""

    def rows(self, epoch_spec: EpochSpec, batches: Batches) -> Batches:
        """Return the function that processes the input of one task."""


@dataclass(frozen=True)
class StepSpec:
    """An operator for its tasks; `key` is its name in manifests and epoch specs."""

    stream: str
    key: str
    runner: OperatorRunner
    state: str
    names: tuple[str, ...]
    with_arrival: bool
    with_now: bool
    # False if another operator with the same input passes on the control messages.
    passes: bool = True
    # The names of operators of other streams that share this one.
    others: tuple[str, ...] = ()

    def rows(self, epoch_spec: EpochSpec, batches: Batches) -> Batches:
        """Process the input of one task."""
        return StepTask(self, epoch_spec).run(batches)

    @cached_property
    def output(self) -> pa.Schema:
        """Its schema for the stage above."""
        fields = zip(self.names, self.runner.operator.output, strict=True)
        return pa.schema([*(pa.field(name, field.type) for name, field in fields), *self.hidden])

    @property
    def origin(self) -> int:
        """Return the origin of the watermark updates among its rows."""
        return self.runner.origin_id

    @cached_property
    def hidden(self) -> list[pa.Field]:
        fields = [
            pa.field(ORIGIN, pa.int32()),
            pa.field(EVENT_TIME, pa.int64()),
            pa.field(SELECTED, pa.bool_()),
            pa.field(CONTROL, pa.binary()),
        ]
        if self.with_arrival:
            fields += ARRIVAL_FIELDS
        return [*fields, pa.field(NOW, pa.int64())] if self.with_now else fields


def stepper(spec: GivesRows, epoch_specs: EpochSpecStore) -> Callable[[Batches], Batches]:
    """Return the function for mapInArrow that runs an operator after a shuffle."""

    def step(batches: Batches) -> Batches:
        yield from spec.rows(epoch_specs.read(), batches)
        keep_loaded_modules()

    return step


class StepTask:
    """One task of an operator: some key groups and one state file."""

    def __init__(self, spec: StepSpec, epoch_spec: EpochSpec) -> None:
        self.spec = spec
        self.epoch_spec = epoch_spec
        self.store: Store = open_store(spec.state)
        # Every attempt has a unique name.
        name = f"{epoch_spec.stamp}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.file = StateFileBuilder(name, self.store.writer)
        self.state_handles = epoch_spec.state_handles.get(spec.key, {})

    def run(self, batches: Batches) -> Batches:
        inputs, passing = _group_by_key_group(batches)
        results = []
        reports = []
        for key_group in sorted(inputs):
            result, report = self._key_group(key_group, inputs[key_group])
            results.append((key_group, result))
            reports.append(report)
        # The state file must be complete before a report mentions it.
        self.file.close()
        for report in reports:
            report["size"] = self.file.size
        for key_group, result in results:
            yield from self._rows(key_group, result)
        control = [*(passing if self.spec.passes else ()), *map(report_bytes, reports)]
        if control:
            yield self._hidden_rows(control)

    def _key_group(
        self, key_group: int, rows: list[_ShuffledRow]
    ) -> tuple[KeyGroupResult, dict[str, Any]]:
        operator = self.spec.runner.operator
        inputs: list[list[tuple[Any, ...]]] = [[] for _ in operator.shuffle_schemas]
        updates = []
        for port, _, _, update, data in sorted(rows, key=lambda row: row[:3]):
            updates += decode_updates(update)
            if data is not None:
                inputs[port].append(tuple(tables_from_bytes(data, operator.shuffle_schemas[port])))
        handle = self.state_handles.get(str(key_group))
        what = f"the state of the stream {self.spec.stream}, operator {operator.name}"
        backend = StateFileBackend(
            StateHandle.from_json(handle) if handle else None, self._mapped, what
        )
        result = self.spec.runner.run_epoch(
            backend, inputs, updates, self.epoch_spec.now_us, key_group
        )
        saved = backend.save(self.file)
        report = {
            "operators": [self.spec.key, *self.spec.others],
            "key_group": key_group,
            "handle": saved.to_json(),
            "files": backend.needed_files,
            "report": result.report,
        }
        return result, report

    def _mapped(self, file: str) -> memoryview:
        return memoryview(self.store.map(file))

    def _rows(self, key_group: int, result: KeyGroupResult) -> Iterator[pa.RecordBatch]:
        for table in result.output.rows:
            if table.num_rows:
                yield from self._live_rows(table)
        late = [late_bytes(table_to_bytes(t)) for t in result.output.late if t.num_rows]
        if late:
            yield self._hidden_rows(late)
        # All key groups have the same watermark, so one of them reports it.
        if key_group == 0 and result.update is not None:
            yield self._hidden_rows([watermark_bytes(result.update)])

    def _live_rows(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        count = table.num_rows
        hidden = {SELECTED: pa.repeat(pa.scalar(True), count), **self._constants(count)}
        arrays = [*table.columns, *(_column(hidden, f, count) for f in self.spec.hidden)]
        yield from pa.table(arrays, schema=self.spec.output).to_batches()

    def _hidden_rows(self, control: list[bytes]) -> pa.RecordBatch:
        count = len(control)
        columns: dict[str, Any] = {
            SELECTED: pa.array([False] * count),
            CONTROL: pa.array(control, pa.binary()),
            **self._constants(count),
        }
        arrays = [_column(columns, field, count) for field in self.spec.output]
        return pa.record_batch(arrays, schema=self.spec.output)

    def _constants(self, count: int) -> dict[str, Any]:
        """Return the hidden columns that are equal for all rows."""
        return {
            NOW: pa.repeat(pa.scalar(self.epoch_spec.now_us, pa.int64()), count),
            ARRIVAL_FILE: pa.repeat(pa.scalar("", pa.string()), count),
            ARRIVAL_ROW: pa.repeat(pa.scalar(0, pa.int64()), count),
        }


def _column(columns: dict[str, Any], field: pa.Field, count: int) -> Any:
    return columns[field.name] if field.name in columns else pa.nulls(count, field.type)


def _group_by_key_group(batches: Batches) -> tuple[dict[int, list[_ShuffledRow]], list[bytes]]:
    """Group the input by key group; separate the messages that are passed on."""
    inputs: dict[int, list[_ShuffledRow]] = {}
    passing: list[bytes] = []
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        for _, key_group, port, task, part, updates, data in zip(*columns, strict=True):
            if port == PASSING:
                passing.append(data)
            else:
                inputs.setdefault(key_group, []).append((port, task, part, updates, data))
    return inputs, passing


# ---- Fused tasks: if tasks can compute the stage between two steps, rows do not leave Python.
#
# Moving rows to Spark and back costs tens of milliseconds in every epoch, and a copy of all rows.


def step_and_pack(
    step: GivesRows, between: VectorStage, pack: ShuffleSpec, epoch_specs: EpochSpecStore
) -> Callable[[Batches], Batches]:
    """Return a function that runs an operator and packs its rows for the next one."""

    def run(batches: Batches) -> Batches:
        epoch_spec = epoch_specs.read()
        shuffle_writer = ShuffleWriter(pack, task_number(), epoch_spec)
        for batch in step.rows(epoch_spec, batches):
            yield from shuffle_writer.add(between.apply(batch, (EVENT_TIME, SELECTED, CONTROL)))
        yield from shuffle_writer.finish()
        keep_loaded_modules()

    return run


def step_and_stage(
    step: GivesRows, between: VectorStage, stage: StagingSpec, epoch_specs: EpochSpecStore
) -> Callable[[Batches], Batches]:
    """Return a function that runs the last operator of a stream and stages its rows."""

    def run(batches: Batches) -> Batches:
        epoch_spec = epoch_specs.read()
        staging = Staging(stage, epoch_spec, task_number())
        for batch in step.rows(epoch_spec, batches):
            staging.add(pa.Table.from_batches([between.apply(batch, (SELECTED, CONTROL))]))
        yield staging.reports()
        keep_loaded_modules()

    return run
