"""What an epoch is made of: the ranges of the sources, the end of input, a moment of the clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.catalog.objects import Sink
from tidegate.checkpoint.manifest import Manifest, OperatorState, SinkState, StreamState
from tidegate.connectors.base import InputRange, SourceConnector, Split
from tidegate.runtime.reconciliation import PipelineStream, late_offsets, rows_so_far
from tidegate.spark.tasks.protocol import EpochSpec

# A stream and a source, in lower case.
InputKey = tuple[str, str]
# Up to here an epoch is small, as long as little state is touched.
_SMALL_BYTES = 512 << 10
_SMALL_ROWS = 20_000
_SMALL_STATE_BYTES = 16 << 20
# From here on it is large.
_LARGE_BYTES = 16 << 20
_LARGE_ROWS = 500_000


@dataclass(frozen=True)
class Epoch:
    """What was cut for an epoch: by stream and source; sources without news are not there."""

    ranges: Mapping[InputKey, InputRange]
    ends: bool
    more: bool
    # How many tasks it was cut for: workers may come and go while it runs.
    tasks: int = 1
    # Streams, each with a source, by how far they are in it: they read the same, if anything.
    alike: tuple[tuple[InputKey, ...], ...] = ()

    @property
    def large(self) -> bool:
        """Whether it is worth a shuffle that Spark adds up rows first."""
        return any(
            input_range.size > _LARGE_BYTES or (input_range.rows or 0) > _LARGE_ROWS
            for input_range in self.ranges.values()
        )

    @property
    def small(self) -> bool:
        """Whether one task is enough: every other one costs more than it helps."""
        return all(
            input_range.size <= _SMALL_BYTES and (input_range.rows or 0) <= _SMALL_ROWS
            for input_range in self.ranges.values()
        )

    @property
    def partitions(self) -> dict[str, int]:
        """How many there are of each source whose partitions have watermarks of their own."""
        return {
            f"{stream}/{source}": input_range.partitions
            for (stream, source), input_range in self.ranges.items()
            if input_range.partitions is not None
        }

    def cuts_of(self, stream: str) -> dict[str, InputRange]:
        """Those of one stream, by source."""
        return {
            source: input_range
            for (owner, source), input_range in self.ranges.items()
            if owner == stream
        }

    @property
    def native(self) -> dict[InputKey, InputRange]:
        """What Spark's own readers read."""
        return {
            key: input_range
            for key, input_range in self.ranges.items()
            if input_range.native is not None
        }


def next_epoch(
    members: Iterable[PipelineStream],
    manifest: Manifest,
    sources: Mapping[str, SourceConnector],
    tasks: int,
    until_end: bool,
) -> Epoch:
    """The next range of every stream and source that has one; those equally far read the same."""
    alike = _equally_far(members, manifest)
    ranges: dict[InputKey, InputRange] = {}
    for group in alike:
        stream, source = group[0]
        input_range = sources[source].plan_range(
            manifest.streams[stream].offsets.get(source), tasks
        )
        if input_range is not None:
            ranges |= dict.fromkeys(group, input_range)
    more = any(input_range.more for input_range in ranges.values())
    return Epoch(ranges, until_end and not more, more, tasks, alike)


def _equally_far(
    members: Iterable[PipelineStream], manifest: Manifest
) -> tuple[tuple[InputKey, ...], ...]:
    """Streams, each with a source, by how far they are in it."""
    groups: dict[str, list[InputKey]] = {}
    for member in members:
        offsets = manifest.streams[member.key].offsets
        for source in member.sources:
            since = json.dumps([source, offsets.get(source)], sort_keys=True)
            groups.setdefault(since, []).append((member.key, source))
    return tuple(tuple(group) for group in groups.values())


def has_little_state(manifest: Manifest) -> bool:
    """Whether one task can step all key groups in no time."""
    kept = sum(int(o.report.get("bytes") or 0) for o in manifest.operators.values())
    return kept <= _SMALL_STATE_BYTES


