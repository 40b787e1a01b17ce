"""The watermark speaks of the event time only; other columns cannot close a window."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from tidegate.compile.validate.finding import (
    Finding,
    Subject,
    example_interval,
    time_column,
    unbounded,
    written,
)
from tidegate.plan import nodes as n
from tidegate.plan.nodes.over import WindowFunction, is_final_at_watermark, leading_event_time
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span
from tidegate.sql.match_recognize import text_of
from tidegate.types import ChangelogKind


def window_not_event_time(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Window) or node.spec.processing_time or not unbounded(node):
            continue
        item = node.field(node.time_id) if node.time_id is not None else None
        if item is not None and item.is_event_time:
            continue
        if not node.input.has_watermark and _is_timestamp(item):
            # Another check reports a missing watermark.
            continue
        if item is not None and item.window is not None:
            yield _of_window(node, item)
            continue
        shown = written(node.time, node)
        if item is not None and _looked_ahead(node.input):
            yield _after_looking_ahead(node, shown)
            continue
        yield Finding(
            "TG-406",
            f"{node.spec.kind.value} is over {shown}, which is not the event time: the "
            "watermark does not apply to it",
            node,
            f"use the event time {time_column(node)}, or make {shown} a computed column of the "
            "source with WATERMARK FOR it.",
        )


def _looked_ahead(node: n.Node) -> bool:
    """Whether rows come from functions that wait for the rows behind them."""
    overs = [below for below in n.walk(node) if isinstance(below, n.Over)]
    return any(below.mode is n.OverMode.TIME and below.rows_ahead for below in overs)


def _after_looking_ahead(node: n.Window, shown: str) -> Finding:
    return Finding(
        "TG-406",
        f"{node.spec.kind.value} is over {shown}, but below it a function with OVER looks ahead by "
        "rows: its rows come out with the ones that follow, however late that is",
        node,
        f"make the windows first: FROM {node.spec.kind.value}(…, {shown}, …), and add window_end "
        "to PARTITION BY.",
    )


def _of_window(node: n.Window, item: n.Field) -> Finding:
    """Windows over windows: the start is too early, and the clock is not the event time."""
    if item.window is not None and item.window.processing_time:
        return Finding(
            "TG-406",
            f"{node.spec.kind.value} is over {item.name} of a window in processing time, which is "
            "not the event time, so the watermark does not apply to it",
            node,
            f"use the event time {time_column(node)} in the inner window.",
        )
    return Finding(
        "TG-406",
        f"{node.spec.kind.value} is over {item.name}, but rows of a window come out when the "
        "watermark has passed its end: they would be too late for their start",
        node,
        "use window_time, the last moment of the inner window.",
    )


def _is_timestamp(item: n.Field | None) -> bool:
    return item is not None and item.type in (None, "TIMESTAMP", "TIMESTAMP_NTZ")


# ---- ALLOW LATENESS and LATE DATA TO are about windows that have closed.


def lateness_without_window(subject: Subject) -> Iterable[Finding]:
    emit = subject.emit
    if emit is None or (emit.lateness_us is None and emit.late_to is None):
        return
    operators = [node for node in subject.nodes() if node.drops_late_rows]
    grouped = any(isinstance(node, n.Aggregate) for node in operators)
    if emit.lateness_us is not None and not grouped:
        yield Finding(
            "TG-412",
            "ALLOW LATENESS keeps closed windows for corrections, but this query has no aggregate "
            "in windows of event time",
            subject.plan,
            f"add GROUP BY TUMBLE({time_column(subject.plan)}, {example_interval()}), or remove "
            "ALLOW LATENESS.",
            emit.lateness_span,
        )
    if emit.late_to is not None and not operators:
        yield Finding(
            "TG-412",
            f"LATE DATA TO {emit.late_to}: no row can be too late for a query without windows of "
            "event time, time-bounded joins or OVER",
            subject.plan,
            f"remove LATE DATA TO {emit.late_to}.",
            emit.late_to_span,
        )


# ---- OVER on a stream goes along event time or waits for a window; else every row must be kept.

_TTL = "CREATE STREAM … WITH (state_ttl = '1 day') AS … EMIT CHANGES"


def over_unsupported(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, n.TopN) and unbounded(node):
            yield from _limit_by_row(node)
        if isinstance(node, n.Over) and unbounded(node) and _keeps_all(node):
            yield from _unbounded(node)


def _keeps_all(node: n.Over) -> bool:
    """Return True if rows are never released from state."""
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
    for function in node.window_functions:
        if not is_final_at_watermark(function, node.input.fields):
            yield _finding(node, function)


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


def _finding(node: n.Over, function: WindowFunction) -> Finding:
    message, hint = _reason(node, function)
    return Finding("TG-411", message, node, hint, own_span(function.window))


def _reason(node: n.Over, function: WindowFunction) -> tuple[str, str]:
    name, time = function.name.lower(), time_column(node)
    corrected = f"or let results be corrected: {_TTL}."
    if _waits_below(node):
        return (
            f"{name} cannot go by event time, because rows below it wait for rows that follow them",
            f"let all functions that look ahead by rows have the same PARTITION BY, {corrected}",
        )
    if leading_event_time(function, node.input.fields) is None:
        if function.name in ex.RANK_FUNCTIONS:
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


# ---- MATCH_RECOGNIZE on a stream needs rows that stay, and something that ends an open match.


def match_unsupported(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Match):
            continue
        if node.input.changelog is not ChangelogKind.APPEND:
            yield Finding(
                "TG-421",
                "the input of MATCH_RECOGNIZE changes rows it has already given, so a match could "
                "become none",
                node,
                "match rows that stay: those of a source, or of windows with EMIT ON WINDOW CLOSE.",
            )
        elif unbounded(node) and _waits_for_ever(node):
            yield Finding(
                "TG-420",
                f"a match of {text_of(node.pattern)} may stay open for ever, and all its rows must "
                "be remembered",
                node,
                f"limit the duration: PATTERN ({text_of(node.pattern)}) WITHIN INTERVAL '1' "
                "HOUR; or let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
            )


def _waits_for_ever(node: n.Match) -> bool:
    """Return True if neither the number of rows nor the duration of an open match is limited."""
    return node.within_us is None and node.max_rows is None and node.ttl_us is None
