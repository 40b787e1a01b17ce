"""Which columns of its sources a stage really needs, so that a source hands out no others."""

from __future__ import annotations

from tidegate.plan import nodes as n
from tidegate.plan.scope import referenced


def needed_columns(root: n.Node) -> dict[n.Node, set[str]]:
    """For every leaf of a stage the ids of the fields that are read."""
    needed: dict[n.Node, set[str]] = {}
    _collect(root, {item.id for item in root.fields}, needed)
    return needed


def _collect(node: n.Node, wanted: set[str], needed: dict[n.Node, set[str]]) -> None:
    if not node.inputs:
        needed.setdefault(node, set()).update(wanted)
        return
    if isinstance(node, n.SetOperation):
        places = [index for index, item in enumerate(node.fields) if item.id in wanted]
        for member in node.members:
            _collect(member, {member.fields[index].id for index in places}, needed)
        return
    below = _below(node, wanted)
    for child in node.inputs:
        _collect(child, below & {item.id for item in child.fields}, needed)


def _below(node: n.Node, wanted: set[str]) -> set[str]:
    if isinstance(node, n.Project):
        return {
            name
            for item, expression in zip(node.fields, node.expressions, strict=True)
            if item.id in wanted
            for name in referenced(expression)
        }
    if isinstance(node, n.Filter):
        return wanted | referenced(node.condition)
    if isinstance(node, n.Explode):
        return wanted | referenced(node.generator)
    if isinstance(node, n.Window):
        return wanted | referenced(node.time)
    if isinstance(node, n.Emit | n.Inlined):
        return wanted
    return {item.id for child in node.inputs for item in child.fields}
