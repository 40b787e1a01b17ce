"""IN, EXISTS and scalar subqueries over streams have no moment at which their answer is final."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.plan.properties import properties
from tidegate.validate.finding import Finding, Subject


def subquery_predicate(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Filter | n.Project):
            continue
        for subquery in node.subqueries:
            if properties(subquery).bounded and properties(node.input).bounded:
                continue
            what = "condition" if isinstance(node, n.Filter) else "column"
            yield Finding(
                "TG-410",
                "this subquery is asked for every row, but its answer keeps changing: a "
                f"{what} cannot depend on it",
                node,
                "write the join: FROM a SEMI JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL "
                "'1' HOUR AND a.ts + INTERVAL '1' HOUR (ANTI JOIN for NOT IN).",
                subquery.span,
            )
