"""One epoch: its input ranges, the epoch spec for its tasks, their reports, and its manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.catalog.objects import Sink
from tidegate.checkpoint.manifest import (
    Manifest,
    OperatorState,
    SinkState,
    StreamState,
)
from tidegate.connectors.base import InputRange, SourceConnector, Split
from tidegate.physical.job_graph import InputKey
from tidegate.runtime.planning import PipelineStream
from tidegate.runtime.reconciliation import emitted_rows, late_offsets
from tidegate.spark.tasks.protocol import EpochSpec

# ---- Planning

# A smaller epoch runs in one task if its operators have little state.
_SMALL_BYTES = 512 << 10
_SMALL_ROWS = 20_000
_SMALL_STATE_BYTES = 16 << 20
# In a larger epoch Spark pre-aggregates rows before the shuffle.
_LARGE_BYTES = 16 << 20
_LARGE_ROWS = 500_000


@dataclass(frozen=True)
class EpochPlan:
    """The plan of an epoch: input ranges by stream and source. Sources without data are omitted."""

    ranges: Mapping[InputKey, InputRange]
    reaches_end: bool
    # There is more input than the epoch reads.
    has_more: bool
    # The number of tasks that the ranges are split for. Executors may join or leave meanwhile.
    tasks: int = 1
    # Groups of inputs with the same source and offset: they read the same range, or none.
    shared_inputs: tuple[tuple[InputKey, ...], ...] = ()

    @property
    def is_large(self) -> bool:
        """Whether pre-aggregation by Spark is worth an additional shuffle."""
        return any(
            input_range.size > _LARGE_BYTES or (input_range.rows or 0) > _LARGE_ROWS
            for input_range in self.ranges.values()
        )

    @property
    def is_small(self) -> bool:
        """Whether one task is enough, because further tasks cost more than they save."""
        return all(
            input_range.size <= _SMALL_BYTES and (input_range.rows or 0) <= _SMALL_ROWS
            for input_range in self.ranges.values()
        )

    @property
    def partitions(self) -> dict[str, int]:
        """The number of partitions of each source with a watermark per partition."""
        return {
            f"{stream}/{source}": input_range.partitions
            for (stream, source), input_range in self.ranges.items()
            if input_range.partitions is not None
        }

    def ranges_of(self, stream: str) -> dict[str, InputRange]:
        """Return the input ranges of one stream, by source."""
        return {
            source: input_range
            for (key, source), input_range in self.ranges.items()
            if key == stream
        }

    @property
    def read_by_spark(self) -> dict[InputKey, InputRange]:
        """The input ranges that Spark's own readers read."""
        return {
            key: input_range
            for key, input_range in self.ranges.items()
            if input_range.spark_read is not None
        }


def plan_epoch(
    streams: Iterable[PipelineStream],
    manifest: Manifest,
    sources: Mapping[str, SourceConnector],
    tasks: int,
    until_end: bool,
) -> EpochPlan:
    """Plan the next input range of every stream and source. Equal offsets share one range."""
    shared_inputs = _group_by_offset(streams, manifest)
    ranges: dict[InputKey, InputRange] = {}
    for group in shared_inputs:
        stream, source = group[0]
        offset = manifest.streams[stream].offsets.get(source)
        input_range = sources[source].plan_range(offset, tasks)
        if input_range is not None:
            ranges |= dict.fromkeys(group, input_range)
    has_more = any(input_range.has_more for input_range in ranges.values())
    return EpochPlan(ranges, until_end and not has_more, has_more, tasks, shared_inputs)


def _group_by_offset(
    streams: Iterable[PipelineStream], manifest: Manifest
) -> tuple[tuple[InputKey, ...], ...]:
    groups: dict[str, list[InputKey]] = {}
    for stream in streams:
        offsets = manifest.streams[stream.key].offsets
        for source in stream.sources:
            start = json.dumps([source, offsets.get(source)], sort_keys=True)
            groups.setdefault(start, []).append((stream.key, source))
    return tuple(tuple(group) for group in groups.values())


def has_small_state(manifest: Manifest) -> bool:
    """Return whether one task can step all key groups quickly."""
    size = sum(int(o.report.get("bytes") or 0) for o in manifest.operators.values())
    return size <= _SMALL_STATE_BYTES


