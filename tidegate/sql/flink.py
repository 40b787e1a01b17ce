"""Flink's way to write windows as tables, read as ours.

TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), size)) is TUMBLE(bids, ts, size): the arguments are the
same, in the same order, so leaving words out is all it takes, and places in the text still fit.
"""

from __future__ import annotations

from sqlglot.tokenizer_core import Token, TokenType

from tidegate.sql.expressions import WINDOW_FUNCTIONS


def plain_windows(tokens: list[Token]) -> list[Token]:
    """The tokens without TABLE and DESCRIPTOR around and inside window functions."""
    closing = _closing(tokens)
    dropped: set[int] = set()
    for index, token in enumerate(tokens):
        if not _is_call(tokens, index, closing) or token.text.upper() not in WINDOW_FUNCTIONS:
            continue
        dropped |= _around(tokens, index, closing)
        for inner in range(index + 2, closing[index + 1]):
            dropped |= _inside(tokens, inner, closing)
    return [token for index, token in enumerate(tokens) if index not in dropped]


def _closing(tokens: list[Token]) -> dict[int, int]:
    """Where each parenthesis that is closed is closed."""
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


def _around(tokens: list[Token], index: int, closing: dict[int, int]) -> set[int]:
    """TABLE ( … ) with nothing but this call inside."""
    outer = index - 1
    if closing.get(outer) != closing[index + 1] + 1 or index < 2:
        return set()
    return {outer - 1, outer, closing[outer]} if _is_word(tokens[outer - 1], "TABLE") else set()


def _inside(tokens: list[Token], index: int, closing: dict[int, int]) -> set[int]:
    """TABLE before a name, DESCRIPTOR ( … ) around one, and parentheses around keys."""
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
