"""Looks once per second and remembers what it saw, whether somebody has the page open or not."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate.console.providers import Shown
from tidegate.errors import TidegateError
from tidegate.observe.status import OperatorStatus, StreamStatus
from tidegate.observe.timeline import EpochTimes

_SECONDS = 1.0
# Ten minutes of samples, and as many events and epochs as a page can show.
_SAMPLES, _EVENTS, _EPOCHS = 600, 200, 512

Seen = dict[str, Any]


@dataclass
class Watch:
    """What was seen of something; everything has a number, so that a reader knows what is new."""

    shown: Shown
    clock: Callable[[], float] = time.time
    number: int = 0
    streams: list[Seen] = field(default_factory=list)
    samples: deque[Seen] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    epochs: deque[Seen] = field(default_factory=lambda: deque(maxlen=_EPOCHS))
    events: deque[Seen] = field(default_factory=lambda: deque(maxlen=_EVENTS))
    _told: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)
    _trouble: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._run, name="tidegate console", daemon=True).start()

    def _run(self) -> None:
        while not self._closed.is_set():
            self.tick()
            self._closed.wait(_SECONDS)

    def close(self) -> None:
        self._closed.set()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def tick(self) -> None:
        """Look once. What cannot be read just now is an event, and looked at again."""
        try:
            statuses, epochs = self.shown.statuses(), self.shown.epochs()
        except (TidegateError, OSError) as error:
            message = error.message if isinstance(error, TidegateError) else str(error)
            with self._lock:
                if message != self._trouble:
                    self.number += 1
                    self._event("error", "", message)
                self._trouble = message
            return
        with self._lock:
            self._trouble = None
            self.number += 1
            self.streams = [stream_json(status) for status in statuses]
            self.samples.append({"number": self.number, **_sample(self.clock(), statuses)})
            for status in statuses:
                self._news(status)
            for times in epochs:
                if times.epoch > self._last.get(times.pipeline, -1):
                    self._last[times.pipeline] = times.epoch
                    self.epochs.append({"number": self.number, **epoch_json(times)})

    def _news(self, status: StreamStatus) -> None:
        """A stream that changed its state or its error is an event."""
        now = (status.state.value, status.error)
        before = self._told.get(status.name)
        self._told[status.name] = now
        if now == before:
            return
        if status.error is not None:
            self._event("error", status.name, status.error)
        elif before is not None and before[1] is not None:
            self._event("info", status.name, "goes on")
        elif self.shown.live:
            self._event("info", status.name, status.state.value)

    def _event(self, level: str, stream: str, text: str) -> None:
        item = {"number": self.number, "time": self.clock(), "level": level}
        self.events.append({**item, "stream": stream, "text": text})

    def say(self, level: str, text: str) -> None:
        """Something that was done here."""
        with self._lock:
            self.number += 1
            self._event(level, "", text)

    def since(self, number: int) -> Seen:
        """The streams as they are, and what else is newer than a number."""
        with self._lock:
            return {
                "number": self.number,
                "streams": self.streams,
                "samples": [item for item in self.samples if item["number"] > number],
                "epochs": [item for item in self.epochs if item["number"] > number],
                "events": [item for item in self.events if item["number"] > number],
            }


def _sample(now: float, statuses: tuple[StreamStatus, ...]) -> Seen:
    return {
        "time": now,
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


def stream_json(status: StreamStatus) -> Seen:
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
        "behind": status.behind,
        "lost": status.lost,
        "error": status.error,
        "operators": [_operator_json(operator) for operator in status.operators],
    }


def _operator_json(operator: OperatorStatus) -> Seen:
    return {
        "name": operator.name,
        "watermark": operator.watermark.isoformat() if operator.watermark is not None else None,
        "bytes": operator.bytes,
        "rows": operator.rows,
        "groups": operator.groups,
        "late_rows": operator.late_rows,
        "open_windows": operator.open_windows,
    }


def epoch_json(times: EpochTimes) -> Seen:
    return {
        "pipeline": times.pipeline,
        "epoch": times.epoch,
        "began": times.began,
        "seconds": times.seconds if times.steps else None,
        "steps": [{"step": step, "seconds": seconds} for step, seconds in times.steps],
        "rows_in": times.rows_in,
        "rows_out": times.rows_out,
    }
