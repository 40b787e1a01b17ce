"""A pipeline: all streams that run together, in one loop that cuts, runs, decides and commits.

Everything that changes does so under one lock, which the loop holds for an epoch. Nothing of an
epoch is visible before its manifest; after it, nothing is computed again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from tidegate.catalog.objects import LookupTable, Sink, Source
from tidegate.catalog.settings import Settings
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import Manifests, without_streams
from tidegate.connectors.base import (
    CommittedState,
    EpochId,
    EpochSizer,
    LookupConnector,
    SinkConnector,
    SourceConnector,
)
from tidegate.errors import RunError, TidegateError
from tidegate.observe.status import State, StreamStatus
from tidegate.observe.timeline import Timeline, span_listener
from tidegate.physical.planner import ScanPlan
from tidegate.plan import nodes as n
from tidegate.runtime.cleanup import OFFSETS, StateFiles
from tidegate.runtime.epoch import (
    Epoch,
    EpochReport,
    build_epoch_spec,
    decision,
    has_little_state,
    has_open_ends,
    next_epoch,
    wake_us,
)
from tidegate.runtime.frames import Frames, Job
from tidegate.runtime.planning import Lookups
from tidegate.runtime.reconciliation import PipelineStream, missed, reconcile, with_dependencies
from tidegate.runtime.retry import Retry, T
from tidegate.runtime.status import Counters, at_work
from tidegate.spark.diagnostics import OriginOf, with_failing_row
from tidegate.spark.errors import JobFailed, pipeline_error
from tidegate.spark.frame import PipelineFrame, run_job
from tidegate.spark.tasks.protocol import EpochSpec, EpochSpecStore
from tidegate.storage import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ---- The steps of an epoch, in the order in which they are done.
#
# A process may die at any of them: tests enumerate them here and see to it that it does.


class EpochStep(Enum):
    """What has just been done."""

    CUT = "cut"
    SPEC_WRITTEN = "ordered"
    RAN = "ran"
    COMMITTED = "decided"
    PUBLISHING = "committing"
    PUBLISHED = "committed"
    SWEPT = "swept"


def reached(step: EpochStep) -> None:
    """Nothing happens here; tests put something in its place."""


# ---- What a pipeline gets from its session.


@dataclass(frozen=True)
class PipelineContext:
    """What a pipeline needs from its session."""

    spark: SparkSession
    settings: Settings
    # The folder of the pipeline, and the one for the orders of this process.
    store: Store
    epoch_specs: str
    open_source: Callable[[Source, str, EpochSizer], SourceConnector]
    open_sink: Callable[[Sink, str, PipelineStream], SinkConnector]
    open_lookup: Callable[[LookupTable, str], LookupConnector]
    source_of: Callable[[ScanPlan], Source]
    key_groups: int
    # The text that a stream was declared in.
    origin_of: OriginOf = lambda stream: None
    # Raises if another process has taken over the data directory.
    require_held: Callable[[], None] = lambda: None


# How long the loop sleeps when nothing is new, unless somebody wakes it.
_POLL_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 1.0
_TRIES = 4
_BACKOFF_SECONDS = 0.2
# A sink that stays away is asked again about once a minute.
_DOUBLINGS = 8
_STOP_SECONDS = 60


class Pipeline:
    """Runs its members, epoch by epoch."""

    def __init__(self, context: PipelineContext, name: str) -> None:
        self.context = context
        self.name = name
        self.manifests = Manifests(context.store, context.settings["max_retained"])
        self.place = EpochSpecStore(context.epoch_specs, f"{uuid.uuid4().hex}.json")
        self.members: dict[str, PipelineStream] = {}
        self.counters: dict[str, Counters] = {}
        self.sources: dict[str, SourceConnector] = {}
        # The declarations that these were opened by: one of the same name may be another source.
        self._declared: dict[str, Source] = {}
        self.lookups = Lookups(context.store, context.open_lookup)
        self.sinks: dict[str, tuple[PipelineStream, Sink, SinkConnector]] = {}
        self.pace = EpochSizer(context.settings["target_epoch"] / 1_000_000)
        self.timeline = Timeline(name, span_listener())
        self.failure: TidegateError | None = None
        self._failing_row: str | None = None
        self.warnings: list[TidegateError] = []
        # Whether it ends with its input, everything closed; or when nothing is new, all open.
        self.until_end = self.available_now = False
        self._manifest = Manifest(0, -1, context.key_groups, 0)
        state = context.store.child("state")
        self._files = StateFiles(context.store, self.manifests)
        self._frames = Frames(context.spark, context.source_of, self.place, state.uri)
        self._frames.vectors = context.settings["vectorized"] == "on"
        self._patience = Retry(self._rest)
        self._lock = threading.RLock()
        self._wake = threading.Condition()
        self._stopping = False
        # Whether the loop has ended, whatever made it end.
        self._over = False
        self._woken = False
        # How long it took to look for news.
        self._looked_s = 0.0
        self._asked = 0
        self._quiet = 0
        self._thread: threading.Thread | None = None
        self._trigger_s = 0.0
        self._tag = f"tidegate-{uuid.uuid4().hex[:12]}"

    # Starting

    @property
    def tasks(self) -> int:
        return max(self.context.spark.sparkContext.defaultParallelism, 1)

    def start(
        self,
        members: Sequence[PipelineStream],
        until_end: bool,
        trigger_us: int = 0,
        available_now: bool = False,
    ) -> None:
        self.until_end, self.available_now = until_end, available_now
        found = self.manifests.recover()
        self.warnings += [_skipped(item.name, item.reason) for item in found.skipped]
        if found.manifest is not None:
            self._manifest = found.manifest
        self.change(members, trigger_us)
        self._files.open(self._manifest)
        self._thread = threading.Thread(
            target=self._loop, name=f"tidegate {self.name}", daemon=True
        )
        self._thread.start()

    def check(self, members: Sequence[PipelineStream]) -> None:
        """Reject streams that do not fit what is stored; nothing is changed."""
        with self._lock:
            reconcile(self._manifest, members)

    def change(self, members: Sequence[PipelineStream], trigger_us: int = 0) -> None:
        """These are the streams and sinks from the next epoch on."""
        with self._lock:
            self._trigger_s = trigger_us / 1_000_000
            start = reconcile(self._manifest, members)
            members_now = {member.key: member for member in members}
            sinks = self._opened_sinks(start.manifest, members)
            for member in members:
                for scan in member.source_scans:
                    self._open_source(self.context.source_of(scan))
            self.lookups.open([look for member in members for look in member.plan.lookups])
            self._manifest = start.manifest
            self.warnings += [*start.warnings, *self._missed(sinks)]
            before = self.members
            self.members, self.sinks = members_now, sinks
            for member in members:
                known = before.get(member.key)
                if member.key not in self.counters or known is None or not known.is_same(member):
                    self.counters[member.key] = self._counters(member)
            self.counters = {k: c for k, c in self.counters.items() if k in members_now}
            self._frames.forget()
        self.wake()

    def _counters(self, member: PipelineStream) -> Counters:
        delays = {
            str(scan.index): scan.delay_us
            for scan in member.plan.scans
            if isinstance(scan.node, n.Scan) and scan.node.source.watermark is not None
        }
        counters = Counters(member.name, delays, State.RUNNING)
        counters.restore(self._manifest)
        return counters

    def _open_source(self, source: Source) -> None:
        name = source.name.lower()
        if self._declared.get(name) != source:
            offsets = self.context.store.child(OFFSETS).child(name).uri
            self.sources[name] = self.context.open_source(source, offsets, self.pace)
            self._declared[name] = source

    def _opened_sinks(
        self, manifest: Manifest, members: Sequence[PipelineStream]
    ) -> dict[str, tuple[PipelineStream, Sink, SinkConnector]]:
        found: dict[str, tuple[PipelineStream, Sink, SinkConnector]] = {}
        for member in members:
            for sink in member.sinks:
                known = self.sinks.get(sink.name)
                if known is not None and known[1] == sink and known[0].is_same(member):
                    found[sink.name] = (member, sink, known[2])
                    continue
                stream = manifest.streams[member.key].id
                opened_sink = self.context.open_sink(sink, stream, member)
                opened_sink.recover(self._decided(manifest, member, sink))
                found[sink.name] = (member, sink, opened_sink)
        return found

    def _missed(
        self, sinks: Mapping[str, tuple[PipelineStream, Sink, SinkConnector]]
    ) -> list[RunError]:
        new = [(m, s) for name, (m, s, _) in sinks.items() if name not in self.sinks]
        found = (missed(self._manifest, member, sink) for member, sink in new)
        return [warning for warning in found if warning is not None]

    def _decided(self, manifest: Manifest, member: PipelineStream, sink: Sink) -> CommittedState:
        """What was decided for a sink; nothing if its stream is new, or starts over."""
        before = self._manifest.streams.get(member.key)
        if before is None or before.id != manifest.streams[member.key].id:
            return CommittedState(
                None,
                lineage=manifest.lineage,
                keep_before_generation=manifest.keep_before_generation,
            )
        return CommittedState.by(manifest, sink.name)

    # The loop

    def _loop(self) -> None:
        try:
            self.context.spark.addTag(self._tag)
            while not self._stopping:
                began = time.monotonic()
                if not self._patience.retry_external(self._turn, self._say):
                    return
                rest = self._trigger_s - (time.monotonic() - began)
                if rest > 0:
                    self._sleep(rest, woken=False)
        except BaseException as error:
            if not self._stopping:
                self._fail(error)
        finally:
            with self._wake:
                self._over = True
                self._wake.notify_all()

    def _turn(self) -> bool:
        """One epoch, or a little sleep if nothing is new; False when all has ended."""
        with self._lock:
            asked = self._asked
            self.timeline.begin()
            epoch = self._patiently(self._plan_range)
            self._looked_s = self.timeline.lap("plan")
            reached(EpochStep.CUT)
            if epoch is not None:
                with at_work(self.counters.values()):
                    self._run(epoch)
                # What comes while it reads is not there now.
                done = epoch.ends or (self.available_now and not epoch.more)
            else:
                done = self._ends
            if epoch is None or not (epoch.ranges or epoch.more):
                with self._wake:
                    self._quiet = asked
                    self._wake.notify_all()
            if done:
                for counters in self.counters.values():
                    counters.state = State.FINISHED
                return False
        if epoch is None:
            self._sleep(self._pause(), woken=True)
        return True

    def _pause(self) -> float:
        """Looking costs something too: a twentieth of the time, if nothing comes."""
        pause = min(max(_POLL_SECONDS, 20 * self._looked_s), _LONGEST_PAUSE_SECONDS)
        at_us = self._wake_us()
        if at_us is None:
            return pause
        return min(pause, max((at_us - _now_us()) / 1_000_000, 0.001))

    def _sleep(self, seconds: float, woken: bool) -> None:
        with self._wake:
            if not self._stopping and not (woken and self._woken):
                self._wake.wait(seconds)
            self._woken = False

    def wake(self) -> None:
        """Something may be new."""
        with self._wake:
            self._woken = True
            self._wake.notify_all()

    def _fail(self, error: BaseException) -> None:
        self.failure = pipeline_error(self._blamed(error), error)
        for counters in self.counters.values():
            counters.fail(self.failure.message, self._failing_row)

    def _blamed(self, error: BaseException) -> str:
        first = next((member.name for member in self.members.values()), self.name)
        return getattr(error, "stream", None) or first

    # Cutting

    def _plan_range(self) -> Epoch | None:
        """The ranges of the next epoch; None if there is no news."""
        members, manifest = self.members.values(), self._manifest
        epoch = next_epoch(members, manifest, self.sources, self.tasks, self.until_end)
        ends = epoch.ends and has_open_ends(members, manifest)
        return epoch if epoch.ranges or ends or self._is_time() else None

    def _is_time(self) -> bool:
        at_us = self._wake_us()
        return at_us is not None and at_us <= _now_us()

    def _wake_us(self) -> int | None:
        return None if self._ends else wake_us(self.members, self._manifest)

    # Running

    def _run(self, epoch: Epoch) -> None:
        began = time.monotonic()
        number = self._manifest.epoch + 1
        now_us = max(_now_us(), self._manifest.now_us)
        epoch_spec = build_epoch_spec(self._manifest, epoch, number, now_us, self._tasks_of(epoch))
        epoch_spec = replace(epoch_spec, lookups=self.lookups.as_of(self.context.spark))
        reports = self._run_with_retries(epoch, epoch_spec)
        self.timeline.lap("run")
        reached(EpochStep.RAN)
        sinks = {name: (member, sink) for name, (member, sink, _) in self.sinks.items()}
        members = self.members.values()
        manifest = decision(self._manifest, members, sinks, epoch, epoch_spec, reports)
        tries = count()
        self._patiently(lambda: self.manifests.create(manifest, is_retry=next(tries) > 0))
        self._patiently(self.context.require_held)
        self._manifest = manifest
        self.timeline.lap("commit")
        reached(EpochStep.COMMITTED)
        self._commit(manifest)
        self.timeline.lap("publish")
        reached(EpochStep.PUBLISHED)
        self._after(epoch, manifest, reports, time.monotonic() - began)

    def _run_with_retries(self, epoch: Epoch, epoch_spec: EpochSpec) -> EpochReport:
        """Run the job; what can pass by itself is tried again."""
        attempt = 0
        while True:
            try:
                return self._patiently(lambda: self._run_spec(epoch, epoch_spec))
            except JobFailed as error:
                if self._stopping:
                    raise
                if error.unreached is not None:
                    raise error.unreached from None
                if self._frames.left_to_spark(error):
                    continue
                attempt += 1
                if attempt == _TRIES or not error.passing:
                    raise self._found(epoch, epoch_spec, error) from None
                time.sleep(_BACKOFF_SECONDS * 2 ** (attempt - 1))

    def _run_spec(self, epoch: Epoch, epoch_spec: EpochSpec) -> EpochReport:
        self.place.write(epoch_spec)
        reached(EpochStep.SPEC_WRITTEN)
        return EpochReport.of(self._job(self._framed(epoch, epoch_spec), epoch_spec))

    def _patiently(self, work: Callable[[], T]) -> T:
        """Do it; while a store is away, status says so."""
        return self._patience.retry_storage(work, self._say)

    def _say(self, error: str | None) -> None:
        for counters in self.counters.values():
            counters.error = error

    def _rest(self, attempt: int) -> bool:
        if not self._stopping:
            self._sleep(_BACKOFF_SECONDS * 2 ** min(attempt, _DOUBLINGS), woken=False)
        return not self._stopping

    def _job(self, frame: PipelineFrame, epoch_spec: EpochSpec) -> list[bytes]:
        names = ", ".join(member.name for member in self.members.values())
        return run_job(self.context.spark, frame, f"{names}, epoch {epoch_spec.epoch}")

    def _framed(self, epoch: Epoch, epoch_spec: EpochSpec) -> PipelineFrame:
        members = tuple(self.members.values())
        together = self._frames.together(members, epoch, self._manifest)
        job = replace(self._described(epoch, epoch_spec), together=together)
        return self._frames.kept(job, lambda: self._build(members, job))

    def _tasks_of(self, epoch: Epoch) -> int:
        return 1 if epoch.small and has_little_state(self._manifest) else epoch.tasks

    def _build(self, members: Sequence[PipelineStream], job: Job) -> PipelineFrame:
        return self._frames.build(members, job)

    def _described(self, epoch: Epoch, epoch_spec: EpochSpec) -> Job:
        tasks = self._tasks_of(epoch)
        lookups = self.lookups.opened
        return Job(self.sources, lookups, self.sinks, epoch, epoch_spec, self._manifest, tasks)

    def _found(self, epoch: Epoch, epoch_spec: EpochSpec, error: JobFailed) -> TidegateError:
        """Which stream it was: each is run alone. What they write then, nobody will know of."""
        members, job = list(self.members.values()), self._described(epoch, epoch_spec)
        if len(members) > 1:
            for member in members:
                try:
                    self._job(self._build(with_dependencies(member, members), job), epoch_spec)
                except JobFailed as again:
                    self._failing_row = member.key
                    return self._explained(member, epoch, epoch_spec, again)
        return self._explained(members[0], epoch, epoch_spec, error)

    def _explained(
        self, member: PipelineStream, epoch: Epoch, epoch_spec: EpochSpec, failed: JobFailed
    ) -> TidegateError:
        """What has happened; the epoch is looked at again for the expression and the row."""
        error = pipeline_error(member.name, failed)
        members = with_dependencies(member, tuple(self.members.values()))
        found = self._frames.failing_row(members, self._described(epoch, epoch_spec), failed)
        return error if found is None else with_failing_row(error, found, self.context.origin_of)

    # Committing

    def _commit(self, manifest: Manifest) -> None:
        epoch = EpochId(manifest.generation, manifest.epoch)
        for name, (member, _, sink) in self.sinks.items():
            commit = partial(sink.publish, epoch, manifest.sinks[name].committables)
            self._patience.commit(commit, _TRIES, partial(self._say_of, member.key, name))
            reached(EpochStep.PUBLISHING)

    def _say_of(self, member: str, sink: str, error: str | None) -> None:
        self.counters[member].error = error and f"the sink {sink}: {error}"

    def _after(
        self, epoch: Epoch, manifest: Manifest, reports: EpochReport, seconds: float
    ) -> None:
        for (_, source), input_range in epoch.ranges.items():
            self.sources[source].on_commit(input_range.offset)
        for member in self.members.values():
            told, ranges = reports.stream(member.name), epoch.cuts_of(member.key)
            self.counters[member.key].add(manifest, told, seconds, ranges)
        self.timeline.end(manifest.epoch, *reports.rows())
        full = [
            input_range.size
            for input_range in epoch.ranges.values()
            if input_range.more and input_range.size
        ]
        if full:
            self.pace.learn(max(full), seconds)
        self._frames.learn(reports)
        self._files.committed(manifest)
        reached(EpochStep.SWEPT)

    # Watching and ending

    def wait(self, timeout: float | None) -> bool:
        """Until the rows that are there now are done, or all is done if it ends by itself."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._wake:
            self._asked += 1
            asked = self._asked
            self._woken = True
            self._wake.notify_all()
            while self._alive and not (self._quiet >= asked and not self._ends):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._wake.wait(left if left is not None else 1.0)
        self.is_alive()
        return True

    @property
    def _ends(self) -> bool:
        """Whether it ends by itself."""
        return self.until_end or self.available_now

    @property
    def _alive(self) -> bool:
        return self._thread is not None and not self._over and self.failure is None

    def is_alive(self) -> bool:
        """Whether more epochs may come; raises the error of a pipeline that failed."""
        if self.failure is not None:
            raise self.failure
        return self._alive and not self._stopping

    def stop(self) -> None:
        """Let go at once: an epoch that was not decided never was."""
        self._stopping = True
        self.wake()
        thread = self._thread
        if thread is not None:
            deadline = time.monotonic() + _STOP_SECONDS
            while thread.is_alive() and time.monotonic() < deadline:
                self.context.spark.interruptTag(self._tag)
                thread.join(0.2)
        for counters in self.counters.values():
            if counters.state in (State.RUNNING, State.STARTING):
                counters.state = State.STOPPED
        self.place.forget()

    def forget(self, stream: str) -> None:
        """A stream was dropped: so is what was kept of it."""
        with self._lock:
            manifest = without_streams(self._manifest, {stream.lower()})
            if manifest is not self._manifest:
                self.manifests.create(manifest)
                self._manifest = manifest
            self.members.pop(stream.lower(), None)
            self.counters.pop(stream.lower(), None)
            self.sinks = {k: v for k, v in self.sinks.items() if v[0].key != stream.lower()}
            self._frames.forget()

    def status(self) -> list[StreamStatus]:
        return [counters.status() for counters in self.counters.values()]


def _now_us() -> int:
    return time.time_ns() // 1000


def _skipped(name: str, reason: str) -> RunError:
    return RunError(
        "TG-605",
        f"{name} cannot be used: {reason}; the pipeline goes on from the one before it",
        hint="rows of the epoch that is lost are read again.",
    )
