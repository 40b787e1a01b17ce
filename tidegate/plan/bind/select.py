"""Binds one SELECT, clause by clause, in the order of SQL semantics.

Start reading at `SelectBinder.bind`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.errors import did_you_mean
from tidegate.plan import nodes as n
from tidegate.plan.bind.group_by import BoundKeys, Grouping, KeyBinder, is_name
from tidegate.plan.bind.resolve import Resolver, SelectItem, is_row_count, select_items
from tidegate.plan.bind.scope import (
    BindingContext,
    Relation,
    Scope,
    column,
    derived_field,
    fields_by_id,
    is_volatile,
    report_position,
)
from tidegate.plan.bind.subqueries import (
    find_subqueries,
    join_exists_of_aggregate,
    join_predicate,
    join_scalar_subqueries,
    parse_predicate,
    reject_subqueries,
)
from tidegate.plan.bind.tables import BindQuery, Ctes, TableBinder, event_time_name
from tidegate.plan.nodes.over import (
    WindowFunction,
    drop_event_times,
    find_closing_field,
    is_final_at_watermark,
    keep_one_event_time,
    parse_window_function,
)
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span, to_sql
from tidegate.types import ChangelogKind

# ---- Generators in the SELECT list, such as explode: a LATERAL VIEW below the projection

# The other generators return several columns, which need names.
_SINGLE_COLUMN_GENERATORS = ("EXPLODE", "EXPLODE_OUTER")


def plan_generator(
    context: BindingContext, node: n.Node, items: list[SelectItem], order: list[exp.Expr]
) -> tuple[n.Node, list[SelectItem], list[exp.Expr]]:
    """Move the generator of a SELECT list into a node below; return its column in its place."""
    indexes = [index for index, item in enumerate(items) if ex.has_generator(item.expression)]
    if not indexes:
        return node, items, order
    first, *others = indexes
    generator = items[first].expression.unnest()
    name = ex.call_name(generator) or ""
    with_over = isinstance(node, n.Over)
    nested = any(ex.has_generator(part) for part in generator.expressions)
    if others or nested or with_over or name not in _SINGLE_COLUMN_GENERATORS:
        calls = (call for call, _ in ex.calls(generator) if call in ex.GENERATOR_FUNCTIONS)
        unsupported = next(calls)
        view = f"LATERAL VIEW {unsupported.lower()}(…) t AS {_alias_example(unsupported)}"
        context.report(
            "TG-103",
            f"{unsupported.lower()} in SELECT must be an entire column and the only generator, and "
            "cannot be combined with OVER",
            generator,
            f"use FROM … {view}, and select its columns.",
        )
        return node, items, order
    reject_subqueries(context, generator, f"inside {name.lower()}")
    generated_field = n.Field(
        context.new_id(items[first].name),
        items[first].name,
        volatile=is_volatile(generator, fields_by_id(node.fields)),
    )
    exploded = n.Explode(
        (*node.fields, generated_field),
        input=node,
        generator=generator,
        generated=(generated_field.id,),
        span=own_span(generator),
    )
    reference = column(generated_field, generator)
    items = [
        SelectItem(i.name, reference) if index == first else i for index, i in enumerate(items)
    ]
    for key in order:
        if key.this.unnest() == generator:
            key.set("this", reference.copy())
    return exploded, items, order


def _alias_example(generator: str) -> str:
    """Return example names for the columns of a generator, for a hint."""
    return "pos, x" if generator.startswith("POSEXPLODE") else "x"


# ---- Window functions: named windows, and the nodes that compute the functions

_WINDOW_PARTS = ("partition_by", "order", "spec")


def inline_named_windows(tree: exp.Select, context: BindingContext) -> exp.Select:
    """Replace references to named windows in a SELECT by their definitions."""
    named = {window.this.name.lower(): window for window in tree.args.get("windows") or []}
    windows = [window for window in _windows_of(tree) if window.args.get("alias") is not None]
    if not named and not windows:
        return tree
    spans = {id(window): own_span(window) for window in windows}
    for window in windows:
        _inline_window(window, named, context, set())
        span = spans[id(window)]
        if span is not None:
            window.meta["span"] = (span.start, span.end)
    return tree


def _windows_of(tree: exp.Select) -> list[exp.Window]:
    """Return the window functions of this SELECT, without those of its subqueries."""
    return [
        window
        for window in tree.find_all(exp.Window)
        if window.parent_select is tree and window.arg_key != "windows"
    ]


def _inline_window(
    window: exp.Expr, named: dict[str, exp.Expr], context: BindingContext, open_names: set[str]
) -> None:
    """Add the clauses of the named window to a window that refers to it."""
    alias = window.args.get("alias")
    if alias is None:
        return
    name = alias.name.lower()
    definition = named.get(name)
    if name in open_names:
        hint = "write PARTITION BY and ORDER BY in one of them."
        context.report(
            "TG-301", f"the definition of window {alias.name} refers to itself", window, hint
        )
    elif definition is None:
        hint = did_you_mean(alias.name, list(named), "windows of this query")
        if not named:
            hint = "name it at the end of the query: WINDOW w AS (PARTITION BY … ORDER BY …)."
        context.report("TG-301", f"window {alias.name} does not exist", window, hint)
    else:
        _inline_window(definition, named, context, open_names | {name})
        for part in _WINDOW_PARTS:
            value = definition.args.get(part)
            if value and not window.args.get(part):
                copies = (
                    [item.copy() for item in value] if isinstance(value, list) else value.copy()
                )
                window.set(part, copies)
    window.set("alias", None)


def hoist_null_treatment(tree: exp.Expr) -> exp.Expr:
    """Rewrite lag(x IGNORE NULLS) as lag(x) IGNORE NULLS."""
    if not isinstance(tree, exp.Window) or not isinstance(tree.this, exp.Anonymous):
        return tree
    treatments = (exp.IgnoreNulls, exp.RespectNulls)
    treatment = next((part for part in tree.this.expressions if isinstance(part, treatments)), None)
    if treatment is not None:
        treatment_class = type(treatment)
        treatment.replace(treatment.this)
        tree.set("this", treatment_class(this=tree.this))
    return tree


def plan_window_functions(
    context: BindingContext, node: n.Node, functions: list[exp.Expr], fields: list[n.Field]
) -> n.Node:
    """Stack Over nodes, each with the functions that one operator can compute.

    Rows that wait for following rows are emitted after the watermark has passed them. Operators
    above cannot use their event time, so such a node comes after all nodes that need it.
    """
    groups: dict[tuple[int, str, str], list[int]] = {}
    for index, call in enumerate(functions):
        groups.setdefault(_node_key(parse_window_function(call), node), []).append(index)
    for position, partition, order in list(groups):
        # Functions that need no following rows join those that do, to save an operator.
        if position == _WAITS and (_TIME, partition, order) in groups:
            groups[position, partition, order] += groups.pop((_TIME, partition, order))
    for (position, *_), indexes in sorted(groups.items(), key=lambda pair: pair[0][0]):
        fields_below = node.fields
        if position == _WAITS:
            fields_below = drop_event_times(fields_below)
        elif position == _TIME:
            function = parse_window_function(functions[indexes[0]])
            fields_below = keep_one_event_time(fields_below, function)
        node = n.Over(
            fields_below + tuple(fields[index] for index in indexes),
            input=node,
            functions=tuple(functions[index] for index in indexes),
            ttl_us=context.ttl_us,
            span=own_span(functions[indexes[0]]),
        )
    return node


# The order of the nodes, from bottom to top.
_TIME, _WINDOW, _WAITS, _WHOLE = range(4)


def _node_key(function: WindowFunction, node: n.Node) -> tuple[int, str, str]:
    """Return what the functions of a node share: position, partition, and event-time order."""
    partition = ", ".join(to_sql(part) for part in function.partition)
    has_closing_field = find_closing_field(function.partition, node.fields) is not None
    is_append = node.changelog is ChangelogKind.APPEND
    waits = function.rows_ahead > 0
    is_final = is_append and is_final_at_watermark(function, node.fields)
    if is_final and not (waits and has_closing_field):
        order = ", ".join(to_sql(part) for part in function.order)
        return (_WAITS if waits else _TIME), partition, order
    return (_WINDOW if has_closing_field else _WHOLE), partition, ""


# ---- SELECT

_SUPPORTED_CLAUSES = frozenset(
    {"with_", "kind", "expressions", "hint", "distinct", "from_", "joins", "laterals", "where"}
    | {"group", "having", "qualify", "windows", "order", "limit", "offset"}
)

# The SQL names of clauses to which sqlglot gives other names.
_CLAUSE_NAMES = {
    "sort": "SORT BY",
    "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY",
    "locks": "FOR UPDATE",
}


@dataclass
class SelectBinder:
    """Binds one SELECT."""

    tree: exp.Select
    context: BindingContext
    ctes: Ctes
    parent: Scope | None
    bind_query: BindQuery
    scope: Scope = field(default_factory=Scope)
    subqueries: dict[int, n.Node] = field(default_factory=dict)

    def bind(self) -> n.Node:
        self._reject_unsupported_clauses()
        self.tree = inline_named_windows(self.tree, self.context)
        clause = TableBinder(self.context, self.ctes, self.parent, self.bind_query).bind(self.tree)
        self.scope = clause.scope
        laterals = self._bind_lateral_views()
        where = self._bind_where()
        remaining = clause.take_join_conditions(where)
        node = clause.build(self.context, self._unreferenced_columns())
        node = self._update_scope(node)
        for lateral in laterals:
            node = replace(lateral, fields=node.fields + lateral.fields, input=node)
        node = self._add_filter(node, remaining)
        node, items, having, qualify, order = self._bind_groups(node)
        node = self._add_filter(node, ex.conjuncts(having))
        node, items, qualify, order = self._add_window_functions(node, items, qualify, order)
        node = self._add_filter(node, ex.conjuncts(qualify), self.tree.args.get("qualify"))
        node, items, order = plan_generator(self.context, node, items, order)
        return self._add_projection(node, items, order)

    def _update_scope(self, node: n.Node) -> n.Node:
        """Update the fields in scope: joins change their roles and nullability."""
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

    def _unreferenced_columns(self) -> frozenset[str]:
        """Return the columns of FROM that the query does not reference."""
        stars = [star.parent for star in self.tree.find_all(exp.Star)]
        if not all(is_row_count(parent) for parent in stars):
            return frozenset()
        names = {part.name.lower() for part in self.tree.find_all(exp.Identifier)}
        # sqlglot parses columns with these names as function calls.
        names |= {"current_date", "current_timestamp"}
        return frozenset(item.id for item in self.scope.fields if item.name.lower() not in names)

    def _reject_unsupported_clauses(self) -> None:
        for key, value in self.tree.args.items():
            if value and key not in _SUPPORTED_CLAUSES:
                clause = _CLAUSE_NAMES.get(key, key.rstrip("_").upper())
                location = value[0] if isinstance(value, list) else value
                self.context.report(
                    "TG-103",
                    f"{clause} in a query is not supported on streams",
                    location if isinstance(location, exp.Expr) else self.tree,
                    f"remove {clause}.",
                )
        distinct = self.tree.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            self.context.report(
                "TG-103",
                "DISTINCT ON is not supported",
                distinct,
                "use QUALIFY row_number() OVER (PARTITION BY … ORDER BY …) = 1.",
            )

    def _resolver(self, aliases: dict[str, exp.Expr] | None = None) -> Resolver:
        def bind_subquery(tree: exp.Expr, scope: Scope) -> n.Node:
            node = self.bind_query(tree, self.context, self.ctes, scope)
            return replace(node, span=own_span(tree) or node.span)

        resolver = Resolver(self.context, self.scope, aliases or {}, bind_subquery)
        resolver.subqueries = self.subqueries
        return resolver

    def _bind_where(self) -> list[exp.Expr]:
        where = self.tree.args.get("where")
        if where is None:
            return []
        condition = self._resolver().resolve(where.this)
        if ex.has_aggregate(condition):
            self.context.report(
                "TG-305",
                "WHERE runs before GROUP BY, so it cannot contain an aggregate",
                where,
                "use HAVING.",
            )
        if ex.has_window_function(condition):
            self.context.report(
                "TG-305", "WHERE cannot contain a window function", where, "use QUALIFY."
            )
        return ex.conjuncts(condition)

    def _add_filter(
        self, node: n.Node, conditions: list[exp.Expr], clause: exp.Expr | None = None
    ) -> n.Node:
        """Filter by conditions; IN and EXISTS with a subquery become joins."""
        predicates = {id(part): parse_predicate(part, self.subqueries) for part in conditions}
        plain = [part for part in conditions if predicates[id(part)] is None]
        node, plain = join_scalar_subqueries(self.context, node, plain, self.subqueries)
        node = self._update_scope(node)
        condition = ex.conjunction(plain)
        if condition is not None:
            used = tuple(find_subqueries(condition, self.subqueries))
            span = own_span(clause) if clause is not None else own_span(condition)
            node = n.Filter(
                node.fields, input=node, condition=condition, subqueries=used, span=span
            )
        for predicate in predicates.values():
            if predicate is not None:
                time = event_time_name(self.scope.relations, node)
                joined = join_exists_of_aggregate(self.context, node, predicate)
                node = joined or join_predicate(
                    self.context, node, predicate, time, self._unreferenced_columns()
                )
                node = self._update_scope(node)
        return node

    def _bind_lateral_views(self) -> list[n.Explode]:
        """Bind LATERAL VIEWs and add their columns to the scope, so that WHERE sees them."""
        views = []
        for lateral in self.tree.args.get("laterals") or []:
            generator = self._resolver().resolve(lateral.this)
            reject_subqueries(self.context, generator, "in LATERAL VIEW")
            alias = lateral.args.get("alias")
            names = [part.name for part in alias.columns] if alias is not None else []
            names = names or _generated_names(generator)
            volatile = is_volatile(generator, fields_by_id(self.scope.fields))
            fields = tuple(
                n.Field(self.context.new_id(name), name, volatile=volatile) for name in names
            )
            views.append(
                n.Explode(
                    fields,
                    input=n.NoRows(()),
                    generator=generator,
                    outer=bool(lateral.args.get("outer")),
                    generated=tuple(item.id for item in fields),
                    span=own_span(lateral),
                )
            )
            self.scope.relations.append(Relation(alias.name if alias is not None else None, fields))
        return views

    def _bind_groups(
        self, node: n.Node
    ) -> tuple[n.Node, list[SelectItem], exp.Expr | None, exp.Expr | None, list[exp.Expr]]:
        """Apply GROUP BY and return the other clauses as expressions over its output."""
        group = self.tree.args.get("group")
        keys = BoundKeys(node)
        has_unknown_keys = False
        if group is not None:
            binder = KeyBinder(self.context, self.scope, self.tree.expressions, self._resolver)
            keys = binder.bind(group, node)
            node = keys.node
            has_unknown_keys = binder.has_unknown_keys or bool(group.args.get("totals"))
        items = select_items(self.tree.expressions, self.scope, self._resolver)
        aliases = {item.name.lower(): item.expression for item in items}
        having = self._bind_clause("having", aliases)
        qualify = self._bind_clause("qualify", aliases)
        order = self._bind_order(items, aliases)
        expressions = [item.expression for item in items] + [*order]
        expressions += [part for part in (having, qualify) if part is not None]
        if group is None and not any(ex.has_aggregate(part) for part in expressions):
            if having is not None:
                self.context.report(
                    "TG-305", "HAVING needs a GROUP BY or an aggregate", having, "use WHERE."
                )
            return node, items, None, qualify, order
        grouping = Grouping(
            self.context,
            node,
            keys.fields,
            keys.trees,
            keys.original_trees,
            keys.sets,
            has_unknown_keys,
        )
        items = [SelectItem(item.name, grouping.rewrite(item.expression)) for item in items]
        having = grouping.rewrite(having) if having is not None else None
        qualify = grouping.rewrite(qualify) if qualify is not None else None
        order = [grouping.rewrite(key) for key in order]
        span = own_span(group) if group is not None else own_span(self.tree.expressions[0])
        return grouping.node(span), items, having, qualify, order

    def _bind_clause(self, key: str, aliases: dict[str, exp.Expr]) -> exp.Expr | None:
        clause = self.tree.args.get(key)
        return self._resolver(aliases).resolve(clause.this) if clause is not None else None

    def _bind_order(self, items: list[SelectItem], aliases: dict[str, exp.Expr]) -> list[exp.Expr]:
        """Bind ORDER BY; keys may be positions and aliases of the SELECT list."""
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
                    names = [item.name for item in items]
                    report_position(self.context, "ORDER BY", key, position, names)
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

    def _add_window_functions(
        self, node: n.Node, items: list[SelectItem], qualify: exp.Expr | None, order: list[exp.Expr]
    ) -> tuple[n.Node, list[SelectItem], exp.Expr | None, list[exp.Expr]]:
        """Move window functions into nodes below."""
        functions: list[exp.Expr] = []
        fields: list[n.Field] = []
        input_fields = fields_by_id(node.fields)

        def pull(tree: exp.Expr, name: str) -> exp.Expr:
            if isinstance(tree, exp.Window):
                tree = hoist_null_treatment(tree)
                for index, function in enumerate(functions):
                    if function == tree:
                        return column(fields[index], tree)
                functions.append(tree)
                fields.append(derived_field(self.context, name, tree, input_fields))
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
                    "QUALIFY filters by a window function, but this query has none",
                    self.tree.args["qualify"],
                    "use WHERE, or HAVING after GROUP BY.",
                )
            return node, items, qualify, order
        for function in functions:
            self._check_window_function(function)
        over = plan_window_functions(self.context, node, functions, fields)
        return over, items, qualify, order

    def _check_window_function(self, function: exp.Expr) -> None:
        reject_subqueries(self.context, function, "in a window function")
        if any(ex.has_window_function(part) for part in function.iter_expressions()):
            self.context.report(
                "TG-305",
                "a window function cannot contain another window function",
                function,
                "compute the inner one in a subquery.",
            )

    def _add_projection(
        self, node: n.Node, items: list[SelectItem], order: list[exp.Expr]
    ) -> n.Node:
        """Add the projection, DISTINCT, ORDER BY and LIMIT."""
        trees = [*(item.expression for item in items), *order]
        node, trees = join_scalar_subqueries(self.context, node, trees, self.subqueries)
        trees, order = trees[: len(items)], trees[len(items) :]
        items = [SelectItem(item.name, tree) for item, tree in zip(items, trees, strict=True)]
        input_fields = fields_by_id(node.fields)
        fields = self._output_fields(items, input_fields)
        expressions = tuple(item.expression for item in items)
        hidden_keys: list[exp.Expr] = []
        sort_keys: list[exp.Expr] = []
        sort_fields: list[n.Field] = []
        for key in order:
            target = key.this
            index = next((i for i, e in enumerate(expressions) if e == target), None)
            if index is None:
                sort_fields.append(derived_field(self.context, "sort_key", target, input_fields))
                hidden_keys.append(target)
                reference = column(sort_fields[-1], target)
            else:
                reference = column(fields[index], target)
            ordered = key.copy()
            ordered.set("this", reference)
            sort_keys.append(ordered)
        all_expressions = (*expressions, *hidden_keys)
        used = tuple(
            subquery
            for part in all_expressions
            for subquery in find_subqueries(part, self.subqueries)
        )
        span = own_span(self.tree.expressions[0]) if self.tree.expressions else None
        projected: n.Node = n.Project(
            fields + tuple(sort_fields),
            input=node,
            expressions=all_expressions,
            subqueries=used,
            span=span,
        )
        return self._add_distinct_sort_limit(projected, fields, sort_keys, bool(sort_fields))

    def _output_fields(
        self, items: list[SelectItem], input_fields: dict[str, n.Field]
    ) -> tuple[n.Field, ...]:
        """Return the output fields; a column that is passed on keeps its id."""
        fields: list[n.Field] = []
        ids: set[str] = set()
        for item in items:
            bare = item.expression.unnest()
            input_field = input_fields.get(bare.name) if isinstance(bare, exp.Column) else None
            if input_field is not None and input_field.id not in ids:
                fields.append(input_field.with_name(item.name))
            else:
                fields.append(derived_field(self.context, item.name, item.expression, input_fields))
            ids.add(fields[-1].id)
        return tuple(fields)

    def _add_distinct_sort_limit(
        self,
        node: n.Node,
        fields: tuple[n.Field, ...],
        sort_keys: list[exp.Expr],
        has_hidden_keys: bool,
    ) -> n.Node:
        distinct = self.tree.args.get("distinct")
        if distinct is not None:
            if has_hidden_keys:
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
        node = apply_limit(self.context, self.tree, node)
        if has_hidden_keys:
            visible = tuple(column(item) for item in fields)
            node = n.Project(fields, input=node, expressions=visible, span=node.span)
        return node


def _generated_names(generator: exp.Expr) -> list[str]:
    """Return the names that Spark gives to the columns of a generator without AS."""
    positions = ex.call_name(generator) in {"POSEXPLODE", "POSEXPLODE_OUTER"}
    return ["pos", "col"] if positions else ["col"]


def apply_limit(context: BindingContext, tree: exp.Expr, node: n.Node) -> n.Node:
    """Add LIMIT and OFFSET of a query, if it has them."""
    limit, offset = tree.args.get("limit"), tree.args.get("offset")
    clause = limit if limit is not None else offset
    if clause is None:
        return node
    for part in filter(None, (limit, offset)):
        if not _has_constant_count(part):
            word = "OFFSET" if part is offset else "LIMIT"
            message = f"{word} must be a whole number, not an expression"
            hint = f"write a number: {word} 10"
            if part.expression is not None and part.expression.name.upper() == "ALL":
                message, hint = f"{word} ALL is not supported", f"remove {word} ALL."
            context.report("TG-103", message, part, hint)
            return node
    return n.Limit(
        node.fields,
        input=node,
        count=limit.expression if limit is not None else None,
        offset=offset.expression if offset is not None else None,
        rank=n.Field(context.new_id("rank"), "rank") if offset is not None else None,
        span=own_span(clause),
    )


def _has_constant_count(clause: exp.Expr) -> bool:
    """Return whether LIMIT or OFFSET is a constant: an expression could differ from row to row."""
    if not isinstance(clause, exp.Limit | exp.Offset) or clause.args.get("limit_options"):
        return False
    count = clause.expression
    return isinstance(count, exp.Literal) and count.is_int
