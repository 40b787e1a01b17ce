"""Build catalog objects from statements that declare sources, lookup tables and sinks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from tidegate.catalog.catalog import Catalog, name_problem
from tidegate.catalog.connector import (
    LOOKUP_OPTIONS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    Connectors,
    ConnectorSpec,
)
from tidegate.catalog.objects import (
    Column,
    Declared,
    LookupTable,
    ScriptText,
    SideKind,
    SideStream,
    Sink,
    Source,
    Stream,
    Watermark,
    functions_called,
    tables_in,
)
from tidegate.catalog.options import OptionReader, Options, OptionSpec, OptionType
from tidegate.columns import DEAD_LETTER_FIELDS, LATE_FIELDS, OP
from tidegate.errors import CatalogError, Location, TidegateError, did_you_mean, nearest
from tidegate.sql import statements as st
from tidegate.sql.dialect import string_literal
from tidegate.sql.expressions import calls, is_volatile_call
from tidegate.sql.parser import parse_script
from tidegate.sql.quoting import quote_identifier
from tidegate.types import Span

RESERVED = frozenset({OP})

STREAM_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "state_ttl",
        OptionType.DURATION,
        "state of a key expires when no row with this key has arrived for this long, in "
        "processing time; default: never",
        minimum=1,
    ),
    OptionSpec(
        "validator",
        OptionType.TEXT,
        "what a statement that is unbounded or would never emit causes: an error (reject), a "
        "warning (warn) or nothing (off); default: SET validator",
        choices=("reject", "warn", "off"),
    ),
    OptionSpec(
        "trigger_interval",
        OptionType.DURATION,
        "minimum time between the starts of two epochs; the smallest value in a pipeline "
        "applies; default: SET trigger_interval",
        minimum=0,
    ),
    OptionSpec(
        "on_change",
        OptionType.TEXT,
        "action if the stored state does not fit the changed query: reject it, continue without "
        "the state of changed operators, or restart the stream; default: SET on_change",
        choices=("reject", "continue", "restart"),
    ),
    OptionSpec(
        "on_error",
        OptionType.TEXT,
        "action if an expression fails on a row: stop the pipeline, or skip the row",
        default="stop",
        choices=("stop", "dead_letter"),
    ),
    OptionSpec(
        "dead_letters",
        OptionType.TEXT,
        "name of the stream of failed rows; needs on_error = 'dead_letter'; default: they are "
        "only counted",
    ),
    OptionSpec(
        "pipeline",
        OptionType.TEXT,
        "name of the pipeline; the streams of a pipeline run and commit together; default: main",
        example="'main'",
        check=name_problem,
    ),
)

DEAD_LETTER_COLUMNS = (
    Column("source", "STRING"),
    Column("reason", "STRING"),
    Column("record", "STRING"),
    Column("column_name", "STRING"),
    Column("file", "STRING"),
    Column("line", "BIGINT"),
)
# Columns of a stream's dead letters: the expression that failed, and the row as JSON.
FAILED_ROW_COLUMNS = tuple(Column(name, "STRING") for name in DEAD_LETTER_FIELDS)
# Columns of a late stream in addition to those of the row: why it was late.
LATE_COLUMNS = tuple(Column(*late_field) for late_field in LATE_FIELDS)


def _is_volatile(tree: exp.Expr) -> bool:
    return any(is_volatile_call(name, call) or name == "PROCTIME" for name, call in calls(tree))


def _is_record_field(column: Column) -> bool:
    """Return whether a column is part of the records of its source."""
    return column.computed is None and column.metadata is None


def _role_name(role: str) -> str:
    return "lookup table" if role == "lookup" else role


def _event_time_hint(column: Column, columns: tuple[Column, ...]) -> str:
    """Suggest a computed TIMESTAMP column for an event-time column of another type."""
    names = {item.name.lower() for item in columns}
    numbered = (f"ts_{number}" for number in itertools.count(2))
    candidates = itertools.chain(("ts", "event_time"), numbered)
    new_name = next(name for name in candidates if name not in names)
    sql_type = (column.type or "").partition("(")[0]
    expression = {
        "STRING": f"to_timestamp({column.name})",
        "VARCHAR": f"to_timestamp({column.name})",
        "CHAR": f"to_timestamp({column.name})",
        "BIGINT": f"timestamp_millis({column.name})",
        "INT": f"timestamp_seconds({column.name})",
    }.get(sql_type, f"CAST({column.name} AS TIMESTAMP)")
    return (
        f"compute it from {column.name}: {new_name} AS {expression}, WATERMARK FOR {new_name} AS "
        f"{new_name} - INTERVAL '5' SECOND."
    )


@dataclass(frozen=True)
class DeclarationBuilder:
    """Builds the objects of one script; each method returns the object and its errors."""

    connectors: Connectors
    script: ScriptText
    resolve_environment: bool = True

    def _location(self, span: Span) -> Location:
        return Location(self.script.text, span.start, span.end, self.script.file)

    def _error(self, code: str, message: str, span: Span, hint: str | None = None) -> CatalogError:
        return CatalogError(code, message, location=self._location(span), hint=hint)

    def options(
        self, specs: Sequence[OptionSpec], owner: str, statement: st.Declaration
    ) -> tuple[Options, list[CatalogError]]:
        reader = OptionReader(
            specs, owner, self.script.text, self.script.file, self.resolve_environment
        )
        return reader.read(statement.options, statement.name_span)

    def _connector(
        self, statement: st.Declaration, role: str
    ) -> tuple[ConnectorSpec | None, list[CatalogError]]:
        """Return the connector of a declaration if it exists and has the role."""
        option = next((o for o in statement.options if o.name.lower() == "connector"), None)
        names = [name for name, spec in self.connectors.items() if getattr(spec, role) is not None]
        if option is None:
            misspelt = nearest("connector", [other.name for other in statement.options])
            similar = next((o for o in statement.options if o.name == misspelt), None)
            return None, [
                self._error(
                    "TG-208",
                    f"{_role_name(role)} {statement.name} has no connector",
                    similar.span if similar is not None else statement.name_span,
                    f"did you mean connector instead of {misspelt}?"
                    if similar is not None
                    else f"add connector = '…' to its WITH (…): {', '.join(sorted(names))}.",
                )
            ]
        spec = self.connectors.get(option.value.lower())
        if spec is None:
            return None, [
                self._error(
                    "TG-205",
                    f"unknown connector {option.value}",
                    option.value_span,
                    did_you_mean(option.value, names, "connectors"),
                )
            ]
        if getattr(spec, role) is None:
            return None, [
                self._error(
                    "TG-211",
                    f"connector {spec.name} cannot be used as a {_role_name(role)}",
                    option.value_span,
                    f"use one of {', '.join(sorted(names))}.",
                )
            ]
        return spec, []

    def source(
        self, statement: st.CreateSource
    ) -> tuple[Source | None, list[SideStream], list[TidegateError]]:
        spec, errors = self._connector(statement, "source")
        if spec is None or spec.source is None:
            return None, [], list(errors)
        owner = f"the connector {spec.name}"
        options, option_errors = self.options(
            (*SOURCE_OPTIONS, *spec.source.options), owner, statement
        )
        problems: list[TidegateError] = [*option_errors]
        if not problems and spec.source.check is not None:
            problem = spec.source.check(options)
            if problem is not None:
                problems.append(self._error("TG-207", problem[0], statement.name_span, problem[1]))
        columns = self._columns(statement)
        if not problems and spec.source.columns is not None:
            columns, column_errors = self._fixed_columns(
                statement, columns, spec.source.columns(options), owner
            )
            problems += column_errors
        if columns or spec.source.columns is None or not problems:
            problems += self._check_columns(statement, columns)
            problems += self._check_watermark(statement, columns)
        problems += self._check_time_options(statement)
        problems += self._check_metadata(statement, spec)
        if not problems and spec.source.check_columns is not None:
            fields = tuple((c.name, str(c.type)) for c in columns if _is_record_field(c))
            problem = spec.source.check_columns(options, fields, bool(statement.primary_key))
            if problem is not None:
                problems.append(self._error("TG-210", problem[0], statement.name_span, problem[1]))
        if problems:
            return None, [], problems
        if spec.source.implies_changelog(options, bool(statement.primary_key)):
            options = options.with_values(changelog=True)
        watermark = statement.watermark
        source = Source(
            statement.name,
            options,
            statement,
            self.script,
            spec.name,
            columns,
            statement.primary_key,
            Watermark(watermark.column, watermark.delay_us) if watermark else None,
            spec.source.is_bounded(options),
            spec.source.insertable,
            spec.source.partitioned,
        )
        return source, self._dead_letters(source), []

    def _check_metadata(
        self, statement: st.CreateSource, spec: ConnectorSpec
    ) -> list[TidegateError]:
        """Check that the connector has the metadata fields of METADATA columns."""
        metadata = spec.source.metadata if spec.source is not None else {}
        errors: list[TidegateError] = []
        if statement.columns and all(item.metadata is not None for item in statement.columns):
            message = f"all columns of {statement.name} are metadata"
            hint = "declare at least one column of its records."
            errors.append(self._error("TG-210", message, statement.name_span, hint))
        for item in (item for item in statement.columns if item.metadata is not None):
            sql_types = metadata.get(str(item.metadata), ())
            if not sql_types:
                message = f"connector {spec.name} has no metadata field {item.metadata}"
                hint = f"remove the column {item.name}."
                if metadata:
                    hint = did_you_mean(str(item.metadata), metadata, "metadata fields")
                errors.append(self._error("TG-210", message, item.span, hint))
            elif item.type not in sql_types:
                message = f"{item.metadata} is {' or '.join(sql_types)}, not {item.type}"
                hint = f"{item.name} {sql_types[0]} METADATA FROM '{item.metadata}'"
                errors.append(self._error("TG-210", message, item.span, hint))
        return errors

    def _columns(self, statement: st.CreateSource | st.CreateLookupTable) -> tuple[Column, ...]:
        return tuple(
            Column(item.name, item.type, item.not_null, item.computed, item.metadata)
            for item in statement.columns
        )

    def _fixed_columns(
        self,
        statement: st.CreateSource,
        columns: tuple[Column, ...],
        fixed: tuple[tuple[str, str], ...],
        connector: str,
    ) -> tuple[tuple[Column, ...], list[TidegateError]]:
        """Check the columns of a connector with fixed columns: declare none, or some of them."""
        by_name = {name.lower(): (name, sql_type) for name, sql_type in fixed}
        if not any(column.computed is None for column in columns):
            return tuple(Column(name, sql_type) for name, sql_type in fixed) + columns, []
        errors: list[TidegateError] = []
        for column, definition in zip(columns, statement.columns, strict=True):
            if column.computed is not None:
                continue
            match = by_name.get(column.name.lower())
            if match is None:
                hint = did_you_mean(column.name, by_name, "columns")
                message = f"{connector} has no column {column.name}"
                errors.append(self._error("TG-210", message, definition.span, hint))
            elif column.type != match[1]:
                message = f"the column {column.name} is {match[1]}, not {column.type}"
                errors.append(
                    self._error("TG-210", message, definition.span, f"{match[0]} {match[1]}")
                )
        return columns, errors

    def _check_columns(
        self, statement: st.CreateSource | st.CreateLookupTable, columns: tuple[Column, ...]
    ) -> list[TidegateError]:
        errors: list[TidegateError] = []
        names = {column.name.lower(): column for column in columns}
        if not columns:
            hint = f"CREATE … {statement.name} (id BIGINT, …) WITH (…);"
            kind = "source" if isinstance(statement, st.CreateSource) else "lookup table"
            message = f"{kind} {statement.name} declares no columns"
            errors.append(self._error("TG-210", message, statement.name_span, hint))
        for item in statement.columns:
            if item.name.lower() in RESERVED:
                message = f"the column name {item.name} is reserved for changelogs"
                hint = "remove it and add changelog = true to the options."
                errors.append(self._error("TG-210", message, item.span, hint))
        for key in statement.primary_key:
            if key.lower() not in names:
                message = f"the primary key contains {key}, which is not a column"
                span = statement.primary_key_span or statement.name_span
                hint = did_you_mean(key, [c.name for c in columns], "columns")
                errors.append(self._error("TG-210", message, span, hint))
        return errors

    def _check_watermark(
        self, statement: st.CreateSource, columns: tuple[Column, ...]
    ) -> list[TidegateError]:
        watermark = statement.watermark
        if watermark is None:
            return []
        for column in columns:
            if column.name.lower() == watermark.column.lower():
                if column.type not in (None, "TIMESTAMP", "TIMESTAMP_NTZ"):
                    message = f"the event time {column.name} must be a TIMESTAMP, not {column.type}"
                    hint = _event_time_hint(column, columns)
                    return [self._error("TG-210", message, watermark.column_span, hint)]
                if column.computed is not None and _is_volatile(column.computed):
                    message = (
                        f"the event time {column.name} has another value when an epoch is retried"
                    )
                    hint = "use a column of the data; for processing time use a window over "
                    hint += "PROCTIME(), which needs no watermark."
                    return [self._error("TG-210", message, watermark.span, hint)]
                return []
        message = f"the watermark uses {watermark.column}, which is not a column"
        hint = did_you_mean(watermark.column, [c.name for c in columns], "columns")
        return [self._error("TG-210", message, watermark.column_span, hint)]

    def _check_time_options(self, statement: st.CreateSource) -> list[TidegateError]:
        """Reject options about event time on a source without a watermark."""
        if statement.watermark is not None:
            return []
        hint = "declare it: WATERMARK FOR ts AS ts - INTERVAL '5' SECOND, or remove the option."
        return [
            self._error(
                "TG-210",
                f"{option.name} needs an event time, but {statement.name} has no watermark",
                option.span,
                hint,
            )
            for option in statement.options
            if option.name.lower() in ("idle_timeout", "max_future")
        ]

    def _dead_letters(self, source: Source) -> list[SideStream]:
        name = source.options["dead_letters"]
        if name is None:
            return []
        side = SideStream(
            name,
            Options({}, {}, set()),
            source.statement,
            self.script,
            DEAD_LETTER_COLUMNS,
            source.name,
            SideKind.DEAD_LETTERS,
        )
        return [side]

    def lookup_table(
        self, statement: st.CreateLookupTable
    ) -> tuple[LookupTable | None, list[TidegateError]]:
        spec, errors = self._connector(statement, "lookup")
        if spec is None or spec.lookup is None:
            return None, list(errors)
        options, option_errors = self.options(
            (*LOOKUP_OPTIONS, *spec.lookup.options), f"the connector {spec.name}", statement
        )
        columns = self._columns(statement)
        problems: list[TidegateError] = [*option_errors]
        if not problems and spec.lookup.check is not None:
            problem = spec.lookup.check(options)
            if problem is not None:
                problems.append(self._error("TG-207", problem[0], statement.name_span, problem[1]))
        problems += self._check_columns(statement, columns)
        for column, definition in zip(columns, statement.columns, strict=True):
            if column.metadata is not None:
                message = "a lookup table cannot have METADATA columns"
                problems.append(self._error("TG-210", message, definition.span, "remove it."))
            if column.computed is not None:
                message = "a lookup table cannot have computed columns"
                hint = "compute the value in the stream that reads the table."
                problems.append(self._error("TG-210", message, definition.span, hint))
        if problems:
            return None, problems
        table = LookupTable(
            statement.name,
            options,
            statement,
            self.script,
            spec.name,
            columns,
            statement.primary_key,
            spec.lookup.insertable,
            spec.lookup.consistent_in_epoch,
        )
        return table, []

    def sink(self, statement: st.CreateSink) -> tuple[Sink | None, list[TidegateError]]:
        spec, errors = self._connector(statement, "sink")
        if spec is None or spec.sink is None:
            return None, list(errors)
        options, option_errors = self.options(
            (*SINK_OPTIONS, *spec.sink.options), f"the connector {spec.name}", statement
        )
        problems: list[TidegateError] = [*option_errors]
        if not problems and spec.sink.check is not None:
            problem = spec.sink.check(options)
            if problem is not None:
                problems.append(self._error("TG-207", problem[0], statement.name_span, problem[1]))
        if problems:
            return None, problems
        sink = Sink(statement.name, options, statement, self.script, spec.name, statement.source)
        return sink, []


# ---- CREATE OR REPLACE and ALTER


def may_replace(statement: st.Declaration, existing: Declared) -> bool:
    """Return whether a statement replaces an existing object of the same kind."""
    if isinstance(statement, st.CreateFunction):
        return statement.or_replace and existing.kind is st.ObjectKind.FUNCTION
    return isinstance(statement, st.CreateStream) and (
        statement.or_replace and isinstance(existing, Stream)
    )


def find_self_reference(
    statement: st.Declaration, existing: Declared, readers: Sequence[Declared], catalog: Catalog
) -> str | None:
    """Return a name that would make a replacement read itself, directly or through its readers."""
    names = {item.name.lower() for item in readers if not isinstance(item, Sink)}
    names.add(existing.name.lower())
    side_streams = catalog.of_type(SideStream)
    names |= {side.name.lower() for side in side_streams if side.parent.lower() in names}
    reads: list[str] = []
    if isinstance(statement, st.CreateStream):
        reads += tables_in(statement.query.tree)
    elif isinstance(statement, st.CreateFunction):
        reads += functions_called([statement.body])
    return next((name.lower() for name in reads if name.lower() in names), None)


def altered_declaration(
    stream: Stream, statement: st.AlterStream, script: ScriptText
) -> tuple[st.CreateStream | None, list[CatalogError]]:
    """Return the declaration of a stream with changed options, and the errors."""
    reader = OptionReader(STREAM_OPTIONS, "a stream", script.text, script.file)
    _, errors = reader.read(statement.options, statement.name_span)
    if errors:
        return None, errors
    (declaration,) = parse_script(_altered_sql(stream, statement.options)).statements
    assert isinstance(declaration, st.CreateStream), "the statement is CREATE STREAM"
    return declaration, []


def _altered_sql(stream: Stream, options: Sequence[st.Option]) -> str:
    """Return the CREATE statement of a stream with changed options."""
    statement = stream.statement
    assert isinstance(statement, st.CreateStream), "a stream was declared by CREATE STREAM"
    values = {option.name.lower(): option.value for option in (*statement.options, *options)}
    option_list = ", ".join(f"{name} = {string_literal(value)}" for name, value in values.items())
    kind = "MATERIALIZED VIEW" if statement.materialized else "STREAM"
    span, start = statement.query.span, statement.span.start
    query = statement.text[span.start - start : span.end - start]
    return f"CREATE {kind} {quote_identifier(statement.name)} WITH ({option_list}) AS\n{query}"
