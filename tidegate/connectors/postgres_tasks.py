"""What tasks do for a sink of PostgreSQL. Python workers import it: it must load little.

The rows of a task are copied into a table of their own. It is an ordinary one: what a manifest
names must survive a crash of the server, and UNLOGGED tables are empty after one.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.columns import OP
from tidegate.connectors.postgres_binary import HEADER, TRAILER, binary_rows
from tidegate.connectors.postgres_client import Login, driver, kept_connection, told
from tidegate.connectors.postgres_types import BINARY, plain_type


@dataclass(frozen=True)
class Goal:
    """The table that rows are meant for: its columns by name, and whether they may be NULL."""

    schema: str
    table: str
    # Columns of the stream, those of the table, and the types of these.
    columns: tuple[tuple[str, str, str], ...]
    not_null: tuple[str, ...]
    has_op: bool


@dataclass(frozen=True)
class PostgresStagerFactory:
    """Opens stagers in tasks; `prefix` begins the names of what they create."""

    login: Login
    goal: Goal
    prefix: str
    sink: str

    def open(self, stamp: str, task: int) -> PostgresStager:
        return PostgresStager(self, stamp)


@dataclass
class PostgresStager:
    """The rows of one task: no rows, no table."""

    how: PostgresStagerFactory
    stamp: str
    rows: int = 0
    table: str | None = None
    _open: ExitStack = field(default_factory=ExitStack)
    _copy: Any = None
    # The types of columns as COPY takes them in bytes; None if it gets texts.
    _kinds: list[str] | None = None

    def add(self, rows: pa.Table) -> None:
        with told(f"the sink {self.how.sink}"):
            if self._copy is None:
                self._begin()
            names = [name for name, _, _ in self.how.goal.columns]
            names += [OP] if self.how.goal.has_op else []
            columns = [rows.column(name) for name in names]
            if self._kinds is not None:
                self._copy.write(binary_rows(columns, self._kinds, f"the sink {self.how.sink}"))
            else:
                for row in zip(*(column.to_pylist() for column in columns), strict=True):
                    self._copy.write_row(row)
        self.rows += rows.num_rows

    def _begin(self) -> None:
        goal = self.how.goal
        stamp = self.stamp.replace("-", "_")
        self.table = f"{self.how.prefix}{stamp}_{uuid.uuid4().hex[:8]}"
        connection = kept_connection(self.how.login, f"the sink {self.how.sink}")
        self._open.enter_context(connection.transaction())
        cursor = self._open.enter_context(connection.cursor())
        sql = driver().sql
        columns = [sql.Identifier(theirs) for _, theirs, _ in goal.columns]
        self._create(cursor, columns)
        kinds = [BINARY.get(plain_type(kind)) for _, _, kind in goal.columns]
        if goal.has_op:
            columns.append(sql.Identifier(OP))
            kinds.append("text")
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(goal.schema, self.table), sql.SQL(", ").join(columns)
        )
        known = [kind for kind in kinds if kind is not None]
        if len(known) == len(kinds):
            statement += sql.SQL(" (FORMAT BINARY)")
            self._kinds = known
        self._copy = self._open.enter_context(cursor.copy(statement))
        if self._kinds is not None:
            self._copy.write(HEADER)

    def _create(self, cursor: Any, columns: list[Any]) -> None:
        """A table like the one that rows are meant for: whatever that lost or changed since it was
        looked at shows here, before the epoch is decided."""
        sql = driver().sql
        goal = self.how.goal
        assert self.table is not None, "it has a name"
        wanted = [*columns]
        wanted += [sql.SQL("NULL::text AS {}").format(sql.Identifier(OP))] if goal.has_op else []
        own = sql.Identifier(goal.schema, self.table)
        cursor.execute(
            sql.SQL("CREATE TABLE {} AS SELECT {} FROM {} WITH NO DATA").format(
                own, sql.SQL(", ").join(wanted), sql.Identifier(goal.schema, goal.table)
            )
        )
        for name in goal.not_null:
            change = sql.SQL("ALTER TABLE {} ALTER {} SET NOT NULL")
            cursor.execute(change.format(own, sql.Identifier(name)))

    def finish(self) -> list[dict[str, Any]]:
        if self.table is None:
            return []
        with told(f"the sink {self.how.sink}"):
            if self._kinds is not None:
                self._copy.write(TRAILER)
            self._open.close()
        return [{"table": self.table, "rows": self.rows}]
