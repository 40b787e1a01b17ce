"""Types of Spark and of PostgreSQL: which holds which."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SAME = {
    "BOOLEAN": ("boolean",),
    "TINYINT": ("smallint", "integer", "bigint", "numeric"),
    "SMALLINT": ("smallint", "integer", "bigint", "numeric"),
    "INT": ("integer", "bigint", "numeric"),
    "BIGINT": ("bigint", "numeric"),
    "FLOAT": ("real", "double precision"),
    "DOUBLE": ("double precision",),
    "STRING": ("text", "character varying", "json", "jsonb", "uuid", "citext"),
    "BINARY": ("bytea",),
    "DATE": ("date",),
    "TIMESTAMP": ("timestamp with time zone",),
    "TIMESTAMP_NTZ": ("timestamp without time zone",),
}
_TEXTS = ("VARCHAR", "CHAR", "STRING")
_NESTED = ("ARRAY", "MAP", "STRUCT")
_SIZED = re.compile(r"([A-Za-z ]+?)\((\d+)(?:,\s*(-?\d+))?\)(.*)")
# What COPY takes in its binary form, by the names that psycopg knows.
BINARY = {
    "boolean": "bool",
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
    "text": "text",
    "character varying": "varchar",
    "bytea": "bytea",
    "date": "date",
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
}


def is_nested(kind: str) -> bool:
    """Whether values of a type of Spark are written as JSON."""
    return kind.startswith(_NESTED)


def plain_type(kind: str) -> str:
    """A type of either side without its sizes."""
    sized = _SIZED.fullmatch(kind)
    return f"{sized.group(1)}{sized.group(4)}" if sized is not None else kind


def _known(kind: str) -> str:
    base = plain_type(kind).split(" COLLATE")[0]
    return "STRING" if base in _TEXTS else base


def unknown_type(columns: Iterable[tuple[str, str]]) -> str | None:
    """What is wrong with columns that PostgreSQL has no type for."""
    for name, kind in columns:
        base = _known(kind)
        if base not in _SAME and base != "DECIMAL" and not is_nested(kind):
            return f"PostgreSQL has no type for the column {name}, which is {kind}: CAST it"
    return None


def created_type(kind: str) -> str:
    """The type of a column that is created for a type of Spark."""
    base = _known(kind)
    if is_nested(kind):
        return "jsonb"
    if base == "DECIMAL":
        return kind.replace("DECIMAL", "numeric")
    return _SAME[base][0]


def fits(kind: str, theirs: str) -> bool:
    """Whether a column of PostgreSQL holds every value of a type of Spark."""
    base, goal = _known(kind), plain_type(theirs)
    if is_nested(kind):
        return goal in ("json", "jsonb", "text")
    if base != "DECIMAL":
        return goal in _SAME[base] and (goal != "numeric" or _whole(kind, theirs))
    return goal == "numeric" and _holds(*_decimal(kind), theirs)


_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}


def _whole(kind: str, theirs: str) -> bool:
    return _holds(_DIGITS[kind], 0, theirs)


def _decimal(kind: str) -> tuple[int, int]:
    sized = _SIZED.fullmatch(kind)
    return (int(sized.group(2)), int(sized.group(3) or 0)) if sized is not None else (38, 0)


def _holds(digits: int, scale: int, theirs: str) -> bool:
    """Whether numeric(p, s) holds numbers of so many digits; without sizes it holds all."""
    sized = _SIZED.fullmatch(theirs)
    if sized is None:
        return True
    precision, places = int(sized.group(2)), int(sized.group(3) or 0)
    return places >= scale and precision - places >= digits - scale
