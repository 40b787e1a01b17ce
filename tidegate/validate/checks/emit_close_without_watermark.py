"""Windows close by the watermark; a source without one would keep them open forever."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.plan.properties import properties
from tidegate.sql.statements import EmitMode
from tidegate.validate.finding import Finding, Subject


def emit_close_without_watermark(subject: Subject) -> Iterable[Finding]:
    mode = subject.emit.mode if subject.emit is not None else EmitMode.WINDOW_CLOSE
    if mode is not EmitMode.WINDOW_CLOSE:
        return
    for node in subject.nodes():
        if not _waits_for_watermark(node):
            continue
        for scan in n.walk(node):
            if not isinstance(scan, n.Scan) or scan.source.bounded:
                continue
            if not properties(scan).has_watermark:
                yield _finding(node, scan)


def _waits_for_watermark(node: n.Node) -> bool:
    if isinstance(node, n.Window):
        return not node.spec.processing_time
    if isinstance(node, n.Join):
        return node.kind in (n.JoinKind.TEMPORAL, n.JoinKind.ASOF)
    return False


def _finding(node: n.Node, scan: n.Scan) -> Finding:
    times = [item.name for item in scan.fields if item.type == "TIMESTAMP"]
    column = times[0] if times else "ts"
    what = "its windows never close" if isinstance(node, n.Window) else "this join never emits"
    return Finding(
        "TG-405",
        f"the source {scan.source.name} has no watermark, so {what}",
        node,
        f"declare it in CREATE SOURCE {scan.source.name}: WATERMARK FOR {column} AS {column} - "
        "INTERVAL '5' SECOND",
    )
