"""OVER on a stream can look back along event time, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.sql import expressions as ex
from tidegate.types import ChangelogKind
from tidegate.validate.finding import Finding, Subject, time_column, unbounded

_LOOKS_AHEAD = frozenset({"LEAD", "NTILE", "PERCENT_RANK", "CUME_DIST"})


def over_unsupported(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, n.TopN) and unbounded(node):
            yield from _limit_by_row(node)
        if not isinstance(node, n.Over) or not unbounded(node):
            continue
        for function in node.functions:
            yield from _check(node, function)
        retracts = node.input.changelog is not ChangelogKind.APPEND
        if retracts and node.ttl_us is None:
            yield Finding(
                "TG-411",
                "the input of this OVER changes rows it has already given, so every row must be "
                "remembered to correct its neighbours",
                node,
                "let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
            )


def _limit_by_row(node: n.TopN) -> Iterable[Finding]:
    """A limit that differs by row lets any row come back later, so all must be kept."""
    fixed = node.limit is None or not node.limit.find(exp.Column)
    appended = node.input.changelog is ChangelogKind.APPEND
    if not fixed and appended and not node.windowed and node.ttl_us is None:
        yield Finding(
            "TG-411",
            "how many rows to keep differs from row to row, so every row must be remembered",
            node,
            f"compare {node.function.lower()}() with a number, or let state expire: CREATE STREAM "
            "… WITH (state_ttl = '1 day') AS …",
        )


def _check(node: n.Over, function: exp.Expr) -> Iterable[Finding]:
    name = _name(function)
    frame = function.args.get("spec")
    time = time_column(node)
    if name in _LOOKS_AHEAD or _follows(frame):
        yield _finding(
            node,
            f"{name.lower()} looks at rows that have not come yet",
            "look back instead: lag(…), or a frame that ends at CURRENT ROW.",
        )
    elif not _ordered_by_time(node, function):
        if name in ex.RANK_FUNCTIONS:
            hint = (
                f"keep the first n of each partition: QUALIFY {name.lower()}() OVER (…) <= 10 with "
                f"EMIT CHANGES, or ORDER BY {time}."
            )
        elif _by_window(node, function):
            yield _finding(
                node,
                f"{name.lower()} over all rows of a window is known when the window is complete, "
                "and OVER does not wait for that",
                "make the total a stream: CREATE STREAM totals AS SELECT window_start, window_end, "
                "… GROUP BY window_start, window_end; then JOIN totals AS t ON w.window_start = "
                "t.window_start AND w.window_end = t.window_end.",
            )
            return
        else:
            hint = (
                f"OVER (PARTITION BY … ORDER BY {time} ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)"
            )
        yield _finding(
            node,
            f"{name.lower()} is not ordered by the event time, so any later row could change all "
            "results before it",
            hint,
        )


def _name(function: exp.Expr) -> str:
    inner = function.this
    while isinstance(inner, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        inner = inner.this
    return ex.call_name(inner) or "this function"


def _follows(frame: exp.Expr | None) -> bool:
    if frame is None:
        return False
    sides = (str(frame.args.get("start_side") or ""), str(frame.args.get("end_side") or ""))
    return "FOLLOWING" in (sides[0].upper(), sides[1].upper())


def _ordered_by_time(node: n.Over, function: exp.Expr) -> bool:
    order = function.args.get("order")
    if order is None or not order.expressions:
        return False
    first = order.expressions[0]
    target = first.this if isinstance(first, exp.Ordered) else first
    descending = isinstance(first, exp.Ordered) and bool(first.args.get("desc"))
    on_time = {item.id for item in node.input.fields if item.on_time}
    return isinstance(target, exp.Column) and target.name in on_time and not descending


def _by_window(node: n.Over, function: exp.Expr) -> bool:
    """Whether the whole of a window is asked for: share of a window's total, and the like."""
    columns = {part.name for part in function.args.get("partition_by") or []}
    windows = {item.id for item in node.input.fields if item.window is not None}
    return function.args.get("order") is None and bool(columns & windows)


def _finding(node: n.Over, message: str, hint: str) -> Finding:
    return Finding("TG-411", message, node, hint)
