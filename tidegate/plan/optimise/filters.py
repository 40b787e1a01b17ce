"""What the rules that push filters share: which parts of a condition may go where."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.optimise.expressions import can_fail, is_deterministic, pieces
from tidegate.plan.scope import by_id, referenced
from tidegate.sql import expressions as ex
from tidegate.types import ChangelogKind

# Operators whose late rows somebody keeps: a filter below them would take rows from those.
Judges = frozenset[n.Node]
Translate = Callable[[exp.Expr], exp.Expr | None]


def movable(filter: n.Filter) -> bool:
    return not filter.subqueries


def split(
    condition: exp.Expr, below: n.Node, translate: Translate, may_fail: bool = False
) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """The parts of a condition that stay, and those that go onto `below`, as they read there.

    A part that can fail goes only where it meets the same rows (`may_fail`), and never before a
    part that stays: that one may be there to protect it.
    """
    stays: list[exp.Expr] = []
    goes: list[exp.Expr] = []
    for piece in pieces(condition):
        moved = translate(piece) if referenced(piece) else None
        if moved is not None and can_fail(moved, by_id(below.fields)) and (stays or not may_fail):
            moved = None
        if moved is not None and is_deterministic(moved) and accepts(below, moved):
            goes.append(moved)
        else:
            stays.append(piece)
    return stays, goes


def accepts(node: n.Node, condition: exp.Expr) -> bool:
    """Whether rows of a node may be dropped by a condition.

    Of upserts only by their key: else the old row would stay when its successor is dropped.
    """
    if node.changelog is not ChangelogKind.UPSERT:
        return True
    return node.key is not None and referenced(condition) <= set(node.key)


def filtered(node: n.Node, parts: Sequence[exp.Expr], like: n.Node) -> n.Node:
    """A node with a filter on it, if there is something to ask."""
    condition = ex.conjunction(list(parts))
    if condition is None:
        return node
    return n.Filter(node.fields, input=node, condition=condition, span=like.span)


def through(filter: n.Filter, translate: Translate, may_fail: bool = False) -> n.Node:
    """The filter's input with what can go below it; the rest stays a filter above it."""
    over = filter.input
    assert isinstance(over, n.Unary), "it has one input"
    stays, goes = split(filter.condition, over.input, translate, may_fail)
    if not goes:
        return filter
    return filtered(over.with_inputs(filtered(over.input, goes, filter)), stays, filter)


def on_columns(ids: set[str]) -> Translate:
    """Lets pass, as it is, what asks only for these columns."""
    return lambda piece: piece if referenced(piece) <= ids else None
