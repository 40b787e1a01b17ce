"""A script to statements: split at semicolons, dispatch on the first words, keep every error."""

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
    create_function,
    create_lookup_table,
    create_sink,
    create_source,
    create_stream,
    create_view,
    read_name,
    read_options,
    replace_function,
    replace_stream,
    replace_view,
)
from tidegate.sql.dialect import DIALECT
from tidegate.sql.query import parse_query, parse_rows
from tidegate.sql.secrets import masked
from tidegate.sql.suggestions import drop_hint, meant_keyword, show_hint, statement_hint
from tidegate.types import Span

_STATEMENTS = (
    "CREATE SOURCE, CREATE STREAM, CREATE MATERIALIZED VIEW, CREATE SINK, CREATE LOOKUP TABLE, "
    "CREATE FUNCTION, ALTER STREAM, INSERT, DROP, SHOW, DESCRIBE, EXPLAIN, CHECKPOINT, RESTORE, SET"
)
_SHOWABLE = (
    *("SOURCES", "STREAMS", "MATERIALIZED VIEWS", "SINKS", "LOOKUP TABLES", "FUNCTIONS"),
    *("TABLES", "STATUS", "SETTINGS", "CHECKPOINTS"),
)
# Statements that keep their text to the letter: hiding part of a query changes it.
_WITH_QUERIES = ("STREAM", "MATERIALIZED", "FUNCTION", "OR")


def parse_script(
    text: str, file: str | None = None, secret_options: Collection[str] = ()
) -> st.Script:
    """Read every statement of a text; what cannot be read is in `errors`, the rest stands."""
    shown = masked(text, secret_options)
    try:
        tokens = list(DIALECT.tokenize(text))
    except TokenError as error:
        return st.Script(shown, (), (_token_error(error, shown, file),), file)
    statements: list[st.Statement] = []
    errors: list[Exception] = []
    broken: list[str] = []
    for chunk in _split(tokens):
        cursor = Cursor(chunk, shown, file, text if _holds_query(chunk) else shown)
        try:
            statements.append(_statement(cursor))
        except TidegateError as error:
            errors.append(error)
            broken += _declared_names(chunk)
    return st.Script(shown, tuple(statements), tuple(errors), file, tuple(broken))


def _holds_query(chunk: list[Token]) -> bool:
    """Whether a statement must keep its text to the letter."""
    words = [token.text.upper() for token in chunk[:2]]
    if words[0] == "CREATE":
        return words[-1] in _WITH_QUERIES
    return words[0] in {"INSERT", "EXPLAIN"}


def _split(tokens: list[Token]) -> list[list[Token]]:
    chunks: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            chunks.append([])
        else:
            chunks[-1].append(token)
    return [chunk for chunk in chunks if chunk]


def _token_error(error: TokenError, text: str, file: str | None) -> SqlError:
    """sqlglot's tokenizer says the place only in its message."""
    match = re.search(r"(\d+):(\d+)", str(error))
    start = len(text) - 1
    if match:
        lines = text.split("\n")
        line = min(int(match.group(1)), len(lines))
        before = sum(len(part) + 1 for part in lines[: line - 1])
        start = min(before + max(int(match.group(2)) - 1, 0), max(len(text) - 1, 0))
    return SqlError(
        "TG-101",
        "a quote or comment is opened and never closed",
        location=Location(text, max(start, 0), max(start, 0) + 1, file),
        hint="close it with the same sign that opened it.",
    )


