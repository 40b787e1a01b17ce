"""The parser of CREATE SOURCE, STREAM, MATERIALIZED VIEW, SINK, LOOKUP TABLE and FUNCTION."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from tidegate.errors import SqlError
from tidegate.sql import statements as st
from tidegate.sql.cursor import Cursor, backticks_hint
from tidegate.sql.expressions import interval_micros
from tidegate.sql.query import (
    parse_expression,
    parse_query,
    parse_type,
    raise_missing_semicolon,
    span_of,
)
from tidegate.types import Span

# ---- Mistakes in a list of columns, looked for when a column cannot be parsed

ParseTokens = Callable[[list[Token], Cursor], Any]
# Each mistake parses prefixes of the tokens again, so their number is limited.
MAX_TOKENS = 30
_CONSTRAINTS = (("NOT", "NULL"), ("PRIMARY", "KEY"))


def raise_missing_comma(cursor: Cursor, tokens: list[Token], parse: ParseTokens) -> None:
    """Raise an error if the tokens are two columns without a comma between them."""
    for cut in range(1, min(len(tokens) - 1, MAX_TOKENS)):
        first, second = _without_constraints(tokens[:cut]), tokens[cut:]
        if _starts_definition(second, cursor) and first and _is_parsable(first, cursor, parse):
            name, comma = second[0], tokens[cut - 1].end + 1
            before = cursor.text[tokens[0].start : comma]
            after = cursor.text[comma : second[-1].end + 1]
            raise cursor.error(
                f"a comma is missing before {name.text}",
                f"{before},{after}",
                Span(name.start, name.end + 1),
            ) from None


def raise_missing_backticks(cursor: Cursor, span: Span, tokens: list[Token]) -> None:
    """Raise an error if several words are followed by a type: `user id BIGINT`."""
    for cut in range(1, min(len(tokens), MAX_TOKENS)):
        if _is_parsable(tokens[cut:], cursor, parse_type):
            whole = Span(span.start, tokens[cut - 1].end + 1)
            words = cursor.text[whole.start : whole.end]
            raise cursor.error(
                f"{words} is not a valid name",
                backticks_hint(words),
                whole,
            ) from None


def _starts_definition(tokens: list[Token], cursor: Cursor) -> bool:
    """Return whether tokens look like a column, a watermark or a primary key."""
    words = [token.text.upper() for token in tokens[:3]]
    if words[:2] == ["WATERMARK", "FOR"] or words[:3] == ["PRIMARY", "KEY", "("]:
        return True
    if tokens[0].token_type not in (TokenType.VAR, TokenType.IDENTIFIER):
        return False
    kind = _without_constraints(tokens[1:])
    return words[1:2] == ["AS"] or (bool(kind) and _is_parsable(kind, cursor, parse_type))


def _without_constraints(tokens: list[Token]) -> list[Token]:
    remaining = list(tokens)
    for words in itertools.chain(_CONSTRAINTS, _CONSTRAINTS):
        if tuple(token.text.upper() for token in remaining[-len(words) :]) == words:
            remaining = remaining[: -len(words)]
    return remaining


def _is_parsable(tokens: list[Token], cursor: Cursor, parse: ParseTokens) -> bool:
    try:
        parse(tokens, cursor)
    except SqlError:
        return False
    return True


@dataclass
class _ColumnList:
    """The parenthesized list of a CREATE statement: columns, primary key and watermark."""

    columns: list[st.ColumnDef] = field(default_factory=list)
    primary_key: list[str] = field(default_factory=list)
    primary_key_span: Span | None = None
    watermark: st.WatermarkDef | None = None


def parse_name(cursor: Cursor, expected: str) -> tuple[str, Span]:
    """Parse the name of an object; reject qualified names, because there is one namespace."""
    name, span = cursor.name(expected)
    if cursor.peek() == ".":
        raise cursor.error(
            f"{name}.{cursor.peek(1)}: qualified names are not supported",
            f"write {cursor.peek(1)}.",
        )
    return name, span


def parse_header(cursor: Cursor, kind: str) -> tuple[bool, str, Span]:
    """Parse IF NOT EXISTS and the name of the declared object."""
    if_not_exists = cursor.match("IF", "NOT", "EXISTS")
    name, span = parse_name(cursor, f"the name of the {kind}")
    return if_not_exists, name, span


def parse_create_source(cursor: Cursor) -> st.CreateSource:
    if_not_exists, name, span = parse_header(cursor, "source")
    body = _parse_columns(cursor, watermark_allowed=True) if cursor.at_paren() else _ColumnList()
    options = _parse_with_options(cursor, "CREATE SOURCE")
    cursor.expect_end()
    return st.CreateSource(
        cursor.statement_text,
        cursor.statement_span,
        name,
        span,
        options,
        if_not_exists,
        tuple(body.columns),
        tuple(body.primary_key),
        body.primary_key_span,
        body.watermark,
    )


def parse_create_lookup_table(cursor: Cursor) -> st.CreateLookupTable:
    if_not_exists, name, span = parse_header(cursor, "lookup table")
    body = _parse_columns(cursor, watermark_allowed=False)
    options = _parse_with_options(cursor, "CREATE LOOKUP TABLE")
    cursor.expect_end()
    return st.CreateLookupTable(
        cursor.statement_text,
        cursor.statement_span,
        name,
        span,
        options,
        if_not_exists,
        tuple(body.columns),
        tuple(body.primary_key),
        body.primary_key_span,
    )


def parse_create_view(cursor: Cursor) -> st.CreateStream:
    """Parse CREATE MATERIALIZED VIEW: a stream whose rows are stored."""
    return parse_create_stream(cursor, "MATERIALIZED VIEW")


def parse_replace_view(cursor: Cursor) -> st.CreateStream:
    return parse_create_stream(cursor, "MATERIALIZED VIEW", or_replace=True)


def parse_replace_stream(cursor: Cursor) -> st.CreateStream:
    return parse_create_stream(cursor, or_replace=True)


def parse_create_stream(
    cursor: Cursor, kind: str = "STREAM", or_replace: bool = False
) -> st.CreateStream:
    if_not_exists, name, span = parse_header(cursor, kind.lower())
    options = parse_options(cursor) if cursor.match("WITH") else ()
    cursor.expect("AS", hint=f"CREATE {kind} {name} AS SELECT …;")
    query = parse_query(cursor)
    return st.CreateStream(
        cursor.statement_text,
        cursor.statement_span,
        name,
        span,
        options,
        if_not_exists,
        query=query,
        materialized=kind == "MATERIALIZED VIEW",
        or_replace=or_replace,
    )


def parse_create_sink(cursor: Cursor) -> st.CreateSink:
    if_not_exists, name, span = parse_header(cursor, "sink")
    hint = f"CREATE SINK {name} FROM my_stream WITH (connector = 'console');"
    if any(token.text.upper() == "SELECT" for token in cursor.tokens[cursor.index :]):
        hint = f"CREATE STREAM my_stream AS SELECT …; {hint}"
    cursor.expect("FROM", hint=hint)
    if cursor.at_paren():
        raise cursor.error("CREATE SINK needs the name of a stream, not a query", hint)
    source, source_span = parse_name(cursor, "the stream to write")
    options = _parse_with_options(cursor, "CREATE SINK")
    cursor.expect_end()
    return st.CreateSink(
        cursor.statement_text,
        cursor.statement_span,
        name,
        span,
        options,
        if_not_exists,
        source=source,
        source_span=source_span,
    )


def _parse_with_options(cursor: Cursor, statement: str) -> tuple[st.Option, ...]:
    cursor.expect("WITH", hint=f"{statement} … WITH (connector = '…');")
    return parse_options(cursor)


def parse_options(cursor: Cursor, word: str = "WITH") -> tuple[st.Option, ...]:
    cursor.expect("(", hint=f"{word} (name = 'value', …)")
    options: list[st.Option] = []
    while not cursor.match(")"):
        if options:
            cursor.expect(",", hint="separate options with commas.")
        name, span = cursor.option_name("an option")
        cursor.expect("=", hint=f"{name} = 'value'")
        value, value_span = cursor.option_value()
        if any(option.name.lower() == name.lower() for option in options):
            raise cursor.error(f"the option {name} is set twice", "remove one.", span)
        options.append(st.Option(name, value, span.cover(value_span), value_span))
    return tuple(options)


def _parse_columns(cursor: Cursor, watermark_allowed: bool) -> _ColumnList:
    cursor.expect("(", hint="(column TYPE, …)")
    body = _ColumnList()
    while not cursor.match(")"):
        if body.columns or body.primary_key or body.watermark:
            cursor.expect(",", hint="separate columns with commas.")
        if cursor.peek().upper() == "PRIMARY" and cursor.peek(1).upper() == "KEY":
            _parse_primary_key(cursor, body)
        elif cursor.peek().upper() == "WATERMARK" and cursor.peek(1).upper() == "FOR":
            _parse_watermark(cursor, body, watermark_allowed)
        else:
            body.columns.append(_parse_column(cursor, body))
    return body


def _parse_primary_key(cursor: Cursor, body: _ColumnList) -> None:
    start = cursor.location().start
    cursor.expect("PRIMARY", "KEY")
    if body.primary_key:
        raise cursor.error(
            "PRIMARY KEY is declared twice", "list all key columns in one PRIMARY KEY (…)."
        )
    body.primary_key.extend(cursor.names_in_parens())
    # Flink requires NOT ENFORCED; keys are not enforced here either, rows replace each other.
    cursor.match("NOT", "ENFORCED")
    body.primary_key_span = Span(start, cursor.tokens[cursor.index - 1].end + 1)


def _parse_watermark(cursor: Cursor, body: _ColumnList, allowed: bool) -> None:
    start = cursor.location().start
    cursor.expect("WATERMARK", "FOR")
    column, column_span = cursor.name("the event-time column")
    cursor.expect("AS", hint=f"WATERMARK FOR {column} AS {column} - INTERVAL '5' SECOND")
    tokens = cursor.take_until_comma(in_type=False)
    span = Span(start, tokens[-1].end + 1 if tokens else column_span.end)
    if not allowed:
        raise cursor.error("a lookup table cannot have a watermark", "remove it.", span)
    if body.watermark is not None:
        raise cursor.error(
            "WATERMARK is declared twice", "remove one: a source has one event time.", span
        )
    delay = _watermark_delay(parse_expression(tokens, cursor), column)
    if delay is None or delay < 0:
        raise SqlError(
            "TG-210",
            f"the watermark must be {column} minus a constant interval",
            location=cursor.location(span),
            hint=f"WATERMARK FOR {column} AS {column} - INTERVAL '5' SECOND",
        )
    body.watermark = st.WatermarkDef(column, delay, span, column_span)


def _watermark_delay(tree: exp.Expr, column: str) -> int | None:
    """Return the delay of `column` or `column - interval`; None for other expressions."""
    tree = tree.unnest()
    if isinstance(tree, exp.Column):
        return 0 if tree.name.lower() == column.lower() else None
    if not isinstance(tree, exp.Sub) or not isinstance(tree.this, exp.Column):
        return None
    return interval_micros(tree.expression) if tree.this.name.lower() == column.lower() else None


def _parse_column(cursor: Cursor, body: _ColumnList) -> st.ColumnDef:
    name, span = cursor.name("a column")
    if any(column.name.lower() == name.lower() for column in body.columns):
        raise cursor.error(f"the column {name} is declared twice", "remove one.", span)
    if cursor.match("AS"):
        tokens = cursor.take_until_comma(in_type=False)
        if not tokens:
            raise cursor.error(
                f"the computed column {name} needs an expression", f"{name} AS price * 2"
            )
        try:
            computed = parse_expression(tokens, cursor)
        except SqlError:
            raise_missing_comma(cursor, tokens, parse_expression)
            raise
        return st.ColumnDef(name, None, span.cover(span_of(tokens)), computed=computed)
    tokens = cursor.take_until_comma(in_type=True)
    metadata = _remove_metadata(tokens, name)
    not_null = _remove_suffix(tokens, "NOT", "NULL")
    if _remove_suffix(tokens, "PRIMARY", "KEY"):
        body.primary_key.append(name)
        body.primary_key_span = span
    not_null = _remove_suffix(tokens, "NOT", "NULL") or not_null
    if not tokens:
        raise cursor.error(f"the column {name} needs a type", f"{name} BIGINT", span)
    column_span = span.cover(span_of(tokens))
    try:
        kind = parse_type(tokens, cursor)
    except SqlError:
        if name.upper() == "WATERMARK":
            hint = "WATERMARK FOR ts AS ts - INTERVAL '5' SECOND"
            raise cursor.error("WATERMARK needs FOR and AS", hint, column_span) from None
        raise_missing_comma(cursor, tokens, parse_type)
        raise_missing_backticks(cursor, span, tokens)
        raise
    return st.ColumnDef(name, kind, column_span, not_null, metadata=metadata)


def _remove_metadata(tokens: list[Token], name: str) -> str | None:
    """Remove METADATA or METADATA FROM 'field' from the end of the tokens; return the field."""
    if len(tokens) > 3 and tokens[-1].token_type == TokenType.STRING:
        metadata_field = str(tokens[-1].text)
        if [token.text.upper() for token in tokens[-3:-1]] == ["METADATA", "FROM"]:
            del tokens[-3:]
            return metadata_field.lower()
    return name.lower() if len(tokens) > 1 and _remove_suffix(tokens, "METADATA") else None


def _remove_suffix(tokens: list[Token], *words: str) -> bool:
    """Remove these words from the end of the tokens, if present."""
    tail = [token.text.upper() for token in tokens[-len(words) :]]
    if tail != list(words):
        return False
    del tokens[-len(words) :]
    return True


# ---- CREATE FUNCTION: an SQL expression, or a Python function

_SQL_FORM = "CREATE FUNCTION fee(price DOUBLE) RETURNS DOUBLE RETURN price * 0.1;"
_PYTHON_FORM = (
    "CREATE FUNCTION fee(price DOUBLE) RETURNS DOUBLE LANGUAGE PYTHON AS 'my_module:fee';"
)
# Words that can follow the type of the result.
_AFTER_TYPE = {"RETURN", "AS", "LANGUAGE", "WITH", "DETERMINISTIC", "NOT", "COMMENT"}


def parse_replace_function(cursor: Cursor) -> st.CreateFunction:
    return parse_create_function(cursor, or_replace=True)


def parse_create_function(cursor: Cursor, or_replace: bool = False) -> st.CreateFunction:
    if_not_exists, name, span = parse_header(cursor, "function")
    parameters = _parse_parameters(cursor)
    returns = parse_type(_take_return_type(cursor), cursor) if cursor.match("RETURNS") else None
    is_python = _match_python(cursor)
    options = parse_options(cursor) if is_python and cursor.match("WITH") else ()
    start = cursor.index
    body = python = None
    if is_python:
        python = _parse_python_name(cursor)
    else:
        body = _parse_body(cursor)
    first, last = cursor.tokens[min(start + 1, len(cursor.tokens) - 1)], cursor.tokens[-1]
    return st.CreateFunction(
        cursor.statement_text,
        cursor.statement_span,
        name,
        span,
        options,
        if_not_exists,
        parameters=parameters,
        returns=returns,
        body=body,
        python=python,
        definition_span=Span(first.start, last.end + 1),
        or_replace=or_replace,
    )


def _parse_parameters(cursor: Cursor) -> tuple[st.ParameterDef, ...]:
    cursor.expect("(", hint=_SQL_FORM)
    parameters: list[st.ParameterDef] = []
    while not cursor.match(")"):
        if parameters:
            cursor.expect(",", hint="separate parameters with commas.")
        name, span = cursor.name("a parameter")
        if any(parameter.name.lower() == name.lower() for parameter in parameters):
            raise cursor.error(f"the parameter {name} is declared twice", "remove one.", span)
        tokens = cursor.take_until_comma(in_type=True)
        if not tokens:
            raise cursor.error(f"the parameter {name} needs a type", f"{name} BIGINT", span)
        default = next((token for token in tokens if token.text.upper() == "DEFAULT"), None)
        if default is not None:
            raise cursor.error(
                "parameters cannot have default values",
                "pass the value in each call.",
                _span(default),
            )
        parameters.append(st.ParameterDef(name, parse_type(tokens, cursor), span))
    return tuple(parameters)


def _take_return_type(cursor: Cursor) -> list[Token]:
    if cursor.peek().upper() == "TABLE":
        raise SqlError(
            "TG-103",
            "table functions are not supported: a function returns one value",
            location=cursor.location(),
            hint="name a query with CREATE STREAM name AS SELECT …;",
        )
    tokens: list[Token] = []
    while not cursor.at_end and cursor.peek().upper() not in _AFTER_TYPE:
        tokens.append(cursor.take("a type"))
    if not tokens:
        raise cursor.error("RETURNS needs a type", _SQL_FORM)
    return tokens


def _match_python(cursor: Cursor) -> bool:
    """Parse LANGUAGE; return whether it is PYTHON. The default is SQL."""
    if not cursor.match("LANGUAGE"):
        return False
    token = cursor.take("a language")
    language = token.text.upper()
    if language not in ("SQL", "PYTHON"):
        hint = f"use LANGUAGE SQL, or {_PYTHON_FORM}"
        raise cursor.error(f"LANGUAGE {token.text} is not supported", hint, _span(token))
    return language == "PYTHON"


def _parse_body(cursor: Cursor) -> exp.Expr:
    if not cursor.match("RETURN") and not cursor.match("AS"):
        actual = cursor.peek() or "the end of the statement"
        raise cursor.error(f"expected RETURN and an expression, found {actual}", _SQL_FORM)
    tokens = cursor.take_rest()
    if not tokens:
        raise cursor.error("the function needs an expression", _SQL_FORM)
    if len(tokens) == 1 and tokens[0].token_type == TokenType.STRING and ":" in tokens[0].text:
        raise cursor.error(
            "this is a string; a Python function needs LANGUAGE PYTHON",
            _PYTHON_FORM,
            _span(tokens[0]),
        )
    try:
        return parse_expression(tokens, cursor)
    except SqlError:
        raise_missing_semicolon(tokens, cursor)
        raise


def _parse_python_name(cursor: Cursor) -> str:
    cursor.expect("AS", hint=_PYTHON_FORM)
    token = cursor.take("a function such as 'my_module:fee'")
    module, colon, name = token.text.partition(":")
    parts = [*module.split("."), *name.split(".")]
    is_valid = colon and all(part.isidentifier() for part in parts)
    if token.token_type != TokenType.STRING or not is_valid:
        raise cursor.error(
            f"{cursor.text[token.start : token.end + 1]} is not of the form 'module:function'",
            _PYTHON_FORM,
            _span(token),
        )
    cursor.expect_end()
    return str(token.text)


def _span(token: Token) -> Span:
    return Span(token.start, token.end + 1)
