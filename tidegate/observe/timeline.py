"""The last epochs of a pipeline and how long each of their steps took, kept in memory."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

# So many epochs are remembered; sums go on for ever.
KEPT = 512
# Upper bounds of the classes into which the lengths of epochs are counted, in seconds.
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True)
class EpochTimes:
    """An epoch that was committed; steps are in the order in which they were done."""

    pipeline: str
    epoch: int
    # Seconds since 1970 when it was begun to be cut.
    began: float
    steps: tuple[tuple[str, float], ...] = ()
    rows_in: int = 0
    rows_out: int = 0

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.steps)


@dataclass(frozen=True)
class EpochSums:
    """All epochs of a pipeline since it was started."""

    pipeline: str
    epochs: int = 0
    # When the last of them began.
    last_began: float | None = None
    steps: tuple[tuple[str, float], ...] = ()
    # How many took at most as long as each of BUCKETS.
    buckets: tuple[int, ...] = (0,) * len(BUCKETS)

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.steps)


Listener = Callable[[EpochTimes], None]


@dataclass
class Timeline:
    """Told by the loop what it has done; read by whoever looks."""

    pipeline: str
    listener: Listener | None = None
    clock: Callable[[], float] = time.monotonic
    _began: float = 0.0
    _lap_began: float = 0.0
    _laps: list[tuple[str, float]] = field(default_factory=list)
    _epochs: deque[EpochTimes] = field(default_factory=lambda: deque(maxlen=KEPT))
    _sums: EpochSums | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """Something may become an epoch; what was begun before and not ended never was one."""
        self._began, self._lap_began, self._laps = time.time(), self.clock(), []

    def lap(self, step: str) -> float:
        """A step is done; returns the seconds since the one before."""
        now = self.clock()
        seconds, self._lap_began = now - self._lap_began, now
        self._laps.append((step, seconds))
        return seconds

    def end(self, epoch: int, rows_in: int, rows_out: int) -> None:
        """The epoch is committed."""
        times = EpochTimes(self.pipeline, epoch, self._began, tuple(self._laps), rows_in, rows_out)
        with self._lock:
            self._epochs.append(times)
            self._sums = _added(self._sums or EpochSums(self.pipeline), times)
        if self.listener is not None:
            # Who only watches cannot stop a pipeline.
            with suppress(Exception):
                self.listener(times)

    def epochs(self) -> list[EpochTimes]:
        """The last epochs, oldest first."""
        with self._lock:
            return list(self._epochs)

    def sums(self) -> EpochSums:
        with self._lock:
            return self._sums or EpochSums(self.pipeline)


def _added(sums: EpochSums, times: EpochTimes) -> EpochSums:
    steps = dict(sums.steps)
    for step, seconds in times.steps:
        steps[step] = steps.get(step, 0.0) + seconds
    first = bisect_left(BUCKETS, times.seconds)
    buckets = (count + (place >= first) for place, count in enumerate(sums.buckets))
    return EpochSums(
        sums.pipeline, sums.epochs + 1, times.began, tuple(steps.items()), tuple(buckets)
    )


# ---- Epochs as spans of OpenTelemetry, where its library is installed.
#
# Without it, or if nobody has set up where spans go, nothing happens.


def span_listener() -> Listener | None:
    """What tells OpenTelemetry of epochs; None where it is not installed."""
    return emit if find_spec("opentelemetry") is not None else None


def emit(times: EpochTimes, provider: TracerProvider | None = None) -> None:
    """One span for the epoch, and one below it for each step; to the provider of the process."""
    from opentelemetry import trace

    tracer = trace.get_tracer("tidegate", tracer_provider=provider)
    at = _ns(times.began)
    attributes: dict[str, str | int] = {
        "tidegate.pipeline": times.pipeline,
        "tidegate.epoch": times.epoch,
        "tidegate.rows_in": times.rows_in,
        "tidegate.rows_out": times.rows_out,
    }
    epoch = tracer.start_span("epoch", start_time=at, attributes=attributes)
    below = trace.set_span_in_context(epoch)
    for step, seconds in times.steps:
        span = tracer.start_span(step, context=below, start_time=at)
        at += _ns(seconds)
        span.end(end_time=at)
    epoch.end(end_time=at)


def _ns(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
