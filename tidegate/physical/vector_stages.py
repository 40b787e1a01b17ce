"""Stages that tasks can compute themselves, without a way to Spark's SQL and back.

Only what is known to give the same as Spark is translated; everything else stays SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp, parse_one

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, BEFORE, INSERT, LIVE, MARK, NOW, OP
from tidegate.operators.vectorized import Call, Cast, Column, Constant, Vector, VectorStage
from tidegate.physical.ports import PortPlan
from tidegate.physical.stage_sql import carries_op, filters_changes, gives_upserts
from tidegate.physical.typed import Types, arrow_type
from tidegate.physical.vectors import Known, Untranslatable, known, translated
from tidegate.plan import nodes as n
from tidegate.sql.dialect import DIALECT
from tidegate.sql.quoting import quoted
from tidegate.sql.statements import EmitMode

_HIDDEN = {
    OP: Known(Column(OP), "STRING"),
    LIVE: Known(Column(LIVE), "BOOLEAN"),
    MARK: Known(Column(MARK), "BIGINT"),
    NOW: Known(Column(NOW), "BIGINT"),
    ARRIVAL_FILE: Known(Column(ARRIVAL_FILE), "STRING"),
    ARRIVAL_ROW: Known(Column(ARRIVAL_ROW), "BIGINT"),
}


@dataclass(frozen=True)
class _Rows:
    """The columns of a node as expressions over those of the leaf, and what holds for its rows."""

    columns: Mapping[str, Known]
    conditions: tuple[Vector, ...] = ()


def port_stage(port: PortPlan, leaf: n.Node, types: Types) -> VectorStage | None:
    """The stage of a port over its one leaf; None if it needs SQL."""
    try:
        rows = _rows(port.node, leaf, types)
        columns = [
            (name, *_column(_parsed(sql), rows, types.by_sql.get(sql))) for name, sql in port.stage
        ]
        return VectorStage(tuple(columns), rows.conditions)
    except Untranslatable:
        return None


def last_stage(root: n.Emit, leaf: n.Node, types: Types) -> VectorStage | None:
    """The last stage of a stream over its one leaf; None if it needs SQL."""
    if gives_upserts(root) and carries_op(root) and filters_changes(root):
        # An old row may come without its new one, and rows of a key must be seen together.
        return None
    try:
        rows = _rows(root, leaf, types)
        columns = [
            (item.name, *_column(exp.column(item.id), rows, types.by_sql.get(quoted(item.id))))
            for item in root.fields
        ]
        if carries_op(root):
            columns.append((OP, *_column(exp.column(OP), rows, "STRING")))
        return VectorStage(tuple(columns), rows.conditions)
    except Untranslatable:
        return None


def _parsed(sql: str) -> exp.Expr:
    return parse_one(sql, dialect=DIALECT)


def _column(tree: exp.Expr, rows: _Rows, kind: str | None) -> tuple[Vector, pa.DataType]:
    """An expression, and the type in which Spark would hand it over."""
    found = translated(tree, rows.columns)
    return found.vector, arrow_type(kind or found.kind)


def _rows(node: n.Node, leaf: n.Node, types: Types) -> _Rows:
    if node is leaf:
        own = {item.id: known(Column(item.id), types.name(quoted(item.id))) for item in node.fields}
        hidden = {k: v for k, v in _HIDDEN.items() if k != OP or carries_op(node)}
        return _Rows({**hidden, **own})
    step = _STEPS.get(type(node))
    if step is None or len(node.inputs) != 1:
        raise Untranslatable(node.label())
    return step(node, _rows(node.inputs[0], leaf, types))


def _inlined(node: n.Node, below: _Rows) -> _Rows:
    return below


def _filter(node: n.Node, below: _Rows) -> _Rows:
    assert isinstance(node, n.Filter), "it is a filter"
    if node.subqueries:
        raise Untranslatable("a subquery")
    condition = translated(node.condition, below.columns)
    return _Rows(below.columns, (*below.conditions, condition.vector))


def _project(node: n.Node, below: _Rows) -> _Rows:
    assert isinstance(node, n.Project), "it is a projection"
    if node.subqueries:
        raise Untranslatable("a subquery")
    own = {
        item.id: translated(expression, below.columns)
        for item, expression in zip(node.fields, node.expressions, strict=True)
    }
    return _Rows({**_carried(below), **own}, below.conditions)


def _window(node: n.Node, below: _Rows) -> _Rows:
    """A row without a time is in no window; with one it is in one."""
    assert isinstance(node, n.Window), "it is a window"
    spec = node.spec
    time = translated(node.time, below.columns)
    if spec.kind is not n.WindowKind.TUMBLE or spec.processing_time or time.kind != "TIMESTAMP":
        raise Untranslatable(node.label())
    us = Cast(time.vector, arrow_type("BIGINT"))
    start = Call("floor", (us, _micros(spec.offset_us), _micros(spec.size_us)))
    end = Call("+", (start, _micros(spec.size_us)))
    last = Call("-", (end, _micros(1)))
    own = {
        item.id: Known(Cast(made, arrow_type("TIMESTAMP")), "TIMESTAMP")
        for item, made in zip(node.fields[-3:], (start, end, last), strict=True)
    }
    timed = Call("not", (Call("is null", (us,)),))
    return _Rows({**below.columns, **own}, (*below.conditions, timed))


def _micros(value: int) -> Vector:
    return Constant(value, arrow_type("BIGINT"))


def _emit(node: n.Node, below: _Rows) -> _Rows:
    """What EMIT adds: EMIT CHANGES marks appended rows; upserts have no old rows."""
    assert isinstance(node, n.Emit), "it is the root"
    inner = node.input
    changes = node.clause is not None and node.clause.mode is EmitMode.CHANGES
    if carries_op(inner) and gives_upserts(node) and not filters_changes(node):
        kept = Call("<>", (Column(OP), _text(BEFORE).vector))
        return _Rows(below.columns, (*below.conditions, kept))
    if changes and not carries_op(inner):
        return _Rows({**below.columns, OP: _text(INSERT)}, below.conditions)
    return below


def _text(value: str) -> Known:
    return Known(Constant(value, arrow_type("STRING")), "STRING")


def _carried(rows: _Rows) -> dict[str, Known]:
    return {name: rows.columns[name] for name in _HIDDEN if name in rows.columns}


_STEPS: dict[type[n.Node], Callable[[n.Node, _Rows], _Rows]] = {
    n.Inlined: _inlined,
    n.Filter: _filter,
    n.Project: _project,
    n.Window: _window,
    n.Emit: _emit,
}
