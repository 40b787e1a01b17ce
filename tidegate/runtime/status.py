"""Counters of running streams, and the status that is computed from them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate.checkpoint.manifest import Manifest, OperatorState
from tidegate.connectors.base import InputRange
from tidegate.observe.status import OperatorStatus, Rate, State, StreamStatus
from tidegate.runtime.epoch import StreamReport

# After the end of a bounded run the watermark is larger than every time (year 10000 and later).
_MAX_TIME_US = 253_402_300_800_000_000
_MIN_TIME_US = -62_135_596_800_000_000


@dataclass
class StreamCounters:
    """Counters of a stream since its start."""

    name: str
    # The watermark delay by number of the scan, for a stream without operators.
    delays_us: dict[str, int] = field(default_factory=dict)
    state: State = State.STARTING
    error: str | None = None
    epoch: int | None = None
    rows_in: int = 0
    rows_out: int = 0
    rate_in: Rate = field(default_factory=Rate)
    rate_out: Rate = field(default_factory=Rate)
    dead_letters: int = 0
    lost_records: int = 0
    pending_records: int | None = None
    # By source: how much was read since the start, and how much remained after that.
    read_and_remaining: dict[str, tuple[int, int]] = field(default_factory=dict)
    epoch_seconds: float | None = None
    # When the running epoch started, by the monotonic clock.
    running_since: float | None = None
    event_times_us: dict[str, int] = field(default_factory=dict)
    operators: dict[str, OperatorState] = field(default_factory=dict)
    # The operators at the start: they count since the first epoch of the stream.
    initial_operators: dict[str, OperatorState] = field(default_factory=dict)
    last_watermark: datetime | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def restore(self, manifest: Manifest) -> None:
        """Start from the last manifest, so that the watermark does not go back."""
        with self.lock:
            stream = manifest.streams.get(self.name.lower())
            self.event_times_us = dict(stream.event_times_us) if stream is not None else {}
            self._set_operators(manifest)
            self.initial_operators = self.operators

    def fail(self, message: str, failed_stream: str | None) -> None:
        """Record a failure of the pipeline; if another stream failed, this one only stopped."""
        has_failed = failed_stream in (None, self.name.lower())
        self.state = State.FAILED if has_failed else State.STOPPED
        self.error = message if has_failed else f"stopped because the stream {failed_stream} failed"

    def add(
        self,
        manifest: Manifest,
        report: StreamReport,
        seconds: float,
        ranges: Mapping[str, InputRange] | None = None,
    ) -> None:
        """Add a committed epoch and the input ranges that it read."""
        with self.lock:
            self.epoch = manifest.epoch
            self.rows_in += report.rows_in
            self.rows_out += report.rows_out
            self.dead_letters += report.malformed + report.failed
            self.rate_in.add(report.rows_in, seconds)
            self.rate_out.add(report.rows_out, seconds)
            self.epoch_seconds = seconds
            self.event_times_us = dict(manifest.streams[self.name.lower()].event_times_us)
            self._set_operators(manifest)
            self._add_ranges(ranges or {})

    def _add_ranges(self, ranges: Mapping[str, InputRange]) -> None:
        self.lost_records += sum(input_range.lost_records for input_range in ranges.values())
        pending = [
            input_range.pending_records
            for input_range in ranges.values()
            if input_range.pending_records is not None
        ]
        self.pending_records = sum(pending) if pending else self.pending_records
        for source, input_range in ranges.items():
            if input_range.progress is not None:
                read, remaining = input_range.progress
                self.read_and_remaining[source] = (
                    self.read_and_remaining.get(source, (0, 0))[0] + read,
                    remaining,
                )

    def progress(self) -> float | None:
        """Return the fraction of the available input that was read, of the slowest source."""
        fractions = (
            read / (read + remaining or 1) for read, remaining in self.read_and_remaining.values()
        )
        return min(fractions, default=None)

    def _set_operators(self, manifest: Manifest) -> None:
        key = self.name.lower()
        self.operators = {k: o for k, o in manifest.operators.items() if o.stream == key}

    def watermark(self, operators: tuple[OperatorStatus, ...]) -> datetime | None:
        """Return the minimum over all operators; without operators, over all sources.

        It is None until every source has a watermark.
        """
        if operators:
            watermarks = [item.watermark for item in operators if item.watermark is not None]
            self.last_watermark = min(watermarks) if watermarks else self.last_watermark
            return self.last_watermark
        event_times_us: dict[str, int] = {}
        for partition, time_us in self.event_times_us.items():
            source = partition.partition("/")[0]
            event_times_us[source] = min(time_us, event_times_us.get(source, time_us))
        if not self.delays_us or not set(self.delays_us) <= set(event_times_us):
            return None
        watermark_us = min(event_times_us[name] - delay for name, delay in self.delays_us.items())
        return watermark_time(watermark_us)

    def status(self) -> StreamStatus:
        with self.lock:
            operators = tuple(
                _operator_status(operator, self.initial_operators.get(key))
                for key, operator in self.operators.items()
            )
            watermark = self.watermark(operators)
            since = self.running_since
            lag = (datetime.now(UTC) - watermark).total_seconds() if watermark else None
            return StreamStatus(
                self.name,
                self.state,
                self.epoch,
                self.rows_in,
                self.rows_out,
                self.rate_in.per_second(),
                self.rate_out.per_second(),
                watermark,
                lag,
                sum(item.late_rows for item in operators),
                self.dead_letters,
                sum(item.bytes for item in operators),
                self.error,
                operators,
                self.lost_records,
                self.pending_records,
                self.epoch_seconds,
                self.progress(),
                None if since is None else time.monotonic() - since,
            )


@contextmanager
def track_running_epoch(counters: Iterable[StreamCounters]) -> Iterator[None]:
    """Report in the status of these streams since when an epoch has been running."""
    streams, now = list(counters), time.monotonic()
    for item in streams:
        item.running_since = now
    try:
        yield
    finally:
        for item in streams:
            item.running_since = None


def _operator_status(operator: OperatorState, initial: OperatorState | None) -> OperatorStatus:
    report = operator.report
    initial_report = initial.report if initial is not None else {}
    watermark_us = report.get("watermark_us")
    return OperatorStatus(
        name=operator.name,
        watermark=watermark_time(watermark_us) if watermark_us is not None else None,
        late_rows=_increase(report, initial_report, "late_rows"),
        groups=int(report.get("groups", 0)),
        open_windows=int(report.get("open_windows", 0)),
        rows=int(report.get("rows", 0)),
        bytes=int(report.get("bytes", 0)),
        discarded=_increase(report, initial_report, "discarded"),
    )


def _increase(report: Mapping[str, Any], initial: Mapping[str, Any], name: str) -> int:
    """Return how much a counter has grown; a smaller counter belongs to an operator that reset."""
    current, start = int(report.get(name, 0)), int(initial.get(name, 0))
    return current - start if current >= start else current


def watermark_time(time_us: int) -> datetime | None:
    """Convert a watermark to a time; None if it is before or after all times."""
    if not _MIN_TIME_US <= time_us < _MAX_TIME_US:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
