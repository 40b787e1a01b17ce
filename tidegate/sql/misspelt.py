"""Misspelt keywords: the parser reads them as names and stumbles over the word after them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from sqlglot.tokenizer_core import Token, TokenType

_WORDS = """SELECT FROM WHERE GROUP HAVING ORDER QUALIFY JOIN LEFT RIGHT INNER UNION BETWEEN
INTERVAL DISTINCT PARTITION LIMIT EMIT CHANGES"""
_KEYWORDS = tuple(_WORDS.split())
# How far before the word that could not be read the mistake may be: GRUOP BY, b JION asks.
_WORDS_BACK = 3


def meant_keyword(token: Token, keywords: Sequence[str] = _KEYWORDS) -> str | None:
    """The keyword a word was meant to be, if it is nearly one."""
    word = token.text.upper()
    if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER) or word in keywords:
        return None
    if not word.isalpha():
        return None
    # Swapped letters count as one mistake: FORM has the letters of FROM.
    swapped = next((key for key in keywords if sorted(key) == sorted(word)), None)
    near = difflib.get_close_matches(word, keywords, n=1, cutoff=0.8)
    return swapped or (near[0] if near else None)


def misspelt_before(tokens: Sequence[Token], end: int) -> tuple[Token, str] | None:
    """The nearest misspelt keyword at or before the place where reading stopped."""
    read = [token for token in tokens if token.start < end]
    for token in reversed(read[-_WORDS_BACK:]):
        keyword = meant_keyword(token)
        if keyword is not None:
            return token, keyword
    return None
