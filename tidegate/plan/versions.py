"""The right side of a temporal join: rows of a key are versions, each from its time on.

What the right side is at a moment is what its query gives for the rows up to that moment. So a
version that a WHERE drops ends the one before it, and the last row of each key by event time is
whatever row of it came last before that moment: the rows are read as they are, and not the changes
that the query would give out, which depend on the order in which rows arrive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.scope import column, referenced
from tidegate.sql import expressions as ex
from tidegate.types import ChangelogKind


@dataclass(frozen=True)
class Versions:
    """Rows with the columns of the right side; `alive` is the id of a further one, if any.

    `first`: the first row of a key is its only version.
    """

    rows: n.Node
    key: tuple[str, ...]
    time: str
    alive: str | None = None
    first: bool = False


def versions_of(node: n.Node) -> Versions | None:
    """The versions that a right side is made of; None if it has no key, or none that tells."""
    if isinstance(node, n.Scan):
        times = [item.id for item in node.fields if item.role is n.Role.TIME]
        return Versions(node, node.key, times[0]) if node.key is not None and times else None
    if isinstance(node, n.Inlined | n.Emit | n.Normalize | n.Hold):
        return versions_of(node.input)
    if isinstance(node, n.TopN):
        return _of_one_row(node)
    below = versions_of(node.inputs[0]) if isinstance(node, n.Project | n.Filter) else None
    if below is None or not node.stateless:
        return None
    return _filtered(node, below) if isinstance(node, n.Filter) else _projected(node, below)


def _of_one_row(node: n.TopN) -> Versions | None:
    """The first or last row of each key by event time, of rows that are never retracted."""
    order = node.order[0] if len(node.order) == 1 else None
    by = order.this if isinstance(order, exp.Ordered) else order
    columns = [part.name for part in node.partition if isinstance(part, exp.Column)]
    if not node.keeps_one or node.windowed or not isinstance(by, exp.Column):
        return None
    timed = any(item.id == by.name and item.role is n.Role.TIME for item in node.input.fields)
    whole = bool(columns) and len(columns) == len(node.partition)
    if not timed or not whole or node.input.changelog is not ChangelogKind.APPEND:
        return None
    first = not (isinstance(order, exp.Ordered) and order.args.get("desc"))
    rows: n.Node = node.input
    if node.rank_id is not None:
        one = exp.cast(exp.Literal.number(1), "INT")
        parts = [one if i.id == node.rank_id else column(i) for i in node.fields]
        rows = n.Project(node.fields, input=rows, expressions=tuple(parts), span=node.span)
    return Versions(rows, tuple(columns), by.name, first=first)


def _projected(node: n.Node, below: Versions) -> Versions | None:
    """The same rows with other columns; what tells the dead from the living stays beside them."""
    assert isinstance(node, n.Project), "a projection"
    pairs = list(zip(node.fields, node.expressions, strict=True))
    names = {part.name: item.id for item, part in reversed(pairs) if isinstance(part, exp.Column)}
    if not {*below.key, below.time} <= set(names):
        return None
    key = tuple(names[column_id] for column_id in below.key)
    fields, expressions = node.fields, node.expressions
    if below.alive is not None:
        alive = below.rows.field(below.alive)
        fields, expressions = (*fields, alive), (*expressions, column(alive))
    rows = n.Project(fields, input=below.rows, expressions=expressions, span=node.span)
    return replace(below, rows=rows, key=key, time=names[below.time])


def _filtered(node: n.Node, below: Versions) -> Versions | None:
    """A row that is dropped is no version, and ends the one before it."""
    assert isinstance(node, n.Filter), "a filter"
    if referenced(node.condition) <= set(below.key):
        # It drops all rows of a key, or none.
        rows: n.Node = replace(node, input=below.rows, fields=below.rows.fields)
        return replace(below, rows=rows)
    kept = exp.Anonymous(this="COALESCE", expressions=[node.condition.copy(), exp.false()])
    condition: exp.Expr = kept
    fields = below.rows.fields
    if below.alive is not None:
        known = below.rows.field(below.alive)
        condition = exp.and_(column(known), kept, copy=True)
        fields = tuple(item for item in fields if item.id != below.alive)
    alive = n.Field(below.alive or _free_id(below.rows), "alive", "BOOLEAN", nullable=False)
    expressions = (*(column(item) for item in fields), condition)
    rows = n.Project((*fields, alive), input=below.rows, expressions=expressions, span=node.span)
    return replace(below, rows=rows, alive=alive.id)


def _free_id(node: n.Node) -> str:
    taken = {item.id for part in n.walk(node) for item in part.fields}
    name = "alive"
    while name in taken:
        name += "_"
    return name


def join_with_one_row(node: n.Node) -> n.Node:
    """A temporal or ASOF join as its operator has it: what else its condition asks stands around.

    Of a temporal join the version is picked first, and then the condition asked; of an ASOF join
    the condition says which rows of the right can be picked.
    """
    if not isinstance(node, n.Join) or node.nearness is None or node.versioned:
        return node
    if node.kind is n.JoinKind.TEMPORAL:
        return _temporal(node)
    return _asof(node) if node.kind is n.JoinKind.ASOF else node


def _temporal(node: n.Join) -> n.Node:
    versions = versions_of(node.right)
    if versions is None or node.nearness is None:
        return node
    pairs = {}
    others = []
    for pair in node.equal:
        name = pair.right.name if isinstance(pair.right, exp.Column) else None
        if name in versions.key and name not in pairs:
            pairs[name] = pair
        else:
            sign = exp.NullSafeEQ if pair.null_safe else exp.EQ
            others.append(sign(this=pair.left.copy(), expression=pair.right.copy()))
    if len(pairs) < len(versions.key):
        return node
    join = replace(
        node,
        right=versions.rows,
        versioned=True,
        alive_id=versions.alive,
        equal=tuple(pairs.values()),
        residual=None,
        nearness=replace(
            node.nearness,
            right=column(versions.rows.field(versions.time)),
            first=versions.first,
        ),
    )
    return _asked(join, [*others, *ex.conjuncts(node.residual)])


def _asof(node: n.Join) -> n.Node:
    right = {item.id for item in node.right.fields}
    left = {item.id for item in node.left.fields}
    pieces = ex.conjuncts(node.residual)
    before = [piece for piece in pieces if referenced(piece) <= right]
    after = [piece for piece in pieces if piece not in before and referenced(piece) <= left]
    both = [piece for piece in pieces if piece not in before and piece not in after]
    join = replace(node, residual=ex.conjunction(both))
    condition = ex.conjunction(before)
    if condition is not None:
        rows = n.Filter(node.right.fields, input=node.right, condition=condition, span=node.span)
        join = replace(join, right=rows)
    return _asked(join, after)


def _asked(join: n.Join, conditions: list[exp.Expr]) -> n.Node:
    """The join, of whose rows only those have a right part for which the conditions hold."""
    condition = ex.conjunction(conditions)
    if condition is None:
        return join
    if join.how == "INNER":
        return n.Filter(join.fields, input=join, condition=condition, span=join.span)
    if join.how != "LEFT":
        return join
    right = {item.id for item in join.right.fields}
    expressions = tuple(
        exp.Case(ifs=[exp.If(this=condition.copy(), true=column(item))])
        if item.id in right
        else column(item)
        for item in join.fields
    )
    # Ids are unique in a plan, and these columns are others than those of the join.
    return n.Project(join.fields, input=join, expressions=expressions, span=join.span)
