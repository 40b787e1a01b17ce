"""The order of an epoch: what the driver tells the tasks of a frame that is built once.

A frame outlives its epochs, so what changes between them cannot be part of it. The driver writes an
order before it runs the job, and every task reads it: which ranges to read, where the state of each
key group lies, what time it is. Orders are forgotten with the job; nothing is recovered from them.
"""

from __future__ import annotations

import gc
import json
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.columns import LETTER
from tidegate.operators.watermark import WatermarkUpdate, decode_updates, encode_updates
from tidegate.storage import open_store


@dataclass(frozen=True)
class EpochSpec:
    """What the tasks of one epoch need to know."""

    generation: int
    epoch: int
    now_us: int
    # Whether this is the end of all input: no row comes after it.
    ends: bool = False
    # By source: what each task reads of it.
    splits: dict[str, list[list[Any]]] = field(default_factory=dict)
    # By operator and key group: where the state is.
    state_handles: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    # By lookup table: what tasks must know to see it as it is in this epoch.
    lookups: dict[str, Any] = field(default_factory=dict)
    # By source: how many partitions it has, where each has a watermark of its own.
    partitions: dict[str, int] = field(default_factory=dict)

    @property
    def stamp(self) -> str:
        """Begins the names of all files of this epoch."""
        return f"{self.generation:03d}-{self.epoch:012d}"


@dataclass(frozen=True)
class EpochSpecStore:
    """Where a driver leaves its orders. Each driver has its own place, so that one that should be
    dead cannot speak to the tasks of another."""

    uri: str
    name: str

    def write(self, epoch_spec: EpochSpec) -> None:
        text = json.dumps(asdict(epoch_spec), separators=(",", ":"))
        open_store(self.uri).put(self.name, text.encode(), durable=False)

    def read(self) -> EpochSpec:
        return EpochSpec(**json.loads(open_store(self.uri).get(self.name)))

    def forget(self) -> None:
        open_store(self.uri).delete([self.name])


# ---- Python workers of Spark, where small tasks must be quick.

# What the first tasks load is not all the same: packing, processing, unpacking.
_TASKS = 4
_seen = 0


def keep_what_is_loaded() -> None:
    """Exclude what a worker has loaded from garbage collection.

    Spark has a worker search after every task, and the next task waits for it. Modules are most of
    what there is to search, and stay for good: without them it takes a fraction of the time.
    """
    global _seen
    if _seen < _TASKS:
        _seen += 1
        gc.freeze()


def task_number() -> int:
    """The number of this task in its stage."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return int(context.partitionId()) if context is not None else 0


# ---- What passes by rows on its side: notes for the driver, late rows, dead letters, and ticks.
#
# It travels in a column of its own, as bytes whose first one says what it is. Ticks of an operator go
# to the operator above it, everything else through all stages up to the sinks of the stream.

WATERMARKS = b"T"
REPORT = b"N"
_LATE, _LETTER = b"L", LETTER.encode()

TaskReport = dict[str, Any]


def report_bytes(report: TaskReport) -> bytes:
    return REPORT + json.dumps(report, separators=(",", ":")).encode()


def late_bytes(rows: bytes) -> bytes:
    return _LATE + rows


def watermark_bytes(*updates: WatermarkUpdate) -> bytes:
    return WATERMARKS + encode_updates(updates)


@dataclass
class ControlMessages:
    """What came by, sorted by kind."""

    reports: list[bytes] = field(default_factory=list)
    late: list[bytes] = field(default_factory=list)
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
            else:
                {REPORT: self.reports, _LATE: self.late, _LETTER: self.failed}[kind].append(content)

    def passing(self) -> list[bytes]:
        """What goes on to the sinks, as it came."""
        kinds = ((REPORT, self.reports), (_LATE, self.late), (_LETTER, self.failed))
        return [kind + content for kind, contents in kinds for content in contents]
