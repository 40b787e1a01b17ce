"""The sink write: a task stages the rows of a stream for its sinks and collects committables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import (
    CONTROL,
    EVENT_TIME,
    MALFORMED_EVENT_TIME,
    ORIGIN,
    SELECTED,
)
from tidegate.physical.job_graph import SinkWrite
from tidegate.spark.tasks.protocol import ControlMessages, EpochSpec, encode_report
from tidegate.spark.tasks.shuffle import decode_origin

REPORTS_SCHEMA = "report BINARY"


class SinkStaging:
    """Stages the rows of one branch in one task."""

    def __init__(self, spec: SinkWrite, epoch_spec: EpochSpec, task: int) -> None:
        self.spec = spec
        self.writers = [(sink, sink.factory.open(epoch_spec.stamp, task)) for sink in spec.sinks]
        self.control = ControlMessages()
        self.selectors = {item.selected_by for item in spec.sinks if item.selected_by is not None}
        self.rows = self.malformed = 0
        self.event_times_us: dict[int, int] = {}

    def add(self, table: pa.Table) -> None:
        """Stage the selected rows; all columns of control messages are collected."""
        if CONTROL in table.column_names:
            self.control.add(table.column(CONTROL))
        if self.spec.reads_source:
            self._track_event_times(table)
        for selector in self.selectors:
            rows = table.filter(table.column(selector))
            if rows.num_rows:
                self._stage(rows, selector)
        if SELECTED in table.column_names:
            selected = table.column(SELECTED)
            if pc.all(selected, skip_nulls=False).as_py() is not True:
                table = table.filter(selected)
        if table.num_rows:
            self.rows += table.num_rows
            self._stage(table, None)

    def _stage(self, table: pa.Table, selector: str | None) -> None:
        for sink, writer in self.writers:
            if sink.selected_by == selector:
                columns = table.select(list(sink.columns))
                columns = columns.rename_columns(list(sink.names))
                writer.add(columns if sink.encoder is None else sink.encoder.encode(columns))

    def _track_event_times(self, table: pa.Table) -> None:
        """Update the largest event time of each origin, and count malformed records."""
        times = table.column(EVENT_TIME)
        least, most = pc.min_max(times).as_py().values()
        if least is None:
            return
        if least == MALFORMED_EVENT_TIME:
            self.malformed += pc.sum(pc.equal(times, MALFORMED_EVENT_TIME)).as_py()
        if most == MALFORMED_EVENT_TIME:
            return
        seen = table.select([ORIGIN, EVENT_TIME]).group_by(ORIGIN, use_threads=False)
        for row in seen.aggregate([(EVENT_TIME, "max")]).to_pylist():
            origin, time_us = row[ORIGIN], row[f"{EVENT_TIME}_max"]
            if origin is not None and time_us is not None and time_us != MALFORMED_EVENT_TIME:
                previous_us = self.event_times_us.get(origin, time_us)
                self.event_times_us[origin] = max(time_us, previous_us)

    def finish(self) -> list[bytes]:
        """Close the writers and return all reports for the driver."""
        reports: list[dict[str, Any]] = [
            {"sink": sink.name, "committables": writer.finish()} for sink, writer in self.writers
        ]
        if self.spec.counts:
            reports.append(self._stream_report())
        return [*self.control.reports, *map(encode_report, reports)]

    def _stream_report(self) -> dict[str, Any]:
        report: dict[str, Any] = {"streams": [self.spec.stream], "out": self.rows}
        if self.malformed:
            report["malformed"] = self.malformed
        if self.control.failed:
            report["failed"] = len(self.control.failed)
        if self.event_times_us:
            report["event_times_us"] = {
                _origin_name(number): time_us for number, time_us in self.event_times_us.items()
            }
        return report


def _origin_name(number: int) -> str:
    """Return the number of the scan in ORIGIN as text, with /partition unless that is 0."""
    origin, partition = decode_origin(number)
    return f"{origin}/{partition}" if partition else str(origin)
