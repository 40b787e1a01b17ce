"""CREATE FUNCTION: an expression of SQL under a name, or a function of Python."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from tidegate.errors import SqlError
from tidegate.sql import statements as st
from tidegate.sql.cursor import Cursor
from tidegate.sql.declarations import read_head, read_options
from tidegate.sql.query import parse_expression, parse_type, raise_missing_semicolon
from tidegate.types import Span

_SQL_FORM = "CREATE FUNCTION fee(price DOUBLE) RETURNS DOUBLE RETURN price * 0.1;"
_PYTHON_FORM = (
    "CREATE FUNCTION fee(price DOUBLE) RETURNS DOUBLE LANGUAGE PYTHON AS 'my_module:fee';"
)
# What may follow the type of the result.
_AFTER_TYPE = {"RETURN", "AS", "LANGUAGE", "WITH", "DETERMINISTIC", "NOT", "COMMENT"}


def replace_function(cursor: Cursor) -> st.CreateFunction:
    return create_function(cursor, or_replace=True)


def create_function(cursor: Cursor, or_replace: bool = False) -> st.CreateFunction:
    if_not_exists, name, span = read_head(cursor, "function")
    parameters = _parameters(cursor)
    returns = _type(cursor, _result_tokens(cursor)) if cursor.match("RETURNS") else None
    is_python = _is_python(cursor)
    options = read_options(cursor) if is_python and cursor.match("WITH") else ()
    start = cursor.index
    body = python = None
    if is_python:
        python = _python_name(cursor)
    else:
        body = _body(cursor)
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


def _parameters(cursor: Cursor) -> tuple[st.ParameterDef, ...]:
    cursor.expect("(", hint=_SQL_FORM)
    found: list[st.ParameterDef] = []
    while not cursor.match(")"):
        if found:
            cursor.expect(",", hint="separate parameters with commas.")
        name, span = cursor.name("a parameter")
        if any(known.name.lower() == name.lower() for known in found):
            raise cursor.error(f"the parameter {name} is declared twice", "remove one.", span)
        tokens = cursor.until_comma(in_type=True)
        if not tokens:
            raise cursor.error(f"the parameter {name} needs a type", f"{name} BIGINT", span)
        default = next((token for token in tokens if token.text.upper() == "DEFAULT"), None)
        if default is not None:
            raise cursor.error(
                "parameters have no defaults here", "write the value in each call.", _span(default)
            )
        found.append(st.ParameterDef(name, _type(cursor, tokens), span))
    return tuple(found)


def _result_tokens(cursor: Cursor) -> list[Token]:
    if cursor.peek().upper() == "TABLE":
        raise SqlError(
            "TG-103",
            "functions give one value, not a table",
            place=cursor.place(),
            hint="a named query is a stream: CREATE STREAM name AS SELECT …;",
        )
    tokens: list[Token] = []
    while not cursor.done and cursor.peek().upper() not in _AFTER_TYPE:
        tokens.append(cursor.take("a type"))
    if not tokens:
        raise cursor.error("RETURNS needs a type", _SQL_FORM)
    return tokens


def _type(cursor: Cursor, tokens: list[Token]) -> str:
    return parse_type(tokens, cursor)


def _is_python(cursor: Cursor) -> bool:
    """Whether LANGUAGE says Python; SQL is what is meant without it."""
    if not cursor.match("LANGUAGE"):
        return False
    token = cursor.take("a language")
    language = token.text.upper()
    if language not in ("SQL", "PYTHON"):
        hint = f"LANGUAGE SQL, or {_PYTHON_FORM}"
        raise cursor.error(f"functions are SQL or Python, not {token.text}", hint, _span(token))
    return language == "PYTHON"


def _body(cursor: Cursor) -> exp.Expr:
    if not cursor.match("RETURN") and not cursor.match("AS"):
        found = cursor.peek() or "the end of the statement"
        raise cursor.error(f"expected RETURN and an expression, found {found}", _SQL_FORM)
    tokens = cursor.rest()
    if not tokens:
        raise cursor.error("the function needs an expression", _SQL_FORM)
    if len(tokens) == 1 and tokens[0].token_type == TokenType.STRING and ":" in tokens[0].text:
        raise cursor.error(
            "this is a text; a function of Python says so", _PYTHON_FORM, _span(tokens[0])
        )
    try:
        return parse_expression(tokens, cursor)
    except SqlError:
        raise_missing_semicolon(tokens, cursor)
        raise


def _python_name(cursor: Cursor) -> str:
    cursor.expect("AS", hint=_PYTHON_FORM)
    token = cursor.take("the function of a module, such as 'my_module:fee'")
    module, colon, name = token.text.partition(":")
    parts = [*module.split("."), *name.split(".")]
    fits = colon and all(part.isidentifier() for part in parts)
    if token.token_type != TokenType.STRING or not fits:
        raise cursor.error(
            f"expected the function of a module, found {token.text}", _PYTHON_FORM, _span(token)
        )
    cursor.expect_end()
    return str(token.text)


def _span(token: Token) -> Span:
    return Span(token.start, token.end + 1)
