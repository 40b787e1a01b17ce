"""The frames of a pipeline, built when they are needed and used for many epochs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidegate.catalog.objects import Sink, Source
from tidegate.checkpoint.manifest import Manifest
from tidegate.connectors.base import OpenLookup, OpenSink, OpenSource, Read
from tidegate.physical.planner import ScanPlan
from tidegate.plan import nodes as n
from tidegate.runtime.cutting import Epoch
from tidegate.runtime.members import Member
from tidegate.runtime.notes import Notes
from tidegate.runtime.sharing import Group, Sharing
from tidegate.spark.culprit import Culprit, culprit
from tidegate.spark.failure import JobFailed
from tidegate.spark.frame import (
    FrameContext,
    FramedSink,
    FramedStream,
    PipelineFrame,
    pipeline_frame,
    stored_columns,
)
from tidegate.spark.order import Order, OrderPlace
from tidegate.spark.reading import Place
from tidegate.spark.shared_operators import FIRST_SHARED, SharedOperator, SharedOperators

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    place: OrderPlace
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
        self, members: Sequence[Member], epoch: Epoch, manifest: Manifest
    ) -> tuple[Group, ...]:
        """The operators of all members that step together in an epoch."""
        if self._sharing is None:
            self._sharing = Sharing(members)
        return self._sharing.groups(epoch, manifest)

    def learn(self, notes: Notes) -> None:
        """Where Spark has added up rows for nothing, it does not do so again."""
        for key, (groups, rows) in notes.shrunk.items():
            if groups * _LEAST_SHRINK > rows:
                self.spread.add(key)
                self.built = {key: frame for key, frame in self.built.items() if not key[0]}

    def kept(self, job: Job, build: Callable[[], PipelineFrame]) -> PipelineFrame:
        """The frame of an epoch; with what Spark itself reads it is a new one each time."""
        epoch = job.epoch
        native = frozenset((read, bool(cut.shares)) for read, cut in epoch.native.items())
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

    def build(self, members: Sequence[Member], job: Job) -> PipelineFrame:
        streams = [_framed(member, members, job) for member in members]
        context = replace(self._context(job), shared_operators=_shared(members, job.together))
        return pipeline_frame(context, streams)

    def culprit(self, members: Sequence[Member], job: Job, failed: JobFailed) -> Culprit | None:
        """What has failed in the last of these streams, which reads late rows of the others."""
        context = self._context(job)
        *others, last = (_framed(member, members, job) for member in members)
        if others:
            pipeline_frame(context, others)
        return culprit(context, last, failed)

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
            job.order.now_us,
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

    sources: Mapping[str, OpenSource]
    lookups: Mapping[str, OpenLookup]
    sinks: Mapping[str, tuple[Member, Sink, OpenSink]]
    epoch: Epoch
    order: Order
    manifest: Manifest
    tasks: int
    # The operators that step once for several streams.
    together: tuple[Group, ...] = ()


def _shared(members: Sequence[Member], groups: Sequence[Group]) -> SharedOperators:
    """Operators by stream and number, with those that they step for."""
    named = {member.key: member for member in members}
    keys = {m.key: {number: key for number, (key, _) in m.operators().items()} for m in members}
    found: dict[tuple[str, int], SharedOperator] = {}
    for number, group in enumerate(groups, FIRST_SHARED):
        streams = tuple(dict.fromkeys(named[stream].name for stream, _ in group))
        names = tuple(keys[stream][operator] for stream, operator in group)
        found |= dict.fromkeys(group, SharedOperator(number, names, streams, group[0]))
    return found


def _framed(member: Member, members: Sequence[Member], job: Job) -> FramedStream:
    sinks = tuple(
        FramedSink(sink.name, opened, member.takes(sink))
        for owner, sink, opened in job.sinks.values()
        if owner.key == member.key
    )
    keys = {number: key for number, (key, _) in member.operators().items()}
    late = tuple(c.name for c in member.late.columns) if member.late is not None else ()
    readers = tuple(m.name for m in members if member.key in m.late_inputs.values())
    return FramedStream(member.plan, keys, sinks, late, readers)
