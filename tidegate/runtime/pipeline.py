"""The loop of a pipeline: plan the range, run the job, commit the manifest, publish, sweep.

A pipeline is all streams that run together. One thread runs their epochs; everything that changes
the pipeline does so under a lock that the thread holds during an epoch. Before its manifest is
committed, no row of an epoch is visible. After that, nothing of the epoch is computed again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import count

from tidegate.catalog.objects import LookupTable, Sink, Source
from tidegate.catalog.settings import Settings
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import STATE_FOLDER, Manifests, without_streams
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
from tidegate.physical.planner import LookupPlan, ScanPlan
from tidegate.plan import nodes as n
from tidegate.runtime.cleanup import OFFSETS_FOLDER, FileSweeper
from tidegate.runtime.epoch import (
    EpochPlan,
    EpochReport,
    build_epoch_spec,
    build_manifest,
    has_small_state,
    has_unfinished_streams,
    next_timer_us,
    plan_epoch,
)
from tidegate.runtime.executor import Executor
from tidegate.runtime.graphs import EpochJob, GraphCache
from tidegate.runtime.planning import PipelineStream, with_dependencies
from tidegate.runtime.reconciliation import missed_rows_warning, reconcile
from tidegate.runtime.retry import EXTERNAL_SYSTEM, PUBLISH, STORAGE, T, backoff_s, retry
from tidegate.runtime.status import StreamCounters, track_running_epoch
from tidegate.spark.diagnostics import ScriptLookup, with_failing_row
from tidegate.spark.errors import JobFailed, pipeline_error
from tidegate.spark.sql_stages import Connectors
from tidegate.spark.tasks.protocol import EpochSpec, EpochSpecStore
from tidegate.storage import Store

OpenSinks = dict[str, tuple[PipelineStream, Sink, SinkConnector]]


class EpochStep(Enum):
    """The steps of an epoch in order. Tests kill the process after each of them."""

    PLANNED = "planned"
    SPEC_WRITTEN = "spec written"
    RAN = "ran"
    COMMITTED = "committed"
    # After each sink.
    PUBLISHING = "publishing"
    PUBLISHED = "published"
    SWEPT = "swept"


def on_step(step: EpochStep) -> None:
    """Do nothing. The loop calls this after each step; tests replace it."""


@dataclass(frozen=True)
class PipelineContext:
    """What a pipeline needs from its session."""

    # Creates the executor of a pipeline from its open connectors.
    open_executor: Callable[[EpochSpecStore, Connectors], Executor]
    settings: Settings
    # The folder of the pipeline, and the URI of the folder for epoch specs.
    store: Store
    epoch_specs: str
    open_source: Callable[[Source, str, EpochSizer], SourceConnector]
    open_sink: Callable[[Sink, str, PipelineStream], SinkConnector]
    open_lookup: Callable[[LookupTable, str], LookupConnector]
    source_of: Callable[[ScanPlan], Source]
    key_groups: int
    # Returns the script in which a stream is declared.
    script_of: ScriptLookup = lambda stream: None
    # Raises if another process has taken over the lock of the data directory.
    require_lock: Callable[[], None] = lambda: None


@dataclass
class Lookups:
    """The open lookup tables of a pipeline."""

    store: Store
    open_lookup: Callable[[LookupTable, str], LookupConnector]
    connectors: dict[str, LookupConnector] = field(default_factory=dict)
    # The declarations of the open tables: a table may be replaced by another of its name.
    _declarations: dict[str, LookupTable] = field(default_factory=dict)

    def open(self, plans: Sequence[LookupPlan]) -> None:
        """Open the tables that these plans read; keep those that are open, drop all others."""
        connectors: dict[str, LookupConnector] = {}
        for table in (plan.table for plan in plans):
            name = table.name.lower()
            if name not in self.connectors or self._declarations.get(name) != table:
                scratch = self.store.child("lookups").child(name).uri
                self.connectors[name] = self.open_lookup(table, scratch)
                self._declarations[name] = table
            connectors[name] = self.connectors[name]
        self.connectors = connectors


# How long the loop sleeps without new data, unless it is woken.
_POLL_SECONDS = 0.02
_MAX_POLL_SECONDS = 1.0
_MAX_JOB_ATTEMPTS = 4
_STOP_SECONDS = 60


class Pipeline:
    """Runs streams, epoch by epoch."""

    def __init__(self, context: PipelineContext, name: str) -> None:
        self.context = context
        self.name = name
        self.manifests = Manifests(context.store, context.settings["max_retained"])
        self.epoch_spec_store = EpochSpecStore(context.epoch_specs, f"{uuid.uuid4().hex}.json")
        self.streams: dict[str, PipelineStream] = {}
        self.counters: dict[str, StreamCounters] = {}
        self.sources: dict[str, SourceConnector] = {}
        # The declarations of the open sources: a source may be replaced by another of its name.
        self._source_declarations: dict[str, Source] = {}
        self.lookups = Lookups(context.store, context.open_lookup)
        self.sinks: OpenSinks = {}
        self.epoch_sizer = EpochSizer(context.settings["target_epoch"] / 1_000_000)
        self.timeline = Timeline(name, span_listener())
        self.failure: TidegateError | None = None
        self._failed_stream: str | None = None
        self.warnings: list[TidegateError] = []
        # Stop at the end of the input and close all windows; or stop after all available data.
        self.until_end = self.available_now = False
        self._manifest = Manifest(0, -1, context.key_groups, 0)
        self._sweeper = FileSweeper(context.store, self.manifests)
        self._graphs = GraphCache(context.source_of, context.store.child(STATE_FOLDER).uri)
        self._graphs.vectorized = context.settings["vectorized"] == "on"
        self.executor = context.open_executor(
            self.epoch_spec_store,
            Connectors(
                lambda name: self.sources[name],
                lambda name: self.lookups.connectors[name],
                lambda name: self.sinks[name][2],
            ),
        )
        self._lock = threading.RLock()
        self._wake = threading.Condition()
        self._stopping = False
        self._loop_ended = False
        self._woken = False
        self._planning_s = 0.0
        # `wait` increments the first; the loop copies it to the second after all input up to then
        # has been processed.
        self._drain_requested = 0
        self._drained = 0
        self._thread: threading.Thread | None = None
        self._trigger_s = 0.0

    # Starting and changing the streams

    @property
    def tasks(self) -> int:
        return self.executor.tasks

    def start(
        self,
        streams: Sequence[PipelineStream],
        until_end: bool,
        trigger_us: int = 0,
        available_now: bool = False,
    ) -> None:
        """Continue from the newest manifest with these streams, in a new thread."""
        self.until_end, self.available_now = until_end, available_now
        newest = self.manifests.recover()
        self.warnings += [_skipped_manifest(item.name, item.reason) for item in newest.skipped]
        if newest.manifest is not None:
            self._manifest = newest.manifest
        self.change(streams, trigger_us)
        self._sweeper.start(self._manifest)
        self._thread = threading.Thread(
            target=self._loop, name=f"tidegate {self.name}", daemon=True
        )
        self._thread.start()

    def check(self, streams: Sequence[PipelineStream]) -> None:
        """Raise an error if streams do not fit the stored state; change nothing."""
        with self._lock:
            reconcile(self._manifest, streams)

    def change(self, streams: Sequence[PipelineStream], trigger_us: int = 0) -> None:
        """Run these streams with their sinks from the next epoch on."""
        with self._lock:
            self._trigger_s = trigger_us / 1_000_000
            start = reconcile(self._manifest, streams)
            streams_by_key = {stream.key: stream for stream in streams}
            sinks = self._open_sinks(start.manifest, streams)
            for stream in streams:
                for scan in stream.source_scans:
                    self._open_source(self.context.source_of(scan))
            self.lookups.open([plan for stream in streams for plan in stream.plan.lookups])
            self._manifest = start.manifest
            self.warnings += [*start.warnings, *self._missed_rows_warnings(sinks)]
            previous = self.streams
            self.streams, self.sinks = streams_by_key, sinks
            for stream in streams:
                running = previous.get(stream.key)
                is_running = running is not None and running.has_same_declaration(stream)
                if stream.key not in self.counters or not is_running:
                    self.counters[stream.key] = self._create_counters(stream)
            self.counters = {k: c for k, c in self.counters.items() if k in streams_by_key}
            self._graphs.invalidate()
            self.executor.forget()
        self.wake()

    def _create_counters(self, stream: PipelineStream) -> StreamCounters:
        delays = {
            str(scan.index): scan.delay_us
            for scan in stream.plan.scans
            if isinstance(scan.node, n.Scan) and scan.node.source.watermark is not None
        }
        counters = StreamCounters(stream.name, delays, State.RUNNING)
        counters.restore(self._manifest)
        return counters

    def _open_source(self, source: Source) -> None:
        name = source.name.lower()
        if self._source_declarations.get(name) != source:
            offsets = self.context.store.child(OFFSETS_FOLDER).child(name).uri
            self.sources[name] = self.context.open_source(source, offsets, self.epoch_sizer)
            self._source_declarations[name] = source

    def _open_sinks(self, manifest: Manifest, streams: Sequence[PipelineStream]) -> OpenSinks:
        """Open and recover new sinks; keep open sinks whose declaration has not changed."""
        sinks: OpenSinks = {}
        for stream in streams:
            for sink in stream.sinks:
                entry = self.sinks.get(sink.name)
                if entry is not None and entry[1] == sink and entry[0].has_same_declaration(stream):
                    sinks[sink.name] = (stream, sink, entry[2])
                    continue
                stream_id = manifest.streams[stream.key].id
                connector = self.context.open_sink(sink, stream_id, stream)
                connector.recover(self._committed_state(manifest, stream, sink))
                sinks[sink.name] = (stream, sink, connector)
        return sinks

    def _missed_rows_warnings(self, sinks: OpenSinks) -> list[RunError]:
        warnings = (
            missed_rows_warning(self._manifest, stream, sink)
            for name, (stream, sink, _) in sinks.items()
            if name not in self.sinks
        )
        return [warning for warning in warnings if warning is not None]

    def _committed_state(
        self, manifest: Manifest, stream: PipelineStream, sink: Sink
    ) -> CommittedState:
        """Return what is committed to a sink: nothing if its stream is new or starts over."""
        previous = self._manifest.streams.get(stream.key)
        if previous is None or previous.id != manifest.streams[stream.key].id:
            return CommittedState(
                None,
                lineage=manifest.lineage,
                keep_before_generation=manifest.keep_before_generation,
            )
        return CommittedState.from_manifest(manifest, sink.name)

    # The loop

    def _loop(self) -> None:
        try:
            self.executor.attach()
            while not self._stopping:
                started = time.monotonic()
                if not retry(
                    self._run_epoch_or_sleep,
                    EXTERNAL_SYSTEM,
                    self._report_error,
                    self._wait_to_retry,
                ):
                    return
                remaining = self._trigger_s - (time.monotonic() - started)
                if remaining > 0:
                    self._sleep(remaining, skip_if_woken=False)
        except BaseException as error:
            if not self._stopping:
                self._fail(error)
        finally:
            with self._wake:
                self._loop_ended = True
                self._wake.notify_all()

    def _run_epoch_or_sleep(self) -> bool:
        """Run one epoch, or sleep without new data; return False at the end of the run."""
        with self._lock:
            request = self._drain_requested
            self.timeline.begin()
            epoch = self._retry_storage(self._plan_epoch)
            self._planning_s = self.timeline.end_step("plan")
            on_step(EpochStep.PLANNED)
            if epoch is not None:
                with track_running_epoch(self.counters.values()):
                    self._run(epoch)
                # Data that arrives during the epoch does not count as available now.
                ended = epoch.reaches_end or (self.available_now and not epoch.has_more)
            else:
                ended = self._ends_by_itself
            if epoch is None or not (epoch.ranges or epoch.has_more):
                with self._wake:
                    self._drained = request
                    self._wake.notify_all()
            if ended:
                for counters in self.counters.values():
                    counters.state = State.FINISHED
                return False
        if epoch is None:
            self._sleep(self._poll_seconds(), skip_if_woken=True)
        return True

    def _poll_seconds(self) -> float:
        """Return how long to sleep without new data.

        Planning takes about 5% of the time, but the loop looks for data at least once per second.
        """
        seconds = min(max(_POLL_SECONDS, 20 * self._planning_s), _MAX_POLL_SECONDS)
        timer_us = self._next_timer_us()
        if timer_us is None:
            return seconds
        return min(seconds, max((timer_us - _now_us()) / 1_000_000, 0.001))

    def _sleep(self, seconds: float, skip_if_woken: bool) -> None:
        """Sleep until `wake` is called; `skip_if_woken` includes calls since the last sleep."""
        with self._wake:
            if not self._stopping and not (skip_if_woken and self._woken):
                self._wake.wait(seconds)
            self._woken = False

    def wake(self) -> None:
        """Look for new data now."""
        with self._wake:
            self._woken = True
            self._wake.notify_all()

    def _fail(self, error: BaseException) -> None:
        first = next((stream.name for stream in self.streams.values()), self.name)
        self.failure = pipeline_error(getattr(error, "stream", None) or first, error)
        for counters in self.counters.values():
            counters.fail(self.failure.message, self._failed_stream)

    def _retry_storage(self, operation: Callable[[], T]) -> T:
        return retry(operation, STORAGE, self._report_error, self._wait_to_retry)

    def _wait_to_retry(self, seconds: float) -> bool:
        if not self._stopping:
            self._sleep(seconds, skip_if_woken=False)
        return not self._stopping

    def _report_error(self, error: str | None) -> None:
        for counters in self.counters.values():
            counters.error = error

    # Planning

    def _plan_epoch(self) -> EpochPlan | None:
        """Plan the next epoch; return None if there is neither new data nor a due timer."""
        streams, manifest = self.streams.values(), self._manifest
        epoch = plan_epoch(streams, manifest, self.sources, self.tasks, self.until_end)
        ends = epoch.reaches_end and has_unfinished_streams(streams, manifest)
        return epoch if epoch.ranges or ends or self._is_timer_due() else None

    def _is_timer_due(self) -> bool:
        timer_us = self._next_timer_us()
        return timer_us is not None and timer_us <= _now_us()

    def _next_timer_us(self) -> int | None:
        return None if self._ends_by_itself else next_timer_us(self.streams, self._manifest)

    # Running and committing

    def _run(self, epoch: EpochPlan) -> None:
        started = time.monotonic()
        number = self._manifest.epoch + 1
        now_us = max(_now_us(), self._manifest.processing_time_us)
        epoch_spec = build_epoch_spec(self._manifest, epoch, number, now_us, self._tasks_of(epoch))
        epoch_spec = replace(
            epoch_spec, lookups=self.executor.lookup_versions(self.lookups.connectors)
        )
        report = self._run_with_retries(epoch, epoch_spec)
        self.timeline.end_step("run")
        on_step(EpochStep.RAN)
        sinks = {name: (stream, sink) for name, (stream, sink, _) in self.sinks.items()}
        streams = self.streams.values()
        manifest = build_manifest(self._manifest, streams, sinks, epoch, epoch_spec, report)
        self._create_manifest(manifest)
        self._retry_storage(self.context.require_lock)
        self._manifest = manifest
        self.timeline.end_step("commit")
        on_step(EpochStep.COMMITTED)
        self._publish(manifest)
        self.timeline.end_step("publish")
        on_step(EpochStep.PUBLISHED)
        self._finish_epoch(epoch, manifest, report, time.monotonic() - started)

    def _create_manifest(self, manifest: Manifest) -> None:
        attempts = count()
        self._retry_storage(lambda: self.manifests.create(manifest, is_retry=next(attempts) > 0))

    def _run_with_retries(self, epoch: EpochPlan, epoch_spec: EpochSpec) -> EpochReport:
        """Run the job; run it again after transient failures, or if Spark must decode the input."""
        attempt = 0
        while True:
            try:
                return self._retry_storage(lambda: self._run_job(epoch, epoch_spec))
            except JobFailed as error:
                if self._stopping:
                    raise
                if error.unavailable_system is not None:
                    raise error.unavailable_system from None
                if self._graphs.fall_back_to_spark(error):
                    continue
                attempt += 1
                if attempt == _MAX_JOB_ATTEMPTS or not error.transient:
                    raise self._diagnose(epoch, epoch_spec, error) from None
                # New rows, which also wake the loop, do not shorten the delay.
                end_s = time.monotonic() + backoff_s(attempt)
                while (remaining_s := end_s - time.monotonic()) > 0:
                    if not self._wait_to_retry(remaining_s):
                        raise

    def _run_job(self, epoch: EpochPlan, epoch_spec: EpochSpec) -> EpochReport:
        self.epoch_spec_store.write(epoch_spec)
        on_step(EpochStep.SPEC_WRITTEN)
        graph = self._graphs.graph(tuple(self.streams.values()), self._job(epoch, epoch_spec))
        return EpochReport.from_reports(self.executor.run(graph, epoch_spec))

    def _tasks_of(self, epoch: EpochPlan) -> int:
        return 1 if epoch.is_small and has_small_state(self._manifest) else epoch.tasks

    def _job(self, epoch: EpochPlan, epoch_spec: EpochSpec) -> EpochJob:
        tasks, now_us = self._tasks_of(epoch), epoch_spec.now_us
        return EpochJob(self.sources, self.sinks, epoch, self._manifest, tasks, now_us)

    def _diagnose(self, epoch: EpochPlan, epoch_spec: EpochSpec, error: JobFailed) -> TidegateError:
        """Find the failing stream by running each one alone; their output is never committed."""
        streams, job = list(self.streams.values()), self._job(epoch, epoch_spec)
        if len(streams) > 1:
            for stream in streams:
                try:
                    graph = self._graphs.build(with_dependencies(stream, streams), job)
                    self.executor.run(graph, epoch_spec)
                except JobFailed as stream_error:
                    self._failed_stream = stream.key
                    return self._locate_failure(stream, epoch, epoch_spec, stream_error)
        return self._locate_failure(streams[0], epoch, epoch_spec, error)

    def _locate_failure(
        self, stream: PipelineStream, epoch: EpochPlan, epoch_spec: EpochSpec, failed: JobFailed
    ) -> TidegateError:
        """Return the error with the expression and the row that failed, if they can be found."""
        error = pipeline_error(stream.name, failed)
        streams = with_dependencies(stream, tuple(self.streams.values()))
        build = partial(self._graphs.build_query, streams, self._job(epoch, epoch_spec))
        row = self.executor.failing_row(stream.plan, failed, epoch_spec, build)
        return error if row is None else with_failing_row(error, row, self.context.script_of)

    def _publish(self, manifest: Manifest) -> None:
        epoch = EpochId(manifest.generation, manifest.epoch)
        for name, (stream, _, sink) in self.sinks.items():
            publish = partial(sink.publish, epoch, manifest.sinks[name].committables)
            report = partial(self._report_sink_error, stream.key, name)
            retry(publish, PUBLISH, report, self._wait_to_retry)
            report(None)
            on_step(EpochStep.PUBLISHING)

    def _report_sink_error(self, stream: str, sink: str, error: str | None) -> None:
        self.counters[stream].error = error and f"the sink {sink}: {error}"

    def _finish_epoch(
        self, epoch: EpochPlan, manifest: Manifest, report: EpochReport, seconds: float
    ) -> None:
        for (_, source), input_range in epoch.ranges.items():
            self.sources[source].on_commit(input_range.offset)
        for stream in self.streams.values():
            stream_report, ranges = report.stream(stream.name), epoch.ranges_of(stream.key)
            self.counters[stream.key].add(manifest, stream_report, seconds, ranges)
        self.timeline.end(manifest.epoch, *report.rows())
        full_sizes = [r.size for r in epoch.ranges.values() if r.has_more and r.size]
        if full_sizes:
            self.epoch_sizer.learn(max(full_sizes), seconds)
        self._graphs.learn_reduction(report)
        self._sweeper.on_commit(manifest)
        on_step(EpochStep.SWEPT)

    # Waiting and stopping

    def wait(self, timeout: float | None) -> bool:
        """Wait until all input that is available now is processed, or a bounded run has finished.

        Returns False after a timeout. Raises the error of a pipeline that failed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._wake:
            self._drain_requested += 1
            request = self._drain_requested
            self._woken = True
            self._wake.notify_all()
            while self._loop_runs and not (self._drained >= request and not self._ends_by_itself):
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return False
                self._wake.wait(remaining if remaining is not None else 1.0)
        self._raise_failure()
        return True

    @property
    def _ends_by_itself(self) -> bool:
        return self.until_end or self.available_now

    @property
    def _loop_runs(self) -> bool:
        return self._thread is not None and not self._loop_ended and self.failure is None

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def may_emit(self) -> bool:
        """Return whether more epochs may follow; raise the error of a pipeline that failed."""
        self._raise_failure()
        return self._loop_runs and not self._stopping

    def stop(self) -> None:
        """Stop immediately. An epoch that is not committed is discarded."""
        self._stopping = True
        self.wake()
        thread = self._thread
        if thread is not None:
            deadline = time.monotonic() + _STOP_SECONDS
            while thread.is_alive() and time.monotonic() < deadline:
                self.executor.cancel()
                thread.join(0.2)
        for counters in self.counters.values():
            if counters.state in (State.RUNNING, State.STARTING):
                counters.state = State.STOPPED
        self.epoch_spec_store.forget()

    def drop_stream(self, name: str) -> None:
        """Remove a stream and its state."""
        key = name.lower()
        with self._lock:
            manifest = without_streams(self._manifest, {key})
            if manifest is not self._manifest:
                # Checked before: the next driver would fail if this manifest existed.
                self._retry_storage(self.context.require_lock)
                self._create_manifest(manifest)
                self._manifest = manifest
            self.streams.pop(key, None)
            self.counters.pop(key, None)
            self.sinks = {k: v for k, v in self.sinks.items() if v[0].key != key}
            self._graphs.invalidate()
            self.executor.forget()

    def status(self) -> list[StreamStatus]:
        return [counters.status() for counters in self.counters.values()]


def _now_us() -> int:
    return time.time_ns() // 1000


def _skipped_manifest(name: str, reason: str) -> RunError:
    return RunError(
        "TG-605",
        f"{name} cannot be used: {reason}; the pipeline continues from the previous manifest",
        hint="the rows of the lost epoch will be read again.",
    )
