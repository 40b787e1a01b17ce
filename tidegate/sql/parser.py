"""The parser of scripts: splits them at semicolons and collects the errors of all statements."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from tidegate.errors import Location, SqlError, TidegateError
from tidegate.sql import statements as st
from tidegate.sql.cursor import Cursor
from tidegate.sql.declarations import (
    parse_create_function,
    parse_create_lookup_table,
    parse_create_sink,
    parse_create_source,
    parse_create_stream,
    parse_create_view,
    parse_name,
    parse_options,
    parse_replace_function,
    parse_replace_stream,
    parse_replace_view,
)
from tidegate.sql.dialect import DIALECT
from tidegate.sql.query import parse_query, parse_rows
from tidegate.sql.secrets import mask_secrets
from tidegate.sql.suggestions import drop_hint, show_hint, similar_keyword, statement_hint
from tidegate.types import Span

_STATEMENTS = (
    "CREATE SOURCE, CREATE STREAM, CREATE MATERIALIZED VIEW, CREATE SINK, CREATE LOOKUP TABLE, "
    "CREATE FUNCTION, ALTER STREAM, INSERT, DROP, SHOW, DESCRIBE, EXPLAIN, CHECKPOINT, RESTORE, SET"
)
_SHOWABLE = (
    *("SOURCES", "STREAMS", "MATERIALIZED VIEWS", "SINKS", "LOOKUP TABLES", "FUNCTIONS"),
    *("TABLES", "STATUS", "SETTINGS", "CHECKPOINTS"),
)
# Statements that store their text without masking, because masking would change a query.
_KINDS_WITH_QUERIES = ("STREAM", "MATERIALIZED", "FUNCTION", "OR")


def parse_script(
    text: str, file: str | None = None, secret_options: Collection[str] = ()
) -> st.Script:
    """Parse all statements of a text. The result contains the valid statements and all errors."""
    masked = mask_secrets(text, secret_options)
    try:
        tokens = list(DIALECT.tokenize(text))
    except TokenError:
        return st.Script(masked, (), (_token_error(masked, file),), file)
    statements: list[st.Statement] = []
    errors: list[Exception] = []
    invalid_names: list[str] = []
    for chunk in _split(tokens):
        cursor = Cursor(chunk, masked, file, text if _contains_query(chunk) else masked)
        try:
            statements.append(_parse_statement(cursor))
        except TidegateError as error:
            errors.append(error)
            invalid_names += _declared_names(chunk)
    return st.Script(masked, tuple(statements), tuple(errors), file, tuple(invalid_names))


def _contains_query(chunk: list[Token]) -> bool:
    """Return whether a statement must store its text without masking."""
    words = [token.text.upper() for token in chunk[:2]]
    if words[0] == "CREATE":
        return words[-1] in _KINDS_WITH_QUERIES
    return words[0] in {"INSERT", "EXPLAIN"}


def _split(tokens: list[Token]) -> list[list[Token]]:
    chunks: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            chunks.append([])
        else:
            chunks[-1].append(token)
    return [chunk for chunk in chunks if chunk]


def _token_error(text: str, file: str | None) -> SqlError:
    """Return the error of sqlglot's tokenizer: a quote or comment is not closed."""
    start, closing = _unclosed(text)
    kind = "comment" if closing == "*/" else "quote"
    return SqlError(
        "TG-101",
        f"this {kind} is never closed",
        location=Location(text, start, start + len(closing), file),
        hint=f"add the closing {closing}",
    )


_QUOTED = re.compile(
    r"""--[^\n]*|(?P<comment>/\*)|(?P<quote>['"`])""",
)


def _unclosed(text: str) -> tuple[int, str]:
    """Return the start of the quote or comment that is not closed, and what closes it.

    A quote that contains the end of a statement was probably not closed before it.
    """
    position = 0
    while (match := _QUOTED.search(text, position)) is not None:
        position = match.end()
        if match["comment"]:
            end = text.find("*/", position)
            if end < 0:
                return match.start(), "*/"
            position = end + 2
        if match["quote"]:
            quote = match["quote"]
            rest = re.compile(rf"(?:\\.|[^\\{quote}])*", re.DOTALL).match(text, position)
            end = rest.end() if rest is not None else position
            if end >= len(text) or re.search(r";[ \t]*\n", text[position:end]):
                return match.start(), quote
            position = end + 1
    return max(len(text) - 1, 0), "'"


