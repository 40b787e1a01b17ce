"""An aggregate with neither window nor EMIT has no moment at which its result is due."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.sql.statements import EmitMode
from tidegate.validate.finding import Finding, Subject, unbounded, window_advice


def aggregate_without_emit(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Aggregate) or node.windowed or not unbounded(node):
            continue
        if node.emit is None or node.emit.mode is EmitMode.DEFAULT:
            yield Finding(
                "TG-403",
                "this aggregate never ends: its groups have no window, and nothing says when to "
                "emit them",
                node,
                f"{window_advice(node)}end the statement with EMIT CHANGES or EMIT ON UPDATE.",
            )
