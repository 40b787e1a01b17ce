"""Calls that are written in a way of their own, as plain ones."""

from __future__ import annotations

from sqlglot import exp

from tidegate.sql import expressions as ex


def by_arrival(window: exp.Window) -> exp.Window:
    """row_number() OVER (… ORDER BY PROCTIME()) is the order in which rows arrive."""
    order = window.args.get("order")
    parts = order.expressions if order is not None else []
    if ex.call_name(window.this) != "ROW_NUMBER" or len(parts) != 1 or parts[0].args.get("desc"):
        return window
    if ex.call_name(parts[0].this) != "PROCTIME":
        return window
    window = window.copy()
    window.set("order", None)
    return window


def with_unit(node: exp.Expr) -> exp.Expr:
    """timestampadd(HOUR, 1, ts): HOUR is a word, not a column."""
    if ex.call_name(node) not in ex.UNIT_FUNCTIONS or len(node.expressions) != 3:
        return node
    unit = node.expressions[0]
    if not isinstance(unit, exp.Column) or unit.name.upper() not in ex.UNITS:
        return node
    result = node.copy()
    result.expressions[0].replace(exp.Var(this=unit.name.upper()))
    return result


def with_names(node: exp.Expr) -> exp.Expr:
    """struct(a) has a field a, whatever the id of that column is."""
    if ex.call_name(node) != "STRUCT":
        return node
    named = node.copy()
    parts = [
        exp.alias_(part, part.name, quoted=True) if isinstance(part, exp.Column) else part
        for part in node.expressions
    ]
    named.set("expressions", parts)
    return named
