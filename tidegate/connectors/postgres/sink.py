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
from tidegate.connectors.base import (
    Committable,
    CommittedState,
    EpochId,
    SinkContext,
    SqlColumns,
    sink_ahead_error,
)
from tidegate.connectors.postgres.client import (
    Login,
    PostgresTable,
    create_table,
    import_psycopg,
    read_table,
    require_fitting,
    split_name,
    translate_errors,
)
from tidegate.connectors.postgres.column_types import is_nested, plain_type
from tidegate.connectors.postgres.writer import PostgresWriterFactory, TargetTable
from tidegate.errors import RunError, TidegateError
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.connectors.base import StreamRows


# ---- The statements that move staged rows into their table: append, or replace and delete by key.

_NET = "_tidegate_net"


def move(connection: Any, goal: TargetTable, rows: StreamRows, tables: Sequence[str]) -> None:
    """Make the rows of an epoch visible, in the transaction of the caller."""
    connection.execute(_append(goal, tables) if not rows.key else _by_key(goal, rows, tables))


def _append(goal: TargetTable, tables: Sequence[str]) -> Any:
    sql = import_psycopg().sql
    columns = _columns(goal)
    return sql.SQL("INSERT INTO {} ({}) {}").format(
        sql.Identifier(goal.schema, goal.table), columns, _staged(goal, tables, columns)
    )


def _columns(goal: TargetTable) -> Any:
    sql = import_psycopg().sql
    return sql.SQL(", ").join(sql.Identifier(theirs) for _, theirs, _ in goal.columns)


def _staged(goal: TargetTable, tables: Sequence[str], columns: Any) -> Any:
    """The rows of all tasks."""
    sql = import_psycopg().sql
    each = [
        sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(goal.schema, table))
        for table in tables
    ]
    return sql.SQL(" UNION ALL ").join(each)


def _by_key(goal: TargetTable, rows: StreamRows, tables: Sequence[str]) -> Any:
    """Keys that have a new row get it, those that only lost theirs are deleted.

    Both happen in one statement, for different keys. Of a changelog the net counts: a row that was
    given and retracted in the same epoch is none, whatever the order in which tasks staged it.
    """
    sql = import_psycopg().sql
    theirs = {ours.lower(): name for ours, name, _ in goal.columns}
    keys = [theirs[name.lower()] for name in rows.key or ()]
    others = [name for _, name, _ in goal.columns if name not in keys]
    own = sql.Identifier(goal.schema, goal.table)
    listed = sql.SQL(", ").join(map(sql.Identifier, keys))
    changes = sql.SQL(", ").join(
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others
    )
    action = sql.SQL("UPDATE SET {}").format(changes) if others else sql.SQL("NOTHING")
    statement = sql.SQL(
        "WITH {net} AS ({rows}), "
        "gone AS (DELETE FROM {own} AS o USING (SELECT DISTINCT {keys} FROM {net} AS m "
        "WHERE _tg_sign < 0 AND NOT EXISTS "
        "(SELECT FROM {net} AS p WHERE p._tg_sign > 0 AND {same_net})) AS g WHERE {same_own}) "
        "INSERT INTO {own} ({columns}) SELECT {columns} FROM {net} WHERE _tg_sign > 0 "
        "ON CONFLICT ({keys}) DO {action}"
    )
    return statement.format(
        net=sql.Identifier(_NET),
        rows=_net(goal, rows, tables),
        own=own,
        keys=listed,
        columns=_columns(goal),
        same_net=_same(goal, keys, "m", "p"),
        same_own=_same(goal, keys, "o", "g"),
        action=action,
    )


def _same(goal: TargetTable, keys: Sequence[str], one: str, other: str) -> Any:
    """Whether two rows have the same key; an index helps where keys are NOT NULL."""
    sql = import_psycopg().sql
    parts = []
    for key in keys:
        left, right = sql.Identifier(one, key), sql.Identifier(other, key)
        if key in goal.not_null:
            parts.append(sql.SQL("{} = {}").format(left, right))
        else:
            text = "({0} = {1} OR ({0} IS NULL AND {1} IS NULL))"
            parts.append(sql.SQL(text).format(left, right))
    return sql.SQL(" AND ").join(parts)


