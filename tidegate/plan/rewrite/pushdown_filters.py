"""Rules that move filters towards the sources, and turn outer joins into inner joins.

Each rule gets a node and returns its replacement. A condition is split at AND; its parts move
separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import column, fields_by_id, referenced_ids
from tidegate.plan.rewrite.expressions import (
    are_interchangeable,
    can_fail,
    column_mapping,
    is_deterministic,
    rejects_nulls,
    split_conjuncts,
    substitute,
)
from tidegate.sql import expressions as ex
from tidegate.types import ChangelogKind

# Operators whose late rows are kept. A filter below them would also filter the late rows.
LateOperators = frozenset[n.Node]
Translate = Callable[[exp.Expr], exp.Expr | None]


def is_movable(filter: n.Filter) -> bool:
    """Return whether a filter may move; one with subqueries may not."""
    return not filter.subqueries


def partition_condition(
    condition: exp.Expr, child: n.Node, translate: Translate, may_fail: bool = False
) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """Split a condition into parts that stay and parts that move onto `child`, translated.

    A part that can fail moves only if it is evaluated on the same rows (`may_fail`), and never
    before a part that stays, which may protect it.
    """
    rest: list[exp.Expr] = []
    pushed: list[exp.Expr] = []
    for piece in split_conjuncts(condition):
        moved = translate(piece) if referenced_ids(piece) else None
        if (
            moved is not None
            and can_fail(moved, fields_by_id(child.fields))
            and (rest or not may_fail)
        ):
            moved = None
        if moved is not None and is_deterministic(moved) and can_drop_rows(child, moved):
            pushed.append(moved)
        else:
            rest.append(piece)
    return rest, pushed


def can_drop_rows(node: n.Node, condition: exp.Expr) -> bool:
    """Return whether a condition may drop rows of a node.

    Upserts may only be filtered by their key: otherwise the old row would remain when its successor
    is dropped.
    """
    if node.changelog is not ChangelogKind.UPSERT:
        return True
    return node.key is not None and referenced_ids(condition) <= set(node.key)


def add_filter(node: n.Node, parts: Sequence[exp.Expr], like: n.Node) -> n.Node:
    """Return a node with a filter for these conditions, or the node itself without conditions."""
    condition = ex.conjunction(list(parts))
    if condition is None:
        return node
    return n.Filter(node.fields, input=node, condition=condition, span=like.span)


def push_below(filter: n.Filter, translate: Translate, may_fail: bool = False) -> n.Node:
    """Move the translatable parts of a filter below its input; the rest stays above it."""
    node = filter.input
    assert isinstance(node, n.Unary), "the input of the filter has one input"
    rest, moved = partition_condition(filter.condition, node.input, translate, may_fail)
    if not moved:
        return filter
    return add_filter(node.with_inputs(add_filter(node.input, moved, filter)), rest, filter)


def keep_if_over(ids: set[str]) -> Translate:
    """Return a translation that keeps conditions over these columns and rejects others."""
    return lambda piece: piece if referenced_ids(piece) <= ids else None


def merge_filters(node: n.Node, late_operators: LateOperators) -> n.Node:
    """Merge two adjacent filters, unless the lower one may protect the upper from failing."""
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Filter):
        return node
    child = node.input
    if not is_movable(node) or not is_movable(child):
        return node
    # `a AND b` evaluates b where a is NULL; a filter above a filter does not.
    if can_fail(node.condition, fields_by_id(child.fields)) or not is_deterministic(node.condition):
        return node
    condition = ex.conjunction(split_conjuncts(child.condition) + split_conjuncts(node.condition))
    assert condition is not None, "two filters have conditions"
    return replace(child, condition=condition)


# ---- Joins
#
# A condition on one side of a join moves below that side. Above an outer join, WHERE may only drop
# rows of the preserved side, and ON only rows of the other side. A condition on a join key holds
# for both sides. The right side of temporal, ASOF and lookup joins is not filtered, because the
# join would then find another version. A condition on the keys of a temporal or ASOF join is
# allowed: it keeps all versions of a key or none.

PAIR_JOINS = (n.JoinKind.INTERVAL, n.JoinKind.WINDOW, n.JoinKind.REGULAR)
VERSION_JOINS = (n.JoinKind.TEMPORAL, n.JoinKind.ASOF)
# The sides whose rows WHERE and ON may drop before the join.
_WHERE_SIDES = {
    "INNER": (0, 1),
    "LEFT": (0,),
    "RIGHT": (1,),
    "FULL": (),
    "SEMI": (0,),
    "ANTI": (0,),
}
_ON_SIDES = {"INNER": (0, 1), "LEFT": (1,), "RIGHT": (0,), "FULL": (), "SEMI": (0, 1), "ANTI": (1,)}


def push_filter_into_join(node: n.Node, late_operators: LateOperators) -> n.Node:
    """Move conditions in WHERE and ON below the side of a join that they refer to."""
    if isinstance(node, n.Join) and node not in late_operators:
        return _push_on_condition(node)
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Join):
        return node
    if not is_movable(node) or node.input in late_operators:
        return node
    return _push_where_into_join(node, node.input)


@dataclass
class _JoinFilters:
    """Collects the conditions to be added below each side of a join."""

    join: n.Join
    pushed: tuple[list[exp.Expr], list[exp.Expr]] = field(default_factory=lambda: ([], []))

    def take(self, piece: exp.Expr, allowed: tuple[int, ...]) -> int | None:
        """Add a condition to the side it refers to and return the side; None if it must stay."""
        for side in allowed:
            if _can_move(piece, self.join.inputs[side]) and self._filters(side, piece):
                self.pushed[side].append(piece)
                return side
        return None

    def _filters(self, side: int, piece: exp.Expr) -> bool:
        """Return whether a side of the join may be filtered by a condition."""
        if side == 0 or self.join.kind in PAIR_JOINS:
            return True
        keys = {p.right.name for p in self.join.key_pairs if isinstance(p.right, exp.Column)}
        return self.join.kind in VERSION_JOINS and referenced_ids(piece) <= keys

    def infer(self, piece: exp.Expr, side: int) -> None:
        """Add the same condition to the other side if it refers to join keys only."""
        other = 1 - side
        translated = substitute(piece, _equal_columns_of_other_side(self.join, side))
        if translated is None or not self._filters(other, translated):
            return
        if _can_move(translated, self.join.inputs[other]):
            self.pushed[other].append(translated)

    def joined(self, like: n.Node) -> n.Join:
        """Return the join over its filtered sides, without the conditions that moved."""
        pushed = [*self.pushed[0], *self.pushed[1]]
        rest = [part for part in ex.conjuncts(self.join.condition) if part not in pushed]
        sides = zip(self.join.inputs, self.pushed, strict=True)
        join = self.join.with_inputs(*(add_filter(side, parts, like) for side, parts in sides))
        assert isinstance(join, n.Join), "add_filter returns the join"
        return replace(join, condition=ex.conjunction(rest))


def _can_move(piece: exp.Expr, side: n.Node) -> bool:
    fields = fields_by_id(side.fields)
    ids = referenced_ids(piece)
    if not ids or not ids <= set(fields) or not is_deterministic(piece):
        return False
    return not can_fail(piece, fields) and can_drop_rows(side, piece)


def _equal_columns_of_other_side(join: n.Join, side: int) -> dict[str, exp.Expr]:
    """Map each key column of a side to the column of the other side that equals it."""
    fields = tuple(fields_by_id(node.fields) for node in join.inputs)
    mapping: dict[str, exp.Expr] = {}
    for pair in join.key_pairs:
        tree, other_tree = (pair.left, pair.right)[:: 1 if side == 0 else -1]
        key = fields[side].get(tree.name) if isinstance(tree, exp.Column) else None
        is_column = isinstance(other_tree, exp.Column)
        other_key = fields[1 - side].get(other_tree.name) if is_column else None
        if key is not None and other_key is not None and are_interchangeable(key, other_key):
            mapping.setdefault(key.id, column(other_key))
    return mapping


def _push_where_into_join(filter: n.Filter, join: n.Join) -> n.Node:
    filters = _JoinFilters(join)
    rest: list[exp.Expr] = []
    for piece in split_conjuncts(filter.condition):
        side = filters.take(piece, _WHERE_SIDES[join.how])
        if side is None:
            rest.append(piece)
        elif join.how in ("INNER", *_PRESERVED_SIDE_JOINS[side]):
            filters.infer(piece, side)
    if not any(filters.pushed):
        return filter
    return add_filter(filters.joined(filter), rest, filter)


# Joins that preserve the left (0) or right (1) side: only matching rows of the other side matter.
_PRESERVED_SIDE_JOINS = (("LEFT", "SEMI", "ANTI"), ("RIGHT",))


def _push_on_condition(join: n.Join) -> n.Node:
    if join.residual is None or join.kind not in PAIR_JOINS:
        return join
    filters = _JoinFilters(join)
    residual = split_conjuncts(join.residual)
    rest = [piece for piece in residual if filters.take(piece, _ON_SIDES[join.how]) is None]
    if len(rest) == len(residual):
        return join
    return replace(filters.joined(join), residual=ex.conjunction(rest))


# ---- Other operators


def push_filter_into_stream(node: n.Node, late_operators: LateOperators) -> n.Node:
    """Move a filter into a referenced stream and below its Emit."""
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.StreamReference | n.Emit):
        return node
    if not is_movable(node):
        return node
    ids = {item.id for item in node.input.fields}
    return push_below(node, keep_if_over(ids), may_fail=True)


def push_filter_through_aggregate(node: n.Node, late_operators: LateOperators) -> n.Node:
    """Move conditions on GROUP BY keys below the aggregate."""
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Aggregate):
        return node
    aggregate = node.input
    if not is_movable(node) or aggregate in late_operators:
        return node
    window = aggregate.grouped_window
    if window is None:
        return push_below(node, _translate_keys(aggregate, set()))
    # The aggregate and its Window node belong together: the filter moves below both.
    translate = _translate_keys(aggregate, {item.id for item in window.fields[-3:]})
    rest, pushed = partition_condition(node.condition, window.input, translate)
    if not pushed:
        return node
    child = window.with_inputs(add_filter(window.input, pushed, node))
    return add_filter(aggregate.with_inputs(child), rest, node)


def _translate_keys(aggregate: n.Aggregate, window_ids: set[str]) -> Translate:
    """Return a translation from key columns to key expressions without window columns."""
    pairs = zip(aggregate.key_fields, aggregate.keys, strict=True)
    mapping = {item.id: key for item, key in pairs if not referenced_ids(key) & window_ids}
    return lambda piece: substitute(piece, mapping)


def push_filter_through_partitions(node: n.Node, late_operators: LateOperators) -> n.Node:
    """Move conditions on the partition columns of top-N and OVER below them."""
    if not isinstance(node, n.Filter) or not is_movable(node) or node.input in late_operators:
        return node
    child = node.input
    if isinstance(child, n.TopN):
        return push_below(node, keep_if_over(_partition_ids(child.partition)))
    if isinstance(child, n.Over):
        return push_below(node, keep_if_over(_partition_ids(child.partition)))
    return node


def _partition_ids(partition: tuple[exp.Expr, ...]) -> set[str]:
    bare = [part.unnest() for part in partition]
    return {part.name for part in bare if isinstance(part, exp.Column)}


def push_filter_through_project(node: n.Node, late_operators: LateOperators) -> n.Node:
    """Move a filter below a projection, replacing columns by their expressions."""
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Project):
        return node
    project = node.input
    if not is_movable(node) or project.subqueries:
        return node
    mapping = {
        item.id: part for item, part in zip(project.fields, project.expressions, strict=True)
    }
    # A projection keeps every row, so the condition is evaluated on the same rows.
    return push_below(node, lambda piece: substitute(piece, mapping), may_fail=True)


def push_filter_through_rows(node: n.Node, late_operators: LateOperators) -> n.Node:
    """Move a filter below DISTINCT, Hold and Sort, and by key below Normalize."""
    if not isinstance(node, n.Filter) or not is_movable(node) or node.input in late_operators:
        return node
    child = node.input
    if isinstance(child, n.Distinct | n.Hold | n.Sort):
        return push_below(node, keep_if_over({item.id for item in child.fields}))
    if isinstance(child, n.Normalize):
        # The old row and the new row have the same key: both pass the filter or neither does.
        return push_below(node, keep_if_over(set(child.key)))
    return node


def push_filter_through_union(node: n.Node, late_operators: LateOperators) -> n.Node:
    """Move a filter onto each member of a UNION ALL."""
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.SetOperation):
        return node
    union = node.input
    if not is_movable(node) or not union.union_all:
        return node
    mappings = [column_mapping(union.fields, member.fields) for member in union.members]
    rest: list[exp.Expr] = []
    pushed: list[list[exp.Expr]] = [[] for _ in union.members]
    for piece in split_conjuncts(node.condition):
        member_pieces = _translate_for_members(piece, union, mappings)
        if member_pieces is None or (rest and can_fail(piece, fields_by_id(union.fields))):
            rest.append(piece)
            continue
        for parts, translated in zip(pushed, member_pieces, strict=True):
            parts.append(translated)
    if not any(pushed):
        return node
    pairs = zip(union.members, pushed, strict=True)
    members = (add_filter(member, parts, node) for member, parts in pairs)
    return add_filter(union.with_inputs(*members), rest, node)


def _translate_for_members(
    piece: exp.Expr, union: n.SetOperation, mappings: list[dict[str, exp.Expr]]
) -> list[exp.Expr] | None:
    """Translate a condition for each member; None if it would mean something else there.

    A union casts members with other types to a common type, and the condition is on that type.
    """
    ids = referenced_ids(piece)
    if not ids or not is_deterministic(piece):
        return None
    if any(union.field(name).type is None for name in ids):
        return None
    member_pieces: list[exp.Expr] = []
    for member, mapping in zip(union.members, mappings, strict=True):
        translated = substitute(piece, mapping)
        if translated is None or not can_drop_rows(member, translated):
            return None
        member_pieces.append(translated)
    return member_pieces


def push_filter_through_window(node: n.Node, late_operators: LateOperators) -> n.Node:
    """Move a filter on input columns below windows and LATERAL VIEW."""
    if not isinstance(node, n.Filter) or not is_movable(node) or node.input in late_operators:
        return node
    child = node.input
    if isinstance(child, n.Window):
        # Sessions depend on all rows: dropping one could split a session.
        if child.holds_sessions:
            return node
        added = {item.id for item in child.fields[-3:]}
    elif isinstance(child, n.Explode):
        added = set(child.generated)
    else:
        return node
    return push_below(node, keep_if_over({item.id for item in child.input.fields} - added))


# The join that remains if rows without a left part (0) or without a right part (1) are dropped.
_STRICTER_JOINS = {
    ("LEFT", 1): "INNER",
    ("RIGHT", 0): "INNER",
    ("FULL", 1): "RIGHT",
    ("FULL", 0): "LEFT",
}


def outer_join_to_inner(node: n.Node, late_operators: LateOperators) -> n.Node:
    """Make an outer join stricter if a filter above it drops its unmatched rows."""
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Join) or not is_movable(node):
        return node
    join = node.input
    is_version_join = join.kind in VERSION_JOINS and join.residual is None
    if not (is_version_join or join.kind in PAIR_JOINS) or join in late_operators:
        return node
    for side, input_node in enumerate(join.inputs):
        how = _STRICTER_JOINS.get((join.how, side))
        ids = {item.id for item in input_node.fields}
        if how is None or not any(
            rejects_nulls(part, ids) for part in split_conjuncts(node.condition)
        ):
            continue
        inner = replace(join, how=how)
        # The stream must not change its kind, from a changelog to an append stream.
        if inner.changelog is join.changelog:
            return _without_residual(replace(node, input=inner), inner)
    return node


def _without_residual(filter: n.Filter, join: n.Join) -> n.Filter:
    """Move the residual condition of an inner join into the filter above it."""
    if join.how != "INNER" or join.residual is None:
        return filter
    condition = ex.conjunction(split_conjuncts(join.residual) + split_conjuncts(filter.condition))
    assert condition is not None, "both have conditions"
    return replace(filter, input=replace(join, residual=None), condition=condition)
