"""The statements that move staged rows into their table: append, or replace and delete by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.columns import OP
from tidegate.connectors.postgres_client import driver
from tidegate.connectors.postgres_types import plain_type
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    from tidegate.connectors.postgres_tasks import Goal
    from tidegate.connectors.protocols import StreamRows

_NET = "_tidegate_net"


def move(connection: Any, goal: Goal, rows: StreamRows, tables: Sequence[str]) -> None:
    """Make the rows of an epoch visible, in the transaction of the caller."""
    connection.execute(_append(goal, tables) if not rows.key else _by_key(goal, rows, tables))


def _append(goal: Goal, tables: Sequence[str]) -> Any:
    sql = driver().sql
    columns = _columns(goal)
    return sql.SQL("INSERT INTO {} ({}) {}").format(
        sql.Identifier(goal.schema, goal.table), columns, _staged(goal, tables, columns)
    )


def _columns(goal: Goal) -> Any:
    sql = driver().sql
    return sql.SQL(", ").join(sql.Identifier(theirs) for _, theirs, _ in goal.columns)


def _staged(goal: Goal, tables: Sequence[str], columns: Any) -> Any:
    """The rows of all tasks."""
    sql = driver().sql
    each = [
        sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(goal.schema, table))
        for table in tables
    ]
    return sql.SQL(" UNION ALL ").join(each)


def _by_key(goal: Goal, rows: StreamRows, tables: Sequence[str]) -> Any:
    """Keys that have a new row get it, those that only lost theirs are deleted.

    Both happen in one statement, for different keys. Of a changelog the net counts: a row that was
    given and retracted in the same epoch is none, whatever the order in which tasks staged it.
    """
    sql = driver().sql
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


def _same(goal: Goal, keys: Sequence[str], one: str, other: str) -> Any:
    """Whether two rows have the same key; an index helps where keys are NOT NULL."""
    sql = driver().sql
    parts = []
    for key in keys:
        left, right = sql.Identifier(one, key), sql.Identifier(other, key)
        if key in goal.not_null:
            parts.append(sql.SQL("{} = {}").format(left, right))
        else:
            text = "({0} = {1} OR ({0} IS NULL AND {1} IS NULL))"
            parts.append(sql.SQL(text).format(left, right))
    return sql.SQL(" AND ").join(parts)


def _net(goal: Goal, rows: StreamRows, tables: Sequence[str]) -> Any:
    sql = driver().sql
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
