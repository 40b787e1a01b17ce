"""The frames of a pipeline, built when they are needed and used for many epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidegate.catalog.objects import Sink, Source
from tidegate.checkpoint.manifest import Manifest
from tidegate.connectors.base import LookupConnector, Read, SinkConnector, SourceConnector
from tidegate.physical.operator_kind import calls_user_functions, reads_user_functions
from tidegate.physical.planner import FedPort, LeafPlan, OperatorPlan, ScanPlan
from tidegate.plan import nodes as n
from tidegate.runtime.epoch import Epoch, EpochReport
from tidegate.runtime.reconciliation import PipelineStream
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
from tidegate.spark.tasks.protocol import EpochSpec, EpochSpecStore
from tidegate.spark.tasks.read import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ---- Operators of several streams that do the same work: one step serves all of them.
#
# What their state means is the same text. Beyond that everything must be equal that the text leaves
# out: limits, how long rows live, how far times may be ahead.


def is_shareable(plan: OperatorPlan) -> bool:
    """Whether another stream could use what it gives, and what comes by on its side.

    Late rows belong to their stream. Lookups may find something else the next time, and functions
    of the user may be others by the same name.
    """
    if plan.operator.late is not None or reads_user_functions(plan.node):
        return False
    return all(_is_plain(fed) for fed in plan.ports)


def _is_plain(fed: FedPort) -> bool:
    if calls_user_functions(fed.port.node, {leaf.node for leaf in fed.leaves}):
        return False
    return all(
        is_shareable(leaf)
        if isinstance(leaf, OperatorPlan)
        else isinstance(leaf, ScanPlan) and isinstance(leaf.node, n.Scan)
        for leaf in fed.leaves
    )


def is_equivalent(one: OperatorPlan, other: OperatorPlan) -> bool:
    """Whether both give the same rows if they are given the same; both are shareable."""
    if (one.canonical_form, *_settings(one)) != (other.canonical_form, *_settings(other)):
        return False
    ports = zip(one.ports, other.ports, strict=True)
    return one.operator == other.operator and all(_ports_alike(a, b) for a, b in ports)


def _settings(plan: OperatorPlan) -> tuple[object, ...]:
    return (
        plan.by_processing_time,
        plan.output_watermark_delay_us,
        plan.arrival,
        plan.clocked,
        len(plan.ports),
    )


def _ports_alike(one: FedPort, other: FedPort) -> bool:
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
    same = (one.arrival, one.clocked) == (other.arrival, other.clocked)
    return same and one.node.source == other.node.source


def below(plan: OperatorPlan) -> Iterator[LeafPlan]:
    """All that stands below a shareable operator, and itself, in a fixed order."""
    yield plan
    for fed in plan.ports:
        for leaf in fed.leaves:
            yield from below(leaf) if isinstance(leaf, OperatorPlan) else [leaf]


# ---- Which operators of a pipeline step once for several streams.
#
# Every stream has its own plan, offsets and heads, and could go on alone. But where streams have the
# same operator over the same sources, are equally far and have the same state, the work is done once:
# all of them get the same new heads, and so will be together in the next epoch too.

# Operators by stream and number that do the same work.
Group = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Candidate:
    """An operator; the keys of what steps with it, and the sources below."""

    stream: str
    plan: OperatorPlan
    keys: tuple[str, ...]
    sources: tuple[str, ...]

    def is_compatible(self, other: _Candidate, epoch: Epoch, manifest: Manifest) -> bool:
        """Whether both read the same ranges now, and have the same state."""
        ranges = (
            epoch.ranges.get((self.stream, name)) is epoch.ranges.get((other.stream, name))
            for name in self.sources
        )
        states = zip(self.keys, other.keys, strict=True)
        known = manifest.operators
        return all(ranges) and all(
            known[a].state_handles == known[b].state_handles for a, b in states
        )


class Sharing:
    """The operators of some members that do the same, found once."""

    def __init__(self, members: Iterable[PipelineStream]) -> None:
        self._alike: list[list[_Candidate]] = []
        for member in members:
            for candidate in _candidates(member):
                self._add(candidate)

    def _add(self, candidate: _Candidate) -> None:
        for known in self._alike:
            if is_equivalent(known[0].plan, candidate.plan):
                known.append(candidate)
                return
        self._alike.append([candidate])

    def groups(self, epoch: Epoch, manifest: Manifest) -> tuple[Group, ...]:
        """Those that step together in an epoch."""
        found: list[list[_Candidate]] = []
        for alike in self._alike:
            found += _together(alike, epoch, manifest)
        return tuple(
            tuple((item.stream, item.plan.number) for item in group)
            for group in found
            if len(group) > 1
        )


def _candidates(member: PipelineStream) -> list[_Candidate]:
    """Its operators that others could share."""
    if member.plan.guarded:
        return []
    keys = {number: key for number, (key, _) in member.operators().items()}
    return [
        _Candidate(member.key, plan, _keys(plan, keys), _sources(plan))
        for plan in member.plan.operators
        if is_shareable(plan)
    ]


def _keys(plan: OperatorPlan, keys: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(keys[leaf.number] for leaf in below(plan) if isinstance(leaf, OperatorPlan))


def _sources(plan: OperatorPlan) -> tuple[str, ...]:
    scans = (leaf.node for leaf in below(plan) if isinstance(leaf, ScanPlan))
    return tuple(node.source.name.lower() for node in scans if isinstance(node, n.Scan))


def _together(
    alike: Sequence[_Candidate], epoch: Epoch, manifest: Manifest
) -> list[list[_Candidate]]:
    groups: list[list[_Candidate]] = []
    for candidate in alike if len(alike) > 1 else ():
        for group in groups:
            if group[0].is_compatible(candidate, epoch, manifest):
                group.append(candidate)
                break
        else:
            groups.append([candidate])
    return groups


# Whether epochs are large, how many tasks they have, and what Spark itself can read of them, with
# whether tasks can read it too: a frame whose tasks read would leave out what they cannot; and who
# reads the same; and the operators that step once for several streams.
_Kind = tuple[
    bool, int, frozenset[tuple[Place, bool]], tuple[tuple[Place, ...], ...], tuple[Group, ...]
]
# Spark must make fewer than one group of so many rows, or it is better that it does not.
_LEAST_SHRINK = 4


@dataclass
class Frames:
    """Builds frames of members; small epochs and large ones have frames of their own."""

    spark: SparkSession
    source_of: Callable[[ScanPlan], Source]
    place: EpochSpecStore
    state: str
    built: dict[_Kind, PipelineFrame] = field(default_factory=dict)
    # Operators whose groups are about as many as their rows.
    spread: set[str] = field(default_factory=set)
    # Whether tasks compute what they can, and decode records.
    vectors: bool = True
    decoding: bool = True
    _sharing: Sharing | None = None

    def forget(self) -> None:
        """The members changed."""
        self.built.clear()
        self._sharing = None

    def together(
        self, members: Sequence[PipelineStream], epoch: Epoch, manifest: Manifest
    ) -> tuple[Group, ...]:
        """The operators of all members that step together in an epoch."""
        if self._sharing is None:
            self._sharing = Sharing(members)
        return self._sharing.groups(epoch, manifest)

    def learn(self, reports: EpochReport) -> None:
        """Where Spark has added up rows for nothing, it does not do so again."""
        for key, (groups, rows) in reports.shrunk.items():
            if groups * _LEAST_SHRINK > rows:
                self.spread.add(key)
                self.built = {key: frame for key, frame in self.built.items() if not key[0]}

    def kept(self, job: Job, build: Callable[[], PipelineFrame]) -> PipelineFrame:
        """The frame of an epoch; with what Spark itself reads it is a new one each time."""
        epoch = job.epoch
        native = frozenset(
            (read, bool(input_range.splits)) for read, input_range in epoch.native.items()
        )
        key = (epoch.large, job.tasks, native, epoch.alike, job.together)
        if key not in self.built:
            frame = build()
            if frame.once:
                return frame
            self.built[key] = frame
        return self.built[key]

    def left_to_spark(self, error: JobFailed) -> bool:
        """Whether tasks have met what only Spark can judge, so that it is worth trying again.

        From now on Spark decodes all records, or computes everything.
        """
        if error.by_records and self.vectors and self.decoding:
            self.decoding = False
        elif error.by_vectors and self.vectors:
            self.vectors = False
        else:
            return False
        self.built.clear()
        return True

    def build(self, members: Sequence[PipelineStream], job: Job) -> PipelineFrame:
        streams = [_framed(member, members, job) for member in members]
        context = replace(self._context(job), shared_operators=_shared(members, job.together))
        return pipeline_frame(context, streams)

    def failing_row(
        self, members: Sequence[PipelineStream], job: Job, failed: JobFailed
    ) -> FailingRow | None:
        """What has failed in the last of these streams, which reads late rows of the others."""
        context = self._context(job)
        *others, last = (_framed(member, members, job) for member in members)
        if others:
            pipeline_frame(context, others)
        return failing_row(context, last, failed)

    def _context(self, job: Job) -> FrameContext:
        epoch, manifest = job.epoch, job.manifest
        return FrameContext(
            self.spark,
            job.sources,
            job.lookups,
            self._asked_of,
            self.place,
            manifest.key_groups,
            job.tasks,
            self.state,
            epoch.native,
            job.epoch_spec.now_us,
            frozenset(manifest.operators) - self.spread if epoch.large else frozenset(),
            self.vectors,
            large=epoch.large,
            alike=epoch.alike,
        )

    def _asked_of(self, scan: ScanPlan) -> tuple[Source, Read]:
        source = self.source_of(scan)
        located = isinstance(scan.node, n.SideScan)
        names = {c.name for c in source.columns} if located else {f.name for f in scan.node.fields}
        decoding = self.vectors and self.decoding
        return source, Read(stored_columns(source, names), scan.arrival, located, decoding)


@dataclass(frozen=True)
class Job:
    """What the job of an epoch reads and writes: open sources and sinks, ranges, the state."""

    sources: Mapping[str, SourceConnector]
    lookups: Mapping[str, LookupConnector]
    sinks: Mapping[str, tuple[PipelineStream, Sink, SinkConnector]]
    epoch: Epoch
    epoch_spec: EpochSpec
    manifest: Manifest
    tasks: int
    # The operators that step once for several streams.
    together: tuple[Group, ...] = ()


def _shared(members: Sequence[PipelineStream], groups: Sequence[Group]) -> SharedOperators:
    """Operators by stream and number, with those that they step for."""
    named = {member.key: member for member in members}
    keys = {m.key: {number: key for number, (key, _) in m.operators().items()} for m in members}
    found: dict[tuple[str, int], SharedOperator] = {}
    for number, group in enumerate(groups, FIRST_SHARED):
        streams = tuple(dict.fromkeys(named[stream].name for stream, _ in group))
        names = tuple(keys[stream][operator] for stream, operator in group)
        found |= dict.fromkeys(group, SharedOperator(number, names, streams, group[0]))
    return found


def _framed(member: PipelineStream, members: Sequence[PipelineStream], job: Job) -> FramedStream:
    sinks = tuple(
        FramedSink(sink.name, reconcile, member.takes(sink))
        for owner, sink, reconcile in job.sinks.values()
        if owner.key == member.key
    )
    keys = {number: key for number, (key, _) in member.operators().items()}
    late = tuple(c.name for c in member.late.columns) if member.late is not None else ()
    readers = tuple(m.name for m in members if member.key in m.late_inputs.values())
    return FramedStream(member.plan, keys, sinks, late, readers)
