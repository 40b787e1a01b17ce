"""DISTINCT remembers what it has let through, unless time or a TTL lets it forget.

So does a ranking that keeps the first row of each key and lets it stay.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.validate.finding import Finding, Subject, time_column, unbounded


def distinct_without_bound(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, n.TopN):
            yield from _first_rows(node)
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


def _first_rows(node: n.TopN) -> Iterable[Finding]:
    if not node.deduplicates or node.ttl_us is not None or node.closing_key is not None:
        return
    yield Finding(
        "TG-408",
        "keeping the first row of each key would have to remember every key it has seen, forever",
        node,
        "let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …, or add the event time "
        f"to the key: PARTITION BY …, {time_column(node)}",
    )
