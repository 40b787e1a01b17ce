"""Cuts a logical plan into stages (Spark SQL) and operators (state)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.plan import nodes as n

# The operators that can run; a plan that needs another one is refused when it is started.
BUILT_OPERATORS: frozenset[str] = frozenset(
    {"window_aggregate", "session_aggregate", "group_aggregate", "hold_until_close"}
    | {"normalize_upserts", "interval_join", "window_join", "regular_join", "top_n", "window_top_n"}
    | {"distinct"}
)


@dataclass(frozen=True, eq=False)
class Operator:
    """A node that keeps state, and the stages that feed its ports."""

    name: str
    node: n.Node
    inputs: tuple[Stage, ...]


@dataclass(frozen=True, eq=False)
class Stage:
    """A stateless run: one SQL text over sources and operators."""

    node: n.Node
    scans: tuple[n.Scan | n.SideScan, ...]
    operators: tuple[Operator, ...]


def plan_stages(plan: n.Node) -> Stage:
    """The last stage of a plan; everything else hangs below it."""
    leaves = list(_leaves(plan))
    scans = tuple(leaf for leaf in leaves if isinstance(leaf, n.Scan | n.SideScan))
    operators = tuple(
        Operator(operator_name(leaf), leaf, tuple(plan_stages(child) for child in leaf.inputs))
        for leaf in leaves
        if not isinstance(leaf, n.Scan | n.SideScan | n.LookupScan | n.Values)
    )
    return Stage(plan, scans, operators)


def _leaves(node: n.Node) -> Iterator[n.Node]:
    """Where a stage ends: sources and stateful nodes, left to right."""
    if not is_stateless(node):
        yield node
        return
    if not node.inputs:
        yield node
    for child in node.inputs:
        yield from _leaves(child)


def is_stateless(node: n.Node) -> bool:
    """Whether Spark SQL alone can run this node, epoch by epoch."""
    if isinstance(node, n.Window):
        return node.grouped or not (node.makes_sessions or node.spec.processing_time)
    if isinstance(node, n.SetOperation):
        return node.operation == "UNION" and node.all
    if isinstance(node, n.Filter | n.Project) and node.subqueries:
        return False
    return isinstance(node, n.STATELESS)


def operator_name(node: n.Node) -> str:
    """The operator that runs a stateful node."""
    if isinstance(node, n.Aggregate):
        if node.makes_sessions:
            return "session_aggregate"
        return "window_aggregate" if node.windowed else "group_aggregate"
    if isinstance(node, n.Join):
        return f"{node.kind.value}_join"
    if isinstance(node, n.TopN):
        return "window_top_n" if node.windowed else "top_n"
    if isinstance(node, n.Window):
        return "session_window" if not node.spec.processing_time else "processing_time_window"
    names = {
        n.Hold: "hold_until_close",
        n.Over: "over",
        n.Distinct: "distinct",
        n.Normalize: "normalize_upserts",
        n.Sort: "sort",
        n.Limit: "limit",
    }
    if isinstance(node, n.SetOperation):
        return node.operation.lower()
    return names.get(type(node), "subquery")


def all_operators(stage: Stage) -> Iterator[Operator]:
    """Every operator of a plan, top down."""
    for operator in stage.operators:
        yield operator
        for below in operator.inputs:
            yield from all_operators(below)


def all_scans(stage: Stage) -> Iterator[n.Scan | n.SideScan]:
    """Every source a plan reads, in the order Spark will number them."""
    yield from stage.scans
    for operator in stage.operators:
        for below in operator.inputs:
            yield from all_scans(below)


def needs_clock(stage: Stage) -> bool:
    """Whether something depends on processing time, so that epochs must come without rows too."""
    for operator in all_operators(stage):
        node = operator.node
        if getattr(node, "ttl_us", None) is not None:
            return True
        emit = getattr(node, "emit", None)
        if emit is not None and emit.every_us is not None:
            return True
        window = getattr(node, "window", None)
        if window is not None and window.processing_time:
            return True
        if isinstance(node, n.Distinct) and any(item.window_by_clock for item in node.fields):
            return True
    scans = [scan for scan in all_scans(stage) if isinstance(scan, n.Scan)]
    return bool(stage.operators) and any(
        scan.source.options["idle_timeout"] is not None for scan in scans
    )
