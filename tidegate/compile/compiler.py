"""The compiler: parse a script, then declare, bind, rewrite and validate its statements. No Spark.

Declarations can be in any order: a stream may read one that is declared later. The compiler reports
all errors of a script at once; readers of a declaration with errors are not reported again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

from sqlglot import exp

from tidegate.catalog.catalog import (
    Catalog,
    declarations_by_name,
    drop_problem,
    name_errors,
    side_names,
    side_span,
)
from tidegate.catalog.commands import CheckpointStatement, checkpoint_errors, insert_errors
from tidegate.catalog.connector import Connectors, secret_options
from tidegate.catalog.declare import (
    STREAM_OPTIONS,
    DeclarationBuilder,
    altered_declaration,
    find_self_reference,
    may_replace,
)
from tidegate.catalog.objects import (
    Declared,
    Function,
    ScriptText,
    SideStream,
    Sink,
    Source,
    Stream,
    functions_called,
    tables_in,
)
from tidegate.catalog.options import Options
from tidegate.catalog.settings import Settings
from tidegate.compile.validate.side_streams import failed_row_errors, late_reader_errors
from tidegate.compile.validate.sinks import check_sink
from tidegate.compile.validate.validator import ValidatorMode, validate
from tidegate.errors import (
    CatalogError,
    Location,
    RunError,
    TidegateError,
    did_you_mean,
)
from tidegate.physical.rejections import find_rejections
from tidegate.plan import nodes as n
from tidegate.plan.bind.binder import bind
from tidegate.plan.bind.declarations import (
    bind_computed_columns,
    bind_function,
    inline_calls,
)
from tidegate.plan.bind.scope import BindingContext
from tidegate.plan.rewrite.optimizer import optimized_plan
from tidegate.plan.rewrite.semantics import rewrite, set_tombstone_ttl
from tidegate.plan.side_streams import side_streams
from tidegate.sql import statements as st
from tidegate.sql.parser import parse_script
from tidegate.types import Span


@dataclass(frozen=True)
class Compiled:
    """The result of a compilation: the new catalog, statements to execute, errors and warnings."""

    script: st.Script
    catalog: Catalog
    settings: Settings
    statements: tuple[st.Statement, ...]
    declared: tuple[Declared, ...]
    explained: tuple[tuple[st.Explain, n.Emit], ...]
    errors: tuple[TidegateError, ...]
    warnings: tuple[TidegateError, ...]
    # True if an existing object was replaced.
    replaced: bool = False

    @cached_property
    def rejections(self) -> tuple[TidegateError, ...]:
        """The errors of valid streams that cannot run; they can only be explained."""
        streams = [item for item in self.declared if isinstance(item, Stream)]
        return tuple(error for item in streams for error in self._rejections_of(item))

    def _rejections_of(self, stream: Stream) -> list[RunError]:
        return find_rejections(stream, optimized_plan(stream.plan, self.settings))


@dataclass
class Compiler:
    """Compiles scripts against a catalog, which it does not change."""

    connectors: Connectors
    catalog: Catalog = field(default_factory=Catalog)
    settings: Settings = field(default_factory=Settings)
    function_exists: Callable[[str], bool] = lambda name: False
    resolve_environment: bool = True

    def compile(self, text: str, file: str | None = None) -> Compiled:
        """Compile a script."""
        script = parse_script(text, file, secret_options(self.connectors))
        return _Compilation(self, script).run()

    def declare(self, function: Function) -> Compiled:
        """Declare a Python function, replacing a function of the same name."""
        return _Compilation(self, st.Script("", ())).run(function)


class _Compilation:
    """The state of one compilation."""

    def __init__(self, compiler: Compiler, script: st.Script) -> None:
        self.compiler = compiler
        self.script = script
        self.catalog = compiler.catalog.copy()
        self.settings = compiler.settings.copy()
        self.current_script = ScriptText(script.text, script.file)
        self.declarer = DeclarationBuilder(
            compiler.connectors, self.current_script, compiler.resolve_environment
        )
        self.errors: list[TidegateError] = [cast(TidegateError, error) for error in script.errors]
        self.warnings: list[TidegateError] = []
        self.invalid_names = {name.lower() for name in script.invalid_names}
        self.compiled: list[st.Statement] = []
        self.declared: list[Declared] = []
        self.explained: list[tuple[st.Explain, n.Emit]] = []
        self.pending: dict[str, st.Declaration] = {}
        self.in_progress: list[str] = []
        # The function of `declare`.
        self.python_function: Function | None = None
        self.replaced = False

    def run(self, function: Function | None = None) -> Compiled:
        if function is not None:
            self.python_function = function
            with self._reporting_in(function.script):
                self._declare(function.statement)
        self.pending = declarations_by_name(self.script)
        for statement in self.script.statements:
            try:
                self._compile_statement(statement)
            except RecursionError:
                # Streams are bound recursively, so a long chain of streams is deep recursion.
                hint = "shorten the chain of streams that it reads, or split its subqueries."
                self._error("TG-103", "the statement is nested too deeply", statement.span, hint)
                if isinstance(statement, st.Declaration):
                    self.invalid_names.add(statement.name.lower())
        self.errors.sort(key=lambda error: error.location.start if error.location else 0)
        return Compiled(
            self.script,
            self.catalog,
            self.settings,
            tuple(self.compiled),
            tuple(self.declared),
            tuple(self.explained),
            tuple(self.errors),
            tuple(self.warnings),
            self.replaced,
        )

    def _location(self, span: Span) -> Location:
        return Location(self.current_script.text, span.start, span.end, self.current_script.file)

    def _error(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        self.errors.append(CatalogError(code, message, location=self._location(span), hint=hint))

    def _compile_statement(self, statement: st.Statement) -> None:
        if isinstance(statement, st.Declaration):
            self._declare(statement)
            return
        ok = True
        if isinstance(statement, st.Drop):
            ok = self._compile_drop(statement)
        elif isinstance(statement, st.AlterStream):
            ok = self._compile_alter(statement)
        elif isinstance(statement, st.Set):
            ok = self._compile_set(statement)
        elif isinstance(statement, st.Insert):
            bound = self._compile_insert(statement)
            ok, statement = bound is not None, bound or statement
        elif isinstance(statement, st.Explain):
            ok = self._compile_explain(statement)
        elif isinstance(statement, st.Describe | st.ShowCreate):
            ok = self._find(statement.name, statement.name_span) is not None
        elif isinstance(statement, CheckpointStatement):
            problems = list(checkpoint_errors(statement, self.current_script))
            self.errors += problems
            ok = not problems
        if ok:
            self.compiled.append(statement)

    def _find(self, name: str, span: Span) -> Declared | None:
        """Return a declared object; report an error if it does not exist."""
        declared = self.catalog.get(name)
        if declared is None and name.lower() not in self.invalid_names:
            hint = did_you_mean(name, self.catalog.names(), "names")
            self._error("TG-201", f"unknown name {name}", span, hint)
        return declared

    def _find_stream(self, name: str, span: Span, prefix: str) -> Stream | None:
        self._declare_first(name)
        stream = self._find(name, span)
        if stream is not None and not isinstance(stream, Stream):
            message = f"{stream.name} is a {stream.kind.value.lower()}, not a stream with a query"
            self._error("TG-201", message, span, f"{prefix} SELECT * FROM {stream.name};")
        return stream if isinstance(stream, Stream) else None

    # Declarations

    def _declare(self, statement: st.Declaration) -> None:
        """Declare an object after the objects that it reads."""
        key = statement.name.lower()
        if any(statement is other for other in self.compiled):
            return
        if self.pending.get(key) is statement:
            del self.pending[key]
        existing = self.catalog.get(statement.name)
        if existing is not None:
            if statement.if_not_exists:
                return
            if may_replace(statement, existing):
                if self._replace(statement, existing):
                    self.compiled.append(statement)
                return
            kind = existing.kind.value
            message = f"{statement.name} is already the name of a {kind.lower()}"
            hint = f"choose another name, or DROP {kind} {existing.name}; first."
            self._error("TG-202", message, statement.name_span, hint)
            return
        if key not in self.invalid_names and self._declare_new(statement):
            self.compiled.append(statement)

    def _declare_new(self, statement: st.Declaration) -> bool:
        """Declare an object whose name is free; return True on success."""
        before = len(self.errors)
        self.in_progress.append(statement.name)
        try:
            created = self._create(statement)
        finally:
            self.in_progress.pop()
        problems = name_errors(created or [])
        self.errors += problems
        if created is None or problems:
            assert len(self.errors) > before or self.invalid_names, "a rejection has a reason"
            self.invalid_names |= {statement.name.lower(), *map(str.lower, side_names(statement))}
            return False
        for item in created:
            self._add(item, statement)
        return True

    def _replace(self, statement: st.Declaration, existing: Declared) -> bool:
        """Replace an object, and declare its readers again."""
        readers = self.catalog.all_dependents(existing.name)
        name = find_self_reference(statement, existing, readers, self.catalog)
        if name is not None:
            through = "" if name == existing.name.lower() else f", through {name}"
            message = f"{existing.name} would read itself{through}"
            hint = "change one of them to read a source instead."
            self._error("TG-203", message, statement.name_span, hint)
            return False
        streams = [item for item in readers if not isinstance(item, Sink)]
        for item in [*reversed(streams), existing]:
            self.catalog.remove(item.name)
            self.declared = [other for other in self.declared if other is not item]
        self.replaced = True
        if not self._declare_new(statement):
            return False
        return all(list(map(self._declare_again, readers)))

    def _declare_again(self, item: Declared) -> bool:
        """Declare a reader of a changed object again; return True if it is still valid."""
        with self._reporting_in(item.script):
            if not isinstance(item, Sink):
                return self._declare_new(item.statement)
            self.declared += [item] if item not in self.declared else []
            assert isinstance(item.statement, st.CreateSink), "a sink was declared by CREATE SINK"
            source = self._find_sink_source(item.statement)
            return source is not None and self._check_sink(item, source)

    @contextmanager
    def _reporting_in(self, script: ScriptText) -> Iterator[None]:
        """Report errors at positions of another script."""
        before, self.current_script = self.current_script, script
        self.declarer = replace(self.declarer, script=script)
        try:
            yield
        finally:
            self.current_script = before
            self.declarer = replace(self.declarer, script=before)

    def _add(self, item: Declared, statement: st.Declaration) -> None:
        if self.catalog.get(item.name) is not None:
            existing = self.catalog.get(item.name)
            kind = existing.kind.value.lower() if existing is not None else "stream"
            span, content = statement.name_span, "rows"
            if isinstance(item, SideStream):
                span, content = side_span(item), item.side_kind.value
            message = f"{item.name} is already a {kind}, so it cannot hold the {content} of "
            message += statement.name
            self._error("TG-202", message, span, f"choose another name: {item.name}_2.")
            return
        self.catalog.add(item)
        self.declared.append(item)

    def _create(self, statement: st.Declaration) -> list[Declared] | None:
        if isinstance(statement, st.CreateSource):
            if not self._declare_functions_first(
                statement, [c.computed for c in statement.columns]
            ):
                return None
            source, sides, errors = self.declarer.source(statement)
            self.errors += errors
            bound = self._bind_computed_columns(source) if source is not None else None
            return [bound, *sides] if bound is not None else None
        if isinstance(statement, st.CreateLookupTable):
            table, errors = self.declarer.lookup_table(statement)
            self.errors += errors
            return [table] if table is not None else None
        if isinstance(statement, st.CreateSink):
            return self._create_sink(statement)
        if self.python_function is not None and statement is self.python_function.statement:
            return [self.python_function]
        if isinstance(statement, st.CreateFunction):
            return self._create_function(statement)
        assert isinstance(statement, st.CreateStream), f"cannot declare {statement}"
        return self._create_stream(statement)

    def _create_function(self, statement: st.CreateFunction) -> list[Declared] | None:
        if not self._declare_functions_first(statement, [statement.body]):
            return None
        context = self._context(statement.span)
        function = bind_function(statement, context, self.declarer)
        self.errors += context.errors
        return [function] if function is not None and not context.errors else None

    def _bind_computed_columns(self, source: Source) -> Source | None:
        """Bind the computed columns of a source."""
        context = self._context(source.statement.span)
        bound = bind_computed_columns(source, context)
        self.errors += context.errors
        return bound if not context.errors else None

    def _declare_functions_first(
        self, statement: st.Declaration, trees: Sequence[exp.Expr | None]
    ) -> bool:
        """Declare functions that are declared later in the script; return False on a cycle."""
        for name in dict.fromkeys(functions_called(trees)):
            in_progress = map(str.lower, self.in_progress)
            calls_itself = isinstance(statement, st.CreateFunction) and name in in_progress
            is_pending = isinstance(self.pending.get(name), st.CreateFunction)
            if (calls_itself or is_pending) and not self._declare_first(name):
                self._report_cycle(statement, name)
                return False
        return True

    def _declare_first(self, name: str) -> bool:
        """Declare an object that is declared later in the script; return False on a cycle."""
        declaration = self.pending.get(name.lower())
        target = declaration.name if declaration is not None else name
        if target.lower() in (item.lower() for item in self.in_progress):
            return False
        if declaration is not None and self.catalog.get(name) is None:
            self._declare(declaration)
        return True

    def _report_cycle(self, statement: st.Declaration, name: str) -> None:
        declaration = self.pending.get(name.lower())
        in_progress = [item.lower() for item in self.in_progress]
        start = in_progress.index((declaration.name if declaration is not None else name).lower())
        cycle = " → ".join([*self.in_progress[start:], name])
        subject, hint = "streams cannot read", "change one of them to read a source instead."
        if isinstance(statement, st.CreateFunction):
            subject, hint = "functions cannot call", "inline one of the functions."
        message = f"{subject} each other in a cycle: {cycle}"
        if isinstance(statement, st.CreateFunction) and len(self.in_progress[start:]) == 1:
            message = f"{statement.name} calls itself"
            hint = "write it without recursion, or in Python: LANGUAGE PYTHON AS 'my_module:f'."
        self._error("TG-203", message, statement.name_span, hint)

    def _context(
        self, span: Span, emit: st.EmitClause | None = None, ttl_us: int | None = None
    ) -> BindingContext:
        text, file = self.current_script.text, self.current_script.file
        function_exists = self.compiler.function_exists
        invalid_names = frozenset(self.invalid_names)
        return BindingContext(
            self.catalog, text, file, span, emit, ttl_us, function_exists, invalid_names
        )

    def _bind(self, query: st.Query, span: Span, options: Options | None) -> n.Emit | None:
        ttl = options["state_ttl"] if options is not None else None
        context = self._context(span, query.emit, ttl)
        bound = bind(query, context)
        self.errors += context.errors
        if bound is None:
            return None
        plan = rewrite(bound)
        plan = plan if ttl is None else set_tombstone_ttl(plan, ttl)
        assert isinstance(plan, n.Emit), "the root of a plan emits"
        return plan

    def _create_stream(self, statement: st.CreateStream) -> list[Declared] | None:
        options, errors = self.declarer.options(STREAM_OPTIONS, "a stream", statement)
        self.errors += errors
        for name in dict.fromkeys(tables_in(statement.query.tree)):
            if not self._declare_first(name):
                self._report_cycle(statement, name)
                return None
        if not self._declare_functions_first(statement, [statement.query.tree]) or errors:
            return None
        plan = self._bind(statement.query, statement.span, options)
        if plan is None or not self._validate(plan, statement, options):
            return None
        stream = Stream(
            statement.name, options, statement, self.current_script, statement.query, plan
        )
        problems = [
            *late_reader_errors(stream, self.catalog),
            *failed_row_errors(stream, self.catalog),
        ]
        self.errors += problems
        return None if problems else [stream, *side_streams(stream)]

    def _mode(self, options: Options | None) -> ValidatorMode:
        option = options["validator"] if options is not None else None
        return ValidatorMode(option or self.settings["validator"])

    def _validate(self, plan: n.Emit, statement: st.Statement, options: Options | None) -> bool:
        mode = self._mode(options)
        if mode is ValidatorMode.OFF:
            return True
        findings = [
            finding.to_error(self.current_script.text, self.current_script.file, statement)
            for finding in validate(plan)
        ]
        if mode is ValidatorMode.WARN:
            self.warnings += findings
            return True
        self.errors += findings
        return not findings

    def _create_sink(self, statement: st.CreateSink) -> list[Declared] | None:
        sink, errors = self.declarer.sink(statement)
        self.errors += errors
        self._declare_first(statement.source)
        source = self._find_sink_source(statement)
        if source is None or sink is None:
            return None
        return [sink] if self._check_sink(sink, source) else None

    def _find_sink_source(self, statement: st.CreateSink) -> Declared | None:
        """Return the object that a sink reads; report an error if it does not exist."""
        source = self.catalog.get(statement.source)
        if source is not None and not isinstance(source, Sink):
            return source
        if statement.source.lower() not in self.invalid_names:
            names = self.catalog.readable_names()
            hint = did_you_mean(statement.source, names, "streams and sources")
            message = f"unknown stream {statement.source}"
            self._error("TG-201", message, statement.source_span, hint)
        return None

    def _check_sink(self, sink: Sink, source: Declared) -> bool:
        options = source.options if isinstance(source, Stream) else None
        others = [other for other in self.catalog.of_type(Sink) if other is not sink]
        spec = self.compiler.connectors[sink.connector].sink
        assert spec is not None, "a declared sink has a sink connector"
        errors, warnings = check_sink(sink, spec, source, others, self._mode(options))
        self.errors += errors
        self.warnings += warnings
        return not errors

    # Other statements

    def _compile_drop(self, statement: st.Drop) -> bool:
        declared = self.catalog.get(statement.name)
        if declared is None and (
            statement.if_exists or statement.name.lower() in self.invalid_names
        ):
            return False
        rejection = drop_problem(statement, declared, self.catalog)
        if rejection is not None:
            code, message, hint = rejection
            self._error(code, message, statement.name_span, hint)
            return False
        self.catalog.remove(statement.name)
        return True

    def _compile_alter(self, statement: st.AlterStream) -> bool:
        """Replace a stream by the same stream with changed options."""
        stream = self._find_stream(statement.name, statement.name_span, "CREATE STREAM s AS")
        if stream is None:
            return False
        declaration, errors = altered_declaration(stream, statement, self.current_script)
        self.errors += errors
        if declaration is None:
            return False
        with self._reporting_in(ScriptText(declaration.text, None)):
            return self._replace(declaration, stream)

    def _compile_set(self, statement: st.Set) -> bool:
        try:
            span = statement.key_span.cover(statement.value_span)
            self.settings.set(statement.key, statement.value, self._location(span))
        except TidegateError as error:
            self.errors.append(error)
            return False
        return True

    def _compile_insert(self, statement: st.Insert) -> st.Insert | None:
        """Return the statement with SQL functions inlined."""
        self._declare_first(statement.target)
        for name in functions_called([statement.tree]):
            self._declare_first(name)
        target = self._find(statement.target, statement.target_span)
        if target is None:
            return None
        context = self._context(statement.span)
        tree = inline_calls(statement.tree, context)
        self.errors += context.errors
        problems = list(insert_errors(statement, target, self.current_script))
        self.errors += problems
        return replace(statement, tree=tree) if not problems and not context.errors else None

    def _compile_explain(self, statement: st.Explain) -> bool:
        if statement.query is not None:
            tree = statement.query.tree
            for name in dict.fromkeys([*tables_in(tree), *functions_called([tree])]):
                self._declare_first(name)
            plan = self._bind(statement.query, statement.span, None)
            if plan is None or not self._validate(plan, statement, None):
                return False
            self.explained.append((statement, plan))
            return True
        assert statement.stream is not None and statement.stream_span is not None
        stream = self._find_stream(statement.stream, statement.stream_span, "EXPLAIN")
        if stream is not None:
            self.explained.append((statement, stream.plan))
        return stream is not None


__all__ = ["Compiled", "Compiler"]
