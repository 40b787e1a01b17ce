"""Which operator of a query judges that rows came too late, and which columns such rows have."""

from __future__ import annotations

from tidegate.plan import nodes as n
from tidegate.plan.properties import deduplicates


def judges_lateness(node: n.Node) -> bool:
    """Whether the watermark makes rows too late for this node."""
    if isinstance(node, n.Join):
        return node.kind not in (n.JoinKind.REGULAR, n.JoinKind.LOOKUP)
    if isinstance(node, n.Aggregate):
        clock = node.window is not None and node.window.processing_time
        return node.windowed and not clock
    if isinstance(node, n.Window):
        return node.makes_sessions
    if isinstance(node, n.TopN):
        closes = deduplicates(node) and node.closing_key is not None
        return node.windowed or node.at_close or closes
    if isinstance(node, n.Distinct):
        return node.timed and not any(item.window_by_clock for item in node.fields)
    return isinstance(node, n.Over | n.Hold)


def first_judges(plan: n.Node) -> list[n.Node]:
    """Those that judge the rows which a query reads; streams that it reads judge their own.

    What one of them lets pass is not late for those above it. There are several where rows come in
    by several ways, as in UNION ALL of two aggregates.
    """
    found: list[n.Node] = []
    _look(plan, None, found)
    return found


def _look(node: n.Node, judge: n.Node | None, found: list[n.Node]) -> None:
    """Go down to where rows come in, and note the judge that they meet first."""
    judge = node if judges_lateness(node) else judge
    inputs = () if isinstance(node, n.Inlined) else node.inputs
    for child in inputs:
        _look(child, judge, found)
    brings_rows = not inputs and not isinstance(node, n.LookupScan | n.Values)
    if brings_rows and judge is not None and judge not in found:
        found.append(judge)


def late_rows_of(judge: n.Node) -> n.Node:
    """The node whose columns late rows have: as they were before the operator made windows."""
    below = judge.inputs[0]
    if isinstance(below, n.Window) and (below.grouped or isinstance(judge, n.Hold)):
        return below.input
    return below