def has_unfinished_streams(streams: Iterable[PipelineStream], manifest: Manifest) -> bool:
    """Return whether a stream has operators that have not processed the end of input yet."""
    return any(s.plan.operators and not manifest.streams[s.key].ended for s in streams)


def next_timer_us(streams: Mapping[str, PipelineStream], manifest: Manifest) -> int | None:
    """Return the earliest processing-time timer of the operators of these streams."""
    operators = (o for o in manifest.operators.values() if o.stream in streams)
    timers = [operator.report.get("timer_us") for operator in operators]
    return min((us for us in timers if us is not None), default=None)


def build_epoch_spec(
    manifest: Manifest, epoch: EpochPlan, number: int, now_us: int, tasks: int
) -> EpochSpec:
    """Build the epoch spec for a job of `tasks` tasks; a single task reads all splits."""

    def splits_of(splits: list[Split]) -> list[Split]:
        return splits if tasks > 1 else [[part for split in splits for part in split]]

    # Inputs with the same range read the splits of the first one.
    followers = {key for group in epoch.shared_inputs for key in group[1:]}
    return EpochSpec(
        manifest.generation,
        number,
        now_us,
        epoch.reaches_end,
        {
            f"{stream}/{source}": splits_of(input_range.splits)
            for (stream, source), input_range in epoch.ranges.items()
            if (stream, source) not in followers
        },
        {key: operator.state_handles for key, operator in manifest.operators.items()},
        partitions=epoch.partitions,
    )


# ---- Task reports

# Counters of key groups that are added up. Of watermarks and timers the minimum counts, of all
# others the maximum.
_SUMMED = ("late_rows", "groups", "rows", "bytes", "unknown_retractions")


@dataclass
class StreamReport:
    """Counters of a stream in one epoch."""

    rows_in: int = 0
    rows_out: int = 0
    malformed: int = 0
    # Rows for which an expression failed.
    failed: int = 0
    # The largest event time per source partition.
    event_times_us: dict[str, int] = field(default_factory=dict)


@dataclass
class EpochReport:
    """All task reports of one epoch, combined."""

    streams: dict[str, StreamReport] = field(default_factory=dict)
    # By operator and key group.
    state_handles: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    files: dict[str, set[str]] = field(default_factory=dict)
    # The sizes of the state files that were written in this epoch.
    sizes: dict[str, int] = field(default_factory=dict)
    # By operator, one report per key group.
    operator_reports: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    committables: dict[str, list[Any]] = field(default_factory=dict)
    # By operator: how many groups Spark's pre-aggregation has made of how many rows.
    pre_aggregated: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def from_reports(cls, reports: Iterable[bytes]) -> EpochReport:
        """Combine the serialized reports of all tasks."""
        epoch_report = cls()
        for report in reports:
            epoch_report._add(json.loads(report))
        return epoch_report

    def stream(self, name: str) -> StreamReport:
        return self.streams.setdefault(name.lower(), StreamReport())

    def rows(self) -> tuple[int, int]:
        """Return the input and output rows of all streams."""
        reports = self.streams.values()
        return sum(item.rows_in for item in reports), sum(item.rows_out for item in reports)

    def _add(self, report: dict[str, Any]) -> None:
        if "operators" in report:
            for key in report["operators"]:
                self._add_operator(key, report)
        elif "pre_aggregated" in report:
            groups, rows = self.pre_aggregated.get(report["pre_aggregated"], (0, 0))
            total = groups + report["groups"], rows + report["rows"]
            self.pre_aggregated[report["pre_aggregated"]] = total
        elif "sink" in report:
            self.committables.setdefault(report["sink"], []).extend(report["committables"])
        else:
            for name in report["streams"]:
                self._add_counters(self.stream(name), report)

    def _add_counters(self, stream: StreamReport, report: dict[str, Any]) -> None:
        stream.rows_in += report.get("rows", 0)
        stream.rows_out += report.get("out", 0)
        stream.malformed += report.get("malformed", 0)
        stream.failed += report.get("failed", 0)
        _merge_event_times(stream.event_times_us, report.get("event_times_us", {}))

    def _add_operator(self, key: str, report: dict[str, Any]) -> None:
        handle = report["handle"]
        self.state_handles.setdefault(key, {})[str(report["key_group"])] = handle
        self.files.setdefault(key, set()).update([handle[0], *report["files"]])
        self.sizes[handle[0]] = report["size"]
        self.operator_reports.setdefault(key, []).append(report["report"])

    def operator(self, key: str, previous: OperatorState, key_groups: int) -> OperatorState:
        """Return the state of an operator after the epoch: the previous one if it did not run."""
        if key not in self.state_handles:
            return previous
        stepped = len(self.state_handles[key])
        if stepped != key_groups:
            # Its other key groups would lose their state.
            raise AssertionError(f"{stepped} of {key_groups} key groups of {key} have reported")
        return OperatorState(
            previous.stream,
            previous.name,
            previous.fingerprint,
            self.state_handles[key],
            {
                file: self.sizes[file] if file in self.sizes else previous.files[file]
                for file in sorted(self.files[key])
            },
            _combine_reports(self.operator_reports[key]),
        )


