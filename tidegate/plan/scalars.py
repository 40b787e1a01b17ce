"""Scalar subqueries as joins: the one row of an aggregate without groups beside every row.

Before the aggregate has seen a row there is none; it then means what it means over no rows at all:
counts are 0, everything else is NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.joins import JoinInput, build_join
from tidegate.plan.scope import Context
from tidegate.plan.subqueries import NUMBER, loose_columns
from tidegate.sql import expressions as ex

_COUNTS = frozenset({"COUNT", "COUNT_IF", "APPROX_COUNT_DISTINCT", "REGR_COUNT"})
# Over no rows these are lists, neither NULL nor 0.
_LISTS = frozenset({"COLLECT_LIST", "COLLECT_SET", "ARRAY_AGG"})


def with_scalars(
    context: Context, node: n.Node, trees: Sequence[exp.Expr], bound: Mapping[int, n.Node]
) -> tuple[n.Node, list[exp.Expr]]:
    """The node beside the values of scalar subqueries, and the trees that read them there.

    A subquery that is not the value of one aggregate stays where it is, and is refused later.
    """
    values: dict[int, exp.Expr] = {}
    for tree in trees:
        for part in list(tree.walk()):
            number = part.meta.get(NUMBER)
            if number is None or number in values or not isinstance(part, exp.Query):
                continue
            found = _one_value(bound[number])
            if found is None or (bound[number].bounded and node.bounded):
                continue
            node = _beside(context, node, found.input, bound[number])
            values[number] = _over_nothing_too(found)
    return node, [_swapped(tree, values) for tree in trees] if values else list(trees)


def _one_value(query: n.Node) -> n.Project | None:
    """The query, if it has one row and one column whatever it reads, and reads nothing outside."""
    if not isinstance(query, n.Project) or len(query.fields) != 1 or query.subqueries:
        return None
    below = query.input
    if not isinstance(below, n.Aggregate) or below.keys or loose_columns(query):
        return None
    calls = {_name(call) for call in below.aggregates}
    return None if calls & _LISTS else query


def _name(call: exp.Expr) -> str:
    while isinstance(call, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        call = call.this
    return ex.call_name(call) or ""


def _beside(context: Context, node: n.Node, value: n.Node, query: n.Node) -> n.Node:
    words = "scalar subquery"
    parts = JoinInput(node, value, "LEFT", False, None, None, None, query.span, predicate=words)
    return build_join(context, parts)


def _over_nothing_too(query: n.Project) -> exp.Expr:
    """The expression of the query; where there is no row of the aggregate, what it is without."""
    below = query.input
    assert isinstance(below, n.Aggregate), "the value of one aggregate"
    pairs = zip(below.fields, below.aggregates, strict=True)
    counts = {item.id for item, call in pairs if _name(call) in _COUNTS}

    def swap(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column) and part.name in counts:
            return exp.func("COALESCE", part.copy(), exp.Literal.number(0))
        return part

    return exp.paren(query.expressions[0].copy().transform(swap))


def _swapped(tree: exp.Expr, values: Mapping[int, exp.Expr]) -> exp.Expr:
    def swap(part: exp.Expr) -> exp.Expr:
        value = values.get(part.meta.get(NUMBER, -1)) if isinstance(part, exp.Query) else None
        return part if value is None else value.copy()

    return tree.copy().transform(swap)
