"""CREATE SOURCE, STREAM, SINK and LOOKUP TABLE."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from tidegate.errors import SqlError
from tidegate.sql import statements as st
from tidegate.sql.column_slips import raise_missing_backticks, raise_missing_comma
from tidegate.sql.cursor import Cursor
from tidegate.sql.expressions import interval_micros
from tidegate.sql.query import parse_expression, parse_query, parse_type
from tidegate.types import Span


@dataclass
class _Columns:
    """What stands between the parentheses of a CREATE."""

    columns: list[st.ColumnDef] = field(default_factory=list)
    primary_key: list[str] = field(default_factory=list)
    primary_key_span: Span | None = None
    watermark: st.WatermarkDef | None = None


def read_name(cursor: Cursor, what: str) -> tuple[str, Span]:
    """The name of an object; qualified names are refused, there is one namespace."""
    name, span = cursor.name(what)
    if cursor.peek() == ".":
        raise cursor.error(
            f"{name}.{cursor.peek(1)}: names have no schema in front", f"write {cursor.peek(1)}."
        )
    return name, span


def read_head(cursor: Cursor, what: str) -> tuple[bool, str, Span]:
    """IF NOT EXISTS, and the name of what is declared."""
    if_not_exists = cursor.match("IF", "NOT", "EXISTS")
    name, span = read_name(cursor, f"the name of the {what}")
    return if_not_exists, name, span


def create_source(cursor: Cursor) -> st.CreateSource:
    if_not_exists, name, span = read_head(cursor, "source")
    body = _columns(cursor, watermark_allowed=True) if cursor.at_paren() else _Columns()
    options = _with_options(cursor, "CREATE SOURCE")
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


def create_lookup_table(cursor: Cursor) -> st.CreateLookupTable:
    if_not_exists, name, span = read_head(cursor, "lookup table")
    body = _columns(cursor, watermark_allowed=False)
    options = _with_options(cursor, "CREATE LOOKUP TABLE")
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


def create_view(cursor: Cursor) -> st.CreateStream:
    """A materialised view is a stream that also keeps what it gives out."""
    return create_stream(cursor, "MATERIALIZED VIEW")


def replace_view(cursor: Cursor) -> st.CreateStream:
    return create_stream(cursor, "MATERIALIZED VIEW", or_replace=True)


def replace_stream(cursor: Cursor) -> st.CreateStream:
    return create_stream(cursor, or_replace=True)


def create_stream(
    cursor: Cursor, what: str = "STREAM", or_replace: bool = False
) -> st.CreateStream:
    if_not_exists, name, span = read_head(cursor, what.lower())
    options = read_options(cursor) if cursor.match("WITH") else ()
    cursor.expect("AS", hint=f"CREATE {what} {name} AS SELECT …;")
    query = parse_query(cursor)
    return st.CreateStream(
        cursor.statement_text,
        cursor.statement_span,
        name,
        span,
        options,
        if_not_exists,
        query=query,
        materialized=what == "MATERIALIZED VIEW",
        or_replace=or_replace,
    )


def create_sink(cursor: Cursor) -> st.CreateSink:
    if_not_exists, name, span = read_head(cursor, "sink")
    hint = f"CREATE SINK {name} FROM my_stream WITH (connector = 'console');"
    if any(token.text.upper() == "SELECT" for token in cursor.tokens[cursor.index :]):
        hint = f"CREATE STREAM my_stream AS SELECT …; {hint}"
    cursor.expect("FROM", hint=hint)
    if cursor.at_paren():
        raise cursor.error("a sink writes a stream, which has a name", hint)
    source, source_span = read_name(cursor, "the stream to write")
    options = _with_options(cursor, "CREATE SINK")
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


def _with_options(cursor: Cursor, statement: str) -> tuple[st.Option, ...]:
    cursor.expect("WITH", hint=f"{statement} … WITH (connector = '…');")
    return read_options(cursor)


def read_options(cursor: Cursor, word: str = "WITH") -> tuple[st.Option, ...]:
    cursor.expect("(", hint=f"{word} (name = 'value', …)")
    options: list[st.Option] = []
    while not cursor.match(")"):
        if options:
            cursor.expect(",", hint="separate options with commas.")
        name, span = cursor.option_name("an option")
        cursor.expect("=", hint=f"{name} = 'value'")
        value, value_span = cursor.option_value()
        if any(option.name.lower() == name.lower() for option in options):
            raise cursor.error(f"the option {name} is given twice", "remove one.", span)
        options.append(st.Option(name, value, span.cover(value_span), value_span))
    return tuple(options)


def _columns(cursor: Cursor, watermark_allowed: bool) -> _Columns:
    cursor.expect("(", hint="(column TYPE, …)")
    body = _Columns()
    while not cursor.match(")"):
        if body.columns or body.primary_key or body.watermark:
            cursor.expect(",", hint="separate columns with commas.")
        if cursor.peek().upper() == "PRIMARY" and cursor.peek(1).upper() == "KEY":
            _primary_key(cursor, body)
        elif cursor.peek().upper() == "WATERMARK" and cursor.peek(1).upper() == "FOR":
            _watermark(cursor, body, watermark_allowed)
        else:
            body.columns.append(_column(cursor, body))
    return body


def _primary_key(cursor: Cursor, body: _Columns) -> None:
    start = cursor.place().start
    cursor.expect("PRIMARY", "KEY")
    if body.primary_key:
        raise cursor.error("a second PRIMARY KEY", "list all its columns in one.")
    body.primary_key.extend(cursor.names_in_parens())
    # What Flink makes people write; nobody enforces a key here either, rows replace each other.
    cursor.match("NOT", "ENFORCED")
    body.primary_key_span = Span(start, cursor.tokens[cursor.index - 1].end + 1)


def _watermark(cursor: Cursor, body: _Columns, allowed: bool) -> None:
    start = cursor.place().start
    cursor.expect("WATERMARK", "FOR")
    column, column_span = cursor.name("the event-time column")
    cursor.expect("AS", hint=f"WATERMARK FOR {column} AS {column} - INTERVAL '5' SECOND")
    tokens = cursor.until_comma(in_type=False)
    span = Span(start, tokens[-1].end + 1 if tokens else column_span.end)
    if not allowed:
        raise cursor.error("a lookup table has no watermark", "leave it out.", span)
    if body.watermark is not None:
        raise cursor.error("a second WATERMARK", "a source has one event time.", span)
    delay = _watermark_delay(parse_expression(tokens, cursor), column)
    if delay is None or delay < 0:
        raise SqlError(
            "TG-210",
            f"the watermark must be {column} minus a constant interval",
            place=cursor.place(span),
            hint=f"WATERMARK FOR {column} AS {column} - INTERVAL '5' SECOND",
        )
    body.watermark = st.WatermarkDef(column, delay, span, column_span)


def _watermark_delay(tree: exp.Expr, column: str) -> int | None:
    """Delay of `column` or `column - interval`; None if it is neither."""
    tree = tree.unnest()
    if isinstance(tree, exp.Column):
        return 0 if tree.name.lower() == column.lower() else None
    if not isinstance(tree, exp.Sub) or not isinstance(tree.this, exp.Column):
        return None
    return interval_micros(tree.expression) if tree.this.name.lower() == column.lower() else None


def _column(cursor: Cursor, body: _Columns) -> st.ColumnDef:
    name, span = cursor.name("a column")
    if any(column.name.lower() == name.lower() for column in body.columns):
        raise cursor.error(f"the column {name} is declared twice", "remove one.", span)
    if cursor.match("AS"):
        tokens = cursor.until_comma(in_type=False)
        if not tokens:
            raise cursor.error(
                f"the computed column {name} needs an expression", f"{name} AS price * 2"
            )
        try:
            computed = parse_expression(tokens, cursor)
        except SqlError:
            raise_missing_comma(cursor, tokens, parse_expression)
            raise
        return st.ColumnDef(name, None, span.cover(_tokens_span(tokens)), computed=computed)
    tokens = cursor.until_comma(in_type=True)
    metadata = _strip_metadata(tokens, name)
    not_null = _strip(tokens, "NOT", "NULL")
    if _strip(tokens, "PRIMARY", "KEY"):
        body.primary_key.append(name)
        body.primary_key_span = span
    not_null = _strip(tokens, "NOT", "NULL") or not_null
    if not tokens:
        raise cursor.error(f"the column {name} needs a type", f"{name} BIGINT", span)
    column_span = span.cover(_tokens_span(tokens))
    try:
        kind = parse_type(tokens, cursor)
    except SqlError:
        if name.upper() == "WATERMARK":
            hint = "WATERMARK FOR ts AS ts - INTERVAL '5' SECOND"
            raise cursor.error("WATERMARK needs FOR and AS", hint, column_span) from None
        raise_missing_comma(cursor, tokens, parse_type)
        raise_missing_backticks(cursor, name, span, tokens)
        raise
    return st.ColumnDef(name, kind, column_span, not_null, metadata=metadata)


def _tokens_span(tokens: list) -> Span:  # type: ignore[type-arg]
    return Span(tokens[0].start, tokens[-1].end + 1)


def _strip_metadata(tokens: list, name: str) -> str | None:  # type: ignore[type-arg]
    """Remove METADATA, or METADATA FROM 'what', from the end of the tokens; what it names."""
    if len(tokens) > 3 and tokens[-1].token_type == TokenType.STRING:
        what = str(tokens[-1].text)
        if [token.text.upper() for token in tokens[-3:-1]] == ["METADATA", "FROM"]:
            del tokens[-3:]
            return what.lower()
    return name.lower() if len(tokens) > 1 and _strip(tokens, "METADATA") else None


def _strip(tokens: list, *words: str) -> bool:  # type: ignore[type-arg]
    """Remove these words from the end of the tokens, if they stand there."""
    tail = [token.text.upper() for token in tokens[-len(words) :]]
    if tail != list(words):
        return False
    del tokens[-len(words) :]
    return True
