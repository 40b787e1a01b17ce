"""Constants that a function would refuse at the first row: patterns of dates, time zones."""

from __future__ import annotations

import re
import zoneinfo
from functools import cache

from sqlglot import exp

from tidegate.errors import nearest
from tidegate.sql import expressions as ex

Wrong = tuple[exp.Expr, str, str]

# Which argument of a function is a pattern, or a time zone.
_PATTERN_AT = {
    "DATE_FORMAT": (1,),
    "TO_TIMESTAMP": (1,),
    "TRY_TO_TIMESTAMP": (1,),
    "TO_TIMESTAMP_NTZ": (1,),
    "TO_TIMESTAMP_LTZ": (1,),
    "TO_DATE": (1,),
    "TRY_TO_DATE": (1,),
    "UNIX_TIMESTAMP": (1,),
    "TO_UNIX_TIMESTAMP": (1,),
    "FROM_UNIXTIME": (1,),
}
_ZONE_AT = {
    "FROM_UTC_TIMESTAMP": (1,),
    "TO_UTC_TIMESTAMP": (1,),
    "CONVERT_TIMEZONE": (0, 1),
}
# The letters of strftime, which PostgreSQL's are not but those of most other systems are.
_LETTERS = {
    "%Y": "yyyy",
    "%y": "yy",
    "%m": "MM",
    "%b": "MMM",
    "%B": "MMMM",
    "%d": "dd",
    "%j": "DDD",
    "%a": "E",
    "%H": "HH",
    "%I": "hh",
    "%M": "mm",
    "%i": "mm",
    "%S": "ss",
    "%s": "ss",
    "%f": "SSSSSS",
    "%p": "a",
    "%z": "XX",
    "%F": "yyyy-MM-dd",
    "%T": "HH:mm:ss",
}


def wrong_literal(call: exp.Expr) -> Wrong | None:
    """A constant argument that cannot work, what is wrong with it, and a hint."""
    name = ex.call_name(call) or ""
    for at in _PATTERN_AT.get(name, ()):
        text = _text(call, at)
        if text is not None and re.search(r"%[A-Za-z]", text.name):
            message = f"'{text.name}' is not a pattern for dates and times"
            return text, message, f"Spark's letters are others: '{_sparks(text.name)}'."
    for at in _ZONE_AT.get(name, ()):
        text = _text(call, at)
        if text is not None and _unknown_zone(text.name):
            near = nearest(text.name, _zones())
            hint = f"did you mean {near}?" if near else "a zone is 'Europe/Berlin' or '+02:00'."
            return text, f"there is no time zone {text.name}", hint
    return None


def _text(call: exp.Expr, at: int) -> exp.Literal | None:
    arguments = call.expressions
    if at >= len(arguments) or not isinstance(arguments[at], exp.Literal):
        return None
    literal: exp.Literal = arguments[at]
    return literal if literal.is_string else None


def _sparks(pattern: str) -> str:
    return re.sub(r"%[A-Za-z]", lambda match: _LETTERS.get(match.group(), "…"), pattern)


@cache
def _zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _unknown_zone(name: str) -> bool:
    """Whether a zone with area and city does not exist; of all other texts Spark knows more."""
    # Java alone has the zones of SystemV; and a machine may be without any list of zones.
    known = name in _zones() or name.startswith("SystemV/") or not _zones()
    return re.fullmatch(r"[A-Za-z]+/[\w/+-]+", name) is not None and not known
