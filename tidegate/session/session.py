"""The session that `tidegate.open` returns: declare, run, insert, subscribe and query."""

from __future__ import annotations

import itertools
import threading
import time
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
from tidegate.catalog.commands import (
    CheckpointStatement,
    checkpoint_name_problem,
    insert_identity,
    restore_options,
)
from tidegate.catalog.objects import (
    Declared,
    LookupTable,
    ScriptText,
    SideStream,
    Sink,
    Source,
    Stream,
)
from tidegate.catalog.settings import Settings
from tidegate.checkpoint.checkpoints import Checkpoint, Restored, RestoreRequest
from tidegate.checkpoint.manifests import CheckpointName
from tidegate.compile.compiler import Compiled, Compiler
from tidegate.compile.type_analysis import assign_types
from tidegate.connectors.base import ConsoleCallback
from tidegate.connectors.memory import connector as memory
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import Location, RunError, ScriptError, TidegateError, did_you_mean
from tidegate.observe.status import StreamStatus
from tidegate.observe.timeline import Timeline
from tidegate.physical.explain import explain
from tidegate.plan.rewrite.optimizer import optimized_plan
from tidegate.queries.engine import explain_not_stored, last_rows, run_query
from tidegate.queries.snapshot import StoredTable, save_stored_tables, stored_tables
from tidegate.runtime.cleanup import parked_warning
from tidegate.runtime.directory import DataDirectory, is_cluster, unshared_directory, unshared_paths
from tidegate.runtime.supervisor import Supervisor
from tidegate.session.functions import PythonFunctions, python_declaration
from tidegate.session.results import Result, describe, execute_show, print_rows, restored_text
from tidegate.session.saved_catalog import SavedDeclarations, load_declarations, save_declarations
from tidegate.session.subscription import Subscription
from tidegate.sql import statements as st

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.queries.engine import QueryResult


# Rows of an iterator that are inserted together. Each insert writes one file.
INSERT_BATCH_ROWS = 10_000

Insert = Callable[[Any], int]


def is_row_iterator(rows: Any) -> bool:
    """Return True for iterators, whose number of rows is unknown."""
    return isinstance(rows, Iterator) and not isinstance(rows, Mapping)


def insert_in_batches(rows: Iterable[Any], insert: Insert) -> int:
    """Insert the rows of an iterator in batches; return their number."""
    iterator, count = iter(rows), 0
    while batch := list(itertools.islice(iterator, INSERT_BATCH_ROWS)):
        count += insert(batch)
    return count


async def insert_async(
    rows: AsyncIterable[Any], insert: Insert, batch_rows: int = INSERT_BATCH_ROWS
) -> int:
    """Insert the rows of an async iterator in batches; return their number."""
    batch: list[Any] = []
    count = 0
    async for row in rows:
        batch.append(row)
        if len(batch) >= batch_rows:
            count += insert(batch)
            batch = []
    return count + (insert(batch) if batch else 0)


