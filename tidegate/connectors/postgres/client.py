"""Connections to PostgreSQL, translation of its errors, and descriptions of its tables.

Python workers import this module, which must not load the parser.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.connectors.postgres.column_types import created_type, fits
from tidegate.errors import RunError, SystemUnavailable, TidegateError, did_you_mean

if TYPE_CHECKING:
    from tidegate.connectors.base import StreamSchema

# Prefixes of SQLSTATEs that are permanent: login, missing objects, too many connections.
_PERMANENT = ("28", "3D", "42", "0A", "53300")
# Prefixes of SQLSTATEs that are transient: conflicts, locks, shutdown, missing resources.
_TRANSIENT = ("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53")


@dataclass(frozen=True)
class ConnectionParameters:
    """The parameters of a connection. The password is not part of the repr."""

    host: str
    port: int
    database: str
    user: str | None
    password: str | None = field(repr=False)
    sslmode: str
    sslrootcert: str | None
    timeout_s: int

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> ConnectionParameters:
        return cls(
            options["host"],
            options["port"],
            options["database"],
            options["user"],
            options["password"],
            options["sslmode"],
            options["sslrootcert"],
            max(options["connect_timeout"] // 1_000_000, 2),
        )

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}/{self.database}"

    def connect(self, label: str) -> Any:
        """Open a connection in autocommit mode. `label` is the beginning of error messages."""
        psycopg = import_psycopg()
        options = {
            "host": self.host,
            "port": self.port,
            "dbname": self.database,
            "user": self.user,
            "password": self.password,
            "sslmode": self.sslmode,
            "sslrootcert": self.sslrootcert,
            "connect_timeout": self.timeout_s,
            "application_name": "tidegate",
            "keepalives_idle": 30,
        }
        parameters = {name: value for name, value in options.items() if value is not None}
        with translate_errors(f"{label}: the database {self.address}"):
            return psycopg.connect(**parameters, autocommit=True)


def import_psycopg() -> Any:
    """Import psycopg, an optional dependency."""
    try:
        import psycopg
    except ImportError:
        raise RunError(
            "TG-521",
            "the connector postgres needs psycopg, which is not installed",
            hint="pip install 'tidegate[postgres]'",
        ) from None
    return psycopg


@contextmanager
def translate_errors(label: str) -> Iterator[None]:
    """Raise psycopg errors as SystemUnavailable if they are transient, else as RunError."""
    psycopg = import_psycopg()
    try:
        yield
    except psycopg.Error as error:
        raise _translated(error, label) from None


def _translated(error: Any, label: str) -> TidegateError:
    diagnostics = getattr(error, "diag", None)
    reason = (diagnostics.message_primary if diagnostics is not None else None) or _summary(error)
    if diagnostics is not None and diagnostics.message_detail:
        reason += f" ({diagnostics.message_detail.rstrip('.')})"
    state = error.sqlstate or ""
    # psycopg does not know the SQLSTATE of a failed connection attempt.
    permanent = state.startswith(_PERMANENT) or _is_permanent(reason)
    transient = state.startswith(_TRANSIENT) and state != "53300"
    lost = isinstance(error, import_psycopg().OperationalError) and not permanent
    if transient or lost or isinstance(error, import_psycopg().InterfaceError):
        return SystemUnavailable(f"{label}: {reason}", "Tidegate will keep retrying.")
    if state.startswith("28") or _is_login_error(reason):
        hint = "correct the options user and password."
        return RunError("TG-512", f"{label}: {reason}", hint=hint)
    return RunError("TG-529", f"{label}: {reason}", hint=_hint(state, reason))


def _summary(error: Exception) -> str:
    """Return the first line of an error, without the address of the server."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rpartition(" failed: ")[2] if lines else type(error).__name__


def _is_permanent(reason: str) -> bool:
    """Return whether a failed connection attempt will fail again."""
    missing = 'database "' in reason and "does not exist" in reason
    return missing or "permission denied" in reason or _is_login_error(reason)


def _is_login_error(reason: str) -> bool:
    """Return whether the server has rejected the login."""
    words = (
        *("authentication failed", "no password supplied", "no pg_hba.conf entry"),
        "is not permitted to log in",
    )
    unknown_role = 'role "' in reason and "does not exist" in reason
    return unknown_role or any(word in reason for word in words)


def _hint(state: str, reason: str) -> str:
    if state == "42501" or "permission denied" in reason:
        return "GRANT the user the right to connect, read, write and create tables there."
    if state == "3D000" or 'database "' in reason:
        return "correct the option database."
    if state.startswith("23"):
        return (
            "rows violate a constraint of the table: remove them from the stream, or drop the "
            "constraint."
        )
    if state.startswith("22"):
        return "remove such values from the stream, or change the type of the column."
    return "fix the table and start again; no data was lost."


# The open connections of this process, by server and user: several users may work at the same time.
_connections: dict[tuple[ConnectionParameters, str], Any] = {}


def cached_connection(parameters: ConnectionParameters, label: str) -> Any:
    """Return the open connection of this process, or a new one if it was lost.

    The connection is not in a transaction. `label` identifies its user, a source or a sink.
    """
    key = (parameters, label)
    connection = _connections.pop(key, None)
    if connection is not None:
        with suppress(import_psycopg().Error):
            connection.rollback()
            connection.execute("SELECT 1")
            _connections[key] = connection
            return connection
        with suppress(Exception):
            connection.close()
    _connections[key] = parameters.connect(label)
    return _connections[key]


