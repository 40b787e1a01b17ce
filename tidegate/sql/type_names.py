"""The types of Spark SQL, and what to write for those of other systems."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

TYPES_HINT = (
    "types are Spark's: BOOLEAN, INT, BIGINT, DOUBLE, DECIMAL(18, 2), STRING, DATE, TIMESTAMP, "
    "ARRAY<…>, MAP<…, …>, STRUCT<…>."
)

# What sqlglot calls the types that Spark has; other types are not types here.
_NAMES = """TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL BOOLEAN CHAR VARCHAR NVARCHAR TEXT
BINARY VARBINARY DATE TIMESTAMP TIMESTAMPTZ TIMESTAMPLTZ TIMESTAMPNTZ DATETIME TIME VARIANT ARRAY
MAP STRUCT"""
SPARK_TYPES = frozenset(_NAMES.split())
_TEXT = "STRING"
_JSON = "STRING, and read it with get_json_object(column, '$.name')"
# INT8 is among them, as it means eight bytes to some systems and eight bits to others.
_INSTEAD = {
    "JSON": _JSON,
    "JSONB": _JSON,
    "OBJECT": "MAP<STRING, STRING>, or STRUCT<…> with its fields",
    "SUPER": _JSON,
    "UUID": _TEXT,
    "XML": _TEXT,
    "ENUM": _TEXT,
    "INET": _TEXT,
    "HSTORE": "MAP<STRING, STRING>",
    "INT8": "BIGINT for 8 bytes, or TINYINT for 8 bits",
    "INT128": "DECIMAL(38, 0)",
    "HUGEINT": "DECIMAL(38, 0)",
    "UINT": "BIGINT",
    "UINTEGER": "BIGINT",
    "UNSIGNED": "BIGINT",
    "USMALLINT": "INT",
    "UTINYINT": "SMALLINT",
    "UBIGINT": "DECIMAL(20, 0)",
    "MEDIUMINT": "INT",
    "SERIAL": "INT",
    "BIGSERIAL": "BIGINT",
    "YEAR": "INT",
    "BIT": "BOOLEAN",
    "MONEY": "DECIMAL(18, 2)",
    "BIGNUMERIC": "DECIMAL(38, 18)",
    "BIGDECIMAL": "DECIMAL(38, 18)",
    "FLOAT32": "FLOAT",
    "FLOAT64": "DOUBLE",
    "BYTES": "BINARY",
    "ROW": "STRUCT<a: INT, …>",
    "LIST": "ARRAY<…>",
    "MULTISET": "ARRAY<…>",
    "VECTOR": "ARRAY<FLOAT>",
    "TIMETZ": "TIME",
}
# These words are plain names, so that a column may be called json or list.
FOREIGN_TYPES = frozenset(_INSTEAD)
# An interval without its fields is a pair of months and time, which has no order.
_INSTEAD["INTERVAL"] = "INTERVAL DAY TO SECOND"


def type_hint(words: Iterable[str]) -> str | None:
    """What to write for the first of these words that is a type of another system."""
    known = (_INSTEAD.get(word.upper()) for word in words)
    found = next((instead for instead in known if instead is not None), None)
    return f"write {found}." if found is not None else None


def is_spark_type(tree: exp.Expr | None) -> bool:
    """Whether a column can have this type, and all that it is made of."""
    if not isinstance(tree, exp.DataType):
        return False
    kinds = [part.this for part in tree.find_all(exp.DataType)]
    # INTERVAL DAY TO SECOND is an expression of its own.
    return all(isinstance(kind, exp.Expr) or kind.name in SPARK_TYPES for kind in kinds)
