"""Metrics of streams, operators and pipelines for Prometheus.

The values are read from status snapshots when Prometheus scrapes; the engine updates no metric
objects while it runs. `prometheus_client` formats them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tidegate.observe.status import OperatorStatus, State, StreamStatus
from tidegate.observe.timeline import BUCKETS, EpochTotals

Family = CounterMetricFamily | GaugeMetricFamily
# Label values and a value, which is None if it is unknown.
Sample = tuple[list[str], float | None]

_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily


@dataclass(frozen=True)
class StreamMetric:
    """A metric with one value per stream. `read` returns None if the value is unknown."""

    family: type[Family]
    name: str
    help: str
    read: Callable[[StreamStatus], float | None]


@dataclass(frozen=True)
class OperatorMetric:
    """A gauge with one value per operator of a stream."""

    name: str
    help: str
    read: Callable[[OperatorStatus], int]


STREAM_METRICS = (
    StreamMetric(_COUNTER, "rows_in", "Rows read.", lambda s: s.rows_in),
    StreamMetric(_COUNTER, "rows_out", "Rows emitted to sinks.", lambda s: s.rows_out),
    StreamMetric(_COUNTER, "late_rows", "Rows behind the watermark.", lambda s: s.late_rows),
    StreamMetric(
        _COUNTER,
        "dead_letters",
        "Malformed records, and rows on which an expression failed.",
        lambda s: s.dead_letters,
    ),
    StreamMetric(
        _COUNTER,
        "lost_records",
        "Records deleted before they were read.",
        lambda s: s.lost_records,
    ),
    StreamMetric(
        _GAUGE,
        "behind_records",
        "Available records that did not fit into the last epoch.",
        lambda s: s.pending_records,
    ),
    StreamMetric(
        _GAUGE,
        "watermark_timestamp_seconds",
        "The watermark as Unix time.",
        lambda s: s.watermark.timestamp() if s.watermark is not None else None,
    ),
    StreamMetric(
        _GAUGE,
        "watermark_lag_seconds",
        "How far the watermark is behind the clock.",
        lambda s: s.watermark_lag_seconds,
    ),
    StreamMetric(_GAUGE, "open_windows", "Open windows.", lambda s: s.open_windows),
    StreamMetric(_GAUGE, "last_epoch", "Number of the last epoch.", lambda s: s.epoch),
    StreamMetric(
        _GAUGE,
        "last_epoch_seconds",
        "Duration of the last epoch, without planning its range.",
        lambda s: s.epoch_seconds,
    ),
    StreamMetric(
        _GAUGE,
        "stream_error",
        "1 if the stream has failed or is waiting for another system, else 0.",
        lambda s: s.error is not None,
    ),
)

OPERATOR_METRICS = (
    OperatorMetric("state_bytes", "Size of the operator state.", lambda o: o.bytes),
    OperatorMetric("state_rows", "Rows in the operator state.", lambda o: o.rows),
    OperatorMetric("state_groups", "Groups in the operator state.", lambda o: o.groups),
)


@dataclass(frozen=True)
class StatusCollector(Collector):
    """Turns a snapshot of statuses into metric families."""

    statuses: Sequence[StreamStatus]
    totals: Sequence[EpochTotals]
    version: str

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have at least one sample."""
        return (family for family in self._families() if family.samples)

    def _families(self) -> Iterator[Metric]:
        yield _family(
            _GAUGE, "build_info", "Version of Tidegate.", ["version"], [([self.version], 1)]
        )
        states: list[Sample] = [
            ([status.name, state.value], status.state is state)
            for status in self.statuses
            for state in State
        ]
        labels = ["stream", "state"]
        yield _family(
            _GAUGE,
            "stream_state",
            "1 for the current state of the stream, 0 for the others.",
            labels,
            states,
        )
        for metric in STREAM_METRICS:
            values: list[Sample] = [([s.name], metric.read(s)) for s in self.statuses]
            yield _family(metric.family, metric.name, metric.help, ["stream"], values)
        labels = ["stream", "operator"]
        for gauge in OPERATOR_METRICS:
            sums = _sum_by_operator(self.statuses, gauge.read)
            yield _family(_GAUGE, gauge.name, gauge.help, labels, sums)
        yield from self._epoch_families()

    def _epoch_families(self) -> Iterator[Metric]:
        last: list[Sample] = [([item.pipeline], item.last_started_at) for item in self.totals]
        name, help_text = "last_epoch_timestamp_seconds", "Start of the last epoch as Unix time."
        yield _family(_GAUGE, name, help_text, ["pipeline"], last)
        steps: list[Sample] = [
            ([item.pipeline, step], seconds) for item in self.totals for step, seconds in item.steps
        ]
        name, help_text = "epoch_step_seconds", "Time spent in each step of epochs."
        yield _family(_COUNTER, name, help_text, ["pipeline", "step"], steps)
        durations = HistogramMetricFamily(
            "tidegate_epoch_seconds", "Duration of epochs.", labels=["pipeline"]
        )
        for item in self.totals:
            buckets = [(str(bound), n) for bound, n in zip(BUCKETS, item.buckets, strict=True)]
            durations.add_metric([item.pipeline], [*buckets, ("+Inf", item.epochs)], item.seconds)
        yield durations


def _family(
    family: type[Family], name: str, help_text: str, labels: list[str], samples: Iterable[Sample]
) -> Family:
    """Create a family with the samples whose value is known."""
    created = family(f"tidegate_{name}", help_text, labels=labels)
    for label_values, value in samples:
        if value is not None:
            created.add_metric(label_values, value)
    return created


def _sum_by_operator(
    statuses: Iterable[StreamStatus], read: Callable[[OperatorStatus], int]
) -> Iterator[Sample]:
    """Add up the operators of a stream that have the same name.

    Prometheus rejects a scrape that contains a series twice.
    """
    for status in statuses:
        sums: dict[str, int] = {}
        for operator in status.operators:
            sums[operator.name] = sums.get(operator.name, 0) + read(operator)
        for name, value in sums.items():
            yield [status.name, name], value


def exposition(collector: StatusCollector, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics and their content type, in the format that the Accept header selects."""
    encode, content_type = choose_encoder(accept)
    return encode(collector), content_type
