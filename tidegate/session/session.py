"""The session: declares, runs, inserts, subscribes. `tidegate.open` gives you one."""

from __future__ import annotations

import itertools
from collections.abc import (
    AsyncIterable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.declare import (
    CheckpointStatement,
    restore_options,
    script_identity,
    unsafe_checkpoint_name,
)
from tidegate.catalog.objects import Declared, LookupTable, ScriptOrigin, Sink, Source, Stream
from tidegate.catalog.settings import Settings
from tidegate.checkpoint.checkpoints import Checkpoint, Restored, RestoreRequest
from tidegate.checkpoint.manifests import Name
from tidegate.compile.compiler import Compiled, Compiler
from tidegate.compile.typing import analysed
from tidegate.connectors.memory import connector as memory
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import Location, RunError, ScriptError, TidegateError, did_you_mean
from tidegate.observe.status import StreamStatus
from tidegate.observe.timeline import Timeline
from tidegate.physical.explain import explain
from tidegate.plan.rewrite.optimizer import plan_to_run
from tidegate.runtime.cleanup import parked_warning
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.planning import is_cluster, unshared_directory, unshared_paths
from tidegate.runtime.supervisor import Supervisor
from tidegate.session.functions import PythonFunctions, python_declaration
from tidegate.session.queries import QueryService, stream_of
from tidegate.session.results import Result, describe, print_rows, restored_text, shown
from tidegate.session.saved_catalog import SavedDeclarations, load_declarations, save_declarations
from tidegate.session.subscription import Subscription
from tidegate.sql import statements as st

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.queries.engine import QueryResult


# ---- Rows into memory sources: all at once, or in parts as an iterator hands them out.

# An insert is a file: so many rows of an iterator are one.
PART = 10_000

Insert = Callable[[Any], int]


def is_endless(rows: Any) -> bool:
    """Whether rows come one by one, and nobody knows how many they are."""
    return isinstance(rows, Iterator) and not isinstance(rows, Mapping)


def insert_parts(rows: Iterable[Any], insert: Insert) -> int:
    """Insert what an iterator hands out, part by part; how many rows it were."""
    given, count = iter(rows), 0
    while part := list(itertools.islice(given, PART)):
        count += insert(part)
    return count


async def insert_async(rows: AsyncIterable[Any], insert: Insert, most: int = PART) -> int:
    """The same for an async iterator; rows are inserted once they are many, and at the end."""
    part: list[Any] = []
    count = 0
    async for row in rows:
        part.append(row)
        if len(part) >= most:
            count += insert(part)
            part = []
    return count + (insert(part) if part else 0)


Show = Callable[[str, int, Any], None]


class Session:
    """A data directory, a catalog and the pipelines that run on Spark.

    Opening a data directory declares nothing: the script is the home of its declarations, and
    running it again on the same data directory goes on where each stream was.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        spark: SparkSession | None = None,
        master: str | None = None,
        config: Mapping[str, Any] | None = None,
        show: Show | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = Settings.of(config)
        self.catalog = Catalog()
        self.warnings: list[TidegateError] = []
        self.directory = DataDirectory(path)
        self.directory.open()
        self._given_spark = spark
        self._master = master
        self._conf = dict(conf or {})
        self._spark: SparkSession | None = None
        self._functions = PythonFunctions()
        self._pipelines = Supervisor(self.directory, lambda: self.spark, show or print_rows)
        self._looking = QueryService(self._pipelines)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "running" if self._pipelines.running else "stopped"
        state = state if self.directory.is_open else "closed"
        declared = ", ".join(self.catalog.names()) or "nothing declared"
        return f"<tidegate.Session {str(self.directory)!r}, {state}: {declared}>"

    def close(self) -> None:
        """Stop everything and let go of the data directory; the user's own Spark goes on."""
        try:
            self.stop()
        finally:
            self._functions.leave(self._spark)
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
            from tidegate.spark.session import borrowed_session, own_session

            if self._given_spark is not None:
                self._spark = borrowed_session(self._given_spark)
            else:
                self._spark = own_session(self._master, self.directory.log_file, self._conf)
        return self._spark

    # Statements

    def execute(self, sql: str, file: str | None = None) -> list[Result]:
        """Run a script: all of it is checked first, and nothing is done if anything is wrong."""
        self._require_open()
        compiled = self._compile(sql, file)
        self._require_shared(compiled)
        return self._adopt(compiled)

    def function(
        self,
        name: str,
        call: Callable[..., Any],
        *,
        returns: str,
        arguments: Sequence[str] | None = None,
        scalar: bool = False,
        deterministic: bool = True,
        version: str | None = None,
    ) -> None:
        """Let SQL call a function of Python, in the place of one that had its name before.

        It gets a pyarrow array for each argument and returns one with a value for each row; with
        `scalar`, the values of one row. `arguments` are the types that arguments are cast to.
        With another version, by default another source text, streams over it are other queries.
        """
        self._require_open()
        code = {"scalar": scalar, "deterministic": deterministic, "version": version}
        made = python_declaration(name, call, returns, arguments, code)
        self._functions.names.discard(made.registered)
        compiler = Compiler(CONNECTORS, self.catalog, self.settings, self._knows_function)
        self._adopt(self._required(compiler.declare(made)))

    def _adopt(self, compiled: Compiled) -> list[Result]:
        """Make what was compiled true, or nothing of it."""
        catalog = analysed(lambda: self._functions.on(self.spark, compiled.catalog), compiled)
        if self._pipelines.until_end is not None:
            self._pipelines.check_runnable(catalog, self._pipelines.until_end)
            if compiled.replaced:
                self._pipelines.replace(catalog, compiled.settings)
        self.warnings = list(compiled.warnings)
        self.settings = compiled.settings
        before = self.catalog
        self.catalog = catalog
        results = [
            result
            for statement in compiled.statements
            for result in self._effect(statement, before, compiled)
        ]
        self._looking.save_declarations(self.catalog)
        save_declarations(self.directory, self.catalog)
        if self._pipelines.running:
            self._pipelines.start_missing(self.catalog, self.settings)
        return results

    def _compile(self, sql: str, file: str | None) -> Compiled:
        compiler = Compiler(CONNECTORS, self.catalog, self.settings, self._knows_function)
        return self._required(compiler.compile(sql, file))

    def _required(self, compiled: Compiled) -> Compiled:
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

    def _effect(self, statement: st.Statement, before: Catalog, compiled: Compiled) -> list[Result]:
        if isinstance(statement, st.Insert):
            return [self._insert_statement(statement, compiled.script)]
        if isinstance(statement, st.Drop):
            self._drop(before.get(statement.name))
        if isinstance(statement, CheckpointStatement):
            return [Result.of_text(self._checkpoint_statement(statement, compiled.script))]
        if isinstance(statement, st.Show):
            return [shown(self, statement.what)]
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

    def recall(self) -> SavedDeclarations:
        """What was declared here last."""
        self._require_open()
        return load_declarations(self.directory)

    # Rows in

    @overload
    def insert(self, source: str, rows: AsyncIterable[Any]) -> Coroutine[Any, Any, int]: ...

    @overload
    def insert(self, source: str, rows: Any) -> int: ...

    def insert(self, source: str, rows: Any) -> int | Coroutine[Any, Any, int]:
        """Insert rows into a memory source or lookup table; how many there were.

        Rows are dicts or tuples, in a list or any iterable, Arrow data (also by its C stream), or a
        pandas or polars frame. What an iterator hands out is inserted part by part; for an async
        one, await the result.
        """
        self._require_open()
        target = self._insertable(source)
        if isinstance(rows, AsyncIterable):
            return insert_async(rows, lambda part: self._insert(target, part))
        if is_endless(rows):
            return insert_parts(rows, lambda part: self._insert(target, part))
        return self._insert(target, rows)

    def _insert(self, target: Source | LookupTable, rows: Any) -> int:
        from tidegate.spark.rows import to_table

        table = to_table(target, rows)
        if table.num_rows:
            self._append(target, table)
        return int(table.num_rows)

    def _append(
        self, target: Source | LookupTable, table: Any, identity: str | None = None
    ) -> None:
        self._inserts(target).append(table, identity)
        self._pipelines.wake()

    def _inserts(self, target: Declared) -> memory.Inserts:
        return memory.inserts_of(self.directory.source(target.name).uri)

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
        spark = self._functions.on(self.spark, self.catalog)
        table = rows_of_insert(spark, target, statement, script)
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

    def _keep(self, name: str | None, location: Location | None = None) -> dict[str, Name]:
        self._require_open()
        wrong = unsafe_checkpoint_name(name) if name is not None else None
        if wrong is not None:
            raise RunError("TG-210", f"{name!r} cannot be the name of a checkpoint: {wrong}")
        return self._pipelines.checkpoints(self.settings).keep(name, location)

    def drop_checkpoint(self, name: str) -> None:
        """What only it kept is removed with one of the next epochs."""
        self._require_open()
        self._pipelines.checkpoints(self.settings).drop(name)

    def checkpoints(self) -> list[Checkpoint]:
        """All that can be restored, newest first: those with a name, and the last few epochs."""
        self._require_open()
        return self._pipelines.checkpoints(self.settings).list_all()

    def restore(
        self, checkpoint: str | int, *, sinks: str | None = None, pipeline: str | None = None
    ) -> None:
        """Go back to a checkpoint by its name, or to an epoch that is still kept.

        Streams that run are stopped for it and started again. `sinks='keep'` leaves rows from after
        the checkpoint in sinks that cannot forget them; without it they reject.
        """
        if sinks not in (None, "keep"):
            raise RunError("TG-207", f"sinks is 'keep' or nothing, not {sinks!r}")
        self.warnings = []
        self._restore(RestoreRequest(checkpoint, sinks == "keep", pipeline))

    def _restore(self, wanted: RestoreRequest) -> list[Restored]:
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
        location = Location(script.text, span.start, span.end, script.file)
        if isinstance(statement, st.CheckpointStatement):
            kept = self._keep(statement.name, location)
            where = ", ".join(f"{name} at epoch {item.epoch}" for name, item in kept.items())
            return f"checkpoint '{next(iter(kept.values())).name}': {where}"
        if isinstance(statement, st.DropCheckpoint):
            checkpoints = self._pipelines.checkpoints(self.settings)
            if statement.if_exists and not checkpoints.has(statement.name):
                return f"there is no checkpoint '{statement.name}'"
            checkpoints.drop(statement.name, location)
            return f"checkpoint '{statement.name}' dropped"
        options, _ = restore_options(statement, ScriptOrigin(script.text, script.file))
        target = statement.name if statement.name is not None else statement.epoch
        assert target is not None, "RESTORE has a name or an epoch"
        wanted = RestoreRequest(target, options["sinks"] == "keep", options["pipeline"], location)
        return "\n".join(restored_text(item) for item in self._restore(wanted))

    # Rows out

    def subscribe(
        self, stream: str, from_epoch: int | None = None, timeout: float | None = None
    ) -> Subscription:
        """Every epoch of a stream as Arrow; several subscribers each get everything.

        Iterating ends when the stream does, or after `timeout` seconds in which nothing came.
        """
        self._require_open()
        declared = stream_of(self.catalog, self._declared(stream))
        if self._pipelines.subscribe(self.catalog, declared) and self._pipelines.running:
            assert self._pipelines.until_end is not None, "it runs"
            self._pipelines.check_runnable(self.catalog, self._pipelines.until_end)
            self._pipelines.start_missing(self.catalog, self.settings)
        name = declared.name
        return Subscription(
            self.directory.stream(name),
            from_epoch,
            lambda: self._pipelines.may_come(self.catalog, name),
            timeout,
            name,
        )

    def query(self, sql: str, file: str | None = None) -> QueryResult:
        """Answer a SELECT over materialised views and streams with a memory sink, as of now.

        It is DuckDB's SQL, over the current table of each: its rows, or what is left of them after
        updates and retractions; all of a pipeline as of one epoch.
        """
        self._require_open()
        return self._looking.query(self.catalog, sql, file)

    def peek(self, stream: str, rows: int = 20, timeout: float = 10.0) -> QueryResult:
        """A few rows of a stream: the last ones where they are kept, else the next that come."""
        self._require_open()
        name = stream_of(self.catalog, self._declared(stream)).name
        return self._looking.peek(self.catalog, self.settings, name, rows, timeout)

    def add_console_sinks(self) -> list[str]:
        """Show the streams that nobody else consumes; returns their names."""
        return self._pipelines.add_console_sinks(self.catalog)

    # Looking

    def status(self) -> tuple[StreamStatus, ...]:
        """Where every running stream is; after a stop, where it was."""
        return self._pipelines.status()

    def timelines(self) -> list[Timeline]:
        """Of each pipeline the last epochs, and how long their steps took."""
        return self._pipelines.timelines()

    def explain(self, stream: str, logical: bool = False) -> str:
        """The plan of a stream as a tree; `logical` shows it before it is optimised."""
        declared = self._declared(stream)
        if not isinstance(declared, Stream):
            raise RunError("TG-506", f"{stream} is not a stream with a query")
        plan = declared.plan if logical else plan_to_run(declared.plan, self.settings)
        return explain(plan, declared.name)
