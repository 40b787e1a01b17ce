"""Checks for bounded state: DISTINCT, joins, set operations, sorts, limits and subqueries."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from tidegate.compile.validate.finding import (
    Finding,
    Subject,
    time_column,
    unbounded,
    windowed_table,
)
from tidegate.plan import nodes as n
from tidegate.plan.bind.joins import time_bound
from tidegate.plan.bind.scope import fields_by_id, is_volatile
from tidegate.plan.bind.subqueries import SCALAR_SUBQUERY
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span
from tidegate.types import MICROS, ChangelogKind, Span


def distinct_without_bound(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, n.TopN):
            yield from _deduplication(node)
        if not isinstance(node, n.Distinct) or not unbounded(node) or node.ttl_us is not None:
            continue
        if any(item.closed_by_watermark for item in node.fields):
            continue
        window_end = _window_end(node.input)
        time = window_end or time_column(node)
        can_add_time = time is not None and node.input.changelog is ChangelogKind.APPEND
        kind = "end of the window" if window_end is not None else "event time"
        add_time = f"add the {kind} to the columns: SELECT DISTINCT …, {time}, or "
        yield Finding(
            "TG-408",
            "DISTINCT on a stream would keep every different row in state forever",
            node,
            (add_time if can_add_time else "")
            + "let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
        )


def _window_end(node: n.Node) -> str | None:
    """Return the end of the window of an input, if the query does not select it."""
    while isinstance(node, n.Project | n.Filter):
        node = node.input
    if not isinstance(node, n.Window):
        return None
    ends = [item for item in node.fields if item.role is n.Role.WINDOW_END]
    return next((item.name for item in ends if item.closed_by_watermark), None)


def _deduplication(node: n.TopN) -> Iterable[Finding]:
    if not node.deduplicates or node.ttl_us is not None or node.closing_key is not None:
        return
    time = time_column(node)
    add_time = f", or add the event time to the key: PARTITION BY …, {time}" if time else ""
    yield Finding(
        "TG-408",
        "emitting the first row of each key once would keep every key in state forever",
        node,
        f"let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …{add_time}",
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
        one_sided = None if node.predicate is not None else _one_sided_bound(node)
        if node.predicate == SCALAR_SUBQUERY:
            message = (
                "the value of this scalar subquery changes over time, so every row would be kept "
                "in state to be compared again"
            )
        elif one_sided is not None:
            message, hint = one_sided
            yield Finding("TG-407", message, node, hint + _EXPIRE[False])
            continue
        else:
            message = (
                f"this {node.predicate or 'join'} has no time bound, so it would keep every row of "
                "both sides in state forever"
            )
        expire = _EXPIRE[node.predicate == SCALAR_SUBQUERY]
        yield Finding("TG-407", message, node, _bound_hint(node) + expire)


# The value of a scalar subquery changes, so a query with one emits changes.
_EXPIRE = {
    False: "let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
    True: "let state expire and emit changes: CREATE STREAM … WITH (state_ttl = '1 day') AS … EMIT "
    "CHANGES",
}


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


def _one_sided_bound(node: n.Join) -> tuple[str, str] | None:
    """Return the message and the hint for a join that is bounded in one direction only."""
    left, right = node.times
    if left is None or right is None or node.condition is None:
        return None
    sides = (fields_by_id(node.left.fields), fields_by_id(node.right.fields))
    for piece in ex.conjuncts(node.condition):
        bound = time_bound(piece, *sides)
        if bound is None or (bound.lower_us is None) is (bound.upper_us is None):
            continue
        earlier, later = (left, right) if bound.lower_us is None else (right, left)
        # A bound such as b.ts >= a.ts + INTERVAL '1' HOUR needs a larger distance.
        distance = bound.lower_us if bound.lower_us is not None else -(bound.upper_us or 0)
        minutes = 10 + max(distance // MICROS["minute"], 0)
        name = f"of {earlier.rpartition('.')[0]} " if "." in earlier else ""
        return (
            f"this join is bounded in one direction only: an old row {name}could still match a "
            f"new one, so rows {name}would stay in state forever",
            f"add the other bound: AND {later} <= {earlier} + INTERVAL '{minutes}' MINUTE, or ",
        )
    return None


# ---- LIMIT on a stream would depend on the order of arrival


def limit_unbounded(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Limit) or not unbounded(node):
            continue
        ordered = isinstance(node.input, n.Sort)
        message = "LIMIT on a stream would emit the first rows to arrive, and then nothing"
        hint = "keep the first rows in an order, and update them: ORDER BY … LIMIT 10 EMIT CHANGES"
        if ordered and node.count is not None:
            message = "the first rows in this order change with the rows that arrive"
            hint = "end the statement with EMIT CHANGES, to update them"
        elif ordered and node.offset is not None:
            message = "OFFSET without LIMIT needs the whole order, and a stream has no last row"
            offset = node.offset.name
            hint = (
                f"limit the rows, and update them: ORDER BY … LIMIT 10 OFFSET {offset} EMIT CHANGES"
            )
        rows = "ORDER BY … LIMIT" if ordered else "LIMIT"
        yield Finding("TG-402", message, node, hint + _in_windows(node, rows))


def _in_windows(node: n.Node, clause: str) -> str:
    """Suggest to apply a clause to each window; return an empty string without an event time."""
    table = windowed_table(node)
    if table is None:
        return "."
    return f"; or apply it to each window: SELECT …, window_end FROM {table} {clause} …"


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
    # Another check reports ORDER BY … LIMIT.
    limited = {id(node.input) for node in subject.nodes() if isinstance(node, n.Limit)}
    for node in subject.nodes():
        if isinstance(node, n.Sort) and unbounded(node) and id(node) not in limited:
            yield Finding(
                "TG-401",
                "ORDER BY cannot emit a row before it has read the last one, and a stream has no "
                "last row",
                node,
                "remove ORDER BY, or keep the first rows: ORDER BY … LIMIT 10 EMIT CHANGES"
                + _in_windows(node, "ORDER BY"),
            )


# ---- Scalar subqueries over streams, and IN and EXISTS inside other expressions, are never final

_PREDICATE = (
    "IN and EXISTS with a subquery must be connected to the rest of the condition by AND",
    "for OR, write two queries that select the event time, and combine them with UNION.",
)
_SCALAR = (
    "a scalar subquery must be a single aggregate, without GROUP BY and without columns of the "
    "outer query",
    "write (SELECT max(x) FROM …), with state_ttl and EMIT CHANGES; or aggregate in windows in "
    "another stream, and join it on window_end.",
)


def subquery_predicate(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Filter | n.Project):
            continue
        for subquery in node.subqueries:
            if subquery.bounded and node.input.bounded:
                continue
            message, hint = _PREDICATE if _is_predicate(node) else _SCALAR
            yield Finding("TG-410", message, node, hint, subquery.span)


def _is_predicate(node: n.Filter | n.Project) -> bool:
    """Return whether the subqueries are predicates (IN, EXISTS), not scalar."""
    return isinstance(node, n.Filter) and node.condition.find(exp.In, exp.Exists) is not None


# ---- A value that differs on replay must not reach state or keys: restarts would change results

_VOLATILE = "{} has another value when an epoch is retried, so the result would differ"
_CLOCK_FUNCTIONS = frozenset(
    {"NOW", "CURRENT_TIMESTAMP", "CURRENT_DATE", "CURDATE", "LOCALTIMESTAMP", "CURRENT_TIME"}
)
_STORED_VALUE_HINT = (
    "use a column of the source, such as its event time; for processing time use a window over "
    "PROCTIME(), whose value is stored with the epoch."
)


def volatile_in_state(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not unbounded(node):
            continue
        expression = _volatile_in_changelog(node)
        if expression is not None:
            call = _volatile_call(expression)
            yield _finding(
                node,
                "a retraction must equal the row that it retracts, but {sql} has another value "
                "each time",
                own_span(call),
            )
        expressions = node.state_expressions
        if expressions is None:
            continue
        fields = fields_by_id(tuple(item for child in node.inputs for item in child.fields))
        columns = sorted({item.name for child in node.inputs for item in _volatile_fields(child)})
        volatile = next((part for part in expressions if is_volatile(part, fields)), None)
        filters = [_volatile_filter(child) for child in node.inputs]
        condition = next((item for item in filters if item is not None), None)
        if columns:
            yield _finding(node, _VOLATILE.format(f"column {', '.join(columns)}"))
        elif volatile is not None:
            call = _volatile_call(volatile)
            yield _finding(node, _VOLATILE.format("{sql}"), own_span(call))
        elif condition is not None:
            yield _filter_finding(node, condition)


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


def _volatile_filter(node: n.Node) -> n.Filter | None:
    """Return a filter below an operator that could pass other rows when it is replayed."""
    while isinstance(node, n.Filter | n.Project | n.Window | n.Explode):
        if isinstance(node, n.Filter) and is_volatile(
            node.condition, fields_by_id(node.input.fields)
        ):
            return node
        node = node.input
    return None


def _filter_finding(node: n.Node, rows: n.Filter) -> Finding:
    """Return the finding for a condition that passes other rows when an epoch is retried."""
    fields = fields_by_id(rows.input.fields)
    pieces = ex.conjuncts(rows.condition)
    piece = next((part for part in pieces if is_volatile(part, fields)), rows.condition)
    call = _volatile_call(piece)
    hint = _STORED_VALUE_HINT
    if ex.is_random(call):
        column = rows.input.fields[0].name
        hint = f"to sample rows, use the hash of a column: WHERE pmod(hash({column}), 10) = 0"
    elif ex.call_name(call) in _CLOCK_FUNCTIONS:
        hint = "remove the condition: the watermark already limits how long rows stay in state."
    message = "{sql} selects other rows when an epoch is retried, so the result would differ"
    return Finding("TG-414", message, node, hint, own_span(call), own_span(piece))


def _volatile_call(tree: exp.Expr) -> exp.Expr:
    """Return the first volatile call in an expression; the expression itself if there is none."""
    calls = (call for name, call in ex.calls(tree) if ex.is_volatile_call(name, call))
    return next(calls, tree)


def _finding(node: n.Node, message: str, span: Span | None = None) -> Finding:
    return Finding("TG-414", message, node, _STORED_VALUE_HINT, span)
