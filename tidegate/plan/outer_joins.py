"""Outer, semi and anti joins whose condition compares both sides in a way no operator knows.

An operator matches rows by keys and times; what else the condition says, Spark tells of each pair.
So a row may have matches and lose all of them. Those rows are found by joining the rows that have
matches with the pairs that remain, by all columns: equal rows have equal matches, so it does not
matter which of them is meant. Every join reads the same inputs within the same bounds, so that all
of them agree on which rows are late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.copies import fresh_copy, with_names
from tidegate.plan.scope import Context, by_id, column
from tidegate.sql import expressions as ex

_NESTED = ("MAP", "ARRAY", "STRUCT")
# Joins two nodes: left, right, how, conditions.
Joiner = Callable[[n.Node, n.Node, str, list[exp.Expr]], n.Node]


@dataclass(frozen=True)
class Matched:
    """A join by `base`, of whose pairs only those count for which `residual` holds."""

    context: Context
    join: n.Join
    base: list[exp.Expr]
    residual: list[exp.Expr]
    joined: Joiner

    def node(self) -> n.Node:
        how, left, right = self.join.how, self.join.left, self.join.right
        if not self._comparable():
            return self.join
        if how == "SEMI":
            found = self.joined(left, right, "SEMI", self.base)
            return self._by_all_columns(found, left, right, "SEMI")
        if how == "ANTI":
            return self._union(
                self.joined(left, right, "ANTI", self.base), self._rejected(left, right)
            )
        members = [self._outer()]
        if how in ("LEFT", "FULL"):
            members.append(self._padded(self._rejected(left, right), before=0))
        if how in ("RIGHT", "FULL"):
            members.append(self._padded(self._rejected(right, left), before=len(left.fields)))
        return self._union(*members)

    def _comparable(self) -> bool:
        kept = {"LEFT": [0], "RIGHT": [1], "FULL": [0, 1]}.get(self.join.how, [0])
        fields = [item for side in kept for item in self.join.inputs[side].fields]
        nested = [item for item in fields if (item.type or "").upper().startswith(_NESTED)]
        if nested:
            kind = (nested[0].type or "").split("<")[0].upper()
            self.context.report(
                "TG-103",
                f"a {self.join.how} join with this condition compares whole rows, and "
                f"{nested[0].name} is of type {kind}, by which rows cannot be joined",
                self.residual[0],
                f"do not select {nested[0].name} from this join, or select its parts from a "
                "subquery in FROM.",
            )
        return not nested

    def _outer(self) -> n.Node:
        """Pairs that count, and rows that have none by the keys and times alone."""
        how = self.join.how
        left, left_mark = self._marked(self.join.left, how in ("RIGHT", "FULL"))
        right, right_mark = self._marked(self.join.right, how in ("LEFT", "FULL"))
        joined = self.joined(left, right, how, self.base)
        alone: list[exp.Expr] = [
            exp.Is(this=column(mark), expression=exp.null())
            for mark in (left_mark, right_mark)
            if mark is not None
        ]
        condition = exp.or_(*alone, ex.conjunction(self.residual), copy=True)
        rows = n.Filter(joined.fields, input=joined, condition=condition, span=self.join.span)
        return self._picked(rows, self.join.fields)

    def _marked(self, node: n.Node, wanted: bool) -> tuple[n.Node, n.Field | None]:
        """The node with a column that is never NULL, so that a row without a match shows."""
        if not wanted:
            return node, None
        mark = n.Field(self.context.fresh("matched"), "matched", "BOOLEAN", nullable=False)
        expressions = (*(column(item) for item in node.fields), exp.true())
        return n.Project((*node.fields, mark), input=node, expressions=expressions), mark

    def _rejected(self, side: n.Node, other: n.Node) -> n.Node:
        """The rows of one side that have matches, none of which counts."""
        mine, names = fresh_copy(self.context, side)
        theirs, more = fresh_copy(self.context, other)
        base = [with_names(piece, {**names, **more}) for piece in self.base]
        found = self.joined(mine, theirs, "SEMI", base)
        return self._by_all_columns(found, side, other, "ANTI")

    def _by_all_columns(self, found: n.Node, side: n.Node, other: n.Node, how: str) -> n.Node:
        """Rows of one side, joined with the pairs that count by all columns of that side."""
        mine, names = fresh_copy(self.context, side)
        theirs, more = fresh_copy(self.context, other)
        both = {**names, **more}
        pairs = self.joined(mine, theirs, "INNER", [with_names(p, both) for p in self.base])
        condition = ex.conjunction([with_names(piece, both) for piece in self.residual])
        assert condition is not None, "there is something to ask of the pairs"
        counting = n.Filter(pairs.fields, input=pairs, condition=condition, span=self.join.span)
        rows = self._picked(counting, mine.fields)
        same: list[exp.Expr] = [
            exp.NullSafeEQ(this=column(one), expression=column(two))
            for one, two in zip(found.fields, rows.fields, strict=True)
        ]
        return self.joined(found, rows, how, same)

    def _picked(self, node: n.Node, wanted: tuple[n.Field, ...]) -> n.Node:
        known = by_id(node.fields)
        fields = tuple(known[item.id] for item in wanted)
        expressions = tuple(column(item) for item in fields)
        return n.Project(fields, input=node, expressions=expressions, span=self.join.span)

    def _padded(self, node: n.Node, before: int) -> n.Node:
        """Rows of one side as rows of the join: the columns of the other side are NULL."""
        fields: list[n.Field] = []
        expressions: list[exp.Expr] = []
        for place, item in enumerate(self.join.fields):
            own = place - before
            if 0 <= own < len(node.fields):
                fields.append(node.fields[own])
                expressions.append(column(node.fields[own]))
            else:
                plain = replace(item, role=n.Role.PLAIN, window=None, nullable=True)
                fields.append(replace(plain, id=self.context.fresh(item.name)))
                nothing = exp.null()
                expressions.append(exp.cast(nothing, item.type) if item.type else nothing)
        return n.Project(
            tuple(fields), input=node, expressions=tuple(expressions), span=self.join.span
        )

    def _union(self, *members: n.Node) -> n.Node:
        return n.SetOperation(
            self.join.fields, members=members, operation="UNION", all=True, span=self.join.span
        )
