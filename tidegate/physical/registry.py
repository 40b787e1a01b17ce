"""Every kind of node that keeps state, by node."""

from __future__ import annotations

from tidegate.physical import (
    aggregate,
    distinct,
    hold,
    join,
    match,
    nearest_join,
    normalize,
    over,
    top_n,
    unbuilt,
)
from tidegate.physical.kind import OperatorKind
from tidegate.plan import nodes as n

_KINDS: dict[type[n.Node], OperatorKind] = {
    n.Aggregate: aggregate.KIND,
    n.Distinct: distinct.KIND,
    n.Hold: hold.KIND,
    n.Join: join.KIND,
    n.Match: match.KIND,
    n.Normalize: normalize.KIND,
    n.TopN: top_n.KIND,
    n.Over: over.KIND,
    n.Sort: unbuilt.SORT,
    n.Limit: unbuilt.LIMIT,
    n.SetOperation: unbuilt.SET_OPERATION,
    n.Window: unbuilt.WINDOW,
    n.Filter: unbuilt.SUBQUERY,
    n.Project: unbuilt.SUBQUERY,
}


def kind_of(node: n.Node) -> OperatorKind:
    """What is known about a node that keeps state."""
    if isinstance(node, n.Join) and node.kind in nearest_join.KINDS:
        return nearest_join.KIND
    return _KINDS[type(node)]
