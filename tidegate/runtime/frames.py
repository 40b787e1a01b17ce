"""Builds the DataFrames of a pipeline and caches them over epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidegate.catalog.objects import Sink, Source
from tidegate.checkpoint.manifest import Manifest
from tidegate.connectors.base import LookupConnector, ScanRequest, SinkConnector, SourceConnector
from tidegate.physical.planner import InputPlan, LeafPlan, OperatorPlan, ScanPlan
from tidegate.physical.stages import node_calls_udf, stage_calls_udf
from tidegate.plan import nodes as n
from tidegate.runtime.epoch import EpochPlan, EpochReport
from tidegate.runtime.planning import PipelineStream
from tidegate.spark.diagnostics import FailingRow, failing_row
from tidegate.spark.errors import JobFailed
from tidegate.spark.frame import (
    FrameContext,
    FramedSink,
    FramedStream,
    PipelineFrame,
    pipeline_frame,
    stored_columns,
)
from tidegate.spark.sharing import FIRST_SHARED, SharedOperator, SharedOperators
from tidegate.spark.tasks.protocol import EpochSpec, EpochSpecStore, InputKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ---- Equivalent operators of several streams
#
# Two operators can share one step if their canonical forms are equal, and everything that the
# canonical form omits: limits, time to live, `max_future`.


def is_shareable(plan: OperatorPlan) -> bool:
    """Return whether several streams can share an operator.

    Late rows belong to one stream. Lookups may return other results for each call, and functions of
    the user may differ although they have the same name.
    """
    if plan.operator.late is not None or node_calls_udf(plan.node):
        return False
    return all(_is_plain(input_plan) for input_plan in plan.ports)


def _is_plain(input_plan: InputPlan) -> bool:
    if stage_calls_udf(input_plan.port.node, {leaf.node for leaf in input_plan.leaves}):
        return False
    return all(
        is_shareable(leaf)
        if isinstance(leaf, OperatorPlan)
        else isinstance(leaf, ScanPlan) and isinstance(leaf.node, n.Scan)
        for leaf in input_plan.leaves
    )


def is_equivalent(one: OperatorPlan, other: OperatorPlan) -> bool:
    """Return whether two shareable operators emit the same rows for the same input."""
    if (one.canonical_form, *_settings(one)) != (other.canonical_form, *_settings(other)):
        return False
    ports = zip(one.ports, other.ports, strict=True)
    return one.operator == other.operator and all(_ports_alike(a, b) for a, b in ports)


def _settings(plan: OperatorPlan) -> tuple[object, ...]:
    return (
        plan.by_processing_time,
        plan.output_watermark_delay_us,
        plan.arrival,
        plan.has_processing_time,
        len(plan.ports),
    )


def _ports_alike(one: InputPlan, other: InputPlan) -> bool:
    times = [(o.idle_timeout_us, d) for o, (_, d) in zip(one.origins, one.delays, strict=True)]
    others = [(o.idle_timeout_us, d) for o, (_, d) in zip(other.origins, other.delays, strict=True)]
    if times != others or len(one.leaves) != len(other.leaves):
        return False
    return all(_leaves_alike(a, b) for a, b in zip(one.leaves, other.leaves, strict=True))


def _leaves_alike(one: LeafPlan, other: LeafPlan) -> bool:
    if isinstance(one, OperatorPlan) and isinstance(other, OperatorPlan):
        return is_equivalent(one, other)
    if not (isinstance(one, ScanPlan) and isinstance(other, ScanPlan)):
        return False
    if not (isinstance(one.node, n.Scan) and isinstance(other.node, n.Scan)):
        return False
    same = (one.arrival, one.has_processing_time) == (other.arrival, other.has_processing_time)
    return same and one.node.source == other.node.source


def walk_plans(plan: OperatorPlan) -> Iterator[LeafPlan]:
    """Yield a shareable operator and all plans that it reads, in a fixed order."""
    yield plan
    for input_plan in plan.ports:
        for leaf in input_plan.leaves:
            yield from walk_plans(leaf) if isinstance(leaf, OperatorPlan) else [leaf]


# ---- Operators that step once for several streams
#
# Every stream has its own plan, offsets and state handles, and could run alone. If streams have
# equivalent operators over the same sources, with equal offsets and equal state, the operator steps
# once: all streams get the same new state handles, so they share the next epoch, too.

# Equivalent operators, by stream and number.
SharedGroup = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Candidate:
    """An operator with the keys of itself and all operators that it reads, and their sources."""

    stream: str
    plan: OperatorPlan
    keys: tuple[str, ...]
    sources: tuple[str, ...]

    def is_compatible(self, other: _Candidate, epoch: EpochPlan, manifest: Manifest) -> bool:
        """Return whether both read the same input ranges in this epoch and have the same state."""
        ranges = (
            epoch.ranges.get((self.stream, name)) is epoch.ranges.get((other.stream, name))
            for name in self.sources
        )
        keys = zip(self.keys, other.keys, strict=True)
        operators = manifest.operators
        return all(ranges) and all(
            operators[a].state_handles == operators[b].state_handles for a, b in keys
        )


class OperatorSharing:
    """Groups of equivalent operators of some streams, determined once."""

    def __init__(self, streams: Iterable[PipelineStream]) -> None:
        self._equivalent: list[list[_Candidate]] = []
        for stream in streams:
            for candidate in _candidates(stream):
                self._add(candidate)

    def _add(self, candidate: _Candidate) -> None:
        for candidates in self._equivalent:
            if is_equivalent(candidates[0].plan, candidate.plan):
                candidates.append(candidate)
                return
        self._equivalent.append([candidate])

    def groups(self, epoch: EpochPlan, manifest: Manifest) -> tuple[SharedGroup, ...]:
        """Return the groups of operators that step together in an epoch."""
        groups: list[list[_Candidate]] = []
        for candidates in self._equivalent:
            groups += _group_compatible(candidates, epoch, manifest)
        return tuple(
            tuple((item.stream, item.plan.number) for item in group)
            for group in groups
            if len(group) > 1
        )


def _candidates(stream: PipelineStream) -> list[_Candidate]:
    """Return the operators of a stream that others could share."""
    if stream.plan.filters_failed_rows:
        return []
    keys = {number: key for number, (key, _) in stream.operators().items()}
    return [
        _Candidate(stream.key, plan, _keys(plan, keys), _sources(plan))
        for plan in stream.plan.operators
        if is_shareable(plan)
    ]


def _keys(plan: OperatorPlan, keys: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(keys[leaf.number] for leaf in walk_plans(plan) if isinstance(leaf, OperatorPlan))


def _sources(plan: OperatorPlan) -> tuple[str, ...]:
    scans = (leaf.node for leaf in walk_plans(plan) if isinstance(leaf, ScanPlan))
    return tuple(node.source.name.lower() for node in scans if isinstance(node, n.Scan))


def _group_compatible(
    candidates: Sequence[_Candidate], epoch: EpochPlan, manifest: Manifest
) -> list[list[_Candidate]]:
    groups: list[list[_Candidate]] = []
    for candidate in candidates if len(candidates) > 1 else ():
        for group in groups:
            if group[0].is_compatible(candidate, epoch, manifest):
                group.append(candidate)
                break
        else:
            groups.append([candidate])
    return groups


# What frames depend on: whether the epoch is large; its number of tasks; the inputs that Spark's
# own readers can read, and whether tasks can read them, too; inputs with equal offsets; operators
# that step once for several streams.
_FrameKey = tuple[
    bool,
    int,
    frozenset[tuple[InputKey, bool]],
    tuple[tuple[InputKey, ...], ...],
    tuple[SharedGroup, ...],
]
# Spark's pre-aggregation pays off if it reduces the rows at least by this factor.
_MIN_REDUCTION = 4


@dataclass
class FrameCache:
    """Builds and caches frames; small and large epochs have separate ones."""

    spark: SparkSession
    source_of: Callable[[ScanPlan], Source]
    epoch_spec_store: EpochSpecStore
    state_uri: str
    frames: dict[_FrameKey, PipelineFrame] = field(default_factory=dict)
    # Operators with almost as many groups as rows.
    not_reducing: set[str] = field(default_factory=set)
    # Whether tasks evaluate vectorized expressions, and decode records.
    vectors: bool = True
    decoding: bool = True
    _sharing: OperatorSharing | None = None

    def invalidate(self) -> None:
        """Drop all frames, because the streams changed."""
        self.frames.clear()
        self._sharing = None

    def shared_groups(
        self, streams: Sequence[PipelineStream], epoch: EpochPlan, manifest: Manifest
    ) -> tuple[SharedGroup, ...]:
        """Return the groups of operators that step together in an epoch."""
        if self._sharing is None:
            self._sharing = OperatorSharing(streams)
        return self._sharing.groups(epoch, manifest)

    def learn_reduction(self, reports: EpochReport) -> None:
        """Disable pre-aggregation for operators where it did not reduce the rows."""
        for key, (groups, rows) in reports.pre_aggregated.items():
            if groups * _MIN_REDUCTION > rows:
                self.not_reducing.add(key)
                self.frames = {key: frame for key, frame in self.frames.items() if not key[0]}

    def get_or_build(self, job: EpochJob, build: Callable[[], PipelineFrame]) -> PipelineFrame:
        """Return the frame of an epoch. It is cached unless Spark's own readers read the input."""
        epoch = job.epoch
        native = frozenset(
            (read, bool(input_range.splits)) for read, input_range in epoch.read_by_spark.items()
        )
        key = (epoch.is_large, job.tasks, native, epoch.shared_inputs, job.shared_groups)
        if key not in self.frames:
            frame = build()
            if frame.once:
                return frame
            self.frames[key] = frame
        return self.frames[key]

    def fall_back_to_spark(self, error: JobFailed) -> bool:
        """Return whether to run the job again because only Spark can decode or evaluate a value.

        From then on Spark decodes all records, or evaluates all expressions.
        """
        if error.by_records and self.vectors and self.decoding:
            self.decoding = False
        elif error.by_vectors and self.vectors:
            self.vectors = False
        else:
            return False
        self.frames.clear()
        return True

    def build(self, streams: Sequence[PipelineStream], job: EpochJob) -> PipelineFrame:
        framed = [_framed(stream, streams, job) for stream in streams]
        context = replace(self._context(job), shared_operators=_shared(streams, job.shared_groups))
        return pipeline_frame(context, framed)

    def failing_row(
        self, streams: Sequence[PipelineStream], job: EpochJob, failed: JobFailed
    ) -> FailingRow | None:
        """Return what failed in the last of these streams, which reads late rows of the others."""
        context = self._context(job)
        *others, last = (_framed(stream, streams, job) for stream in streams)
        if others:
            pipeline_frame(context, others)
        return failing_row(context, last, failed)

    def _context(self, job: EpochJob) -> FrameContext:
        epoch, manifest = job.epoch, job.manifest
        return FrameContext(
            self.spark,
            job.sources,
            job.lookups,
            self._read_request,
            self.epoch_spec_store,
            manifest.key_groups,
            job.tasks,
            self.state_uri,
            epoch.read_by_spark,
            job.epoch_spec.now_us,
            frozenset(manifest.operators) - self.not_reducing if epoch.is_large else frozenset(),
            self.vectors,
            large=epoch.is_large,
            alike=epoch.shared_inputs,
        )

    def _read_request(self, scan: ScanPlan) -> tuple[Source, ScanRequest]:
        source = self.source_of(scan)
        located = isinstance(scan.node, n.SideScan)
        names = {c.name for c in source.columns} if located else {f.name for f in scan.node.fields}
        decoding = self.vectors and self.decoding
        return source, ScanRequest(stored_columns(source, names), scan.arrival, located, decoding)