def _declared_names(chunk: list[Token]) -> list[str]:
    """Return the names that an invalid statement would declare, so that readers report no errors.

    There are several names if a semicolon is missing.
    """
    words = [token.text for token in chunk]
    kinds = {"SOURCE", "STREAM", "SINK", "LOOKUP", "TABLE", "MATERIALIZED", "VIEW", "FUNCTION"}
    skip = {"CREATE", "OR", "REPLACE", "IF", "NOT", "EXISTS", *kinds}
    names: list[str] = []
    for index, word in enumerate(words):
        if word.upper() == "CREATE":
            after = (name for name in words[index : index + 8] if name.upper() not in skip)
            names += itertools.islice(after, 1)
    return names


def _parse_statement(cursor: Cursor) -> st.Statement:
    """Parse a statement by its first words."""
    dispatch: tuple[tuple[tuple[str, ...], Callable[[Cursor], st.Statement]], ...] = (
        (("CREATE", "SOURCE"), parse_create_source),
        (("CREATE", "STREAM"), parse_create_stream),
        (("CREATE", "MATERIALIZED", "VIEW"), parse_create_view),
        (("CREATE", "SINK"), parse_create_sink),
        (("CREATE", "LOOKUP", "TABLE"), parse_create_lookup_table),
        (("CREATE", "FUNCTION"), parse_create_function),
        (("CREATE", "OR", "REPLACE", "FUNCTION"), parse_replace_function),
        (("CREATE", "OR", "REPLACE", "STREAM"), parse_replace_stream),
        (("CREATE", "OR", "REPLACE", "MATERIALIZED", "VIEW"), parse_replace_view),
        (("ALTER", "STREAM"), _parse_alter_stream),
        (("ALTER", "MATERIALIZED", "VIEW"), _parse_alter_stream),
        (("INSERT", "INTO"), _parse_insert),
        (("DROP",), _parse_drop),
        (("SHOW",), _parse_show),
        (("DESCRIBE",), _parse_describe),
        (("DESC",), _parse_describe),
        (("EXPLAIN",), _parse_explain),
        (("CHECKPOINT",), _parse_checkpoint),
        (("RESTORE", "FROM", "CHECKPOINT"), _parse_restore),
        (("SET",), _parse_set),
    )
    for words, parse in dispatch:
        if cursor.match(*words):
            return parse(cursor)
    if cursor.match("CREATE"):
        raise _unknown_create(cursor)
    first = cursor.peek()
    if first.upper() in {"SELECT", "WITH", "FROM"}:
        raise SqlError(
            "TG-102",
            "a script cannot contain a query on its own",
            location=cursor.location(),
            hint="name it: CREATE STREAM my_stream AS SELECT …; to query stored rows, run SELECT "
            "in the shell (tidegate sql), with tidegate query DIR SQL, or with db.query(sql).",
        )
    if first.upper() == "TAIL":
        raise SqlError(
            "TG-102",
            "TAIL is a command of the shell, not a statement",
            location=cursor.location(),
            hint="use it in tidegate sql; in Python, iterate over db.subscribe(stream).",
        )
    if cursor.match("ALTER"):
        raise SqlError(
            "TG-102",
            "only streams can be altered",
            location=cursor.location(),
            hint="ALTER STREAM name SET (state_ttl = '1 day'); drop other objects and create them "
            "again.",
        )
    keyword = similar_keyword(cursor.tokens[0], ("SELECT", *(words[0] for words, _ in dispatch)))
    hint = f"did you mean {keyword}?" if keyword else f"statements: {_STATEMENTS}."
    raise SqlError(
        "TG-102",
        f"unknown statement {first}",
        location=cursor.location(),
        hint=statement_hint(first) or hint,
    )


