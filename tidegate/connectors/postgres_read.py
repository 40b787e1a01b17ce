"""Reading tables of PostgreSQL: which declared types hold their columns, and rows as Arrow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.connectors.postgres_client import driver
from tidegate.connectors.postgres_table import Table, TableColumn, read_table, split_name
from tidegate.connectors.postgres_types import created_type, plain_type
from tidegate.errors import RunError, did_you_mean

# The declared types that hold every value of a type of PostgreSQL.
_HOLD = {
    "boolean": ("BOOLEAN",),
    "smallint": ("SMALLINT", "INT", "BIGINT"),
    "integer": ("INT", "BIGINT"),
    "bigint": ("BIGINT",),
    "real": ("FLOAT", "DOUBLE"),
    "double precision": ("DOUBLE",),
    "numeric": ("DECIMAL",),
    "bytea": ("BINARY",),
    "date": ("DATE",),
    "timestamp with time zone": ("TIMESTAMP",),
    "timestamp without time zone": ("TIMESTAMP_NTZ",),
}
_TEXTS = ("text", "character varying", "character", "uuid", "json", "jsonb", "citext", "name")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class ReadColumn:
    """A column of a table, and the type in which it is read."""

    declared: str
    name: str
    # Its type in PostgreSQL, and that of the declared type.
    type: str
    asked: str
    field: pa.Field

    @property
    def _as_text(self) -> bool:
        return pa.types.is_string(self.field.type) and self.type not in ("text", "uuid")

    def selected(self, table: str) -> Any:
        sql = driver().sql
        text = "{}::text" if pa.types.is_string(self.field.type) else "{}"
        return sql.SQL(text).format(sql.Identifier(table, self.name))

    def compared(self, table: str) -> Any:
        """The column as keys are compared with it; as it is, where an index can help."""
        sql = driver().sql
        plain = plain_type(self.type) in ("character varying", "uuid") or not self._as_text
        return sql.SQL("{}" if plain else "{}::text").format(sql.Identifier(table, self.name))

    def listed(self) -> Any:
        """The keys that are asked for, as an array."""
        kind = "uuid" if self.type == "uuid" else self.asked
        return driver().sql.SQL(f"%s::{kind}[]")

    def askable(self, values: list[Any]) -> list[Any]:
        """Keys that the database can be asked for; a text that is no UUID equals none."""
        if self.type != "uuid":
            return values
        return [value if _UUID.fullmatch(value) else None for value in values]


def read_columns(
    connection: Any, table: str, columns: Sequence[tuple[str, str]], who: str
) -> tuple[str, str, tuple[ReadColumn, ...]]:
    """The schema and name of a table, and its columns for declared ones; refused if one is not
    there, or does not fit."""
    schema, name = split_name(table, connection)
    found = read_table(connection, schema, name)
    if found is None:
        raise RunError(
            "TG-504",
            f"{who} reads the table {schema}.{name}, which does not exist",
            hint="correct the options table and database, or create it.",
        )
    return schema, name, tuple(_column(found, *item, who) for item in columns)


def _column(table: Table, name: str, kind: str, who: str) -> ReadColumn:
    from tidegate.physical.typed import arrow_type

    column = table.column(name)
    if column is None:
        known = [item.name for item in table.columns]
        raise RunError(
            "TG-504",
            f"{who} declares the column {name}, which the table {table.shown} does not have",
            hint=did_you_mean(name, known, "columns it has"),
        )
    wanted = held_by(column)
    if not wanted or plain_type(kind).split(" COLLATE")[0] not in wanted:
        fix = f"declare {name} {_spelled(column, wanted[0])}." if wanted else f"leave {name} out."
        raise RunError(
            "TG-504",
            f"{who} declares the column {name} as {kind}, and in the table {table.shown} it is "
            f"{column.type}",
            hint=fix,
        )
    return ReadColumn(
        name, column.name, column.type, created_type(kind), pa.field(name, arrow_type(kind))
    )


def held_by(column: TableColumn) -> tuple[str, ...]:
    """The declared types, without their sizes, that hold a column."""
    base = plain_type(column.type)
    if base in _TEXTS or column.enum:
        return ("STRING", "VARCHAR", "CHAR")
    return _HOLD.get(base, ())


def _spelled(column: TableColumn, kind: str) -> str:
    if kind != "DECIMAL":
        return kind
    return column.type.replace("numeric", "DECIMAL") if "(" in column.type else "DECIMAL(38,10)"


def to_arrow(rows: Sequence[tuple[Any, ...]], columns: Sequence[ReadColumn], who: str) -> pa.Table:
    """Rows as a table of the declared types."""
    lists = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    arrays = []
    for column, values in zip(columns, lists, strict=True):
        try:
            arrays.append(pa.array(values, column.field.type))
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise RunError(
                "TG-504",
                f"{who}: a value of the column {column.name} does not fit {column.field.type}: "
                f"{str(error).splitlines()[0]}",
                hint=f"declare {column.declared} with a type that holds it.",
            ) from None
    return pa.table(arrays, schema=pa.schema([column.field for column in columns]))
