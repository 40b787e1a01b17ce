"""Checks of the EMIT clause: when results are final or emitted."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.compile.validate.finding import (
    Finding,
    Subject,
    hidden_key,
    unbounded,
    window_hint,
)
from tidegate.plan import nodes as n
from tidegate.plan.bind.subqueries import SCALAR_SUBQUERY
from tidegate.sql.statements import EmitClause, EmitMode
from tidegate.types import ChangelogKind


def aggregate_without_emit(subject: Subject) -> Iterable[Finding]:
    scalars = [
        node
        for node in subject.nodes()
        if isinstance(node, n.Join) and node.predicate == SCALAR_SUBQUERY
    ]
    # The check of joins reports these with the same hint.
    without_ttl = [node for join in scalars if join.ttl_us is None for node in n.walk(join.right)]
    for node in subject.nodes():
        if not isinstance(node, n.Aggregate) or node.windowed or not unbounded(node):
            continue
        if node in without_ttl:
            continue
        if node.emit is None or node.emit.mode is EmitMode.DEFAULT:
            has_key = subject.plan.input.key is not None and not scalars
            window = "" if scalars else window_hint(node)
            update = " or EMIT ON UPDATE" if has_key else ""
            yield Finding(
                "TG-403",
                "this aggregate never emits: its groups have no window, and the query has no EMIT "
                "clause",
                node,
                f"{window}end the statement with EMIT CHANGES{update}.",
            )


# ---- The watermark closes windows; without one they stay open forever


def emit_close_without_watermark(subject: Subject) -> Iterable[Finding]:
    closing = (None, EmitMode.DEFAULT, EmitMode.WINDOW_CLOSE)
    emits_on_close = (subject.emit.mode if subject.emit is not None else None) in closing
    for node in subject.nodes():
        waits = emits_on_close and _closes_windows(node)
        if not waits and (_uses_processing_time(node) or not node.needs_watermark):
            continue
        for scan in n.walk(node):
            if isinstance(scan, n.SideScan):
                yield _side_stream_finding(node, scan)
            if isinstance(scan, n.Scan) and not (scan.bounded or scan.has_watermark):
                yield _source_finding(node, scan)


def _closes_windows(node: n.Node) -> bool:
    return isinstance(node, n.Window) and not node.spec.processing_time


def _uses_processing_time(node: n.Node) -> bool:
    """Return whether processing time, which always advances, closes windows of a node."""
    windows = [item.window for item in node.fields if item.window is not None]
    return any(window.processing_time for window in windows)


def _side_stream_finding(node: n.Node, scan: n.SideScan) -> Finding:
    reason = ""
    if scan.side.is_late:
        reason = f" (its rows are behind the watermark of {scan.side.parent})"
    emit_hint = "end the statement with EMIT CHANGES or EMIT ON UPDATE."
    return Finding(
        "TG-405",
        f"{scan.side.name} has no watermark{reason}, so {_outcome(node)}",
        node,
        emit_hint if isinstance(node, n.Window) else "remove the event time from the query.",
    )


def _outcome(node: n.Node) -> str:
    kinds = {n.Window: "its windows never close", n.Join: "this join never emits or drops rows"}
    return kinds.get(type(node), "its rows never become final")


def _source_finding(node: n.Node, scan: n.Scan) -> Finding:
    times = [item.name for item in scan.fields if item.type == "TIMESTAMP"]
    column = times[0] if times else "ts"
    return Finding(
        "TG-405",
        f"the source {scan.source.name} has no watermark, so {_outcome(node)}",
        node,
        f"declare it in CREATE SOURCE {scan.source.name}: WATERMARK FOR {column} AS {column} - "
        "INTERVAL '5' SECOND",
    )


# ---- EMIT ON WINDOW CLOSE needs windows that the watermark closes


def emit_close_without_window(subject: Subject) -> Iterable[Finding]:
    emit = subject.emit
    if emit is None or emit.mode is not EmitMode.WINDOW_CLOSE:
        return
    if not unbounded(subject.plan):
        return
    open_groups = [
        node
        for node in subject.nodes()
        if isinstance(node, n.Aggregate) and not node.windowed and unbounded(node)
    ]
    for node in open_groups:
        yield Finding(
            "TG-404",
            "EMIT ON WINDOW CLOSE: the groups of this aggregate have no window, so they never "
            "close",
            node,
            f"{window_hint(node)}end the statement with EMIT CHANGES.",
        )
    if not open_groups:
        yield from _not_final(subject, emit)


def _not_final(subject: Subject, emit: EmitClause) -> Iterable[Finding]:
    below = subject.plan.input
    appended = below.changelog is ChangelogKind.APPEND or bool(emit.lateness_us)
    if not appended:
        yield Finding(
            "TG-404",
            "EMIT ON WINDOW CLOSE: rows of this query can be retracted, so they are never final",
            subject.plan,
            f"use EMIT CHANGES{_partition_hint(subject)}.",
            emit.span,
        )
    elif not below.is_final:
        yield Finding(
            "TG-404",
            "EMIT ON WINDOW CLOSE: the result of this query has neither a window nor an event time",
            subject.plan,
            f"{_event_time_hint(below)}remove EMIT ON WINDOW CLOSE, to emit rows immediately.",
            emit.span,
        )


def _partition_hint(subject: Subject) -> str:
    """Suggest to rank within windows, if a ranking reads windows."""
    for node in subject.nodes():
        if isinstance(node, n.TopN | n.Over) and not getattr(node, "windowed", False):
            ends = [item.name for item in node.input.fields if item.role is n.Role.WINDOW_END]
            if ends and node.input.changelog is ChangelogKind.APPEND:
                return f"; or add {ends[0]} to PARTITION BY, for results per window"
    return ""


def _event_time_hint(below: n.Node) -> str:
    """Suggest to select the event time; return '' if that would not make rows final."""
    if not isinstance(below, n.Project):
        return ""
    below = below.input
    while isinstance(below, n.Filter):
        below = below.input
    times = [item.name for item in below.fields if item.is_event_time]
    if not isinstance(below, n.Scan | n.StreamReference) or len(times) != 1:
        return ""
    return f"add the event time to SELECT: SELECT …, {times[0]}; or "


# ---- EMIT ON UPDATE and EMIT EVERY need rows that change, and a key


def emit_nothing_to_update(subject: Subject) -> Iterable[Finding]:
    emit = subject.emit
    if emit is None or emit.mode not in (EmitMode.UPDATE, EmitMode.EVERY):
        return
    if not unbounded(subject.plan):
        return
    below = subject.plan.input
    if below.changelog is not ChangelogKind.APPEND and below.key is None:
        yield Finding(
            "TG-416",
            f"{emit.mode.value} replaces rows by key, but {_missing_key(subject)}",
            subject.plan,
            _key_hint(subject),
            emit.span,
        )
    elif below.changelog is ChangelogKind.APPEND:
        yield Finding(
            "TG-416",
            f"{emit.mode.value}: the rows of this query are never updated",
            subject.plan,
            f"remove {emit.mode.value}; or write EMIT CHANGES if you need the column _op.",
            emit.span,
        )


def _missing_key(subject: Subject) -> str:
    if hidden_key(subject.plan):
        return "the result does not contain the whole key"
    return "the result has no key that identifies a row"


def _key_hint(subject: Subject) -> str:
    sets = any(isinstance(node, n.Explode) and node.of_sets for node in subject.nodes())
    if sets:
        return (
            "select every column of GROUP BY, and grouping_id(); or use EMIT CHANGES, which needs "
            "no key."
        )
    sessions = any(
        isinstance(node, n.Aggregate) and node.merges_sessions for node in subject.nodes()
    )
    every = subject.emit is not None and subject.emit.mode is EmitMode.EVERY
    update = ", and use EMIT ON UPDATE" if sessions and every else ""
    missing = ", ".join(hidden_key(subject.plan))
    select = f"add the key to SELECT: {missing}{update}; or " if missing else ""
    return f"{select}use EMIT CHANGES, which needs no key."