def _unknown_create(cursor: Cursor) -> SqlError:
    """Return the error of an unknown CREATE statement, with a hint for other systems' kinds."""
    word = cursor.peek()
    hints = {
        "TABLE": "to read data: CREATE SOURCE name (…) WITH (connector = '…'); to write data: "
        "CREATE SINK name FROM my_stream WITH (connector = '…');",
        "MATERIALIZED": "CREATE MATERIALIZED VIEW name AS SELECT …;",
        "VIEW": "to name a query: CREATE STREAM name AS SELECT …; to store its rows: CREATE "
        "MATERIALIZED VIEW name AS SELECT …;",
        "OR": "streams and functions can be replaced: CREATE OR REPLACE STREAM name AS SELECT …; "
        "drop other objects first: DROP SOURCE name;",
        "TEMPORARY": "remove TEMPORARY: CREATE FUNCTION name(x BIGINT) RETURN x + 1;",
    }
    kinds = ("SOURCE", "STREAM", "SINK", "FUNCTION")
    keyword = None if cursor.at_end else similar_keyword(cursor.tokens[1], kinds)
    hint = (
        f"did you mean CREATE {keyword}?"
        if keyword
        else "CREATE SOURCE | STREAM | SINK | LOOKUP TABLE | FUNCTION."
    )
    return SqlError(
        "TG-102",
        f"CREATE {_unknown_kind(cursor)} is not a statement"
        if word
        else "expected a kind of object after CREATE, found the end of the statement",
        location=cursor.location(),
        hint=hints.get(word.upper(), hint),
    )


def _unknown_kind(cursor: Cursor) -> str:
    """Return the word after CREATE or CREATE OR REPLACE."""
    words = [token.text for token in cursor.tokens[cursor.index : cursor.index + 3]]
    replaces = [word.upper() for word in words[:2]] == ["OR", "REPLACE"]
    return " ".join(words) if replaces else words[0]


def _parse_insert(cursor: Cursor) -> st.Insert:
    name, span = parse_name(cursor, "the source to insert into")
    columns = tuple(cursor.names_in_parens()) if cursor.at_paren() else ()
    tree = parse_rows(cursor)
    return st.Insert(cursor.statement_text, cursor.statement_span, name, span, columns, tree)


def _parse_drop(cursor: Cursor) -> st.Statement:
    if cursor.match("CHECKPOINT"):
        return _parse_drop_checkpoint(cursor)
    kinds = [(kind.value, kind) for kind in st.ObjectKind]
    for words, kind in (*kinds, ("MATERIALIZED VIEW", st.ObjectKind.STREAM)):
        if cursor.match(*words.split()):
            if_exists = cursor.match("IF", "EXISTS")
            name, span = parse_name(cursor, "a name")
            cursor.expect_end()
            return st.Drop(
                cursor.statement_text, cursor.statement_span, kind, name, span, if_exists
            )
    word = cursor.peek()
    raise cursor.error(
        f"expected a kind of object after DROP, found {word or 'the end of the statement'}",
        drop_hint(word)
        or "DROP SOURCE | STREAM | MATERIALIZED VIEW | SINK | LOOKUP TABLE | FUNCTION name; DROP "
        "CHECKPOINT 'name';",
    )


def _parse_drop_checkpoint(cursor: Cursor) -> st.DropCheckpoint:
    if_exists = cursor.match("IF", "EXISTS")
    name, span = _parse_checkpoint_name(cursor, "DROP CHECKPOINT")
    cursor.expect_end()
    return st.DropCheckpoint(cursor.statement_text, cursor.statement_span, name, span, if_exists)


def _parse_checkpoint_name(cursor: Cursor, statement: str) -> tuple[str, Span]:
    """Parse the name of a checkpoint, which is a string because no statement declares it."""
    token = cursor.take("the name of a checkpoint")
    span = Span(token.start, token.end + 1)
    if token.token_type != TokenType.STRING:
        name = token.text if token.text.isalnum() else "name"
        raise cursor.error(
            "the name of a checkpoint must be in quotes",
            f"{statement} '{name}';",
            span,
        )
    return token.text, span


