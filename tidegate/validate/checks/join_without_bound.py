"""A join of two endless streams without a time bound must remember every row forever."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.plan.properties import properties
from tidegate.validate.finding import Finding, Subject


def join_without_bound(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Join) or node.kind is not n.JoinKind.REGULAR:
            continue
        if node.ttl_us is not None or all(properties(side).bounded for side in node.inputs):
            continue
        left, right = _time(node.left), _time(node.right)
        yield Finding(
            "TG-407",
            "this join has no time bound, so it would have to remember every row of both sides "
            "forever",
            node,
            f"bound it: AND {left} BETWEEN {right} - INTERVAL '10' MINUTE AND {right} + INTERVAL "
            "'10' MINUTE, or let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
        )


def _time(node: n.Node) -> str:
    names = [item.name for item in node.fields if item.role is n.Role.TIME]
    return names[0] if names else "ts"
