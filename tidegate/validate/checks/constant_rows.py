"""VALUES has no time at which its rows come."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.validate.finding import Finding, Subject


def constant_rows(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, n.Values) and node.fields:
            yield Finding(
                "TG-103",
                "VALUES is no stream: nothing says when its rows come",
                node,
                "put them into a source: CREATE SOURCE v (a INT) WITH (connector = 'memory'); "
                "INSERT INTO v VALUES (1); or, to join streams with them, into a lookup table.",
            )