def _parse_alter_stream(cursor: Cursor) -> st.AlterStream:
    name, span = parse_name(cursor, "a stream")
    cursor.expect("SET", hint=f"ALTER STREAM {name} SET (state_ttl = '1 day');")
    options = parse_options(cursor, "SET")
    if not options:
        raise cursor.error("SET needs an option", f"ALTER STREAM {name} SET (state_ttl = '1 day');")
    cursor.expect_end()
    return st.AlterStream(cursor.statement_text, cursor.statement_span, name, span, options)


def _parse_show(cursor: Cursor) -> st.Statement:
    if cursor.match("CREATE"):
        name, span = parse_name(cursor, "a name")
        cursor.expect_end()
        return st.ShowCreate(cursor.statement_text, cursor.statement_span, name, span)
    kind = next((words for words in _SHOWABLE if cursor.match(*words.split())), None)
    if kind is None:
        word = cursor.peek()
        raise cursor.error(
            f"SHOW {word} is not a statement"
            if word
            else "expected a kind of object after SHOW, found the end of the statement",
            show_hint(word) or f"SHOW {' | '.join(_SHOWABLE)} | CREATE name;",
        )
    if cursor.peek().upper() in ("LIKE", "FROM", "IN", "WHERE"):
        raise cursor.error(f"SHOW {kind} takes no filter", f"SHOW {kind};")
    cursor.expect_end()
    return st.Show(cursor.statement_text, cursor.statement_span, kind)


def _parse_describe(cursor: Cursor) -> st.Describe:
    name, span = parse_name(cursor, "the name of an object")
    cursor.expect_end()
    return st.Describe(cursor.statement_text, cursor.statement_span, name, span)


def _parse_explain(cursor: Cursor) -> st.Explain:
    logical = cursor.match("LOGICAL")
    if cursor.match("STREAM") or len(cursor.tokens) - cursor.index == 1:
        name, span = parse_name(cursor, "a stream")
        cursor.expect_end()
        return st.Explain(
            cursor.statement_text,
            cursor.statement_span,
            stream=name,
            stream_span=span,
            logical=logical,
        )
    query = parse_query(cursor)
    return st.Explain(cursor.statement_text, cursor.statement_span, query=query, logical=logical)


def _parse_checkpoint(cursor: Cursor) -> st.CreateCheckpoint:
    if cursor.at_end:
        return st.CreateCheckpoint(cursor.statement_text, cursor.statement_span)
    name, span = _parse_checkpoint_name(cursor, "CHECKPOINT")
    cursor.expect_end()
    return st.CreateCheckpoint(cursor.statement_text, cursor.statement_span, name, span)


def _parse_restore(cursor: Cursor) -> st.Restore:
    forms = "RESTORE FROM CHECKPOINT 'name'; or RESTORE FROM CHECKPOINT 42; "
    forms += "SHOW CHECKPOINTS; lists both."
    if cursor.at_end:
        raise cursor.error("the name of the checkpoint is missing", forms)
    token = cursor.take("the name of a checkpoint")
    span = Span(token.start, token.end + 1)
    is_name = token.token_type == TokenType.STRING
    if not is_name and not token.text.isdigit():
        raise cursor.error(
            f"expected a quoted name or the number of an epoch, found {token.text}", forms, span
        )
    options = parse_options(cursor) if cursor.match("WITH") else ()
    cursor.expect_end()
    return st.Restore(
        cursor.statement_text,
        cursor.statement_span,
        epoch=None if is_name else int(token.text),
        name=token.text if is_name else None,
        name_span=span,
        options=options,
    )


def _parse_set(cursor: Cursor) -> st.Set:
    start = cursor.location().start
    if cursor.match("TIME", "ZONE"):
        # SET TIME ZONE 'UTC', as in Spark and PostgreSQL.
        key, key_span = "time zone", Span(start, cursor.tokens[cursor.index - 1].end + 1)
    else:
        key, key_span = cursor.option_name("a setting")
        cursor.expect("=", hint="SET key = value;")
    value, value_span = cursor.option_value()
    cursor.expect_end()
    return st.Set(cursor.statement_text, cursor.statement_span, key, value, key_span, value_span)
