"""Masking of secrets in scripts, so that errors and statements do not show them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from tidegate.errors import SECRET

_SECRET_NAME = re.compile(
    r"(?i)pass(?:w|p|\b|_)|pwd|secret|token|credential|api_?key|private[._]?key|key[._]pem|"
    r"sasl[._]jaas|oauthbearer[._]config"
)
# Names similar to these are masked: the value of a misspelt option is still a secret.
_SECRET_WORDS = ("password", "passwd", "secret", "token", "sasl_password")
_VALUE = r"""'(?:\\.|''|[^'\\])*(?:'|$)|"(?:\\.|""|[^"\\])*(?:"|$)|[^\s,;()'"]+"""
_OPTION = re.compile(rf"(?s)([\w.]+)[`\"']?\s*=\s*({_VALUE})")
_URL = re.compile(r"://[^\s/@:'\"]*:([^\s@'\"]+)@")
_FROM_ENVIRONMENT = re.compile(r"(?s)['\"]?\$\{\w+\}['\"]?")


def mask_secrets(text: str, secret: Collection[str] = ()) -> str:
    """Mask every secret of a script without changing its length, so that spans stay valid.

    `secret` contains the options that connectors declare as secret. Options whose names suggest a
    secret are masked, too, even in comments and invalid text, because errors show entire lines.
    """

    def option(match: re.Match[str]) -> str:
        is_secret = _is_secret(match.group(1).lower(), secret)
        return _mask_group(match, 2) if is_secret else match.group()

    return _URL.sub(lambda match: _mask_group(match, 1), _OPTION.sub(option, text))


def has_secret_name(name: str) -> bool:
    """Return whether the name of an option suggests that its value is secret."""
    return _SECRET_NAME.search(name) is not None


def _is_secret(name: str, declared: Collection[str]) -> bool:
    if name in declared or _SECRET_NAME.search(name):
        return True
    words = (*_SECRET_WORDS, *declared)
    return bool(difflib.get_close_matches(name, words, n=1, cutoff=0.8))


def _mask_group(match: re.Match[str], group: int) -> str:
    """Mask a group of a match, except for quotes, line ends and ${NAME}."""
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
