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
from tidegate.sql.quoting import quote_identifier
from tidegate.testing.case import Case, CaseSource, DeleteAll
from tidegate.testing.fields import LONG_DELAY_MS, WATERMARK_COLUMN
from tidegate.types import ChangelogKind

_EMITS = {
    "window_close": "EMIT ON WINDOW CLOSE",
    "update": "EMIT CHANGES",
    "changelog": "EMIT CHANGES",
}
# Errors of queries that cannot emit late rows; only the number of late rows is checked then.
_NO_LATE_STREAM = frozenset({"TG-412", "TG-418"})


@dataclass(frozen=True)
class DeclaredCase:
    """The SQL script of a case, its sources, and the changelog and key of the stream to check."""

    script: str
    stream: str
    late_stream: str | None
    changelog: ChangelogKind
    key: tuple[str, ...]
    sources: tuple[Source | LookupTable, ...]

    def source(self, name: str) -> Source | LookupTable:
        """Return the declared source or lookup table for a source of the case."""
        candidates = (name.lower(), watermarked_name(name).lower())
        for source in self.sources:
            if source.name.lower() in candidates:
                return source
        hint = did_you_mean(name, [source.name for source in self.sources], "sources")
        raise CatalogError("TG-201", f"unknown source {name}", hint=hint)


@dataclass(frozen=True)
class _CaseSql:
    """The SQL of a case, and the names of the stream to check and of its late stream."""

    text: str
    stream: str
    late_stream: str | None = None


def declare(case: Case) -> DeclaredCase:
    """Translate a case to SQL and check everything that can be checked without Spark."""
    if case.script is not None:
        assert case.stream is not None, "a script has a stream to check"
        sql = _CaseSql(case.script, case.stream)
        return _declare_compiled(sql, _compile(sql, case))
    sql = _generate_sql(case, with_late_stream=bool(case.late_rows))
    compiled = _compile(sql, case)
    if _NO_LATE_STREAM & {error.code for error in compiled.errors}:
        sql = _generate_sql(case, with_late_stream=False)
        compiled = _compile(sql, case)
    return _declare_compiled(sql, compiled)


def _compile(sql: _CaseSql, case: Case) -> Compiled:
    return Compiler(CONNECTORS).compile(sql.text, sql_name(case))


def sql_name(case: Case) -> str:
    """Return the name of the SQL in errors, whose line numbers are not those of the case file."""
    return f"{case.path.name} as SQL"


def _declare_compiled(sql: _CaseSql, compiled: Compiled) -> DeclaredCase:
    if compiled.errors:
        raise ScriptError(compiled.errors)
    catalog = compiled.catalog
    stream = catalog.get(sql.stream)
    kind = ChangelogKind.APPEND
    key: tuple[str, ...] = ()
    if isinstance(stream, Stream):
        if compiled.rejections:
            raise ScriptError(compiled.rejections)
        kind, key = _changelog_and_key(stream)
    elif not isinstance(stream, SideStream):
        streams = [item.name for item in catalog.of_kind(st.ObjectKind.STREAM)]
        hint = did_you_mean(sql.stream, streams, "streams")
        raise CatalogError("TG-201", f"the script has no stream {sql.stream}", hint=hint)
    return DeclaredCase(
        sql.text,
        stream.name,
        sql.late_stream,
        kind,
        key,
        (*catalog.of_type(Source), *catalog.of_type(LookupTable)),
    )


def _changelog_and_key(stream: Stream) -> tuple[ChangelogKind, tuple[str, ...]]:
    """Return the kind of changelog of a stream, and the columns of its key."""
    plan = stream.plan
    ids = set(plan.key or ())
    return plan.changelog, tuple(item.name for item in plan.fields if item.id in ids)


def _generate_sql(case: Case, with_late_stream: bool) -> _CaseSql:
    assert case.query is not None, "a case without a script has a query"
    used_names = {source.name.lower() for source in case.sources}
    stream = _unused_name("result", used_names)
    late_stream = _unused_name("late_rows", used_names) if with_late_stream else None
    statements = [text for source in case.sources for text in _source_statements(case, source)]
    options = f" WITH (state_ttl = '{case.state_ttl}')" if case.state_ttl is not None else ""
    query, late_stream = _query_sql(case, late_stream)
    statements.append(f"CREATE STREAM {stream}{options} AS\n{query}")
    return _CaseSql(";\n\n".join(statements) + ";\n", stream, late_stream)


def _unused_name(name: str, used_names: set[str]) -> str:
    while name in used_names:
        name += "_"
    used_names.add(name)
    return name


def _query_sql(case: Case, late_stream: str | None) -> tuple[str, str | None]:
    """Append the EMIT clause of the case; return the query and the name of its late stream."""
    assert case.query is not None, "a case without a script has a query"
    query = case.query.strip().rstrip(";").rstrip()
    emit = _parse_emit(query)
    clauses = [] if emit is not None or case.emit is None else [_EMITS[case.emit]]
    lateness_clauses: list[str] = []
    if case.allowed_lateness_ms and (emit is None or emit.lateness_us is None):
        lateness_clauses.append(f"ALLOW LATENESS INTERVAL '{case.allowed_lateness_ms}' MILLISECOND")
    if emit is not None and emit.late_to is not None:
        late_stream = emit.late_to
    elif late_stream is not None:
        lateness_clauses.append(f"LATE DATA TO {late_stream}")
    if lateness_clauses and emit is None and not clauses:
        clauses.append("EMIT ON WINDOW CLOSE")
    return "\n".join([query, *clauses, *lateness_clauses]), late_stream


