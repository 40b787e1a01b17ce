"""The task at the end of a stream: rows are staged for every sink, notes go to the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import BAD_MARK, LIVE, MARK, ORIGIN, PARTITION_SHIFT, SIDE
from tidegate.spark.tasks.protocol import Order, OrderPlace, Sides, keep_what_is_loaded, note_bytes
from tidegate.spark.tasks.shuffle import Batches

if TYPE_CHECKING:
    from tidegate.connectors.base import StagerFactory

NOTES_SCHEMA = "note BINARY"


@dataclass(frozen=True)
class StagedSink:
    """A sink as tasks know it: the columns of the frame that it takes, and their names there."""

    name: str
    factory: StagerFactory
    columns: tuple[str, ...]
    names: tuple[str, ...]
    # The column that says which rows are its (late ones, dead letters); None: those of the stream.
    chosen: str | None = None


@dataclass(frozen=True)
class StagingSpec:
    """The end of a stream."""

    stream: str
    sinks: tuple[StagedSink, ...]
    # Whether the last stage reads sources itself, so that their time is known here only.
    scans: bool


def staging(spec: StagingSpec, place: OrderPlace) -> Callable[[Batches], Batches]:
    """The function for mapInArrow."""

    def stage(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        work = Staging(spec, place.read(), task)
        for batch in batches:
            if batch.num_rows:
                work.add(pa.Table.from_batches([batch]))
        yield work.notes()
        keep_what_is_loaded()

    return stage


class Staging:
    """The staging of one task."""

    def __init__(self, spec: StagingSpec, order: Order, task: int) -> None:
        self.spec = spec
        self.stagers = [(sink, sink.factory.open(order.stamp, task)) for sink in spec.sinks]
        self.sides = Sides()
        self.chosen = {sink.chosen for sink in spec.sinks if sink.chosen is not None}
        self.rows = self.bad = 0
        self.marks: dict[int, int] = {}

    def add(self, table: pa.Table) -> None:
        self.sides.add(table.column(SIDE))
        if self.spec.scans:
            self._hear(table)
        for chosen in self.chosen:
            rows = table.filter(table.column(chosen))
            if rows.num_rows:
                self._stage(rows, chosen)
        live = table.column(LIVE)
        if pc.all(live, skip_nulls=False).as_py() is not True:
            table = table.filter(live)
        if table.num_rows:
            self.rows += table.num_rows
            self._stage(table, None)

    def _stage(self, table: pa.Table, chosen: str | None) -> None:
        for sink, stager in self.stagers:
            if sink.chosen == chosen:
                taken = table.select(list(sink.columns))
                stager.add(taken.rename_columns(list(sink.names)))

    def _hear(self, table: pa.Table) -> None:
        marks = table.column(MARK)
        least, most = pc.min_max(marks).as_py().values()
        if least is None:
            return
        if least == BAD_MARK:
            self.bad += pc.sum(pc.equal(marks, BAD_MARK)).as_py()
        if most == BAD_MARK:
            return
        seen = table.select([ORIGIN, MARK]).group_by(ORIGIN, use_threads=False)
        for row in seen.aggregate([(MARK, "max")]).to_pylist():
            origin, mark = row[ORIGIN], row[f"{MARK}_max"]
            if origin is not None and mark is not None and mark != BAD_MARK:
                self.marks[origin] = max(mark, self.marks.get(origin, mark))

    def notes(self) -> pa.RecordBatch:
        """What the driver must know, once everything is staged."""
        notes = [*self.sides.notes, *(note[1:] for note in self._own_notes())]
        return pa.record_batch([pa.array(notes, pa.binary())], names=["note"])

    def _own_notes(self) -> list[bytes]:
        notes: list[dict[str, Any]] = [
            {"sink": sink.name, "tokens": stager.finish()} for sink, stager in self.stagers
        ]
        own: dict[str, Any] = {"streams": [self.spec.stream], "out": self.rows}
        if self.bad:
            own["bad"] = self.bad
        if self.sides.failed:
            own["failed"] = len(self.sides.failed)
        if self.marks:
            own["marks"] = {_place_name(number): mark for number, mark in self.marks.items()}
        return [note_bytes(note) for note in [*notes, own]]


def _place_name(number: int) -> str:
    """The source that a number in ORIGIN stands for, and behind a / its partition, if not 0."""
    origin, partition = number & ((1 << PARTITION_SHIFT) - 1), number >> PARTITION_SHIFT
    return f"{origin}/{partition}" if partition else str(origin)
