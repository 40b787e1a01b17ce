"""A plan once more with columns of its own, so that both can stand in one plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.scope import Context

# Parts of nodes that hold ids of columns as plain strings.
_IDS = frozenset({"time_id", "end_id", "rank_id", "as_of_id", "alive_id", "left_id", "right_id"})
_ID_LISTS = frozenset({"generated", "key"})

# What holds expressions and ids.
_HOLDERS = (n.Node, n.KeyPair, n.TimeBounds, n.Nearness, n.Pick, n.Total, n.Condition)

Names = Mapping[str, str]


def fresh_copy(context: Context, node: n.Node) -> tuple[n.Node, Names]:
    """The same plan with other ids, and the new id for each old one."""
    ids = {item.id: item.name for part in n.walk(node) for item in part.fields}
    names = {old: context.fresh(name) for old, name in ids.items()}
    copied = _renamed(node, names)
    assert isinstance(copied, n.Node), "a node stays a node"
    return copied, names


def with_names(tree: exp.Expr, names: Names) -> exp.Expr:
    """An expression over the columns of a copy."""

    def swap(part: exp.Expr) -> exp.Expr:
        if not isinstance(part, exp.Column) or part.name not in names:
            return part
        other = part.copy()
        other.set("this", exp.to_identifier(names[part.name], quoted=True))
        return other

    return tree.copy().transform(swap)


def _renamed(value: Any, names: Names) -> Any:
    if isinstance(value, exp.Expr):
        return with_names(value, names)
    if isinstance(value, n.Field):
        return replace(value, id=names.get(value.id, value.id))
    if isinstance(value, tuple):
        return tuple(_renamed(part, names) for part in value)
    if not isinstance(value, _HOLDERS):
        return value
    changed: dict[str, Any] = {}
    for part in fields(value):
        inner = getattr(value, part.name)
        if part.name in _IDS:
            changed[part.name] = names.get(inner, inner)
        elif part.name in _ID_LISTS:
            changed[part.name] = tuple(names.get(one, one) for one in inner)
        else:
            changed[part.name] = _renamed(inner, names)
    return replace(value, **changed)
