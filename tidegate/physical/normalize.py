"""Changelog normalization: upserts become changes; state keeps the last row of each key."""

from __future__ import annotations

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, OP
from tidegate.physical.canonical_form import CanonicalWriter, canonical_ttl
from tidegate.physical.operator_kind import BuildContext, BuiltOperator, OperatorKind
from tidegate.physical.stage_sql import PortColumns, SqlWriter, carries_op, column_sql
from tidegate.plan import nodes as n
from tidegate.sql.quoting import quote_identifier


def operator_name(node: n.Normalize) -> str:
    return "normalize_upserts"


def describe(node: n.Normalize) -> str:
    return f"Normalize upserts by {', '.join(node.key)}"


def canonical_form(node: n.Normalize, writer: CanonicalWriter) -> list[str]:
    key = ",".join(writer.columns[column] for column in node.key)
    return [f"key={key}", *canonical_ttl(node)]


def sql(node: n.Normalize, writer: SqlWriter) -> str:
    columns = ", ".join([*(quote_identifier(item.id) for item in node.fields), f"'+I' AS {OP}"])
    return f"SELECT {columns} FROM {writer.child(node.input)}"


def build(node: n.Normalize, context: BuildContext) -> BuiltOperator:
    from tidegate.operators.normalize import NormalizeOperator

    keys = [quote_identifier(column) for column in node.key]
    columns = PortColumns()
    columns.add_all("k", keys)
    columns.add_all("c", column_sql(node))
    columns.add(OP, OP if carries_op(node.input) else "'+U'")
    columns.add(ARRIVAL_FILE, ARRIVAL_FILE)
    columns.add(ARRIVAL_ROW, ARRIVAL_ROW)
    data_types = tuple(context.types.all(keys))
    whole = tuple(context.types.columns(node))
    operator = NormalizeOperator(data_types, whole, context.limits, node.ttl_us)
    return BuiltOperator(
        operator, (columns.port(node.input, hash_columns=columns.keys, arrival=True),)
    )


KIND = OperatorKind(
    name=operator_name,
    describe=describe,
    build=build,
    canonical_form=canonical_form,
    sql=sql,
)
