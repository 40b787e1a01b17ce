"""The names by which plans, and Spark, know functions of Python.

A name holds the version and whether the function is deterministic, so that an expression says by
itself what state may depend on, and another version is another expression.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"\b(\w+?)__(PYTHON|UNSTABLE)_([0-9A-F]{12})\b", re.IGNORECASE)

_CALL = re.compile(r"\b(\w+__(?:PYTHON|UNSTABLE)_[0-9A-F]{12})\(", re.IGNORECASE)


def registered_name(name: str, version: str, deterministic: bool) -> str:
    """Upper case, as plans have the names of functions."""
    return f"{name}__{'PYTHON' if deterministic else 'UNSTABLE'}_{version}".upper()


def is_python(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_unstable(name: str) -> bool:
    """Whether a function of Python may give something else when it is called again."""
    found = _NAME.fullmatch(name)
    return found is not None and found.group(2).upper() == "UNSTABLE"


def for_rows_only(name: str) -> str:
    """The same function with one more argument in front: whether a row is there at all."""
    return f"{name}_ROWS"


def calls_for_rows_only(sql: str, live: str) -> str:
    """SQL that tells functions of Python which rows are there: `live` is the column for it."""
    return _CALL.sub(lambda found: f"{for_rows_only(found.group(1))}({live}, ", sql)


def with_plain_names(text: str) -> str:
    """A text with the names that people gave."""
    return _NAME.sub(lambda found: found.group(1).lower(), text)