def has_open_ends(members: Iterable[PipelineStream], manifest: Manifest) -> bool:
    """Whether a stream has operators that were not told of the end yet."""
    return any(m.plan.operators and not manifest.streams[m.key].ended for m in members)


def wake_us(members: Mapping[str, PipelineStream], manifest: Manifest) -> int | None:
    """The next moment of the clock that an operator has asked for."""
    operators = (o for o in manifest.operators.values() if o.stream in members)
    asked = [operator.report.get("wake_us") for operator in operators]
    return min((us for us in asked if us is not None), default=None)


# ---- What the tasks of an epoch are told, made of its cuts and of the last manifest.


def build_epoch_spec(
    manifest: Manifest, epoch: Epoch, number: int, now_us: int, tasks: int
) -> EpochSpec:
    """The order of an epoch, which is run by so many tasks."""
    return EpochSpec(
        manifest.generation,
        number,
        now_us,
        epoch.ends,
        {
            f"{stream}/{source}": _shared_out(input_range.splits, tasks)
            for (stream, source), input_range in epoch.ranges.items()
        },
        {key: operator.state_handles for key, operator in manifest.operators.items()},
        partitions=epoch.partitions,
    )


def _shared_out(splits: list[Split], tasks: int) -> list[Split]:
    """What tasks read; one task reads all."""
    return splits if tasks > 1 else [[part for split in splits for part in split]]


# ---- What the tasks of an epoch have told the driver, sorted out.

# Numbers of key groups that add up; of the others the largest counts.
_SUMMED = ("late_rows", "groups", "rows", "bytes", "unknown")


@dataclass
class StreamReport:
    """What a stream has counted in an epoch."""

    rows_in: int = 0
    rows_out: int = 0
    malformed: int = 0
    # Rows on which an expression failed.
    failed: int = 0
    event_times_us: dict[str, int] = field(default_factory=dict)


@dataclass
class EpochReport:
    """All notes of an epoch."""

    streams: dict[str, StreamReport] = field(default_factory=dict)
    state_handles: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    files: dict[str, set[str]] = field(default_factory=dict)
    # The bytes of the state files that were written in this epoch.
    sizes: dict[str, int] = field(default_factory=dict)
    reports: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    committables: dict[str, list[Any]] = field(default_factory=dict)
    # By operator: how many groups Spark has made of how many rows.
    shrunk: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, items: Iterable[bytes]) -> EpochReport:
        reports = cls()
        for item in items:
            reports._add(json.loads(item))
        return reports

    def stream(self, name: str) -> StreamReport:
        return self.streams.setdefault(name.lower(), StreamReport())

    def rows(self) -> tuple[int, int]:
        """The rows that went into all streams and came out of them."""
        told = self.streams.values()
        return sum(item.rows_in for item in told), sum(item.rows_out for item in told)

    def _add(self, report: dict[str, Any]) -> None:
        if "operators" in report:
            for key in report["operators"]:
                self._add_operator(key, report)
        elif "shrunk" in report:
            groups, rows = self.shrunk.get(report["shrunk"], (0, 0))
            self.shrunk[report["shrunk"]] = groups + report["groups"], rows + report["rows"]
        elif "sink" in report:
            self.committables.setdefault(report["sink"], []).extend(report["committables"])
        else:
            for name in report["streams"]:
                self._add_counts(self.stream(name), report)

    def _add_counts(self, stream: StreamReport, report: dict[str, Any]) -> None:
        stream.rows_in += report.get("rows", 0)
        stream.rows_out += report.get("out", 0)
        stream.malformed += report.get("malformed", 0)
        stream.failed += report.get("failed", 0)
        for origin, mark in report.get("event_times_us", {}).items():
            stream.event_times_us[origin] = max(mark, stream.event_times_us.get(origin, mark))

    def _add_operator(self, key: str, report: dict[str, Any]) -> None:
        handle = report["handle"]
        self.state_handles.setdefault(key, {})[str(report["key_group"])] = handle
        self.files.setdefault(key, set()).update([handle[0], *report["files"]])
        self.sizes[handle[0]] = report["size"]
        self.reports.setdefault(key, []).append(report["report"])

    def operator(self, key: str, before: OperatorState) -> OperatorState:
        """An operator after the epoch; one that told nothing is as it was."""
        if key not in self.state_handles:
            return before
        # Every key group steps in every epoch, so these are all of them.
        return OperatorState(
            before.stream,
            before.name,
            before.fingerprint,
            self.state_handles[key],
            {file: self._size(file, before) for file in sorted(self.files[key])},
            _added_up(self.reports[key]),
        )

    def _size(self, file: str, before: OperatorState) -> int:
        return self.sizes[file] if file in self.sizes else before.files[file]


