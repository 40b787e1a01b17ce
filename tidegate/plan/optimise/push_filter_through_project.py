"""A filter goes below a projection: its columns are replaced by what they are computed from."""

from __future__ import annotations

from tidegate.plan import nodes as n
from tidegate.plan.optimise.expressions import substitute
from tidegate.plan.optimise.filters import Judges, movable, through


def push_filter_through_project(node: n.Node, judges: Judges) -> n.Node:
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Project):
        return node
    project = node.input
    if not movable(node) or project.subqueries:
        return node
    mapping = {
        item.id: part for item, part in zip(project.fields, project.expressions, strict=True)
    }
    # A projection keeps every row, so what fails there fails below it too.
    return through(node, lambda piece: substitute(piece, mapping), may_fail=True)
