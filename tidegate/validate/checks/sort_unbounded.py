"""ORDER BY over rows that never end would wait for the last row forever."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.validate.finding import (
    Finding,
    Subject,
    example_interval,
    table_name,
    time_column,
    unbounded,
)


def sort_unbounded(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, n.Sort) and unbounded(node):
            yield Finding(
                "TG-401",
                "ORDER BY must see the last row before it can emit the first, and a stream has "
                "no last row",
                node,
                "remove ORDER BY, or keep the first rows: ORDER BY … LIMIT 10 EMIT CHANGES; or "
                "sort inside windows: SELECT …, window_end FROM "
                f"TUMBLE({table_name(node)}, {time_column(node)}, {example_interval()}) ORDER BY …",
            )