def _added_up(reports: list[dict[str, Any]]) -> dict[str, Any]:
    names = {name for report in reports for name in report} - {"operator", "watermark_us"}
    total: dict[str, Any] = {}
    for name in sorted(names):
        values = [int(report.get(name) or 0) for report in reports]
        total[name] = sum(values) if name in _SUMMED else max(values)
    marks = [r["watermark_us"] for r in reports if r.get("watermark_us") is not None]
    total["watermark_us"] = min(marks) if marks else None
    wakes = [r["wake_us"] for r in reports if r.get("wake_us") is not None]
    total["wake_us"] = min(wakes) if wakes else None
    return total


# ---- The decision of an epoch: what its manifest says.


def decision(
    before: Manifest,
    members: Iterable[PipelineStream],
    sinks: Mapping[str, tuple[PipelineStream, Sink]],
    epoch: Epoch,
    epoch_spec: EpochSpec,
    reports: EpochReport,
) -> Manifest:
    """The manifest after an epoch."""
    streams = dict(before.streams)
    operators = {k: reports.operator(k, o) for k, o in before.operators.items()}
    for member in members:
        own = {
            source: input_range
            for (key, source), input_range in epoch.ranges.items()
            if key == member.key
        }
        stream = _stream(streams[member.key], member, own, epoch.ends, reports)
        late = late_offsets(member, operators.values())
        streams[member.key] = replace(stream, offsets={**stream.offsets, **late})
    after = replace(
        before,
        epoch=epoch_spec.epoch,
        now_us=epoch_spec.now_us,
        streams=streams,
        operators=operators,
    )
    return replace(after, sinks=_sinks(after, sinks, reports))


def _stream(
    stream: StreamState,
    member: PipelineStream,
    own: Mapping[str, InputRange],
    ends: bool,
    reports: EpochReport,
) -> StreamState:
    told = reports.stream(member.name)
    told.rows_in += sum(input_range.rows or 0 for input_range in own.values())
    marks = {**stream.event_times_us}
    for origin, mark in told.event_times_us.items():
        marks[origin] = max(mark, marks.get(origin, mark))
    return replace(
        stream,
        offsets={
            **stream.offsets,
            **{name: input_range.offset for name, input_range in own.items()},
        },
        event_times_us=marks,
        ended=stream.ended or (ends and bool(member.plan.operators)),
        rows_in=stream.rows_in + told.rows_in,
        rows_out=stream.rows_out + told.rows_out,
        dead_letters=stream.dead_letters + told.malformed + told.failed,
        failed_rows=stream.failed_rows + told.failed,
    )


def _sinks(
    now: Manifest, sinks: Mapping[str, tuple[PipelineStream, Sink]], reports: EpochReport
) -> dict[str, SinkState]:
    """Sinks that take no part now may still have to finish an older epoch when they are back."""
    found = dict(now.sinks)
    for name, (member, sink) in sinks.items():
        committables = reports.committables.get(name, [])
        rows = rows_so_far(now, member, sink)
        state = SinkState(member.key, sink.connector, now.epoch, committables, now.generation, rows)
        found[name] = state.following(now.sinks.get(name))
    return found
