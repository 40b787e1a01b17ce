"""Scalar subqueries over streams, and IN and EXISTS inside other expressions, are never final."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.validate.finding import Finding, Subject

_ALONE = (
    "let [NOT] IN and [NOT] EXISTS stand alone, joined to the rest of WHERE by AND; for OR make "
    "two queries and UNION them."
)
_JOIN = (
    "let it be one aggregate that reads no column of the outer query; or make it a stream of its "
    "own, aggregated in windows, and join that by window_end."
)


def subquery_predicate(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Filter | n.Project):
            continue
        for subquery in node.subqueries:
            if subquery.bounded and node.input.bounded:
                continue
            yield Finding(
                "TG-410",
                "this subquery is asked for every row, but its answer keeps changing: a "
                f"{'condition' if isinstance(node, n.Filter) else 'column'} cannot depend on it",
                node,
                _ALONE if _is_predicate(node) else _JOIN,
                subquery.span,
            )


def _is_predicate(node: n.Filter | n.Project) -> bool:
    """Whether it asks if there is a row (IN, EXISTS), not what its value is."""
    return isinstance(node, n.Filter) and node.condition.find(exp.In, exp.Exists) is not None
