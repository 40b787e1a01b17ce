"""Translate a case to Tidegate SQL: its sources use the connector `memory`, its query is a stream.

The EMIT clause and the allowed lateness of the case are appended if the query has none. Otherwise
the query is not changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.connector import SOURCE_OPTIONS
from tidegate.catalog.objects import LookupTable, SideStream, Source, Stream
from tidegate.columns import OP
from tidegate.compile.compiler import Compiled, Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import CatalogError, ScriptError, did_you_mean
from tidegate.sql import statements as st
from tidegate.sql.parser import parse_script
from tidegate.testing.case import Case, CaseSource, DeleteAll
from tidegate.testing.fields import LONG_DELAY_MS, MARK_COLUMN
from tidegate.types import ChangelogKind

_EMITS = {
    "window_close": "EMIT ON WINDOW CLOSE",
    "update": "EMIT CHANGES",
    "changelog": "EMIT CHANGES",
}
# What rejects a late stream; the number of late rows is checked then.
_NO_LATE_STREAM = frozenset({"TG-412", "TG-418"})


@dataclass(frozen=True)
class DeclaredCase:
    """A case ready to run: its script, and what its stream means."""

    script: str
    stream: str
    late_stream: str | None
    changelog: ChangelogKind
    key: tuple[str, ...]
    sources: tuple[Source | LookupTable, ...]

    def source(self, name: str) -> Source | LookupTable:
        """The declared source or table that takes the rows of a source of the case."""
        candidates = (name.lower(), marked_name(name).lower())
        for source in self.sources:
            if source.name.lower() in candidates:
                return source
        hint = did_you_mean(name, [source.name for source in self.sources], "sources")
        raise CatalogError("TG-201", f"unknown source {name}", hint=hint)


@dataclass(frozen=True)
class _Draft:
    """One way to write a case down."""

    text: str
    stream: str
    late_stream: str | None = None


def declare(case: Case) -> DeclaredCase:
    """Translate a case to SQL and check everything that can be checked without Spark."""
    if case.script is not None:
        assert case.stream is not None, "a script names its stream"
        draft = _Draft(case.script, case.stream)
        return _declared(draft, _compile(draft, case))
    draft = _draft(case, late=bool(case.late_rows))
    compiled = _compile(draft, case)
    if _NO_LATE_STREAM & {error.code for error in compiled.errors}:
        draft = _draft(case, late=False)
        compiled = _compile(draft, case)
    return _declared(draft, compiled)


def _compile(draft: _Draft, case: Case) -> Compiled:
    return Compiler(CONNECTORS).compile(draft.text, sql_name(case))


def sql_name(case: Case) -> str:
    """What errors call the SQL of a case: their lines are not those of its file."""
    return f"{case.path.name} as SQL"


def _declared(draft: _Draft, compiled: Compiled) -> DeclaredCase:
    if compiled.errors:
        raise ScriptError(compiled.errors)
    catalog = compiled.catalog
    stream = catalog.get(draft.stream)
    kind = ChangelogKind.APPEND
    key: tuple[str, ...] = ()
    if isinstance(stream, Stream):
        if compiled.unrunnable:
            raise ScriptError(compiled.unrunnable)
        kind, key = _kind(stream)
    elif not isinstance(stream, SideStream):
        streams = [item.name for item in catalog.listed(st.ObjectKind.STREAM)]
        hint = did_you_mean(draft.stream, streams, "streams")
        raise CatalogError("TG-201", f"the script has no stream {draft.stream}", hint=hint)
    return DeclaredCase(
        draft.text,
        stream.name,
        draft.late_stream,
        kind,
        key,
        (*catalog.of(Source), *catalog.of(LookupTable)),
    )


def _kind(stream: Stream) -> tuple[ChangelogKind, tuple[str, ...]]:
    """What the rows of a stream mean, and the columns of its key."""
    plan = stream.plan
    ids = set(plan.key or ())
    return plan.changelog, tuple(item.name for item in plan.fields if item.id in ids)


def _draft(case: Case, late: bool) -> _Draft:
    assert case.query is not None, "only cases with a query are drafted"
    taken = {source.name.lower() for source in case.sources}
    stream = _free("result", taken)
    late_stream = _free("late_rows", taken) if late else None
    statements = [text for source in case.sources for text in _sources(case, source)]
    options = f" WITH (state_ttl = '{case.state_ttl}')" if case.state_ttl is not None else ""
    query, late_stream = _query(case, late_stream)
    statements.append(f"CREATE STREAM {stream}{options} AS\n{query}")
    return _Draft(";\n\n".join(statements) + ";\n", stream, late_stream)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _query(case: Case, late_stream: str | None) -> tuple[str, str | None]:
    """The query with what the case adds to its EMIT clause, and the name of its late stream."""
    assert case.query is not None, "only cases with a query are drafted"
    query = case.query.strip().rstrip(";").rstrip()
    emit = _emit_of(query)
    added = [] if emit is not None or case.emit is None else [_EMITS[case.emit]]
    late: list[str] = []
    if case.allowed_lateness_ms and (emit is None or emit.lateness_us is None):
        late.append(f"ALLOW LATENESS INTERVAL '{case.allowed_lateness_ms}' MILLISECOND")
    if emit is not None and emit.late_to is not None:
        late_stream = emit.late_to
    elif late_stream is not None:
        late.append(f"LATE DATA TO {late_stream}")
    if late and emit is None and not added:
        added.append("EMIT ON WINDOW CLOSE")
    return "\n".join([query, *added, *late]), late_stream


def _emit_of(query: str) -> st.EmitClause | None:
    """The EMIT clause of a query; None if there is none or the query cannot be read."""
    script = parse_script(f"CREATE STREAM result AS\n{query}")
    statement = script.statements[0] if script.statements else None
    return statement.query.emit if isinstance(statement, st.CreateStream) else None


def marked_name(name: str) -> str:
    """The source that carries the explicit watermarks of `name`."""
    return f"{name}_with_marks"


def _sources(case: Case, source: CaseSource) -> list[str]:
    """The statements that declare a source of the case."""
    columns = [f"{_quoted(name)} {kind}" for name, kind in source.columns]
    options = {"changelog": "true"} if _signed(case, source) else {}
    if source.is_lookup:
        return [_create("LOOKUP TABLE", source.name, columns, source.primary_key, options)]
    key = source.primary_key
    if source.time_column is not None:
        # The time of a case is its own: it may lie after that of the clock.
        options["max_future"] = "'off'"
    if not source.marks:
        watermark = _watermark(source, _delay_ms(case, source))
        body = [*columns, *watermark]
        return [_create("SOURCE", source.name, body, key, options)]
    body = [*columns, f"{MARK_COLUMN} BOOLEAN", *_watermark(source, LONG_DELAY_MS)]
    names = ", ".join(_quoted(name) for name, _ in source.columns)
    marked = marked_name(source.name)
    return [
        _create("SOURCE", marked, body, key, options),
        f"CREATE STREAM {_quoted(source.name)} AS\n"
        f"SELECT {names} FROM {_quoted(marked)} WHERE {MARK_COLUMN} IS NULL",
    ]


def _create(
    what: str, name: str, body: list[str], key: tuple[str, ...], options: dict[str, str]
) -> str:
    if key:
        body = [*body, f"PRIMARY KEY ({', '.join(_quoted(column) for column in key)})"]
    lines = ",\n    ".join(body)
    with_clause = ", ".join(
        ["connector = 'memory'", *(f"{option} = {value}" for option, value in options.items())]
    )
    return f"CREATE {what} {_quoted(name)} (\n    {lines}\n) WITH ({with_clause})"


def _watermark(source: CaseSource, delay_ms: int) -> list[str]:
    if source.time_column is None:
        return []
    time = _quoted(source.time_column)
    return [f"WATERMARK FOR {time} AS {time} - INTERVAL '{delay_ms}' MILLISECOND"]


def _delay_ms(case: Case, source: CaseSource) -> int:
    """`none`: nothing is meant to be late, so the watermark stays far behind."""
    if case.watermark_model in ("none", "explicit"):
        return LONG_DELAY_MS
    return source.watermark_delay_ms


def _signed(case: Case, source: CaseSource) -> bool:
    """Whether the rows of a source carry _op: always for a changelog, else where it is used."""
    if source.kind == "changelog":
        return True
    if source.kind == "stream":
        return False
    emptied = any(
        isinstance(step, DeleteAll) and source.name in step.sources for step in case.steps
    )
    return emptied or any(OP in row for row in (*source.rows, *case.rows_of(source.name)))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# ---- A SQL file as it is, made testable: rows come from the case, and nothing is written.

_KEPT = {option.name for option in SOURCE_OPTIONS} - {"connector"}
_WITH = re.compile(r"\bWITH\s*\($", re.IGNORECASE)


def testable(text: str, file: str) -> str:
    """The declarations of a file: its sources take rows of the case, its sinks are left out."""
    compiled = Compiler(CONNECTORS, resolve_environment=False).compile(text, file)
    if compiled.errors:
        raise ScriptError(compiled.errors)
    parts = []
    for statement in compiled.script.statements:
        if isinstance(statement, st.CreateSource):
            parts.append(_source(statement, compiled.script.text, compiled.catalog))
        elif isinstance(statement, st.CreateStream | st.CreateLookupTable | st.Set | st.Drop):
            parts.append(statement.text)
    return ";\n\n".join(parts) + ";\n"


def _source(statement: st.CreateSource, script: str, catalog: Catalog) -> str:
    """The same columns, key and watermark, on the connector memory."""
    head = script[statement.span.start : statement.options[0].span.start].rstrip()
    head = _WITH.sub("", head).rstrip()
    if not statement.columns:
        source = catalog.get(statement.name)
        assert isinstance(source, Source), "it was declared"
        columns = ", ".join(f"`{column.name}` {column.type}" for column in source.columns)
        head = f"CREATE SOURCE `{statement.name}` ({columns})"
    options = {"connector": "'memory'"}
    if statement.watermark is not None:
        # The time of a case is its own: it may lie after that of the clock.
        options["max_future"] = "'off'"
    for option in statement.options:
        if option.name.lower() in _KEPT:
            span = option.value_span
            options[option.name.lower()] = script[span.start : span.end]
    clause = ", ".join(f"{name} = {value}" for name, value in options.items())
    # A comment may end the line before.
    return f"{head}\nWITH ({clause})"