def _declared_names(chunk: list[Token]) -> list[str]:
    """The names broken text would have declared, so that their readers are not blamed too.

    There can be several: a semicolon may be what is missing.
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


def _statement(cursor: Cursor) -> st.Statement:
    """Dispatch on the first words."""
    dispatch: tuple[tuple[tuple[str, ...], Callable[[Cursor], st.Statement]], ...] = (
        (("CREATE", "SOURCE"), create_source),
        (("CREATE", "STREAM"), create_stream),
        (("CREATE", "MATERIALIZED", "VIEW"), create_view),
        (("CREATE", "SINK"), create_sink),
        (("CREATE", "LOOKUP", "TABLE"), create_lookup_table),
        (("CREATE", "FUNCTION"), create_function),
        (("CREATE", "OR", "REPLACE", "FUNCTION"), replace_function),
        (("CREATE", "OR", "REPLACE", "STREAM"), replace_stream),
        (("CREATE", "OR", "REPLACE", "MATERIALIZED", "VIEW"), replace_view),
        (("ALTER", "STREAM"), _alter_stream),
        (("ALTER", "MATERIALIZED", "VIEW"), _alter_stream),
        (("INSERT", "INTO"), _insert),
        (("DROP",), _drop),
        (("SHOW",), _show),
        (("DESCRIBE",), _describe),
        (("DESC",), _describe),
        (("EXPLAIN",), _explain),
        (("CHECKPOINT",), _checkpoint),
        (("RESTORE", "FROM", "CHECKPOINT"), _restore),
        (("SET",), _set),
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
            "a query on its own has nowhere to send its rows",
            location=cursor.location(),
            hint="give it a name: CREATE STREAM my_stream AS SELECT …; to look at rows, CREATE "
            "MATERIALIZED VIEW my_view AS SELECT …; and query it in the shell, with db.query(sql), "
            "or with tidegate query DIR SQL; EXPLAIN SELECT …; shows the plan.",
        )
    if first.upper() == "TAIL":
        raise SqlError(
            "TG-102",
            "TAIL follows a stream in the shell only",
            location=cursor.location(),
            hint="type it in tidegate sql; in Python, iterate over db.subscribe(stream).",
        )
    if first.upper() == "ALTER":
        raise SqlError(
            "TG-102",
            "only streams can be altered",
            location=cursor.location(),
            hint="ALTER STREAM name SET (state_ttl = '1 day'); anything else is dropped and "
            "created again.",
        )
    near = meant_keyword(cursor.tokens[0], ("SELECT", *(words[0] for words, _ in dispatch)))
    meant = f"did you mean {near}?" if near else f"statements: {_STATEMENTS}."
    raise SqlError(
        "TG-102",
        f"{first} does not begin a statement",
        location=cursor.location(),
        hint=statement_hint(first) or meant,
    )


def _unknown_create(cursor: Cursor) -> SqlError:
    """CREATE of something else: name what it is called here."""
    word = cursor.peek()
    hints = {
        "TABLE": "what is read is a source: CREATE SOURCE name (…) WITH (connector = '…'); what is "
        "written is a sink: CREATE SINK name FROM my_stream WITH (connector = '…');",
        "MATERIALIZED": "CREATE MATERIALIZED VIEW name AS SELECT …;",
        "VIEW": "a named query: CREATE STREAM name AS SELECT …; one whose rows can be queried: "
        "CREATE MATERIALIZED VIEW name AS SELECT …;",
        "OR": "streams and functions can be replaced: CREATE OR REPLACE STREAM name AS SELECT …; "
        "anything else is dropped first: DROP SOURCE name;",
        "TEMPORARY": "CREATE FUNCTION name(…): what is declared lasts as long as the session.",
    }
    kinds = ("SOURCE", "STREAM", "SINK", "FUNCTION")
    near = None if cursor.done else meant_keyword(cursor.tokens[1], kinds)
    hint = (
        f"did you mean CREATE {near}?"
        if near
        else "CREATE SOURCE | STREAM | SINK | LOOKUP TABLE | FUNCTION."
    )
    return SqlError(
        "TG-102",
        f"CREATE {_shown_kind(cursor)} is not a statement"
        if word
        else "CREATE needs what to create",
        location=cursor.location(),
        hint=hints.get(word.upper(), hint),
    )


def _shown_kind(cursor: Cursor) -> str:
    """Return the word after CREATE or CREATE OR REPLACE."""
    words = [token.text for token in cursor.tokens[cursor.index : cursor.index + 3]]
    replaces = [word.upper() for word in words[:2]] == ["OR", "REPLACE"]
    return " ".join(words) if replaces else words[0]


def _insert(cursor: Cursor) -> st.Insert:
    name, span = read_name(cursor, "the source to insert into")
    columns = tuple(cursor.names_in_parens()) if cursor.at_paren() else ()
    tree = parse_rows(cursor)
    return st.Insert(cursor.statement_text, cursor.statement_span, name, span, columns, tree)


def _drop(cursor: Cursor) -> st.Statement:
    if cursor.match("CHECKPOINT"):
        return _drop_checkpoint(cursor)
    kinds = [(kind.value, kind) for kind in st.ObjectKind]
    for words, kind in (*kinds, ("MATERIALIZED VIEW", st.ObjectKind.STREAM)):
        if cursor.match(*words.split()):
            if_exists = cursor.match("IF", "EXISTS")
            name, span = read_name(cursor, "a name")
            cursor.expect_end()
            return st.Drop(
                cursor.statement_text, cursor.statement_span, kind, name, span, if_exists
            )
    word = cursor.peek()
    raise cursor.error(
        f"DROP needs what to drop, not {word or 'the end of the statement'}",
        drop_hint(word)
        or "DROP SOURCE | STREAM | MATERIALIZED VIEW | SINK | LOOKUP TABLE | FUNCTION name; DROP "
        "CHECKPOINT 'name';",
    )


def _drop_checkpoint(cursor: Cursor) -> st.DropCheckpoint:
    if_exists = cursor.match("IF", "EXISTS")
    name, span = _checkpoint_name(cursor, "DROP CHECKPOINT")
    cursor.expect_end()
    return st.DropCheckpoint(cursor.statement_text, cursor.statement_span, name, span, if_exists)


def _checkpoint_name(cursor: Cursor, statement: str) -> tuple[str, Span]:
    """The name of a checkpoint is a text, since it is declared nowhere."""
    token = cursor.take("the name of a checkpoint")
    span = Span(token.start, token.end + 1)
    if token.token_type != TokenType.STRING:
        meant = token.text if token.text.isalnum() else "name"
        raise cursor.error(
            f"the name of a checkpoint is a text in quotes, not {token.text}",
            f"{statement} '{meant}';",
            span,
        )
    return token.text, span


def _alter_stream(cursor: Cursor) -> st.AlterStream:
    name, span = read_name(cursor, "a stream")
    cursor.expect("SET", hint=f"ALTER STREAM {name} SET (state_ttl = '1 day');")
    options = read_options(cursor, "SET")
    if not options:
        raise cursor.error("SET needs an option", f"ALTER STREAM {name} SET (state_ttl = '1 day');")
    cursor.expect_end()
    return st.AlterStream(cursor.statement_text, cursor.statement_span, name, span, options)


def _show(cursor: Cursor) -> st.Statement:
    if cursor.match("CREATE"):
        name, span = read_name(cursor, "a name")
        cursor.expect_end()
        return st.ShowCreate(cursor.statement_text, cursor.statement_span, name, span)
    what = next((words for words in _SHOWABLE if cursor.match(*words.split())), None)
    if what is None:
        word = cursor.peek()
        raise cursor.error(
            f"SHOW does not know {word or 'what to show'}",
            show_hint(word) or f"SHOW {' | '.join(_SHOWABLE)} | CREATE name;",
        )
    cursor.expect_end()
    return st.Show(cursor.statement_text, cursor.statement_span, what)


def _describe(cursor: Cursor) -> st.Describe:
    name, span = read_name(cursor, "what to describe")
    cursor.expect_end()
    return st.Describe(cursor.statement_text, cursor.statement_span, name, span)


def _explain(cursor: Cursor) -> st.Explain:
    logical = cursor.match("LOGICAL")
    if cursor.match("STREAM") or len(cursor.tokens) - cursor.index == 1:
        name, span = read_name(cursor, "a stream")
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


def _checkpoint(cursor: Cursor) -> st.CreateCheckpoint:
    if cursor.done:
        return st.CreateCheckpoint(cursor.statement_text, cursor.statement_span)
    name, span = _checkpoint_name(cursor, "CHECKPOINT")
    cursor.expect_end()
    return st.CreateCheckpoint(cursor.statement_text, cursor.statement_span, name, span)


def _restore(cursor: Cursor) -> st.Restore:
    token = cursor.take("the name of a checkpoint, or the number of an epoch,")
    span = Span(token.start, token.end + 1)
    is_name = token.token_type == TokenType.STRING
    if not is_name and not token.text.isdigit():
        raise cursor.error(
            f"{token.text} is neither a name in quotes nor the number of an epoch",
            "RESTORE FROM CHECKPOINT 'name'; or an epoch: SHOW CHECKPOINTS; lists them.",
            span,
        )
    options = read_options(cursor) if cursor.match("WITH") else ()
    cursor.expect_end()
    return st.Restore(
        cursor.statement_text,
        cursor.statement_span,
        epoch=None if is_name else int(token.text),
        name=token.text if is_name else None,
        name_span=span,
        options=options,
    )


def _set(cursor: Cursor) -> st.Set:
    start = cursor.location().start
    if cursor.match("TIME", "ZONE"):
        # As Spark and PostgreSQL write it: SET TIME ZONE 'UTC'.
        key, key_span = "time zone", Span(start, cursor.tokens[cursor.index - 1].end + 1)
    else:
        key, key_span = cursor.option_name("a setting")
        cursor.expect("=", hint="SET key = value;")
    value, value_span = cursor.option_value()
    cursor.expect_end()
    return st.Set(cursor.statement_text, cursor.statement_span, key, value, key_span, value_span)
