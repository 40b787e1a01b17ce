"""The session: declares, runs, inserts, subscribes. `tidegate.open` gives you one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.checkpoints import (
    CheckpointStatement,
    restore_options,
    unsafe_checkpoint_name,
)
from tidegate.catalog.inserts import script_identity
from tidegate.catalog.objects import (
    Declared,
    LookupTable,
    Origin,
    SideStream,
    Sink,
    Source,
    Stream,
)
from tidegate.catalog.settings import Settings
from tidegate.checkpoint.checkpoints import Restored, Wanted
from tidegate.checkpoint.inspect import Checkpoint
from tidegate.checkpoint.names import Name
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
from tidegate.results import Result, checkpoint_listing, describe, listing
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.parked import parked_warning
from tidegate.runtime.places import is_cluster, unshared_directory, unshared_paths
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
        finally:
            self._spark = None
            memory.forget_inserts(self.directory.store.uri)
            self.directory.close()

    def _require_open(self) -> None:
        if not self.directory.is_open:
            raise RunError("TG-506", "the session is closed", hint="open a new one: tidegate.open.")

    @property
    def spark(self) -> SparkSession:
        """The SparkSession, started when it is first needed."""
        self._require_open()
        if self._spark is None:
            from tidegate.spark.spark_session import borrowed_session, own_session

            if self._given_spark is not None:
                self._spark = borrowed_session(self._given_spark)
            else:
                self._spark = own_session(self._master, self.directory.log_file)
        return self._spark

    # Statements

    def execute(self, sql: str, file: str | None = None) -> list[Result]:
        """Run a script: all of it is checked first, and nothing is done if anything is wrong."""
        self._require_open()
        compiled = self._compile(sql, file)
        self._require_shared(compiled)
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

    def _require_shared(self, compiled: Compiled) -> None:
        """On a cluster files must be where all machines find them."""
        master = self._master
        if self._given_spark is not None:
            master = self._given_spark.conf.get("spark.master", None)
        if compiled.settings["shared_disk"] or not is_cluster(master):
            return
        errors = unshared_paths(compiled.declared)
        misplaced = unshared_directory(self.directory.store.uri)
        if misplaced is not None:
            errors.insert(0, misplaced)
        if errors:
            raise ScriptError(errors)

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
                    typed = self._typed(known, compiled.catalog, compiled.settings)
                    compiled.catalog.replace(typed)
                    self._type_late_rows(typed, compiled.catalog)
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

    def _type_late_rows(self, stream: Stream, catalog: Catalog) -> None:
        from tidegate.physical.late import typed_side

        emit = stream.query.emit
        side = catalog.get(emit.late_to) if emit is not None and emit.late_to is not None else None
        if isinstance(side, SideStream):
            catalog.replace(typed_side(side, stream.typed.plan))

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
        if isinstance(statement, CheckpointStatement):
            return [Result.of_text(self._checkpoint_statement(statement, compiled.script))]
        if isinstance(statement, st.Show) and statement.what == "CHECKPOINTS":
            return [checkpoint_listing(self.checkpoints())]
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
            self._pipelines.forget(self.catalog, self.settings, dropped.name)
            self.directory.remove_stream(dropped.name)
        elif isinstance(dropped, Source | LookupTable):
            self.directory.remove_source(dropped.name)
            memory.forget_inserts(self.directory.source(dropped.name).uri)
        elif isinstance(dropped, Sink):
            # The pipeline goes on without it, or not at all.
            self._pipelines.restart_without(self.catalog, self.settings)

    # Rows in

    def insert(self, source: str, rows: Any) -> int:
        """Insert rows (dicts, tuples, an Arrow table, a pandas frame) into a memory source or
        lookup table."""
        from tidegate.spark.rows import to_table

        self._require_open()
        target = self._insertable(source)
        table = to_table(target, rows)
        if table.num_rows:
            self._append(target, table)
        return int(table.num_rows)

    def _append(
        self, target: Source | LookupTable, table: Any, identity: str | None = None
    ) -> None:
        self._inserts(target).append(table, identity)
        self._pipelines.nudge()

    def _inserts(self, target: Declared) -> memory.Inserts:
        return memory.inserts(self.directory.source(target.name).uri)

    def _insertable(self, name: str) -> Source | LookupTable:
        target = self._declared(name)
        if not isinstance(target, Source | LookupTable) or not target.insertable:
            raise RunError(
                "TG-211",
                f"rows cannot be inserted into {name}",
                hint="declare it with connector = 'memory'.",
            )
        return target

    def _insert_statement(self, statement: st.Insert, script: st.Script) -> Result:
        from tidegate.spark.rows import dead_letters_of, rows_of_insert

        target = self._insertable(statement.target)
        identity = script_identity(statement, script)
        if identity is not None and self._inserts(target).has(identity):
            return Result.of_text(
                f"nothing inserted into {target.name}: this INSERT was run before"
            )
        table = rows_of_insert(self.spark, target, statement, script)
        self._append(target, table, identity)
        reasons: list[str] = []
        if isinstance(target, Source):
            reasons = dead_letters_of(self.spark, target, table)
        rows = "1 row" if table.num_rows == 1 else f"{table.num_rows:,} rows"
        are = "is a dead letter" if len(reasons) == 1 else "are dead letters"
        dead = f", {len(reasons):,} of which {are}: {reasons[0]}" if reasons else ""
        return Result.of_text(f"{rows} inserted into {target.name}{dead}")

    # Running

    def start(self, until_end: bool = False, available_now: bool = False) -> None:
        """Run every stream that has a sink or a subscriber.

        `until_end` ends after the last row, with everything closed; `available_now` ends when all
        that is there has been read, and what is open stays open for the next run.
        """
        if until_end and available_now:
            raise RunError("TG-506", "until_end and available_now are two ways to end: choose one")
        self._require_open()
        if self._pipelines.running:
            raise RunError("TG-506", "the session is running already", hint="stop it first.")
        if not self._pipelines.wanted(self.catalog):
            raise RunError(
                "TG-505",
                "there is nothing to run: no stream has a sink or a subscriber",
                hint="CREATE SINK out FROM my_stream WITH (connector = 'console');",
            )
        self._pipelines.check_runnable(self.catalog, until_end, available_now)
        self._pipelines.start(self.catalog, self.settings, until_end, available_now)
        self._take_warnings()
        parked = parked_warning(self.directory, self.catalog)
        self.warnings += [parked] if parked is not None else []

    def wait(self, timeout: float | None = None) -> bool:
        """Until all rows that are there now are done; with `until_end`, until all has ended."""
        if not self._pipelines.running:
            raise RunError("TG-506", "nothing is running", hint="start the session first.")
        return self._pipelines.wait(timeout)

    def stop(self) -> None:
        """Stop every stream. Nothing is flushed; the next start goes on from here."""
        self._pipelines.stop()

    # Checkpoints

    def checkpoint(self, name: str | None = None) -> str:
        """Keep where every pipeline is now, until the checkpoint is dropped; returns its name."""
        kept = self._keep(name)
        return next(iter(kept.values())).name

    def _keep(self, name: str | None, place: Place | None = None) -> dict[str, Name]:
        self._require_open()
        wrong = unsafe_checkpoint_name(name) if name is not None else None
        if wrong is not None:
            raise RunError("TG-210", f"{name!r} cannot be the name of a checkpoint: {wrong}")
        return self._pipelines.checkpoints(self.settings).keep(name, place)

    def drop_checkpoint(self, name: str) -> None:
        """What only it kept is removed with one of the next epochs."""
        self._require_open()
        self._pipelines.checkpoints(self.settings).drop(name)

    def checkpoints(self) -> list[Checkpoint]:
        """All that can be restored, newest first: those with a name, and the last few epochs."""
        self._require_open()
        return self._pipelines.checkpoints(self.settings).listed()

    def restore(
        self, checkpoint: str | int, *, sinks: str | None = None, pipeline: str | None = None
    ) -> None:
        """Go back to a checkpoint by its name, or to an epoch that is still kept.

        Streams that run are stopped for it and started again. `sinks='keep'` leaves rows from after
        the checkpoint in sinks that cannot forget them; without it they refuse.
        """
        if sinks not in (None, "keep"):
            raise RunError("TG-207", f"sinks is 'keep' or nothing, not {sinks!r}")
        self.warnings = []
        self._restore(Wanted(checkpoint, sinks == "keep", pipeline))

    def _restore(self, wanted: Wanted) -> list[Restored]:
        self._require_open()
        done = self._pipelines.restore(self.catalog, self.settings, wanted)
        self.warnings += [warning for item in done for warning in item.warnings]
        self._take_warnings()
        return done

    def _take_warnings(self) -> None:
        self.warnings += self._pipelines.warnings
        self._pipelines.warnings = []

    def _checkpoint_statement(self, statement: CheckpointStatement, script: st.Script) -> str:
        span = statement.name_span or statement.span
        place = Place(script.text, span.start, span.end, script.file)
        if isinstance(statement, st.Checkpoint):
            kept = self._keep(statement.name, place)
            where = ", ".join(f"{name} at epoch {item.epoch}" for name, item in kept.items())
            return f"checkpoint '{next(iter(kept.values())).name}': {where}"
        if isinstance(statement, st.DropCheckpoint):
            checkpoints = self._pipelines.checkpoints(self.settings)
            if statement.if_exists and not checkpoints.has(statement.name):
                return f"there is no checkpoint '{statement.name}'"
            checkpoints.drop(statement.name, place)
            return f"checkpoint '{statement.name}' dropped"
        options, _ = restore_options(statement, Origin(script.text, script.file))
        target = statement.name if statement.name is not None else statement.epoch
        assert target is not None, "RESTORE has a name or an epoch"
        wanted = Wanted(target, options["sinks"] == "keep", options["pipeline"], place)
        return "\n".join(_restored_text(item) for item in self._restore(wanted))

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
        name = declared.name
        return Subscription(
            self.directory.stream(name),
            from_epoch,
            lambda: self._pipelines.may_come(self.catalog, name),
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


def _restored_text(item: Restored) -> str:
    return (
        f"{item.pipeline} is back at epoch {item.chosen.epoch}, and goes on with epoch "
        f"{item.begun.epoch + 1} in generation {item.begun.generation}"
    )


def _print_rows(stream: str, epoch: int, rows: Any) -> None:
    """What console sinks do outside of the command line."""
    print(f"-- {stream}, epoch {epoch}")
    for row in rows.to_pylist():
        print(", ".join(f"{key}={value}" for key, value in row.items()))
