"""Talking to PostgreSQL. Python workers import it: it must load little."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.connectors.postgres.column_types import created_type, fits
from tidegate.errors import RunError, SystemAway, TidegateError, did_you_mean

if TYPE_CHECKING:
    from tidegate.connectors.base import StreamRows

# What waiting does not mend: who may log in, and what is there.
_REJECTED = ("28", "3D", "42", "0A", "53300")
# What passes by itself: somebody else was at it.
_PASSING = ("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53")


@dataclass(frozen=True)
class Login:
    """Where a server is and who asks; printing it shows no password."""

    host: str
    port: int
    database: str
    user: str | None
    password: str | None = field(repr=False)
    sslmode: str
    sslrootcert: str | None
    timeout_s: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Login:
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
    def shown(self) -> str:
        return f"{self.host}:{self.port}/{self.database}"

    def connect(self, who: str) -> Any:
        """A connection that commits every statement, unless a transaction is begun."""
        psycopg = import_psycopg()
        given = {
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
        known = {name: value for name, value in given.items() if value is not None}
        with translate_errors(f"{who}: the database {self.shown}"):
            return psycopg.connect(**known, autocommit=True)


def import_psycopg() -> Any:
    """psycopg, which not everybody needs."""
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
def translate_errors(what: str) -> Iterator[None]:
    """Errors of the database as ours: what may pass, and what somebody must mend."""
    psycopg = import_psycopg()
    try:
        yield
    except psycopg.Error as error:
        raise _of(error, what) from None


def _of(error: Any, what: str) -> TidegateError:
    diagnosed = getattr(error, "diag", None)
    reason = (diagnosed.message_primary if diagnosed is not None else None) or _first(error)
    if diagnosed is not None and diagnosed.message_detail:
        reason += f" ({diagnosed.message_detail.rstrip('.')})"
    state = error.sqlstate or ""
    # While it starts or stops it rejects connections without a state that psycopg would know.
    rejected = state.startswith(_REJECTED) or _is_rejection(reason)
    passing = state.startswith(_PASSING) and state != "53300"
    lost = isinstance(error, import_psycopg().OperationalError) and not rejected
    if passing or lost or isinstance(error, import_psycopg().InterfaceError):
        return SystemAway(f"{what}: {reason}", "it is asked again until it answers.")
    if state.startswith("28") or _is_login(reason):
        hint = "correct the options user and password."
        return RunError("TG-512", f"{what}: {reason}", hint=hint)
    return RunError("TG-529", f"{what}: {reason}", hint=_hint(state, reason))


def _first(error: Exception) -> str:
    """What happened, without where: that is said already."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rpartition(" failed: ")[2] if lines else type(error).__name__


def _is_rejection(reason: str) -> bool:
    """Whether a connection that failed will fail again: psycopg tells no state of these."""
    missing = 'database "' in reason and "does not exist" in reason
    return missing or "permission denied" in reason or _is_login(reason)


def _is_login(reason: str) -> bool:
    """Whether somebody is not let in."""
    words = (
        *("authentication failed", "no password supplied", "no pg_hba.conf entry"),
        "is not permitted to log in",
    )
    unknown = 'role "' in reason and "does not exist" in reason
    return unknown or any(word in reason for word in words)


def _hint(state: str, reason: str) -> str:
    if state == "42501" or "permission denied" in reason:
        return "GRANT the user the right to connect, read, write and create tables there."
    if state == "3D000" or 'database "' in reason:
        return "correct the option database."
    if state.startswith("23"):
        return "rows break a rule of the table: leave them out of the stream, or drop the rule."
    if state.startswith("22"):
        return "leave such values out of the stream, or change the type of the column."
    return "mend the table and start again: nothing is lost."


# By login and who asks: several may be at it in one process at the same time.
_kept: dict[tuple[Login, str], Any] = {}


def cached_connection(login: Login, who: str) -> Any:
    """The connection of one who asks in this process, made anew where it was lost; nothing is begun
    on it."""
    key = (login, who)
    known = _kept.pop(key, None)
    if known is not None:
        with suppress(import_psycopg().Error):
            known.rollback()
            known.execute("SELECT 1")
            _kept[key] = known
            return known
        with suppress(Exception):
            known.close()
    _kept[key] = login.connect(who)
    return _kept[key]


# ---- A table of PostgreSQL as it is: its columns, keys, and whether rows of a stream fit into it.

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
    name: str
    type: str
    not_null: bool
    # Whether rows may leave it out though it is NOT NULL.
    filled: bool
    enum: bool


@dataclass(frozen=True)
class PostgresTable:
    """What a table has; `keys` are the columns of its unique indexes."""

    schema: str
    name: str
    columns: tuple[PostgresColumn, ...]
    keys: tuple[frozenset[str], ...]

    @property
    def shown(self) -> str:
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> PostgresColumn | None:
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


def read_table(connection: Any, schema: str, name: str) -> PostgresTable | None:
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
    return PostgresTable(
        schema,
        name,
        tuple(PostgresColumn(*row) for row in columns),
        tuple(frozenset(row[0]) for row in keys),
    )


def create_table(connection: Any, schema: str, name: str, rows: StreamRows) -> None:
    """A table for the rows of a stream; where keys may be NULL, NULLs are equal."""
    sql = import_psycopg().sql
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


def require_fitting(
    table: PostgresTable, rows: StreamRows, sink: str
) -> tuple[PostgresColumn, ...]:
    """The columns of the table for those of the stream; rejected where one does not fit."""
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


def _named(table: PostgresTable, name: str) -> str:
    column = table.column(name)
    assert column is not None, "keys are columns, which are there"
    return column.name


def _require_filled(table: PostgresTable, found: Sequence[PostgresColumn], sink: str) -> None:
    for column in table.columns:
        if column.not_null and not column.filled and column not in found:
            raise _misfit(
                sink,
                f"the column {column.name} of the table {table.shown} is NOT NULL, and the stream "
                "does not have it",
                f"select it in the stream, or give it a default: ALTER TABLE {table.shown} ALTER "
                f"{column.name} SET DEFAULT …;",
            )


def _require_key(table: PostgresTable, key: set[str], sink: str) -> None:
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
    return RunError("TG-523", f"the sink {sink} cannot write: {why}", hint=hint)
