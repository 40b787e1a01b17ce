"""Stages of a plan: stateless runs of SQL between sources, lookups and operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.physical.operator_kind import OperatorKind
from tidegate.physical.registry import kind_of
from tidegate.plan import nodes as n

ScanNode = n.Scan | n.SideScan


@dataclass(frozen=True, eq=False)
class StatefulNode:
    """A stateful node and the stages of its ports."""

    node: n.Node
    inputs: tuple[Stage, ...]

    @property
    def kind(self) -> OperatorKind:
        return kind_of(self.node)

    @property
    def name(self) -> str:
        return self.kind.name(self.node)


@dataclass(frozen=True, eq=False)
class EnrichNode:
    """A lookup join and the stage of its input."""

    node: n.Join
    input: Stage


LeafNode = ScanNode | StatefulNode | EnrichNode


@dataclass(frozen=True, eq=False)
class Stage:
    """A stateless run: one SQL text over its leaves, in the order of the query."""

    node: n.Node
    leaves: tuple[LeafNode, ...]

    @property
    def scans(self) -> tuple[ScanNode, ...]:
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, n.Scan | n.SideScan))

    @property
    def stateful(self) -> tuple[StatefulNode, ...]:
        """The operators directly below, also through lookups."""
        operators: list[StatefulNode] = []
        for leaf in self.leaves:
            if isinstance(leaf, StatefulNode):
                operators.append(leaf)
            elif isinstance(leaf, EnrichNode):
                operators += leaf.input.stateful
        return tuple(operators)


def plan_stages(plan: n.Node) -> Stage:
    """Return the last stage of a plan; the other stages are below it."""
    return Stage(plan, tuple(_leaves(plan)))


def _leaves(node: n.Node) -> Iterator[LeafNode]:
    """Where a stage ends: sources, stateful nodes and lookups, left to right."""
    if isinstance(node, n.Join) and node.kind is n.JoinKind.LOOKUP:
        yield EnrichNode(node, plan_stages(node.left))
        return
    if not node.stateless:
        yield StatefulNode(node, tuple(plan_stages(child) for child in node.inputs))
        return
    if isinstance(node, n.Scan | n.SideScan):
        yield node
    for child in node.inputs:
        yield from _leaves(child)


def all_stateful(stage: Stage) -> Iterator[StatefulNode]:
    """Every node of a plan that keeps state, top down."""
    for leaf in stage.stateful:
        yield leaf
        for below in leaf.inputs:
            yield from all_stateful(below)


def all_scans(stage: Stage) -> Iterator[ScanNode]:
    """Return every source that a plan reads, in the order of the query."""
    for leaf in stage.leaves:
        if isinstance(leaf, StatefulNode):
            for below in leaf.inputs:
                yield from all_scans(below)
        elif isinstance(leaf, EnrichNode):
            yield from all_scans(leaf.input)
        else:
            yield leaf


def all_enriched(stage: Stage) -> Iterator[EnrichNode]:
    """Every lookup of a plan, top down."""
    for leaf in stage.leaves:
        if isinstance(leaf, StatefulNode):
            for below in leaf.inputs:
                yield from all_enriched(below)
        elif isinstance(leaf, EnrichNode):
            yield leaf
            yield from all_enriched(leaf.input)


def needs_clock(stage: Stage) -> bool:
    """Return True if a node uses processing time, so that epochs must run without rows too."""
    if any(leaf.node.needs_processing_time for leaf in all_stateful(stage)):
        return True
    scans = [scan for scan in all_scans(stage) if isinstance(scan, n.Scan)]
    return bool(stage.stateful) and any(
        scan.source.options["idle_timeout"] is not None for scan in scans
    )
