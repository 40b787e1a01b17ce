"""Stages: the stateless parts of a plan between sources, lookups and operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from sqlglot import exp

from tidegate.physical.operator_kind import OperatorKind
from tidegate.physical.registry import kind_of
from tidegate.plan import nodes as n
from tidegate.sql import expressions as ex

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
class LookupNode:
    """A lookup join and the stage of its input."""

    node: n.Join
    input: Stage


LeafNode = ScanNode | StatefulNode | LookupNode


@dataclass(frozen=True, eq=False)
class Stage:
    """A maximal stateless part of a plan, with its leaves in the order of the query."""

    node: n.Node
    leaves: tuple[LeafNode, ...]

    @property
    def scans(self) -> tuple[ScanNode, ...]:
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, n.Scan | n.SideScan))

    @property
    def stateful(self) -> tuple[StatefulNode, ...]:
        """The operators that it reads, directly or through lookups."""
        operators: list[StatefulNode] = []
        for leaf in self.leaves:
            if isinstance(leaf, StatefulNode):
                operators.append(leaf)
            elif isinstance(leaf, LookupNode):
                operators += leaf.input.stateful
        return tuple(operators)


def plan_stages(plan: n.Node) -> Stage:
    """Return the last stage of a plan, which contains the others as inputs of its leaves."""
    return Stage(plan, tuple(_leaves(plan)))


def _leaves(node: n.Node) -> Iterator[LeafNode]:
    """Yield the leaves of a stage, left to right: sources, stateful nodes and lookups."""
    if isinstance(node, n.Join) and node.kind is n.JoinKind.LOOKUP:
        yield LookupNode(node, plan_stages(node.left))
        return
    if not node.stateless:
        yield StatefulNode(node, tuple(plan_stages(child) for child in node.inputs))
        return
    if isinstance(node, n.Scan | n.SideScan):
        yield node
    for child in node.inputs:
        yield from _leaves(child)


def all_stateful(stage: Stage) -> Iterator[StatefulNode]:
    """Yield the stateful nodes of a plan, top down."""
    for leaf in stage.stateful:
        yield leaf
        for child in leaf.inputs:
            yield from all_stateful(child)


def all_scans(stage: Stage) -> Iterator[ScanNode]:
    """Yield the sources that a plan reads, in the order of the query."""
    for leaf in stage.leaves:
        if isinstance(leaf, StatefulNode):
            for child in leaf.inputs:
                yield from all_scans(child)
        elif isinstance(leaf, LookupNode):
            yield from all_scans(leaf.input)
        else:
            yield leaf


def all_lookups(stage: Stage) -> Iterator[LookupNode]:
    """Yield the lookups of a plan, top down."""
    for leaf in stage.leaves:
        if isinstance(leaf, StatefulNode):
            for child in leaf.inputs:
                yield from all_lookups(child)
        elif isinstance(leaf, LookupNode):
            yield leaf
            yield from all_lookups(leaf.input)


# ---- Calls of user functions in Python, which Spark may evaluate for every row


def stage_calls_udf(node: n.Node, leaves: set[n.Node]) -> bool:
    """Return whether a stage calls a user function; its leaves are not part of it."""
    if node in leaves:
        return False
    if node_calls_udf(node):
        return True
    return any(stage_calls_udf(child, leaves) for child in node.inputs)


def node_calls_udf(node: n.Node) -> bool:
    """Return whether an expression of this node calls a user function."""
    return any(ex.calls_udf(tree) for tree in _trees(node))


def _trees(node: n.Node) -> Iterator[exp.Expr]:
    for item in fields(node):
        value = getattr(node, item.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, exp.Expr):
                yield part
