"""Conditions on one side of a join go below that side, from WHERE and from ON.

WHERE over an outer join may only drop rows of the side that is kept whole; ON may only drop rows of
the other side. A condition on a key of the join holds for both sides. The right side of temporal,
ASOF and lookup joins is not filtered, or another version would be found instead; but a condition on
the keys of a temporal or ASOF join leaves all versions of a key, or none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.optimise.expressions import (
    can_fail,
    is_deterministic,
    pieces,
    same_in_both,
    substitute,
)
from tidegate.plan.optimise.filters import Judges, accepts, filtered, movable
from tidegate.plan.scope import by_id, column, referenced
from tidegate.sql import expressions as ex

PAIRING = (n.JoinKind.INTERVAL, n.JoinKind.WINDOW, n.JoinKind.REGULAR)
NEAREST = (n.JoinKind.TEMPORAL, n.JoinKind.ASOF)
# The sides whose rows WHERE and ON may drop before the join.
_WHERE = {"INNER": (0, 1), "LEFT": (0,), "RIGHT": (1,), "FULL": (), "SEMI": (0,), "ANTI": (0,)}
_ON = {"INNER": (0, 1), "LEFT": (1,), "RIGHT": (0,), "FULL": (), "SEMI": (0, 1), "ANTI": (1,)}


def push_filter_into_join(node: n.Node, judges: Judges) -> n.Node:
    if isinstance(node, n.Join) and node not in judges:
        return _push_on(node)
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Join):
        return node
    if not movable(node) or node.input in judges:
        return node
    return _push_where(node, node.input)


@dataclass
class _Sides:
    """What goes below each side of a join."""

    join: n.Join
    goes: tuple[list[exp.Expr], list[exp.Expr]] = field(default_factory=lambda: ([], []))

    def take(self, piece: exp.Expr, allowed: tuple[int, ...]) -> int | None:
        """Send a part of a condition below the side it is about; None if it must stay."""
        for side in allowed:
            if _may_go(piece, self.join.inputs[side]) and self._filters(side, piece):
                self.goes[side].append(piece)
                return side
        return None

    def _filters(self, side: int, piece: exp.Expr) -> bool:
        if side == 0 or self.join.kind in PAIRING:
            return True
        keys = {p.right.name for p in self.join.equal if isinstance(p.right, exp.Column)}
        return self.join.kind in NEAREST and referenced(piece) <= keys

    def infer(self, piece: exp.Expr, side: int) -> None:
        """The same condition for the other side, where it asks for keys of the join only."""
        other = 1 - side
        same = substitute(piece, _keys_of_other(self.join, side))
        if same is None or not self._filters(other, same):
            return
        if _may_go(same, self.join.inputs[other]):
            self.goes[other].append(same)

    def joined(self, like: n.Node) -> n.Join:
        """The join over its filtered sides; it asks no more for what was asked before."""
        gone = [*self.goes[0], *self.goes[1]]
        left = [part for part in ex.conjuncts(self.join.condition) if part not in gone]
        sides = zip(self.join.inputs, self.goes, strict=True)
        join = self.join.with_inputs(*(filtered(side, parts, like) for side, parts in sides))
        assert isinstance(join, n.Join), "it is the same node"
        return replace(join, condition=ex.conjunction(left))


def _may_go(piece: exp.Expr, side: n.Node) -> bool:
    fields = by_id(side.fields)
    used = referenced(piece)
    if not used or not used <= set(fields) or not is_deterministic(piece):
        return False
    return not can_fail(piece, fields) and accepts(side, piece)


def _keys_of_other(join: n.Join, side: int) -> dict[str, exp.Expr]:
    """For each column of a side that is a key, the column of the other side that equals it."""
    known = tuple(by_id(node.fields) for node in join.inputs)
    found: dict[str, exp.Expr] = {}
    for pair in join.equal:
        one, other = (pair.left, pair.right)[:: 1 if side == 0 else -1]
        mine = known[side].get(one.name) if isinstance(one, exp.Column) else None
        theirs = known[1 - side].get(other.name) if isinstance(other, exp.Column) else None
        if mine is not None and theirs is not None and same_in_both(mine, theirs):
            found.setdefault(mine.id, column(theirs))
    return found


def _push_where(filter: n.Filter, join: n.Join) -> n.Node:
    sides = _Sides(join)
    stays: list[exp.Expr] = []
    for piece in pieces(filter.condition):
        side = sides.take(piece, _WHERE[join.how])
        if side is None:
            stays.append(piece)
        elif join.how in ("INNER", *_KEEPING[side]):
            sides.infer(piece, side)
    if not any(sides.goes):
        return filter
    return filtered(sides.joined(filter), stays, filter)


# Joins that keep one side: the rows of the other one only matter where they match.
_KEEPING = (("LEFT", "SEMI", "ANTI"), ("RIGHT",))


def _push_on(join: n.Join) -> n.Node:
    if join.residual is None or join.kind not in PAIRING:
        return join
    sides = _Sides(join)
    residual = pieces(join.residual)
    stays = [piece for piece in residual if sides.take(piece, _ON[join.how]) is None]
    if len(stays) == len(residual):
        return join
    return replace(sides.joined(join), residual=ex.conjunction(stays))
