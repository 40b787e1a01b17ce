"""Secrets in a script: what is shown of it never shows them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from tidegate.errors import SECRET

_SECRET_NAME = re.compile(
    r"(?i)pass(?:w|p|\b|_)|pwd|secret|token|credential|api_?key|private[._]?key|key[._]pem|"
    r"sasl[._]jaas|oauthbearer[._]config"
)
# A misspelt option is rejected, and its value is still a secret.
_SECRET_WORDS = ("password", "passwd", "secret", "token", "sasl_password")
_VALUE = r"""'(?:\\.|''|[^'\\])*(?:'|$)|"(?:\\.|""|[^"\\])*(?:"|$)|[^\s,;()'"]+"""
_OPTION = re.compile(rf"(?s)([\w.]+)[`\"']?\s*=\s*({_VALUE})")
_URL = re.compile(r"://[^\s/@:'\"]*:([^\s@'\"]+)@")
_FROM_ENVIRONMENT = re.compile(r"(?s)['\"]?\$\{\w+\}['\"]?")


def masked(text: str, secret: Collection[str] = ()) -> str:
    """The text with every secret blotted out; as long as before, so that places fit.

    `secret` are the options that connectors declare to be so. What only looks like one is hidden as
    well, in comments and in text that cannot be read too, as an error shows the whole line.
    """

    def option(match: re.Match[str]) -> str:
        hide = _is_secret(match.group(1).lower(), secret)
        return _blotted(match, 2) if hide else match.group()

    return _URL.sub(lambda match: _blotted(match, 1), _OPTION.sub(option, text))


def looks_secret(name: str) -> bool:
    """Return True if the name of an option suggests that its value is secret."""
    return _SECRET_NAME.search(name) is not None


def _is_secret(name: str, declared: Collection[str]) -> bool:
    if name in declared or _SECRET_NAME.search(name):
        return True
    words = (*_SECRET_WORDS, *declared)
    return bool(difflib.get_close_matches(name, words, n=1, cutoff=0.8))


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
