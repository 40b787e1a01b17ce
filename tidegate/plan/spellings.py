"""Calls that are written in a way of their own, as plain ones."""

from __future__ import annotations

from sqlglot import exp

from tidegate.plan.nodes.over import NO_FRAME
from tidegate.sql import expressions as ex

# Marks an ORDER BY that begins with the row that came last.
NEWEST = "newest"
# They ask how many rows are equal in order, which rows that arrive never are.
_OF_PEERS = frozenset({"PERCENT_RANK", "CUME_DIST"})


def by_arrival(window: exp.Window) -> exp.Window:
    """OVER (… ORDER BY PROCTIME()) is the order in which rows arrive: no two are equal in it."""
    order = window.args.get("order")
    parts = order.expressions if order is not None else []
    if len(parts) != 1 or ex.call_name(parts[0].this) != "PROCTIME":
        return window
    name, backwards = _function(window), bool(parts[0].args.get("desc"))
    ranks = name in ex.RANK_FUNCTIONS
    if name in _OF_PEERS or (backwards and not ranks) or _by_distance(window):
        return window
    window = window.copy()
    constant = exp.Ordered(this=exp.Null(), desc=backwards)
    constant.meta[NEWEST] = backwards
    window.set("order", exp.Order(expressions=[constant]))
    if ranks:
        window.set("this", exp.Anonymous(this="ROW_NUMBER"))
        if not backwards:
            window.set("order", None)
    elif name not in NO_FRAME:
        window.set("spec", _of_rows(window.args.get("spec")))
    return window


def orders_by_clock(window: exp.Window) -> bool:
    """Whether PROCTIME() stands in its ORDER BY."""
    order = window.args.get("order")
    parts = order.expressions if order is not None else []
    return any(ex.call_name(part.this) == "PROCTIME" for part in parts)


def _function(window: exp.Window) -> str:
    call = window.this
    while isinstance(call, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        call = call.this
    return ex.call_name(call) or ""


def _by_distance(window: exp.Window) -> bool:
    """Whether a frame reaches a time or a number back or ahead, not rows."""
    spec = window.args.get("spec")
    if spec is None or str(spec.args.get("kind")).upper() == "ROWS":
        return False
    bounds = (spec.args.get("start"), spec.args.get("end"))
    return any(bound not in (None, "UNBOUNDED", "CURRENT ROW") for bound in bounds)


def _of_rows(spec: exp.Expr | None) -> exp.Expr:
    """The frame of a row without the rows that are equal to it in the order: there are none."""
    if spec is None:
        spec = exp.WindowSpec(start="UNBOUNDED", start_side="PRECEDING", end="CURRENT ROW")
    spec = spec.copy()
    spec.set("kind", "ROWS")
    return spec


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


def _is_named(part: exp.Expr) -> bool:
    return isinstance(part, exp.Column) and not isinstance(part.this, exp.Star)


def with_names(node: exp.Expr) -> exp.Expr:
    """struct(a) has a field a, whatever the id of that column is."""
    if ex.call_name(node) != "STRUCT":
        return node
    named = node.copy()
    parts = [
        exp.alias_(part, part.name, quoted=True) if _is_named(part) else part
        for part in node.expressions
    ]
    named.set("expressions", parts)
    return named
