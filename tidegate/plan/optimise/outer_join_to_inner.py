"""An outer join whose rows without a match are dropped above it waits for none of them."""

from __future__ import annotations

from dataclasses import replace

from tidegate.plan import nodes as n
from tidegate.plan.optimise.expressions import pieces, rejects_nulls
from tidegate.plan.optimise.filters import Judges, movable
from tidegate.plan.optimise.push_filter_into_join import NEAREST, PAIRING
from tidegate.sql import expressions as ex

# Which join is left when rows without a left part (0) or without a right part (1) are dropped.
_WITHOUT = {
    ("LEFT", 1): "INNER",
    ("RIGHT", 0): "INNER",
    ("FULL", 1): "RIGHT",
    ("FULL", 0): "LEFT",
}


def outer_join_to_inner(node: n.Node, judges: Judges) -> n.Node:
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Join) or not movable(node):
        return node
    join = node.input
    nearest = join.kind in NEAREST and join.residual is None
    if not (nearest or join.kind in PAIRING) or join in judges:
        return node
    for side, below in enumerate(join.inputs):
        how = _WITHOUT.get((join.how, side))
        ids = {item.id for item in below.fields}
        if how is None or not any(rejects_nulls(part, ids) for part in pieces(node.condition)):
            continue
        inner = replace(join, how=how)
        # Rows that are never retracted are another kind of stream than the one promised.
        if inner.changelog is join.changelog:
            return _without_residual(replace(node, input=inner), inner)
    return node


def _without_residual(filter: n.Filter, join: n.Join) -> n.Filter:
    """What an inner join asks of its pairs beside keys and times, a filter asks."""
    if join.how != "INNER" or join.residual is None:
        return filter
    condition = ex.conjunction(pieces(join.residual) + pieces(filter.condition))
    assert condition is not None, "both ask something"
    return replace(filter, input=replace(join, residual=None), condition=condition)
