"""The counters that every pipeline keeps."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tidegate.observe.status import OperatorStatus, State, StreamStatus
from tidegate.runtime.control import is_control
from tidegate.runtime.record import write_json
from tidegate.runtime.reports import Reports, operator_statuses


@dataclass
class Counters:
    """What the progress reports of a pipeline add up to."""

    name: str
    delays_us: dict[str, int] = field(default_factory=dict)
    keeps_rows: bool = False
    state: State = State.STARTING
    error: str | None = None
    epoch: int | None = None
    rows_in: int = 0
    rows_out: int = 0
    rows_in_per_second: float = 0.0
    rows_out_per_second: float = 0.0
    dead_letters: int = 0
    state_bytes: int = 0
    times_us: dict[str, int] = field(default_factory=dict)
    file: Path | None = None
    # The last reports of the operators; while there are none, sources tell the watermark.
    reports: Callable[[], Reports] | None = None
    last_watermark: datetime | None = None
    # The directory of the control stream, whose rows are not rows of the input.
    control: Path | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, progress: dict[str, Any]) -> None:
        """One progress report of Spark's; it may come twice, from the listener and at the end.

        While there is nothing to do, Spark reports that too, under the number of the next epoch.
        """
        if "addBatch" not in progress["durationMs"]:
            return
        with self.lock:
            if self.epoch is not None and progress["batchId"] <= self.epoch:
                return
            self.epoch = progress["batchId"]
            observed = progress.get("observedMetrics") or {}
            seconds = max(progress.get("batchDuration", 0) / 1000, 0.001)
            rows_in, good, passed = _rows_in(self._inputs(progress), observed)
            out = int((observed.get("out") or {}).get("rows") or 0)
            out = passed if self.keeps_rows else out
            self.dead_letters += rows_in - good
            self.rows_in += rows_in
            self.rows_out += out
            self.rows_in_per_second = rows_in / seconds
            self.rows_out_per_second = out / seconds
            self.state_bytes = sum(
                int(item.get("memoryUsedBytes") or 0) for item in progress.get("stateOperators", [])
            )
            for source, metrics in observed.items():
                seen = (metrics or {}).get("time_us")
                if seen is not None:
                    self.times_us[source] = max(int(seen), self.times_us.get(source, int(seen)))
            self._save()

    def _inputs(self, progress: dict[str, Any]) -> list[dict[str, Any]]:
        control = self.control
        sources = progress.get("sources", [])
        return [item for item in sources if control is None or not is_control(item, control)]

    def restore(self, file: Path) -> None:
        """Go on from the event times of an earlier run: a watermark never goes back."""
        self.file = file
        if file.exists():
            self.times_us = dict(json.loads(file.read_text("utf-8")))

    def _save(self) -> None:
        if self.file is not None and self.times_us:
            write_json(self.file, self.times_us)

    def _operators(self) -> tuple[OperatorStatus, ...]:
        return operator_statuses(self.reports()) if self.reports is not None else ()

    def watermark(self, operators: tuple[OperatorStatus, ...] = ()) -> datetime | None:
        """The smallest watermark of the operators, else of the sources once all have one."""
        if self.reports is not None:
            marks = [item.watermark for item in operators if item.watermark is not None]
            self.last_watermark = min(marks) if marks else self.last_watermark
            return self.last_watermark
        if not self.delays_us or not set(self.delays_us) <= set(self.times_us):
            return None
        smallest = min(self.times_us[name] - delay for name, delay in self.delays_us.items())
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=smallest)

    def status(self) -> StreamStatus:
        with self.lock:
            operators = self._operators()
            watermark = self.watermark(operators)
            # What Spark reports is its memory, which it keeps when the state is gone.
            state_bytes = sum(item.bytes for item in operators) if operators else self.state_bytes
            lag = (datetime.now(UTC) - watermark).total_seconds() if watermark else None
            return StreamStatus(
                self.name,
                self.state,
                self.epoch,
                self.rows_in,
                self.rows_out,
                self.rows_in_per_second,
                self.rows_out_per_second,
                watermark,
                lag,
                sum(item.late_rows for item in operators),
                self.dead_letters,
                state_bytes,
                self.error,
                operators,
            )


def _rows_in(sources: list[dict[str, Any]], observed: dict[str, Any]) -> tuple[int, int, int]:
    """Rows of all sources, how many of them are good, and how many of those get in.

    Spark counts the rows of a source, but for the generator's and those of text files. Either the
    `good` ones are counted, or the `bad` ones; `passed` are those left where the query's own filter
    comes first.
    """
    total = good = passed = 0
    for index, item in enumerate(sources):
        metrics = observed.get(f"source_{index}") or {}
        rows = int(metrics.get("rows") or item.get("numInputRows") or 0)
        bad = int(metrics.get("bad") or 0)
        usable = int(metrics["good"] or 0) if "good" in metrics else rows - bad
        total += rows
        good += usable
        passed += int(metrics["passed"] or 0) if "passed" in metrics else usable
    return total, good, passed
