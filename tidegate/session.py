"""The session: declares, runs, inserts, subscribes. `tidegate.open` gives you one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
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
)
from tidegate.catalog.settings import Settings
from tidegate.compiler import Compiled, Compiler
from tidegate.connectors import memory
from tidegate.connectors.registry import CONNECTORS
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
from tidegate.physical.refusal import Unrunnable
from tidegate.physical.refusals import refused
from tidegate.plan.optimise import plan_to_run
from tidegate.results import Result, describe, listing
from tidegate.runtime.directory import DataDirectory
from tidegate.sql import statements as st
from tidegate.subscription import Subscription
from tidegate.supervisor import Supervisor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        self._pipelines = Supervisor(self.directory, lambda: self.spark, show or _print_rows)

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
            from tidegate.spark.spark_session import borrowed_session, own_session

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
        if self._pipelines.until_end is not None:
            self._pipelines.check_runnable(catalog, self._pipelines.until_end)
        self.warnings = list(compiled.warnings)
        self.settings = compiled.settings
        before = self.catalog
        self.catalog = catalog
        results = [
            result
            for statement in compiled.statements
            for result in self._effect(statement, before, compiled)
        ]
        if self._pipelines.running:
            self._pipelines.start_missing(self.catalog, self.settings)
        return results

    def _compile(self, sql: str, file: str | None) -> Compiled:
        compiler = Compiler(CONNECTORS, self.catalog, self.settings, self._knows_function)
        compiled = compiler.compile(sql, file)
        errors = (*compiled.errors, *compiled.unrunnable)
        if errors:
            raise ScriptError(errors)
        return compiled

    def _knows_function(self, name: str) -> bool:
        return self._given_spark is not None and self.spark.catalog.functionExists(name.lower())

    def _analysed(self, compiled: Compiled) -> Catalog:
        """Let Spark find the types of what is new; its refusals point into the script."""
        fresh = [item for item in compiled.declared if isinstance(item, Source | Stream | Sink)]
        if not fresh:
            return compiled.catalog
        from tidegate.spark.analysis import analyse_source

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
                    compiled.catalog.replace(
                        self._typed(known, compiled.catalog, compiled.settings)
                    )
            except TidegateError as error:
                errors.append(error)
        errors += self._misfit_sinks(compiled)
        if errors:
            raise ScriptError(errors)
        return compiled.catalog

    def _typed(self, stream: Stream, catalog: Catalog, settings: Settings) -> Stream:
        """The stream with the plan that runs; what its types do not allow is refused here."""
        from tidegate.operators.limits import NO_LIMITS
        from tidegate.physical.plan import plan_physical
        from tidegate.spark.analysis import analyse_plan

        plan = plan_to_run(stream.plan, settings)
        typed = analyse_plan(self.spark, stream, stream.plan, catalog)
        if plan is not stream.plan:
            # What the optimiser drops had to be right all the same.
            typed = analyse_plan(self.spark, stream, plan, catalog)
        try:
            emit = stream.query.emit
            keeps_late = emit is not None and emit.late_to is not None
            plan_physical(stream.name, typed, NO_LIMITS, keeps_late)
        except Unrunnable as error:
            assert error.node is not None, "it was planned"
            raise refused(stream, typed.plan, error.node, error.refusal) from None
        fields = tuple(
            replace(ours, type=theirs.type)
            for ours, theirs in zip(stream.plan.fields, typed.plan.fields, strict=True)
        )
        return replace(stream, plan=replace(stream.plan, fields=fields), typed=typed)

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
            return [self._insert_statement(statement, compiled.script)]
        if isinstance(statement, st.Drop):
            self._drop(before.get(statement.name))
        if isinstance(statement, st.Show):
            return [listing(self.catalog, statement.what)]
        if isinstance(statement, st.Describe):
            return [describe(self._declared(statement.name))]
        if isinstance(statement, st.ShowCreate):
            return [Result.of_text(self._declared(statement.name).create_sql())]
        if isinstance(statement, st.Explain):
            plan = next(plan for explained, plan in compiled.explained if explained is statement)
            plan = plan if statement.logical else plan_to_run(plan, self.settings)
            return [Result.of_text(explain(plan, statement.stream))]
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
            self._pipelines.forget(self.catalog, dropped.name)
            shutil.rmtree(self.directory.pipeline(dropped.name), ignore_errors=True)
        elif isinstance(dropped, Source):
            shutil.rmtree(self.directory.source(dropped.name), ignore_errors=True)
        elif isinstance(dropped, Sink):
            # The pipeline starts again without it, or not at all.
            self._pipelines.stop_owner(self.catalog, dropped.source)

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

    def _insert_statement(self, statement: st.Insert, script: st.Script) -> Result:
        from tidegate.spark.rows import dead_letters_of, rows_of_insert

        target = self._insertable(statement.target)
        table = rows_of_insert(self.spark, target, statement, script)
        memory.append(self.directory.source(target.name), table)
        reasons = dead_letters_of(self.spark, target, table)
        rows = "1 row" if table.num_rows == 1 else f"{table.num_rows:,} rows"
        are = "is a dead letter" if len(reasons) == 1 else "are dead letters"
        dead = f", {len(reasons):,} of which {are}: {reasons[0]}" if reasons else ""
        return Result.of_text(f"{rows} inserted into {target.name}{dead}")

    # Running

    def start(self, until_end: bool = False) -> None:
        """Run every stream that has a sink or a subscriber; `until_end` ends after the last row."""
        self._require_open()
        if self._pipelines.running:
            raise RunError("TG-506", "the session is running already", hint="stop it first.")
        if not self._pipelines.wanted(self.catalog):
            raise RunError(
                "TG-505",
                "there is nothing to run: no stream has a sink or a subscriber",
                hint="CREATE SINK out FROM my_stream WITH (connector = 'console');",
            )
        self._pipelines.check_runnable(self.catalog, until_end)
        # Spark starts here at the latest, and with it the listener.
        _ = self.spark
        self._pipelines.start(self.catalog, self.settings, until_end, self._listener)
        self.warnings += self._pipelines.warnings
        self._pipelines.warnings = []

    def wait(self, timeout: float | None = None) -> bool:
        """Until all rows that are there now are done; with `until_end`, until all has ended."""
        if not self._pipelines.running:
            raise RunError("TG-506", "nothing is running", hint="start the session first.")
        return self._pipelines.wait(timeout)

    def stop(self) -> None:
        """Stop every stream. Nothing is flushed; the next start goes on from here."""
        self._pipelines.stop()

    # Rows out

    def subscribe(self, stream: str, from_epoch: int | None = None) -> Subscription:
        """Every epoch of a stream as Arrow; several subscribers each get everything."""
        self._require_open()
        declared = self._declared(stream)
        if not isinstance(declared, Stream | SideStream):
            raise RunError("TG-506", f"{stream} is not a stream")
        if self._pipelines.subscribe(self.catalog, declared) and self._pipelines.running:
            assert self._pipelines.until_end is not None, "it runs"
            self._pipelines.check_runnable(self.catalog, self._pipelines.until_end)
            self._pipelines.start_missing(self.catalog, self.settings)
        folder = self.directory.pipeline(declared.name) / "out"
        name = declared.name
        return Subscription(
            folder, from_epoch, lambda: self._pipelines.may_come(self.catalog, name)
        )

    def add_console_sinks(self) -> list[str]:
        """Show the streams that nobody else consumes; returns their names."""
        return self._pipelines.add_console_sinks(self.catalog)

    # Looking

    def status(self) -> tuple[StreamStatus, ...]:
        """Where every running stream is."""
        return self._pipelines.status()

    def explain(self, stream: str, logical: bool = False) -> str:
        """The plan of a stream as a tree; `logical` shows it before it is optimised."""
        declared = self._declared(stream)
        if not isinstance(declared, Stream):
            raise RunError("TG-506", f"{stream} is not a stream with a query")
        plan = declared.plan if logical else plan_to_run(declared.plan, self.settings)
        return explain(plan, declared.name)


def _print_rows(stream: str, epoch: int, rows: Any) -> None:
    """What console sinks do outside of the command line."""
    print(f"-- {stream}, epoch {epoch}")
    for row in rows.to_pylist():
        print(", ".join(f"{key}={value}" for key, value in row.items()))
