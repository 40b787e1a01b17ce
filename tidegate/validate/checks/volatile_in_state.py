"""A value that differs on replay must not reach state or keys: restarts would change results."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.plan.scope import by_id, volatile
from tidegate.validate.finding import Finding, Subject, unbounded


def volatile_in_state(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, (*n.STATELESS, n.Window)) or not unbounded(node):
            continue
        columns = sorted({item.name for child in node.inputs for item in _volatile_fields(child)})
        if columns:
            yield _finding(node, f"the column {', '.join(columns)} gets")
        elif _volatile_expressions(node):
            yield _finding(node, "an expression here gets")
        elif any(_volatile_filter(child) for child in node.inputs):
            yield _finding(node, "a condition below gets")


def _volatile_fields(node: n.Node) -> list[n.Field]:
    return [item for item in node.fields if item.volatile]


def _volatile_expressions(node: n.Node) -> bool:
    known = {k: v for child in node.inputs for k, v in by_id(child.fields).items()}
    parts = []
    if isinstance(node, n.Aggregate):
        parts = [*node.keys, *node.aggregates]
    elif isinstance(node, n.Over):
        parts = list(node.functions)
    elif isinstance(node, n.TopN):
        parts = [*node.partition, *node.order]
    elif isinstance(node, n.Join) and node.condition is not None:
        parts = [node.condition]
    return any(volatile(part, known) for part in parts)


def _volatile_filter(node: n.Node) -> bool:
    """A filter on the way down to the next operator that would let other rows through."""
    while isinstance(node, n.Filter | n.Project | n.Window | n.Explode):
        if isinstance(node, n.Filter) and volatile(node.condition, by_id(node.input.fields)):
            return True
        node = node.input
    return False


def _finding(node: n.Node, what: str) -> Finding:
    return Finding(
        "TG-414",
        f"{what} another value when an epoch is replayed, and it would be kept in state",
        node,
        "use a column of the source, such as its event time; for processing time use a window over "
        "PROCTIME(), whose value is logged with the epoch.",
    )