def _parse_emit(query: str) -> st.EmitClause | None:
    """Return the EMIT clause of a query; None if there is none or the query is invalid."""
    script = parse_script(f"CREATE STREAM result AS\n{query}")
    statement = script.statements[0] if script.statements else None
    return statement.query.emit if isinstance(statement, st.CreateStream) else None


def watermarked_name(name: str) -> str:
    """Return the name of the source that contains the explicit watermarks of `name`."""
    return f"{name}_with_watermarks"


def _source_statements(case: Case, source: CaseSource) -> list[str]:
    """Return the statements that declare a source of the case."""
    columns = [f"{quote_identifier(name)} {kind}" for name, kind in source.columns]
    options = {"changelog": "true"} if _carries_op(case, source) else {}
    if source.is_lookup:
        return [
            _create_statement("LOOKUP TABLE", source.name, columns, source.primary_key, options)
        ]
    key = source.primary_key
    if source.time_column is not None:
        # The event times of a case may be after the current time.
        options["max_future"] = "'off'"
    if not source.explicit_watermarks:
        watermark = _watermark_clause(source, _delay_ms(case, source))
        body = [*columns, *watermark]
        return [_create_statement("SOURCE", source.name, body, key, options)]
    body = [*columns, f"{WATERMARK_COLUMN} BOOLEAN", *_watermark_clause(source, LONG_DELAY_MS)]
    names = ", ".join(quote_identifier(name) for name, _ in source.columns)
    watermarked = watermarked_name(source.name)
    return [
        _create_statement("SOURCE", watermarked, body, key, options),
        f"CREATE STREAM {quote_identifier(source.name)} AS\n"
        f"SELECT {names} FROM {quote_identifier(watermarked)} WHERE {WATERMARK_COLUMN} IS NULL",
    ]


def _create_statement(
    object_kind: str, name: str, body: list[str], key: tuple[str, ...], options: dict[str, str]
) -> str:
    if key:
        body = [*body, f"PRIMARY KEY ({', '.join(quote_identifier(column) for column in key)})"]
    lines = ",\n    ".join(body)
    with_clause = ", ".join(
        ["connector = 'memory'", *(f"{option} = {value}" for option, value in options.items())]
    )
    return f"CREATE {object_kind} {quote_identifier(name)} (\n    {lines}\n) WITH ({with_clause})"


def _watermark_clause(source: CaseSource, delay_ms: int) -> list[str]:
    if source.time_column is None:
        return []
    time = quote_identifier(source.time_column)
    return [f"WATERMARK FOR {time} AS {time} - INTERVAL '{delay_ms}' MILLISECOND"]


def _delay_ms(case: Case, source: CaseSource) -> int:
    """Return the watermark delay; without a watermark model it is so long that no row is late."""
    if case.watermark_model in ("none", "explicit"):
        return LONG_DELAY_MS
    return source.watermark_delay_ms


def _carries_op(case: Case, source: CaseSource) -> bool:
    """Return whether rows have _op: always in a changelog, otherwise if the case uses it."""
    if source.kind == "changelog":
        return True
    if source.kind == "stream":
        return False
    is_emptied = any(
        isinstance(step, DeleteAll) and source.name in step.sources for step in case.steps
    )
    return is_emptied or any(OP in row for row in (*source.rows, *case.rows_of(source.name)))


# ---- SQL files: read the rows of the case instead of the sources, and write nothing.

_PRESERVED_OPTIONS = {option.name for option in SOURCE_OPTIONS} - {"connector"}
_TRAILING_WITH = re.compile(r"\bWITH\s*\($", re.IGNORECASE)


def testable_script(text: str, file: str) -> str:
    """Return the declarations of a file without sinks, and with sources on connector memory."""
    compiled = Compiler(CONNECTORS, resolve_environment=False).compile(text, file)
    if compiled.errors:
        raise ScriptError(compiled.errors)
    parts = []
    for statement in compiled.script.statements:
        if isinstance(statement, st.CreateSource):
            parts.append(_on_memory_connector(statement, compiled.script.text, compiled.catalog))
        elif isinstance(statement, st.CreateStream | st.CreateLookupTable | st.Set | st.Drop):
            parts.append(statement.text)
    return ";\n\n".join(parts) + ";\n"


def _on_memory_connector(statement: st.CreateSource, script: str, catalog: Catalog) -> str:
    """Declare a source with the same columns, key and watermark on connector memory."""
    head = script[statement.span.start : statement.options[0].span.start].rstrip()
    head = _TRAILING_WITH.sub("", head).rstrip()
    if not statement.columns:
        source = catalog.get(statement.name)
        assert isinstance(source, Source), "a CREATE SOURCE without errors declares a source"
        columns = ", ".join(f"`{column.name}` {column.type}" for column in source.columns)
        head = f"CREATE SOURCE `{statement.name}` ({columns})"
    options = {"connector": "'memory'"}
    if statement.watermark is not None:
        # The event times of a case may be after the current time.
        options["max_future"] = "'off'"
    for option in statement.options:
        if option.name.lower() in _PRESERVED_OPTIONS:
            span = option.value_span
            options[option.name.lower()] = script[span.start : span.end]
    clause = ", ".join(f"{name} = {value}" for name, value in options.items())
    # WITH starts a new line because the previous one may end with a comment.
    return f"{head}\nWITH ({clause})"
