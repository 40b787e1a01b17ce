"""Slips in a list of columns, told apart once a column could not be read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from sqlglot.tokenizer_core import Token, TokenType

from tidegate.errors import SqlError
from tidegate.sql.cursor import Cursor, backticked
from tidegate.sql.query import parse_type
from tidegate.types import Span

Parse = Callable[[list[Token], Cursor], Any]
# Looking for a slip reads the tokens again for each of them.
MOST_TOKENS = 30
_CONSTRAINTS = (("NOT", "NULL"), ("PRIMARY", "KEY"))


def raise_missing_comma(cursor: Cursor, tokens: list[Token], parse: Parse) -> None:
    """If the tokens are two columns in a row, a comma is missing between them."""
    for cut in range(1, min(len(tokens) - 1, MOST_TOKENS)):
        first, second = _without_constraints(tokens[:cut]), tokens[cut:]
        if _begins_an_item(second, cursor) and first and _can_be_read(first, cursor, parse):
            name, comma = second[0], tokens[cut - 1].end + 1
            before = cursor.text[tokens[0].start : comma]
            after = cursor.text[comma : second[-1].end + 1]
            raise cursor.error(
                f"a comma is missing before {name.text}",
                f"{before},{after}",
                Span(name.start, name.end + 1),
            ) from None


def raise_missing_backticks(cursor: Cursor, name: str, span: Span, tokens: list[Token]) -> None:
    """If what follows some words is a type, they were meant to be one name: user id BIGINT."""
    for cut in range(1, min(len(tokens), MOST_TOKENS)):
        if _can_be_read(tokens[cut:], cursor, parse_type):
            whole = Span(span.start, tokens[cut - 1].end + 1)
            meant = backticked(cursor.text[whole.start : whole.end])
            raise cursor.error(
                f"{cursor.text[whole.start : whole.end]} is not a plain name",
                f"quote it with backticks: {meant}; a plain name is letters, digits and _.",
                whole,
            ) from None


def _begins_an_item(tokens: list[Token], cursor: Cursor) -> bool:
    """Whether these tokens look like a column, a watermark or a primary key."""
    words = [token.text.upper() for token in tokens[:3]]
    if words[:2] == ["WATERMARK", "FOR"] or words[:3] == ["PRIMARY", "KEY", "("]:
        return True
    if tokens[0].token_type not in (TokenType.VAR, TokenType.IDENTIFIER):
        return False
    kind = _without_constraints(tokens[1:])
    return words[1:2] == ["AS"] or (bool(kind) and _can_be_read(kind, cursor, parse_type))


def _without_constraints(tokens: list[Token]) -> list[Token]:
    kept = list(tokens)
    for words in itertools.chain(_CONSTRAINTS, _CONSTRAINTS):
        if tuple(token.text.upper() for token in kept[-len(words) :]) == words:
            kept = kept[: -len(words)]
    return kept


def _can_be_read(tokens: list[Token], cursor: Cursor, parse: Parse) -> bool:
    try:
        parse(tokens, cursor)
    except SqlError:
        return False
    return True
