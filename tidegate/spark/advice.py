"""What Spark says when an expression fails on a row, in words that can be followed here.

Spark's own advice names settings that a session of ours has fixed, so it is cut; what is written
instead is SQL. Conditions and parameters are Spark's data; the text is only read where an error
has come through the streaming engine, which keeps nothing else.
"""

from __future__ import annotations

import re

from pyspark.errors import PySparkException

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)?)\]\s*")
_SENTENCES = re.compile(r"(?<=\.) +(?=[A-Z])")
# Sentences of advice that follow the one that says what is wrong.
_ADVICE = re.compile(r"Use .* to tolerate |Correct the value as per |SQLSTATE: |.*\bspark\.\w+\.")
_PATTERN = "INCONSISTENT_BEHAVIOR_CROSS_VERSION.DATETIME_PATTERN_RECOGNITION"
_PARSER = "INCONSISTENT_BEHAVIOR_CROSS_VERSION.PARSE_DATETIME_BY_NEW_PARSER"
_LETTERS = "the letters of a pattern are Spark's: 'yyyy-MM-dd HH:mm:ss'"

_HINTS = {
    "DIVIDE_BY_ZERO": "try_divide(a, b) gives NULL instead, and so does a / nullif(b, 0)",
    "INTERVAL_DIVIDED_BY_ZERO": "try_divide(a, b) gives NULL instead, and so does a / nullif(b, 0)",
    "REMAINDER_BY_ZERO": "try_mod(a, b) gives NULL instead, and so does a % nullif(b, 0)",
    "CAST_INVALID_INPUT": "try_cast(x AS …) gives NULL instead, and so does try_to_timestamp(x)",
    "CAST_OVERFLOW": "cast to a wider type, or try_cast(x AS …), which gives NULL instead",
    "ARITHMETIC_OVERFLOW": "cast to a wider type first, for example CAST(x AS DECIMAL(38, 0)); "
    "try_add, try_subtract and try_multiply give NULL instead",
    "CANNOT_PARSE_TIMESTAMP": "try_to_timestamp(x, pattern) gives NULL instead",
    "INVALID_ARRAY_INDEX": "get(list, index) gives NULL instead",
    "INVALID_ARRAY_INDEX_IN_ELEMENT_AT": "try_element_at(list, index) gives NULL instead",
    "INVALID_TIMEZONE": "a time zone is 'Europe/Berlin', 'UTC' or '+02:00'",
    "INVALID_DATETIME_PATTERN": _LETTERS,
    _PATTERN: _LETTERS,
    _PARSER: "try_to_timestamp(x, pattern) gives NULL instead",
}


def condition(error: BaseException) -> str | None:
    """Spark's innermost error condition, such as DIVIDE_BY_ZERO."""
    if isinstance(error, PySparkException):
        found = error.getCondition()
        if found in _HINTS:
            return str(found)
    named = [str(name) for name in reversed(_CONDITION.findall(str(error)))]
    # An error that wraps another one has a condition as well, which says less.
    return next((name for name in named if _hint(name)), named[0] if named else None)


def _hint(name: str) -> str | None:
    return _HINTS.get(name) or _HINTS.get(name.partition(".")[0])


def advice(error: BaseException) -> str | None:
    """What to write instead of the expression that failed; None if it was something else."""
    return _hint(condition(error) or "")


def reason(error: BaseException, sentence: str) -> str:
    """What is wrong, without advice; `sentence` is what the text of the error comes to."""
    found = condition(error)
    if found == _PATTERN:
        return f"{_parameter(error, 'pattern')} is not a pattern for dates and times"
    if found == _PARSER:
        return f"{_parameter(error, 'datetime')} does not fit the pattern"
    if found == "INVALID_TIMEZONE":
        return f"there is no time zone {_parameter(error, 'timeZone')}"
    first, *others = _SENTENCES.split(sentence)
    return " ".join([first, *(part for part in others if not _ADVICE.match(part))]).rstrip(" .")


_IN_TEXT = {
    "pattern": re.compile(r"Fail to recognize ('.*?') pattern"),
    "datetime": re.compile(r"Fail to parse ('.*?') in the new parser"),
    "timeZone": re.compile(r"The timezone: (\S+) is invalid"),
}


def _parameter(error: BaseException, name: str) -> str:
    given = error.getMessageParameters() if isinstance(error, PySparkException) else None
    if given and name in given:
        return str(given[name])
    match = _IN_TEXT[name].search(str(error))
    return match.group(1) if match else "this"
