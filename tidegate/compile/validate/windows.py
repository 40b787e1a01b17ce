"""Checks of windows, OVER and MATCH_RECOGNIZE: the watermark must make results final."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from tidegate.compile.validate.finding import (
    EXAMPLE_INTERVAL,
    Finding,
    Subject,
    time_column,
    unbounded,
    user_sql,
    windowed_table,
)
from tidegate.plan import nodes as n
from tidegate.plan.nodes.over import (
    WindowFunction,
    is_final_at_watermark,
    leading_event_time,
)
from tidegate.sql.dialect import own_span
from tidegate.sql.match_recognize import to_text
from tidegate.types import RANK_FUNCTIONS, WHOLE_PARTITION_FUNCTIONS, ChangelogKind


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
            yield _nested_window_finding(node, item)
            continue
        time = user_sql(node.time, node)
        if item is not None and _reads_following_rows(node.input):
            yield _following_rows_finding(node, time)
            continue
        yield Finding(
            "TG-406",
            f"{node.spec.kind.value} is over {time}, which is not the event time: the "
            "watermark does not apply to it",
            node,
            f"{_use_event_time(node)}make {time} a computed column of the source with WATERMARK "
            "FOR it.",
        )


def _use_event_time(node: n.Node) -> str:
    time = time_column(node)
    return f"use the event time {time}, or " if time is not None else ""


def _reads_following_rows(node: n.Node) -> bool:
    """Return whether functions with OVER below a node wait for following rows."""
    overs = [below for below in n.walk(node) if isinstance(below, n.Over)]
    return any(below.mode is n.OverMode.TIME and below.rows_ahead for below in overs)


def _following_rows_finding(node: n.Window, time: str) -> Finding:
    return Finding(
        "TG-406",
        f"{node.spec.kind.value} is over {time}, but its input has a function with OVER that "
        "waits for following rows, so rows can be behind the watermark",
        node,
        f"apply the window first: FROM {node.spec.kind.value}(…, {time}, …), and add window_end "
        "to PARTITION BY.",
    )


def _nested_window_finding(node: n.Window, item: n.Field) -> Finding:
    """Return the finding for a window over a column of another window."""
    if item.window is not None and item.window.processing_time:
        return Finding(
            "TG-406",
            f"{node.spec.kind.value} is over {item.name} of a window in processing time, which is "
            "not the event time, so the watermark does not apply to it",
            node,
            f"use the event time {time_column(node) or 'of the source'} in the inner window.",
        )
    return Finding(
        "TG-406",
        f"{node.spec.kind.value} is over {item.name}, but rows of a window are emitted when the "
        "watermark passes its end, which is too late for its start",
        node,
        "use window_time, the last moment of the inner window.",
    )


def _is_timestamp(item: n.Field | None) -> bool:
    return item is not None and item.type in (None, "TIMESTAMP", "TIMESTAMP_NTZ")


# ---- ALLOW LATENESS and LATE DATA TO need operators that drop late rows


def lateness_without_window(subject: Subject) -> Iterable[Finding]:
    emit = subject.emit
    if emit is None or (emit.lateness_us is None and emit.late_to is None):
        return
    operators = [node for node in subject.nodes() if node.drops_late_rows]
    grouped = any(isinstance(node, n.Aggregate) for node in operators)
    if emit.lateness_us is not None and not grouped:
        time = time_column(subject.plan)
        window = f"add GROUP BY TUMBLE({time}, {EXAMPLE_INTERVAL}), or " if time else ""
        yield Finding(
            "TG-412",
            "ALLOW LATENESS keeps closed windows for corrections, but this query has no aggregate "
            "in windows of event time",
            subject.plan,
            f"{window}remove ALLOW LATENESS.",
            emit.lateness_span,
        )
    if emit.late_to is not None and not operators:
        yield Finding(
            "TG-412",
            f"LATE DATA TO {emit.late_to}: no row of this query can be late, because nothing in it "
            "waits for the watermark",
            subject.plan,
            f"remove LATE DATA TO {emit.late_to}{_hold_hint(subject.plan, emit.late_to)}.",
            emit.late_to_span,
        )


def _hold_hint(plan: n.Emit, late_to: str) -> str:
    """Suggest EMIT ON WINDOW CLOSE for a query that only filters and projects rows."""
    node: n.Node = plan.input
    while isinstance(node, n.Project | n.Filter):
        node = node.input
    time = time_column(node) if isinstance(node, n.Scan) else None
    if time is None or node.changelog is not ChangelogKind.APPEND:
        return ""
    return (
        "; or hold each row until the watermark passes it: "
        f"SELECT …, {time} … EMIT ON WINDOW CLOSE LATE DATA TO {late_to}"
    )


# ---- OVER on a stream needs the order of event time, or a window; otherwise every row is kept

_TTL = "CREATE STREAM … WITH (state_ttl = '1 day') AS … EMIT CHANGES"


def over_unsupported(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, n.TopN) and unbounded(node):
            yield from _limit_by_row(node)
        if isinstance(node, n.Over) and unbounded(node) and _keeps_all(node):
            yield from _unbounded_over(node)


def _keeps_all(node: n.Over) -> bool:
    """Return whether rows are never released from state."""
    changes = node.mode is n.OverMode.CHANGES
    return changes and node.ttl_us is None and node.closing_field is None


def _unbounded_over(node: n.Over) -> Iterable[Finding]:
    if node.input.changelog is not ChangelogKind.APPEND:
        yield Finding(
            "TG-411",
            "the input of this OVER may retract rows, so every row would be kept in state to "
            "correct its neighbours",
            node,
            "let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
        )
        return
    for function in node.window_functions:
        if not is_final_at_watermark(function, node.input.fields):
            yield _finding(node, function)


def _limit_by_row(node: n.TopN) -> Iterable[Finding]:
    """Yield a finding for a limit that is a column, because any row could move up later."""
    constant = node.limit is None or not node.limit.find(exp.Column)
    appended = node.input.changelog is ChangelogKind.APPEND
    if not constant and appended and not node.windowed and node.ttl_us is None:
        yield Finding(
            "TG-411",
            "the number of rows to keep differs between rows, so every row would be kept in state",
            node,
            f"compare {node.function.lower()}() with a number, or let state expire: CREATE STREAM "
            "… WITH (state_ttl = '1 day') AS …",
        )


def _finding(node: n.Over, function: WindowFunction) -> Finding:
    message, hint = _reason(node, function)
    return Finding("TG-411", message, node, hint, own_span(function.window))


def _reason(node: n.Over, function: WindowFunction) -> tuple[str, str]:
    if _orders_by_arrival(function):
        return (
            "OVER in the order of arrival would keep the state of every partition forever",
            "let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
        )
    name, time = function.name.lower(), time_column(node)
    corrections = f"or allow corrections of results: {_TTL}."
    if time is None:
        return (
            f"{name} is not ordered by an event time, so a later row could change all earlier "
            "results",
            f"declare WATERMARK FOR an event time in the source, and ORDER BY it; {corrections}",
        )
    waiting = _waiting_below(node)
    if waiting is not None:
        partitions = {other.partition for other in waiting.window_functions}
        return (
            "two functions look ahead with different PARTITION BY"
            if function.partition not in partitions
            else f"{name} looks ahead in rows of a subquery that looks ahead itself",
            f"use the same PARTITION BY for all functions that read following rows, {corrections}",
        )
    if leading_event_time(function, node.input.fields) is None:
        if function.name in RANK_FUNCTIONS:
            hint = (
                f"keep the first n of each partition: QUALIFY {name}() OVER (…) <= 10 EMIT "
                f"CHANGES; or ORDER BY {time}; {corrections}"
            )
        else:
            hint = (
                f"order by the event time: OVER (PARTITION BY … ORDER BY {time} ROWS BETWEEN 10 "
                f"PRECEDING AND CURRENT ROW); or add window_end to PARTITION BY, for results per "
                f"window; {corrections}"
            )
        return (
            f"{name} is not ordered by the event time, so a later row could change all earlier "
            "results",
            hint,
        )
    table = windowed_table(node)
    in_windows = "add window_end to PARTITION BY, for results per window"
    if table is not None:
        in_windows += f": … OVER (PARTITION BY …, window_end ORDER BY {time}) FROM {table}"
    if function.name in WHOLE_PARTITION_FUNCTIONS:
        return (
            f"{name} needs all rows of its partition, and a stream has no last row",
            f"{in_windows}; {corrections}",
        )
    if function.name == "LEAD":
        return (
            "lead with IGNORE NULLS may skip any number of rows, and a stream has no last row",
            f"remove IGNORE NULLS; {corrections}",
        )
    return (
        f"{name} reads all following rows, and a stream has no last row",
        "end the frame at CURRENT ROW or at 10 FOLLOWING; or add window_end to PARTITION BY, "
        f"for results per window; {corrections}",
    )


def _orders_by_arrival(function: WindowFunction) -> bool:
    """Return whether a function was written with ORDER BY PROCTIME()."""
    keys = function.order
    if not keys:
        return function.name == "ROW_NUMBER"
    return isinstance(keys[0], exp.Ordered) and isinstance(keys[0].this, exp.Null)


def _waiting_below(node: n.Over) -> n.Over | None:
    """Return an OVER among the inputs that waits for following rows."""
    below: n.Node = node.input
    while isinstance(below, n.Over | n.Filter | n.Project):
        if isinstance(below, n.Over) and below.mode is n.OverMode.TIME and below.rows_ahead:
            return below
        below = below.input
    return None


# ---- MATCH_RECOGNIZE on a stream needs append-only input, and a limit for open matches


def match_unsupported(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Match):
            continue
        if node.input.changelog is not ChangelogKind.APPEND:
            yield Finding(
                "TG-421",
                "the input of MATCH_RECOGNIZE may retract rows, so a match could become invalid",
                node,
                "match append-only rows: those of a source, or of windows with EMIT ON WINDOW "
                "CLOSE.",
            )
        elif unbounded(node) and _is_unlimited(node):
            yield Finding(
                "TG-420",
                f"a match of {to_text(node.pattern)} could stay open forever, with all its rows in "
                "state",
                node,
                f"limit the duration: PATTERN ({to_text(node.pattern)}) WITHIN INTERVAL '1' "
                "HOUR; or let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
            )


def _is_unlimited(node: n.Match) -> bool:
    """Return whether neither the number of rows nor the duration of an open match is limited."""
    return node.within_us is None and node.max_rows is None and node.ttl_us is None
