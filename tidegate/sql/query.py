"""The parser of queries: Tidegate parses the EMIT clause, sqlglot the rest."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from tidegate.errors import Location, SqlError
from tidegate.sql import statements as st
from tidegate.sql.cursor import Cursor, backticks_hint
from tidegate.sql.dialect import DIALECT, TYPES_HINT, UNEXPECTED_COMMA, is_spark_type, type_hint
from tidegate.sql.expressions import WINDOW_FUNCTIONS, require_interval
from tidegate.sql.suggestions import find_misspelt_keyword, similar_keyword, word_hint
from tidegate.types import Span

# ---- Flink's syntax of window table functions
#
# TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), size)) means TUMBLE(bids, ts, size). The arguments have
# the same order, so removing tokens is sufficient and keeps all spans.


def rewrite_flink_windows(tokens: list[Token]) -> list[Token]:
    """Remove TABLE and DESCRIPTOR around and inside window functions."""
    closing = _closing_parentheses(tokens)
    removed: set[int] = set()
    for index, token in enumerate(tokens):
        if not _is_call(tokens, index, closing) or token.text.upper() not in WINDOW_FUNCTIONS:
            continue
        removed |= _wrapper_tokens(tokens, index, closing)
        for inner in range(index + 2, closing[index + 1]):
            removed |= _argument_tokens(tokens, inner, closing)
    return [token for index, token in enumerate(tokens) if index not in removed]


def _closing_parentheses(tokens: list[Token]) -> dict[int, int]:
    """Return the index of the closing parenthesis for that of each opening one."""
    opened: list[int] = []
    closing: dict[int, int] = {}
    for index, token in enumerate(tokens):
        if token.token_type == TokenType.L_PAREN:
            opened.append(index)
        elif token.token_type == TokenType.R_PAREN and opened:
            closing[opened.pop()] = index
    return closing


def _is_call(tokens: list[Token], index: int, closing: dict[int, int]) -> bool:
    quoted = tokens[index].token_type in (TokenType.STRING, TokenType.IDENTIFIER)
    return not quoted and index + 1 in closing


def _wrapper_tokens(tokens: list[Token], index: int, closing: dict[int, int]) -> set[int]:
    """Return the indexes of TABLE ( … ) if it contains only this call."""
    outer = index - 1
    if closing.get(outer) != closing[index + 1] + 1 or index < 2:
        return set()
    return {outer - 1, outer, closing[outer]} if _is_word(tokens[outer - 1], "TABLE") else set()


def _argument_tokens(tokens: list[Token], index: int, closing: dict[int, int]) -> set[int]:
    """Return the indexes of TABLE, of DESCRIPTOR ( … ), or of parentheses around keys."""
    if _is_word(tokens[index], "TABLE") and index + 1 not in closing:
        return {index}
    if tokens[index].token_type == TokenType.PARTITION_BY and index + 1 in closing:
        return {index + 1, closing[index + 1]}
    if _is_word(tokens[index], "DESCRIPTOR") and index + 1 in closing:
        return {index, index + 1, closing[index + 1]}
    return set()


def _is_word(token: Token, word: str) -> bool:
    quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
    return not quoted and token.text.upper() == word


# ---- FROM SESSION(bids PARTITION BY k, ts, gap): the keys become arguments after the table


def rewrite_session_keys(tokens: list[Token]) -> list[Token]:
    """Replace PARTITION BY by a comma in the window table function SESSION."""
    return [
        _comma(token) if _is_session_key(tokens, i) else token for i, token in enumerate(tokens)
    ]


def _is_session_key(tokens: list[Token], index: int) -> bool:
    if tokens[index].token_type is not TokenType.PARTITION_BY or index < 3:
        return False
    call, bracket = tokens[index - 3], tokens[index - 2]
    return call.text.upper() == "SESSION" and bracket.token_type is TokenType.L_PAREN


def _comma(token: Token) -> Token:
    return Token(
        TokenType.COMMA, ",", line=token.line, col=token.col, start=token.start, end=token.end
    )


EMIT_FORMS = (
    "write EMIT ON WINDOW CLOSE, EMIT ON UPDATE, EMIT CHANGES or EMIT EVERY INTERVAL '10' SECOND."
)
_AFTER_EMIT = {"ON", "CHANGES", "FINAL", "AFTER", "EVERY", "UPDATE", "UPDATES", "CHANGE"}
# Words after which EMIT is a name.
_BEFORE_ALIASES = {"AS", "SELECT", "FROM", "JOIN", "BY", "AND", "OR", "NOT", "WHERE", "ON"}
_CTE_HINT = (
    "write WITH a AS (SELECT …), b AS (SELECT …) SELECT …, without a comma after the last query."
)
_QUERY_STARTS = {"SELECT", "WITH", "FROM", "VALUES", "TABLE", "("}
# Two words that start a statement; inside another statement, a semicolon is missing before them.
_STATEMENT_STARTS = {
    "CREATE": {"SOURCE", "STREAM", "SINK", "LOOKUP", "FUNCTION", "MATERIALIZED"},
    "DROP": {"SOURCE", "STREAM", "SINK", "LOOKUP", "FUNCTION", "MATERIALIZED"},
    "ALTER": {"STREAM", "MATERIALIZED"},
    "INSERT": {"INTO"},
    "EXPLAIN": {"SELECT", "STREAM"},
}


def parse_query(cursor: Cursor) -> st.Query:
    """Parse the rest of a statement as a query with its EMIT clause."""
    tokens = cursor.take_rest()
    if not tokens:
        raise cursor.error("expected a query, found the end of the statement", "SELECT … FROM …")
    try:
        return _parse_query(tokens, cursor)
    except SqlError:
        raise_missing_semicolon(tokens, cursor)
        raise


def _parse_query(tokens: list[Token], cursor: Cursor) -> st.Query:
    first = tokens[0]
    if first.text.upper() not in _QUERY_STARTS:
        hint = "did you mean SELECT?" if similar_keyword(first, ("SELECT",)) else "SELECT … FROM …"
        raise cursor.error(f"expected a query, found {first.text}", hint, span_of([first]))
    position = _find_emit(tokens, cursor)
    _reject_options(tokens, cursor)
    tree = _parse_tokens(rewrite_flink_windows(tokens[:position]), cursor)
    if not isinstance(tree, exp.Query):
        raise cursor.error("expected a query", "SELECT … FROM …", span_of([first]))
    emit = None
    if position < len(tokens):
        emit = _parse_emit(Cursor(tokens[position:], cursor.text, cursor.file))
    return st.Query(tree, emit, span_of(tokens))


def _reject_options(tokens: list[Token], cursor: Cursor) -> None:
    """Raise an error for options after the query; they belong before AS."""
    for index, token in enumerate(tokens[1:-2], start=1):
        bracket, equals = tokens[index + 1], tokens[index + 3 : index + 4]
        if not _is_word(token, "WITH") or bracket.token_type != TokenType.L_PAREN:
            continue
        if not equals or equals[0].token_type != TokenType.EQ:
            continue
        declared = cursor.text[cursor.tokens[0].start : tokens[0].start].rstrip()
        options = cursor.text[token.start : tokens[-1].end + 1]
        declared = declared[:-2].rstrip() if declared.upper().endswith(" AS") else "CREATE STREAM s"
        raise cursor.error(
            "WITH (…) goes before AS", f"{declared} {options} AS SELECT …;", span_of([token])
        )


def raise_missing_semicolon(tokens: list[Token], cursor: Cursor) -> None:
    """Raise an error if another statement starts among these tokens."""
    for first, second in itertools.pairwise(tokens):
        follows = _STATEMENT_STARTS.get(first.text.upper(), set())
        if second.text.upper() in follows and first.token_type != TokenType.STRING:
            statement = f"{first.text.upper()} {second.text.upper()}"
            raise cursor.error(
                f"a semicolon is missing before {statement}",
                f"end the previous statement with a semicolon: …; {statement} …",
                span_of([first, second]),
            ) from None


def parse_rows(cursor: Cursor) -> exp.Expr:
    """Parse VALUES (…), (…) or a SELECT, for INSERT."""
    if cursor.peek().upper() not in {"VALUES", "SELECT", "WITH"}:
        raise cursor.error(
            f"expected VALUES, found {cursor.peek() or 'the end of the statement'}",
            "INSERT INTO trades VALUES (1, 'a'), (2, 'b');",
        )
    return _parse_tokens(cursor.take_rest(), cursor)


def parse_expression(tokens: list[Token], cursor: Cursor) -> exp.Expr:
    """Parse a scalar expression."""
    return _parse_tokens(tokens, cursor, into=lambda parser: parser._parse_expression())


def parse_type(tokens: list[Token], cursor: Cursor) -> str:
    """Parse a type; return it in the spelling of Spark."""
    span = Span(tokens[0].start, tokens[-1].end + 1)
    text = cursor.text[span.start : span.end]
    try:
        tree = _parse_tokens(tokens, cursor, into=lambda parser: parser._parse_types(schema=True))
    except SqlError:
        tree = None
    if tree is None or not is_spark_type(tree):
        raise SqlError(
            "TG-210",
            f"{text} is not a type",
            location=cursor.location(span),
            hint=type_hint(token.text for token in tokens) or TYPES_HINT,
        )
    return tree.sql(dialect=DIALECT)


def _parse_tokens(
    tokens: list[Token], cursor: Cursor, into: Callable[[Any], Any] | None = None
) -> exp.Expr:
    if not tokens:
        raise cursor.error("the statement is incomplete")
    parser = DIALECT.parser()
    tokens = rewrite_session_keys(tokens)
    try:
        if into is None:
            trees = parser.parse(tokens, cursor.text)
        else:
            trees = parser._parse(into, tokens, cursor.text)
    except ParseError as error:
        raise _syntax_error(error, tokens, cursor) from None
    except RecursionError:
        raise cursor.error("the statement is nested too deeply", span=span_of(tokens)) from None
    if len(trees) != 1 or trees[0] is None or isinstance(trees[0], exp.Command):
        raise cursor.error("invalid SQL syntax", span=span_of(tokens))
    return trees[0]


def span_of(tokens: list[Token]) -> Span:
    """Return the span from the first to the last token."""
    return Span(tokens[0].start, tokens[-1].end + 1)


def _syntax_error(error: ParseError, tokens: list[Token], cursor: Cursor) -> SqlError:
    """Return the error of sqlglot as an SqlError."""
    detail = error.errors[0] if error.errors else {}
    line, column = detail.get("line"), detail.get("col")
    message = str(detail.get("description") or error).strip().rstrip(".")
    message = re.sub(r"<Token .*?text: (.*?), line: .*>", r"\1", message)
    message = message.replace("Invalid expression / Unexpected token", "unexpected")
    width = len(detail.get("highlight") or " ")
    location = Location(cursor.text, tokens[-1].end, tokens[-1].end + 1, cursor.file)
    if line and column:
        line_start = sum(len(part) + 1 for part in cursor.text.split("\n")[: line - 1])
        end = line_start + column
        location = Location(cursor.text, max(end - width, 0), end, cursor.file)
    word = cursor.text[location.start : location.end]
    specific = _specific_error(message, location, tokens, cursor)
    if specific is not None:
        return specific
    if message == UNEXPECTED_COMMA:
        return SqlError(
            "TG-101", message, location=location, hint="remove it, or add the missing item."
        )
    if message == "Expected CTE to have alias":
        message = f"{word} is not the name of a query"
        return SqlError("TG-101", message, location=location, hint=_CTE_HINT)
    if message.startswith("Required keyword"):
        message = f"an expression is missing after {word}"
    elif message == "unexpected":
        message = f"unexpected {word}"
    elif message.startswith("Expecting"):
        message = f"expected {message.removeprefix('Expecting').strip()} near {word}"
    if message in ("Expected TYPE after CAST", "Expected type"):
        message = f"{word} is not a type"
        return SqlError("TG-101", message, location=location, hint=type_hint([word]) or TYPES_HINT)
    if message.startswith("Expected"):
        message = f"expected{message.removeprefix('Expected')}"
    hint = word_hint(token.text for token in tokens)
    if hint is None:
        misspelt = find_misspelt_keyword(tokens, location.end)
        if misspelt is not None:
            token, keyword = misspelt
            message = f"unexpected {token.text}"
            location = cursor.location(span_of([token]))
            hint = f"did you mean {keyword}?"
        else:
            hint = _bracket_hint(message)
    return SqlError("TG-101", message, location=location, hint=hint)


# Hints for parts that a query lacks, by the message of the parser.
_MISSING_PARTS = {
    "Expecting a measure": "write an expression before AS: MEASURES LAST(A.price) AS price.",
    "Expecting AS and a name after a measure": "name the measure: MEASURES A.price AS price.",
    "Expecting a condition": "write a condition after AS: DEFINE A AS A.price > 10.",
}


def _specific_error(
    message: str, location: Location, tokens: list[Token], cursor: Cursor
) -> SqlError | None:
    """Return an error with a hint for a missing table or measure, a second alias, or a hyphen."""
    hint = _MISSING_PARTS.get(message)
    word = cursor.text[location.start : location.end]
    if hint is not None:
        message = f"expected {message.removeprefix('Expecting ')} near {word}"
        return SqlError("TG-101", message, location=location, hint=hint)
    before = [token for token in tokens if token.end < location.start]
    if message.startswith("Expected table name") and tokens:
        at_end = "SENTINEL" in message
        last = tokens[-1] if at_end else before[-1]
        message = f"a table name is missing after {last.text.upper()}"
        return SqlError(
            "TG-101", message, location=location, hint=f"write {last.text.upper()} my_source."
        )
    if message != "unexpected" or not before:
        return None
    if word == "-":
        return _hyphen_error(location, tokens, cursor)
    if len(before) > 1 and _is_word(before[-2], "AS") and word.isidentifier():
        hint = f"use one alias only: AS {before[-1].text}; separate columns with commas."
        if not similar_keyword(before[-1]) and not find_misspelt_keyword(tokens, location.end):
            return SqlError("TG-101", f"unexpected {word}", location=location, hint=hint)
    return None


def _hyphen_error(location: Location, tokens: list[Token], cursor: Cursor) -> SqlError | None:
    """Return the error for a table such as my-source, whose name needs backticks."""
    before = next((token for token in tokens if token.end + 1 == location.start), None)
    after = next((token for token in tokens if token.start == location.end), None)
    if before is None or after is None:
        return None
    name = cursor.text[before.start : after.end + 1]
    span = Span(before.start, after.end + 1)
    return cursor.error(f"{name} is not a valid name", backticks_hint(name), span)


def _bracket_hint(message: str) -> str | None:
    for opening, closing in ("()", "[]", "{}"):
        if message.startswith(f"expected {closing}"):
            return f"close {opening} with {closing}, or add the missing comma or operator."
        if message == f"unexpected {closing}":
            return f"remove it, or add the opening {opening}"
    return None


def _find_emit(tokens: list[Token], cursor: Cursor) -> int:
    """Return the index of the EMIT clause, or the number of tokens if there is none."""
    kinds = [token.token_type for token in tokens]
    if kinds.count(TokenType.L_PAREN) != kinds.count(TokenType.R_PAREN):
        # sqlglot reports the location of an unbalanced parenthesis.
        return len(tokens)
    depth = 0
    for index, token in enumerate(tokens):
        if token.token_type == TokenType.L_PAREN:
            depth += 1
        elif token.token_type == TokenType.R_PAREN:
            depth -= 1
        elif depth == 0 and _is_late_data(tokens, index):
            return index
        elif _is_emit(tokens, index):
            if depth > 0:
                raise SqlError(
                    "TG-104",
                    "EMIT belongs at the end of the whole statement, not inside a subquery",
                    location=cursor.location(Span(token.start, token.end + 1)),
                    hint="make the subquery a separate stream: CREATE STREAM inner_stream AS "
                    "SELECT … EMIT …; and read inner_stream.",
                )
            return index
    return len(tokens)


def _is_emit(tokens: list[Token], index: int) -> bool:
    token = tokens[index]
    if token.text.upper() != "EMIT" or token.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
        return False
    before = tokens[index - 1].text.upper() if index else ""
    if index + 1 == len(tokens):
        # After a name or a parenthesis it would be parsed as an alias.
        return before == ")" or (
            before.replace("_", "a").isalnum() and before not in _BEFORE_ALIASES
        )
    if before == "," and any(later.token_type is TokenType.FROM for later in tokens[index:]):
        return False
    return tokens[index + 1].text.upper() in _AFTER_EMIT and before not in {*_BEFORE_ALIASES, "."}


def _is_late_data(tokens: list[Token], index: int) -> bool:
    """Return whether LATE DATA TO starts here; it can be used without EMIT."""
    words = [token.text.upper() for token in tokens[index : index + 3]]
    quoted = tokens[index].token_type in (TokenType.STRING, TokenType.IDENTIFIER)
    return words == ["LATE", "DATA", "TO"] and not quoted


def _parse_emit(cursor: Cursor) -> st.EmitClause:
    mode, every = st.EmitMode.DEFAULT, None
    if cursor.match("EMIT"):
        mode, every = _parse_emit_mode(cursor)
    lateness: int | None = None
    lateness_span: Span | None = None
    late_to: str | None = None
    late_to_span: Span | None = None
    while not cursor.at_end:
        start = cursor.location()
        if cursor.match("ALLOW", "LATENESS"):
            lateness = _parse_interval(cursor, "the allowed lateness")
            lateness_span = Span(start.start, cursor.tokens[cursor.index - 1].end + 1)
        elif cursor.match("LATE", "DATA", "TO"):
            late_to, late_to_span = cursor.name("the name of the late stream")
        else:
            raise cursor.error(
                f"unexpected {cursor.peek()} in the EMIT clause",
                "after EMIT: ALLOW LATENESS INTERVAL '30' SECOND, LATE DATA TO late_stream.",
            )
    if lateness is not None and lateness < 0:
        raise cursor.error(
            "the allowed lateness cannot be negative",
            "ALLOW LATENESS INTERVAL '30' SECOND",
            lateness_span,
        )
    return st.EmitClause(
        mode, cursor.statement_span, every, lateness, lateness_span, late_to, late_to_span
    )


def _parse_emit_mode(cursor: Cursor) -> tuple[st.EmitMode, int | None]:
    if (
        cursor.match("ON", "WINDOW", "CLOSE")
        or cursor.match("FINAL")
        or cursor.match("AFTER", "WATERMARK")
    ):
        return st.EmitMode.WINDOW_CLOSE, None
    if cursor.match("ON", "UPDATE"):
        return st.EmitMode.UPDATE, None
    if cursor.match("CHANGES"):
        return st.EmitMode.CHANGES, None
    if cursor.match("EVERY"):
        every = _parse_interval(cursor, "EMIT EVERY")
        if every <= 0:
            raise cursor.error(
                "the interval of EMIT EVERY must be greater than zero",
                "EMIT EVERY INTERVAL '10' SECOND",
                cursor.statement_span,
            )
        return st.EmitMode.EVERY, every
    if cursor.at_end:
        raise cursor.error("the EMIT clause is incomplete", EMIT_FORMS)
    words = " ".join(filter(None, (cursor.peek(), cursor.peek(1))))
    raise cursor.error(f"EMIT {words} is not a valid EMIT clause", EMIT_FORMS)


def _parse_interval(cursor: Cursor, subject: str) -> int:
    tokens: list[Token] = []
    while not cursor.at_end and cursor.peek().upper() not in {"ALLOW", "LATE"}:
        tokens.append(cursor.take("an interval"))
    if not tokens:
        raise cursor.error(f"{subject} needs an interval", "INTERVAL '10' SECOND")
    tree = parse_expression(tokens, cursor)
    return require_interval(tree, cursor.text, cursor.file, subject)
