"""EMIT ON WINDOW CLOSE needs something that the watermark closes."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.plan.properties import deduplicates, properties
from tidegate.sql.statements import Emit, EmitMode
from tidegate.types import ChangelogKind
from tidegate.validate.finding import (
    Finding,
    Subject,
    example_interval,
    table_name,
    time_column,
    unbounded,
    window_advice,
)

_CLOSED_JOINS = (
    n.JoinKind.INTERVAL,
    n.JoinKind.WINDOW,
    n.JoinKind.TEMPORAL,
    n.JoinKind.ASOF,
)


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
            f"{window_advice(node)}end the statement with EMIT CHANGES.",
        )
    if not open_groups:
        yield from _not_final(subject, emit)


def _not_final(subject: Subject, emit: Emit) -> Iterable[Finding]:
    below = subject.plan.input
    final = _final(below)
    windows = any(isinstance(node, n.Window) for node in n.walk(below))
    appended = properties(below).changelog is ChangelogKind.APPEND or bool(emit.lateness_us)
    if not appended and (final or windows):
        yield Finding(
            "TG-404",
            "EMIT ON WINDOW CLOSE: rows of this query may be retracted, so no window makes "
            "them final",
            subject.plan,
            "use EMIT CHANGES; or let windows make them final: PARTITION BY window_end in a "
            "ranking, GROUP BY TUMBLE(…) in an aggregate.",
            emit.span,
        )
    elif not final:
        yield Finding(
            "TG-404",
            "EMIT ON WINDOW CLOSE: this query has no window that could close",
            subject.plan,
            "remove EMIT: rows then come out as they arrive; or read them in windows: FROM "
            f"TUMBLE({table_name(below)}, {time_column(below)}, {example_interval()}).",
            emit.span,
        )


def _final(node: n.Node) -> bool:
    """Whether the watermark, or the end of the input, makes every row of a node final."""
    if isinstance(node, n.Hold | n.Window | n.Over):
        return True
    if isinstance(node, n.TopN) and deduplicates(node):
        return node.at_close
    if isinstance(node, n.Distinct) and node.at_close:
        return True
    if isinstance(node, n.Aggregate | n.TopN):
        return node.windowed or properties(node).bounded
    if isinstance(node, n.Join) and node.kind in _CLOSED_JOINS:
        return True
    if isinstance(node, n.Join) and node.kind is n.JoinKind.LOOKUP:
        return _final(node.left)
    bounded = properties(node).bounded
    return bounded or (bool(node.inputs) and all(_final(child) for child in node.inputs))
