"""Checks for bounded state: DISTINCT, joins, set operations, sorts, limits and subqueries."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from tidegate.compile.validate.finding import (
    EXAMPLE_INTERVAL,
    Finding,
    Subject,
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
            yield from _deduplication(node)
        if not isinstance(node, n.Distinct) or not unbounded(node) or node.ttl_us is not None:
            continue
        if any(item.closed_by_watermark for item in node.fields):
            continue
        yield Finding(
            "TG-408",
            "DISTINCT on a stream would keep every row in state forever",
            node,
            f"add the event time to the columns: SELECT DISTINCT …, {time_column(node)}, or let "
            "state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
        )


def _deduplication(node: n.TopN) -> Iterable[Finding]:
    if not node.deduplicates or node.ttl_us is not None or node.closing_key is not None:
        return
    yield Finding(
        "TG-408",
        "keeping the first row of each key would keep every key in state forever",
        node,
        "let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …, or add the event time "
        f"to the key: PARTITION BY …, {time_column(node)}",
    )


# ---- A join of two streams without a time bound keeps every row forever


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
            f"this {node.predicate or 'join'} has no time bound, so it would keep every row of "
            "both sides in state forever",
            node,
            _bound_hint(node) + "let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
        )


def _bound_hint(node: n.Join) -> str:
    """Suggest a time bound for a join; return '' unless both sides have an event time."""
    left, right = node.times
    if left is None or right is None:
        return ""
    if node.predicate is not None:
        return (
            f"bound it in WHERE of the subquery: {right} BETWEEN {left} - INTERVAL '10' MINUTE AND "
            f"{left} + INTERVAL '10' MINUTE, or "
        )
    prefix = "AND" if node.condition is not None else "JOIN … ON"
    return (
        f"bound it: {prefix} {left} BETWEEN {right} - INTERVAL '10' MINUTE AND {right} + "
        "INTERVAL '10' MINUTE, or "
    )


# ---- LIMIT on a stream would depend on the order of arrival


def limit_unbounded(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, n.Limit) and unbounded(node):
            yield Finding(
                "TG-402",
                "LIMIT on a stream would emit the first rows to arrive, and then nothing",
                node,
                "add an order and EMIT CHANGES, to update the first rows when they change: ORDER "
                "BY … LIMIT 10 EMIT CHANGES; or use LIMIT inside a window.",
            )


# ---- UNION, INTERSECT and EXCEPT compare every row with all previous rows


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
            f"{node.operation}{' ALL' if node.all else ''} on streams would keep every row in "
            "state forever",
            node,
            hints[node.operation]
            + "or let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
        )


# ---- ORDER BY on a stream would wait for the last row forever


def sort_unbounded(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, n.Sort) and unbounded(node):
            yield Finding(
                "TG-401",
                "ORDER BY cannot emit a row before it has read the last one, and a stream has no "
                "last row",
                node,
                "remove ORDER BY, or keep the first rows: ORDER BY … LIMIT 10 EMIT CHANGES; or "
                "sort inside windows: SELECT …, window_end FROM "
                f"TUMBLE({table_name(node)}, {time_column(node)}, {EXAMPLE_INTERVAL}) ORDER BY …",
            )


# ---- Scalar subqueries over streams, and IN and EXISTS inside other expressions, are never final

_PREDICATE_HINT = (
    "combine [NOT] IN and [NOT] EXISTS with the rest of WHERE by AND only; for OR, write two "
    "queries and UNION them."
)
_SCALAR_HINT = (
    "use one aggregate that reads no column of the outer query; or make it a separate stream, "
    "aggregated in windows, and join that by window_end."
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
                "this subquery is evaluated for every row, but its result keeps changing: a "
                f"{'condition' if isinstance(node, n.Filter) else 'column'} cannot depend on it",
                node,
                _PREDICATE_HINT if _is_predicate(node) else _SCALAR_HINT,
                subquery.span,
            )


def _is_predicate(node: n.Filter | n.Project) -> bool:
    """Return whether the subqueries are predicates (IN, EXISTS), not scalar."""
    return isinstance(node, n.Filter) and node.condition.find(exp.In, exp.Exists) is not None


# ---- A value that differs on replay must not reach state or keys: restarts would change results

_VOLATILE = "{} is not deterministic: replaying an epoch would change its value in state"


def volatile_in_state(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not unbounded(node):
            continue
        expression = _volatile_in_changelog(node)
        if expression is not None:
            yield _finding(
                node,
                "a retraction must equal the row that it retracts, but this expression is not "
                "deterministic",
                own_span(expression),
            )
        expressions = node.state_expressions
        if expressions is None:
            continue
        fields = fields_by_id(tuple(item for child in node.inputs for item in child.fields))
        columns = sorted({item.name for child in node.inputs for item in _volatile_fields(child)})
        if columns:
            yield _finding(node, _VOLATILE.format(f"the column {', '.join(columns)}"))
        elif any(is_volatile(part, fields) for part in expressions):
            yield _finding(node, _VOLATILE.format("an expression here"))
        elif any(_volatile_filter(child) for child in node.inputs):
            message = (
                "a condition below is not deterministic: replaying an epoch would change state"
            )
            yield _finding(node, message)


def _volatile_in_changelog(node: n.Node) -> exp.Expr | None:
    """Return an expression that would make a retraction differ from the row it retracts."""
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
    """Return whether a filter below an operator could pass other rows when it is replayed."""
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
        "PROCTIME(), whose value is stored with the epoch.",
        span,
    )
