"""Which PostgreSQL types can store the values of a Spark type."""

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
# The types that are written with binary COPY, and their short names in PostgreSQL.
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


def is_nested(sql_type: str) -> bool:
    """Return whether values of a Spark type are written as JSON."""
    return sql_type.startswith(_NESTED)


def plain_type(sql_type: str) -> str:
    """Return a Spark or PostgreSQL type without its length or precision."""
    sized = _SIZED.fullmatch(sql_type)
    return f"{sized.group(1)}{sized.group(4)}" if sized is not None else sql_type


def _base_type(sql_type: str) -> str:
    base = plain_type(sql_type).split(" COLLATE")[0]
    return "STRING" if base in _TEXTS else base


def unknown_type(columns: Iterable[tuple[str, str]]) -> str | None:
    """Return an error message for the first column without a type in PostgreSQL, or None."""
    for name, sql_type in columns:
        base = _base_type(sql_type)
        if base not in _SAME and base != "DECIMAL" and not is_nested(sql_type):
            return f"PostgreSQL has no type for the column {name}, which is {sql_type}: CAST it"
    return None


def created_type(sql_type: str) -> str:
    """Return the PostgreSQL type of columns that are created for a Spark type."""
    base = _base_type(sql_type)
    if is_nested(sql_type):
        return "jsonb"
    if base == "DECIMAL":
        return sql_type.replace("DECIMAL", "numeric")
    return _SAME[base][0]


_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}


def fits(sql_type: str, postgres_type: str) -> bool:
    """Return whether a PostgreSQL type can store every value of a Spark type."""
    base, target = _base_type(sql_type), plain_type(postgres_type)
    if is_nested(sql_type):
        return target in ("json", "jsonb", "text")
    if base != "DECIMAL":
        return target in _SAME[base] and (
            target != "numeric" or _numeric_holds(_DIGITS[sql_type], 0, postgres_type)
        )
    return target == "numeric" and _numeric_holds(*_decimal(sql_type), postgres_type)


def _decimal(sql_type: str) -> tuple[int, int]:
    sized = _SIZED.fullmatch(sql_type)
    return (int(sized.group(2)), int(sized.group(3) or 0)) if sized is not None else (38, 0)


def _numeric_holds(digits: int, scale: int, numeric: str) -> bool:
    """Return whether numeric(p, s) can store all decimals of this size. Plain numeric can."""
    sized = _SIZED.fullmatch(numeric)
    if sized is None:
        return True
    precision, decimals = int(sized.group(2)), int(sized.group(3) or 0)
    return decimals >= scale and precision - decimals >= digits - scale
