"""The supervisor of a session's pipelines: which streams run, with which sinks, where they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Declared, SideStream, Sink, Source, Stream, tables_in
from tidegate.catalog.options import Options
from tidegate.catalog.settings import Settings
from tidegate.connectors import memory
from tidegate.connectors.registry import CONNECTORS, READERS, WRITERS
from tidegate.errors import RunError, TidegateError
from tidegate.observe.status import StreamStatus
from tidegate.physical.refusals import require_end
from tidegate.physical.stages import all_scans, plan_stages
from tidegate.plan.tables import side_plan
from tidegate.runtime.connector import SinkContext
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.record import OperatorIdentity, Pipeline, SourceIdentity, open_record

if TYPE_CHECKING:
    from tidegate.physical.typed import TypedPlan
    from tidegate.spark.pipeline import PipelineContext, SparkPipeline

Show = Callable[[str, int, Any], None]


class Supervisor:
    """Runs every stream that has a sink or a subscriber; late streams run with their parent."""

    def __init__(self, directory: DataDirectory, spark: Callable[[], Any], show: Show) -> None:
        self.directory = directory
        self._spark = spark
        self._show = show
        self._listener: Any = None
        self._pipelines: dict[str, SparkPipeline] = {}
        self._subscribed: dict[str, Sink] = {}
        self._ended: set[str] = set()
        # What starting on old data means; whoever shows warnings takes them from here.
        self.warnings: list[TidegateError] = []
        # None while the session is stopped, else whether it runs to the end of its input.
        self.until_end: bool | None = None

    @property
    def running(self) -> bool:
        return self.until_end is not None

    # What runs

    def wanted(self, catalog: Catalog) -> list[str]:
        """The streams that somebody wants, in the order they were declared."""
        sinks = (*catalog.of(Sink), *self._subscribed.values())
        owners = {self._owner(catalog, sink.source).lower() for sink in sinks}
        streams = [*catalog.of(Stream), *catalog.of(SideStream)]
        return [stream.name for stream in streams if stream.name.lower() in owners]

    def _owner(self, catalog: Catalog, stream: str) -> str:
        """The stream whose pipeline hands out these rows: late rows come from their parent's."""
        declared = catalog.get(stream)
        if isinstance(declared, SideStream) and declared.is_late:
            return declared.parent
        return stream

    def sinks(self, catalog: Catalog) -> list[Sink]:
        return [*catalog.of(Sink), *self._subscribed.values()]

    def _sinks_of(self, catalog: Catalog, stream: str) -> list[Sink]:
        name = stream.lower()
        return [s for s in self.sinks(catalog) if self._owner(catalog, s.source).lower() == name]

    def check_runnable(self, catalog: Catalog, until_end: bool) -> None:
        """Refuse what would say nothing, or never end, before anything is started."""
        for name in self.wanted(catalog):
            declared = catalog.get(name)
            if isinstance(declared, Stream) and name.lower() not in self._pipelines:
                self._require_end(declared, until_end)

    def _require_end(self, declared: Stream, until_end: bool) -> None:
        """Running to the end of what never ends would hang, and so would waiting for the end of
        what is not run to it: say so instead."""
        plan = declared.typed.plan
        if not until_end:
            require_end(declared, plan)
            return
        for scan in all_scans(plan_stages(plan)):
            source = getattr(scan, "source", None)
            spec = CONNECTORS[source.connector].source if source is not None else None
            if source is not None and spec is not None and spec.endless(source.options):
                raise RunError(
                    "TG-505",
                    f"the source {source.name} never ends, so there is no end to run to",
                    hint=f"give {source.name} an end, for example rows = 1000000, or run without "
                    "--until-end.",
                )

    # Starting

    def start(self, catalog: Catalog, settings: Settings, until_end: bool, listener: Any) -> None:
        self._listener = listener
        self.until_end = until_end
        try:
            self.start_missing(catalog, settings)
        except BaseException:
            self.stop()
            raise

    def start_missing(self, catalog: Catalog, settings: Settings) -> None:
        """Start what does not run yet, and let new sinks join what does."""
        for name in self.wanted(catalog):
            pipeline = self._pipelines.get(name.lower())
            if pipeline is None:
                self._start(name, catalog, settings)
                continue
            missing = [s for s in self._sinks_of(catalog, name) if s.name not in pipeline.sinks]
            if any(not pipeline.takes_writers(self._is_late(s, name)) for s in missing):
                self.stop_one(name)
                self._start(name, catalog, settings)
                continue
            for sink in missing:
                self._add_sink(pipeline, sink, name)

    def _is_late(self, sink: Sink, stream: str) -> bool:
        return sink.source.lower() != stream.lower()

    def _add_sink(self, pipeline: SparkPipeline, sink: Sink, stream: str) -> None:
        late = self._is_late(sink, stream)
        pipeline.add_writer(sink.name, self._writer(sink, pipeline), late)

    def _start(self, name: str, catalog: Catalog, settings: Settings) -> None:
        from tidegate.spark.pipeline import PipelineContext

        assert self.until_end is not None, "pipelines start with the session"
        spark = self._spark()
        context = PipelineContext(
            spark, catalog, settings, self.directory, CONNECTORS, READERS, self._listener
        )
        pipeline, trigger = self._opened(name, context)
        for sink in self._sinks_of(catalog, name):
            self._add_sink(pipeline, sink, name)
        interval = trigger if trigger is not None else settings["trigger_interval"]
        pipeline.start(self.until_end, interval)
        self.warnings += pipeline.warnings
        self._pipelines[name.lower()] = pipeline
        self._ended.discard(name.lower())

    def _opened(self, name: str, context: PipelineContext) -> tuple[SparkPipeline, int | None]:
        """The pipeline of a stream, with what it remembers of earlier runs."""
        from tidegate.spark.lowering import runner_of
        from tidegate.spark.pipeline import SparkPipeline

        catalog = context.catalog
        declared = catalog.get(name)
        assert isinstance(declared, Stream | SideStream), f"{name} cannot run"
        trigger, discards = None, False
        if isinstance(declared, Stream):
            typed, trigger = declared.typed, declared.options["trigger_interval"]
            discards = declared.options["on_change"] == "continue"
        else:
            typed = self._side_plan(declared, context)
        late = next((s for s in catalog.of(SideStream) if _is_late_of(s, declared.name)), None)
        pipeline = SparkPipeline(context, declared.name, typed, late)
        operators = [
            OperatorIdentity(item.name, runner_of(item).fingerprint.hex())
            for item in pipeline.plan.operators
        ]
        identities = [self._identity(scan.node, catalog) for scan in pipeline.plan.scans]
        key_groups = context.settings["key_groups"] or _default_key_groups(context.spark)
        folder = self.directory.pipeline(declared.name)
        record = open_record(
            folder, Pipeline(declared.name, identities, operators, discards, key_groups)
        )
        pipeline.id, pipeline.key_groups = record.id, record.key_groups
        self.warnings += [_discarded(declared.name, item, folder) for item in record.changed]
        return pipeline, trigger

    def _side_plan(self, side: SideStream, context: PipelineContext) -> TypedPlan:
        from tidegate.spark.analysis import analyse_plan

        return analyse_plan(context.spark, side, side_plan(side), context.catalog)

    def _identity(self, scan: Any, catalog: Catalog) -> SourceIdentity:
        source = getattr(scan, "source", None) or catalog.get(scan.side.parent)
        assert isinstance(source, Source), "what is scanned is a source"
        spec = CONNECTORS[source.connector].source
        names = spec.identity if spec is not None else ()
        options = tuple((name, str(source.options[name])) for name in names)
        return SourceIdentity(source.name, source.connector, options)

    def _writer(self, sink: Sink, pipeline: SparkPipeline) -> Any:
        factory = WRITERS[sink.connector]
        folder = self.directory.pipeline(sink.source)
        return factory(self._spark(), SinkContext(sink, folder, pipeline.id, self._show))

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
        self._pipelines.clear()
        self.until_end = None
        if failures:
            raise failures[0]

    def stop_owner(self, catalog: Catalog, stream: str) -> None:
        """Stop the pipeline that hands out the rows of a stream."""
        self.stop_one(self._owner(catalog, stream))

    def stop_one(self, name: str) -> None:
        pipeline = self._pipelines.pop(name.lower(), None)
        if pipeline is not None:
            pipeline.stop()

    def forget(self, catalog: Catalog, stream: str) -> None:
        """Stop a stream that was dropped, and its subscribers with it."""
        self.stop_owner(catalog, stream)
        self._subscribed = {
            key: sink
            for key, sink in self._subscribed.items()
            if sink.source.lower() != stream.lower()
        }

    def status(self) -> tuple[StreamStatus, ...]:
        return tuple(pipeline.status() for pipeline in self._pipelines.values())

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
            name, options, declared.statement, declared.origin, "memory", declared.name
        )
        return True

    def may_come(self, catalog: Catalog, name: str) -> bool:
        """Whether a stream may still give out epochs; raises the error of one that failed."""
        owner = self._owner(catalog, name).lower()
        if not self.directory.is_open or owner in self._ended:
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
                    name, options, stream.statement, stream.origin, "console", stream.name
                )
                added.append(stream.name)
        return added


def _is_late_of(side: SideStream, stream: str) -> bool:
    return side.is_late and side.parent.lower() == stream.lower()


def _discarded(stream: str, operator: str, folder: Path) -> RunError:
    return RunError(
        "TG-606",
        f"the operator {operator} of the stream {stream} changed: its state is discarded, and it "
        "goes on from the committed offsets",
        hint=f"to start from the beginning, remove its data: rm -r {folder}",
    )


def _default_key_groups(spark: Any) -> int:
    return 16 if (spark.sparkContext.master or "").startswith("local") else 128
