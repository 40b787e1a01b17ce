"""Secrets in a script: what is shown of it never shows them."""

from __future__ import annotations

import re

_SECRET_NAME = r"(?:passw(?:or)?d|secret|token|credential|api_?key|private_?key|sasl[._]jaas)"
_VALUE = r"""'(?:\\.|''|[^'\\])*(?:'|$)|"(?:\\.|""|[^"\\])*(?:"|$)|[^\s,;()'"]+"""
_OPTION = re.compile(rf"(?is)[\w.]*{_SECRET_NAME}[\w.]*`?\s*=\s*({_VALUE})")
_URL = re.compile(r"://[^\s/@:'\"]*:([^\s@'\"]+)@")
_FROM_ENVIRONMENT = re.compile(r"(?s)['\"]?\$\{\w+\}['\"]?")


def masked(text: str) -> str:
    """The text with every secret replaced by stars; as long as before, so that places fit."""
    return _URL.sub(_stars, _OPTION.sub(_stars, text))


def _stars(match: re.Match[str]) -> str:
    """The match with its first group hidden; quotes, line ends and ${NAME} may be seen."""
    value = match.group(1)
    if _FROM_ENVIRONMENT.fullmatch(value):
        return match.group()
    hidden = re.sub(r"[^\n]", "*", value)
    if value[0] in "'\"":
        last = value[-1] if len(value) > 1 and value[-1] == value[0] else "*"
        hidden = value[0] + hidden[1:-1] + last if len(value) > 1 else value
    before = match.start(1) - match.start()
    whole = match.group()
    return whole[:before] + hidden + whole[before + len(value) :]
