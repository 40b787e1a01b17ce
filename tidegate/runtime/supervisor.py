"""The supervisor of a session: decides which streams run, and starts and stops their pipelines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Declared, SideStream, Sink, Stream, tables_in
from tidegate.catalog.options import Options
from tidegate.catalog.settings import Settings
from tidegate.checkpoint.checkpoints import Checkpoints, Restored, RestoreRequest
from tidegate.checkpoint.manifests import Manifests
from tidegate.connectors import view
from tidegate.connectors.base import ConsoleCallback, LookupContext, SinkContext, SourceContext
from tidegate.connectors.memory import connector as memory
from tidegate.connectors.registry import CONNECTORS, LOOKUPS, SINKS, SOURCES
from tidegate.errors import RunError, TidegateError
from tidegate.observe.status import State, StreamStatus
from tidegate.observe.timeline import Timeline
from tidegate.physical.rejections import require_end
from tidegate.physical.stages import all_scans, plan_stages
from tidegate.plan.side_streams import late_inputs
from tidegate.runtime.directory import DataDirectory, is_cluster
from tidegate.runtime.planning import PipelineStream, StreamPlanner, pipeline_of
from tidegate.runtime.reconciliation import view_sink

if TYPE_CHECKING:
    from tidegate.runtime.pipeline import Pipeline, PipelineContext


class Supervisor:
    """Runs every stream that has a sink or a subscriber, or whose late rows such a stream reads."""

    def __init__(
        self, directory: DataDirectory, spark: Callable[[], Any], show: ConsoleCallback
    ) -> None:
        self.directory = directory
        self._spark = spark
        self._show = show
        self._pipelines: dict[str, Pipeline] = {}
        # Sinks of subscribers, of `peek` and of consoles, by their names.
        self._implicit_sinks: dict[str, Sink] = {}
        # The callbacks of `peek`, by the name of the implicit sink; and the streams that were
        # started only for them.
        self._peek_callbacks: dict[str, ConsoleCallback] = {}
        self._only_peeked: set[str] = set()
        # Held while streams are started or changed. The console peeks and restores in threads.
        self._lock = threading.RLock()
        # The declarations and settings that were applied last.
        self._applied: tuple[Catalog, Settings] | None = None
        self._stopped_pipelines: set[str] = set()
        # Status and timelines of the last run, for a stopped session.
        self._last_status: tuple[StreamStatus, ...] = ()
        self._last_timelines: list[Timeline] = []
        # While a checkpoint is restored, stopped streams have not ended.
        self._restoring = False
        # Warnings of started pipelines; the caller that shows them clears the list.
        self.warnings: list[TidegateError] = []
        # Whether the session runs to the end of its input; None while it is stopped.
        self.until_end: bool | None = None
        # Whether the session stops after all available data, with windows still open.
        self.available_now = False

    @property
    def running(self) -> bool:
        return self.until_end is not None

    # Which streams run

    def required_streams(self, catalog: Catalog) -> list[str]:
        """Return the streams that are consumed, in the order of their declaration."""
        owners = {self._owner_of(catalog, sink.stream).lower() for sink in self.sinks(catalog)}
        # A stream is declared after the streams whose late rows it reads.
        for stream in reversed(list(catalog.of_type(Stream))):
            if stream.name.lower() in owners:
                owners |= set(late_inputs(stream.plan).values())
        streams = [*catalog.of_type(Stream), *catalog.of_type(SideStream)]
        return [stream.name for stream in streams if stream.name.lower() in owners]

    def _owner_of(self, catalog: Catalog, stream: str) -> str:
        """Return the stream that emits these rows: for a side stream of a stream, its parent."""
        declared = catalog.get(stream)
        if isinstance(declared, SideStream) and declared.is_from_stream:
            return declared.parent
        return stream

    def sinks(self, catalog: Catalog) -> list[Sink]:
        """Return declared sinks, sinks of materialized views, subscribers and consoles."""
        views = [view_sink(stream) for stream in catalog.of_type(Stream) if stream.materialized]
        return [*catalog.of_type(Sink), *views, *self._implicit_sinks.values()]

    def _sinks_of(self, catalog: Catalog, stream: str) -> list[Sink]:
        name = stream.lower()
        return [s for s in self.sinks(catalog) if self._owner_of(catalog, s.stream).lower() == name]

    def check_runnable(
        self, catalog: Catalog, until_end: bool, available_now: bool = False
    ) -> None:
        """Raise if a stream would never emit rows, or the run would never end."""
        for name in self.required_streams(catalog):
            declared = catalog.get(name)
            if isinstance(declared, Stream):
                if not until_end:
                    require_end(declared, declared.typed_plan.plan)
                if until_end or available_now:
                    self._require_bounded_sources(declared)

    def _require_bounded_sources(self, declared: Stream) -> None:
        for scan in all_scans(plan_stages(declared.typed_plan.plan)):
            source = getattr(scan, "source", None)
            spec = CONNECTORS[source.connector].source if source is not None else None
            if source is not None and spec is not None and spec.never_ends(source.options):
                raise RunError(
                    "TG-505",
                    f"the source {source.name} is unbounded, so the run would never end",
                    hint=f"make {source.name} bounded, for example with rows = 1000000, or run "
                    "without --until-end and --available-now.",
                )

    # Starting and changing pipelines

    def start(
        self, catalog: Catalog, settings: Settings, until_end: bool, available_now: bool = False
    ) -> None:
        """Start all pipelines, or none if one of them cannot start."""
        with self._lock:
            self.until_end, self.available_now = until_end, available_now
            try:
                self.start_or_update(catalog, settings)
            except BaseException:
                self.stop()
                raise

    def start_or_update(self, catalog: Catalog, settings: Settings) -> None:
        """Start new pipelines, and apply changes of streams and sinks to running ones."""
        with self._lock:
            self._start_or_update(catalog, settings)

    def _start_or_update(self, catalog: Catalog, settings: Settings) -> None:
        assert self.until_end is not None, "the session is running"
        self._applied = catalog, settings
        planner = StreamPlanner(self._spark(), catalog, settings)
        for name, streams in self._plan_pipelines(planner).items():
            pipeline = self._pipelines.get(name)
            trigger = min(planner.trigger_us(stream.name) for stream in streams)
            if pipeline is None:
                self._start(name, streams, planner, trigger)
            elif _has_changed(pipeline, streams):
                pipeline.change(streams, trigger)
                self._collect_warnings(pipeline)

    def check_and_apply_changes(self, catalog: Catalog, settings: Settings) -> None:
        """Apply changes, or none of them if a stream does not fit its stored state."""
        pipelines = self._plan_pipelines(StreamPlanner(self._spark(), catalog, settings))
        for name, streams in pipelines.items():
            if name in self._pipelines:
                self._pipelines[name].check(streams)
        self.apply_changes(catalog, settings)

    def _plan_pipelines(self, planner: StreamPlanner) -> dict[str, list[PipelineStream]]:
        """Plan all required streams; return them by pipeline."""
        catalog = planner.catalog
        pipelines: dict[str, list[PipelineStream]] = {}
        required = [catalog.get(name) for name in self.required_streams(catalog)]
        streams = [item for item in required if isinstance(item, Stream)]
        late_parents = {
            parent for stream in streams for parent in late_inputs(stream.plan).values()
        }
        for declared in required:
            assert isinstance(declared, Stream | SideStream), "a consumed object is a stream"
            sinks = self._sinks_of(catalog, declared.name)
            stream = planner.plan_stream(declared, sinks, declared.name.lower() in late_parents)
            pipelines.setdefault(pipeline_of(declared), []).append(stream)
        return pipelines

    def _start(
        self, name: str, streams: list[PipelineStream], planner: StreamPlanner, trigger_us: int
    ) -> None:
        from tidegate.runtime.pipeline import Pipeline

        assert self.until_end is not None, "the session is running"
        pipeline = Pipeline(self._context(name, planner), name)
        pipeline.start(streams, self.until_end, trigger_us, self.available_now)
        self._collect_warnings(pipeline)
        self._pipelines[name] = pipeline
        self._stopped_pipelines.discard(name)

    def _collect_warnings(self, pipeline: Pipeline) -> None:
        self.warnings += pipeline.warnings
        pipeline.warnings = []

    def _context(self, name: str, planner: StreamPlanner) -> PipelineContext:
        from tidegate.runtime.pipeline import PipelineContext
        from tidegate.spark.executor import SparkExecutor

        settings = planner.settings
        return PipelineContext(
            lambda epoch_specs, connectors: SparkExecutor(planner.spark, epoch_specs, connectors),
            settings,
            self.directory.pipeline(name),
            self.directory.epoch_specs.uri,
            lambda source, offsets, sizer: SOURCES[source.connector](
                SourceContext(
                    source, self.directory.source(source.name).uri, offsets, settings, sizer
                )
            ),
            lambda sink, stream_id, stream: SINKS[sink.connector](
                SinkContext(
                    sink,
                    self.directory.stream(sink.stream).uri,
                    stream_id,
                    self._peek_callbacks.get(sink.name, self._show),
                    stream.sink_columns(sink),
                    stream.sink_schema(sink),
                    Manifests(self.directory.pipeline(name), settings["max_retained"]).load_all,
                )
            ),
            lambda table, scratch: LOOKUPS[table.connector](
                LookupContext(table, self.directory.source(table.name).uri, scratch)
            ),
            planner.source_of,
            settings["key_groups"] or _default_key_groups(planner.spark),
            planner.script_of,
            self.directory.require_lock,
        )

    # Waiting and stopping

    def wait(self, timeout: float | None) -> bool:
        """Wait for all pipelines, see `Pipeline.wait`; return False after a timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        is_done = True
        for pipeline in list(self._pipelines.values()):
            remaining = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            is_done = pipeline.wait(remaining) and is_done
        return is_done

    def stop(self) -> None:
        """Stop every pipeline, even if one fails to stop; then raise the first error."""
        failures: list[BaseException] = []
        # Without the lock: another thread may hold it while it waits for a pipeline.
        stopped = self._stop_pipelines([], failures)
        with self._lock:
            self._stop_pipelines(stopped, failures)
            if self._pipelines:
                self._last_status = _statuses(self._pipelines.values())
            self._last_timelines = self.timelines()
            self._pipelines.clear()
            self.until_end = None
        if failures:
            raise failures[0]

    def _stop_pipelines(
        self, stopped: list[Pipeline], failures: list[BaseException]
    ) -> list[Pipeline]:
        """Stop all pipelines except those in `stopped`; return all stopped ones."""
        pipelines = dict(self._pipelines)
        for name, pipeline in pipelines.items():
            if pipeline in stopped:
                continue
            try:
                pipeline.stop()
            except Exception as error:
                failures.append(error)
            self._stopped_pipelines.add(name)
        return list(pipelines.values())

    def apply_changes(self, catalog: Catalog, settings: Settings) -> None:
        """Stop pipelines without streams, and apply all other changes."""
        with self._lock:
            if not self.running:
                return
            required = {pipeline_of(catalog.get(name)) for name in self.required_streams(catalog)}
            for name in [name for name in self._pipelines if name not in required]:
                self._pipelines.pop(name).stop()
            self.start_or_update(catalog, settings)

    def drop_stream(self, catalog: Catalog, settings: Settings, stream: str) -> None:
        """Stop a dropped stream, and remove its subscribers and its state."""
        from tidegate.checkpoint.manifests import forget_stream

        with self._lock:
            self._implicit_sinks = {
                key: sink
                for key, sink in self._implicit_sinks.items()
                if sink.stream.lower() != stream.lower()
            }
            self.apply_changes(catalog, settings)
            for name in self.directory.pipeline_names():
                pipeline = self._pipelines.get(name)
                if pipeline is not None:
                    pipeline.drop_stream(stream)
                else:
                    self.directory.require_lock()
                    forget_stream(self.directory.pipeline(name), stream)

    # Checkpoints

    def checkpoints(self, settings: Settings) -> Checkpoints:
        """Return the checkpoints of all pipelines in the directory, running or not."""
        manifests = {}
        for name in self.directory.pipeline_names():
            pipeline = self._pipelines.get(name)
            if pipeline is None:
                store = self.directory.pipeline(name)
                manifests[name] = Manifests(store, settings["max_retained"])
            else:
                manifests[name] = pipeline.manifests
        return Checkpoints(manifests, tolerates_restore)

    def restore(
        self, catalog: Catalog, settings: Settings, request: RestoreRequest
    ) -> list[Restored]:
        """Restore a checkpoint; a running session is stopped for it and started again."""
        with self._lock:
            self.checkpoints(settings).check(request)
            until_end, available_now = self.until_end, self.available_now
            if until_end is None:
                return self.checkpoints(settings).restore(request)
            self._last_status = self.status()
            self._restoring = True
            try:
                self.stop()
                try:
                    return self.checkpoints(settings).restore(request)
                finally:
                    self.start(catalog, settings, until_end, available_now)
            finally:
                self._restoring = False

    # Status

    def wake(self) -> None:
        """Make all pipelines look for new data now."""
        for pipeline in list(self._pipelines.values()):
            pipeline.wake()

    def status(self) -> tuple[StreamStatus, ...]:
        """Return the status of all streams; after a stop, the status at that time."""
        if self._restoring:
            # Callers that wait for the end of the streams must not mistake a restore for it.
            return tuple(
                replace(status, state=State.STARTING, error=None) for status in self._last_status
            )
        pipelines = list(self._pipelines.values())
        return _statuses(pipelines) if pipelines else self._last_status

    def timelines(self) -> list[Timeline]:
        """Return the timelines of the running pipelines, or of the last run."""
        timelines = [pipeline.timeline for pipeline in list(self._pipelines.values())]
        return timelines or self._last_timelines

    def may_emit(self, catalog: Catalog, name: str) -> bool:
        """Return whether a stream may emit more epochs; raise the error of a failed pipeline."""
        declared = catalog.get(self._owner_of(catalog, name))
        pipeline_name = pipeline_of(declared)
        if declared is None or not self.directory.is_open:
            return False
        if self._restoring:
            return True
        if pipeline_name in self._stopped_pipelines:
            return False
        pipeline = self._pipelines.get(pipeline_name)
        return pipeline is None or pipeline.may_emit()

    # Subscribers and consoles

    def subscribe(self, catalog: Catalog, declared: Declared) -> bool:
        """Add a memory sink to a stream that has none; return whether one was added."""
        key = declared.name.lower()
        for sink in self.sinks(catalog):
            if sink.stream.lower() == key and sink.connector == "memory":
                return False
        options = Options({"retain_epochs": memory.DEFAULT_RETAIN_EPOCHS}, {}, set())
        name = f"subscribers of {declared.name}"
        self._implicit_sinks[name] = Sink(
            name, options, declared.statement, declared.script, "memory", declared.name, True
        )
        return True

    @contextmanager
    def peek(
        self, catalog: Catalog, settings: Settings, stream: str, rows: int, show: ConsoleCallback
    ) -> Iterator[None]:
        """Pass the first rows of each epoch to `show`, as long as the context is open.

        A stream that only runs for this is dropped afterwards, so that a later consumer gets all of
        its rows.
        """
        with self._lock:
            if self.until_end is None:
                raise RunError(
                    "TG-506",
                    f"the session is not running, so {stream} produces no rows",
                    hint="start the session first: db.start(), \\start in the shell.",
                )
            name = self._add_peek(catalog, stream, rows, show)
            try:
                self.check_runnable(catalog, self.until_end)
                self.start_or_update(catalog, settings)
            except BaseException:
                self._remove_peek(name, catalog, settings)
                raise
        try:
            yield
        finally:
            with self._lock:
                self._remove_peek(name, *(self._applied or (catalog, settings)))

    def _add_peek(self, catalog: Catalog, stream: str, rows: int, show: ConsoleCallback) -> str:
        """Add a console sink for a peek; return its name, which no other open peek has."""
        declared = catalog.get(stream)
        assert declared is not None, f"{stream} is declared"
        # Manifests keep the names of sinks, so few different names are used.
        names = (f"peek at {declared.name}{f' ({n})' if n > 1 else ''}" for n in count(1))
        name = next(name for name in names if name not in self._peek_callbacks)
        required = self._required_keys(catalog)
        self._peek_callbacks[name] = show
        self._implicit_sinks[name] = Sink(
            name,
            Options({"rows": rows}, {}, set()),
            declared.statement,
            declared.script,
            "console",
            declared.name,
            True,
        )
        self._only_peeked |= self._required_keys(catalog) - required
        return name

    def _remove_peek(self, name: str, catalog: Catalog, settings: Settings) -> None:
        """Remove the sink of a peek, and drop the streams that no consumer or peek needs now."""
        self._implicit_sinks.pop(name, None)
        self._peek_callbacks.pop(name, None)
        required = self._required_keys(catalog)
        dropped = self._only_peeked - required
        self._only_peeked &= required if self._peek_callbacks else set()
        # Another process may use the directory of a closed session.
        if self.directory.is_open and dropped:
            for stream in sorted(dropped):
                self.drop_stream(catalog, settings, stream)
        else:
            self.apply_changes(catalog, settings)

    def _required_keys(self, catalog: Catalog) -> set[str]:
        return {name.lower() for name in self.required_streams(catalog)}

    def add_console_sinks(self, catalog: Catalog) -> list[str]:
        """Add a console sink to each stream that is not consumed; return the streams' names."""
        consumed = {
            table.lower()
            for stream in catalog.of_type(Stream)
            for table in tables_in(stream.query.tree)
        }
        consumed |= {sink.stream.lower() for sink in self.sinks(catalog)}
        added = []
        for stream in catalog.of_type(Stream):
            if stream.name.lower() not in consumed:
                options = Options({"rows": 20}, {}, set())
                name = f"console of {stream.name}"
                self._implicit_sinks[name] = Sink(
                    name, options, stream.statement, stream.script, "console", stream.name, True
                )
                added.append(stream.name)
        return added


def _has_changed(pipeline: Pipeline, streams: list[PipelineStream]) -> bool:
    """Return whether a pipeline runs other streams or sinks than these."""
    running = {key: stream.sinks for key, stream in pipeline.streams.items()}
    if running != {stream.key: stream.sinks for stream in streams}:
        return True
    return not all(pipeline.streams[stream.key].has_same_declaration(stream) for stream in streams)


def _statuses(pipelines: Iterable[Pipeline]) -> tuple[StreamStatus, ...]:
    return tuple(item for pipeline in pipelines for item in pipeline.status())


def tolerates_restore(connector: str) -> bool:
    """Return whether a restore leaves no duplicates in sinks of a connector; False if unknown."""
    if connector == view.CONNECTOR:
        return True
    spec = CONNECTORS.get(connector)
    return spec is not None and spec.sink is not None and spec.sink.tolerates_restore


def _default_key_groups(spark: Any) -> int:
    return 128 if is_cluster(spark.conf.get("spark.master", None)) else 16
