"""The recent history that the console shows: samples, epochs and events of the last minutes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate.console.providers import ConsoleProvider
from tidegate.errors import TidegateError
from tidegate.observe.status import OperatorStatus, StreamStatus
from tidegate.observe.timeline import EpochDurations

_INTERVAL_SECONDS = 1.0
# Ten minutes of samples.
_MAX_SAMPLES, _MAX_EPOCHS, _MAX_EVENTS = 600, 512, 200

Json = dict[str, Any]


@dataclass
class ConsoleHistory:
    """Samples a provider once per second in a background thread, whether or not a page is open.

    Every item carries the number of the update that added it, so that a page can ask for the items
    that it does not have yet.
    """

    provider: ConsoleProvider
    clock: Callable[[], float] = time.time
    number: int = 0
    streams: list[Json] = field(default_factory=list)
    samples: deque[Json] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    epochs: deque[Json] = field(default_factory=lambda: deque(maxlen=_MAX_EPOCHS))
    events: deque[Json] = field(default_factory=lambda: deque(maxlen=_MAX_EVENTS))
    # By stream: the state and error that were last reported as an event.
    _reported: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    # By pipeline: the number of the newest epoch.
    _newest_epoch: dict[str, int] = field(default_factory=dict)
    # Why the last update failed; None if it succeeded.
    _failure: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start to sample."""
        threading.Thread(target=self._run, name="tidegate console", daemon=True).start()

    def _run(self) -> None:
        while not self._closed.is_set():
            self.update()
            self._closed.wait(_INTERVAL_SECONDS)

    def close(self) -> None:
        """Stop sampling."""
        self._closed.set()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    def update(self) -> None:
        """Read the provider once. A failure becomes an event, and the next update tries again."""
        try:
            statuses, epochs = self.provider.statuses(), self.provider.epochs()
        except (TidegateError, OSError) as error:
            message = error.message if isinstance(error, TidegateError) else str(error)
            with self._lock:
                if message != self._failure:
                    self.number += 1
                    self._add_event("error", "", message)
                self._failure = message
            return
        with self._lock:
            self._failure = None
            self.number += 1
            self.streams = [stream_json(status) for status in statuses]
            self.samples.append({"number": self.number, **_sample(self.clock(), statuses)})
            for status in statuses:
                self._report_change(status)
            for times in epochs:
                if times.epoch > self._newest_epoch.get(times.pipeline, -1):
                    self._newest_epoch[times.pipeline] = times.epoch
                    self.epochs.append({"number": self.number, **epoch_json(times)})

    def _report_change(self, status: StreamStatus) -> None:
        """Add an event if the state or the error of a stream has changed."""
        current = (status.state.value, status.error)
        previous = self._reported.get(status.name)
        self._reported[status.name] = current
        if current == previous:
            return
        if status.error is not None:
            self._add_event("error", status.name, status.error)
        elif previous is not None and previous[1] is not None:
            self._add_event("info", status.name, "recovered")
        elif self.provider.live:
            self._add_event("info", status.name, status.state.value)

    def _add_event(self, level: str, stream: str, text: str) -> None:
        event = {"number": self.number, "time": self.clock(), "level": level}
        self.events.append({**event, "stream": stream, "text": text})

    def record(self, level: str, text: str) -> None:
        """Add an event about an action of the console."""
        with self._lock:
            self.number += 1
            self._add_event(level, "", text)

    def since(self, number: int) -> Json:
        """Return the current streams, and the items that were added after update `number`."""
        with self._lock:
            return {
                "number": self.number,
                "streams": self.streams,
                "samples": [item for item in self.samples if item["number"] > number],
                "epochs": [item for item in self.epochs if item["number"] > number],
                "events": [item for item in self.events if item["number"] > number],
            }


def _sample(time_s: float, statuses: tuple[StreamStatus, ...]) -> Json:
    return {
        "time": time_s,
        "streams": {
            status.name: {
                "in": round(status.rows_in_per_second, 1),
                "out": round(status.rows_out_per_second, 1),
                "lag": status.live_lag_seconds,
                "state": status.state_bytes,
                "late": status.late_rows,
            }
            for status in statuses
        },
    }


def stream_json(status: StreamStatus) -> Json:
    """Return the status of a stream as JSON."""
    return {
        "name": status.name,
        "state": status.state.value,
        "epoch": status.epoch,
        "rows_in": status.rows_in,
        "rows_out": status.rows_out,
        "rows_in_per_second": status.rows_in_per_second,
        "rows_out_per_second": status.rows_out_per_second,
        "watermark": status.watermark.isoformat() if status.watermark is not None else None,
        "watermark_lag_seconds": status.live_lag_seconds,
        "late_rows": status.late_rows,
        "dead_letters": status.dead_letters,
        "state_bytes": status.state_bytes,
        "epoch_seconds": status.epoch_seconds,
        "open_windows": status.open_windows,
        "behind": status.pending_records,
        "lost": status.lost_records,
        "error": status.error,
        "operators": [_operator_json(operator) for operator in status.operators],
    }


def _operator_json(operator: OperatorStatus) -> Json:
    return {
        "name": operator.name,
        "watermark": operator.watermark.isoformat() if operator.watermark is not None else None,
        "bytes": operator.bytes,
        "rows": operator.rows,
        "groups": operator.groups,
        "late_rows": operator.late_rows,
        "open_windows": operator.open_windows,
    }


def epoch_json(times: EpochDurations) -> Json:
    """Return an epoch as JSON; `seconds` is None if the durations of its steps are unknown."""
    return {
        "pipeline": times.pipeline,
        "epoch": times.epoch,
        "started_at": times.started_at,
        "seconds": times.seconds if times.steps else None,
        "steps": [{"step": step, "seconds": seconds} for step, seconds in times.steps],
        "rows_in": times.rows_in,
        "rows_out": times.rows_out,
    }
