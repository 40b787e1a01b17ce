"""The watermark speaks of the event time only; other columns cannot close a window."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.validate.finding import Finding, Subject, time_column, unbounded, written


def window_not_event_time(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Window) or node.spec.processing_time or not unbounded(node):
            continue
        item = node.field(node.time_id) if node.time_id is not None else None
        if item is not None and item.on_time:
            continue
        if not node.input.has_watermark and _is_timestamp(item):
            # Without any watermark the advice is to declare one: another check says so.
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
            "watermark says nothing about it",
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
            "not the event time: the watermark says nothing about it",
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
