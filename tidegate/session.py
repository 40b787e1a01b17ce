"""The session: declares, runs, inserts, subscribes. `tidegate.open` gives you one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import (
    Declared,
    SideStream,
    Sink,
    Source,
    Stream,
    tables_in,
)
from tidegate.catalog.options import Options
from tidegate.catalog.settings import Settings
from tidegate.compiler import Compiled, Compiler
from tidegate.connectors import memory
from tidegate.connectors.registry import CONNECTORS, READERS, WRITERS
from tidegate.errors import (
    CatalogError,
    Place,
    RunError,
    ScriptError,
    TidegateError,
    did_you_mean,
)
from tidegate.observe.status import StreamStatus
from tidegate.physical.explain import explain
from tidegate.results import Result, describe, listing
from tidegate.runtime.connector import SinkContext
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.record import SourceIdentity, open_record
from tidegate.sql import statements as st
from tidegate.subscription import Subscription

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.spark.pipeline import SparkPipeline

Show = Callable[[str, int, Any], None]


class Session:
    """A data directory, a catalog and the pipelines that run on Spark.

    Declarations are not stored: the script is their home, and running it again on the same data
    directory goes on where each stream was.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        spark: SparkSession | None = None,
        master: str | None = None,
        config: Mapping[str, Any] | None = None,
        show: Show | None = None,
    ) -> None:
        self.settings = Settings.of(config)
        self.catalog = Catalog()
        self.warnings: list[TidegateError] = []
        self.directory = DataDirectory(path)
        self.directory.open()
        self._given_spark = spark
        self._master = master
        self._spark: SparkSession | None = None
        self._listener: Any = None
        self._show = show or _print_rows
        self._pipelines: dict[str, SparkPipeline] = {}
        self._running: bool | None = None
        self._subscribed: dict[str, Sink] = {}
        self._ended: set[str] = set()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything and let go of the data directory; a Spark of the user's goes on."""
        try:
            self.stop()
            if self._spark is not None and self._listener is not None:
                self._spark.streams.removeListener(self._listener)
        finally:
            self._spark = None
            self._listener = None
            self.directory.close()

    def _require_open(self) -> None:
        if not self.directory.is_open:
            raise RunError("TG-506", "the session is closed", hint="open a new one: tidegate.open.")

    @property
    def spark(self) -> SparkSession:
        """The SparkSession, started when it is first needed."""
        self._require_open()
        if self._spark is None:
            from tidegate.spark.listener import ProgressListener
            from tidegate.spark.session import borrowed_session, own_session

            if self._given_spark is not None:
                self._spark = borrowed_session(self._given_spark)
            else:
                self._spark = own_session(self._master, self.directory.log_file)
            self._listener = ProgressListener()
            self._spark.streams.addListener(self._listener)
        return self._spark

    # Statements

    def execute(self, sql: str, file: str | None = None) -> list[Result]:
        """Run a script: all of it is checked first, and nothing is done if anything is wrong."""
        self._require_open()
        compiled = self._compile(sql, file)
        catalog = self._analysed(compiled)
        if self._running is not None:
            self._check_runnable(catalog, self._running)
        self.warnings = list(compiled.warnings)
        self.settings = compiled.settings
        before = self.catalog
        self.catalog = catalog
        results = [
            result
            for statement in compiled.statements
            for result in self._effect(statement, before, compiled)
        ]
        if self._running is not None:
            self._start_missing()
        return results

    def _compile(self, sql: str, file: str | None) -> Compiled:
        compiler = Compiler(CONNECTORS, self.catalog, self.settings, self._knows_function)
        compiled = compiler.compile(sql, file)
        if compiled.errors:
            raise ScriptError(compiled.errors)
        return compiled

    def _knows_function(self, name: str) -> bool:
        return self._given_spark is not None and self.spark.catalog.functionExists(name.lower())

    def _analysed(self, compiled: Compiled) -> Catalog:
        """Let Spark find the types of what is new; its refusals point into the script."""
        fresh = [item for item in compiled.declared if isinstance(item, Source | Stream | Sink)]
        if not fresh:
            return compiled.catalog
        from tidegate.spark.analysis import analyse_source, analyse_stream

        spark = self.spark
        errors: list[TidegateError] = []
        for item in fresh:
            known = compiled.catalog.get(item.name)
            try:
                if known is None:
                    continue
                if isinstance(known, Source):
                    compiled.catalog.replace(analyse_source(spark, known))
                elif isinstance(known, Stream):
                    compiled.catalog.replace(analyse_stream(spark, known, compiled.catalog))
            except TidegateError as error:
                errors.append(error)
        errors += self._misfit_sinks(compiled)
        if errors:
            raise ScriptError(errors)
        return compiled.catalog

    def _misfit_sinks(self, compiled: Compiled) -> list[TidegateError]:
        """Sinks that cannot write the types of their stream."""
        errors: list[TidegateError] = []
        for sink in (item for item in compiled.declared if isinstance(item, Sink)):
            spec = CONNECTORS[sink.connector].sink
            stream = compiled.catalog.get(sink.source)
            if spec is None or spec.check_columns is None or not isinstance(stream, Stream):
                continue
            columns = tuple((item.name, (item.type or "").upper()) for item in stream.plan.fields)
            wrong = spec.check_columns(sink.options, columns)
            if wrong is not None:
                span = sink.statement.name_span
                place = Place(sink.origin.text, span.start, span.end, sink.origin.file)
                errors.append(CatalogError("TG-210", wrong, place=place))
        return errors

    def _effect(self, statement: st.Statement, before: Catalog, compiled: Compiled) -> list[Result]:
        if isinstance(statement, st.Insert):
            return [self._insert_statement(statement)]
        if isinstance(statement, st.Drop):
            self._drop(before.get(statement.name))
        if isinstance(statement, st.Show):
            if statement.what == "CHECKPOINTS":
                raise RunError("TG-501", "SHOW CHECKPOINTS is not built yet")
            return [listing(self.catalog, statement.what)]
        if isinstance(statement, st.Describe):
            return [describe(self._declared(statement.name))]
        if isinstance(statement, st.ShowCreate):
            return [Result.of_text(self._declared(statement.name).create_sql())]
        if isinstance(statement, st.Explain):
            plan = next(plan for explained, plan in compiled.explained if explained is statement)
            return [Result.of_text(explain(plan, statement.stream))]
        if isinstance(statement, st.Checkpoint | st.Restore):
            word = statement.text.split()[0].upper()
            raise RunError(
                "TG-501",
                f"{word} is not built yet",
                hint="every epoch is a checkpoint already: stop, and start again on the same data "
                "directory.",
            )
        return []

    def _declared(self, name: str) -> Declared:
        declared = self.catalog.get(name)
        if declared is None:
            hint = did_you_mean(name, self.catalog.names(), "names")
            raise RunError("TG-201", f"nothing is named {name}", hint=hint)
        return declared

    def _drop(self, dropped: Declared | None) -> None:
        """Stop what ran and forget what was kept."""
        if dropped is None:
            return
        if isinstance(dropped, Stream):
            self._stop_pipeline(dropped.name)
            self._subscribed = {
                key: sink
                for key, sink in self._subscribed.items()
                if sink.source.lower() != dropped.name.lower()
            }
            shutil.rmtree(self.directory.pipeline(dropped.name), ignore_errors=True)
        elif isinstance(dropped, Source):
            shutil.rmtree(self.directory.source(dropped.name), ignore_errors=True)
        elif isinstance(dropped, Sink):
            # The pipeline starts again without it, or not at all.
            self._stop_pipeline(dropped.source)

    # Rows in

    def insert(self, source: str, rows: Any) -> int:
        """Insert rows (dicts, tuples, an Arrow table, a pandas frame) into a memory source."""
        from tidegate.spark.rows import to_table

        self._require_open()
        target = self._insertable(source)
        table = to_table(target, rows)
        if table.num_rows:
            memory.append(self.directory.source(target.name), table)
        return int(table.num_rows)

    def _insertable(self, name: str) -> Source:
        target = self._declared(name)
        if not isinstance(target, Source) or not target.insertable:
            raise RunError(
                "TG-211",
                f"rows cannot be inserted into {name}",
                hint="declare it with connector = 'memory'.",
            )
        return target

    def _insert_statement(self, statement: st.Insert) -> Result:
        from tidegate.spark.rows import rows_of_insert

        target = self._insertable(statement.target)
        table = rows_of_insert(self.spark, target, statement.columns, statement.tree)
        memory.append(self.directory.source(target.name), table)
        rows = "1 row" if table.num_rows == 1 else f"{table.num_rows:,} rows"
        return Result.of_text(f"{rows} inserted into {target.name}")

    # Running

    def start(self, until_end: bool = False) -> None:
        """Run every stream that has a sink or a subscriber; `until_end` ends after the last row."""
        self._require_open()
        if self._running is not None:
            raise RunError("TG-506", "the session is running already", hint="stop it first.")
        if not self._runnable(self.catalog):
            raise RunError(
                "TG-505",
                "there is nothing to run: no stream has a sink or a subscriber",
                hint="CREATE SINK out FROM my_stream WITH (connector = 'console');",
            )
        self._check_runnable(self.catalog, until_end)
        self._running = until_end
        try:
            self._start_missing()
        except BaseException:
            self.stop()
            raise

    def _check_runnable(self, catalog: Catalog, until_end: bool) -> None:
        """Refuse what cannot run before anything is started."""
        from tidegate.spark.pipeline import check_runnable

        for name in self._runnable(catalog):
            declared = catalog.get(name)
            if isinstance(declared, Stream) and name.lower() not in self._pipelines:
                check_runnable(declared)
                self._require_end(declared, until_end)

    def _require_end(self, declared: Stream, until_end: bool) -> None:
        """Running to the end of what never ends would hang: say so instead."""
        if not until_end:
            return
        from tidegate.spark.pipeline import scans_of

        for scan in scans_of(declared.plan):
            source = getattr(scan, "source", None)
            spec = CONNECTORS[source.connector].source if source is not None else None
            if source is not None and spec is not None and spec.endless(source.options):
                raise RunError(
                    "TG-505",
                    f"the source {source.name} never ends, so there is no end to run to",
                    hint=f"give {source.name} an end, for example rows = 1000000, or run without "
                    "--until-end.",
                )

    def _runnable(self, catalog: Catalog) -> list[str]:
        """The streams that somebody wants, in the order they were declared."""
        wanted = {sink.source.lower() for sink in (*catalog.of(Sink), *self._subscribed.values())}
        streams = [*catalog.of(Stream), *catalog.of(SideStream)]
        return [stream.name for stream in streams if stream.name.lower() in wanted]

    def _sinks(self) -> list[Sink]:
        return [*self.catalog.of(Sink), *self._subscribed.values()]

    def _start_missing(self) -> None:
        """Start what does not run yet, and let new sinks join what does."""
        for name in self._runnable(self.catalog):
            pipeline = self._pipelines.get(name.lower())
            if pipeline is None:
                self._start_pipeline(name)
                continue
            missing = [sink for sink in self._sinks_of(name) if sink.name not in pipeline.sinks]
            if missing and not pipeline.takes_writers:
                self._stop_pipeline(name)
                self._start_pipeline(name)
                continue
            for sink in missing:
                pipeline.add_writer(sink.name, self._writer(sink, pipeline))

    def _sinks_of(self, stream: str) -> list[Sink]:
        return [sink for sink in self._sinks() if sink.source.lower() == stream.lower()]

    def _start_pipeline(self, name: str) -> None:
        from tidegate.spark.pipeline import PipelineContext, SparkPipeline, scans_of

        assert self._running is not None, "pipelines start with the session"
        declared = self._declared(name)
        if isinstance(declared, Stream):
            plan, trigger = declared.plan, declared.options["trigger_interval"]
            refuse = declared.options["on_change"] == "refuse"
            text = declared.statement.text
        else:
            assert isinstance(declared, SideStream), f"{name} cannot run"
            from tidegate.plan.tables import side_plan

            plan, trigger, refuse, text = side_plan(declared), None, False, declared.name
        spark = self.spark
        context = PipelineContext(
            spark,
            self.catalog,
            self.settings,
            self.directory,
            CONNECTORS,
            READERS,
            self._listener,
        )
        pipeline = SparkPipeline(context, declared.name, plan)
        identities = [self._identity(scan) for scan in scans_of(plan)]
        record = open_record(pipeline.folder, declared.name, identities, text, refuse)
        pipeline.id = record.id
        for sink in self._sinks_of(name):
            pipeline.add_writer(sink.name, self._writer(sink, pipeline))
        interval = trigger if trigger is not None else self.settings["trigger_interval"]
        pipeline.start(self._running, interval)
        self._pipelines[name.lower()] = pipeline
        self._ended.discard(name.lower())

    def _identity(self, scan: Any) -> SourceIdentity:
        source = getattr(scan, "source", None) or self._declared(scan.side.parent)
        assert isinstance(source, Source), "what is scanned is a source"
        spec = CONNECTORS[source.connector].source
        names = spec.identity if spec is not None else ()
        options = tuple((name, str(source.options[name])) for name in names)
        return SourceIdentity(source.name, source.connector, options)

    def _writer(self, sink: Sink, pipeline: SparkPipeline) -> Any:
        factory = WRITERS.get(sink.connector)
        if factory is None:
            raise RunError(
                "TG-501",
                f"the connector {sink.connector} of the sink {sink.name} cannot be written yet",
                hint=f"connectors that can be written: {', '.join(sorted(WRITERS))}.",
            )
        context = SinkContext(sink, pipeline.folder, pipeline.id, self._show)
        return factory(self.spark, context)

    def wait(self, timeout: float | None = None) -> bool:
        """Until all rows that are there now are done; with `until_end`, until all has ended."""
        if self._running is None:
            raise RunError("TG-506", "nothing is running", hint="start the session first.")
        deadline = None if timeout is None else time.monotonic() + timeout
        done = True
        for pipeline in list(self._pipelines.values()):
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            done = pipeline.wait(left) and done
        return done

    def stop(self) -> None:
        """Stop every stream. Nothing is flushed; the next start goes on from here."""
        for name, pipeline in self._pipelines.items():
            pipeline.stop()
            self._ended.add(name)
        self._pipelines.clear()
        self._running = None

    def _stop_pipeline(self, name: str) -> None:
        pipeline = self._pipelines.pop(name.lower(), None)
        if pipeline is not None:
            pipeline.stop()

    # Rows out

    def subscribe(self, stream: str, from_epoch: int | None = None) -> Subscription:
        """Every epoch of a stream as Arrow; several subscribers each get everything."""
        self._require_open()
        declared = self._declared(stream)
        if not isinstance(declared, Stream | SideStream):
            raise RunError("TG-506", f"{stream} is not a stream")
        key = declared.name.lower()
        if not any(sink.connector == "memory" for sink in self._sinks_of(key)):
            self._subscribed[key] = self._memory_sink(declared)
            if self._running is not None:
                self._check_runnable(self.catalog, self._running)
                self._start_missing()
        folder = self.directory.pipeline(declared.name) / "out"
        return Subscription(folder, from_epoch, lambda: self._may_come(key))

    def _may_come(self, name: str) -> bool:
        """Whether a stream may still give out epochs; raises the error of one that failed."""
        if not self.directory.is_open or name in self._ended:
            return False
        pipeline = self._pipelines.get(name)
        return pipeline is None or pipeline.is_alive()

    def _memory_sink(self, stream: Declared) -> Sink:
        options = Options({"retain_epochs": memory.DEFAULT_RETAIN_EPOCHS}, {}, set())
        name = f"subscribers of {stream.name}"
        return Sink(name, options, stream.statement, stream.origin, "memory", stream.name)

    def add_console_sinks(self) -> list[str]:
        """Show the streams that nobody else consumes; returns their names."""
        read = {
            table.lower()
            for stream in self.catalog.of(Stream)
            for table in tables_in(stream.query.tree)
        }
        read |= {sink.source.lower() for sink in self._sinks()}
        added = []
        for stream in self.catalog.of(Stream):
            if stream.name.lower() not in read:
                options = Options({"rows": 20}, {}, set())
                name = f"console of {stream.name}"
                self._subscribed[f"console:{stream.name.lower()}"] = Sink(
                    name, options, stream.statement, stream.origin, "console", stream.name
                )
                added.append(stream.name)
        return added

    # Looking

    def status(self) -> tuple[StreamStatus, ...]:
        """Where every running stream is."""
        return tuple(pipeline.status() for pipeline in self._pipelines.values())

    def explain(self, stream: str) -> str:
        """The plan of a stream as a tree."""
        declared = self._declared(stream)
        if not isinstance(declared, Stream):
            raise RunError("TG-506", f"{stream} is not a stream with a query")
        return explain(declared.plan, declared.name)


def _print_rows(stream: str, epoch: int, rows: Any) -> None:
    """What console sinks do outside of the command line."""
    print(f"-- {stream}, epoch {epoch}")
    for row in rows.to_pylist():
        print(", ".join(f"{key}={value}" for key, value in row.items()))
