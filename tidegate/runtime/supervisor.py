"""The supervisor of a session's pipelines: which streams run, with which sinks, where they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Declared, SideStream, Sink, Stream, tables_in
from tidegate.catalog.options import Options
from tidegate.catalog.settings import Settings
from tidegate.checkpoint.checkpoints import Checkpoints, Restored, RestoreRequest
from tidegate.checkpoint.manifests import Manifests
from tidegate.connectors import view
from tidegate.connectors.base import LookupContext, SinkContext, SourceContext
from tidegate.connectors.memory import connector as memory
from tidegate.connectors.registry import CONNECTORS, LOOKUPS, SINKS, SOURCES
from tidegate.errors import RunError, TidegateError
from tidegate.observe.status import State, StreamStatus
from tidegate.observe.timeline import Timeline
from tidegate.physical.rejections import require_end
from tidegate.physical.stages import all_scans, plan_stages
from tidegate.plan.side_streams import late_inputs
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.planning import Planning, is_cluster, pipeline_of
from tidegate.runtime.reconciliation import PipelineStream, view_sink

if TYPE_CHECKING:
    from tidegate.runtime.pipeline import Pipeline, PipelineContext

Show = Callable[[str, int, Any], None]


class Supervisor:
    """Runs every stream that has a sink or a subscriber, or whose late rows such a stream reads."""

    def __init__(self, directory: DataDirectory, spark: Callable[[], Any], show: Show) -> None:
        self.directory = directory
        self._spark = spark
        self._show = show
        self._pipelines: dict[str, Pipeline] = {}
        self._subscribed: dict[str, Sink] = {}
        # Who looks at a stream for a moment, by the name of the sink made for it.
        self._peeks: dict[str, Show] = {}
        self._ended: set[str] = set()
        # How the streams were when they were stopped.
        self._last: tuple[StreamStatus, ...] = ()
        self._past: list[Timeline] = []
        # Streams that stop to go back to a checkpoint have not ended.
        self._restoring = False
        # What starting on old data means; whoever shows warnings takes them from here.
        self.warnings: list[TidegateError] = []
        # None while the session is stopped, else whether it runs to the end of its input.
        self.until_end: bool | None = None
        # Whether it ends when there is nothing new, with windows still open.
        self.available_now = False

    @property
    def running(self) -> bool:
        return self.until_end is not None

    # What runs

    def wanted(self, catalog: Catalog) -> list[str]:
        """The streams that somebody wants, in the order they were declared."""
        owners = {self._owner(catalog, sink.source).lower() for sink in self.sinks(catalog)}
        # Readers are declared after those whose late rows they read.
        for stream in reversed(list(catalog.of(Stream))):
            if stream.name.lower() in owners:
                owners |= set(late_inputs(stream.plan).values())
        streams = [*catalog.of(Stream), *catalog.of(SideStream)]
        return [stream.name for stream in streams if stream.name.lower() in owners]

    def _owner(self, catalog: Catalog, stream: str) -> str:
        """The stream whose pipeline hands out these rows: late rows come from their parent's."""
        declared = catalog.get(stream)
        if isinstance(declared, SideStream) and declared.of_stream:
            return declared.parent
        return stream

    def sinks(self, catalog: Catalog) -> list[Sink]:
        views = [view_sink(stream) for stream in catalog.of(Stream) if stream.materialized]
        return [*catalog.of(Sink), *views, *self._subscribed.values()]

    def _sinks_of(self, catalog: Catalog, stream: str) -> list[Sink]:
        name = stream.lower()
        return [s for s in self.sinks(catalog) if self._owner(catalog, s.source).lower() == name]

    def check_runnable(
        self, catalog: Catalog, until_end: bool, available_now: bool = False
    ) -> None:
        """Reject what would say nothing, or never end, before anything is started."""
        for name in self.wanted(catalog):
            declared = catalog.get(name)
            if isinstance(declared, Stream):
                if not until_end:
                    require_end(declared, declared.typed.plan)
                if until_end or available_now:
                    self._require_end(declared)

    def _require_end(self, declared: Stream) -> None:
        """Running to the end of what never ends would hang: say so instead."""
        for scan in all_scans(plan_stages(declared.typed.plan)):
            source = getattr(scan, "source", None)
            spec = CONNECTORS[source.connector].source if source is not None else None
            if (
                source is not None
                and spec is not None
                and spec.unbounded_by_options(source.options)
            ):
                raise RunError(
                    "TG-505",
                    f"the source {source.name} never ends, so there is no end to run to",
                    hint=f"give {source.name} an end, for example rows = 1000000, or run without "
                    "--until-end and --available-now.",
                )

    # Starting

    def start(
        self, catalog: Catalog, settings: Settings, until_end: bool, available_now: bool = False
    ) -> None:
        self.until_end, self.available_now = until_end, available_now
        try:
            self.start_missing(catalog, settings)
        except BaseException:
            self.stop()
            raise

    def start_missing(self, catalog: Catalog, settings: Settings) -> None:
        """Start what does not run yet, and let new streams and sinks join what does."""
        assert self.until_end is not None, "pipelines start with the session"
        planning = Planning(self._spark(), catalog, settings)
        for name, members in self._members(planning).items():
            running = self._pipelines.get(name)
            trigger = min(planning.trigger_us(member.name) for member in members)
            if running is None:
                self._start(name, members, planning, trigger)
            elif _differ(running, members):
                running.change(members, trigger)
                self._take_warnings(running)

    def replace(self, catalog: Catalog, settings: Settings) -> None:
        """Run streams that have taken the place of others; all of them, or none if one is rejected.

        What is stored for a stream decides, as it does when a script has changed.
        """
        planned = self._members(Planning(self._spark(), catalog, settings))
        for name, members in planned.items():
            if name in self._pipelines:
                self._pipelines[name].check(members)
        self.restart_without(catalog, settings)

    def _members(self, planning: Planning) -> dict[str, list[PipelineStream]]:
        """By pipeline, the streams that are to run."""
        catalog = planning.catalog
        wanted: dict[str, list[PipelineStream]] = {}
        found = [catalog.get(name) for name in self.wanted(catalog)]
        streams = [item for item in found if isinstance(item, Stream)]
        read = {parent for stream in streams for parent in late_inputs(stream.plan).values()}
        for declared in found:
            assert isinstance(declared, Stream | SideStream), "what is wanted can run"
            sinks = self._sinks_of(catalog, declared.name)
            member = planning.member(declared, sinks, declared.name.lower() in read)
            wanted.setdefault(pipeline_of(declared), []).append(member)
        return wanted

    def _start(
        self, name: str, members: list[PipelineStream], planning: Planning, trigger_us: int
    ) -> None:
        from tidegate.runtime.pipeline import Pipeline

        assert self.until_end is not None, "pipelines start with the session"
        pipeline = Pipeline(self._context(name, planning), name)
        pipeline.start(members, self.until_end, trigger_us, self.available_now)
        self._take_warnings(pipeline)
        self._pipelines[name] = pipeline
        self._ended.discard(name)

    def _take_warnings(self, pipeline: Pipeline) -> None:
        self.warnings += pipeline.warnings
        pipeline.warnings = []

    def _context(self, name: str, planning: Planning) -> PipelineContext:
        from tidegate.runtime.pipeline import PipelineContext

        settings = planning.settings
        return PipelineContext(
            planning.spark,
            settings,
            self.directory.pipeline(name),
            self.directory.epoch_specs.uri,
            lambda source, offsets, pace: SOURCES[source.connector](
                SourceContext(
                    source, self.directory.source(source.name).uri, offsets, settings, pace
                )
            ),
            lambda sink, stream, member: SINKS[sink.connector](
                SinkContext(
                    sink,
                    self.directory.stream(sink.source).uri,
                    stream,
                    self._peeks.get(sink.name, self._show),
                    member.columns(sink),
                    member.rows_of(sink),
                    Manifests(self.directory.pipeline(name), settings["max_retained"]).load_all,
                )
            ),
            lambda table, scratch: LOOKUPS[table.connector](
                LookupContext(table, self.directory.source(table.name).uri, scratch)
            ),
            planning.source_of,
            settings["key_groups"] or _default_key_groups(planning.spark),
            planning.origin_of,
            self.directory.require_held,
        )

    # Waiting and ending

    def wait(self, timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        done = True
        for pipeline in list(self._pipelines.values()):
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            done = pipeline.wait(left) and done
        return done

    def stop(self) -> None:
        """Stop every pipeline, also when one of them fails to; the first failure is told."""
        failures: list[BaseException] = []
        for name, pipeline in self._pipelines.items():
            try:
                pipeline.stop()
            except Exception as error:
                failures.append(error)
            self._ended.add(name)
        if self._pipelines:
            self._last = _statuses(self._pipelines.values())
        self._past = self.timelines()
        self._pipelines.clear()
        self.until_end = None
        if failures:
            raise failures[0]

    def restart_without(self, catalog: Catalog, settings: Settings) -> None:
        """A stream or sink was dropped: what is left goes on."""
        if not self.running:
            return
        left = {pipeline_of(catalog.get(name)) for name in self.wanted(catalog)}
        for name in [name for name in self._pipelines if name not in left]:
            self._pipelines.pop(name).stop()
        self.start_missing(catalog, settings)

    def forget(self, catalog: Catalog, settings: Settings, stream: str) -> None:
        """Forget a stream that was dropped, and its subscribers with it."""
        self._subscribed = {
            key: sink
            for key, sink in self._subscribed.items()
            if sink.source.lower() != stream.lower()
        }
        from tidegate.checkpoint.manifests import forget_stream

        self.restart_without(catalog, settings)
        for name in self.directory.pipelines():
            running = self._pipelines.get(name)
            if running is not None:
                running.forget(stream)
            else:
                forget_stream(self.directory.pipeline(name), stream)

    # Checkpoints

    def checkpoints(self, settings: Settings) -> Checkpoints:
        """Those of all pipelines that were ever started here, whether they run or not."""
        found = {}
        for name in self.directory.pipelines():
            running = self._pipelines.get(name)
            store, most = self.directory.pipeline(name), settings["max_retained"]
            found[name] = Manifests(store, most) if running is None else running.manifests
        return Checkpoints(found, supports_rollback)

    def restore(
        self, catalog: Catalog, settings: Settings, wanted: RestoreRequest
    ) -> list[Restored]:
        """Go back to a checkpoint; what runs is stopped for it, and started again."""
        self.checkpoints(settings).check(wanted)
        until_end, available_now = self.until_end, self.available_now
        if until_end is None:
            return self.checkpoints(settings).restore(wanted)
        self._last = self.status()
        self._restoring = True
        try:
            self.stop()
            try:
                return self.checkpoints(settings).restore(wanted)
            finally:
                self.start(catalog, settings, until_end, available_now)
        finally:
            self._restoring = False

    def wake(self) -> None:
        """Rows were inserted."""
        for pipeline in self._pipelines.values():
            pipeline.wake()

    def status(self) -> tuple[StreamStatus, ...]:
        """How the streams are; after a stop, how they were."""
        pipelines = list(self._pipelines.values())
        if self._restoring or not pipelines:
            # Whoever waits for the end of streams must not take a restore for it.
            return tuple(map(_starting, self._last)) if self._restoring else self._last
        return _statuses(pipelines)

    def timelines(self) -> list[Timeline]:
        """Those of the pipelines that run, or of those that ran last."""
        return [pipeline.timeline for pipeline in list(self._pipelines.values())] or self._past

    # Subscribers and consoles

    def subscribe(self, catalog: Catalog, declared: Declared) -> bool:
        """Give a stream a memory sink if it has none; True if that is new."""
        key = declared.name.lower()
        for sink in self.sinks(catalog):
            if sink.source.lower() == key and sink.connector == "memory":
                return False
        options = Options({"retain_epochs": memory.DEFAULT_RETAIN_EPOCHS}, {}, set())
        name = f"subscribers of {declared.name}"
        self._subscribed[key] = Sink(
            name, options, declared.statement, declared.origin, "memory", declared.name, True
        )
        return True

    @contextmanager
    def peeking(
        self, catalog: Catalog, settings: Settings, stream: str, rows: int, show: Show
    ) -> Iterator[None]:
        """Show the first rows of each epoch to somebody who looks for a moment.

        A stream that runs for nobody else is forgotten afterwards: whoever wants it later gets all
        of its rows.
        """
        assert self.until_end is not None, "who looks has started the session"
        declared = catalog.get(stream)
        assert declared is not None, f"{stream} is declared"
        owner = self._owner(catalog, stream)
        wanted = owner.lower() in (name.lower() for name in self.wanted(catalog))
        name, options = f"peek at {declared.name}", Options({"rows": rows}, {}, set())
        self._peeks[name] = show
        self._subscribed[name] = Sink(
            name, options, declared.statement, declared.origin, "console", declared.name, True
        )
        try:
            self.check_runnable(catalog, self.until_end)
            self.start_missing(catalog, settings)
            yield
        finally:
            del self._subscribed[name], self._peeks[name]
            if wanted:
                self.restart_without(catalog, settings)
            else:
                self.forget(catalog, settings, owner)

    def may_come(self, catalog: Catalog, name: str) -> bool:
        """Whether a stream may still give out epochs; raises the error of one that failed."""
        declared = catalog.get(self._owner(catalog, name))
        owner = pipeline_of(declared)
        if declared is None or not self.directory.is_open:
            return False
        if self._restoring:
            return True
        if owner in self._ended:
            return False
        pipeline = self._pipelines.get(owner)
        return pipeline is None or pipeline.is_alive()

    def add_console_sinks(self, catalog: Catalog) -> list[str]:
        """Show the streams that nobody else consumes; returns their names."""
        read = {
            table.lower() for stream in catalog.of(Stream) for table in tables_in(stream.query.tree)
        }
        read |= {sink.source.lower() for sink in self.sinks(catalog)}
        added = []
        for stream in catalog.of(Stream):
            if stream.name.lower() not in read:
                options = Options({"rows": 20}, {}, set())
                name = f"console of {stream.name}"
                self._subscribed[f"console:{stream.name.lower()}"] = Sink(
                    name, options, stream.statement, stream.origin, "console", stream.name, True
                )
                added.append(stream.name)
        return added


def _differ(pipeline: Pipeline, members: list[PipelineStream]) -> bool:
    """Whether a pipeline runs other streams or sinks than these."""
    running = {key: member.sinks for key, member in pipeline.members.items()}
    if running != {member.key: member.sinks for member in members}:
        return True
    return not all(pipeline.members[member.key].is_same(member) for member in members)


def _statuses(pipelines: Iterable[Pipeline]) -> tuple[StreamStatus, ...]:
    return tuple(item for pipeline in pipelines for item in pipeline.status())


def _starting(status: StreamStatus) -> StreamStatus:
    return replace(status, state=State.STARTING, error=None)


def supports_rollback(connector: str) -> bool:
    """Whether sinks of a connector can forget rows; one that is unknown cannot."""
    if connector == view.CONNECTOR:
        return True
    spec = CONNECTORS.get(connector)
    return spec is not None and spec.sink is not None and spec.sink.supports_rollback


def _default_key_groups(spark: Any) -> int:
    return 128 if is_cluster(spark.conf.get("spark.master", None)) else 16
