"""The reader of postgres sources, and the columns that sources and lookup tables read.

Python workers import this module, which must not load the parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.connectors.postgres.client import (
    ConnectionParameters,
    PostgresColumn,
    PostgresTable,
    cached_connection,
    import_psycopg,
    read_table,
    split_name,
    translate_errors,
)
from tidegate.connectors.postgres.column_types import created_type, plain_type
from tidegate.errors import RunError, SystemUnavailable, did_you_mean
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS

# The Spark types that can store every value of a PostgreSQL type.
_SPARK_TYPES = {
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
    """A declared column, the column of the table that it reads, and their types."""

    declared: str
    name: str
    # The type of the table's column, and the PostgreSQL type of the declared type.
    type: str
    declared_type: str
    field: pa.Field

    @property
    def _as_text(self) -> bool:
        return pa.types.is_string(self.field.type) and self.type not in ("text", "uuid")

    def selected(self, table: str) -> Any:
        """Return the expression that reads the column."""
        sql = import_psycopg().sql
        text = "{}::text" if pa.types.is_string(self.field.type) else "{}"
        return sql.SQL(text).format(sql.Identifier(table, self.name))

    def compared(self, table: str) -> Any:
        """Return the expression that keys are compared with, without a cast if possible.

        PostgreSQL cannot use an index on the column through a cast.
        """
        sql = import_psycopg().sql
        plain = plain_type(self.type) in ("character varying", "uuid") or not self._as_text
        return sql.SQL("{}" if plain else "{}::text").format(sql.Identifier(table, self.name))

    def array_parameter(self) -> Any:
        """Return the placeholder for an array of keys."""
        sql_type = "uuid" if self.type == "uuid" else self.declared_type
        return import_psycopg().sql.SQL(f"%s::{sql_type}[]")

    def key_values(self, values: list[Any]) -> list[Any]:
        """Replace keys that the column cannot contain by NULL: texts that are not UUIDs."""
        if self.type != "uuid":
            return values
        return [value if _UUID.fullmatch(value) else None for value in values]


def read_columns(
    connection: Any, table: str, columns: Sequence[tuple[str, str]], label: str
) -> tuple[str, str, tuple[ReadColumn, ...]]:
    """Return the schema and name of a table, and its columns for the declared ones.

    Raises an error if the table or a column does not exist, or if a declared type cannot store all
    values of its column.
    """
    schema, name = split_name(table, connection)
    description = read_table(connection, schema, name)
    if description is None:
        raise RunError(
            "TG-522",
            f"{label} reads the table {schema}.{name}, which does not exist",
            hint="correct the options table and database, or create it.",
        )
    return schema, name, tuple(_column(description, *item, label) for item in columns)


def _column(table: PostgresTable, name: str, sql_type: str, label: str) -> ReadColumn:
    from tidegate.physical.typed import arrow_type

    column = table.column(name)
    if column is None:
        names = [item.name for item in table.columns]
        raise RunError(
            "TG-523",
            f"{label} declares the column {name}, which the table {table.full_name} does not have",
            hint=did_you_mean(name, names, "columns it has"),
        )
    types = spark_types(column)
    if not types or plain_type(sql_type).split(" COLLATE")[0] not in types:
        fix = f"declare {name} {_declaration(column, types[0])}." if types else f"leave {name} out."
        raise RunError(
            "TG-523",
            f"{label} declares the column {name} as {sql_type}, but in the table {table.full_name} "
            f"it is {column.type}",
            hint=fix,
        )
    return ReadColumn(
        name, column.name, column.type, created_type(sql_type), pa.field(name, arrow_type(sql_type))
    )


def spark_types(column: PostgresColumn) -> tuple[str, ...]:
    """Return the Spark types, without their sizes, that can store a column."""
    base = plain_type(column.type)
    if base in _TEXTS or column.enum:
        return ("STRING", "VARCHAR", "CHAR")
    return _SPARK_TYPES.get(base, ())


def _declaration(column: PostgresColumn, sql_type: str) -> str:
    if sql_type != "DECIMAL":
        return sql_type
    return column.type.replace("numeric", "DECIMAL") if "(" in column.type else "DECIMAL(38,10)"


def to_arrow(
    rows: Sequence[tuple[Any, ...]], columns: Sequence[ReadColumn], label: str
) -> pa.Table:
    """Convert rows to a table of the declared types."""
    lists = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    arrays = []
    for column, values in zip(columns, lists, strict=True):
        try:
            arrays.append(pa.array(values, column.field.type))
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise RunError(
                "TG-504",
                f"{label}: a value of the column {column.name} does not fit {column.field.type}: "
                f"{str(error).splitlines()[0]}",
                hint=f"declare {column.declared} with a type that can store it.",
            ) from None
    return pa.table(arrays, schema=pa.schema([column.field for column in columns]))


# ---- The reader of a source.

_BATCH_ROWS = 50_000


@dataclass(frozen=True)
class PostgresSplitReader:
    """Reads splits of a table in the snapshot of an epoch.

    A split is a dictionary: the exported snapshot, the position of the split, and either a range of
    pages or a range of values of the increasing column.
    """

    parameters: ConnectionParameters
    label: str
    schema_name: str
    table: str
    columns: tuple[ReadColumn, ...]
    increasing: str | None
    arrival: bool

    @property
    def schema(self) -> pa.Schema:
        fields = [column.field for column in self.columns]
        if self.arrival:
            fields += ARRIVAL_FIELDS
        return pa.schema(fields)

    def read(self, split: dict[str, Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        first = 0
        for rows in self._read_rows(split):
            table = to_arrow(rows, self.columns, self.label)
            count = table.num_rows
            arrays = [column.combine_chunks() for column in table.columns]
            if self.arrival:
                arrays.append(pa.repeat(pa.scalar(f"{split['position']:06d}"), count))
                arrays.append(pa.array(np.arange(first, first + count)))
            first += count
            yield pa.record_batch(arrays, schema=self.schema), count

    def _read_rows(self, split: dict[str, Any]) -> Iterator[list[tuple[Any, ...]]]:
        with translate_errors(self.label):
            connection = cached_connection(self.parameters, self.label)
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                self._import_snapshot(connection, split["snapshot"])
                with connection.cursor(name="tidegate") as cursor:
                    cursor.execute(*self._query(split))
                    while rows := cursor.fetchmany(_BATCH_ROWS):
                        yield rows
            finally:
                connection.rollback()

    def _import_snapshot(self, connection: Any, snapshot: str) -> None:
        sql = import_psycopg().sql
        try:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        except (import_psycopg().DataError, import_psycopg().ProgrammingError):
            # The driver has lost the connection that exported it. The epoch is planned again.
            raise SystemUnavailable(
                f"{self.label}: the snapshot of this epoch no longer exists"
            ) from None

    def _query(self, split: dict[str, Any]) -> tuple[Any, list[Any]]:
        sql = import_psycopg().sql
        columns = sql.SQL(", ").join(column.selected("t") for column in self.columns)
        conditions, parameters = [sql.SQL("true")], []
        if self.increasing is not None:
            increasing = sql.Identifier("t", self.increasing)
            for sign, bound in ((">", split["after"]), ("<=", split["upto"])):
                if bound is not None:
                    conditions.append(sql.SQL(f"{{}} {sign} %s").format(increasing))
                    parameters.append(bound)
        first, end = split.get("pages") or (None, None)
        if first is not None:
            conditions.append(sql.SQL("t.ctid >= %s::tid"))
            parameters.append(f"({first},0)")
        if end is not None:
            conditions.append(sql.SQL("t.ctid < %s::tid"))
            parameters.append(f"({end},0)")
        query = sql.SQL("SELECT {} FROM {} AS t WHERE {}").format(
            columns,
            sql.Identifier(self.schema_name, self.table),
            sql.SQL(" AND ").join(conditions),
        )
        if self.increasing is not None:
            query += sql.SQL(" ORDER BY {}").format(sql.Identifier("t", self.increasing))
        return query, parameters
