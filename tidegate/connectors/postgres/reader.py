"""Reading tables of PostgreSQL: which declared types hold their columns, and rows as Arrow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.connectors.postgres.client import (
    Login,
    PostgresColumn,
    PostgresTable,
    cached_connection,
    import_psycopg,
    read_table,
    split_name,
    translate_errors,
)
from tidegate.connectors.postgres.column_types import created_type, plain_type
from tidegate.errors import RunError, SystemAway, did_you_mean
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS

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
        sql = import_psycopg().sql
        text = "{}::text" if pa.types.is_string(self.field.type) else "{}"
        return sql.SQL(text).format(sql.Identifier(table, self.name))

    def compared(self, table: str) -> Any:
        """The column as keys are compared with it; as it is, where an index can help."""
        sql = import_psycopg().sql
        plain = plain_type(self.type) in ("character varying", "uuid") or not self._as_text
        return sql.SQL("{}" if plain else "{}::text").format(sql.Identifier(table, self.name))

    def listed(self) -> Any:
        """The keys that are asked for, as an array."""
        kind = "uuid" if self.type == "uuid" else self.asked
        return import_psycopg().sql.SQL(f"%s::{kind}[]")

    def askable(self, values: list[Any]) -> list[Any]:
        """Keys that the database can be asked for; a text that is no UUID equals none."""
        if self.type != "uuid":
            return values
        return [value if _UUID.fullmatch(value) else None for value in values]


def read_columns(
    connection: Any, table: str, columns: Sequence[tuple[str, str]], who: str
) -> tuple[str, str, tuple[ReadColumn, ...]]:
    """The schema and name of a table, and its columns for declared ones; rejected if one is not
    there, or does not fit."""
    schema, name = split_name(table, connection)
    found = read_table(connection, schema, name)
    if found is None:
        raise RunError(
            "TG-522",
            f"{who} reads the table {schema}.{name}, which does not exist",
            hint="correct the options table and database, or create it.",
        )
    return schema, name, tuple(_column(found, *item, who) for item in columns)


def _column(table: PostgresTable, name: str, kind: str, who: str) -> ReadColumn:
    from tidegate.physical.typed import arrow_type

    column = table.column(name)
    if column is None:
        known = [item.name for item in table.columns]
        raise RunError(
            "TG-523",
            f"{who} declares the column {name}, which the table {table.shown} does not have",
            hint=did_you_mean(name, known, "columns it has"),
        )
    wanted = held_by(column)
    if not wanted or plain_type(kind).split(" COLLATE")[0] not in wanted:
        fix = f"declare {name} {_spelled(column, wanted[0])}." if wanted else f"leave {name} out."
        raise RunError(
            "TG-523",
            f"{who} declares the column {name} as {kind}, and in the table {table.shown} it is "
            f"{column.type}",
            hint=fix,
        )
    return ReadColumn(
        name, column.name, column.type, created_type(kind), pa.field(name, arrow_type(kind))
    )


def held_by(column: PostgresColumn) -> tuple[str, ...]:
    """The declared types, without their sizes, that hold a column."""
    base = plain_type(column.type)
    if base in _TEXTS or column.enum:
        return ("STRING", "VARCHAR", "CHAR")
    return _HOLD.get(base, ())


def _spelled(column: PostgresColumn, kind: str) -> str:
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


# ---- What tasks do for a source of PostgreSQL. Python workers import it: it must load little.

_BATCH_ROWS = 50_000


@dataclass(frozen=True)
class PostgresSplitReader:
    """Reads shares of a table in the snapshot of an epoch."""

    login: Login
    who: str
    schema_name: str
    table: str
    columns: tuple[ReadColumn, ...]
    growing: str | None
    arrival: bool

    @property
    def schema(self) -> pa.Schema:
        fields = [column.field for column in self.columns]
        if self.arrival:
            fields += ARRIVAL_FIELDS
        return pa.schema(fields)

    def read(self, split: dict[str, Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        first = 0
        for rows in self._rows(split):
            table = to_arrow(rows, self.columns, self.who)
            count = table.num_rows
            arrays = [column.combine_chunks() for column in table.columns]
            if self.arrival:
                arrays.append(pa.repeat(pa.scalar(f"{split['place']:06d}"), count))
                arrays.append(pa.array(np.arange(first, first + count)))
            first += count
            yield pa.record_batch(arrays, schema=self.schema), count

    def _rows(self, split: dict[str, Any]) -> Iterator[list[tuple[Any, ...]]]:
        with translate_errors(self.who):
            connection = cached_connection(self.login, self.who)
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                self._enter(connection, split["snapshot"])
                with connection.cursor(name="tidegate") as cursor:
                    cursor.execute(*self._query(split))
                    while rows := cursor.fetchmany(_BATCH_ROWS):
                        yield rows
            finally:
                connection.rollback()

    def _enter(self, connection: Any, snapshot: str) -> None:
        sql = import_psycopg().sql
        try:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        except (import_psycopg().DataError, import_psycopg().ProgrammingError):
            # Whoever kept it lost its connection: the epoch is cut anew.
            raise SystemAway(f"{self.who}: the snapshot of this epoch is gone") from None

    def _query(self, split: dict[str, Any]) -> tuple[Any, list[Any]]:
        sql = import_psycopg().sql
        shown = sql.SQL(", ").join(column.selected("t") for column in self.columns)
        conditions, given = [sql.SQL("true")], []
        if self.growing is not None:
            own = sql.Identifier("t", self.growing)
            for sign, bound in ((">", split["after"]), ("<=", split["upto"])):
                if bound is not None:
                    conditions.append(sql.SQL(f"{{}} {sign} %s").format(own))
                    given.append(bound)
        first, end = split.get("pages") or (None, None)
        if first is not None:
            conditions.append(sql.SQL("t.ctid >= %s::tid"))
            given.append(f"({first},0)")
        if end is not None:
            conditions.append(sql.SQL("t.ctid < %s::tid"))
            given.append(f"({end},0)")
        query = sql.SQL("SELECT {} FROM {} AS t WHERE {}").format(
            shown,
            sql.Identifier(self.schema_name, self.table),
            sql.SQL(" AND ").join(conditions),
        )
        if self.growing is not None:
            query += sql.SQL(" ORDER BY {}").format(sql.Identifier("t", self.growing))
        return query, given
