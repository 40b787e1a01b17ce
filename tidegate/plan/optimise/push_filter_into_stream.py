"""A filter over another stream goes into it, and below the EMIT that ends it."""

from __future__ import annotations

from tidegate.plan import nodes as n
from tidegate.plan.optimise.filters import Judges, movable, on_columns, through


def push_filter_into_stream(node: n.Node, judges: Judges) -> n.Node:
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Inlined | n.Emit):
        return node
    if not movable(node):
        return node
    ids = {item.id for item in node.input.fields}
    return through(node, on_columns(ids), may_fail=True)
