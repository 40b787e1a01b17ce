"""Windows close by the watermark; a source without one would keep them open forever."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.sql.statements import EmitMode
from tidegate.validate.finding import Finding, Subject


def emit_close_without_watermark(subject: Subject) -> Iterable[Finding]:
    closing = (None, EmitMode.DEFAULT, EmitMode.WINDOW_CLOSE)
    by_close = (subject.emit.mode if subject.emit is not None else None) in closing
    for node in subject.nodes():
        waits = by_close and _closes_windows(node)
        if not waits and (_by_clock(node) or not node.needs_watermark):
            continue
        for scan in n.walk(node):
            if isinstance(scan, n.SideScan):
                yield _of_side(node, scan)
            if isinstance(scan, n.Scan) and not (scan.bounded or scan.has_watermark):
                yield _finding(node, scan)


def _closes_windows(node: n.Node) -> bool:
    return isinstance(node, n.Window) and not node.spec.processing_time


def _by_clock(node: n.Node) -> bool:
    """Whether windows of processing time are what closes: the clock always moves."""
    windows = [item.window for item in node.fields if item.window is not None]
    return any(window.processing_time for window in windows)


def _of_side(node: n.Node, scan: n.SideScan) -> Finding:
    why = ""
    if scan.side.is_late:
        why = f" (its rows came after the watermark of {scan.side.parent} had passed them)"
    other = "give out what changes: end the statement with EMIT CHANGES or EMIT ON UPDATE."
    return Finding(
        "TG-405",
        f"{scan.side.name} has no watermark{why}, so {_outcome(node)}",
        node,
        other if isinstance(node, n.Window) else "leave the event time out of the query.",
    )


def _outcome(node: n.Node) -> str:
    kinds = {n.Window: "its windows never close", n.Join: "this join never emits or forgets"}
    return kinds.get(type(node), "nothing says when its rows are complete")


def _finding(node: n.Node, scan: n.Scan) -> Finding:
    times = [item.name for item in scan.fields if item.type == "TIMESTAMP"]
    column = times[0] if times else "ts"
    return Finding(
        "TG-405",
        f"the source {scan.source.name} has no watermark, so {_outcome(node)}",
        node,
        f"declare it in CREATE SOURCE {scan.source.name}: WATERMARK FOR {column} AS {column} - "
        "INTERVAL '5' SECOND",
    )
