"""EMIT ON WINDOW CLOSE needs something that the watermark closes."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
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
    windows = any(isinstance(node, n.Window) for node in n.walk(below))
    appended = below.changelog is ChangelogKind.APPEND or bool(emit.lateness_us)
    if not appended and (below.is_final or windows):
        yield Finding(
            "TG-404",
            "EMIT ON WINDOW CLOSE: rows of this query may be retracted, so no window makes "
            "them final",
            subject.plan,
            "use EMIT CHANGES; or let windows make them final: PARTITION BY window_end in a "
            "ranking, GROUP BY TUMBLE(…) in an aggregate.",
            emit.span,
        )
    elif not below.is_final:
        yield Finding(
            "TG-404",
            "EMIT ON WINDOW CLOSE: this query has no window that could close",
            subject.plan,
            "remove EMIT: rows then come out as they arrive; or read them in windows: FROM "
            f"TUMBLE({table_name(below)}, {time_column(below)}, {example_interval()}).",
            emit.span,
        )
