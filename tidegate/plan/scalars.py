"""Scalar subqueries, and EXISTS of one, as joins: the row of an aggregate without groups beside
every row.

Before the aggregate has seen a row there is none; it then means what it means over no rows at all:
counts are 0, everything else is NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.joins import JoinInput, build_join
from tidegate.plan.scope import Context, column, referenced
from tidegate.plan.subqueries import NUMBER, Predicate, loose_columns
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span

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
            node = _beside(context, node, found.input, bound[number], "scalar subquery")
            assert isinstance(found.input, n.Aggregate), "the value of one aggregate"
            values[number] = exp.paren(_over_nothing_too(found.expressions[0], found.input))
    return node, [_swapped(tree, values) for tree in trees] if values else list(trees)


def where_one_row(context: Context, node: n.Node, asked: Predicate) -> n.Node | None:
    """EXISTS of the row of an aggregate: where the conditions on it hold. None for any other."""
    conditions: list[exp.Expr] = []
    below = asked.bound
    while isinstance(below, n.Filter | n.Project | n.Sort | n.Distinct):
        if isinstance(below, n.Filter | n.Project) and below.subqueries:
            return None
        if isinstance(below, n.Filter):
            conditions.append(below.condition)
        elif isinstance(below, n.Project):
            pairs = zip(below.fields, below.expressions, strict=True)
            values = {item.id: exp.paren(tree) for item, tree in pairs}
            conditions = [_read(tree, values) for tree in conditions]
        below = below.input
    condition = ex.conjunction(conditions)
    if asked.operands is not None or condition is None or not _is_one_row(below):
        return None
    assert isinstance(below, n.Aggregate), "one row of an aggregate"
    if not referenced(condition) <= {item.id for item in (*node.fields, *below.fields)}:
        return None
    condition = _over_nothing_too(condition, below)
    if asked.negated:
        condition = exp.not_(exp.func("COALESCE", condition, exp.false()))
    node = _beside(context, node, below, asked.bound, asked.words)
    return n.Filter(node.fields, input=node, condition=condition, span=own_span(asked.tree))


def _one_value(query: n.Node) -> n.Project | None:
    """The query, if it has one row and one column whatever it reads, and reads nothing outside."""
    if not isinstance(query, n.Project) or len(query.fields) != 1 or query.subqueries:
        return None
    return query if _is_one_row(query.input) and not loose_columns(query) else None


def _is_one_row(node: n.Node) -> bool:
    """Whether it is an aggregate without groups of which we know what it is over no rows."""
    if not isinstance(node, n.Aggregate) or node.keys or loose_columns(node):
        return False
    return not {_name(call) for call in node.aggregates} & _LISTS


def _name(call: exp.Expr) -> str:
    while isinstance(call, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        call = call.this
    return ex.call_name(call) or ""


def _beside(context: Context, node: n.Node, value: n.Node, query: n.Node, words: str) -> n.Node:
    parts = JoinInput(node, value, "LEFT", False, None, None, None, query.span, predicate=words)
    return build_join(context, parts)


def _over_nothing_too(tree: exp.Expr, below: n.Aggregate) -> exp.Expr:
    """The expression over an aggregate; where there is no row of that, what it is without."""
    pairs = zip(below.fields, below.aggregates, strict=True)
    counts = [item for item, call in pairs if _name(call) in _COUNTS]
    zero = exp.Literal.number(0)
    return _read(tree, {item.id: exp.func("COALESCE", column(item), zero) for item in counts})


def _read(tree: exp.Expr, values: Mapping[str, exp.Expr]) -> exp.Expr:
    """The expression with values in the place of columns."""

    def swap(part: exp.Expr) -> exp.Expr:
        value = values.get(part.name) if isinstance(part, exp.Column) else None
        return part if value is None else value.copy()

    return tree.copy().transform(swap)


def _swapped(tree: exp.Expr, values: Mapping[int, exp.Expr]) -> exp.Expr:
    def swap(part: exp.Expr) -> exp.Expr:
        value = values.get(part.meta.get(NUMBER, -1)) if isinstance(part, exp.Query) else None
        return part if value is None else value.copy()

    return tree.copy().transform(swap)
