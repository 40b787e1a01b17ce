"""What the rules that push filters share: which parts of a condition may go where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import column, fields_by_id, referenced_ids
from tidegate.plan.rewrite.expressions import (
    can_fail,
    is_deterministic,
    pieces,
    rejects_nulls,
    renaming,
    same_in_both,
    substitute,
)
from tidegate.sql import expressions as ex
from tidegate.types import ChangelogKind

# Operators whose late rows somebody keeps: a filter below them would take rows from those.
LateOperators = frozenset[n.Node]
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
        moved = translate(piece) if referenced_ids(piece) else None
        if (
            moved is not None
            and can_fail(moved, fields_by_id(below.fields))
            and (stays or not may_fail)
        ):
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
    return node.key is not None and referenced_ids(condition) <= set(node.key)


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
    return lambda piece: piece if referenced_ids(piece) <= ids else None


# ---- Two filters in a row become one; a part that can fail stays behind what may protect it.


def merge_filters(node: n.Node, judges: LateOperators) -> n.Node:
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Filter):
        return node
    below = node.input
    if not movable(node) or not movable(below):
        return node
    # a AND b asks b where a is NULL; a filter over a filter does not.
    if can_fail(node.condition, fields_by_id(below.fields)) or not is_deterministic(node.condition):
        return node
    condition = ex.conjunction(pieces(below.condition) + pieces(node.condition))
    assert condition is not None, "two filters ask something"
    return replace(below, condition=condition)


# ---- Conditions on one side of a join go below that side, from WHERE and from ON.
#
# WHERE over an outer join may only drop rows of the side that is kept whole; ON may only drop rows of
# the other side. A condition on a key of the join holds for both sides. The right side of temporal,
# ASOF and lookup joins is not filtered, or another version would be found instead; but a condition on
# the keys of a temporal or ASOF join leaves all versions of a key, or none.

PAIRING = (n.JoinKind.INTERVAL, n.JoinKind.WINDOW, n.JoinKind.REGULAR)
NEAREST = (n.JoinKind.TEMPORAL, n.JoinKind.ASOF)
# The sides whose rows WHERE and ON may drop before the join.
_WHERE = {"INNER": (0, 1), "LEFT": (0,), "RIGHT": (1,), "FULL": (), "SEMI": (0,), "ANTI": (0,)}
_ON = {"INNER": (0, 1), "LEFT": (1,), "RIGHT": (0,), "FULL": (), "SEMI": (0, 1), "ANTI": (1,)}


def push_filter_into_join(node: n.Node, judges: LateOperators) -> n.Node:
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
        keys = {p.right.name for p in self.join.key_pairs if isinstance(p.right, exp.Column)}
        return self.join.kind in NEAREST and referenced_ids(piece) <= keys

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
    fields = fields_by_id(side.fields)
    used = referenced_ids(piece)
    if not used or not used <= set(fields) or not is_deterministic(piece):
        return False
    return not can_fail(piece, fields) and accepts(side, piece)


def _keys_of_other(join: n.Join, side: int) -> dict[str, exp.Expr]:
    """For each column of a side that is a key, the column of the other side that equals it."""
    known = tuple(fields_by_id(node.fields) for node in join.inputs)
    found: dict[str, exp.Expr] = {}
    for pair in join.key_pairs:
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


# ---- A filter over another stream goes into it, and below the EMIT that ends it.


def push_filter_into_stream(node: n.Node, judges: LateOperators) -> n.Node:
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Inlined | n.Emit):
        return node
    if not movable(node):
        return node
    ids = {item.id for item in node.input.fields}
    return through(node, on_columns(ids), may_fail=True)


# ---- A condition on the keys of a GROUP BY drops rows instead of groups.


def push_filter_through_aggregate(node: n.Node, judges: LateOperators) -> n.Node:
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Aggregate):
        return node
    aggregate = node.input
    if not movable(node) or aggregate in judges:
        return node
    window = aggregate.grouped_window
    if window is None:
        return through(node, _on_keys(aggregate, set()))
    # The aggregate makes the windows of its GROUP BY itself, so nothing comes in between.
    translate = _on_keys(aggregate, {item.id for item in window.fields[-3:]})
    stays, goes = split(node.condition, window.input, translate)
    if not goes:
        return node
    below = window.with_inputs(filtered(window.input, goes, node))
    return filtered(aggregate.with_inputs(below), stays, node)


def _on_keys(aggregate: n.Aggregate, made: set[str]) -> Translate:
    """A condition on keys as one on the rows; not on columns that are made in between."""
    pairs = zip(aggregate.key_fields, aggregate.keys, strict=True)
    mapping = {item.id: key for item, key in pairs if not referenced_ids(key) & made}
    return lambda piece: substitute(piece, mapping)


# ---- A condition on what top-N and OVER partition by drops whole partitions, so it goes below.


def push_filter_through_partitions(node: n.Node, judges: LateOperators) -> n.Node:
    if not isinstance(node, n.Filter) or not movable(node) or node.input in judges:
        return node
    below = node.input
    if isinstance(below, n.TopN):
        return through(node, on_columns(_columns(below.partition)))
    if isinstance(below, n.Over):
        return through(node, on_columns(_columns(below.partition)))
    return node


def _columns(partition: tuple[exp.Expr, ...]) -> set[str]:
    bare = [part.unnest() for part in partition]
    return {part.name for part in bare if isinstance(part, exp.Column)}


# ---- A filter goes below a projection: its columns are replaced by what they are computed from.


def push_filter_through_project(node: n.Node, judges: LateOperators) -> n.Node:
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Project):
        return node
    project = node.input
    if not movable(node) or project.subqueries:
        return node
    mapping = {
        item.id: part for item, part in zip(project.fields, project.expressions, strict=True)
    }
    # A projection keeps every row, so what fails there fails below it too.
    return through(node, lambda piece: substitute(piece, mapping), may_fail=True)


# ---- A filter goes below what hands rows on: DISTINCT, held rows, sorting, upserts by their key.


def push_filter_through_rows(node: n.Node, judges: LateOperators) -> n.Node:
    if not isinstance(node, n.Filter) or not movable(node) or node.input in judges:
        return node
    below = node.input
    if isinstance(below, n.Distinct | n.Hold | n.Sort):
        return through(node, on_columns({item.id for item in below.fields}))
    if isinstance(below, n.Normalize):
        # The old row and the new one have the same key, so they pass or fail together.
        return through(node, on_columns(set(below.key)))
    return node


# ---- A filter over UNION ALL goes onto each of its members.


def push_filter_through_union(node: n.Node, judges: LateOperators) -> n.Node:
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
        if moved is None or (stays and can_fail(piece, fields_by_id(union.fields))):
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
    used = referenced_ids(piece)
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


# ---- A filter goes below what copies rows (windows, LATERAL VIEW) unless it asks for new columns.


def push_filter_through_window(node: n.Node, judges: LateOperators) -> n.Node:
    if not isinstance(node, n.Filter) or not movable(node) or node.input in judges:
        return node
    below = node.input
    if isinstance(below, n.Window):
        # Dropping a row could split a session that is made of all rows.
        if below.makes_sessions:
            return node
        added = {item.id for item in below.fields[-3:]}
    elif isinstance(below, n.Explode):
        added = set(below.generated)
    else:
        return node
    return through(node, on_columns({item.id for item in below.input.fields} - added))


# ---- An outer join whose rows without a match are dropped above it waits for none of them.

# Which join is left when rows without a left part (0) or without a right part (1) are dropped.
_WITHOUT = {
    ("LEFT", 1): "INNER",
    ("RIGHT", 0): "INNER",
    ("FULL", 1): "RIGHT",
    ("FULL", 0): "LEFT",
}


def outer_join_to_inner(node: n.Node, judges: LateOperators) -> n.Node:
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Join) or not movable(node):
        return node
    join = node.input
    nearest = join.kind in NEAREST and join.residual is None
    if not (nearest or join.kind in PAIRING) or join in judges:
        return node
    for side, below in enumerate(join.inputs):
        how = _WITHOUT.get((join.how, side))
        ids = {item.id for item in below.fields}
        if how is None or not any(rejects_nulls(part, ids) for part in pieces(node.condition)):
            continue
        inner = replace(join, how=how)
        # Rows that are never retracted are another kind of stream than the one promised.
        if inner.changelog is join.changelog:
            return _without_residual(replace(node, input=inner), inner)
    return node


def _without_residual(filter: n.Filter, join: n.Join) -> n.Filter:
    """What an inner join asks of its pairs beside keys and times, a filter asks."""
    if join.how != "INNER" or join.residual is None:
        return filter
    condition = ex.conjunction(pieces(join.residual) + pieces(filter.condition))
    assert condition is not None, "both ask something"
    return replace(filter, input=replace(join, residual=None), condition=condition)
