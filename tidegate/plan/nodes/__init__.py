"""The logical nodes. Every column has an id that is unique in its plan; expressions refer to ids.

`base` declares what a node reports about itself. The families are in `relational` (scans, filters,
projections, set operations, DISTINCT), `aggregate` (windows and GROUP BY), `over` (OVER and top-N),
`join`, and `match` (MATCH_RECOGNIZE). Use them as `from tidegate.plan import nodes as n`.
"""

from __future__ import annotations

from tidegate.plan.nodes.aggregate import Aggregate, Hold, Window
from tidegate.plan.nodes.base import Field, Node, Role, Unary, WindowKind, WindowSpec
from tidegate.plan.nodes.join import (
    BACKWARD,
    FORWARD,
    NEAREST,
    AsofCondition,
    Join,
    JoinKind,
    KeyPair,
    TimeBounds,
)
from tidegate.plan.nodes.match import (
    DefineCondition,
    Match,
    MatchAggregate,
    Navigation,
    Skip,
    SkipTo,
)
from tidegate.plan.nodes.over import Over, OverMode, TopN
from tidegate.plan.nodes.relational import (
    Distinct,
    Emit,
    Explode,
    Filter,
    Limit,
    LookupScan,
    Normalize,
    NoRows,
    Project,
    Scan,
    SetOperation,
    SideScan,
    Sort,
    StreamReference,
)


def walk(node: Node, into_inlined: bool = True) -> list[Node]:
    """Return a node and all nodes below it, top down."""
    nodes = [node]
    if isinstance(node, StreamReference) and not into_inlined:
        return nodes
    for child in node.inputs:
        nodes += walk(child, into_inlined)
    return nodes


__all__ = [
    "BACKWARD",
    "FORWARD",
    "NEAREST",
    "Aggregate",
    "AsofCondition",
    "DefineCondition",
    "Distinct",
    "Emit",
    "Explode",
    "Field",
    "Filter",
    "Hold",
    "Join",
    "JoinKind",
    "KeyPair",
    "Limit",
    "LookupScan",
    "Match",
    "MatchAggregate",
    "Navigation",
    "NoRows",
    "Node",
    "Normalize",
    "Over",
    "OverMode",
    "Project",
    "Role",
    "Scan",
    "SetOperation",
    "SideScan",
    "Skip",
    "SkipTo",
    "Sort",
    "StreamReference",
    "TimeBounds",
    "TopN",
    "Unary",
    "Window",
    "WindowKind",
    "WindowSpec",
    "walk",
]
