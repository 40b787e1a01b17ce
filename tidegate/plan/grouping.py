"""GROUP BY: keys and aggregates out of expressions, expressions over them back."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.grouping_sets import grouping_bit, grouping_number_of
from tidegate.plan.resolve import UNKNOWN_FUNCTION
from tidegate.plan.scope import Context, by_id, column, derived_field
from tidegate.plan.subqueries import refuse_subqueries
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import to_sql
from tidegate.types import Span


@dataclass(frozen=True)
class GroupingSets:
    """Several sets of keys: the grouping expressions in `order`, and those not in every set."""

    order: tuple[exp.Expr, ...]
    varying: frozenset[int]
    id: n.Field


@dataclass
class Grouping:
    """The keys of a GROUP BY and the aggregates found while rewriting expressions.

    `written` are the keys as expressions of the query have them, in the order of `keys`.
    """

    context: Context
    input: n.Node
    keys: tuple[n.Field, ...]
    key_trees: tuple[exp.Expr, ...]
    written: tuple[exp.Expr, ...]
    sets: GroupingSets | None = None
    # GROUP BY was refused, so nobody knows what its keys would have been.
    keys_unknown: bool = False
    aggregates: list[exp.Expr] = field(default_factory=list)
    aggregate_fields: list[n.Field] = field(default_factory=list)

    def node(self, span: Span | None) -> n.Aggregate:
        spec = next((key.window for key in self.keys if key.window is not None), None)
        return n.Aggregate(
            self.keys + tuple(self.aggregate_fields),
            input=self.input,
            keys=self.key_trees,
            aggregates=tuple(self.aggregates),
            window=spec,
            emit=self.context.emit,
            ttl_us=self.context.ttl_us,
            span=span,
        )

    def rewrite(self, tree: exp.Expr) -> exp.Expr:
        """The expression over keys and aggregates; any other column is an error."""
        # The columns that tell grouping sets apart come last, and are not written anywhere.
        for key, key_tree in zip(self.keys, self.written, strict=False):
            if tree == key_tree:
                return column(key, tree)
        if ex.call_name(tree) in ("GROUPING", "GROUPING_ID"):
            return self._grouping_call(tree)
        if isinstance(tree, exp.Window):
            return self._rewrite_over(tree)
        if ex.is_aggregate_call(tree):
            return self._aggregate(tree)
        if isinstance(tree, exp.Column):
            self._not_grouped(tree)
            return tree.copy()
        if isinstance(tree, exp.Query) or tree.meta.get(UNKNOWN_FUNCTION):
            return tree.copy()
        return self._rebuild(tree)

    def _grouping_call(self, tree: exp.Expr) -> exp.Expr:
        """grouping(x) and grouping_id(): which keys are NULL because of the set of a row."""
        name = (ex.call_name(tree) or "").lower()
        if self.sets is None:
            self.context.report(
                "TG-305",
                f"{name}() tells the sets of a GROUP BY apart, and this one has a single set",
                tree,
                "GROUP BY ROLLUP(…), CUBE(…) or GROUPING SETS (…)",
            )
            return tree.copy()
        order, width = list(self.sets.order), len(self.sets.order)
        asked = [part.unnest() for part in tree.expressions]
        if name == "grouping_id" and asked in ([], order):
            return column(self.sets.id, tree)
        single = name == "grouping"
        if not all(part in order for part in asked) or (single and len(asked) != 1):
            self.context.report(
                "TG-305",
                f"{name}() asks for the expressions of GROUP BY",
                tree,
                "grouping_id() for all of them, grouping_id(x, y) for some, grouping(x) for one.",
            )
            return tree.copy()
        bits = [self._grouping_bit(order.index(part), width) for part in asked]
        return bits[0] if single else grouping_number_of(bits)

    def _grouping_bit(self, place: int, width: int) -> exp.Expr:
        assert self.sets is not None, "there is one set otherwise"
        if place not in self.sets.varying:
            return exp.cast(exp.Literal.number(0), "TINYINT")
        return grouping_bit(self.sets.id, place, width)

    def _rebuild(self, tree: exp.Expr) -> exp.Expr:
        result = tree.copy()
        for key, value in tree.args.items():
            if isinstance(value, exp.Expr):
                result.set(key, self.rewrite(value))
            elif isinstance(value, list):
                result.set(key, [self.rewrite(v) if isinstance(v, exp.Expr) else v for v in value])
        return result

    def _rewrite_over(self, tree: exp.Window) -> exp.Expr:
        """`sum(count(*)) OVER (…)`: the outer function is OVER's, the arguments are ours."""
        result = self._rebuild_without_this(tree)
        function = tree.this
        if isinstance(function, exp.Anonymous):
            inner = function.copy()
            inner.set("expressions", [self.rewrite(part) for part in function.expressions])
            result.set("this", inner)
        else:
            result.set("this", self._rebuild(function))
        return result

    def _rebuild_without_this(self, tree: exp.Window) -> exp.Window:
        result = tree.copy()
        for key in ("partition_by", "order"):
            value = tree.args.get(key)
            if isinstance(value, exp.Expr):
                result.set(key, self._rebuild(value))
            elif isinstance(value, list):
                result.set(key, [self.rewrite(part) for part in value])
        return result

    def _aggregate(self, tree: exp.Expr) -> exp.Expr:
        refuse_subqueries(self.context, tree, "inside an aggregate")
        if any(ex.has_aggregate(child) for child in _arguments(tree)):
            self.context.report(
                "TG-305",
                "an aggregate inside an aggregate",
                tree,
                "compute the inner one in a subquery.",
            )
        if ex.has_over(tree):
            self.context.report(
                "TG-305",
                "a function with OVER inside an aggregate",
                tree,
                "compute it in a subquery, and aggregate that.",
            )
        for index, known in enumerate(self.aggregates):
            if known == tree:
                return column(self.aggregate_fields[index], tree)
        item = derived_field(self.context, _short_name(tree), tree, by_id(self.input.fields))
        self.aggregates.append(tree)
        self.aggregate_fields.append(item)
        return column(item, tree)

    def _not_grouped(self, tree: exp.Column) -> None:
        item = by_id(self.input.fields).get(tree.name)
        if item is None or self.keys_unknown:
            return
        self.context.report(
            "TG-304",
            f"{item.name} is neither in GROUP BY nor inside an aggregate",
            tree,
            f"add {item.name} to GROUP BY, or take for example max({item.name}).",
        )


def _arguments(tree: exp.Expr) -> list[exp.Expr]:
    while isinstance(tree, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        tree = tree.this
    return [part for part in tree.expressions if isinstance(part, exp.Expr)]


def _short_name(tree: exp.Expr) -> str:
    """A readable id for an aggregate: count, max_price."""
    inner = tree
    while isinstance(inner, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        inner = inner.this
    name = (ex.call_name(inner) or "agg").lower()
    columns = [part.name for part in inner.find_all(exp.Column)]
    text = "_".join([name, *columns[:1]])
    return text if text.replace("_", "a").isalnum() else to_sql(inner)
