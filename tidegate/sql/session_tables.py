"""FROM SESSION(bids PARTITION BY k, ts, gap): the keys become arguments between table and time."""

from __future__ import annotations

from sqlglot.tokenizer_core import Token, TokenType


def keys_as_arguments(tokens: list[Token]) -> list[Token]:
    """The tokens with a comma in place of PARTITION BY in SESSION as a table."""
    return [_comma(token) if _in_session(tokens, i) else token for i, token in enumerate(tokens)]


def _in_session(tokens: list[Token], index: int) -> bool:
    if tokens[index].token_type is not TokenType.PARTITION_BY or index < 3:
        return False
    call, bracket = tokens[index - 3], tokens[index - 2]
    return call.text.upper() == "SESSION" and bracket.token_type is TokenType.L_PAREN


def _comma(token: Token) -> Token:
    return Token(
        TokenType.COMMA, ",", line=token.line, col=token.col, start=token.start, end=token.end
    )
