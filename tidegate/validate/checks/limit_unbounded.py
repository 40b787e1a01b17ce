"""LIMIT over rows that never end picks rows by chance of arrival."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.validate.finding import Finding, Subject, unbounded


def limit_unbounded(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, n.Limit) and unbounded(node):
            yield Finding(
                "TG-402",
                "LIMIT on a stream would keep whichever rows happen to come first and then "
                "stay silent",
                node,
                "end the statement with EMIT CHANGES to have the first rows in an order as it "
                "changes: ORDER BY … LIMIT 10 EMIT CHANGES; or put it inside a window.",
            )
