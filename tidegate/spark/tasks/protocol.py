"""The epoch spec that the driver writes for tasks, and the control messages of tasks.

A DataFrame is built once and used for many epochs, so it cannot contain what changes between them.
The driver writes an epoch spec before it runs the job, and every task reads it: splits, state
handles and the processing time. Nothing is recovered from epoch specs.
"""

from __future__ import annotations

import gc
import json
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.checkpoint.manifest import epoch_stamp
from tidegate.columns import DEAD_LETTER, DEAD_LETTER_FIELDS
from tidegate.operators.watermark import WatermarkUpdate, decode_updates
from tidegate.storage import open_store


@dataclass(frozen=True)
class EpochSpec:
    """The parameters of one epoch for its tasks."""

    generation: int
    epoch: int
    now_us: int
    # True if this is the last epoch of a bounded run.
    ends: bool = False
    # Splits of each task, by `stream/source`.
    splits: dict[str, list[list[Any]]] = field(default_factory=dict)
    # State handles by operator and key group.
    state_handles: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    # Versions of lookup tables for this epoch.
    lookups: dict[str, Any] = field(default_factory=dict)
    # Number of partitions by `stream/source`, if each partition has its own watermark.
    partitions: dict[str, int] = field(default_factory=dict)

    @property
    def stamp(self) -> str:
        """The prefix of the names of all files of this epoch."""
        return epoch_stamp(self.generation, self.epoch)


@dataclass(frozen=True)
class EpochSpecStore:
    """The location of a driver's epoch specs.

    Each driver has its own, so that a zombie driver cannot influence the tasks of another one.
    """

    uri: str
    name: str

    def write(self, epoch_spec: EpochSpec) -> None:
        text = json.dumps(asdict(epoch_spec), separators=(",", ":"))
        open_store(self.uri).put(self.name, text.encode(), durable=False)

    def read(self) -> EpochSpec:
        return EpochSpec(**json.loads(open_store(self.uri).get(self.name)))

    def forget(self) -> None:
        open_store(self.uri).delete([self.name])


# ---- Python workers

# The first tasks of a worker load different modules.
_TASKS = 4
_seen = 0


def keep_loaded_modules() -> None:
    """Exclude the loaded modules from garbage collection.

    Spark collects garbage after every task, and the next task waits for it. Most objects are
    modules, which stay loaded; without them a collection is much faster.
    """
    global _seen
    if _seen < _TASKS:
        _seen += 1
        gc.freeze()


def task_number() -> int:
    """Return the number of this task in its stage."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return int(context.partitionId()) if context is not None else 0


# ---- Control messages: task reports, dead letters and watermark updates among the rows of a stage
# in Spark SQL.
#
# They travel in a separate column next to rows, as bytes with a prefix for their kind.

WATERMARKS = b"W"
REPORT = b"R"
_DEAD_LETTER = DEAD_LETTER.encode()

TaskReport = dict[str, Any]


def encode_report(report: TaskReport) -> bytes:
    """Serialize a task report."""
    return json.dumps(report, separators=(",", ":")).encode()


def report_bytes(report: TaskReport) -> bytes:
    """Return a control message with a task report."""
    return REPORT + encode_report(report)


def watermark_bytes(updates: bytes) -> bytes:
    """Return a control message with serialized watermark updates."""
    return WATERMARKS + updates


@dataclass
class ControlMessages:
    """Control messages, sorted by kind."""

    reports: list[bytes] = field(default_factory=list)
    # Dead letters: rows on which an expression failed, as JSON.
    failed: list[bytes] = field(default_factory=list)
    updates: list[WatermarkUpdate] = field(default_factory=list)
    size: int = 0

    def add(self, column: pa.ChunkedArray) -> None:
        if column.null_count == len(column):
            return
        self.size += column.nbytes
        for item in column.drop_null().to_pylist():
            kind, content = item[:1], item[1:]
            if kind == WATERMARKS:
                self.updates += decode_updates(content)
            elif kind == REPORT:
                self.reports.append(content)
            else:
                assert kind == _DEAD_LETTER, "a control message has a known kind"
                self.failed.append(content)


def dead_letter_rows(letters: list[bytes]) -> pa.Table:
    """Return dead letters as rows."""
    records = [json.loads(item) for item in letters]
    return pa.table(
        {
            name: pa.array([record.get(name) for record in records], pa.string())
            for name in DEAD_LETTER_FIELDS
        }
    )
