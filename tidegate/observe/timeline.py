"""Durations of a pipeline's recent epochs, step by step, kept in memory."""

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

# Only the last epochs are kept; totals include all epochs since the start.
RETAINED_EPOCHS = 512
# Upper bounds of the histogram of epoch durations, in seconds.
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True)
class EpochDurations:
    """Durations of a committed epoch; `steps` is in the order of execution."""

    pipeline: str
    epoch: int
    # Unix time at which planning started.
    started_at: float
    steps: tuple[tuple[str, float], ...] = ()
    rows_in: int = 0
    rows_out: int = 0

    @property
    def seconds(self) -> float:
        """The total duration."""
        return sum(seconds for _, seconds in self.steps)


@dataclass(frozen=True)
class EpochTotals:
    """Totals over all epochs of a pipeline since it was started."""

    pipeline: str
    epochs: int = 0
    # Unix time at which the last epoch started.
    last_started_at: float | None = None
    steps: tuple[tuple[str, float], ...] = ()
    # Per upper bound in BUCKETS, the number of epochs that took at most as long.
    buckets: tuple[int, ...] = (0,) * len(BUCKETS)

    @property
    def seconds(self) -> float:
        """The total duration."""
        return sum(seconds for _, seconds in self.steps)


Listener = Callable[[EpochDurations], None]


@dataclass
class Timeline:
    """Recent epochs of one pipeline.

    The pipeline's thread calls `begin`, `end_step` and `end`. Other threads may call `epochs` and
    `totals` at any time.
    """

    pipeline: str
    listener: Listener | None = None
    clock: Callable[[], float] = time.monotonic
    _started_at: float = 0.0
    _step_started_s: float = 0.0
    _steps: list[tuple[str, float]] = field(default_factory=list)
    _epochs: deque[EpochDurations] = field(default_factory=lambda: deque(maxlen=RETAINED_EPOCHS))
    _totals: EpochTotals | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """Start to measure an epoch. Discards an epoch that was begun and not ended."""
        self._started_at, self._step_started_s, self._steps = time.time(), self.clock(), []

    def end_step(self, step: str) -> float:
        """Record the end of a step and return its duration in seconds."""
        now_s = self.clock()
        seconds, self._step_started_s = now_s - self._step_started_s, now_s
        self._steps.append((step, seconds))
        return seconds

    def end(self, epoch: int, rows_in: int, rows_out: int) -> None:
        """Add the epoch that has just been committed, and notify the listener."""
        steps = tuple(self._steps)
        durations = EpochDurations(self.pipeline, epoch, self._started_at, steps, rows_in, rows_out)
        with self._lock:
            self._epochs.append(durations)
            self._totals = _add(self._totals or EpochTotals(self.pipeline), durations)
        if self.listener is not None:
            # An error in monitoring must not stop the pipeline.
            with suppress(Exception):
                self.listener(durations)

    def epochs(self) -> list[EpochDurations]:
        """Return the retained epochs, oldest first."""
        with self._lock:
            return list(self._epochs)

    def totals(self) -> EpochTotals:
        """Return the totals since the start."""
        with self._lock:
            return self._totals or EpochTotals(self.pipeline)


def _add(totals: EpochTotals, epoch: EpochDurations) -> EpochTotals:
    steps = dict(totals.steps)
    for step, seconds in epoch.steps:
        steps[step] = steps.get(step, 0.0) + seconds
    first_bucket = bisect_left(BUCKETS, epoch.seconds)
    buckets = (count + (index >= first_bucket) for index, count in enumerate(totals.buckets))
    return EpochTotals(
        totals.pipeline, totals.epochs + 1, epoch.started_at, tuple(steps.items()), tuple(buckets)
    )


# ---- OpenTelemetry spans. Without OpenTelemetry or a tracer provider, none are created.


def span_listener() -> Listener | None:
    """Return a listener that exports epochs as spans, or None if OpenTelemetry is not installed."""
    return export_spans if find_spec("opentelemetry") is not None else None


def export_spans(durations: EpochDurations, provider: TracerProvider | None = None) -> None:
    """Create a span for the epoch with a child span for each step.

    Uses the tracer provider of the process unless `provider` is given.
    """
    from opentelemetry import trace

    tracer = trace.get_tracer("tidegate", tracer_provider=provider)
    time_ns = _nanoseconds(durations.started_at)
    attributes: dict[str, str | int] = {
        "tidegate.pipeline": durations.pipeline,
        "tidegate.epoch": durations.epoch,
        "tidegate.rows_in": durations.rows_in,
        "tidegate.rows_out": durations.rows_out,
    }
    epoch_span = tracer.start_span("epoch", start_time=time_ns, attributes=attributes)
    context = trace.set_span_in_context(epoch_span)
    for step, seconds in durations.steps:
        step_span = tracer.start_span(step, context=context, start_time=time_ns)
        time_ns += _nanoseconds(seconds)
        step_span.end(end_time=time_ns)
    epoch_span.end(end_time=time_ns)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
