"""One SELECT: from, where, windows, groups, having, over, qualify, projection, order, limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.errors import did_you_mean
from tidegate.plan import nodes as n
from tidegate.plan.bind.group_by import BoundKeys, Grouping, KeyBinder, is_name
from tidegate.plan.bind.resolve import Resolver, SelectItem, is_row_count, select_items
from tidegate.plan.bind.scope import (
    Context,
    Relation,
    Scope,
    column,
    derived_field,
    fields_by_id,
    volatile,
)
from tidegate.plan.bind.subqueries import (
    as_predicate,
    reject_subqueries,
    semi_join,
    subqueries_in,
    where_one_row,
    with_scalars,
)
from tidegate.plan.bind.tables import Ctes, TableBinder, written_time
from tidegate.plan.nodes.over import (
    WindowFunction,
    find_closing_field,
    drop_event_times,
    is_final_at_watermark,
    keep_one_event_time,
    parse_window_function,
)
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span, to_sql
from tidegate.types import ChangelogKind

# ---- explode in the SELECT list: the same as a LATERAL VIEW below the projection.

# Those that make one column of an array; others need names for what they make.
_OF_ONE_COLUMN = ("EXPLODE", "EXPLODE_OUTER")


def with_generators_below(
    context: Context, node: n.Node, items: list[SelectItem], order: list[exp.Expr]
) -> tuple[n.Node, list[SelectItem], list[exp.Expr]]:
    """The generator of a SELECT list as a node of its own, and columns in its place."""
    places = [place for place, item in enumerate(items) if ex.has_generator(item.expression)]
    if not places:
        return node, items, order
    first, *others = places
    generator = items[first].expression.unnest()
    name = ex.call_name(generator) or ""
    with_over = isinstance(node, n.Over)
    nested = any(ex.has_generator(part) for part in generator.expressions)
    if others or nested or with_over or name not in _OF_ONE_COLUMN:
        wrong = next((call for call, _ in ex.calls(generator) if call in ex.GENERATOR_FUNCTIONS))
        context.report(
            "TG-103",
            f"{wrong.lower()} in SELECT must be a column of its own, the only one that makes rows, "
            "and without OVER beside it",
            generator,
            f"FROM … LATERAL VIEW {wrong.lower()}(…) t AS {_names(wrong)}, then select these.",
        )
        return node, items, order
    reject_subqueries(context, generator, f"inside {name.lower()}")
    made = n.Field(
        context.fresh(items[first].name),
        items[first].name,
        volatile=volatile(generator, fields_by_id(node.fields)),
    )
    exploded = n.Explode(
        (*node.fields, made),
        input=node,
        generator=generator,
        generated=(made.id,),
        span=own_span(generator),
    )
    reference = column(made, generator)
    items = [SelectItem(i.name, reference) if at == first else i for at, i in enumerate(items)]
    for key in order:
        if key.this.unnest() == generator:
            key.set("this", reference.copy())
    return exploded, items, order


def _names(generator: str) -> str:
    """Names for the columns that a generator makes."""
    return "pos, x" if generator.startswith("POSEXPLODE") else "x"


# ---- Functions with OVER in a SELECT: named windows, and the nodes that compute them.

_PARTS = ("partition_by", "order", "spec")


def written_out(tree: exp.Select, context: Context) -> exp.Select:
    """The SELECT with its named windows put in place of their names."""
    named = {window.this.name.lower(): window for window in tree.args.get("windows") or []}
    used = [window for window in _own_windows(tree) if window.args.get("alias") is not None]
    if not named and not used:
        return tree
    spans = {id(window): own_span(window) for window in used}
    for window in used:
        _put(window, named, context, set())
        span = spans[id(window)]
        if span is not None:
            window.meta["span"] = (span.start, span.end)
    return tree


def _own_windows(tree: exp.Select) -> list[exp.Window]:
    """Functions with OVER of this SELECT, not of its subqueries."""
    return [
        window
        for window in tree.find_all(exp.Window)
        if window.parent_select is tree and window.arg_key != "windows"
    ]


def _put(
    window: exp.Expr, named: dict[str, exp.Expr], context: Context, open_names: set[str]
) -> None:
    """Add to a window what the one it names has."""
    alias = window.args.get("alias")
    if alias is None:
        return
    name = alias.name.lower()
    found = named.get(name)
    if name in open_names:
        hint = "write PARTITION BY and ORDER BY in one of them."
        context.report("TG-301", f"the window {alias.name} is defined by itself", window, hint)
    elif found is None:
        hint = did_you_mean(alias.name, list(named), "windows of this query")
        if not named:
            hint = "name it at the end of the query: WINDOW w AS (PARTITION BY … ORDER BY …)."
        context.report("TG-301", f"there is no window {alias.name}", window, hint)
    else:
        _put(found, named, context, open_names | {name})
        for part in _PARTS:
            value = found.args.get(part)
            if value and not window.args.get(part):
                copies = (
                    [item.copy() for item in value] if isinstance(value, list) else value.copy()
                )
                window.set(part, copies)
    window.set("alias", None)


def with_nulls_outside(tree: exp.Expr) -> exp.Expr:
    """lag(x IGNORE NULLS) is lag(x) IGNORE NULLS."""
    if not isinstance(tree, exp.Window) or not isinstance(tree.this, exp.Anonymous):
        return tree
    kinds = (exp.IgnoreNulls, exp.RespectNulls)
    inside = next((part for part in tree.this.expressions if isinstance(part, kinds)), None)
    if inside is not None:
        outside = type(inside)
        inside.replace(inside.this)
        tree.set("this", outside(this=tree.this))
    return tree


def over_nodes(
    context: Context, node: n.Node, functions: list[exp.Expr], fields: list[n.Field]
) -> n.Node:
    """Nodes one above the other, each with the functions that one operator can compute.

    Rows that wait for rows behind them come out after their time, so nothing above such a node can
    go by time: it stands above all others that do.
    """
    groups: dict[tuple[int, str, str], list[int]] = {}
    for place, function in enumerate(functions):
        groups.setdefault(_group(parse_window_function(function), node), []).append(place)
    for turn, partition, order in list(groups):
        # What could come out at once waits with its neighbours: that is one operator less.
        if turn == _WAITS and (_TIME, partition, order) in groups:
            groups[turn, partition, order] += groups.pop((_TIME, partition, order))
    for (turn, *_), places in sorted(groups.items(), key=lambda pair: pair[0][0]):
        below = node.fields
        if turn == _WAITS:
            below = drop_event_times(below)
        elif turn == _TIME:
            below = keep_one_event_time(below, parse_window_function(functions[places[0]]))
        node = n.Over(
            below + tuple(fields[place] for place in places),
            input=node,
            functions=tuple(functions[place] for place in places),
            ttl_us=context.ttl_us,
            span=own_span(functions[places[0]]),
        )
    return node


# In this order they stand above each other.
_TIME, _WINDOW, _WAITS, _WHOLE = range(4)


def _group(looks: WindowFunction, node: n.Node) -> tuple[int, str, str]:
    """Functions of a group share a node: along time they also share their order."""
    partition = ", ".join(to_sql(part) for part in looks.partition)
    closes = find_closing_field(looks.partition, node.fields) is not None
    appended = node.changelog is ChangelogKind.APPEND
    waits = looks.rows_ahead > 0
    if appended and is_final_at_watermark(looks, node.fields) and not (waits and closes):
        order = ", ".join(to_sql(part) for part in looks.order)
        return (_WAITS if waits else _TIME), partition, order
    return (_WINDOW if closes else _WHOLE), partition, ""


BindQuery = Callable[[exp.Expr, Context, Ctes, Scope | None], n.Node]

_HANDLED = frozenset(
    {"with_", "kind", "expressions", "hint", "distinct", "from_", "joins", "laterals", "where"}
    | {"group", "having", "qualify", "windows", "order", "limit", "offset"}
)

# Clauses whose names differ from what sqlglot calls them.
_CLAUSES = {
    "sort": "SORT BY",
    "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY",
    "locks": "FOR UPDATE",
}


@dataclass
class SelectBinder:
    """Binds one SELECT step by step, in the order SQL gives them meaning."""

    tree: exp.Select
    context: Context
    ctes: Ctes
    parent: Scope | None
    bind_query: BindQuery
    scope: Scope = field(default_factory=Scope)
    subqueries: dict[int, n.Node] = field(default_factory=dict)

    def bind(self) -> n.Node:
        self._reject_extras()
        self.tree = written_out(self.tree, self.context)
        clause = TableBinder(self.context, self.ctes, self.parent, self.bind_query).bind(self.tree)
        self.scope = clause.scope
        laterals = self._laterals()
        where = self._where()
        left_over = clause.absorb(where)
        node = clause.build(self.context, self._unused())
        node = self._with_fields(node)
        for lateral in laterals:
            node = replace(lateral, fields=node.fields + lateral.fields, input=node)
        node = self._filter(node, left_over)
        node, items, having, qualify, order = self._grouped(node)
        node = self._filter(node, ex.conjuncts(having))
        node, items, qualify, order = self._over(node, items, qualify, order)
        node = self._filter(node, ex.conjuncts(qualify), self.tree.args.get("qualify"))
        node, items, order = with_generators_below(self.context, node, items, order)
        return self._finish(node, items, order)

    def _with_fields(self, node: n.Node) -> n.Node:
        """Joins change roles and nullability: the scope must see the fields after them."""
        fields = fields_by_id(node.fields)
        self.scope.relations = [
            Relation(
                relation.alias,
                tuple(
                    replace(fields.get(item.id, item), name=item.name) for item in relation.fields
                ),
            )
            for relation in self.scope.relations
        ]
        return node

    def _unused(self) -> frozenset[str]:
        """The columns of FROM that this query names nowhere."""
        stars = [star.parent for star in self.tree.find_all(exp.Star)]
        if not all(is_row_count(parent) for parent in stars):
            return frozenset()
        named = {part.name.lower() for part in self.tree.find_all(exp.Identifier)}
        # A column of such a name is read as a call.
        named |= {"current_date", "current_timestamp"}
        return frozenset(item.id for item in self.scope.fields if item.name.lower() not in named)

    def _reject_extras(self) -> None:
        for key, value in self.tree.args.items():
            if value and key not in _HANDLED:
                what = _CLAUSES.get(key, key.rstrip("_").upper())
                at = value[0] if isinstance(value, list) else value
                self.context.report(
                    "TG-103",
                    f"{what} in a query is not supported on streams",
                    at if isinstance(at, exp.Expr) else self.tree,
                    f"remove {what}.",
                )
        distinct = self.tree.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            self.context.report(
                "TG-103",
                "DISTINCT ON is not supported",
                distinct,
                "QUALIFY row_number() OVER (PARTITION BY … ORDER BY …) = 1",
            )

    def _resolver(self, aliases: dict[str, exp.Expr] | None = None) -> Resolver:
        def bind_subquery(tree: exp.Expr, scope: Scope) -> n.Node:
            node = self.bind_query(tree, self.context, self.ctes, scope)
            return replace(node, span=own_span(tree) or node.span)

        resolver = Resolver(self.context, self.scope, aliases or {}, bind_subquery)
        resolver.subqueries = self.subqueries
        return resolver

    def _where(self) -> list[exp.Expr]:
        where = self.tree.args.get("where")
        if where is None:
            return []
        condition = self._resolver().resolve(where.this)
        if ex.has_aggregate(condition):
            self.context.report(
                "TG-305",
                "WHERE is applied before groups are made, so it cannot hold an aggregate",
                where,
                "use HAVING.",
            )
        if ex.has_over(condition):
            self.context.report(
                "TG-305", "WHERE cannot hold a window function", where, "use QUALIFY."
            )
        return ex.conjuncts(condition)

    def _filter(
        self, node: n.Node, conditions: list[exp.Expr], clause: exp.Expr | None = None
    ) -> n.Node:
        """The rows for which conditions hold; IN and EXISTS with a subquery are joins."""
        asked = {id(part): as_predicate(part, self.subqueries) for part in conditions}
        plain = [part for part in conditions if asked[id(part)] is None]
        node, plain = with_scalars(self.context, node, plain, self.subqueries)
        node = self._with_fields(node)
        condition = ex.conjunction(plain)
        if condition is not None:
            taken = tuple(subqueries_in(condition, self.subqueries))
            span = own_span(clause) if clause is not None else own_span(condition)
            node = n.Filter(
                node.fields, input=node, condition=condition, subqueries=taken, span=span
            )
        for predicate in asked.values():
            if predicate is not None:
                time = written_time(self.scope.relations, node)
                found = where_one_row(self.context, node, predicate)
                node = found or semi_join(self.context, node, predicate, time, self._unused())
                node = self._with_fields(node)
        return node

    def _laterals(self) -> list[n.Explode]:
        """LATERAL VIEWs with the columns they add; WHERE sees them, and they see FROM."""
        views = []
        for lateral in self.tree.args.get("laterals") or []:
            generator = self._resolver().resolve(lateral.this)
            reject_subqueries(self.context, generator, "in LATERAL VIEW")
            alias = lateral.args.get("alias")
            names = [part.name for part in alias.columns] if alias is not None else []
            names = names or _generated_names(generator)
            unstable = volatile(generator, fields_by_id(self.scope.fields))
            added = tuple(
                n.Field(self.context.fresh(name), name, volatile=unstable) for name in names
            )
            views.append(
                n.Explode(
                    added,
                    input=n.NoRows(()),
                    generator=generator,
                    outer=bool(lateral.args.get("outer")),
                    generated=tuple(item.id for item in added),
                    span=own_span(lateral),
                )
            )
            self.scope.relations.append(Relation(alias.name if alias is not None else None, added))
        return views

    def _grouped(
        self, node: n.Node
    ) -> tuple[n.Node, list[SelectItem], exp.Expr | None, exp.Expr | None, list[exp.Expr]]:
        """Apply GROUP BY; the expressions that come back are over what it leaves."""
        group = self.tree.args.get("group")
        keys = BoundKeys(node)
        if group is not None:
            binder = KeyBinder(self.context, self.scope, self.tree.expressions, self._resolver)
            keys = binder.bind(group, node)
            node = keys.node
        items = select_items(self.tree.expressions, self.scope, self._resolver)
        aliases = {item.name.lower(): item.expression for item in items}
        having = self._clause("having", aliases)
        qualify = self._clause("qualify", aliases)
        order = self._order(items, aliases)
        everything = [item.expression for item in items] + [*order]
        everything += [part for part in (having, qualify) if part is not None]
        if group is None and not any(ex.has_aggregate(part) for part in everything):
            if having is not None:
                self.context.report(
                    "TG-305", "HAVING needs a GROUP BY or an aggregate", having, "use WHERE."
                )
            return node, items, None, qualify, order
        rejected = group is not None and bool(group.args.get("totals"))
        grouping = Grouping(
            self.context, node, keys.fields, keys.trees, keys.written, keys.sets, rejected
        )
        items = [SelectItem(item.name, grouping.rewrite(item.expression)) for item in items]
        having = grouping.rewrite(having) if having is not None else None
        qualify = grouping.rewrite(qualify) if qualify is not None else None
        order = [grouping.rewrite(key) for key in order]
        span = own_span(group) if group is not None else own_span(self.tree.expressions[0])
        return grouping.node(span), items, having, qualify, order

    def _clause(self, key: str, aliases: dict[str, exp.Expr]) -> exp.Expr | None:
        clause = self.tree.args.get(key)
        return self._resolver(aliases).resolve(clause.this) if clause is not None else None

    def _order(self, items: list[SelectItem], aliases: dict[str, exp.Expr]) -> list[exp.Expr]:
        """ORDER BY keys: positions and aliases of the SELECT list are allowed."""
        clause = self.tree.args.get("order")
        keys: list[exp.Expr] = []
        for key in clause.expressions if clause is not None else []:
            target = key.this if isinstance(key, exp.Ordered) else key
            if isinstance(target, exp.Var):
                message = f"ORDER BY {target.name} is not supported"
                self.context.report("TG-103", message, clause, "name the columns to sort by.")
                continue
            if isinstance(target, exp.Literal) and target.is_int:
                position = int(target.name)
                if not 1 <= position <= len(items):
                    message = f"ORDER BY {position}: no such column"
                    self.context.report("TG-301", message, key, f"there are {len(items)} columns.")
                    continue
                resolved = items[position - 1].expression.copy()
            elif is_name(target) and target.name.lower() in aliases:
                resolved = aliases[target.name.lower()].copy()
            else:
                resolved = self._resolver(aliases).resolve(target)
            ordered = key.copy() if isinstance(key, exp.Ordered) else exp.Ordered(this=resolved)
            ordered.set("this", resolved)
            keys.append(ordered)
        return keys

    def _over(
        self, node: n.Node, items: list[SelectItem], qualify: exp.Expr | None, order: list[exp.Expr]
    ) -> tuple[n.Node, list[SelectItem], exp.Expr | None, list[exp.Expr]]:
        """Pull functions with OVER out into a node of their own."""
        functions: list[exp.Expr] = []
        fields: list[n.Field] = []
        known = fields_by_id(node.fields)

        def pull(tree: exp.Expr, name: str) -> exp.Expr:
            if isinstance(tree, exp.Window):
                tree = with_nulls_outside(tree)
                for index, function in enumerate(functions):
                    if function == tree:
                        return column(fields[index], tree)
                functions.append(tree)
                fields.append(derived_field(self.context, name, tree, known))
                return column(fields[-1], tree)
            if isinstance(tree, exp.Query):
                return tree
            for key, value in list(tree.args.items()):
                if isinstance(value, exp.Expr):
                    tree.set(key, pull(value, name))
                elif isinstance(value, list):
                    tree.set(key, [pull(v, name) if isinstance(v, exp.Expr) else v for v in value])
            return tree

        items = [SelectItem(item.name, pull(item.expression.copy(), item.name)) for item in items]
        qualify = pull(qualify.copy(), "rank") if qualify is not None else None
        order = [pull(key.copy(), "rank") for key in order]
        if not functions:
            if qualify is not None:
                self.context.report(
                    "TG-305",
                    "QUALIFY picks rows by a function with OVER, and there is none",
                    self.tree.args["qualify"],
                    "use WHERE, or HAVING after GROUP BY.",
                )
            return node, items, qualify, order
        for function in functions:
            self._check_over(function)
        over = over_nodes(self.context, node, functions, fields)
        return over, items, qualify, order

    def _check_over(self, function: exp.Expr) -> None:
        reject_subqueries(self.context, function, "in a function with OVER")
        if any(ex.has_over(part) for part in function.iter_expressions()):
            self.context.report(
                "TG-305",
                "a function with OVER inside another one",
                function,
                "compute the inner one in a subquery.",
            )

    def _finish(self, node: n.Node, items: list[SelectItem], order: list[exp.Expr]) -> n.Node:
        """Projection, DISTINCT, ORDER BY and LIMIT."""
        trees = [*(item.expression for item in items), *order]
        node, trees = with_scalars(self.context, node, trees, self.subqueries)
        trees, order = trees[: len(items)], trees[len(items) :]
        items = [SelectItem(item.name, tree) for item, tree in zip(items, trees, strict=True)]
        known = fields_by_id(node.fields)
        fields = self._projected(items, known)
        expressions = tuple(item.expression for item in items)
        hidden: list[exp.Expr] = []
        sort_keys: list[exp.Expr] = []
        extra: list[n.Field] = []
        for key in order:
            target = key.this
            place = next((i for i, e in enumerate(expressions) if e == target), None)
            if place is None:
                extra.append(derived_field(self.context, "sort_key", target, known))
                hidden.append(target)
                reference = column(extra[-1], target)
            else:
                reference = column(fields[place], target)
            ordered = key.copy()
            ordered.set("this", reference)
            sort_keys.append(ordered)
        everything = (*expressions, *hidden)
        taken = tuple(sub for part in everything for sub in subqueries_in(part, self.subqueries))
        span = own_span(self.tree.expressions[0]) if self.tree.expressions else None
        projected: n.Node = n.Project(
            fields + tuple(extra),
            input=node,
            expressions=everything,
            subqueries=taken,
            span=span,
        )
        return self._distinct_sort_limit(projected, fields, sort_keys, bool(extra))

    def _projected(self, items: list[SelectItem], known: dict[str, n.Field]) -> tuple[n.Field, ...]:
        """The output fields; a column that is only passed on keeps its id."""
        fields: list[n.Field] = []
        taken: set[str] = set()
        for item in items:
            bare = item.expression.unnest()
            source = known.get(bare.name) if isinstance(bare, exp.Column) else None
            if source is not None and source.id not in taken:
                fields.append(source.with_name(item.name))
            else:
                fields.append(derived_field(self.context, item.name, item.expression, known))
            taken.add(fields[-1].id)
        return tuple(fields)

    def _distinct_sort_limit(
        self, node: n.Node, fields: tuple[n.Field, ...], sort_keys: list[exp.Expr], hidden: bool
    ) -> n.Node:
        distinct = self.tree.args.get("distinct")
        if distinct is not None:
            if hidden:
                self.context.report(
                    "TG-305",
                    "with DISTINCT, ORDER BY can only use selected columns",
                    self.tree.args["order"],
                    "select what you sort by.",
                )
            node = n.Distinct(
                node.fields,
                input=node,
                ttl_us=self.context.ttl_us,
                span=own_span(distinct) or node.span,
            )
        if sort_keys:
            clause = self.tree.args["order"]
            node = n.Sort(node.fields, input=node, order=tuple(sort_keys), span=own_span(clause))
        node = limited(self.context, self.tree, node)
        if hidden:
            shown = tuple(column(item) for item in fields)
            node = n.Project(fields, input=node, expressions=shown, span=node.span)
        return node


def _generated_names(generator: exp.Expr) -> list[str]:
    """What Spark calls the columns of a generator without AS."""
    positions = ex.call_name(generator) in {"POSEXPLODE", "POSEXPLODE_OUTER"}
    return ["pos", "col"] if positions else ["col"]


def limited(context: Context, tree: exp.Expr, node: n.Node) -> n.Node:
    """LIMIT and OFFSET of a query, if it has them."""
    limit, offset = tree.args.get("limit"), tree.args.get("offset")
    clause = limit if limit is not None else offset
    if clause is None:
        return node
    for part in filter(None, (limit, offset)):
        if not _is_row_count(part):
            word = "OFFSET" if part is offset else "LIMIT"
            message = f"only {word} with a number of rows is supported"
            context.report("TG-103", message, part, f"write a number: {word} 10")
            return node
    return n.Limit(
        node.fields,
        input=node,
        count=limit.expression if limit is not None else None,
        offset=offset.expression if offset is not None else None,
        rank=n.Field(context.fresh("rank"), "rank") if offset is not None else None,
        span=own_span(clause),
    )


def _is_row_count(clause: exp.Expr) -> bool:
    """Whether LIMIT or OFFSET has a whole number: a column would be another one in each row."""
    if not isinstance(clause, exp.Limit | exp.Offset) or clause.args.get("limit_options"):
        return False
    count = clause.expression
    return isinstance(count, exp.Literal) and count.is_int
