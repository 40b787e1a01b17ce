"""Checks for bounded state: DISTINCT, joins, set operations, sorts and limits.

So does a ranking that keeps the first row of each key and lets it stay.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from tidegate.compile.validate.finding import (
    Finding,
    Subject,
    example_interval,
    table_name,
    time_column,
    unbounded,
)
from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import fields_by_id, is_volatile
from tidegate.sql.dialect import own_span
from tidegate.types import ChangelogKind, Span


def distinct_without_bound(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, n.TopN):
            yield from _first_rows(node)
        if not isinstance(node, n.Distinct) or not unbounded(node) or node.ttl_us is not None:
            continue
        if any(item.closed_by_watermark for item in node.fields):
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


# ---- A join of two endless streams without a time bound must remember every row forever.


def join_without_bound(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Join) or node.kind is not n.JoinKind.REGULAR:
            continue
        if node.ttl_us is not None or all(side.bounded for side in node.inputs):
            continue
        if any(isinstance(side, n.LookupScan) for side in node.inputs):
            # The check of join sides reports this case.
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


# ---- LIMIT over rows that never end picks rows by chance of arrival.


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


# ---- UNION, INTERSECT and EXCEPT compare every row with all rows before it.


def set_operation_without_bound(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.SetOperation) or node.union_all or not unbounded(node):
            continue
        bounded_by_time = any(item.closed_by_watermark for item in node.fields)
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


# ---- ORDER BY over rows that never end would wait for the last row forever.


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


# ---- Scalar subqueries over streams, and IN and EXISTS inside other expressions, are never final.

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


# ---- A value that differs on replay must not reach state or keys: restarts would change results.

_KEPT = "{} gets another value when an epoch is replayed, and it would be kept in state"


def volatile_in_state(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not unbounded(node):
            continue
        changing = _breaks_changes(node)
        if changing is not None:
            yield _finding(
                node,
                "a row that is retracted must equal the row that was given, but an expression "
                "here gets another value each time",
                own_span(changing),
            )
        kept = node.state_expressions
        if kept is None:
            continue
        fields = fields_by_id(tuple(item for child in node.inputs for item in child.fields))
        columns = sorted({item.name for child in node.inputs for item in _volatile_fields(child)})
        if columns:
            yield _finding(node, _KEPT.format(f"the column {', '.join(columns)}"))
        elif any(is_volatile(part, fields) for part in kept):
            yield _finding(node, _KEPT.format("an expression here"))
        elif any(_volatile_filter(child) for child in node.inputs):
            yield _finding(node, _KEPT.format("a condition below"))


def _breaks_changes(node: n.Node) -> exp.Expr | None:
    """What in a stateless step over a changelog would change a row between + and -."""
    if not isinstance(node, n.Filter | n.Project | n.Explode):
        return None
    if node.input.changelog is ChangelogKind.APPEND:
        return None
    if isinstance(node, n.Filter):
        parts: tuple[exp.Expr, ...] = (node.condition,)
    else:
        parts = (node.generator,) if isinstance(node, n.Explode) else node.expressions
    return next((part for part in parts if is_volatile(part, {})), None)


def _volatile_fields(node: n.Node) -> list[n.Field]:
    return [item for item in node.fields if item.volatile]


def _volatile_filter(node: n.Node) -> bool:
    """A filter on the way down to the next operator that would let other rows through."""
    while isinstance(node, n.Filter | n.Project | n.Window | n.Explode):
        if isinstance(node, n.Filter) and is_volatile(
            node.condition, fields_by_id(node.input.fields)
        ):
            return True
        node = node.input
    return False


def _finding(node: n.Node, message: str, span: Span | None = None) -> Finding:
    return Finding(
        "TG-414",
        message,
        node,
        "use a column of the source, such as its event time; for processing time use a window over "
        "PROCTIME(), whose value is logged with the epoch.",
        span,
    )
