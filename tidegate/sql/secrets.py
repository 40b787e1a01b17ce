"""Secrets in a script: what is shown of it never shows them."""

from __future__ import annotations

import difflib
import re

from tidegate.errors import SECRET

_SECRET_NAME = re.compile(
    r"(?i)pass(?:w|p|\b|_)|pwd|secret|token|credential|api_?key|private_?key|sasl[._]jaas"
)
# A misspelt option is refused, and its value is still a secret.
_SECRET_WORDS = ("password", "passwd", "secret", "token", "sasl_password")
_VALUE = r"""'(?:\\.|''|[^'\\])*(?:'|$)|"(?:\\.|""|[^"\\])*(?:"|$)|[^\s,;()'"]+"""
_OPTION = re.compile(rf"(?s)([\w.]+)[`\"']?\s*=\s*({_VALUE})")
_URL = re.compile(r"://[^\s/@:'\"]*:([^\s@'\"]+)@")
_FROM_ENVIRONMENT = re.compile(r"(?s)['\"]?\$\{\w+\}['\"]?")


def masked(text: str) -> str:
    """The text with every secret blotted out; as long as before, so that places fit."""
    return _URL.sub(lambda match: _blotted(match, 1), _OPTION.sub(_option, text))


def _option(match: re.Match[str]) -> str:
    return _blotted(match, 2) if _looks_secret(match.group(1)) else match.group()


def _looks_secret(name: str) -> bool:
    if _SECRET_NAME.search(name):
        return True
    return bool(difflib.get_close_matches(name.lower(), _SECRET_WORDS, n=1, cutoff=0.8))


def _blotted(match: re.Match[str], group: int) -> str:
    """The match with one group hidden; quotes, line ends and ${NAME} may be seen."""
    value = match.group(group)
    if _FROM_ENVIRONMENT.fullmatch(value):
        return match.group()
    hidden = re.sub(r"[^\n]", SECRET, value)
    if value[0] in "'\"":
        last = value[-1] if len(value) > 1 and value[-1] == value[0] else SECRET
        hidden = value[0] + hidden[1:-1] + last if len(value) > 1 else value
    before = match.start(group) - match.start()
    whole = match.group()
    return whole[:before] + hidden + whole[before + len(value) :]
