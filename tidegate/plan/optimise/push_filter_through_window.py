"""A filter goes below what copies rows (windows, LATERAL VIEW) unless it asks for new columns."""

from __future__ import annotations

from tidegate.plan import nodes as n
from tidegate.plan.optimise.filters import Judges, movable, on_columns, through


def push_filter_through_window(node: n.Node, judges: Judges) -> n.Node:
    if not isinstance(node, n.Filter) or not movable(node) or node.input in judges:
        return node
    below = node.input
    if isinstance(below, n.Window):
        # Dropping a row could split a session that is made of all rows.
        if below.makes_sessions:
            return node
        added = {item.id for item in below.fields[-3:]}
    elif isinstance(below, n.Explode):
        added = set(below.generated)
    else:
        return node
    return through(node, on_columns({item.id for item in below.input.fields} - added))
