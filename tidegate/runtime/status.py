"""The counters of a stream that runs, for whoever looks at it."""

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

# After the end of a bounded run the watermark is beyond all times.
_LATEST_US = 253_402_300_800_000_000


@dataclass
class Counters:
    """What the epochs of a stream add up to since it was started."""

    name: str
    # How far the watermark of each source stays behind, for a stream without operators.
    delays_us: dict[str, int] = field(default_factory=dict)
    state: State = State.STARTING
    error: str | None = None
    epoch: int | None = None
    rows_in: int = 0
    rows_out: int = 0
    rate_in: Rate = field(default_factory=Rate)
    rate_out: Rate = field(default_factory=Rate)
    dead_letters: int = 0
    lost: int = 0
    behind: int | None = None
    # By source how much was read since the start, and how much was left after that.
    read: dict[str, tuple[int, int]] = field(default_factory=dict)
    epoch_seconds: float | None = None
    # When the epoch began that runs now, by the clock that never goes back.
    working_since: float | None = None
    marks_us: dict[str, int] = field(default_factory=dict)
    operators: dict[str, OperatorState] = field(default_factory=dict)
    # What operators had counted in earlier runs: they count since their first epoch.
    before: dict[str, OperatorState] = field(default_factory=dict)
    last_watermark: datetime | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def restore(self, manifest: Manifest) -> None:
        """Go on from an earlier run: a watermark never goes back."""
        with self.lock:
            stream = manifest.streams.get(self.name.lower())
            self.marks_us = dict(stream.event_times_us) if stream is not None else {}
            self._take_operators(manifest)
            self.before = self.operators

    def fail(self, message: str, failing_row: str | None) -> None:
        """The pipeline has failed; if it was another stream, this one only had to stop."""
        mine = failing_row in (None, self.name.lower())
        self.state = State.FAILED if mine else State.STOPPED
        self.error = message if mine else f"stopped, because the stream {failing_row} did"

    def add(
        self,
        manifest: Manifest,
        reports: StreamReport,
        seconds: float,
        ranges: Mapping[str, InputRange] | None = None,
    ) -> None:
        """One epoch that was decided, and what its sources told."""
        with self.lock:
            self.epoch = manifest.epoch
            self.rows_in += reports.rows_in
            self.rows_out += reports.rows_out
            self.dead_letters += reports.malformed + reports.failed
            self.rate_in.add(reports.rows_in, seconds)
            self.rate_out.add(reports.rows_out, seconds)
            self.epoch_seconds = seconds
            self.marks_us = dict(manifest.streams[self.name.lower()].event_times_us)
            self._take_operators(manifest)
            self._take_cuts(ranges or {})

    def _take_cuts(self, ranges: Mapping[str, InputRange]) -> None:
        self.lost += sum(input_range.lost for input_range in ranges.values())
        behind = [
            input_range.behind for input_range in ranges.values() if input_range.behind is not None
        ]
        self.behind = sum(behind) if behind else self.behind
        for source, input_range in ranges.items():
            if input_range.progress is not None:
                read, left = input_range.progress
                self.read[source] = (self.read.get(source, (0, 0))[0] + read, left)

    def progress(self) -> float | None:
        """How much of what is there was read, of the source that is least far."""
        return min((read / (read + left or 1) for read, left in self.read.values()), default=None)

    def _take_operators(self, manifest: Manifest) -> None:
        own = self.name.lower()
        self.operators = {k: o for k, o in manifest.operators.items() if o.stream == own}

    def watermark(self, operators: tuple[OperatorStatus, ...]) -> datetime | None:
        """The smallest watermark of the operators, else of the sources once all have one."""
        if operators:
            told = [item.watermark for item in operators if item.watermark is not None]
            self.last_watermark = min(told) if told else self.last_watermark
            return self.last_watermark
        marks: dict[str, int] = {}
        for name, mark in self.marks_us.items():
            # Behind a / stands the partition.
            source = name.partition("/")[0]
            marks[source] = min(mark, marks.get(source, mark))
        if not self.delays_us or not set(self.delays_us) <= set(marks):
            return None
        return moment(min(marks[name] - delay for name, delay in self.delays_us.items()))

    def status(self) -> StreamStatus:
        with self.lock:
            operators = tuple(
                _status(operator, self.before.get(key)) for key, operator in self.operators.items()
            )
            watermark = self.watermark(operators)
            since = self.working_since
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
                self.lost,
                self.behind,
                self.epoch_seconds,
                self.progress(),
                None if since is None else time.monotonic() - since,
            )


@contextmanager
def at_work(counters: Iterable[Counters]) -> Iterator[None]:
    """While an epoch runs, streams say for how long it does."""
    told, now = list(counters), time.monotonic()
    for item in told:
        item.working_since = now
    try:
        yield
    finally:
        for item in told:
            item.working_since = None


def _status(operator: OperatorState, before: OperatorState | None) -> OperatorStatus:
    report = operator.report
    earlier = before.report if before is not None else {}
    mark = report.get("watermark_us")
    return OperatorStatus(
        name=operator.name,
        watermark=moment(mark) if mark is not None else None,
        late_rows=_since(report, earlier, "late_rows"),
        groups=int(report.get("groups", 0)),
        open_windows=int(report.get("open_windows", 0)),
        rows=int(report.get("rows", 0)),
        bytes=int(report.get("bytes", 0)),
        discarded=_since(report, earlier, "discarded"),
    )


def _since(report: Mapping[str, Any], earlier: Mapping[str, Any], name: str) -> int:
    """What was counted since then; less than then is the count of an operator that began anew."""
    now, then = int(report.get(name, 0)), int(earlier.get(name, 0))
    return now - then if now >= then else now


def moment(micros: int) -> datetime | None:
    """A watermark as a time; None for the end of all times."""
    if not -62_135_596_800_000_000 <= micros < _LATEST_US:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
