"""The keys of GROUP BY: a window function, expressions, and several sets of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.bind.resolve import UNKNOWN_FUNCTION, Resolver, select_items
from tidegate.plan.bind.scope import (
    Context,
    Relation,
    Scope,
    column,
    derived_field,
    fields_by_id,
    referenced_ids,
)
from tidegate.plan.bind.subqueries import reject_subqueries
from tidegate.plan.bind.windows import assign_windows, resolved_time, window_call
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import to_sql
from tidegate.types import Span

# ---- GROUPING SETS, ROLLUP and CUBE: every row once per set, with the keys that are not in it NULL.

# Every row is copied once per set, so a CUBE of many columns could fill the memory.
MOST_SETS = 1024
_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)


@dataclass(frozen=True)
class Expanded:
    """The rows of a GROUP BY with several sets.

    `copies` has the column that stands for each key which is not in every set; `id` tells the set.
    """

    node: n.Explode
    copies: dict[int, n.Field]
    added: tuple[n.Field, ...]

    @property
    def id(self) -> n.Field:
        return self.added[0]


def written_sets(group: exp.Group) -> list[list[exp.Expr]] | None:
    """What each set groups by, as written; None if there is only the one."""
    several = any(isinstance(part, _SETS) for part in group.expressions)
    for word, kind in (("rollup", exp.Rollup), ("cube", exp.Cube), ("grouping_sets", None)):
        clauses = group.args.get(word)
        if not clauses:
            continue
        if kind is None:
            # GROUP BY a, b GROUPING SETS (…): the columns in front only say the order.
            return _sets_of(clauses[0])
        return _sets_of(kind(expressions=clauses[0].expressions or group.expressions))
    if not several:
        return None
    parts = [_sets_of(part) for part in group.expressions]
    return [list(itertools.chain(*chosen)) for chosen in itertools.product(*parts)]


def written_order(group: exp.Group) -> list[exp.Expr]:
    """The grouping expressions from left to right, which is what grouping_id() counts."""
    clauses = [part for word in ("rollup", "cube", "grouping_sets") for part in _args(group, word)]
    found: list[exp.Expr] = []
    for part in [*group.expressions, *clauses]:
        found += itertools.chain(*_sets_of(part)) if isinstance(part, _SETS) else [part]
    return found


def _args(group: exp.Group, word: str) -> list[exp.Expr]:
    return list(group.args.get(word) or [])


def _sets_of(part: exp.Expr) -> list[list[exp.Expr]]:
    if isinstance(part, exp.GroupingSets):
        sets: list[list[exp.Expr]] = []
        for inner in part.expressions:
            sets += _sets_of(inner) if isinstance(inner, _SETS) else [_members(inner)]
        return sets
    if isinstance(part, exp.Rollup):
        steps = [_members(inner) for inner in part.expressions]
        return [list(itertools.chain(*steps[:end])) for end in range(len(steps), -1, -1)]
    if isinstance(part, exp.Cube):
        steps = [_members(inner) for inner in part.expressions]
        chosen = itertools.product((True, False), repeat=len(steps))
        return [list(itertools.chain(*itertools.compress(steps, taken))) for taken in chosen]
    return [[part]]


def _members(part: exp.Expr) -> list[exp.Expr]:
    return list(part.expressions) if isinstance(part, exp.Tuple) else [part.unnest()]


def count_of_sets(group: exp.Group) -> int:
    """How many sets there are, without writing them down."""
    clauses = [part for word in ("rollup", "cube", "grouping_sets") for part in _args(group, word)]
    count = 1
    for part in [*group.expressions, *clauses]:
        columns = part.expressions or group.expressions
        if isinstance(part, exp.Cube):
            count *= 2 ** len(columns)
        elif isinstance(part, exp.Rollup):
            count *= len(columns) + 1
    return count


def expand(context: Context, node: n.Node, order: list[exp.Expr], sets: list[set[int]]) -> Expanded:
    """Every row once per set; `sets` are places in `order`, the grouping expressions."""
    fields = fields_by_id(node.fields)
    varying = [i for i, _ in enumerate(order) if any(i not in chosen for chosen in sets)]
    copies = {i: _copy_of(context, order[i], fields) for i in varying}
    numbers = [grouping_number(chosen, len(order)) for chosen in sets]
    added = [_hidden(context, "grouping_id", "BIGINT")]
    if len(set(numbers)) < len(numbers):
        # A set that is written twice gives its groups twice.
        added.append(_hidden(context, "grouping_set", "INT"))
    rows = []
    for place, chosen in enumerate(sets):
        cells = [order[i].copy() if i in chosen else _no_value(order[i]) for i in varying]
        cells.append(exp.cast(exp.Literal.number(numbers[place]), "BIGINT"))
        cells.append(exp.Literal.number(place))
        rows.append(_struct(cells[: len(varying) + len(added)]))
    generated = (*copies.values(), *added)
    generator = _call("INLINE", [_call("ARRAY", rows)])
    exploded = n.Explode(
        node.fields + generated,
        input=node,
        generator=generator,
        generated=tuple(item.id for item in generated),
        of_sets=True,
        first_set=(added[-1].id, 0 if len(added) > 1 else numbers[0]),
        span=node.span,
    )
    return Expanded(exploded, copies, tuple(added))


def grouping_number(chosen: set[int], width: int) -> int:
    """One bit per grouping expression, the first one the highest: 1 where it is not in the set."""
    return sum(1 << (width - 1 - place) for place in range(width) if place not in chosen)


def grouping_bit(item: n.Field, place: int, width: int) -> exp.Expr:
    """grouping(x): whether the expression at a place is not in the set of a row."""
    shifted = _call("SHIFTRIGHT", [column(item), exp.Literal.number(width - 1 - place)])
    one = exp.BitwiseAnd(this=shifted, expression=exp.Literal.number(1))
    return exp.cast(exp.Paren(this=one), "TINYINT")


def grouping_number_of(bits: list[exp.Expr]) -> exp.Expr:
    """grouping_id(x, y): one bit for each expression that is asked about, the first the highest."""
    number: exp.Expr = exp.cast(bits[0], "BIGINT")
    for bit in bits[1:]:
        doubled = exp.Mul(this=number, expression=exp.Literal.number(2))
        number = exp.Paren(this=exp.Add(this=doubled, expression=bit))
    return number


def _copy_of(context: Context, tree: exp.Expr, fields: dict[str, n.Field]) -> n.Field:
    bare = tree.unnest()
    known = fields.get(bare.name) if isinstance(bare, exp.Column) else None
    item = derived_field(context, known.name if known is not None else "key", tree, fields)
    return replace(item, role=n.Role.PLAIN, window=None, nullable=True)


def _hidden(context: Context, name: str, kind: str) -> n.Field:
    return n.Field(context.fresh(name), name, kind, nullable=False)


def _no_value(tree: exp.Expr) -> exp.Expr:
    """NULL of the type that an expression has, which only Spark knows."""
    return exp.Case(ifs=[exp.If(this=exp.false(), true=tree.copy())])


def _struct(cells: list[exp.Expr]) -> exp.Expr:
    named = [[exp.Literal.string(f"c{place}"), cell] for place, cell in enumerate(cells)]
    return _call("NAMED_STRUCT", list(itertools.chain(*named)))


def _call(name: str, parts: list[exp.Expr]) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=parts)


# ---- GROUP BY: keys and aggregates out of expressions, expressions over them back.


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
    # GROUP BY was rejected, so nobody knows what its keys would have been.
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
        reject_subqueries(self.context, tree, "inside an aggregate")
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
        item = derived_field(self.context, _short_name(tree), tree, fields_by_id(self.input.fields))
        self.aggregates.append(tree)
        self.aggregate_fields.append(item)
        return column(item, tree)

    def _not_grouped(self, tree: exp.Column) -> None:
        item = fields_by_id(self.input.fields).get(tree.name)
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
        self._reject_extras(group)
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
                reject_subqueries(self.context, tree, "in GROUP BY")
                trees.append(tree)
        return self._bound(node, trees)

    def _bound(self, node: n.Node, trees: list[exp.Expr]) -> BoundKeys:
        keys = tuple(map(_no_position, trees))
        fields = tuple(self._field(tree, node) for tree in keys)
        return BoundKeys(node, fields, keys, tuple(trees))

    def _field(self, tree: exp.Expr, node: n.Node) -> n.Field:
        fields, bare = fields_by_id(node.fields), tree.unnest()
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
            if referenced_ids(tree) & made and any(place not in chosen for chosen in sets):
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

    def _reject_extras(self, group: exp.Group) -> None:
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
        reject_subqueries(self.context, tree, "in GROUP BY")
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
