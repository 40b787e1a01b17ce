"""Two projections in a row become one, unless something would be computed twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.optimise.expressions import is_deterministic, is_trivial, substitute
from tidegate.plan.optimise.filters import Judges


def merge_projects(node: n.Node, judges: Judges) -> n.Node:
    if not isinstance(node, n.Project) or not isinstance(node.input, n.Project):
        return node
    below = node.input
    if node.subqueries or below.subqueries:
        return node
    mapping = {item.id: part for item, part in zip(below.fields, below.expressions, strict=True)}
    if not all(_once(node, name, part) for name, part in mapping.items()):
        return node
    merged = tuple(substitute(part, mapping) for part in node.expressions)
    expressions = tuple(part for part in merged if part is not None)
    if len(expressions) < len(merged):
        return node
    return replace(node, input=below.input, expressions=expressions)


def _once(above: n.Project, name: str, part: exp.Expr) -> bool:
    """Whether a column is computed no more often when it is computed where it is used."""
    uses: Counter[bool] = Counter()
    for tree in above.expressions:
        for use in tree.find_all(exp.Column):
            if use.name == name:
                # Inside a lambda it would be computed for each element.
                uses[use.find_ancestor(exp.Lambda) is not None] += 1
    if not uses or is_trivial(part):
        return True
    return is_deterministic(part) and uses[False] == 1 and not uses[True]