# ---- The columns and keys of a table, and whether the rows of a stream fit into it.

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
class PostgresColumn:
    """A column of a table."""

    name: str
    type: str
    not_null: bool
    # Whether it has a default or is generated, so that an INSERT may omit it.
    has_default: bool
    enum: bool


@dataclass(frozen=True)
class PostgresTable:
    """The description of a table. `keys` are the columns of its unique indexes."""

    schema: str
    name: str
    columns: tuple[PostgresColumn, ...]
    keys: tuple[frozenset[str], ...]

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> PostgresColumn | None:
        """Find a column by name; the case is ignored if that is unambiguous."""
        exact = [column for column in self.columns if column.name == name]
        other_case = [column for column in self.columns if column.name.lower() == name.lower()]
        return exact[0] if exact else other_case[0] if len(other_case) == 1 else None


def split_name(name: str, connection: Any) -> tuple[str, str]:
    """Split the option `table` into schema and name. The default is the current schema."""
    schema, dot, table = name.rpartition(".")
    if dot:
        return schema, table
    return str(connection.execute("SELECT current_schema()").fetchone()[0] or "public"), name


def read_table(connection: Any, schema: str, name: str) -> PostgresTable | None:
    """Read the description of a table, or None if it does not exist."""
    oid = connection.execute(
        "SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')",
        (schema, name),
    ).fetchone()
    if oid is None:
        return None
    columns = connection.execute(_COLUMNS, oid).fetchall()
    keys = connection.execute(_KEYS, oid).fetchall()
    return PostgresTable(
        schema,
        name,
        tuple(PostgresColumn(*row) for row in columns),
        tuple(frozenset(row[0]) for row in keys),
    )


def create_table(connection: Any, schema: str, name: str, rows: StreamSchema) -> None:
    """Create a table for the rows of a stream. If keys may be NULL, NULLs are equal."""
    sql = import_psycopg().sql
    parts = [
        sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(created_type(sql_type)))
        for column, sql_type in rows.columns
    ]
    if rows.key:
        # NULLS NOT DISTINCT exists since PostgreSQL 15.
        old = connection.info.server_version < 150_000
        primary = old or not set(rows.key) & set(rows.nullable)
        constraint = "PRIMARY KEY ({})" if primary else "UNIQUE NULLS NOT DISTINCT ({})"
        columns = sql.SQL(", ").join(map(sql.Identifier, rows.key))
        parts.append(sql.SQL(constraint).format(columns))
    connection.execute(
        sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
            sql.Identifier(schema, name), sql.SQL(", ").join(parts)
        )
    )


def require_fitting(
    table: PostgresTable, rows: StreamSchema, sink: str
) -> tuple[PostgresColumn, ...]:
    """Return the column of the table for each column of the stream.

    Raises an error if a column is missing or has an unsuitable type, or if the table has no unique
    index on the key of the stream.
    """
    columns = []
    for name, sql_type in rows.columns:
        column = table.column(name)
        if column is None:
            names = [item.name for item in table.columns]
            raise _table_error(
                sink,
                f"the table {table.full_name} has no column {name}",
                f"ALTER TABLE {table.full_name} ADD {name} {created_type(sql_type)}; or "
                + did_you_mean(name, names, "columns it has"),
            )
        is_enum_text = column.enum and sql_type.startswith(("STRING", "VARCHAR", "CHAR"))
        if not is_enum_text and not fits(sql_type, column.type):
            raise _table_error(
                sink,
                f"the column {column.name} of the table {table.full_name} is {column.type}, which "
                f"cannot store every {sql_type}",
                f"ALTER TABLE {table.full_name} ALTER {column.name} TYPE {created_type(sql_type)}; "
                "or CAST it in the stream.",
            )
        columns.append(column)
    _require_defaults(table, columns, sink)
    if rows.key:
        _require_key(table, {_column_name(table, name) for name in rows.key}, sink)
    return tuple(columns)


def _column_name(table: PostgresTable, name: str) -> str:
    column = table.column(name)
    assert column is not None, "all columns of the stream exist"
    return column.name


def _require_defaults(
    table: PostgresTable, written_columns: Sequence[PostgresColumn], sink: str
) -> None:
    """Reject NOT NULL columns that the stream does not have and that have no default."""
    for column in table.columns:
        if column.not_null and not column.has_default and column not in written_columns:
            raise _table_error(
                sink,
                f"the column {column.name} of the table {table.full_name} is NOT NULL, but the "
                "stream does not have it",
                f"select it in the stream, or give it a default: ALTER TABLE {table.full_name} "
                f"ALTER {column.name} SET DEFAULT …;",
            )


def _require_key(table: PostgresTable, key: set[str], sink: str) -> None:
    if frozenset(key) in table.keys:
        return
    listed = ", ".join(sorted(key))
    raise _table_error(
        sink,
        f"rows of the stream are updated by their key ({listed}), but the table {table.full_name} "
        "has no unique index on exactly these columns",
        f"ALTER TABLE {table.full_name} ADD PRIMARY KEY ({listed});",
    )


def _table_error(sink: str, why: str, hint: str) -> RunError:
    return RunError("TG-523", f"the sink {sink} cannot write: {why}", hint=hint)
