"""Two filters in a row become one; a part that can fail stays behind what may protect it."""

from __future__ import annotations

from dataclasses import replace

from tidegate.plan import nodes as n
from tidegate.plan.optimise.expressions import can_fail, is_deterministic, pieces
from tidegate.plan.optimise.filters import Judges, movable
from tidegate.plan.scope import by_id
from tidegate.sql import expressions as ex


def merge_filters(node: n.Node, judges: Judges) -> n.Node:
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Filter):
        return node
    below = node.input
    if not movable(node) or not movable(below):
        return node
    # a AND b asks b where a is NULL; a filter over a filter does not.
    if can_fail(node.condition, by_id(below.fields)) or not is_deterministic(node.condition):
        return node
    condition = ex.conjunction(pieces(below.condition) + pieces(node.condition))
    assert condition is not None, "two filters ask something"
    return replace(below, condition=condition)
