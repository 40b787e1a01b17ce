"""The watermark speaks of the event time only; other columns cannot close a window."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.plan.properties import properties
from tidegate.sql.dialect import to_sql
from tidegate.validate.finding import Finding, Subject, time_column, unbounded


def window_not_event_time(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Window) or node.spec.processing_time or not unbounded(node):
            continue
        item = node.field(node.time_id) if node.time_id is not None else None
        if item is not None and item.role is not n.Role.PLAIN:
            continue
        if not properties(node.input).has_watermark and _is_timestamp(item):
            # Without any watermark the advice is to declare one: another check says so.
            continue
        written = item.name if item is not None else to_sql(node.time)
        yield Finding(
            "TG-406",
            f"{node.spec.kind.value} is over {written}, which is not the event time: the "
            "watermark says nothing about it",
            node,
            f"use the event time {time_column(node)}, or make {written} a computed column of the "
            "source with WATERMARK FOR it.",
        )


def _is_timestamp(item: n.Field | None) -> bool:
    return item is not None and item.type in (None, "TIMESTAMP", "TIMESTAMP_NTZ")
