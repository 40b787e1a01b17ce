"""A filter goes below what hands rows on: DISTINCT, held rows, sorting, upserts by their key."""

from __future__ import annotations

from tidegate.plan import nodes as n
from tidegate.plan.optimise.filters import Judges, movable, on_columns, through


def push_filter_through_rows(node: n.Node, judges: Judges) -> n.Node:
    if not isinstance(node, n.Filter) or not movable(node) or node.input in judges:
        return node
    below = node.input
    if isinstance(below, n.Distinct | n.Hold | n.Sort):
        return through(node, on_columns({item.id for item in below.fields}))
    if isinstance(below, n.Normalize):
        # The old row and the new one have the same key, so they pass or fail together.
        return through(node, on_columns(set(below.key)))
    return node
