"""The step of an operator: unpack the rows of its key groups, step, write the new state."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, CONTROL, NOW, SELECTED
from tidegate.operators.runner import KeyGroupResult
from tidegate.operators.watermark import decode_updates
from tidegate.physical.job_graph import Step
from tidegate.spark.tasks.protocol import EpochSpec, TaskReport
from tidegate.state.codec import tables_from_bytes
from tidegate.state.state_file import StateFileBackend, StateFileBuilder, StateHandle
from tidegate.storage import Store, open_store

# A row of the shuffle without its target and key group: port, task, part, watermark updates, data.
ShuffledRow = tuple[int, int, int, bytes, bytes | None]


class StepTask:
    """One task of an operator: some key groups and one state file."""

    def __init__(self, step: Step, epoch_spec: EpochSpec) -> None:
        self.step = step
        self.epoch_spec = epoch_spec
        self.store: Store = open_store(step.state)
        # Every attempt has a unique name.
        name = f"{epoch_spec.stamp}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.file = StateFileBuilder(name, self.store.writer)
        self.state_handles = epoch_spec.state_handles.get(step.keys[0], {})

    def run(
        self, inputs: Mapping[int, list[ShuffledRow]]
    ) -> tuple[list[tuple[int, KeyGroupResult]], list[TaskReport]]:
        """Step all key groups; return their results and the reports with the new state."""
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
        return results, reports

    def _key_group(
        self, key_group: int, rows: Sequence[ShuffledRow]
    ) -> tuple[KeyGroupResult, TaskReport]:
        operator = self.step.runner.operator
        inputs: list[list[tuple[Any, ...]]] = [[] for _ in operator.shuffle_schemas]
        updates = []
        for port, _, _, update, data in sorted(rows, key=lambda row: row[:3]):
            updates += decode_updates(update)
            if data is not None:
                inputs[port].append(tuple(tables_from_bytes(data, operator.shuffle_schemas[port])))
        handle = self.state_handles.get(str(key_group))
        description = f"the state of the stream {self.step.stream}, operator {operator.name}"
        backend = StateFileBackend(
            StateHandle.from_json(handle) if handle else None, self._map, description
        )
        result = self.step.runner.run_epoch(
            backend, inputs, updates, self.epoch_spec.now_us, key_group
        )
        saved = backend.save(self.file)
        report = {
            "operators": self.step.keys,
            "key_group": key_group,
            "handle": saved.to_json(),
            "files": backend.needed_files,
            "report": result.report,
        }
        return result, report

    def _map(self, file: str) -> memoryview:
        return memoryview(self.store.map(file))


def operator_batches(
    schema: pa.Schema, columns: int, table: pa.Table, now_us: int
) -> list[pa.RecordBatch]:
    """Return rows of an operator with the hidden columns of `schema`, which follow `columns`."""
    count = table.num_rows
    hidden = {
        SELECTED: pa.repeat(pa.scalar(True), count),
        NOW: pa.repeat(pa.scalar(now_us, pa.int64()), count),
        ARRIVAL_FILE: pa.repeat(pa.scalar("", pa.string()), count),
        ARRIVAL_ROW: pa.repeat(pa.scalar(0, pa.int64()), count),
    }
    arrays = [*table.columns, *(_column(hidden, f, count) for f in list(schema)[columns:])]
    batches: list[pa.RecordBatch] = pa.table(arrays, schema=schema).to_batches()
    return batches


def control_batch(schema: pa.Schema, messages: Sequence[bytes]) -> pa.RecordBatch:
    """Return control messages as rows that are not selected; all other columns are NULL."""
    count = len(messages)
    columns = {
        SELECTED: pa.array([False] * count),
        CONTROL: pa.array(messages, pa.binary()),
    }
    return pa.record_batch([_column(columns, f, count) for f in schema], schema=schema)


def _column(columns: Mapping[str, Any], field: pa.Field, count: int) -> Any:
    return columns[field.name] if field.name in columns else pa.nulls(count, field.type)