def _net(goal: TargetTable, rows: StreamRows, tables: Sequence[str]) -> Any:
    sql = import_psycopg().sql
    columns = _columns(goal)
    if not goal.has_op:
        staged = _staged(goal, tables, columns)
        return sql.SQL("SELECT *, 1 AS _tg_sign FROM ({}) AS s").format(staged)
    op = sql.Identifier(OP)
    staged = _staged(goal, tables, sql.SQL("{}, {}").format(columns, op))
    sign = sql.SQL("CASE WHEN {} IN ('+I', '+U') THEN 1 ELSE -1 END").format(op)
    if rows.kind is not ChangelogKind.CHANGELOG:
        return sql.SQL("SELECT {}, {} AS _tg_sign FROM ({}) AS s").format(columns, sign, staged)
    # There is no equality of the type json.
    groups = sql.SQL(", ").join(
        sql.SQL("{}::text" if plain_type(kind) == "json" else "{}").format(sql.Identifier(name))
        for _, name, kind in goal.columns
    )
    shown = sql.SQL(", ").join(
        sql.SQL("({0}::text)::json AS {0}" if plain_type(kind) == "json" else "{0}").format(
            sql.Identifier(name)
        )
        for _, name, kind in goal.columns
    )
    return sql.SQL(
        "SELECT {}, sum({}) AS _tg_sign FROM ({}) AS s GROUP BY {} HAVING sum({}) <> 0"
    ).format(shown, sign, staged, groups, sign)


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
        self._goal: TargetTable | None = None
        self._connection: Any = None

    @property
    def goal(self) -> TargetTable:
        assert self._goal is not None, "the sink is open"
        return self._goal

    # Opening

    def recover(self, committed: CommittedState) -> None:
        with self._told():
            connection = self._connected()
            self._goal = self._found(connection)
            self._open_marker(connection, committed)
        if committed.committables_epoch is not None:
            self.publish(committed.committables_epoch, committed.committables)
        with self._told():
            self._keep_older_out(self._connected(), committed)
            self._sweep(self._connected(), committed)

    def _told(self) -> Any:
        return translate_errors(f"the sink {self.name}")

    def _connected(self) -> Any:
        if self._connection is None or self._connection.broken or self._connection.closed:
            self._connection = self.login.connect(f"the sink {self.name}")
        return self._connection

    def _found(self, connection: Any) -> TargetTable:
        """The table, which must be there and take the rows."""
        schema, name = split_name(self.options["table"], connection)
        table = read_table(connection, schema, name)
        if table is None and self.options["create_table"]:
            create_table(connection, schema, name, self.rows)
            table = read_table(connection, schema, name)
        if table is None:
            raise RunError(
                "TG-522",
                f"the sink {self.name} writes the table {schema}.{name}, which does not exist in "
                f"{self.login.shown}",
                hint="create it, or have it created: create_table = true.",
            )
        return self._goal_of(table)

    def _goal_of(self, table: PostgresTable) -> TargetTable:
        found = require_fitting(table, self.rows, self.name)
        pairs = zip(self.rows.columns, found, strict=True)
        return TargetTable(
            table.schema,
            table.name,
            tuple((ours, column.name, column.type) for (ours, _), column in pairs),
            tuple(column.name for column in found if column.not_null),
            self.rows.has_op,
        )

    # The marker

    @property
    def _marker(self) -> Any:
        return import_psycopg().sql.Identifier(self.goal.schema, _MARKERS)

    @property
    def _target(self) -> str:
        return f"{self.goal.schema}.{self.goal.table}"

    @property
    def _owner(self) -> tuple[str, str, str]:
        return self._target, self.name.lower(), self.stream

    def _open_marker(self, connection: Any, committed: CommittedState) -> None:
        sql = import_psycopg().sql
        if read_table(connection, self.goal.schema, _MARKERS) is None:
            connection.execute(sql.SQL(_CREATE_MARKERS).format(self._marker))
        with connection.transaction():
            last = self._read_marker(connection)
            if last is None:
                self._reject_lost(committed)
                self._reject_doubles(connection, committed)
            elif last[0].epoch >= 0 and not committed.contains(last[0]):
                raise self._strange(last[0], committed.last)
            insert = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, 0, -1, 0) ON CONFLICT DO NOTHING")
            connection.execute(insert.format(self._marker), self._owner)

    def _keep_older_out(self, connection: Any, committed: CommittedState) -> None:
        """From now on nobody commits for a generation before this one."""
        update = import_psycopg().sql.SQL(
            "UPDATE {} SET newest_generation = %s WHERE target = %s AND sink = %s AND stream = %s "
            "AND newest_generation < %s"
        )
        newest = committed.last.generation if committed.last is not None else 0
        connection.execute(update.format(self._marker), (newest, *self._owner, newest))

    def _read_marker(self, connection: Any) -> tuple[EpochId, int] | None:
        """The last epoch that was moved, and the newest generation; nobody else can move now."""
        query = import_psycopg().sql.SQL(
            "SELECT generation, epoch, newest_generation FROM {} WHERE target = %s AND sink = %s "
            "AND stream = %s FOR UPDATE"
        )
        row = connection.execute(query.format(self._marker), self._owner).fetchone()
        return None if row is None else (EpochId(row[0], row[1]), row[2])

    def _reject_lost(self, committed: CommittedState) -> None:
        if committed.staged is not None and committed.committables:
            raise self._no_marker()

    def _no_marker(self) -> TidegateError:
        return RunError(
            "TG-526",
            f"the marker of the sink {self.name} is gone from {self.goal.schema}.{_MARKERS}: "
            "nobody knows which rows the table has",
            hint="put the row back that belongs to it, or write to another table.",
        )

    def _strange(self, has: EpochId, last: EpochId | None) -> TidegateError:
        return sink_ahead_error(
            f"the table {self._target} has epoch {has.epoch} of generation {has.generation} of the "
            f"sink {self.name}, which is ahead of the pipeline, or of another generation",
            "put back the data directory that belongs to this table, or write to another table",
            last,
        )

    def _reject_doubles(self, connection: Any, committed: CommittedState) -> None:
        """A pipeline that starts anew would write rows again that an earlier one has written."""
        if self.options["existing"] == "append":
            return
        query = import_psycopg().sql.SQL(
            "SELECT 1 FROM {} WHERE target = %s AND sink = %s AND epoch >= 0 AND generation >= %s"
        )
        given = (self._target, self.name.lower(), committed.keep_before_generation)
        if connection.execute(query.format(self._marker), given).fetchone() is not None:
            raise RunError(
                "TG-525",
                f"the table {self._target} holds rows that an earlier pipeline wrote for the sink "
                f"{self.name}; this one starts anew and would write them again",
                hint="empty the table and delete its rows from "
                f"{self.goal.schema}.{_MARKERS}, choose another table, or say existing = "
                "'append'.",
            )

    def _sweep(self, connection: Any, committed: CommittedState) -> None:
        """Drop what was staged for decided epochs; a process that should be dead could still decide
        the next one, so what is staged for that stays."""
        if committed.last is None:
            return
        sql = import_psycopg().sql
        last = f"{self.prefix}{committed.last.stamp.replace('-', '_')}"
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

    def writer_factory(self, schema: pa.Schema) -> PostgresWriterFactory:
        assert (OP in schema.names) == self.rows.has_op, "rows look as they were said to"
        return PostgresWriterFactory(self.login, self.goal, self.prefix, self.name)

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        if not committables:
            return
        tables = [committable["table"] for committable in committables]
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
        update = import_psycopg().sql.SQL(
            "UPDATE {} SET generation = %s, epoch = %s WHERE target = %s AND sink = %s AND "
            "stream = %s"
        )
        connection.execute(
            update.format(self._marker), (epoch.generation, epoch.epoch, *self._owner)
        )

    def _drop(self, connection: Any, tables: Sequence[str]) -> None:
        sql = import_psycopg().sql
        names = [sql.Identifier(self.goal.schema, table) for table in tables]
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.SQL(", ").join(names)))

    def _fenced(self, epoch: EpochId, newest: int) -> TidegateError:
        return RunError(
            "TG-527",
            f"the sink {self.name} was opened by generation {newest} of its pipeline, and epoch "
            f"{epoch.epoch} is of generation {epoch.generation}",
            hint="stop this process: the pipeline went back to a checkpoint in another one.",
        )


def open_sink(context: SinkContext) -> PostgresSink:
    return PostgresSink(context)
