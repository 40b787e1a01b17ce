"""A filter over UNION ALL goes onto each of its members."""

from __future__ import annotations

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.optimise.expressions import (
    can_fail,
    is_deterministic,
    pieces,
    renaming,
    substitute,
)
from tidegate.plan.optimise.filters import Judges, accepts, filtered, movable
from tidegate.plan.scope import by_id, referenced


def push_filter_through_union(node: n.Node, judges: Judges) -> n.Node:
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.SetOperation):
        return node
    union = node.input
    if not movable(node) or not union.union_all:
        return node
    mappings = [renaming(union.fields, member.fields) for member in union.members]
    stays: list[exp.Expr] = []
    goes: list[list[exp.Expr]] = [[] for _ in union.members]
    for piece in pieces(node.condition):
        moved = _for_members(piece, union, mappings)
        if moved is None or (stays and can_fail(piece, by_id(union.fields))):
            stays.append(piece)
            continue
        for parts, own in zip(goes, moved, strict=True):
            parts.append(own)
    if not any(goes):
        return node
    pairs = zip(union.members, goes, strict=True)
    members = (filtered(member, parts, node) for member, parts in pairs)
    return filtered(union.with_inputs(*members), stays, node)


def _for_members(
    piece: exp.Expr, union: n.SetOperation, mappings: list[dict[str, exp.Expr]]
) -> list[exp.Expr] | None:
    """A part of the condition for each member; None if it means something else there.

    Members of other types are cast to a common one by the union, and the condition is on that.
    """
    used = referenced(piece)
    if not used or not is_deterministic(piece):
        return None
    if any(union.field(name).type is None for name in used):
        return None
    moved: list[exp.Expr] = []
    for member, mapping in zip(union.members, mappings, strict=True):
        own = substitute(piece, mapping)
        if own is None or not accepts(member, own):
            return None
        moved.append(own)
    return moved
