"""Tables of PostgreSQL as a sink: tasks copy rows into tables aside, one transaction moves them.

The transaction also writes the marker: a row that says which epoch the table has. It is read FOR
UPDATE first, so that an epoch is moved once, however many processes try. A pipeline of an older
generation is kept out by the generation of the newest one that opened the sink.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.columns import OP
from tidegate.connectors.ahead import sink_is_ahead
from tidegate.connectors.postgres_client import Login, driver, told
from tidegate.connectors.postgres_moves import move
from tidegate.connectors.postgres_table import (
    Table,
    create_table,
    read_table,
    require_fitting,
    split_name,
)
from tidegate.connectors.postgres_tasks import Goal, PostgresStagerFactory
from tidegate.connectors.postgres_types import is_nested
from tidegate.connectors.protocols import Decided, EpochId, SinkContext, SqlColumns, Token
from tidegate.errors import RunError, TidegateError

if TYPE_CHECKING:
    import pyarrow as pa

_MARKERS = "tidegate_commits"
_CREATE_MARKERS = """
CREATE TABLE IF NOT EXISTS {} (
    target text NOT NULL, sink text NOT NULL, stream text NOT NULL,
    generation bigint NOT NULL, epoch bigint NOT NULL, newest_generation bigint NOT NULL,
    PRIMARY KEY (target, sink, stream)
)
"""


class PostgresSink:
    """A table that epochs are added to, or whose rows they replace."""

    def __init__(self, context: SinkContext) -> None:
        assert context.rows is not None, "the sink is told what its stream looks like"
        self.rows = context.rows
        self.options = context.sink.options
        self.name = context.sink.name
        self.stream = context.pipeline
        self.login = Login.of(self.options)
        # Names end after 63 bytes, and the name of a sink may be long.
        short = hashlib.sha256(self.name.lower().encode()).hexdigest()[:8]
        self.prefix = f"_tidegate_{self.stream[:8]}_{short}_"
        self._goal: Goal | None = None
        self._connection: Any = None

    @property
    def goal(self) -> Goal:
        assert self._goal is not None, "the sink is open"
        return self._goal

    # Opening

    def recover(self, decided: Decided) -> None:
        with self._told():
            connection = self._connected()
            self._goal = self._found(connection)
            self._open_marker(connection, decided)
        if decided.made_in is not None:
            self.commit(decided.made_in, decided.tokens)
        with self._told():
            self._keep_older_out(self._connected(), decided)
            self._sweep(self._connected(), decided)

    def _told(self) -> Any:
        return told(f"the sink {self.name}")

    def _connected(self) -> Any:
        if self._connection is None or self._connection.broken or self._connection.closed:
            self._connection = self.login.connect(f"the sink {self.name}")
        return self._connection

    def _found(self, connection: Any) -> Goal:
        """The table, which must be there and take the rows."""
        schema, name = split_name(self.options["table"], connection)
        table = read_table(connection, schema, name)
        if table is None and self.options["create_table"]:
            create_table(connection, schema, name, self.rows)
            table = read_table(connection, schema, name)
        if table is None:
            raise RunError(
                "TG-504",
                f"the sink {self.name} writes the table {schema}.{name}, which does not exist in "
                f"{self.login.shown}",
                hint="create it, or have it created: create_table = true.",
            )
        return self._goal_of(table)

    def _goal_of(self, table: Table) -> Goal:
        found = require_fitting(table, self.rows, self.name)
        pairs = zip(self.rows.columns, found, strict=True)
        return Goal(
            table.schema,
            table.name,
            tuple((ours, column.name, column.type) for (ours, _), column in pairs),
            tuple(column.name for column in found if column.not_null),
            self.rows.has_op,
        )

    # The marker

    @property
    def _marker(self) -> Any:
        return driver().sql.Identifier(self.goal.schema, _MARKERS)

    @property
    def _target(self) -> str:
        return f"{self.goal.schema}.{self.goal.table}"

    @property
    def _owner(self) -> tuple[str, str, str]:
        return self._target, self.name.lower(), self.stream

    def _open_marker(self, connection: Any, decided: Decided) -> None:
        sql = driver().sql
        if read_table(connection, self.goal.schema, _MARKERS) is None:
            connection.execute(sql.SQL(_CREATE_MARKERS).format(self._marker))
        with connection.transaction():
            last = self._read_marker(connection)
            if last is None:
                self._refuse_lost(decided)
                self._refuse_doubles(connection, decided)
            elif last[0].epoch >= 0 and not decided.knows(last[0]):
                raise self._strange(last[0], decided.last)
            insert = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, 0, -1, 0) ON CONFLICT DO NOTHING")
            connection.execute(insert.format(self._marker), self._owner)

    def _keep_older_out(self, connection: Any, decided: Decided) -> None:
        """From now on nobody commits for a generation before this one."""
        update = driver().sql.SQL(
            "UPDATE {} SET newest_generation = %s WHERE target = %s AND sink = %s AND stream = %s "
            "AND newest_generation < %s"
        )
        newest = decided.last.generation if decided.last is not None else 0
        connection.execute(update.format(self._marker), (newest, *self._owner, newest))

    def _read_marker(self, connection: Any) -> tuple[EpochId, int] | None:
        """The last epoch that was moved, and the newest generation; nobody else can move now."""
        query = driver().sql.SQL(
            "SELECT generation, epoch, newest_generation FROM {} WHERE target = %s AND sink = %s "
            "AND stream = %s FOR UPDATE"
        )
        row = connection.execute(query.format(self._marker), self._owner).fetchone()
        return None if row is None else (EpochId(row[0], row[1]), row[2])

    def _refuse_lost(self, decided: Decided) -> None:
        if decided.staged is not None and decided.tokens:
            raise self._no_marker()

    def _no_marker(self) -> TidegateError:
        return RunError(
            "TG-504",
            f"the marker of the sink {self.name} is gone from {self.goal.schema}.{_MARKERS}: "
            "nobody knows which rows the table has",
            hint="put the row back that belongs to it, or write to another table.",
        )

    def _strange(self, has: EpochId, last: EpochId | None) -> TidegateError:
        return sink_is_ahead(
            f"the table {self._target} has epoch {has.epoch} of generation {has.generation} of the "
            f"sink {self.name}, which is ahead of the pipeline, or of another generation",
            "put back the data directory that belongs to this table, or write to another table",
            last,
        )

    def _refuse_doubles(self, connection: Any, decided: Decided) -> None:
        """A pipeline that starts anew would write rows again that an earlier one has written."""
        if self.options["existing"] == "append":
            return
        query = driver().sql.SQL(
            "SELECT 1 FROM {} WHERE target = %s AND sink = %s AND epoch >= 0 AND generation >= %s"
        )
        given = (self._target, self.name.lower(), decided.kept_before)
        if connection.execute(query.format(self._marker), given).fetchone() is not None:
            raise RunError(
                "TG-504",
                f"the table {self._target} holds rows that an earlier pipeline wrote for the sink "
                f"{self.name}; this one starts anew and would write them again",
                hint="empty the table and delete its rows from "
                f"{self.goal.schema}.{_MARKERS}, choose another table, or say existing = "
                "'append'.",
            )

    def _sweep(self, connection: Any, decided: Decided) -> None:
        """Drop what was staged for decided epochs; a process that should be dead could still decide
        the next one, so what is staged for that stays."""
        if decided.last is None:
            return
        sql = driver().sql
        last = f"{self.prefix}{decided.last.stamp.replace('-', '_')}"
        found = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)",
            (self.goal.schema, self.prefix),
        ).fetchall()
        for (name,) in found:
            if name[: len(last)] <= last:
                drop = sql.SQL("DROP TABLE IF EXISTS {}")
                connection.execute(drop.format(sql.Identifier(self.goal.schema, name)))

    # Epochs

    def columns(self, given: SqlColumns) -> SqlColumns | None:
        """Nested values go as JSON."""
        nested = {name for name, kind in self.rows.columns if is_nested(kind)}
        if not nested:
            return None
        return [(f"to_json({sql})" if name in nested else sql, name) for sql, name in given]

    def stager(self, schema: pa.Schema) -> PostgresStagerFactory:
        assert (OP in schema.names) == self.rows.has_op, "rows look as they were said to"
        return PostgresStagerFactory(self.login, self.goal, self.prefix, self.name)

    def commit(self, epoch: EpochId, tokens: Sequence[Token]) -> None:
        if not tokens:
            return
        tables = [token["table"] for token in tokens]
        with self._told():
            connection = self._connected()
            with connection.transaction():
                marker = self._read_marker(connection)
                if marker is None:
                    raise self._no_marker()
                last, newest = marker
                if last.epoch < epoch.epoch:
                    if newest > epoch.generation:
                        raise self._fenced(epoch, newest)
                    move(connection, self.goal, self.rows, tables)
                    self._mark(connection, epoch)
                self._drop(connection, tables)

    def _mark(self, connection: Any, epoch: EpochId) -> None:
        update = driver().sql.SQL(
            "UPDATE {} SET generation = %s, epoch = %s WHERE target = %s AND sink = %s AND "
            "stream = %s"
        )
        connection.execute(
            update.format(self._marker), (epoch.generation, epoch.epoch, *self._owner)
        )

    def _drop(self, connection: Any, tables: Sequence[str]) -> None:
        sql = driver().sql
        names = [sql.Identifier(self.goal.schema, table) for table in tables]
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.SQL(", ").join(names)))

    def _fenced(self, epoch: EpochId, newest: int) -> TidegateError:
        return RunError(
            "TG-504",
            f"the sink {self.name} was opened by generation {newest} of its pipeline, and epoch "
            f"{epoch.epoch} is of generation {epoch.generation}",
            hint="stop this process: the pipeline went back to a checkpoint in another one.",
        )


def open_sink(context: SinkContext) -> PostgresSink:
    return PostgresSink(context)
