"""UNION, INTERSECT and EXCEPT compare every row with all rows before it."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.validate.finding import Finding, Subject, unbounded


def set_operation_without_bound(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.SetOperation) or node.union_all or not unbounded(node):
            continue
        bounded_by_time = any(item.closes for item in node.fields)
        if node.ttl_us is not None or bounded_by_time:
            continue
        hints = {
            "UNION": "use UNION ALL, which keeps every row; ",
            "INTERSECT": "select the event time (or the end of a window) in each query; ",
            "EXCEPT": "select the event time (or the end of a window) in each query; ",
        }
        yield Finding(
            "TG-409",
            f"{node.operation}{' ALL' if node.all else ''} on streams would have to remember every "
            "row, forever",
            node,
            hints[node.operation]
            + "or let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
        )
