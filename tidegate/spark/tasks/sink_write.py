"""The task at the end of a stream: stage rows for every sink and send reports to the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import (
    CONTROL,
    EVENT_TIME,
    MALFORMED_EVENT_TIME,
    ORIGIN,
    PARTITION_SHIFT,
    SELECTED,
)
from tidegate.spark.tasks.protocol import (
    ControlMessages,
    EpochSpec,
    EpochSpecStore,
    keep_loaded_modules,
    report_bytes,
    task_number,
)
from tidegate.spark.tasks.shuffle import Batches

if TYPE_CHECKING:
    from tidegate.connectors.base import SinkWriterFactory

REPORTS_SCHEMA = "report BINARY"


@dataclass(frozen=True)
class StagedSink:
    """A sink for tasks: the columns of the frame that it writes, and their names in the sink."""

    name: str
    factory: SinkWriterFactory
    columns: tuple[str, ...]
    names: tuple[str, ...]
    # The column that selects its rows (late rows, dead letters); None for the rows of the stream.
    chosen: str | None = None


@dataclass(frozen=True)
class StagingSpec:
    """The sinks at the end of a stream."""

    stream: str
    sinks: tuple[StagedSink, ...]
    # True if the last stage reads sources, so that only this task knows their event times.
    scans: bool


def staging(spec: StagingSpec, epoch_specs: EpochSpecStore) -> Callable[[Batches], Batches]:
    """Return the function for mapInArrow that stages rows."""

    def stage(batches: Batches) -> Batches:
        work = Staging(spec, epoch_specs.read(), task_number())
        for batch in batches:
            if batch.num_rows:
                work.add(pa.Table.from_batches([batch]))
        yield work.reports()
        keep_loaded_modules()

    return stage


class Staging:
    """The staging of one task."""

    def __init__(self, spec: StagingSpec, epoch_spec: EpochSpec, task: int) -> None:
        self.spec = spec
        self.writers = [(sink, sink.factory.open(epoch_spec.stamp, task)) for sink in spec.sinks]
        self.control = ControlMessages()
        self.chosen = {sink.chosen for sink in spec.sinks if sink.chosen is not None}
        self.rows = self.bad = 0
        self.marks: dict[int, int] = {}

    def add(self, table: pa.Table) -> None:
        self.control.add(table.column(CONTROL))
        if self.spec.scans:
            self._track_event_times(table)
        for chosen in self.chosen:
            rows = table.filter(table.column(chosen))
            if rows.num_rows:
                self._stage(rows, chosen)
        live = table.column(SELECTED)
        if pc.all(live, skip_nulls=False).as_py() is not True:
            table = table.filter(live)
        if table.num_rows:
            self.rows += table.num_rows
            self._stage(table, None)

    def _stage(self, table: pa.Table, chosen: str | None) -> None:
        for sink, writer in self.writers:
            if sink.chosen == chosen:
                taken = table.select(list(sink.columns))
                writer.add(taken.rename_columns(list(sink.names)))

    def _track_event_times(self, table: pa.Table) -> None:
        marks = table.column(EVENT_TIME)
        least, most = pc.min_max(marks).as_py().values()
        if least is None:
            return
        if least == MALFORMED_EVENT_TIME:
            self.bad += pc.sum(pc.equal(marks, MALFORMED_EVENT_TIME)).as_py()
        if most == MALFORMED_EVENT_TIME:
            return
        seen = table.select([ORIGIN, EVENT_TIME]).group_by(ORIGIN, use_threads=False)
        for row in seen.aggregate([(EVENT_TIME, "max")]).to_pylist():
            origin, mark = row[ORIGIN], row[f"{EVENT_TIME}_max"]
            if origin is not None and mark is not None and mark != MALFORMED_EVENT_TIME:
                self.marks[origin] = max(mark, self.marks.get(origin, mark))

    def reports(self) -> pa.RecordBatch:
        """Close the writers and return all reports for the driver."""
        reports = [*self.control.reports, *(report[1:] for report in self._own_reports())]
        return pa.record_batch([pa.array(reports, pa.binary())], names=["report"])

    def _own_reports(self) -> list[bytes]:
        reports: list[dict[str, Any]] = [
            {"sink": sink.name, "committables": writer.finish()} for sink, writer in self.writers
        ]
        stream_report: dict[str, Any] = {"streams": [self.spec.stream], "out": self.rows}
        if self.bad:
            stream_report["malformed"] = self.bad
        if self.control.failed:
            stream_report["failed"] = len(self.control.failed)
        if self.marks:
            stream_report["event_times_us"] = {
                _origin_name(number): mark for number, mark in self.marks.items()
            }
        return [report_bytes(report) for report in [*reports, stream_report]]


def _origin_name(number: int) -> str:
    """Return the number of the scan in ORIGIN as text, with /partition unless that is 0."""
    origin, partition = number & ((1 << PARTITION_SHIFT) - 1), number >> PARTITION_SHIFT
    return f"{origin}/{partition}" if partition else str(origin)
