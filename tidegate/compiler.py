"""A script to checked declarations: parse, declare, bind, rewrite, validate. No Spark.

Statements may stand in any order: a stream may read one that is declared further down. All errors
of a script are found in one go; a declaration that fails is not blamed again by those who read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.checkpoints import CheckpointStatement, checkpoint_errors
from tidegate.catalog.connector import Connectors, secret_options
from tidegate.catalog.declare import STREAM_OPTIONS, Declarer, unbuilt_role
from tidegate.catalog.declared_names import side_names, unsafe_names
from tidegate.catalog.inserts import insert_errors
from tidegate.catalog.objects import (
    Declared,
    Origin,
    SideStream,
    Sink,
    Source,
    Stream,
    tables_in,
)
from tidegate.catalog.options import Options
from tidegate.catalog.settings import Settings
from tidegate.errors import (
    CatalogError,
    Place,
    RunError,
    SqlError,
    TidegateError,
    did_you_mean,
    not_built,
)
from tidegate.physical.refusals import unrunnable
from tidegate.plan import nodes as n
from tidegate.plan.binder import bind
from tidegate.plan.late import late_side
from tidegate.plan.optimise import plan_to_run
from tidegate.plan.rules import forget_deletes, rewrite
from tidegate.plan.scope import Context, Relation, Resolver, Scope
from tidegate.sql import expressions as ex
from tidegate.sql import statements as st
from tidegate.sql.parser import parse_script
from tidegate.types import Span
from tidegate.validate.checks.late_readers import late_readers
from tidegate.validate.checks.sink_changelog import sink_changelog
from tidegate.validate.checks.sink_options import sink_options
from tidegate.validate.validator import Mode, validate


@dataclass(frozen=True)
class Compiled:
    """What a script comes to: the catalog after it, what to do, and everything found."""

    script: st.Script
    catalog: Catalog
    settings: Settings
    statements: tuple[st.Statement, ...]
    declared: tuple[Declared, ...]
    explained: tuple[tuple[st.Explain, n.Emit], ...]
    errors: tuple[TidegateError, ...]
    # What is declared right with a connector that is not built.
    not_built: tuple[TidegateError, ...]
    warnings: tuple[TidegateError, ...]

    @cached_property
    def unrunnable(self) -> tuple[TidegateError, ...]:
        """What is right and cannot run: it can be explained, and nothing else."""
        streams = [item for item in self.declared if isinstance(item, Stream)]
        found = (error for item in streams for error in self._unrunnable(item))
        return (*self.not_built, *found)

    def _unrunnable(self, stream: Stream) -> list[RunError]:
        return unrunnable(stream, plan_to_run(stream.plan, self.settings))


@dataclass
class Compiler:
    """Compiles one script against a catalog, which is copied and never changed."""

    connectors: Connectors
    catalog: Catalog = field(default_factory=Catalog)
    settings: Settings = field(default_factory=Settings)
    knows_function: Callable[[str], bool] = lambda name: False
    resolve_environment: bool = True

    def compile(self, text: str, file: str | None = None) -> Compiled:
        script = parse_script(text, file, secret_options(self.connectors))
        return _Run(self, script).run()


class _Run:
    """The state of one compilation."""

    def __init__(self, compiler: Compiler, script: st.Script) -> None:
        self.compiler = compiler
        self.script = script
        self.catalog = compiler.catalog.copy()
        self.settings = compiler.settings.copy()
        self.origin = Origin(script.text, script.file)
        self.declarer = Declarer(compiler.connectors, self.origin, compiler.resolve_environment)
        self.errors: list[TidegateError] = [cast(TidegateError, error) for error in script.errors]
        self.not_built: list[TidegateError] = []
        self.warnings: list[TidegateError] = []
        self.broken = {name.lower() for name in script.broken}
        self.done: list[st.Statement] = []
        self.declared: list[Declared] = []
        self.explained: list[tuple[st.Explain, n.Emit]] = []
        self.waiting: dict[str, st.Declaration] = {}
        self.in_progress: list[str] = []

    def run(self) -> Compiled:
        for statement in self.script.statements:
            if isinstance(statement, st.Declaration):
                self.waiting.setdefault(statement.name.lower(), statement)
        for statement in list(self.waiting.values()):
            for name in side_names(statement):
                self.waiting.setdefault(name.lower(), statement)
        for statement in self.script.statements:
            try:
                self._statement(statement)
            except RecursionError:
                # Streams are bound inside each other, so a long chain is as deep as it is long.
                hint = "let it read fewer streams in a row, or split its subqueries."
                self._error("TG-103", "this is nested too deeply", statement.span, hint)
                if isinstance(statement, st.Declaration):
                    self.broken.add(statement.name.lower())
        self.errors.sort(key=lambda error: error.place.start if error.place else 0)
        return Compiled(
            self.script,
            self.catalog,
            self.settings,
            tuple(self.done),
            tuple(self.declared),
            tuple(self.explained),
            tuple(self.errors),
            tuple(self.not_built),
            tuple(self.warnings),
        )

    def _place(self, span: Span) -> Place:
        return Place(self.origin.text, span.start, span.end, self.origin.file)

    def _error(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        self.errors.append(CatalogError(code, message, place=self._place(span), hint=hint))

    def _statement(self, statement: st.Statement) -> None:
        if isinstance(statement, st.Declaration):
            self._declare(statement)
            return
        ok = True
        if isinstance(statement, st.Drop):
            ok = self._drop(statement)
        elif isinstance(statement, st.Set):
            ok = self._set(statement)
        elif isinstance(statement, st.Insert):
            ok = self._insert(statement)
        elif isinstance(statement, st.Explain):
            ok = self._explain(statement)
        elif isinstance(statement, st.Describe | st.ShowCreate):
            ok = self._known(statement.name, statement.name_span) is not None
        elif isinstance(statement, CheckpointStatement):
            found = list(checkpoint_errors(statement, self.origin))
            self.errors += found
            ok = not found
        if ok:
            self.done.append(statement)

    def _known(self, name: str, span: Span) -> Declared | None:
        declared = self.catalog.get(name)
        if declared is None and name.lower() not in self.broken:
            hint = did_you_mean(name, self.catalog.names(), "names")
            self._error("TG-201", f"nothing is named {name}", span, hint)
        return declared

    # Declarations

    def _declare(self, statement: st.Declaration) -> None:
        """Declare one object, those it reads first."""
        key = statement.name.lower()
        if any(statement is done for done in self.done):
            return
        if self.waiting.get(key) is statement:
            del self.waiting[key]
        existing = self.catalog.get(statement.name)
        if existing is not None:
            if statement.if_not_exists:
                return
            self._error(
                "TG-202",
                f"{statement.name} is already the name of a {existing.kind.value.lower()}",
                statement.name_span,
                f"choose another name, or DROP {existing.kind.value} {existing.name}; first.",
            )
            return
        if key in self.broken:
            return
        before = len(self.errors)
        self.in_progress.append(statement.name)
        try:
            created = self._create(statement)
        finally:
            self.in_progress.pop()
        unsafe = unsafe_names(created or [])
        self.errors += unsafe
        if created is None or unsafe:
            assert len(self.errors) > before or self.broken, "a refusal has a reason"
            self.broken |= {key, *(name.lower() for name in side_names(statement))}
            return
        self.done.append(statement)
        for item in created:
            self._add(item, statement)
            self._require_connector(item)

    def _add(self, item: Declared, statement: st.Declaration) -> None:
        if self.catalog.get(item.name) is not None:
            what = item.holds.value if isinstance(item, SideStream) else "rows"
            self._error(
                "TG-202",
                f"{item.name} is taken: the {what} of {statement.name} need a name of their own",
                statement.name_span,
                "choose another name for them.",
            )
            return
        self.catalog.add(item)
        self.declared.append(item)

    def _require_connector(self, item: Declared) -> None:
        reason = unbuilt_role(item, self.compiler.connectors)
        if reason is not None:
            place = self._place(item.statement.name_span)
            self.not_built.append(not_built(*reason, place))

    def _create(self, statement: st.Declaration) -> list[Declared] | None:
        if isinstance(statement, st.CreateSource):
            source, sides, errors = self.declarer.source(statement)
            self.errors += errors
            if source is None or not self._check_computed(source):
                return None
            return [source, *sides]
        if isinstance(statement, st.CreateLookupTable):
            table, errors = self.declarer.lookup_table(statement)
            self.errors += errors
            return [table] if table is not None else None
        if isinstance(statement, st.CreateSink):
            return self._create_sink(statement)
        assert isinstance(statement, st.CreateStream), f"cannot declare {statement}"
        return self._create_stream(statement)

    def _check_computed(self, source: Source) -> bool:
        """Computed columns may use the stored ones, and functions that exist."""
        context = self._context(source.statement.span)
        stored = tuple(n.Field(c.name, c.name, c.type) for c in source.stored_columns)
        resolver = Resolver(context, Scope([Relation(source.name, stored)]))
        for item in source.columns:
            if item.computed is None:
                continue
            resolver.resolve(item.computed)
            if not ex.is_scalar(item.computed):
                context.report(
                    "TG-305",
                    f"the computed column {item.name} must be made of one row: no aggregate, "
                    "OVER or explode",
                    item.computed,
                    "compute it in a stream over the source.",
                )
        self.errors += context.errors
        return not context.errors

    def _require(self, name: str) -> bool:
        """Make sure a name that is declared further down is declared now; False on a cycle."""
        later = self.waiting.get(name.lower())
        target = later.name if later is not None else name
        if target.lower() in (item.lower() for item in self.in_progress):
            return False
        if later is not None and self.catalog.get(name) is None:
            self._declare(later)
        return True

    def _cycle(self, statement: st.Declaration, name: str) -> None:
        later = self.waiting.get(name.lower())
        around = [item.lower() for item in self.in_progress]
        start = around.index((later.name if later is not None else name).lower())
        circle = " → ".join([*self.in_progress[start:], name])
        self._error(
            "TG-203",
            f"streams cannot read each other in a circle: {circle}",
            statement.name_span,
            "let one of them read a source instead.",
        )

    def _context(
        self, span: Span, emit: st.Emit | None = None, ttl_us: int | None = None
    ) -> Context:
        return Context(
            self.catalog,
            self.origin.text,
            self.origin.file,
            span,
            emit,
            ttl_us,
            self.compiler.knows_function,
            frozenset(self.broken),
        )

    def _bind(self, query: st.Query, span: Span, options: Options | None) -> n.Emit | None:
        ttl = options["state_ttl"] if options is not None else None
        context = self._context(span, query.emit, ttl)
        bound = bind(query, context)
        self.errors += context.errors
        if bound is None:
            return None
        plan = rewrite(bound)
        plan = plan if ttl is None else forget_deletes(plan, ttl)
        assert isinstance(plan, n.Emit), "the root of a plan emits"
        return plan

    def _create_stream(self, statement: st.CreateStream) -> list[Declared] | None:
        options, errors = self.declarer.options(STREAM_OPTIONS, "a stream", statement)
        self.errors += errors
        for name in dict.fromkeys(tables_in(statement.query.tree)):
            if not self._require(name):
                self._cycle(statement, name)
                return None
        if errors:
            return None
        plan = self._bind(statement.query, statement.span, options)
        if plan is None or not self._validate(plan, statement, options):
            return None
        stream = Stream(statement.name, options, statement, self.origin, statement.query, plan)
        wrong = list(late_readers(stream, self.catalog))
        self.errors += wrong
        return None if wrong else [stream, *late_side(stream)]

    def _mode(self, options: Options | None) -> Mode:
        own = options["validator"] if options is not None else None
        return Mode(own or self.settings["validator"])

    def _validate(self, plan: n.Emit, statement: st.Statement, options: Options | None) -> bool:
        mode = self._mode(options)
        if mode is Mode.OFF:
            return True
        found = [
            finding.error(self.origin.text, self.origin.file, statement.span)
            for finding in validate(plan)
        ]
        if mode is Mode.WARN:
            self.warnings += found
            return True
        self.errors += found
        return not found

    def _create_sink(self, statement: st.CreateSink) -> list[Declared] | None:
        sink, errors = self.declarer.sink(statement)
        self.errors += errors
        self._require(statement.source)
        source = self.catalog.get(statement.source)
        if source is None or isinstance(source, Sink):
            if statement.source.lower() not in self.broken:
                hint = did_you_mean(
                    statement.source, self.catalog.readable(), "streams and sources"
                )
                message = f"there is no stream {statement.source} to write"
                self._error("TG-201", message, statement.source_span, hint)
            return None
        if sink is None:
            return None
        return [sink] if self._sink_fits(sink, source) else None

    def _sink_fits(self, sink: Sink, source: Declared) -> bool:
        if not isinstance(source, Stream | SideStream):
            hint = f"CREATE STREAM all_{source.name} AS SELECT * FROM {source.name}; then write it."
            if not isinstance(source, Source):
                hint = f"join a stream with it, and write that: FROM my_stream JOIN {source.name}."
            message = f"{source.name} is a {source.kind.value.lower()}, and sinks write streams"
            assert isinstance(sink.statement, st.CreateSink), "a sink was declared by CREATE SINK"
            self._error("TG-201", message, sink.statement.source_span, hint)
            return False
        spec = self.compiler.connectors[sink.connector].sink
        assert spec is not None, "a declared sink has a sink connector"
        plan = source.plan if isinstance(source, Stream) else None
        wrong = list(sink_options(sink, spec, plan, self.catalog.of(Sink)))
        self.errors += wrong
        if plan is None or wrong:
            return not wrong
        mode = self._mode(source.options)
        found = None if mode is Mode.OFF else sink_changelog(sink, spec, plan)
        if found is None:
            return True
        (self.warnings if mode is Mode.WARN else self.errors).append(found)
        return mode is Mode.WARN

    # Other statements

    def _drop(self, statement: st.Drop) -> bool:
        declared = self.catalog.get(statement.name)
        if declared is None:
            if statement.if_exists or statement.name.lower() in self.broken:
                return False
            hint = did_you_mean(statement.name, self.catalog.names(), "names")
            self._error("TG-201", f"nothing is named {statement.name}", statement.name_span, hint)
            return False
        if declared.kind is not statement.kind:
            self._error(
                "TG-201",
                f"{declared.name} is a {declared.kind.value.lower()}",
                statement.name_span,
                f"DROP {declared.kind.value} {declared.name};",
            )
            return False
        if isinstance(declared, SideStream):
            self._error(
                "TG-204",
                f"{declared.name} goes with {declared.parent}: it holds its {declared.holds.value}",
                statement.name_span,
                f"drop {declared.parent}.",
            )
            return False
        readers = self.catalog.dependents(declared.name)
        if readers:
            names = ", ".join(f"{item.kind.value.lower()} {item.name}" for item in readers)
            first = readers[0]
            self._error(
                "TG-204",
                f"{declared.name} cannot be dropped while others depend on it: {names}",
                statement.name_span,
                f"DROP {first.kind.value} {first.name}; first.",
            )
            return False
        self.catalog.remove(declared.name)
        return True

    def _set(self, statement: st.Set) -> bool:
        try:
            span = statement.key_span.cover(statement.value_span)
            self.settings.set(statement.key, statement.value, self._place(span))
        except TidegateError as error:
            self.errors.append(error)
            return False
        return True

    def _insert(self, statement: st.Insert) -> bool:
        self._require(statement.target)
        target = self._known(statement.target, statement.target_span)
        if target is None:
            return False
        found = list(insert_errors(statement, target, self.origin))
        self.errors += found
        return not found

    def _explain(self, statement: st.Explain) -> bool:
        if statement.query is not None:
            for name in dict.fromkeys(tables_in(statement.query.tree)):
                self._require(name)
            plan = self._bind(statement.query, statement.span, None)
            if plan is None or not self._validate(plan, statement, None):
                return False
            self.explained.append((statement, plan))
            return True
        assert statement.stream is not None and statement.stream_span is not None
        self._require(statement.stream)
        stream = self._known(statement.stream, statement.stream_span)
        if stream is None:
            return False
        if not isinstance(stream, Stream):
            self.errors.append(
                SqlError(
                    "TG-201",
                    f"{stream.name} is not a stream with a query",
                    place=self._place(statement.stream_span),
                    hint=f"EXPLAIN SELECT * FROM {stream.name};",
                )
            )
            return False
        self.explained.append((statement, stream.plan))
        return True