class Session:
    """A connection to a data directory; `tidegate.open` creates it.

    A new session has no declarations. Execute your script again: each stream then resumes from
    its last committed epoch.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        spark: SparkSession | None = None,
        master: str | None = None,
        config: Mapping[str, Any] | None = None,
        show: ConsoleCallback | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = Settings.from_config(config)
        self.catalog = Catalog()
        self.warnings: list[TidegateError] = []
        self.directory = DataDirectory(path)
        self.directory.open()
        self._user_spark = spark
        self._master = master
        self._conf = dict(conf or {})
        self._spark: SparkSession | None = None
        self._functions = PythonFunctions()
        self._supervisor = Supervisor(self.directory, lambda: self.spark, show or print_rows)
        self._queries = QueryService(self._supervisor)

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
        state = "running" if self._supervisor.running else "stopped"
        state = state if self.directory.is_open else "closed"
        declared = ", ".join(self.catalog.names()) or "nothing declared"
        return f"<tidegate.Session {str(self.directory)!r}, {state}: {declared}>"

    def close(self) -> None:
        """Stop all pipelines and release the data directory. Spark keeps running."""
        try:
            self.stop()
        finally:
            self._functions.unregister(self._spark)
            self._spark = None
            memory.forget_inserts(self.directory.store.uri)
            self.directory.close()

    def _require_open(self) -> None:
        if not self.directory.is_open:
            raise RunError(
                "TG-506", "the session is closed", hint="open another one with tidegate.open."
            )

    @property
    def spark(self) -> SparkSession:
        """The SparkSession. Spark starts when it is first used."""
        self._require_open()
        if self._spark is None:
            from tidegate.spark.session import borrowed_session, own_session

            if self._user_spark is not None:
                self._spark = borrowed_session(self._user_spark)
            else:
                self._spark = own_session(self._master, self.directory.log_file, self._conf)
        return self._spark

    # Statements

    def execute(self, sql: str, file: str | None = None) -> list[Result]:
        """Run a script. All statements are checked first; if one has an error, none is executed.

        If a statement fails later, for example an INSERT, the statements after it are not executed,
        but everything that the script declares stays declared, and runs if the session is running.
        """
        self._require_open()
        compiled = self._compile(sql, file)
        self._require_shared_paths(compiled)
        return self._apply(compiled)

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
        """Register a Python function for use in SQL, replacing a function of the same name.

        The function receives a pyarrow array for each argument and returns an array with one value
        per row. With `scalar`, it receives and returns the values of one row. `arguments` are the
        SQL types to which arguments are cast. `version` is part of every query that calls the
        function, so a new version is a changed query. It defaults to a hash of the source text.
        """
        self._require_open()
        declaration = python_declaration(
            name,
            call,
            returns,
            arguments,
            scalar=scalar,
            deterministic=deterministic,
            version=version,
        )
        self._functions.names.discard(declaration.registered_name)
        compiler = Compiler(CONNECTORS, self.catalog, self.settings, self._is_spark_function)
        self._apply(self._require_no_errors(compiler.declare(declaration)))

    def _apply(self, compiled: Compiled) -> list[Result]:
        """Apply a compiled script: first its declarations, or none of them; then its statements."""
        catalog = assign_types(
            lambda: self._functions.register(self.spark, compiled.catalog), compiled
        )
        if self._supervisor.until_end is not None:
            self._supervisor.check_runnable(catalog, self._supervisor.until_end)
            if compiled.replaced:
                self._supervisor.check_and_apply_changes(catalog, compiled.settings)
        self.warnings = list(compiled.warnings)
        self.settings = compiled.settings
        previous = self.catalog
        self.catalog = catalog
        results: list[Result] = []
        remaining = list(compiled.statements)
        try:
            while remaining:
                results += self._execute_statement(remaining[0], previous, compiled)
                del remaining[0]
        except BaseException:
            if compiled.declared or any(isinstance(s, st.Drop) for s in compiled.statements):
                self._apply_after_failure(remaining, previous)
            raise
        self._save_declarations()
        if self._supervisor.running:
            self._supervisor.start_or_update(self.catalog, self.settings)
        return results

    def _apply_after_failure(self, remaining: Sequence[st.Statement], previous: Catalog) -> None:
        """Save and start what is declared, although a statement has failed.

        What the remaining statements would have dropped is declared again, unless the script uses
        one of the names for another object. Then it is parked.
        """
        names = {item.name.lower() for item in remaining if isinstance(item, st.Drop)}
        if not any(self.catalog.get(name) is not None for name in names):
            for item in filter(None, map(previous.get, previous.names())):
                owner = item.parent if isinstance(item, SideStream) else item.name
                if owner.lower() in names and self.catalog.get(item.name) is None:
                    self.catalog.add(item)
        if not self.directory.is_open:
            return
        try:
            self._save_declarations()
            self._supervisor.apply_changes(self.catalog, self.settings)
        except TidegateError as error:
            # The first error is raised.
            self.warnings.append(error)

    def _save_declarations(self) -> None:
        self._queries.save_stored_tables(self.catalog)
        save_declarations(self.directory, self.catalog)

    def _compile(self, sql: str, file: str | None) -> Compiled:
        compiler = Compiler(CONNECTORS, self.catalog, self.settings, self._is_spark_function)
        return self._require_no_errors(compiler.compile(sql, file))

    def _require_no_errors(self, compiled: Compiled) -> Compiled:
        errors = (*compiled.errors, *compiled.rejections)
        if errors:
            raise ScriptError(errors)
        return compiled

    def _require_shared_paths(self, compiled: Compiled) -> None:
        """Raise an error if Spark is a cluster and a path is on the disk of one machine."""
        master = self._master
        if self._user_spark is not None:
            master = self._user_spark.conf.get("spark.master", None)
        if compiled.settings["shared_disk"] or not is_cluster(master):
            return
        errors = unshared_paths(compiled.declared)
        misplaced = unshared_directory(self.directory.store.uri)
        if misplaced is not None:
            errors.insert(0, misplaced)
        if errors:
            raise ScriptError(errors)

    def _is_spark_function(self, name: str) -> bool:
        return self._user_spark is not None and self.spark.catalog.functionExists(name.lower())

    def _execute_statement(
        self, statement: st.Statement, previous: Catalog, compiled: Compiled
    ) -> list[Result]:
        """Execute a statement after the catalog has changed; `previous` is the catalog before."""
        if isinstance(statement, st.Insert):
            return [self._insert_statement(statement, compiled.script)]
        if isinstance(statement, st.Drop):
            self._drop(previous.get(statement.name))
        if isinstance(statement, CheckpointStatement):
            return [Result.from_text(self._checkpoint_statement(statement, compiled.script))]
        if isinstance(statement, st.Show):
            return [execute_show(self, statement.kind)]
        if isinstance(statement, st.Describe):
            return [describe(self._declared(statement.name))]
        if isinstance(statement, st.ShowCreate):
            return [Result.from_text(self._declared(statement.name).create_sql())]
        if isinstance(statement, st.Explain):
            plan = next(plan for explained, plan in compiled.explained if explained is statement)
            plan = plan if statement.logical else optimized_plan(plan, self.settings)
            return [Result.from_text(explain(plan, statement.stream))]
        return []

    def _declared(self, name: str) -> Declared:
        declared = self.catalog.get(name)
        if declared is None:
            hint = did_you_mean(name, self.catalog.names(), "names")
            raise RunError("TG-201", f"unknown name {name}", hint=hint)
        return declared

    def _drop(self, dropped: Declared | None) -> None:
        """Stop what ran for a dropped object, and delete its stored data."""
        if dropped is None:
            return
        if isinstance(dropped, Stream):
            self._supervisor.drop_stream(self.catalog, self.settings, dropped.name)
            self.directory.remove_stream(dropped.name)
        elif isinstance(dropped, Source | LookupTable):
            self.directory.remove_source(dropped.name)
            memory.forget_inserts(self.directory.source(dropped.name).uri)
        elif isinstance(dropped, Sink):
            # The pipeline continues without the sink, or stops if it has no other sink.
            self._supervisor.apply_changes(self.catalog, self.settings)

    def load_declarations(self) -> SavedDeclarations:
        """Return the SQL of the declarations that were last saved in this data directory.

        The interactive shell uses it to declare them again.
        """
        self._require_open()
        return load_declarations(self.directory)

    # Inserting

    @overload
    def insert(self, source: str, rows: AsyncIterable[Any]) -> Coroutine[Any, Any, int]: ...

    @overload
    def insert(self, source: str, rows: Any) -> int: ...

    def insert(self, source: str, rows: Any) -> int | Coroutine[Any, Any, int]:
        """Insert rows into a memory source or lookup table; return the number of rows.

        `rows` is an iterable of dicts or tuples, a pandas or polars data frame, or Arrow data
        (including the C stream interface). An iterator is inserted in batches of 10,000 rows. An
        async iterator returns a coroutine: await it.
        """
        self._require_open()
        target = self._insertable(source)
        if isinstance(rows, AsyncIterable):
            return insert_async(rows, lambda batch: self._insert(target, batch))
        if is_row_iterator(rows):
            return insert_in_batches(rows, lambda batch: self._insert(target, batch))
        return self._insert(target, rows)

    def _insert(self, target: Source | LookupTable, rows: Any) -> int:
        from tidegate.spark.inserted_rows import to_table

        table = to_table(target, rows)
        if table.num_rows:
            self._append(target, table)
        return int(table.num_rows)

    def _append(
        self, target: Source | LookupTable, table: Any, identity: str | None = None
    ) -> None:
        self._inserts(target).append(table, identity)
        self._supervisor.wake()

    def _inserts(self, target: Declared) -> memory.Inserts:
        return memory.open_inserts(self.directory.source(target.name).uri)

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
        from tidegate.spark.inserted_rows import dead_letters_of, rows_of_insert

        target = self._insertable(statement.target)
        identity = insert_identity(statement, script)
        if identity is not None and self._inserts(target).has_identity(identity):
            return Result.from_text(
                f"0 rows inserted into {target.name}: this INSERT has already been executed"
            )
        spark = self._functions.register(self.spark, self.catalog)
        table = rows_of_insert(spark, target, statement, script)
        self._append(target, table, identity)
        reasons: list[str] = []
        if isinstance(target, Source):
            reasons = dead_letters_of(self.spark, target, table)
        rows = "1 row" if table.num_rows == 1 else f"{table.num_rows:,} rows"
        are = "is a dead letter" if len(reasons) == 1 else "are dead letters"
        dead = f", {len(reasons):,} of which {are}: {reasons[0]}" if reasons else ""
        return Result.from_text(f"{rows} inserted into {target.name}{dead}")

    # Running

    def start(self, until_end: bool = False, available_now: bool = False) -> None:
        """Run all streams that have a sink, a subscriber or a materialized view.

        With `available_now`, the run ends when all available rows are processed; open windows stay
        open for the next run. With `until_end`, it also closes all windows, permanently: rows of
        later runs are late.
        """
        if until_end and available_now:
            raise RunError("TG-506", "until_end and available_now cannot be combined")
        self._require_open()
        if self._supervisor.running:
            raise RunError("TG-506", "the session is already running", hint="stop it first.")
        if not self._supervisor.required_streams(self.catalog):
            raise RunError(
                "TG-505",
                "nothing to run: no stream has a sink or a subscriber",
                hint="CREATE SINK out FROM my_stream WITH (connector = 'console');",
            )
        self._supervisor.check_runnable(self.catalog, until_end, available_now)
        self._supervisor.start(self.catalog, self.settings, until_end, available_now)
        self._take_warnings()
        parked = parked_warning(self.directory, self.catalog)
        self.warnings += [parked] if parked is not None else []

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all rows that are available now are processed, or until a bounded run ends.

        Return False if `timeout` seconds pass first.
        """
        if not self._supervisor.running:
            raise RunError(
                "TG-506", "the session is not running", hint="start it first: db.start()."
            )
        return self._supervisor.wait(timeout)

    def stop(self) -> None:
        """Stop all streams. Open windows are not emitted; the next `start` resumes here."""
        self._supervisor.stop()

    # Checkpoints

    def checkpoint(self, name: str | None = None) -> str:
        """Create a checkpoint of all pipelines and return its name. It is kept until dropped."""
        names = self._create_checkpoint(name)
        return next(iter(names.values())).name

    def _create_checkpoint(
        self, name: str | None, location: Location | None = None
    ) -> dict[str, CheckpointName]:
        self._require_open()
        problem = checkpoint_name_problem(name) if name is not None else None
        if problem is not None:
            raise RunError("TG-210", f"{name!r} cannot be the name of a checkpoint: {problem}")
        return self._supervisor.checkpoints(self.settings).create(name, location)

    def drop_checkpoint(self, name: str) -> None:
        """Drop a named checkpoint. Its files are deleted during one of the next epochs."""
        self._require_open()
        self._supervisor.checkpoints(self.settings).drop(name)

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints that can be restored, newest first: named and recent epochs."""
        self._require_open()
        return self._supervisor.checkpoints(self.settings).list_all()

    def restore(
        self, checkpoint: str | int, *, sinks: str | None = None, pipeline: str | None = None
    ) -> None:
        """Restore a checkpoint by its name, or by the number of an epoch that is still kept.

        Running streams are stopped and started again. With `sinks='keep'`, sinks that cannot roll
        back keep the rows of later epochs; otherwise such a sink rejects the restore. An epoch
        number needs `pipeline` if there are several pipelines.
        """
        if sinks not in (None, "keep"):
            raise RunError("TG-207", f"sinks must be 'keep' or None, not {sinks!r}")
        self.warnings = []
        self._restore(RestoreRequest(checkpoint, sinks == "keep", pipeline))

    def _restore(self, request: RestoreRequest) -> list[Restored]:
        self._require_open()
        restored = self._supervisor.restore(self.catalog, self.settings, request)
        self.warnings += [warning for item in restored for warning in item.warnings]
        self._take_warnings()
        return restored

    def _take_warnings(self) -> None:
        self.warnings += self._supervisor.warnings
        self._supervisor.warnings = []

    def _checkpoint_statement(self, statement: CheckpointStatement, script: st.Script) -> str:
        span = statement.name_span or statement.span
        location = Location(script.text, span.start, span.end, script.file)
        if isinstance(statement, st.CreateCheckpoint):
            names = self._create_checkpoint(statement.name, location)
            epochs = ", ".join(f"{name} at epoch {item.epoch}" for name, item in names.items())
            return f"checkpoint '{next(iter(names.values())).name}': {epochs}"
        if isinstance(statement, st.DropCheckpoint):
            checkpoints = self._supervisor.checkpoints(self.settings)
            if statement.if_exists and not checkpoints.exists(statement.name):
                return f"checkpoint '{statement.name}' does not exist"
            checkpoints.drop(statement.name, location)
            return f"checkpoint '{statement.name}' dropped"
        options, _ = restore_options(statement, ScriptText(script.text, script.file))
        target = statement.name if statement.name is not None else statement.epoch
        assert target is not None, "RESTORE has a name or an epoch"
        request = RestoreRequest(target, options["sinks"] == "keep", options["pipeline"], location)
        return "\n".join(restored_text(item) for item in self._restore(request))

    # Reading

    def subscribe(
        self, stream: str, from_epoch: int | None = None, timeout: float | None = None
    ) -> Subscription:
        """Subscribe to a stream: `for batch in db.subscribe("s")` returns a `Batch` per epoch.

        Subscribe before `start`: subscribing makes the stream run and stores its rows from then on;
        earlier rows are not stored. Each subscription starts with the oldest stored epoch, or with
        `from_epoch`. Iteration ends when the stream ends, or after `timeout` seconds without rows.
        """
        self._require_open()
        declared = stream_of(self.catalog, self._declared(stream))
        if self._supervisor.subscribe(self.catalog, declared) and self._supervisor.running:
            assert self._supervisor.until_end is not None, "the pipelines are running"
            self._supervisor.check_runnable(self.catalog, self._supervisor.until_end)
            self._supervisor.start_or_update(self.catalog, self.settings)
        name = declared.name
        return Subscription(
            self.directory.stream(name),
            from_epoch,
            lambda: self._supervisor.may_emit(self.catalog, name),
            timeout,
            name,
        )

    def query(self, sql: str, file: str | None = None) -> QueryResult:
        """Run a SELECT over materialized views and streams with a memory sink.

        The SQL dialect is DuckDB's. Each stream is a table with its current rows, after all updates
        and retractions. The tables of a pipeline are consistent with each other.
        """
        self._require_open()
        return self._queries.query(self.catalog, sql, file)

    def peek(self, stream: str, rows: int = 20, timeout: float = 10.0) -> QueryResult:
        """Return the latest stored rows of a stream; if none are stored, wait for new ones."""
        self._require_open()
        name = stream_of(self.catalog, self._declared(stream)).name
        return self._queries.peek(self.catalog, self.settings, name, rows, timeout)

    def add_console_sinks(self) -> list[str]:
        """Print the rows of streams that have no sink or reader; return their names."""
        return self._supervisor.add_console_sinks(self.catalog)

    # Observing

    def status(self) -> tuple[StreamStatus, ...]:
        """Return the status of all streams; after `stop`, the final status."""
        return self._supervisor.status()

    def timelines(self) -> list[Timeline]:
        """Return the recent epochs of each pipeline and the duration of their steps."""
        return self._supervisor.timelines()

    def explain(self, stream: str, logical: bool = False) -> str:
        """Return the plan of a stream as a tree; with `logical`, the plan before optimization."""
        declared = self._declared(stream)
        if not isinstance(declared, Stream):
            raise RunError("TG-506", f"{stream} is not a stream with a query")
        plan = declared.plan if logical else optimized_plan(declared.plan, self.settings)
        return explain(plan, declared.name)


# ---- Queries: from stored rows, and of the newest rows of a stream


_POLL_SECONDS = 0.05


def stream_of(catalog: Catalog, declared: Declared) -> Stream | SideStream:
    """Return the stream that a name refers to; the name of a memory sink refers to its stream."""
    if isinstance(declared, Sink) and declared.connector == "memory":
        stream = catalog.get(declared.stream)
        assert stream is not None, "a sink has a stream"
        declared = stream
    if not isinstance(declared, Stream | SideStream):
        kind = declared.kind.value.lower()
        raise RunError(
            "TG-506",
            f"{declared.name} is a {kind}, not a stream",
            hint=f"CREATE STREAM all_{declared.name} AS SELECT * FROM {declared.name};"
            if kind == "source"
            else None,
        )
    return declared


class QueryService:
    """Runs queries over the streams of a session."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor

    def stored_tables(self, catalog: Catalog) -> dict[str, StoredTable]:
        """Return the streams and views whose rows are stored, by name."""
        return stored_tables(catalog, self.supervisor.sinks(catalog))

    def save_stored_tables(self, catalog: Catalog) -> None:
        """Store in the data directory which streams can be queried, for other processes."""
        save_stored_tables(self.supervisor.directory, self.stored_tables(catalog))

    def query(self, catalog: Catalog, sql: str, file: str | None) -> QueryResult:
        """Run a SELECT over the stored rows."""

        def explain_missing(name: str) -> tuple[str, str] | None:
            declared = catalog.get(name)
            return explain_not_stored(declared) if declared is not None else None

        return run_query(
            self.supervisor.directory, self.stored_tables(catalog), sql, file, explain_missing
        )

    def peek(
        self, catalog: Catalog, settings: Settings, stream: str, rows: int, timeout: float
    ) -> QueryResult:
        """Return the latest stored rows of a stream, or its next rows if none are stored."""
        stored = self.stored_tables(catalog).get(stream.lower())
        if stored is not None:
            return last_rows(self.supervisor.directory, stored, rows)
        return _next_rows(self.supervisor, catalog, settings, stream, rows, timeout)


def _next_rows(
    supervisor: Supervisor,
    catalog: Catalog,
    settings: Settings,
    stream: str,
    rows: int,
    timeout: float,
) -> QueryResult:
    import pyarrow as pa

    from tidegate.queries.engine import QueryResult

    tables: list[Any] = []
    has_enough = threading.Event()

    def collect(name: str, epoch: int, table: Any) -> None:
        tables.append(table.replace_schema_metadata(None))
        if sum(part.num_rows for part in tables) >= rows:
            has_enough.set()

    deadline = time.monotonic() + timeout
    with supervisor.peek(catalog, settings, stream, rows, collect):
        while not has_enough.wait(_POLL_SECONDS) and time.monotonic() < deadline:
            if not supervisor.may_emit(catalog, stream):
                break
    table = pa.concat_tables(tables).slice(0, rows) if tables else pa.table({})
    return QueryResult(table)
