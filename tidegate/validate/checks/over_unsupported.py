"""OVER on a stream goes along event time or waits for a window; else every row must be kept."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.nodes.over import Looks, follows_time, time_of
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span
from tidegate.types import ChangelogKind
from tidegate.validate.finding import Finding, Subject, time_column, unbounded

_TTL = "CREATE STREAM … WITH (state_ttl = '1 day') AS … EMIT CHANGES"


def over_unsupported(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, n.TopN) and unbounded(node):
            yield from _limit_by_row(node)
        if isinstance(node, n.Over) and unbounded(node) and _keeps_all(node):
            yield from _unbounded(node)


def _keeps_all(node: n.Over) -> bool:
    """Whether nothing says when a row is not needed any more."""
    changes = node.mode is n.OverMode.CHANGES
    return changes and node.ttl_us is None and node.closing_field is None


def _unbounded(node: n.Over) -> Iterable[Finding]:
    if node.input.changelog is not ChangelogKind.APPEND:
        yield Finding(
            "TG-411",
            "the input of this OVER changes rows it has already given, so every row must be "
            "remembered to correct its neighbours",
            node,
            "let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
        )
        return
    for looks in node.looks:
        if not follows_time(looks, node.input.fields):
            yield _finding(node, looks)


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


def _finding(node: n.Over, looks: Looks) -> Finding:
    message, hint = _reason(node, looks)
    return Finding("TG-411", message, node, hint, own_span(looks.window))


def _reason(node: n.Over, looks: Looks) -> tuple[str, str]:
    name, time = looks.name.lower(), time_column(node)
    corrected = f"or let results be corrected: {_TTL}."
    if _waits_below(node):
        return (
            f"{name} cannot go by event time, because rows below it wait for rows that follow them",
            f"let all functions that look ahead by rows have the same PARTITION BY, {corrected}",
        )
    if time_of(looks, node.input.fields) is None:
        if looks.name in ex.RANK_FUNCTIONS:
            hint = (
                f"keep the first n of each partition: QUALIFY {name}() OVER (…) <= 10 with EMIT "
                f"CHANGES, or ORDER BY {time}, {corrected}"
            )
        else:
            hint = (
                f"OVER (PARTITION BY … ORDER BY {time} ROWS BETWEEN 10 PRECEDING AND CURRENT ROW); "
                f"over all rows of a window add window_end to PARTITION BY; {corrected}"
            )
        return (
            f"{name} is not ordered by the event time, so any later row could change all results "
            "before it",
            hint,
        )
    return (
        f"{name} looks at all rows that follow, and these never end",
        f"let the frame end at CURRENT ROW or at 10 FOLLOWING, or add window_end to PARTITION BY, "
        f"{corrected}",
    )


def _waits_below(node: n.Over) -> bool:
    below: n.Node = node.input
    while isinstance(below, n.Over | n.Filter | n.Project):
        if isinstance(below, n.Over) and below.mode is n.OverMode.TIME and below.rows_ahead:
            return True
        below = below.input
    return False