@dataclass(frozen=True)
class EpochJob:
    """What the job of an epoch reads and writes: open sources and sinks, ranges, state."""

    sources: Mapping[str, SourceConnector]
    lookups: Mapping[str, LookupConnector]
    sinks: Mapping[str, tuple[PipelineStream, Sink, SinkConnector]]
    epoch: EpochPlan
    epoch_spec: EpochSpec
    manifest: Manifest
    tasks: int
    # Groups of operators that step once for several streams.
    shared_groups: tuple[SharedGroup, ...] = ()


def _shared(streams: Sequence[PipelineStream], groups: Sequence[SharedGroup]) -> SharedOperators:
    """Return the shared operators by stream and number."""
    names = {stream.key: stream.name for stream in streams}
    keys = {s.key: {number: key for number, (key, _) in s.operators().items()} for s in streams}
    operators: dict[tuple[str, int], SharedOperator] = {}
    for number, group in enumerate(groups, FIRST_SHARED):
        stream_names = tuple(dict.fromkeys(names[stream] for stream, _ in group))
        operator_keys = tuple(keys[stream][operator] for stream, operator in group)
        shared = SharedOperator(number, operator_keys, stream_names, group[0])
        operators |= dict.fromkeys(group, shared)
    return operators


def _framed(
    stream: PipelineStream, streams: Sequence[PipelineStream], job: EpochJob
) -> FramedStream:
    sinks = tuple(
        FramedSink(sink.name, connector, stream.side_kind(sink))
        for owner, sink, connector in job.sinks.values()
        if owner.key == stream.key
    )
    keys = {number: key for number, (key, _) in stream.operators().items()}
    late = tuple(c.name for c in stream.late_rows.columns) if stream.late_rows is not None else ()
    readers = tuple(s.name for s in streams if stream.key in s.late_inputs.values())
    return FramedStream(stream.plan, keys, sinks, late, readers)
