"""Epochs as spans of OpenTelemetry, where its library is installed.

Without it, or if nobody has set up where spans go, nothing happens.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from tidegate.observe.timeline import EpochTimes, Listener

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


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
