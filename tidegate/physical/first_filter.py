"""What a stream without operators asks of the rows of its source before anything else."""

from __future__ import annotations

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.scope import by_id, volatile
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import to_sql


def first_filter(plan: n.Node) -> n.Filter | None:
    """The filter right above the one scan of a plan; asking twice must give the same answer."""
    node = plan
    while isinstance(node, n.Emit | n.Inlined | n.Project | n.Filter):
        below = _behind_names(node.input)
        if isinstance(node, n.Filter) and isinstance(below, n.Scan):
            return node if _can_go_first(node, below) else None
        node = node.input
    return None


def _can_go_first(node: n.Filter, scan: n.Scan) -> bool:
    if node.subqueries or volatile(node.condition, by_id(scan.fields)):
        return False
    # With the names of the source, the parameter of a lambda must not hide a column.
    names = {item.name.lower() for item in scan.fields}
    lambdas = node.condition.find_all(exp.Lambda)
    return not any(part.name.lower() in names for tree in lambdas for part in tree.expressions)


def keeps_rows(plan: n.Node, first: n.Filter | None) -> bool:
    """Whether every row of the one source (that passes the filter `first`) comes out once."""
    node = plan
    while isinstance(node, n.Emit | n.Inlined | n.Project | n.Filter):
        if isinstance(node, n.Filter) and node is not first:
            return False
        if isinstance(node, n.Project) and any(ex.has_generator(e) for e in node.expressions):
            return False
        node = node.input
    return isinstance(node, n.Scan)


def by_name(filter: n.Filter) -> str:
    """Its condition in SQL, over the columns of the source."""
    scan = _behind_names(filter.input)

    def swap(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column):
            return exp.column(exp.to_identifier(scan.field(part.name).name, quoted=True))
        return part

    return to_sql(filter.condition.copy().transform(swap))


def _behind_names(node: n.Node) -> n.Node:
    while isinstance(node, n.Inlined):
        node = node.input
    return node
