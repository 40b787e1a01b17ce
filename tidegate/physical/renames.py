"""Stages that only rename columns: they need no SQL, and tasks pass their rows on as they are."""

from __future__ import annotations

from sqlglot import exp

from tidegate.columns import OP, Renames
from tidegate.physical.ports import PortPlan
from tidegate.physical.stage_sql import carries_op, filters_changes, gives_upserts, quoted
from tidegate.plan import nodes as n
from tidegate.sql.statements import EmitMode


def column_map(node: n.Node, leaf: n.Node) -> dict[str, str] | None:
    """The columns of a node by those of a leaf below it; None if something is computed."""
    if node is leaf:
        return {item.id: item.id for item in node.fields}
    if isinstance(node, n.Inlined):
        below = column_map(node.input, leaf)
        return below if below is None else {item.id: below[item.id] for item in node.fields}
    if isinstance(node, n.Project):
        below = column_map(node.input, leaf)
        return None if below is None else _projected(node, below)
    return None


def _projected(node: n.Project, below: dict[str, str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for item, expression in zip(node.fields, node.expressions, strict=True):
        column = expression.unnest()
        if not isinstance(column, exp.Column) or column.name not in below:
            return None
        found[item.id] = below[column.name]
    return found


def last_renames(root: n.Emit, leaf: n.Node) -> Renames | None:
    """What the last stage of a stream does, if it only renames the columns of its one leaf."""
    inner = root.input
    known = column_map(inner, leaf)
    changes = root.clause is not None and root.clause.mode is EmitMode.CHANGES
    if known is None or carries_op(root) != carries_op(leaf) or filters_changes(root):
        return None
    if changes and not carries_op(inner):
        return None
    columns = [
        (item.name, known[below.id]) for item, below in zip(root.fields, inner.fields, strict=True)
    ]
    columns += [(OP, OP)] if carries_op(root) else []
    return Renames(tuple(columns), carries_op(inner) and gives_upserts(root))


def port_renames(port: PortPlan, leaf: n.Node) -> Renames | None:
    """What the stage of a port does, if it only renames the columns of its one leaf."""
    known = column_map(port.node, leaf)
    if known is None or port.arrival or carries_op(port.node) != carries_op(leaf):
        return None
    by_sql = {quoted(item.id): known[item.id] for item in port.node.fields}
    if carries_op(leaf):
        by_sql[OP] = OP
    if any(sql not in by_sql for _, sql in port.stage):
        return None
    return Renames(tuple((name, by_sql[sql]) for name, sql in port.stage))
