"""A table of PostgreSQL as it is: its columns, keys, and whether rows of a stream fit into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.connectors.postgres_client import driver
from tidegate.connectors.postgres_types import created_type, fits
from tidegate.errors import RunError, did_you_mean

if TYPE_CHECKING:
    from tidegate.connectors.protocols import StreamRows

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
    a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '', t.typtype = 'e'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_KEYS = """
SELECT array_agg(a.attname::text ORDER BY a.attnum)
FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s::oid AND i.indisunique AND i.indimmediate AND i.indisvalid
    AND i.indpred IS NULL AND i.indexprs IS NULL AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid
"""


@dataclass(frozen=True)
class TableColumn:
    name: str
    type: str
    not_null: bool
    # Whether rows may leave it out though it is NOT NULL.
    filled: bool
    enum: bool


@dataclass(frozen=True)
class Table:
    """What a table has; `keys` are the columns of its unique indexes."""

    schema: str
    name: str
    columns: tuple[TableColumn, ...]
    keys: tuple[frozenset[str], ...]

    @property
    def shown(self) -> str:
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> TableColumn | None:
        """A column by its name, or by one that differs in case only."""
        exact = [column for column in self.columns if column.name == name]
        alike = [column for column in self.columns if column.name.lower() == name.lower()]
        return exact[0] if exact else alike[0] if len(alike) == 1 else None


def split_name(name: str, connection: Any) -> tuple[str, str]:
    """The schema and the name of a table."""
    schema, dot, table = name.rpartition(".")
    if dot:
        return schema, table
    return str(connection.execute("SELECT current_schema()").fetchone()[0] or "public"), name


def read_table(connection: Any, schema: str, name: str) -> Table | None:
    """What the server knows of a table; None if there is none."""
    found = connection.execute(
        "SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')",
        (schema, name),
    ).fetchone()
    if found is None:
        return None
    columns = connection.execute(_COLUMNS, found).fetchall()
    keys = connection.execute(_KEYS, found).fetchall()
    return Table(
        schema,
        name,
        tuple(TableColumn(*row) for row in columns),
        tuple(frozenset(row[0]) for row in keys),
    )


def create_table(connection: Any, schema: str, name: str, rows: StreamRows) -> None:
    """A table for the rows of a stream; where keys may be NULL, NULLs are equal."""
    sql = driver().sql
    parts = [
        sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(created_type(kind)))
        for column, kind in rows.columns
    ]
    if rows.key:
        # Before 15 there were no unique indexes in which NULLs are equal.
        old = connection.info.server_version < 150_000
        plain = old or not set(rows.key) & set(rows.nullable)
        words = "PRIMARY KEY ({})" if plain else "UNIQUE NULLS NOT DISTINCT ({})"
        columns = sql.SQL(", ").join(map(sql.Identifier, rows.key))
        parts.append(sql.SQL(words).format(columns))
    connection.execute(
        sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
            sql.Identifier(schema, name), sql.SQL(", ").join(parts)
        )
    )


def require_fitting(table: Table, rows: StreamRows, sink: str) -> tuple[TableColumn, ...]:
    """The columns of the table for those of the stream; refused where one does not fit."""
    found = []
    for name, kind in rows.columns:
        column = table.column(name)
        if column is None:
            known = [item.name for item in table.columns]
            raise _misfit(
                sink,
                f"the table {table.shown} has no column {name}",
                f"ALTER TABLE {table.shown} ADD {name} {created_type(kind)}; or "
                + did_you_mean(name, known, "columns it has"),
            )
        text = column.enum and kind.startswith(("STRING", "VARCHAR", "CHAR"))
        if not text and not fits(kind, column.type):
            raise _misfit(
                sink,
                f"the column {column.name} of the table {table.shown} is {column.type}, which does "
                f"not hold every {kind}",
                f"ALTER TABLE {table.shown} ALTER {column.name} TYPE {created_type(kind)}; or CAST "
                "it in the stream.",
            )
        found.append(column)
    _require_filled(table, found, sink)
    if rows.key:
        _require_key(table, {_named(table, name) for name in rows.key}, sink)
    return tuple(found)


def _named(table: Table, name: str) -> str:
    column = table.column(name)
    assert column is not None, "keys are columns, which are there"
    return column.name


def _require_filled(table: Table, found: Sequence[TableColumn], sink: str) -> None:
    for column in table.columns:
        if column.not_null and not column.filled and column not in found:
            raise _misfit(
                sink,
                f"the column {column.name} of the table {table.shown} is NOT NULL, and the stream "
                "does not have it",
                f"select it in the stream, or give it a default: ALTER TABLE {table.shown} ALTER "
                f"{column.name} SET DEFAULT …;",
            )


def _require_key(table: Table, key: set[str], sink: str) -> None:
    if frozenset(key) in table.keys:
        return
    listed = ", ".join(sorted(key))
    raise _misfit(
        sink,
        f"rows of the stream are replaced by their key ({listed}), and the table {table.shown} has "
        "no unique index on just these columns",
        f"ALTER TABLE {table.shown} ADD PRIMARY KEY ({listed});",
    )


def _misfit(sink: str, why: str, hint: str) -> RunError:
    return RunError("TG-504", f"the sink {sink} cannot write: {why}", hint=hint)
