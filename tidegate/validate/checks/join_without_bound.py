"""A join of two endless streams without a time bound must remember every row forever."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.validate.finding import Finding, Subject


def join_without_bound(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Join) or node.kind is not n.JoinKind.REGULAR:
            continue
        if node.ttl_us is not None or all(side.bounded for side in node.inputs):
            continue
        if any(isinstance(side, n.LookupScan) for side in node.inputs):
            # What is wrong there is its side, and another check says so.
            continue
        yield Finding(
            "TG-407",
            f"this {node.predicate or 'join'} has no time bound, so it would have to remember "
            "every row of both sides forever",
            node,
            _bound(node) + "let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
        )


def _bound(node: n.Join) -> str:
    """The condition that would bound the join, where both sides have an event time."""
    left, right = node.times
    if left is None or right is None:
        return ""
    if node.predicate is not None:
        return (
            f"bound it in WHERE of the subquery: {right} BETWEEN {left} - INTERVAL '10' MINUTE AND "
            f"{left} + INTERVAL '10' MINUTE, or "
        )
    word = "AND" if node.condition is not None else "JOIN … ON"
    return (
        f"bound it: {word} {left} BETWEEN {right} - INTERVAL '10' MINUTE AND {right} + "
        "INTERVAL '10' MINUTE, or "
    )
