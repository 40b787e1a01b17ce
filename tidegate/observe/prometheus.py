"""What streams and pipelines tell, as the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tidegate.observe.status import OperatorStatus, State, StreamStatus
from tidegate.observe.timeline import BUCKETS, EpochSums

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]
# A value that is None is not known, and not told.
Sample = tuple[Labels, float | None]


@dataclass(frozen=True)
class Metric:
    """A metric of streams: its name, kind and meaning, and how it is read off."""

    name: str
    kind: str
    help: str
    read: Callable[[StreamStatus], float | None]


_STREAMS = (
    Metric("rows_in_total", "counter", "Rows read.", lambda s: s.rows_in),
    Metric("rows_out_total", "counter", "Rows given to sinks.", lambda s: s.rows_out),
    Metric("late_rows_total", "counter", "Rows that came too late.", lambda s: s.late_rows),
    Metric("dead_letters_total", "counter", "Records that are no rows.", lambda s: s.dead_letters),
    Metric(
        "lost_records_total", "counter", "Records gone before they were read.", lambda s: s.lost
    ),
    Metric(
        "behind_records",
        "gauge",
        "Records that sources have and that were not read when the last epoch began.",
        lambda s: s.behind,
    ),
    Metric(
        "watermark_timestamp_seconds",
        "gauge",
        "The watermark, in seconds since 1970.",
        lambda s: s.watermark.timestamp() if s.watermark is not None else None,
    ),
    Metric(
        "watermark_lag_seconds",
        "gauge",
        "How far the watermark is behind the clock.",
        lambda s: s.watermark_lag_seconds,
    ),
    Metric("open_windows", "gauge", "Windows that are open.", lambda s: s.open_windows),
    Metric("last_epoch", "gauge", "The number of the last epoch.", lambda s: s.epoch),
    Metric(
        "last_epoch_seconds",
        "gauge",
        "How long the last epoch took from its order to its commit.",
        lambda s: s.epoch_seconds,
    ),
    Metric(
        "stream_error",
        "gauge",
        "1 if the stream has failed or waits for another system, else 0.",
        lambda s: s.error is not None,
    ),
)

_OPERATORS: tuple[tuple[str, str, Callable[[OperatorStatus], int]], ...] = (
    ("state_bytes", "Bytes that an operator keeps.", lambda o: o.bytes),
    ("state_rows", "Rows that an operator keeps.", lambda o: o.rows),
    ("state_groups", "Groups that an operator keeps.", lambda o: o.groups),
)


def prometheus_text(
    statuses: Sequence[StreamStatus], sums: Sequence[EpochSums], version: str
) -> str:
    """All metrics, in the text format of Prometheus."""
    lines = list(_metric("build_info", "gauge", "The version.", [((("version", version),), 1)]))
    lines += _metric("stream_state", "gauge", "1 for the state it is in.", _states(statuses))
    for item in _STREAMS:
        samples = [((("stream", s.name),), item.read(s)) for s in statuses]
        lines += _metric(item.name, item.kind, item.help, samples)
    for name, help_text, read in _OPERATORS:
        lines += _metric(name, "gauge", help_text, _by_operator(statuses, read))
    lines += _epochs(sums)
    return "\n".join(lines) + "\n"


def _states(statuses: Iterable[StreamStatus]) -> list[Sample]:
    return [
        ((("stream", s.name), ("state", state.value)), s.state is state)
        for s in statuses
        for state in State
    ]


def _by_operator(
    statuses: Iterable[StreamStatus], read: Callable[[OperatorStatus], int]
) -> list[Sample]:
    """Operators of one name in one stream are one series: two would be refused."""
    found: dict[Labels, float | None] = {}
    for status in statuses:
        for operator in status.operators:
            labels = (("stream", status.name), ("operator", operator.name))
            found[labels] = (found.get(labels) or 0) + read(operator)
    return list(found.items())


def _epochs(sums: Sequence[EpochSums]) -> Iterator[str]:
    last = [((("pipeline", item.pipeline),), item.last_began) for item in sums]
    yield from _metric("last_epoch_timestamp_seconds", "gauge", "When it was begun.", last)
    steps: list[Sample] = [
        ((("pipeline", item.pipeline), ("step", step)), seconds)
        for item in sums
        for step, seconds in item.steps
    ]
    yield from _metric("epoch_step_seconds_total", "counter", "Time in steps of epochs.", steps)
    if sums:
        yield from _head("epoch_seconds", "histogram", "How long epochs took.")
    for item in sums:
        pipeline = ("pipeline", item.pipeline)
        for bound, count in zip(BUCKETS, item.buckets, strict=True):
            yield _line("epoch_seconds_bucket", (pipeline, ("le", str(bound))), count)
        yield _line("epoch_seconds_bucket", (pipeline, ("le", "+Inf")), item.epochs)
        yield _line("epoch_seconds_sum", (pipeline,), item.seconds)
        yield _line("epoch_seconds_count", (pipeline,), item.epochs)


def _metric(name: str, kind: str, help_text: str, samples: Sequence[Sample]) -> Iterator[str]:
    known = [(labels, value) for labels, value in samples if value is not None]
    if known:
        yield from _head(name, kind, help_text)
    for labels, value in known:
        yield _line(name, labels, value)


def _head(name: str, kind: str, help_text: str) -> Iterator[str]:
    yield f"# HELP tidegate_{name} {help_text}"
    yield f"# TYPE tidegate_{name} {kind}"


def _line(name: str, labels: Labels, value: float) -> str:
    listed = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    number = int(value) if isinstance(value, bool) else value
    return f"tidegate_{name}{{{listed}}} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
