"""The postgres sink: tasks copy rows into staging tables, and one transaction publishes them.

The transaction also writes the commit marker, a row with the last epoch of the sink. It first reads
the marker FOR UPDATE, so that an epoch is published once, even if several processes try. The marker
also contains the newest generation that opened the sink, which fences older generations.
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
    ConnectionParameters,
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

    from tidegate.connectors.base import StreamSchema


# ---- The statements that move staged rows into the target: append, or update and delete by key.

_NET = "_tidegate_net"


def move_rows(
    connection: Any, target: TargetTable, rows: StreamSchema, tables: Sequence[str]
) -> None:
    """Move the rows of the staging tables into the target, in the transaction of the caller."""
    connection.execute(_append(target, tables) if not rows.key else _merge(target, rows, tables))


def _append(target: TargetTable, tables: Sequence[str]) -> Any:
    sql = import_psycopg().sql
    columns = _columns(target)
    return sql.SQL("INSERT INTO {} ({}) {}").format(
        sql.Identifier(target.schema, target.table), columns, _staged(target, tables, columns)
    )


def _columns(target: TargetTable) -> Any:
    sql = import_psycopg().sql
    return sql.SQL(", ").join(sql.Identifier(target_name) for _, target_name, _ in target.columns)


def _staged(target: TargetTable, tables: Sequence[str], columns: Any) -> Any:
    """Return the query of the rows of all staging tables."""
    sql = import_psycopg().sql
    selects = [
        sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(target.schema, table))
        for table in tables
    ]
    return sql.SQL(" UNION ALL ").join(selects)


def _merge(target: TargetTable, rows: StreamSchema, tables: Sequence[str]) -> Any:
    """Return the statement that upserts keys with a new row and deletes keys that lost theirs.

    A changelog is reduced to its net changes first: a row that is added and retracted in the same
    epoch has no effect, in whichever order the tasks staged the two changes.
    """
    sql = import_psycopg().sql
    target_names = {stream_name.lower(): name for stream_name, name, _ in target.columns}
    keys = [target_names[name.lower()] for name in rows.key or ()]
    others = [name for _, name, _ in target.columns if name not in keys]
    table = sql.Identifier(target.schema, target.table)
    key_list = sql.SQL(", ").join(map(sql.Identifier, keys))
    changes = sql.SQL(", ").join(
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others
    )
    action = sql.SQL("UPDATE SET {}").format(changes) if others else sql.SQL("NOTHING")
    statement = sql.SQL(
        "WITH {net} AS ({rows}), "
        "deleted AS (DELETE FROM {table} AS o USING (SELECT DISTINCT {keys} FROM {net} AS m "
        "WHERE _tg_sign < 0 AND NOT EXISTS "
        "(SELECT FROM {net} AS p WHERE p._tg_sign > 0 AND {same_net})) AS g WHERE {same_own}) "
        "INSERT INTO {table} ({columns}) SELECT {columns} FROM {net} WHERE _tg_sign > 0 "
        "ON CONFLICT ({keys}) DO {action}"
    )
    return statement.format(
        net=sql.Identifier(_NET),
        rows=_net_changes(target, rows, tables),
        table=table,
        keys=key_list,
        columns=_columns(target),
        same_net=_same_key(target, keys, "m", "p"),
        same_own=_same_key(target, keys, "o", "g"),
        action=action,
    )


def _same_key(target: TargetTable, keys: Sequence[str], left_alias: str, right_alias: str) -> Any:
    """Return the condition that two rows have the same key.

    Only the plain comparison of NOT NULL columns can use an index.
    """
    sql = import_psycopg().sql
    parts = []
    for key in keys:
        left, right = sql.Identifier(left_alias, key), sql.Identifier(right_alias, key)
        if key in target.not_null:
            parts.append(sql.SQL("{} = {}").format(left, right))
        else:
            text = "({0} = {1} OR ({0} IS NULL AND {1} IS NULL))"
            parts.append(sql.SQL(text).format(left, right))
    return sql.SQL(" AND ").join(parts)


def _net_changes(target: TargetTable, rows: StreamSchema, tables: Sequence[str]) -> Any:
    sql = import_psycopg().sql
    columns = _columns(target)
    if not target.has_op:
        staged = _staged(target, tables, columns)
        return sql.SQL("SELECT *, 1 AS _tg_sign FROM ({}) AS s").format(staged)
    op = sql.Identifier(OP)
    staged = _staged(target, tables, sql.SQL("{}, {}").format(columns, op))
    sign = sql.SQL("CASE WHEN {} IN ('+I', '+U') THEN 1 ELSE -1 END").format(op)
    if rows.kind is not ChangelogKind.CHANGELOG:
        return sql.SQL("SELECT {}, {} AS _tg_sign FROM ({}) AS s").format(columns, sign, staged)
    # The type json has no equality operator.
    groups = sql.SQL(", ").join(
        sql.SQL("{}::text" if plain_type(sql_type) == "json" else "{}").format(sql.Identifier(name))
        for _, name, sql_type in target.columns
    )
    selected = sql.SQL(", ").join(
        sql.SQL("({0}::text)::json AS {0}" if plain_type(sql_type) == "json" else "{0}").format(
            sql.Identifier(name)
        )
        for _, name, sql_type in target.columns
    )
    return sql.SQL(
        "SELECT {}, sum({}) AS _tg_sign FROM ({}) AS s GROUP BY {} HAVING sum({}) <> 0"
    ).format(selected, sign, staged, groups, sign)


_MARKERS = "tidegate_commits"
_CREATE_MARKERS = """
CREATE TABLE IF NOT EXISTS {} (
    target text NOT NULL, sink text NOT NULL, stream text NOT NULL,
    generation bigint NOT NULL, epoch bigint NOT NULL, newest_generation bigint NOT NULL,
    PRIMARY KEY (target, sink, stream)
)
"""


class PostgresSink:
    """Appends the rows of a stream to a table, or updates the table by key."""

    def __init__(self, context: SinkContext) -> None:
        assert context.schema is not None, "the context describes the rows of the stream"
        self.stream_schema = context.schema
        self.options = context.sink.options
        self.name = context.sink.name
        self.stream = context.stream_id
        self.parameters = ConnectionParameters.from_options(self.options)
        # PostgreSQL truncates names after 63 bytes, and the name of a sink may be longer.
        short = hashlib.sha256(self.name.lower().encode()).hexdigest()[:8]
        self.prefix = f"_tidegate_{self.stream[:8]}_{short}_"
        self._target: TargetTable | None = None
        self._connection: Any = None

    @property
    def target(self) -> TargetTable:
        assert self._target is not None, "the sink is open"
        return self._target

    def recover(self, committed: CommittedState) -> None:
        with self._translated_errors():
            connection = self._open_connection()
            self._target = self._open_table(connection)
            self._open_marker(connection, committed)
        if committed.committables_epoch is not None:
            self.publish(committed.committables_epoch, committed.committables)
        with self._translated_errors():
            self._fence_older_generations(self._open_connection(), committed)
            self._sweep(self._open_connection(), committed)

    def _translated_errors(self) -> Any:
        return translate_errors(f"the sink {self.name}")

    def _open_connection(self) -> Any:
        if self._connection is None or self._connection.broken or self._connection.closed:
            self._connection = self.parameters.connect(f"the sink {self.name}")
        return self._connection

    def _open_table(self, connection: Any) -> TargetTable:
        """Find or create the table, and check that the rows of the stream fit into it."""
        schema, name = split_name(self.options["table"], connection)
        table = read_table(connection, schema, name)
        if table is None and self.options["create_table"]:
            create_table(connection, schema, name, self.stream_schema)
            table = read_table(connection, schema, name)
        if table is None:
            raise RunError(
                "TG-522",
                f"the sink {self.name} writes the table {schema}.{name}, which does not exist in "
                f"{self.parameters.address}",
                hint="create it, or set create_table = true.",
            )
        return self._map_columns(table)

    def _map_columns(self, table: PostgresTable) -> TargetTable:
        columns = require_fitting(table, self.stream_schema, self.name)
        pairs = zip(self.stream_schema.columns, columns, strict=True)
        return TargetTable(
            table.schema,
            table.name,
            tuple((stream_name, column.name, column.type) for (stream_name, _), column in pairs),
            tuple(column.name for column in columns if column.not_null),
            self.stream_schema.has_op,
        )

    # The commit marker.

    @property
    def _marker(self) -> Any:
        return import_psycopg().sql.Identifier(self.target.schema, _MARKERS)

    @property
    def _target_name(self) -> str:
        return f"{self.target.schema}.{self.target.table}"

    @property
    def _owner(self) -> tuple[str, str, str]:
        return self._target_name, self.name.lower(), self.stream

    def _open_marker(self, connection: Any, committed: CommittedState) -> None:
        sql = import_psycopg().sql
        if read_table(connection, self.target.schema, _MARKERS) is None:
            connection.execute(sql.SQL(_CREATE_MARKERS).format(self._marker))
        with connection.transaction():
            last = self._read_marker(connection)
            if last is None:
                self._reject_lost_marker(committed)
                self._reject_second_pipeline(connection, committed)
            elif last[0].epoch >= 0 and not committed.contains(last[0]):
                raise self._ahead_error(last[0], committed.last)
            insert = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, 0, -1, 0) ON CONFLICT DO NOTHING")
            connection.execute(insert.format(self._marker), self._owner)

    def _fence_older_generations(self, connection: Any, committed: CommittedState) -> None:
        """Record the generation, so that older generations cannot publish any more."""
        update = import_psycopg().sql.SQL(
            "UPDATE {} SET newest_generation = %s WHERE target = %s AND sink = %s AND stream = %s "
            "AND newest_generation < %s"
        )
        newest = committed.last.generation if committed.last is not None else 0
        connection.execute(update.format(self._marker), (newest, *self._owner, newest))

    def _read_marker(self, connection: Any) -> tuple[EpochId, int] | None:
        """Lock and read the marker: the last published epoch and the newest generation."""
        query = import_psycopg().sql.SQL(
            "SELECT generation, epoch, newest_generation FROM {} WHERE target = %s AND sink = %s "
            "AND stream = %s FOR UPDATE"
        )
        row = connection.execute(query.format(self._marker), self._owner).fetchone()
        return None if row is None else (EpochId(row[0], row[1]), row[2])

    def _reject_lost_marker(self, committed: CommittedState) -> None:
        if committed.staged_epoch is not None and committed.committables:
            raise self._lost_marker_error()

    def _lost_marker_error(self) -> TidegateError:
        return RunError(
            "TG-526",
            f"the commit marker of the sink {self.name} is missing in "
            f"{self.target.schema}.{_MARKERS}: it is unknown which rows the table contains",
            hint="restore the row of the marker, or write to another table.",
        )

    def _ahead_error(self, published: EpochId, last: EpochId | None) -> TidegateError:
        return sink_ahead_error(
            f"the table {self._target_name} contains epoch {published.epoch} of generation "
            f"{published.generation} of the sink {self.name}, which this pipeline has not "
            "committed",
            "restore the data directory that belongs to this table, or write to another table",
            last,
        )

    def _reject_second_pipeline(self, connection: Any, committed: CommittedState) -> None:
        """Reject a new pipeline that would write the rows of an earlier one again."""
        if self.options["existing"] == "append":
            return
        query = import_psycopg().sql.SQL(
            "SELECT 1 FROM {} WHERE target = %s AND sink = %s AND epoch >= 0 AND generation >= %s"
        )
        parameters = (self._target_name, self.name.lower(), committed.keep_before_generation)
        if connection.execute(query.format(self._marker), parameters).fetchone() is not None:
            raise RunError(
                "TG-525",
                f"the table {self._target_name} contains rows that an earlier pipeline wrote for "
                f"the sink {self.name}; this pipeline starts from the beginning and would write "
                "them again",
                hint="empty the table and delete its rows from "
                f"{self.target.schema}.{_MARKERS}, choose another table, or set existing = "
                "'append'.",
            )

    def _sweep(self, connection: Any, committed: CommittedState) -> None:
        """Drop the staging tables of committed epochs.

        Tables of the next epoch are kept: a driver that is believed dead may still commit it.
        """
        if committed.last is None:
            return
        sql = import_psycopg().sql
        last = f"{self.prefix}{committed.last.stamp.replace('-', '_')}"
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)",
            (self.target.schema, self.prefix),
        ).fetchall()
        for (name,) in tables:
            if name[: len(last)] <= last:
                drop = sql.SQL("DROP TABLE IF EXISTS {}")
                connection.execute(drop.format(sql.Identifier(self.target.schema, name)))

    # Writing.

    def columns(self, stream_columns: SqlColumns) -> SqlColumns | None:
        """Convert nested columns to JSON."""
        nested = {name for name, sql_type in self.stream_schema.columns if is_nested(sql_type)}
        if not nested:
            return None
        return [
            (f"to_json({sql})" if name in nested else sql, name) for sql, name in stream_columns
        ]

    def row_encoder(self, schema: pa.Schema) -> None:
        """Return None: Spark writes nested columns as JSON."""

    def writer_factory(self, schema: pa.Schema) -> PostgresWriterFactory:
        assert (OP in schema.names) == self.stream_schema.has_op, (
            "rows have _op if the stream declares it"
        )
        return PostgresWriterFactory(self.parameters, self.target, self.prefix, self.name)

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        if not committables:
            return
        tables = [committable["table"] for committable in committables]
        with self._translated_errors():
            connection = self._open_connection()
            with connection.transaction():
                marker = self._read_marker(connection)
                if marker is None:
                    raise self._lost_marker_error()
                last, newest = marker
                if last.epoch < epoch.epoch:
                    if newest > epoch.generation:
                        raise self._fenced_error(epoch, newest)
                    move_rows(connection, self.target, self.stream_schema, tables)
                    self._write_marker(connection, epoch)
                self._drop_staging_tables(connection, tables)

    def _write_marker(self, connection: Any, epoch: EpochId) -> None:
        update = import_psycopg().sql.SQL(
            "UPDATE {} SET generation = %s, epoch = %s WHERE target = %s AND sink = %s AND "
            "stream = %s"
        )
        connection.execute(
            update.format(self._marker), (epoch.generation, epoch.epoch, *self._owner)
        )

    def _drop_staging_tables(self, connection: Any, tables: Sequence[str]) -> None:
        sql = import_psycopg().sql
        names = [sql.Identifier(self.target.schema, table) for table in tables]
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.SQL(", ").join(names)))

    def _fenced_error(self, epoch: EpochId, newest: int) -> TidegateError:
        return RunError(
            "TG-527",
            f"the sink {self.name} was opened by generation {newest} of its pipeline, and epoch "
            f"{epoch.epoch} is of generation {epoch.generation}",
            hint="stop this process: another one has restored the pipeline to a checkpoint.",
        )


def open_sink(context: SinkContext) -> PostgresSink:
    return PostgresSink(context)
