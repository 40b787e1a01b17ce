"""Binds GROUP BY: a window function, key expressions, and grouping sets."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.bind.resolve import UNKNOWN_FUNCTION, Resolver, select_items
from tidegate.plan.bind.scope import (
    BindingContext,
    Relation,
    Scope,
    column,
    derived_field,
    fields_by_id,
    function_call,
    referenced_ids,
    report_position,
    struct_of,
    typed_null,
)
from tidegate.plan.bind.subqueries import reject_subqueries
from tidegate.plan.bind.windows import assign_windows, is_window_call, resolve_time
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import to_sql
from tidegate.types import Span

# ---- GROUPING SETS, ROLLUP and CUBE: a copy of each row per set, with NULL for keys not in the set

# A CUBE of many columns could exhaust the memory.
MAX_GROUPING_SETS = 1024
_SET_CLAUSES = (exp.Rollup, exp.Cube, exp.GroupingSets)


@dataclass(frozen=True)
class ExpandedRows:
    """The rows of a GROUP BY with several sets.

    `copies` contains, for each key that is not in every set, the column that replaces it; `id`
    identifies the set.
    """

    node: n.Explode
    copies: dict[int, n.Field]
    set_fields: tuple[n.Field, ...]

    @property
    def id(self) -> n.Field:
        return self.set_fields[0]


def parse_grouping_sets(group: exp.Group) -> list[list[exp.Expr]] | None:
    """Return the expressions of each grouping set, or None if there is only one set."""
    has_set_clause = any(isinstance(part, _SET_CLAUSES) for part in group.expressions)
    for arg, clause_class in (("rollup", exp.Rollup), ("cube", exp.Cube), ("grouping_sets", None)):
        clauses = group.args.get(arg)
        if not clauses:
            continue
        if clause_class is None:
            # GROUP BY a, b GROUPING SETS (…): the leading columns only define the order.
            return _parse_sets(clauses[0])
        return _parse_sets(clause_class(expressions=clauses[0].expressions or group.expressions))
    if not has_set_clause:
        return None
    parts = [_parse_sets(part) for part in group.expressions]
    return [list(itertools.chain(*combination)) for combination in itertools.product(*parts)]


def parse_grouping_expressions(group: exp.Group) -> list[exp.Expr]:
    """Return the grouping expressions from left to right, the order of grouping_id()."""
    expressions: list[exp.Expr] = []
    for part in _grouping_elements(group):
        expressions += (
            itertools.chain(*_parse_sets(part)) if isinstance(part, _SET_CLAUSES) else [part]
        )
    return expressions


def _grouping_elements(group: exp.Group) -> list[exp.Expr]:
    """Return the expressions and set clauses of a GROUP BY."""
    clauses = [group.args.get(arg) or [] for arg in ("rollup", "cube", "grouping_sets")]
    return [*group.expressions, *itertools.chain(*clauses)]


def _parse_sets(part: exp.Expr) -> list[list[exp.Expr]]:
    if isinstance(part, exp.GroupingSets):
        sets: list[list[exp.Expr]] = []
        for inner in part.expressions:
            sets += _parse_sets(inner) if isinstance(inner, _SET_CLAUSES) else [_set_members(inner)]
        return sets
    if isinstance(part, exp.Rollup):
        steps = [_set_members(inner) for inner in part.expressions]
        return [list(itertools.chain(*steps[:end])) for end in range(len(steps), -1, -1)]
    if isinstance(part, exp.Cube):
        steps = [_set_members(inner) for inner in part.expressions]
        selections = itertools.product((True, False), repeat=len(steps))
        return [
            list(itertools.chain(*itertools.compress(steps, selected))) for selected in selections
        ]
    return [[part]]


def _set_members(part: exp.Expr) -> list[exp.Expr]:
    return list(part.expressions) if isinstance(part, exp.Tuple) else [part.unnest()]


def count_grouping_sets(group: exp.Group) -> int:
    """Return the number of grouping sets without expanding them."""
    count = 1
    for part in _grouping_elements(group):
        columns = part.expressions or group.expressions
        if isinstance(part, exp.Cube):
            count *= 2 ** len(columns)
        elif isinstance(part, exp.Rollup):
            count *= len(columns) + 1
    return count


def expand_rows(
    context: BindingContext, node: n.Node, order: list[exp.Expr], sets: list[set[int]]
) -> ExpandedRows:
    """Repeat every row for each set; `sets` contain indexes of the grouping expressions."""
    fields = fields_by_id(node.fields)
    varying = [i for i, _ in enumerate(order) if any(i not in indexes for indexes in sets)]
    copies = {i: _key_copy(context, order[i], fields) for i in varying}
    ids = [grouping_id_value(indexes, len(order)) for indexes in sets]
    set_fields = [_set_field(context, "grouping_id", "BIGINT")]
    if len(set(ids)) < len(ids):
        # A set that occurs twice has its groups twice.
        set_fields.append(_set_field(context, "grouping_set", "INT"))
    rows = []
    for number, indexes in enumerate(sets):
        cells = [order[i].copy() if i in indexes else typed_null(order[i]) for i in varying]
        cells.append(exp.cast(exp.Literal.number(ids[number]), "BIGINT"))
        cells.append(exp.Literal.number(number))
        rows.append(struct_of(cells[: len(varying) + len(set_fields)]))
    generated = (*copies.values(), *set_fields)
    generator = function_call("INLINE", [function_call("ARRAY", rows)])
    exploded = n.Explode(
        node.fields + generated,
        input=node,
        generator=generator,
        generated=tuple(item.id for item in generated),
        of_sets=True,
        first_set=(set_fields[-1].id, 0 if len(set_fields) > 1 else ids[0]),
        span=node.span,
    )
    return ExpandedRows(exploded, copies, tuple(set_fields))


def grouping_id_value(indexes: set[int], width: int) -> int:
    """Return one bit per expression, the first one the highest: 1 if it is not in the set."""
    return sum(1 << (width - 1 - index) for index in range(width) if index not in indexes)


def grouping_expression(item: n.Field, index: int, width: int) -> exp.Expr:
    """Return grouping(x): whether the expression at an index is not in the set of a row."""
    shifted = function_call("SHIFTRIGHT", [column(item), exp.Literal.number(width - 1 - index)])
    one = exp.BitwiseAnd(this=shifted, expression=exp.Literal.number(1))
    return exp.cast(exp.Paren(this=one), "TINYINT")


def grouping_id_expression(bits: list[exp.Expr]) -> exp.Expr:
    """Return grouping_id(x, y): one bit per expression, the first one the highest."""
    number: exp.Expr = exp.cast(bits[0], "BIGINT")
    for bit in bits[1:]:
        doubled = exp.Mul(this=number, expression=exp.Literal.number(2))
        number = exp.Paren(this=exp.Add(this=doubled, expression=bit))
    return number


def _key_copy(context: BindingContext, tree: exp.Expr, fields: dict[str, n.Field]) -> n.Field:
    bare = tree.unnest()
    source = fields.get(bare.name) if isinstance(bare, exp.Column) else None
    item = derived_field(context, source.name if source is not None else "key", tree, fields)
    return replace(item, role=n.Role.PLAIN, window=None, nullable=True)


def _set_field(context: BindingContext, name: str, kind: str) -> n.Field:
    return n.Field(context.new_id(name), name, kind, nullable=False)


# ---- Aggregates: moved out of expressions, which then refer to keys and aggregates


@dataclass(frozen=True)
class GroupingSets:
    """Several sets of keys: all grouping expressions, and the indexes of those not in every set."""

    order: tuple[exp.Expr, ...]
    varying: frozenset[int]
    id: n.Field


@dataclass
class Grouping:
    """The keys of a GROUP BY, and the aggregates that were found in expressions.

    `original_trees` are the keys as they occur in expressions of the query, in the order of `keys`.
    """

    context: BindingContext
    input: n.Node
    keys: tuple[n.Field, ...]
    key_expressions: tuple[exp.Expr, ...]
    original_trees: tuple[exp.Expr, ...]
    sets: GroupingSets | None = None
    # GROUP BY was rejected, so its keys are unknown.
    has_unknown_keys: bool = False
    aggregates: list[exp.Expr] = field(default_factory=list)
    aggregate_fields: list[n.Field] = field(default_factory=list)

    def node(self, span: Span | None) -> n.Aggregate:
        """Return the Aggregate node."""
        spec = next((key.window for key in self.keys if key.window is not None), None)
        return n.Aggregate(
            self.keys + tuple(self.aggregate_fields),
            input=self.input,
            keys=self.key_expressions,
            aggregates=tuple(self.aggregates),
            window=spec,
            emit=self.context.emit,
            ttl_us=self.context.ttl_us,
            span=span,
        )

    def rewrite(self, tree: exp.Expr) -> exp.Expr:
        """Return an expression over keys and aggregates; report all other columns."""
        # The columns that identify grouping sets come last; no expression refers to them.
        for key, key_tree in zip(self.keys, self.original_trees, strict=False):
            if tree == key_tree:
                return column(key, tree)
        if ex.call_name(tree) in ("GROUPING", "GROUPING_ID"):
            return self._rewrite_grouping_call(tree)
        if isinstance(tree, exp.Window):
            return self._rewrite_window(tree)
        if ex.is_aggregate_call(tree):
            return self._add_aggregate(tree)
        if isinstance(tree, exp.Column):
            self._report_not_grouped(tree)
            return tree.copy()
        if isinstance(tree, exp.Query) or tree.meta.get(UNKNOWN_FUNCTION):
            return tree.copy()
        return self._rewrite_children(tree)

    def _rewrite_grouping_call(self, tree: exp.Expr) -> exp.Expr:
        """Rewrite grouping(x) and grouping_id(), which return the keys that are not in the set."""
        name = (ex.call_name(tree) or "").lower()
        if self.sets is None:
            self.context.report(
                "TG-305",
                f"{name}() needs several grouping sets, but this GROUP BY has one",
                tree,
                "use GROUP BY ROLLUP(…), CUBE(…) or GROUPING SETS (…).",
            )
            return tree.copy()
        order, width = list(self.sets.order), len(self.sets.order)
        arguments = [part.unnest() for part in tree.expressions]
        if name == "grouping_id" and arguments in ([], order):
            return column(self.sets.id, tree)
        is_grouping = name == "grouping"
        if not all(part in order for part in arguments) or (is_grouping and len(arguments) != 1):
            self.context.report(
                "TG-305",
                f"the arguments of {name}() must be expressions of GROUP BY",
                tree,
                "use grouping_id() for all of them, grouping_id(x, y) for some, or grouping(x) for "
                "one.",
            )
            return tree.copy()
        bits = [self._grouping_bit(order.index(part), width) for part in arguments]
        return bits[0] if is_grouping else grouping_id_expression(bits)

    def _grouping_bit(self, index: int, width: int) -> exp.Expr:
        assert self.sets is not None, "there are several sets"
        if index not in self.sets.varying:
            return exp.cast(exp.Literal.number(0), "TINYINT")
        return grouping_expression(self.sets.id, index, width)

    def _rewrite_children(self, tree: exp.Expr) -> exp.Expr:
        result = tree.copy()
        for key, value in tree.args.items():
            if isinstance(value, exp.Expr):
                result.set(key, self.rewrite(value))
            elif isinstance(value, list):
                result.set(key, [self.rewrite(v) if isinstance(v, exp.Expr) else v for v in value])
        return result

    def _rewrite_window(self, tree: exp.Window) -> exp.Expr:
        """Rewrite `sum(count(*)) OVER (…)`: only the arguments of the function are aggregates."""
        result = self._rewrite_window_clauses(tree)
        function = tree.this
        if isinstance(function, exp.Anonymous):
            inner = function.copy()
            inner.set("expressions", [self.rewrite(part) for part in function.expressions])
            result.set("this", inner)
        else:
            result.set("this", self._rewrite_children(function))
        return result

    def _rewrite_window_clauses(self, tree: exp.Window) -> exp.Window:
        result = tree.copy()
        for key in ("partition_by", "order"):
            value = tree.args.get(key)
            if isinstance(value, exp.Expr):
                result.set(key, self._rewrite_children(value))
            elif isinstance(value, list):
                result.set(key, [self.rewrite(part) for part in value])
        return result

    def _add_aggregate(self, tree: exp.Expr) -> exp.Expr:
        reject_subqueries(self.context, tree, "inside an aggregate")
        if any(ex.has_aggregate(child) for child in _arguments(tree)):
            self.context.report(
                "TG-305",
                "an aggregate cannot contain another aggregate",
                tree,
                "compute the inner one in a subquery.",
            )
        if ex.has_window_function(tree):
            self.context.report(
                "TG-305",
                "an aggregate cannot contain a window function",
                tree,
                "compute it in a subquery, and aggregate that.",
            )
        for index, other in enumerate(self.aggregates):
            if other == tree:
                return column(self.aggregate_fields[index], tree)
        item = derived_field(
            self.context, _aggregate_name(tree), tree, fields_by_id(self.input.fields)
        )
        self.aggregates.append(tree)
        self.aggregate_fields.append(item)
        return column(item, tree)

    def _report_not_grouped(self, tree: exp.Column) -> None:
        item = fields_by_id(self.input.fields).get(tree.name)
        if item is None or self.has_unknown_keys:
            return
        self.context.report(
            "TG-304",
            f"{item.name} is neither in GROUP BY nor inside an aggregate",
            tree,
            f"add {item.name} to GROUP BY, or use an aggregate such as max({item.name}).",
        )


def _arguments(tree: exp.Expr) -> list[exp.Expr]:
    while isinstance(tree, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        tree = tree.this
    return [part for part in tree.expressions if isinstance(part, exp.Expr)]


def _aggregate_name(tree: exp.Expr) -> str:
    """Return a readable id for an aggregate, such as count or max_price."""
    inner = tree
    while isinstance(inner, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        inner = inner.this
    name = (ex.call_name(inner) or "agg").lower()
    columns = [part.name for part in inner.find_all(exp.Column)]
    text = "_".join([name, *columns[:1]])
    return text if text.replace("_", "a").isalnum() else to_sql(inner)


@dataclass(frozen=True)
class BoundKeys:
    """The rows to group and the keys; `original_trees` are the keys as the query contains them."""

    node: n.Node
    fields: tuple[n.Field, ...] = ()
    trees: tuple[exp.Expr, ...] = ()
    original_trees: tuple[exp.Expr, ...] = ()
    sets: GroupingSets | None = None


@dataclass
class KeyBinder:
    """Binds the GROUP BY clause of one SELECT."""

    context: BindingContext
    scope: Scope
    select: list[exp.Expr]
    resolver: Callable[..., Resolver]
    # A key was rejected, so columns may be grouped.
    has_unknown_keys: bool = False

    def bind(self, group: exp.Group, node: n.Node) -> BoundKeys:
        self._reject_unsupported(group)
        if group.args.get("all"):
            return self._bind_group_by_all(group, node)
        sets = parse_grouping_sets(group) if self._check_number_of_sets(group) else None
        parts = parse_grouping_expressions(group) if sets is not None else list(group.expressions)
        window = self._find_window_call(parts, sets)
        trees: list[exp.Expr] = []
        if window is not None:
            node, trees = self._bind_window(node, window)
        plain = {id(part): self._bind_key(part) for part in parts if not is_window_call(part)}
        order: list[exp.Expr] = []
        for tree in plain.values():
            order += [tree] if tree not in order else []
        if window is not None:
            self.scope.window_fields = self.scope.relations[-1].fields
        if sets is None or sets == [[]]:
            # One empty set equals a query without GROUP BY: one row, also for empty input.
            trees += [tree for tree in order if tree not in trees]
            return self._bind_trees(node, trees)
        index_sets = [
            {order.index(plain[id(part)]) for part in members if id(part) in plain}
            for members in sets
        ]
        return self._bind_sets(group, node, trees, order, index_sets)

    def _bind_group_by_all(self, group: exp.Group, node: n.Node) -> BoundKeys:
        """Bind GROUP BY ALL: all items of the SELECT list without aggregates."""
        if group.expressions:
            self.context.report(
                "TG-103",
                "GROUP BY ALL cannot be combined with other keys",
                group,
                "list all keys, or none of them. A window can be in FROM: "
                "FROM TUMBLE(…, INTERVAL '1' MINUTE) GROUP BY ALL.",
            )
        trees: list[exp.Expr] = []
        for item in select_items(self.select, self.scope, self.resolver):
            tree = item.expression
            if not (ex.has_aggregate(tree) or ex.has_window_function(tree) or tree in trees):
                reject_subqueries(self.context, tree, "in GROUP BY")
                trees.append(tree)
        return self._bind_trees(node, trees)

    def _bind_trees(self, node: n.Node, trees: list[exp.Expr]) -> BoundKeys:
        keys = tuple(map(_protect_literal, trees))
        fields = tuple(self._key_field(tree, node) for tree in keys)
        return BoundKeys(node, fields, keys, tuple(trees))

    def _key_field(self, tree: exp.Expr, node: n.Node) -> n.Field:
        fields, bare = fields_by_id(node.fields), tree.unnest()
        item = fields.get(bare.name) if isinstance(bare, exp.Column) else None
        return item or derived_field(self.context, "key", tree, fields)

    def _bind_sets(
        self,
        group: exp.Group,
        node: n.Node,
        windows: list[exp.Expr],
        order: list[exp.Expr],
        sets: list[set[int]],
    ) -> BoundKeys:
        """Bind the keys of several sets; a key that is not in every set is replaced by a copy."""
        window_ids = {tree.name for tree in windows}
        below = node.input if isinstance(node, n.Window) and window_ids else node
        for index, tree in enumerate(order):
            if tree in windows:
                name = tree.alias_or_name
                message = f"{name} is in every set, because the window is listed first"
                hint = "remove it from the sets: GROUP BY TUMBLE(…), GROUPING SETS ((a), (b))."
                self.context.report("TG-306", message, group, hint)
                return self._bind_trees(node, [*windows, *(t for t in order if t not in windows)])
            if referenced_ids(tree) & window_ids and any(index not in indexes for indexes in sets):
                message = "a column of the window must be in every set of GROUP BY"
                hint = "put it in front: GROUP BY window_end, ROLLUP(…)."
                self.context.report("TG-306", message, group, hint)
                return self._bind_trees(node, windows + order)
        expanded = expand_rows(self.context, below, order, sets)
        copies, exploded = expanded.copies, expanded.node
        if isinstance(node, n.Window) and window_ids:
            rows: n.Node = replace(node, fields=exploded.fields + node.fields[-3:], input=exploded)
        else:
            rows = exploded
        trees = [*windows]
        trees += [column(copies[i], tree) if i in copies else tree for i, tree in enumerate(order)]
        trees += [column(item) for item in expanded.set_fields]
        bound = self._bind_trees(rows, trees)
        grouping_sets = GroupingSets(tuple(order), frozenset(copies), expanded.id)
        return replace(bound, original_trees=(*windows, *order), sets=grouping_sets)

    def _reject_unsupported(self, group: exp.Group) -> None:
        if group.args.get("totals"):
            message = "GROUP BY TOTALS is not supported on streams"
            self.context.report("TG-103", message, group, "name the columns to group by.")

    def _check_number_of_sets(self, group: exp.Group) -> bool:
        if count_grouping_sets(group) <= MAX_GROUPING_SETS:
            return True
        self.context.report(
            "TG-103",
            f"this GROUP BY makes {count_grouping_sets(group):,} sets (limit "
            f"{MAX_GROUPING_SETS:,})",
            group,
            "list the sets that you need: GROUPING SETS ((a, b), (a), ()).",
        )
        return False

    def _find_window_call(
        self, parts: list[exp.Expr], sets: list[list[exp.Expr]] | None
    ) -> exp.Expr | None:
        """Return the window function of a GROUP BY, which must be in each of its sets."""
        windows = [part for part in parts if is_window_call(part)]
        if not windows:
            return None
        others = [call for call in windows[1:] if sets is None or call != windows[0]]
        if others:
            self.context.report(
                "TG-306",
                "GROUP BY can only have one window function",
                others[0],
                "apply the other window in a second stream: CREATE STREAM … AS …",
            )
        elif any(windows[0] not in members for members in sets or ()):
            name = ex.call_name(windows[0])
            self.context.report(
                "TG-306",
                "one of the sets of GROUP BY has no window, so its groups would never close",
                windows[0],
                f"put the window in front: GROUP BY {name}(…), ROLLUP(…).",
            )
        return windows[0]

    def _bind_window(self, node: n.Node, call: exp.Expr) -> tuple[n.Node, list[exp.Expr]]:
        time = resolve_time(call.expressions[0], self.resolver()) if call.expressions else call
        window = assign_windows(self.context, node, call, time, grouped=True)
        if window is None:
            # The error has been reported. Add the columns, so that using them is not another error.
            names = ("window_start", "window_end", "window_time")
            missing = tuple(n.Field("?", name) for name in names)
            self.scope.relations.append(Relation(None, missing))
            return node, [column(item) for item in missing]
        added = window.fields[-3:]
        self.scope.relations.append(Relation(None, added))
        return window, [column(item, call) for item in added]

    def _bind_key(self, part: exp.Expr) -> exp.Expr:
        """Bind a key: an expression, or a position or alias of the SELECT list."""
        select = self.select
        if isinstance(part, exp.Literal) and part.is_int:
            position = int(part.name)
            if not 1 <= position <= len(select):
                names = ["" if ex.has_aggregate(item) else item.alias_or_name for item in select]
                report_position(self.context, "GROUP BY", part, position, names)
                self.has_unknown_keys = True
                return part
            part = select[position - 1].unalias()
        aliases = {item.alias.lower(): item.this for item in select if isinstance(item, exp.Alias)}
        if is_name(part) and not self.scope.find_fields(part.name) and part.name.lower() in aliases:
            part = aliases[part.name.lower()]
        tree = self.resolver().resolve(part)
        reject_subqueries(self.context, tree, "in GROUP BY")
        if ex.has_aggregate(tree) or ex.has_window_function(tree):
            self.context.report(
                "TG-305",
                "GROUP BY cannot contain an aggregate",
                part,
                "group in a subquery first, then group its result.",
            )
        return tree


def _protect_literal(tree: exp.Expr) -> exp.Expr:
    """Cast an integer key, which Spark would treat as a position in SELECT."""
    number = tree.this if isinstance(tree, exp.Neg) else tree
    if not isinstance(number, exp.Literal) or not number.is_int or int(number.name) >= 2**31:
        return tree
    return exp.cast(tree.copy(), "INT")


def is_name(node: exp.Expr) -> bool:
    """Return whether an expression is an unqualified name, which may be an alias."""
    return isinstance(node, exp.Column) and len(node.parts) == 1
