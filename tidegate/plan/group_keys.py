"""The keys of GROUP BY: a window function, expressions, and several sets of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.grouping import GroupingSets
from tidegate.plan.grouping_sets import (
    MOST_SETS,
    count_of_sets,
    expand,
    written_order,
    written_sets,
)
from tidegate.plan.items import select_items
from tidegate.plan.resolve import Resolver
from tidegate.plan.scope import Context, Relation, Scope, by_id, column, derived_field, referenced
from tidegate.plan.subqueries import refuse_subqueries
from tidegate.plan.windows import assign_windows, resolved_time, window_call
from tidegate.sql import expressions as ex


@dataclass(frozen=True)
class BoundKeys:
    """What is grouped, and by what: `written` are the keys as the query's expressions have them."""

    node: n.Node
    fields: tuple[n.Field, ...] = ()
    trees: tuple[exp.Expr, ...] = ()
    written: tuple[exp.Expr, ...] = ()
    sets: GroupingSets | None = None


@dataclass
class KeyBinder:
    """Binds the GROUP BY clause of one SELECT."""

    context: Context
    scope: Scope
    select: list[exp.Expr]
    resolver: Callable[..., Resolver]

    def bind(self, group: exp.Group, node: n.Node) -> BoundKeys:
        self._refuse_extras(group)
        if group.args.get("all"):
            return self._all(group, node)
        sets = written_sets(group) if self._few_enough(group) else None
        parts = written_order(group) if sets is not None else list(group.expressions)
        window = self._window_call(group, parts, sets)
        trees: list[exp.Expr] = []
        if window is not None:
            node, trees = self._window(node, window)
        plain = {id(part): self._key(part) for part in parts if not window_call(part)}
        order: list[exp.Expr] = []
        for tree in plain.values():
            order += [tree] if tree not in order else []
        if window is not None:
            self.scope.grouped = self.scope.relations[-1].fields
        if sets is None or sets == [[]]:
            # One empty set is what there is without GROUP BY: a row, even of no rows.
            trees += [tree for tree in order if tree not in trees]
            return self._bound(node, trees)
        chosen = [
            {order.index(plain[id(part)]) for part in one if id(part) in plain} for one in sets
        ]
        return self._several(group, node, trees, order, chosen)

    def _all(self, group: exp.Group, node: n.Node) -> BoundKeys:
        """GROUP BY ALL: what the SELECT list has without aggregates, each once."""
        if group.expressions:
            self.context.report(
                "TG-103",
                "GROUP BY ALL stands alone",
                group,
                "name all keys, or none of them; windows can stand in FROM: "
                "FROM TUMBLE(…, INTERVAL '1' MINUTE) GROUP BY ALL.",
            )
        trees: list[exp.Expr] = []
        for item in select_items(self.select, self.scope, self.resolver):
            tree = item.expression
            if not (ex.has_aggregate(tree) or ex.has_over(tree) or tree in trees):
                refuse_subqueries(self.context, tree, "in GROUP BY")
                trees.append(tree)
        return self._bound(node, trees)

    def _bound(self, node: n.Node, trees: list[exp.Expr]) -> BoundKeys:
        keys = tuple(map(_no_position, trees))
        fields = tuple(self._field(tree, node) for tree in keys)
        return BoundKeys(node, fields, keys, tuple(trees))

    def _field(self, tree: exp.Expr, node: n.Node) -> n.Field:
        fields, bare = by_id(node.fields), tree.unnest()
        known = fields.get(bare.name) if isinstance(bare, exp.Column) else None
        return known or derived_field(self.context, "key", tree, fields)

    def _several(
        self,
        group: exp.Group,
        node: n.Node,
        windows: list[exp.Expr],
        order: list[exp.Expr],
        sets: list[set[int]],
    ) -> BoundKeys:
        """Keys of several sets: those in every set as they are, the others as copies."""
        made = {tree.name for tree in windows}
        below = node.input if isinstance(node, n.Window) and made else node
        for place, tree in enumerate(order):
            if tree in windows:
                message = f"{tree.alias_or_name} is in every set already, with the window"
                hint = "leave it out of the sets: GROUP BY TUMBLE(…), GROUPING SETS ((a), (b))."
                self.context.report("TG-306", message, group, hint)
                return self._bound(node, [*windows, *(t for t in order if t not in windows)])
            if referenced(tree) & made and any(place not in chosen for chosen in sets):
                message = "a column of the window must be in every set of GROUP BY"
                hint = "put it in front: GROUP BY window_end, ROLLUP(…)."
                self.context.report("TG-306", message, group, hint)
                return self._bound(node, windows + order)
        expanded = expand(self.context, below, order, sets)
        copies, top = expanded.copies, expanded.node
        if isinstance(node, n.Window) and made:
            rows: n.Node = replace(node, fields=top.fields + node.fields[-3:], input=top)
        else:
            rows = top
        trees = [*windows]
        trees += [column(copies[i], tree) if i in copies else tree for i, tree in enumerate(order)]
        trees += [column(item) for item in expanded.added]
        bound = self._bound(rows, trees)
        sets_of_keys = GroupingSets(tuple(order), frozenset(copies), expanded.id)
        return replace(bound, written=(*windows, *order), sets=sets_of_keys)

    def _refuse_extras(self, group: exp.Group) -> None:
        if group.args.get("totals"):
            message = "GROUP BY TOTALS is not supported on streams"
            self.context.report("TG-103", message, group, "name the columns to group by.")

    def _few_enough(self, group: exp.Group) -> bool:
        if count_of_sets(group) <= MOST_SETS:
            return True
        self.context.report(
            "TG-103",
            f"every row would be in {count_of_sets(group)} groups of this GROUP BY",
            group,
            f"at most {MOST_SETS} are allowed: name the sets with GROUPING SETS (…).",
        )
        return False

    def _window_call(
        self, group: exp.Group, parts: list[exp.Expr], sets: list[list[exp.Expr]] | None
    ) -> exp.Expr | None:
        """The one window function of a GROUP BY, which must be in each of its sets."""
        windows = [part for part in parts if window_call(part)]
        if not windows:
            return None
        others = [call for call in windows[1:] if sets is None or call != windows[0]]
        if others:
            self.context.report(
                "TG-306",
                "GROUP BY can have one window function",
                others[0],
                "window one stream, and then that one again: CREATE STREAM … AS …",
            )
        elif any(windows[0] not in chosen for chosen in sets or ()):
            name = ex.call_name(windows[0])
            self.context.report(
                "TG-306",
                "one of the sets of GROUP BY has no window, so its groups would never close",
                windows[0],
                f"put the window in front: GROUP BY {name}(…), ROLLUP(…).",
            )
        return windows[0]

    def _window(self, node: n.Node, call: exp.Expr) -> tuple[n.Node, list[exp.Expr]]:
        time = resolved_time(call.expressions[0], self.resolver()) if call.expressions else call
        window = assign_windows(self.context, node, call, time, grouped=True)
        if window is None:
            # Already reported; let the rest of the query see the columns it expects.
            names = ("window_start", "window_end", "window_time")
            missing = tuple(n.Field("?", name) for name in names)
            self.scope.relations.append(Relation(None, missing))
            return node, [column(item) for item in missing]
        added = window.fields[-3:]
        self.scope.relations.append(Relation(None, added))
        return window, [column(item, call) for item in added]

    def _key(self, part: exp.Expr) -> exp.Expr:
        """A key may be an expression, a position or an alias of the SELECT list."""
        select = self.select
        if isinstance(part, exp.Literal) and part.is_int:
            position = int(part.name)
            if not 1 <= position <= len(select):
                self.context.report(
                    "TG-301",
                    f"GROUP BY {position}: there are {len(select)} columns",
                    part,
                    f"a number from 1 to {len(select)}, or the name of a column.",
                )
                return part
            part = select[position - 1].unalias()
        aliases = {item.alias.lower(): item.this for item in select if isinstance(item, exp.Alias)}
        if is_name(part) and not self.scope.find(part.name) and part.name.lower() in aliases:
            part = aliases[part.name.lower()]
        tree = self.resolver().resolve(part)
        refuse_subqueries(self.context, tree, "in GROUP BY")
        if ex.has_aggregate(tree) or ex.has_over(tree):
            self.context.report(
                "TG-305",
                "GROUP BY cannot hold an aggregate",
                part,
                "group in a subquery first, and then group its result.",
            )
        return tree


def _no_position(tree: exp.Expr) -> exp.Expr:
    """A key that is a whole number is itself, where Spark would take it for a place in SELECT."""
    number = tree.this if isinstance(tree, exp.Neg) else tree
    if not isinstance(number, exp.Literal) or not number.is_int or int(number.name) >= 2**31:
        return tree
    return exp.cast(tree.copy(), "INT")


def is_name(node: exp.Expr) -> bool:
    """Whether it is a bare name, which may be an alias of the SELECT list."""
    return isinstance(node, exp.Column) and len(node.parts) == 1
