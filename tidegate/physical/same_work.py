"""Operators of several streams that do the same work: one step serves all of them.

What their state means is the same text. Beyond that everything must be equal that the text leaves
out: limits, how long rows live, how far times may be ahead.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.physical.operator_kind import calls_user_functions, reads_user_functions
from tidegate.physical.planner import FedPort, LeafPlan, OperatorPlan, ScanPlan
from tidegate.plan import nodes as n


def is_shareable(plan: OperatorPlan) -> bool:
    """Whether another stream could use what it gives, and what comes by on its side.

    Late rows belong to their stream. Lookups may find something else the next time, and functions
    of the user may be others by the same name.
    """
    if plan.operator.late is not None or reads_user_functions(plan.node):
        return False
    return all(_is_plain(fed) for fed in plan.ports)


def _is_plain(fed: FedPort) -> bool:
    if calls_user_functions(fed.port.node, {leaf.node for leaf in fed.leaves}):
        return False
    return all(
        is_shareable(leaf)
        if isinstance(leaf, OperatorPlan)
        else isinstance(leaf, ScanPlan) and isinstance(leaf.node, n.Scan)
        for leaf in fed.leaves
    )


def do_the_same(one: OperatorPlan, other: OperatorPlan) -> bool:
    """Whether both give the same rows if they are given the same; both are shareable."""
    if (one.meaning, *_settings(one)) != (other.meaning, *_settings(other)):
        return False
    ports = zip(one.ports, other.ports, strict=True)
    return one.operator == other.operator and all(_ports_alike(a, b) for a, b in ports)


def _settings(plan: OperatorPlan) -> tuple[object, ...]:
    return plan.by_clock, plan.held_back_us, plan.arrival, plan.clocked, len(plan.ports)


def _ports_alike(one: FedPort, other: FedPort) -> bool:
    times = [(o.idle_us, d) for o, (_, d) in zip(one.origins, one.delays, strict=True)]
    others = [(o.idle_us, d) for o, (_, d) in zip(other.origins, other.delays, strict=True)]
    if times != others or len(one.leaves) != len(other.leaves):
        return False
    return all(_leaves_alike(a, b) for a, b in zip(one.leaves, other.leaves, strict=True))


def _leaves_alike(one: LeafPlan, other: LeafPlan) -> bool:
    if isinstance(one, OperatorPlan) and isinstance(other, OperatorPlan):
        return do_the_same(one, other)
    if not (isinstance(one, ScanPlan) and isinstance(other, ScanPlan)):
        return False
    if not (isinstance(one.node, n.Scan) and isinstance(other.node, n.Scan)):
        return False
    same = (one.arrival, one.clocked) == (other.arrival, other.clocked)
    return same and one.node.source == other.node.source


def below(plan: OperatorPlan) -> Iterator[LeafPlan]:
    """All that stands below a shareable operator, and itself, in a fixed order."""
    yield plan
    for fed in plan.ports:
        for leaf in fed.leaves:
            yield from below(leaf) if isinstance(leaf, OperatorPlan) else [leaf]
