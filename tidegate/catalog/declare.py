"""Statements that declare sources, lookup tables and sinks, turned into catalog objects."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

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
    Origin,
    SideKind,
    SideStream,
    Sink,
    Source,
    Watermark,
)
from tidegate.catalog.options import OptionReader, Options, OptionSpec, OptionType
from tidegate.columns import LETTER_COLUMNS, OP
from tidegate.errors import CatalogError, Place, TidegateError, did_you_mean, nearest
from tidegate.names import unsafe
from tidegate.sql import statements as st
from tidegate.sql.expressions import calls, is_volatile_call
from tidegate.types import Span

RESERVED = frozenset({OP})

STREAM_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "state_ttl",
        OptionType.DURATION,
        "state that was not touched for this long is forgotten",
        minimum=1,
    ),
    OptionSpec(
        "validator",
        OptionType.TEXT,
        "what happens to findings of the validator",
        choices=("reject", "warn", "off"),
    ),
    OptionSpec(
        "trigger_interval",
        OptionType.DURATION,
        "the least time between two epochs; of the streams of a pipeline the shortest counts",
        minimum=0,
    ),
    OptionSpec(
        "on_change",
        OptionType.TEXT,
        "what happens when its sources, or the query in or below an operator, have changed; the "
        "setting on_change if left out",
        choices=("refuse", "continue", "restart"),
    ),
    OptionSpec(
        "on_error",
        OptionType.TEXT,
        "what happens to a row on which an expression fails: the pipeline stops there, or the row "
        "is a dead letter and the stream goes on",
        default="stop",
        choices=("stop", "dead_letter"),
    ),
    OptionSpec(
        "dead_letters",
        OptionType.TEXT,
        "with on_error = 'dead_letter': the stream that such rows go to; they are counted in any "
        "case",
    ),
    OptionSpec(
        "pipeline",
        OptionType.TEXT,
        "the pipeline it runs in, main if left out; streams of one pipeline share their epochs",
        check=unsafe,
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
# What a dead letter of a stream tells: the expression that failed, and the row as JSON.
FAILED_COLUMNS = tuple(Column(name, "STRING") for name in LETTER_COLUMNS)
# What a late stream tells besides the row: which operator, window and watermark made it late.
LATE_COLUMNS = (
    Column("late_operator", "STRING"),
    Column("late_window_start", "TIMESTAMP"),
    Column("late_window_end", "TIMESTAMP"),
    Column("late_watermark", "TIMESTAMP"),
)


def _is_volatile(tree: exp.Expr) -> bool:
    return any(is_volatile_call(name, call) or name == "PROCTIME" for name, call in calls(tree))


def _is_written(column: Column) -> bool:
    """Whether a column stands in the records of its source."""
    return column.computed is None and column.metadata is None


def _event_time_hint(column: Column, columns: tuple[Column, ...]) -> str:
    """A computed column of a name that is free, for a column of another type than TIMESTAMP."""
    taken = {item.name.lower() for item in columns}
    numbered = (f"ts_{number}" for number in itertools.count(2))
    candidates = itertools.chain(("ts", "event_time"), numbered)
    free = next(name for name in candidates if name not in taken)
    kind = (column.type or "").partition("(")[0]
    made = {
        "STRING": f"to_timestamp({column.name})",
        "VARCHAR": f"to_timestamp({column.name})",
        "CHAR": f"to_timestamp({column.name})",
        "BIGINT": f"timestamp_millis({column.name})",
        "INT": f"timestamp_seconds({column.name})",
    }.get(kind, f"CAST({column.name} AS TIMESTAMP)")
    return (
        f"compute it from {column.name}: {free} AS {made}, WATERMARK FOR {free} AS {free} - "
        "INTERVAL '5' SECOND."
    )


@dataclass(frozen=True)
class Declarer:
    """Reads declarations of one script; every method returns the object and its errors."""

    connectors: Connectors
    origin: Origin
    resolve_environment: bool = True

    def _place(self, span: Span) -> Place:
        return Place(self.origin.text, span.start, span.end, self.origin.file)

    def _error(self, code: str, message: str, span: Span, hint: str | None = None) -> CatalogError:
        return CatalogError(code, message, place=self._place(span), hint=hint)

    def options(
        self, specs: Sequence[OptionSpec], owner: str, statement: st.Declaration
    ) -> tuple[Options, list[CatalogError]]:
        reader = OptionReader(
            specs, owner, self.origin.text, self.origin.file, self.resolve_environment
        )
        return reader.read(statement.options, statement.name_span)

    def _connector(
        self, statement: st.Declaration, role: str
    ) -> tuple[ConnectorSpec | None, list[CatalogError]]:
        """The connector a declaration names, if it exists and can play the role."""
        given = next((o for o in statement.options if o.name.lower() == "connector"), None)
        able = [name for name, spec in self.connectors.items() if getattr(spec, role) is not None]
        if given is None:
            misspelt = nearest("connector", [option.name for option in statement.options])
            near = next((o for o in statement.options if o.name == misspelt), None)
            return None, [
                self._error(
                    "TG-208",
                    f"{statement.name} does not say its connector",
                    near.span if near is not None else statement.name_span,
                    f"did you mean connector instead of {misspelt}?"
                    if near is not None
                    else f"add connector = '…' to its WITH (…): {', '.join(sorted(able))}.",
                )
            ]
        spec = self.connectors.get(given.value.lower())
        if spec is None:
            return None, [
                self._error(
                    "TG-205",
                    f"there is no connector {given.value}",
                    given.value_span,
                    did_you_mean(given.value, able, "connectors"),
                )
            ]
        if getattr(spec, role) is None:
            what = "lookup table" if role == "lookup" else role
            return None, [
                self._error(
                    "TG-211",
                    f"the connector {spec.name} cannot be a {what}",
                    given.value_span,
                    f"connectors that can: {', '.join(sorted(able))}.",
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
            wrong = spec.source.check(options)
            if wrong is not None:
                problems.append(self._error("TG-207", wrong[0], statement.name_span, wrong[1]))
        columns = self._columns(statement)
        if not problems and spec.source.columns is not None:
            columns, found = self._fixed_columns(statement, columns, spec.source.columns(options))
            problems += found
        if columns or spec.source.columns is None or not problems:
            problems += self._check_columns(statement, columns)
            problems += self._check_watermark(statement, columns)
        problems += self._check_time_options(statement)
        problems += self._check_metadata(statement, spec)
        if not problems and spec.source.check_columns is not None:
            written = tuple((c.name, str(c.type)) for c in columns if _is_written(c))
            wrong = spec.source.check_columns(options, written, bool(statement.primary_key))
            if wrong is not None:
                problems.append(self._error("TG-210", wrong[0], statement.name_span, wrong[1]))
        if problems:
            return None, [], problems
        if spec.source.gives_op(options, bool(statement.primary_key)):
            options = options.replaced(changelog=True)
        watermark = statement.watermark
        source = Source(
            statement.name,
            options,
            statement,
            self.origin,
            spec.name,
            columns,
            statement.primary_key,
            Watermark(watermark.column, watermark.delay_us) if watermark else None,
            spec.source.bounded(options),
            spec.source.insertable,
            spec.source.partitioned,
        )
        return source, self._dead_letters(source), []

    def _check_metadata(
        self, statement: st.CreateSource, spec: ConnectorSpec
    ) -> list[TidegateError]:
        """Columns of what the connector tells of a record, which it must know."""
        known = spec.source.metadata if spec.source is not None else {}
        errors: list[TidegateError] = []
        if statement.columns and all(item.metadata is not None for item in statement.columns):
            message = f"all columns of {statement.name} are of metadata"
            hint = "declare one of the columns that its records have."
            errors.append(self._error("TG-210", message, statement.name_span, hint))
        for item in (item for item in statement.columns if item.metadata is not None):
            kinds = known.get(str(item.metadata), ())
            if not kinds:
                message = f"the connector {spec.name} tells no {item.metadata} of its records"
                hint = f"leave {item.name} out."
                if known:
                    hint = did_you_mean(str(item.metadata), known, "it tells")
                errors.append(self._error("TG-210", message, item.span, hint))
            elif item.type not in kinds:
                message = f"{item.metadata} is {' or '.join(kinds)}, not {item.type}"
                hint = f"{item.name} {kinds[0]} METADATA FROM '{item.metadata}'"
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
    ) -> tuple[tuple[Column, ...], list[TidegateError]]:
        """A connector that decides its columns: leave them out, or declare some of them."""
        known = {name.lower(): (name, kind) for name, kind in fixed}
        if not any(column.computed is None for column in columns):
            return tuple(Column(name, kind) for name, kind in fixed) + columns, []
        errors: list[TidegateError] = []
        for column, written in zip(columns, statement.columns, strict=True):
            if column.computed is not None:
                continue
            match = known.get(column.name.lower())
            if match is None:
                hint = did_you_mean(column.name, known, "columns it has")
                message = f"the connector has no column {column.name}"
                errors.append(self._error("TG-210", message, written.span, hint))
            elif column.type != match[1]:
                message = f"the column {column.name} is {match[1]}, not {column.type}"
                errors.append(
                    self._error("TG-210", message, written.span, f"{match[0]} {match[1]}")
                )
        return columns, errors

    def _check_columns(
        self, statement: st.CreateSource | st.CreateLookupTable, columns: tuple[Column, ...]
    ) -> list[TidegateError]:
        errors: list[TidegateError] = []
        names = {column.name.lower(): column for column in columns}
        if not columns:
            hint = f"CREATE … {statement.name} (id BIGINT, …) WITH (…);"
            message = f"{statement.name} declares no columns"
            errors.append(self._error("TG-210", message, statement.name_span, hint))
        for item in statement.columns:
            if item.name.lower() in RESERVED:
                message = f"the column name {item.name} is reserved for changelogs"
                hint = "leave it out and add changelog = true to the options."
                errors.append(self._error("TG-210", message, item.span, hint))
        for key in statement.primary_key:
            if key.lower() not in names:
                message = f"the primary key names {key}, which is not a column"
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
                    message = f"the event time {column.name} would be another one on replay"
                    hint = "take it from the data; for processing time use a window over "
                    hint += "PROCTIME(), which needs no watermark."
                    return [self._error("TG-210", message, watermark.span, hint)]
                return []
        message = f"the watermark is for {watermark.column}, which is not a column"
        hint = did_you_mean(watermark.column, [c.name for c in columns], "columns")
        return [self._error("TG-210", message, watermark.column_span, hint)]

    def _check_time_options(self, statement: st.CreateSource) -> list[TidegateError]:
        """Options about the event time need one."""
        if statement.watermark is not None:
            return []
        hint = "declare it: WATERMARK FOR ts AS ts - INTERVAL '5' SECOND, or leave the option out."
        return [
            self._error(
                "TG-210",
                f"{option.name} is about the event time, and {statement.name} has no watermark",
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
        none = Options({}, {}, set())
        side = SideStream(
            name,
            none,
            source.statement,
            self.origin,
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
            wrong = spec.lookup.check(options)
            if wrong is not None:
                problems.append(self._error("TG-207", wrong[0], statement.name_span, wrong[1]))
        problems += self._check_columns(statement, columns)
        for column, written in zip(columns, statement.columns, strict=True):
            if column.metadata is not None:
                message = "a lookup table has no columns of metadata"
                problems.append(self._error("TG-210", message, written.span, "leave it out."))
            if column.computed is not None:
                message = "a lookup table has no computed columns"
                hint = "compute it in the stream that asks."
                problems.append(self._error("TG-210", message, written.span, hint))
        if problems:
            return None, problems
        table = LookupTable(
            statement.name,
            options,
            statement,
            self.origin,
            spec.name,
            columns,
            statement.primary_key,
            spec.lookup.insertable,
            spec.lookup.steady,
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
            wrong = spec.sink.check(options)
            if wrong is not None:
                problems.append(self._error("TG-207", wrong[0], statement.name_span, wrong[1]))
        if problems:
            return None, problems
        sink = Sink(statement.name, options, statement, self.origin, spec.name, statement.source)
        return sink, []


def unbuilt_role(item: Declared, connectors: Connectors) -> tuple[str, str] | None:
    """Why nobody can read or write a connector whose options are known, and which can be."""
    role = {Source: "source", LookupTable: "lookup", Sink: "sink"}.get(type(item))
    if role is None:
        return None
    connector = getattr(item, "connector", "")
    if getattr(connectors[connector], role).built:
        return None
    specs = ((name, getattr(spec, role)) for name, spec in connectors.items())
    known = sorted(name for name, spec in specs if spec is not None and spec.built)
    message = f"the connector {connector} cannot be used as a {role} yet"
    return message, f"connectors that can: {', '.join(known) or 'none'}."
