"""DISTINCT remembers every row it has let through, unless time or a TTL lets it forget."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.validate.finding import Finding, Subject, time_column, unbounded


def distinct_without_bound(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Distinct) or not unbounded(node) or node.ttl_us is not None:
            continue
        if any(item.closes for item in node.fields):
            continue
        yield Finding(
            "TG-408",
            "DISTINCT on a stream would have to remember every row it has seen, forever",
            node,
            f"add the event time to the columns: SELECT DISTINCT …, {time_column(node)}, or let "
            "state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
        )
