"""ALLOW LATENESS and LATE DATA TO are about windows that have closed."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.validate.finding import Finding, Subject, example_interval, time_column


def lateness_without_window(subject: Subject) -> Iterable[Finding]:
    emit = subject.emit
    if emit is None or (emit.lateness_us is None and emit.late_to is None):
        return
    judges = [node for node in subject.nodes() if node.judges_lateness]
    grouped = any(isinstance(node, n.Aggregate) for node in judges)
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
    if emit.late_to is not None and not judges:
        yield Finding(
            "TG-412",
            f"LATE DATA TO {emit.late_to}: no row can be too late for a query without windows of "
            "event time, time-bounded joins or OVER",
            subject.plan,
            f"remove LATE DATA TO {emit.late_to}.",
            emit.late_to_span,
        )
