"""The types of a plan, as Spark determined them when the stream was declared.

Columns have ids that are unique in a plan, so SQL over ids has the same type everywhere: types are
stored by the text of the SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidegate.plan import nodes as n
from tidegate.sql.quoting import quote_identifier

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Operands:
    """Expressions over the columns of some nodes whose types an operator needs."""

    nodes: tuple[n.Node, ...]
    sql: tuple[str, ...]


@dataclass(frozen=True)
class Types:
    """The type of every column and operand of a plan, by Spark's name."""

    by_sql: Mapping[str, str]

    def name(self, sql: str) -> str:
        return self.by_sql[sql]

    def of(self, sql: str) -> pa.DataType:
        return arrow_type(self.by_sql[sql])

    def all(self, texts: Sequence[str]) -> list[pa.DataType]:
        return [self.of(sql) for sql in texts]

    def columns(self, node: n.Node) -> list[pa.DataType]:
        """Return the types of the columns of a node, without _op."""
        return [self.of(quote_identifier(item.id)) for item in node.fields]


@dataclass(frozen=True)
class TypedPlan:
    """A plan that can be run: optimized, every field with its type."""

    plan: n.Emit
    types: Types


def with_types(node: n.Node, types: Types) -> n.Node:
    """Return the same plan, each field with its type."""
    inputs = tuple(with_types(child, types) for child in node.inputs)
    fields = tuple(
        replace(item, type=types.by_sql.get(quote_identifier(item.id), item.type))
        for item in node.fields
    )
    return replace(node.with_inputs(*inputs) if inputs else node, fields=fields)


_SIMPLE = {
    "BOOLEAN": "bool_",
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INT": "int32",
    "BIGINT": "int64",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "STRING": "string",
    "BINARY": "binary",
    "DATE": "date32",
    "VOID": "null",
}
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|[<>:,()]|[^<>:,()\s`]+)")


def arrow_type(text: str) -> pa.DataType:
    """Return the Arrow type of a Spark type such as ARRAY<BIGINT>."""
    tokens = [match.group(1) for match in _TOKEN.finditer(text)]
    words = iter(tokens)
    arrow, rest = _type(next(words), words)
    assert rest is None, f"{text} is one type"
    return arrow


def _type(word: str, words: Iterator[str]) -> tuple[pa.DataType, str | None]:
    """Parse the type that begins with a word; return it and the next word."""
    import pyarrow as pa

    name = word.upper()
    after = next(words, None)
    if name in ("ARRAY", "MAP", "STRUCT") and after == "<":
        return _nested(name, words)
    if name == "DECIMAL" and after == "(":
        precision, _, scale, _ = (next(words) for _ in range(4))
        return pa.decimal128(int(precision), int(scale)), next(words, None)
    if name in ("VARCHAR", "CHAR") and after == "(":
        _ = [next(words) for _ in range(2)]
        return pa.string(), next(words, None)
    if name == "INTERVAL":
        units = [after or ""]
        while (after := next(words, None)) is not None and after not in (">", ","):
            units.append(after)
        if {"YEAR", "MONTH"} & {unit.upper() for unit in units}:
            raise ValueError("intervals of months cannot be handed to an operator")
        return pa.duration("us"), after
    if name == "TIME" and after == "(":
        _ = [next(words) for _ in range(2)]
        return pa.time64("ns"), next(words, None)
    if name == "TIMESTAMP":
        return pa.timestamp("us", "UTC"), after
    if name == "TIMESTAMP_NTZ":
        return pa.timestamp("us"), after
    if name == "STRING" and after is not None and after.upper() == "COLLATE":
        _ = next(words)
        return pa.string(), next(words, None)
    if name not in _SIMPLE:
        raise ValueError(f"values of type {word} cannot be handed to an operator")
    return getattr(pa, _SIMPLE[name])(), after


def _nested(name: str, words: Iterator[str]) -> tuple[pa.DataType, str | None]:
    import pyarrow as pa

    if name == "ARRAY":
        item, end = _type(next(words), words)
        assert end == ">", "an array has one type"
        return pa.list_(pa.field("element", item)), next(words, None)
    if name == "MAP":
        key, comma = _type(next(words), words)
        value, end = _type(next(words), words)
        assert (comma, end) == (",", ">"), "a map has two types"
        return pa.map_(key, value), next(words, None)
    fields, word = [], next(words)
    while word != ">":
        label = word[1:-1].replace("``", "`") if word.startswith("`") else word
        assert next(words) == ":", "a field has a name and a type"
        data_type, after = _type(next(words), words)
        fields.append(pa.field(label, data_type))
        word = next(words) if after == "," else ">"
    return pa.struct(fields), next(words, None)
