"""A condition on what top-N and OVER partition by drops whole partitions, so it goes below."""

from __future__ import annotations

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.optimise.filters import Judges, movable, on_columns, through


def push_filter_through_partitions(node: n.Node, judges: Judges) -> n.Node:
    if not isinstance(node, n.Filter) or not movable(node) or node.input in judges:
        return node
    below = node.input
    if isinstance(below, n.TopN):
        return through(node, on_columns(_columns(below.partition)))
    if isinstance(below, n.Over):
        return through(node, on_columns(_columns(below.partition)))
    return node


def _columns(partition: tuple[exp.Expr, ...]) -> set[str]:
    bare = [part.unnest() for part in partition]
    return {part.name for part in bare if isinstance(part, exp.Column)}