def _merge_event_times(event_times_us: dict[str, int], updates: Mapping[str, int]) -> None:
    """Raise the largest event times to those of `updates`."""
    for partition, time_us in updates.items():
        event_times_us[partition] = max(time_us, event_times_us.get(partition, time_us))


def _combine_reports(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine the reports of the key groups of an operator."""
    names = {name for report in reports for name in report} - {"operator", "watermark_us"}
    combined: dict[str, Any] = {}
    for name in sorted(names):
        values = [int(report.get(name) or 0) for report in reports]
        combined[name] = sum(values) if name in _SUMMED else max(values)
    for name in ("watermark_us", "timer_us"):
        times = [report[name] for report in reports if report.get(name) is not None]
        combined[name] = min(times) if times else None
    return combined


# ---- The manifest of the epoch


def build_manifest(
    previous: Manifest,
    streams: Iterable[PipelineStream],
    sinks: Mapping[str, tuple[PipelineStream, Sink]],
    epoch: EpochPlan,
    epoch_spec: EpochSpec,
    report: EpochReport,
) -> Manifest:
    """Build the manifest that commits an epoch."""
    stream_states = dict(previous.streams)
    operators = {
        k: report.operator(k, o, previous.key_groups) for k, o in previous.operators.items()
    }
    for stream in streams:
        ranges = epoch.ranges_of(stream.key)
        state = _stream_state(stream_states[stream.key], stream, ranges, epoch.reaches_end, report)
        late = late_offsets(stream, operators.values())
        stream_states[stream.key] = replace(state, offsets={**state.offsets, **late})
    manifest = replace(
        previous,
        epoch=epoch_spec.epoch,
        processing_time_us=epoch_spec.now_us,
        streams=stream_states,
        operators=operators,
    )
    return replace(manifest, sinks=_sink_states(manifest, sinks, report))


def _stream_state(
    state: StreamState,
    stream: PipelineStream,
    ranges: Mapping[str, InputRange],
    reaches_end: bool,
    epoch_report: EpochReport,
) -> StreamState:
    report = epoch_report.stream(stream.name)
    report.rows_in += sum(input_range.rows or 0 for input_range in ranges.values())
    event_times_us = {**state.event_times_us}
    _merge_event_times(event_times_us, report.event_times_us)
    offsets = {source: input_range.offset for source, input_range in ranges.items()}
    return replace(
        state,
        offsets={**state.offsets, **offsets},
        event_times_us=event_times_us,
        ended=state.ended or (reaches_end and bool(stream.plan.operators)),
        rows_in=state.rows_in + report.rows_in,
        rows_out=state.rows_out + report.rows_out,
        dead_letters=state.dead_letters + report.malformed + report.failed,
        failed_rows=state.failed_rows + report.failed,
    )


def _sink_states(
    manifest: Manifest, sinks: Mapping[str, tuple[PipelineStream, Sink]], report: EpochReport
) -> dict[str, SinkState]:
    """Return the states of all sinks. Detached sinks keep theirs to publish it when they return."""
    states = dict(manifest.sinks)
    for name, (stream, sink) in sinks.items():
        state = SinkState(
            stream.key,
            sink.connector,
            manifest.epoch,
            report.committables.get(name, []),
            manifest.generation,
            emitted_rows(manifest, stream, sink),
        )
        states[name] = state.with_last_epoch_of(manifest.sinks.get(name))
    return states
