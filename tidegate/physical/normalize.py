"""Changelog normalization: upserts become changes; state keeps the last row of each key."""

from __future__ import annotations

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, OP
from tidegate.physical.canonical import CanonicalWriter, canonical_ttl
from tidegate.physical.operator_kind import Built, OperatorKind, Request
from tidegate.physical.stage_sql import Columns, SqlWriter, carries_op, column_sql
from tidegate.plan import nodes as n
from tidegate.sql.quoting import quote_identifier


def operator_name(node: n.Normalize) -> str:
    return "normalize_upserts"


def describe(node: n.Normalize) -> str:
    return f"Normalize upserts by {', '.join(node.key)}"


def canonical_form(node: n.Normalize, to: CanonicalWriter) -> list[str]:
    key = ",".join(to.columns[column] for column in node.key)
    return [f"key={key}", *canonical_ttl(node)]


def sql(node: n.Normalize, to: SqlWriter) -> str:
    columns = ", ".join([*(quote_identifier(item.id) for item in node.fields), f"'+I' AS {OP}"])
    return f"SELECT {columns} FROM {to.child(node.input)}"


def build(node: n.Normalize, request: Request) -> Built:
    from tidegate.operators.normalize import NormalizeOperator

    keys = [quote_identifier(column) for column in node.key]
    columns = Columns()
    columns.add_all("k", keys)
    columns.add_all("c", column_sql(node))
    columns.add(OP, OP if carries_op(node.input) else "'+U'")
    columns.add(ARRIVAL_FILE, ARRIVAL_FILE)
    columns.add(ARRIVAL_ROW, ARRIVAL_ROW)
    kinds = tuple(request.types.all(keys))
    whole = tuple(request.types.columns(node))
    operator = NormalizeOperator(kinds, whole, request.limits, node.ttl_us)
    return Built(operator, (columns.port(node.input, hashed=columns.keys, arrival=True),))


KIND = OperatorKind(
    name=operator_name,
    describe=describe,
    build=build,
    canonical_form=canonical_form,
    sql=sql,
)
