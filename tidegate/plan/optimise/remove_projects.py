"""A projection that hands on the columns of its input, and no other, is left out."""

from __future__ import annotations

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.optimise.filters import Judges


def remove_projects(node: n.Node, judges: Judges) -> n.Node:
    if not isinstance(node, n.Project) or node.subqueries:
        return node
    below = node.input
    if len(node.fields) != len(below.fields):
        return node
    triples = zip(node.fields, node.expressions, below.fields, strict=True)
    # Names may differ: whoever reads the columns goes by their ids.
    same = all(
        isinstance(part, exp.Column) and part.name == theirs.id and _as(theirs, own) == own
        for own, part, theirs in triples
    )
    return below if same else node


def _as(item: n.Field, other: n.Field) -> n.Field:
    return item.renamed(other.name)
