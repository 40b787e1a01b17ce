"""FROM: sources, streams, lookup tables, subqueries, window table functions, and joins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.catalog import objects as cat
from tidegate.errors import did_you_mean, pluralize
from tidegate.plan import nodes as n
from tidegate.plan.bind.joins import JoinClauses, build_join, parse_asof_options
from tidegate.plan.bind.match import bind_match
from tidegate.plan.bind.resolve import Resolver
from tidegate.plan.bind.scope import (
    BindingContext,
    Relation,
    Scope,
    column,
    is_volatile,
    referenced_ids,
)
from tidegate.plan.bind.windows import (
    assign_windows,
    bind_session_table,
    is_window_call,
    resolve_time,
)
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span, to_sql
from tidegate.types import Span

# Clauses after a table that are not supported, and what to write instead.
_UNSUPPORTED_EXTRAS = {
    "pivots": (
        "PIVOT",
        "filter an aggregate for each value: sum(price) FILTER (WHERE channel = 'a') AS a",
    ),
    "sample": ("TABLESAMPLE", "use the hash of a column: WHERE pmod(hash(id), 10) = 0"),
    "ordinality": ("WITH ORDINALITY", "use LATERAL VIEW posexplode(…) t AS pos, x."),
}


def _report_lookup(context: BindingContext, node: n.LookupScan) -> None:
    """Report a lookup table that is read without a join."""
    context.report(
        "TG-417",
        f"{node.table.name} is a lookup table and cannot be read as a stream",
        node.span,
        f"join a stream with it: FROM my_stream JOIN {node.table.name} ON …",
    )


@dataclass(frozen=True)
class CteEntry:
    """A common table expression and those that are visible to it."""

    definition: exp.CTE
    visible: Mapping[str, CteEntry]

    @property
    def tree(self) -> exp.Expr:
        query: exp.Expr = self.definition.this
        return query


Ctes = Mapping[str, CteEntry]
# `binder.bind_query`; a parameter, because the modules refer to each other.
BindQuery = Callable[[exp.Expr, BindingContext, Ctes, Scope | None], n.Node]


@dataclass
class JoinStep:
    """A joined table. WHERE may still add conditions to it."""

    node: n.Node
    how: str
    asof: bool
    conditions: list[exp.Expr]
    match: exp.Expr | None
    as_of: exp.Expr | None
    span: Span | None
    relation: Relation
    nearest: bool = False
    tolerance: exp.Expr | None = None


@dataclass
class FromClause:
    """The first table, the joins after it, and their scope."""

    first: n.Node
    scope: Scope
    steps: list[JoinStep] = field(default_factory=list)

    def build(self, context: BindingContext, unused: frozenset[str]) -> n.Node:
        """Build the joins from left to right."""
        node = self.first
        left = self.scope.relations[:1]
        for step in self.steps:
            condition = ex.conjunction(step.conditions)
            times = (event_time_name(left, node), event_time_name([step.relation], step.node))
            parts = JoinClauses(
                node,
                step.node,
                step.how,
                step.asof,
                condition,
                step.match,
                step.as_of,
                step.span,
                times,
                step.nearest,
                step.tolerance,
                aliases=(left[0].alias or "…", step.relation.alias or "…"),
                unused=unused,
            )
            node = build_join(context, parts)
            left.append(step.relation)
        if isinstance(node, n.LookupScan):
            _report_lookup(context, node)
        return node

    def take_join_conditions(self, conditions: list[exp.Expr]) -> list[exp.Expr]:
        """Move conditions of WHERE into the inner joins they refer to; return all others."""
        if any(step.how in ("RIGHT", "FULL") for step in self.steps):
            return conditions
        remaining = list(conditions)
        left_ids = {item.id for item in self.first.fields}
        for step in self.steps:
            right_ids = {item.id for item in step.node.fields}
            if step.how == "INNER" and not step.asof and step.as_of is None:
                for condition in list(remaining):
                    ids = referenced_ids(condition)
                    if condition.find(exp.Query):
                        continue
                    if ids & right_ids and ids & left_ids and ids <= left_ids | right_ids:
                        step.conditions.append(condition)
                        remaining.remove(condition)
            left_ids |= right_ids
        return remaining


def event_time_name(relations: list[Relation], node: n.Node) -> str | None:
    """Return the event time of a side of a join as it is written in SQL, for hints."""
    times = {item.id for item in node.fields if item.is_event_time}
    for relation in relations:
        for item in relation.fields:
            if item.id in times:
                return f"{relation.alias}.{item.name}" if relation.alias else item.name
    return None


@dataclass
class TableBinder:
    """Binds the FROM clause of one SELECT."""

    context: BindingContext
    ctes: Ctes
    parent: Scope | None
    bind_query: BindQuery

    def bind(self, select: exp.Select) -> FromClause:
        source = select.args.get("from_")
        if source is None:
            name = next(
                (item.name for item in self.context.catalog.of_type(cat.Source)), "my_source"
            )
            self.context.report(
                "TG-103",
                "a SELECT without FROM is not supported on streams",
                select,
                f"add FROM {name}, or another stream. A constant needs no SELECT: write it where "
                "you use it.",
            )
            raise BrokenReference
        first, relation = self.table(source.this)
        if source.this.args.get("version") is not None:
            self.context.report(
                "TG-103",
                "FOR SYSTEM_TIME AS OF is only allowed on the right side of a join",
                source.this,
                "FROM orders AS o JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON …",
            )
        clause = FromClause(first, Scope([relation], parent=self.parent))
        for join in self._joins(source.this, select):
            self._join(clause, join)
        return clause

    def _joins(self, first: exp.Expr, select: exp.Select) -> list[exp.Join]:
        return list(first.args.get("joins") or []) + list(select.args.get("joins") or [])

    def _join(self, clause: FromClause, join: exp.Join) -> None:
        context = self.context
        method = (join.args.get("method") or "").upper()
        side, kind = (join.args.get("side") or "").upper(), (join.args.get("kind") or "").upper()
        if side in ("RIGHT", "FULL") and kind in ("SEMI", "ANTI"):
            message = f"a {side} {kind} join is not supported"
            context.report("TG-103", message, join, f"swap the tables: … {kind} JOIN …")
        node, relation = self.table(join.this)
        if relation.alias and clause.scope.find_relation(relation.alias):
            context.report(
                "TG-302",
                f"two tables of this query are named {relation.alias}",
                join.this,
                f"give one of them an alias: … AS {relation.alias}_2.",
            )
        before = clause.scope.fields
        if method not in ("", "ASOF"):
            self._reject_natural(join, method, before, relation)
        clause.scope.relations.append(relation)
        resolver = Resolver(context, clause.scope)
        conditions = [resolver.resolve(part) for part in ex.conjuncts(join.args.get("on"))]
        self._reject_aggregates(join)
        how = _join_type(join)
        conditions += self._using(clause.scope, join, before, relation, how)
        version = join.this.args.get("version")
        as_of = None
        if version is not None:
            as_of = self._as_of(version, join, clause.scope)
        match = join.args.get("match_condition")
        nearest, tolerance = parse_asof_options(context, join)
        clause.steps.append(
            JoinStep(
                node,
                how,
                method == "ASOF",
                conditions,
                resolver.resolve(match) if match is not None else None,
                as_of,
                own_span(join),
                relation,
                nearest,
                tolerance,
            )
        )
        if how in ("SEMI", "ANTI"):
            clause.scope.relations.pop()

    def _reject_natural(
        self, join: exp.Join, method: str, before: tuple[n.Field, ...], relation: Relation
    ) -> None:
        """Report NATURAL, but bind it as USING, so that the columns are not ambiguous as well."""
        left = [item.name.lower() for item in before]
        common = [item.name for item in relation.fields if left.count(item.name.lower()) == 1]
        table = relation.alias or "…"
        hint = f"name the columns: JOIN {table} USING ({', '.join(common)})."
        if not common:
            hint = f"name the columns: JOIN {table} ON … = …"
        self.context.report("TG-103", f"{method} joins are not supported", join, hint)
        join.set("using", [exp.to_identifier(name) for name in common])

    def _as_of(self, version: exp.Expr, join: exp.Join, scope: Scope) -> exp.Expr | None:
        """Return the time of FOR SYSTEM_TIME AS OF; reject other kinds of versions."""
        kinds = (str(version.args.get("this")), str(version.args.get("kind")))
        if kinds != ("TIMESTAMP", "AS OF") or version.expression is None:
            self.context.report(
                "TG-103",
                "only FOR SYSTEM_TIME AS OF can select the version of a table",
                join,
                "JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON …",
            )
            return None
        return resolve_time(version.expression, Resolver(self.context, scope))

    def _reject_aggregates(self, join: exp.Join) -> None:
        for key in ("on", "match_condition"):
            condition = join.args.get(key)
            if condition is None:
                continue
            if ex.has_aggregate(condition) or ex.has_window_function(condition):
                self.context.report(
                    "TG-305",
                    "a join condition cannot contain an aggregate or a window function",
                    condition,
                    "compute it in a subquery, and join that.",
                )

    def _using(
        self,
        scope: Scope,
        join: exp.Join,
        before: tuple[n.Field, ...],
        relation: Relation,
        how: str,
    ) -> list[exp.Expr]:
        """Bind JOIN … USING (k): an equality, and k refers to the merged column."""
        conditions: list[exp.Expr] = []
        for identifier in join.args.get("using") or []:
            name = identifier.name
            left = [item for item in before if item.name.lower() == name.lower()]
            right = [item for item in relation.fields if item.name.lower() == name.lower()]
            merged = scope.using_columns.get(name.lower())
            if (merged is None and len(left) != 1) or len(right) != 1:
                self.context.report(
                    "TG-301",
                    f"USING ({name}) needs one column {name} on each side",
                    identifier,
                    "write the condition with ON.",
                )
                continue
            left_column = merged.copy() if merged is not None else column(left[0], identifier)
            right_column = column(right[0], identifier)
            conditions.append(exp.EQ(this=left_column, expression=right_column))
            using_column: exp.Expr = right_column if how == "RIGHT" else left_column
            if how == "FULL":
                using_column = exp.Anonymous(
                    this="COALESCE", expressions=[left_column, right_column]
                )
            scope.using_columns[name.lower()] = using_column.copy()
        return conditions

    def table(self, node: exp.Expr) -> tuple[n.Node, Relation]:
        """Bind one table of FROM, with MATCH_RECOGNIZE; return it with its name and columns."""
        bound, relation = self._table(node)
        match = node.args.get("match")
        if match is None:
            return bound, relation
        if isinstance(bound, n.LookupScan):
            _report_lookup(self.context, bound)
            raise BrokenReference(bound.table.name)
        bound, fields = bind_match(self.context, bound, relation, match, self.parent)
        return bound, Relation(
            match.alias or None, _apply_column_aliases(self.context, match, fields)
        )

    def _table(self, node: exp.Expr) -> tuple[n.Node, Relation]:
        alias = node.alias or None
        self._reject_extras(node)
        if isinstance(node, exp.Subquery):
            inner = self._query(node.this, self.ctes)
            return inner, Relation(alias, _apply_column_aliases(self.context, node, inner.fields))
        if isinstance(node, exp.Values):
            return self._values(node, alias)
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Anonymous):
            return self._table_function(node, alias)
        if isinstance(node, exp.Table):
            bound, named = self._named(node)
            fields = _apply_column_aliases(self.context, node, named)
            return bound, Relation(alias or node.name, fields)
        message = "this kind of table is not supported"
        hint = "for arrays and maps use LATERAL VIEW explode(…) t AS x."
        if isinstance(node, exp.Unnest):
            message = "UNNEST is not supported"
            hint = f"use {_lateral_view(node)} after the table."
        if isinstance(node, exp.Lateral) and node.find(exp.Query) is not None:
            message = "a LATERAL subquery is not supported: it would run again for each row"
            hint = "join the table itself. For the first rows of each key: SELECT … FROM … QUALIFY "
            hint += "row_number() OVER (PARTITION BY … ORDER BY …) <= 3."
        self.context.report("TG-103", message, node, hint)
        raise BrokenReference(alias)

    def _reject_extras(self, node: exp.Expr) -> None:
        for key, (clause, hint) in _UNSUPPORTED_EXTRAS.items():
            if node.args.get(key):
                message = f"{clause} is not supported on streams"
                self.context.report("TG-103", message, node, hint)

    def _query(self, tree: exp.Expr, ctes: Ctes) -> n.Node:
        return self.bind_query(tree, self.context, ctes, self.parent)

    def _named(self, node: exp.Table) -> tuple[n.Node, tuple[n.Field, ...]]:
        """Bind a name; return the plan and its columns with the names they have there."""
        name = node.name
        if node.db:
            self.context.report(
                "TG-201",
                f"{node.db}.{name}: qualified names are not supported",
                node,
                f"write {name}.",
            )
        cte = self.ctes.get(name.lower())
        if cte is not None and not node.db:
            inner = self._query(cte.tree, cte.visible)
            return inner, _apply_column_aliases(self.context, cte.definition, inner.fields)
        span = own_span(node.this) or own_span(node)
        bound = bind_relation(self.context, name, span, self.bind_query)
        return bound, bound.fields

    def _values(self, node: exp.Values, alias: str | None) -> tuple[n.Node, Relation]:
        """Reject VALUES, but keep its columns, so that references to them are not errors."""
        names = [part.name for part in node.args["alias"].columns] if alias else []
        width = len(node.expressions[0].expressions or [node])
        names += [f"col{index + 1}" for index in range(len(names), width)]
        self.context.report(
            "TG-103",
            "FROM cannot read VALUES: its rows have no order of arrival",
            node,
            _values_hint(self.context, node, names, alias or "v"),
        )
        fields = tuple(n.Field(self.context.new_id(name), name) for name in names)
        return n.NoRows(fields, span=own_span(node)), Relation(alias, fields)

    def _table_function(self, node: exp.Table, alias: str | None) -> tuple[n.Node, Relation]:
        call = node.this
        context = self.context
        if not is_window_call(call):
            context.report(
                "TG-103",
                f"{ex.call_name(call)} cannot be used as a table",
                node,
                "table functions: TUMBLE, HOP, SESSION, CUMULATE.",
            )
            raise BrokenReference(str(ex.call_name(call)))
        call.meta["table_function"] = True
        if len(call.expressions) < 3 or not isinstance(call.expressions[0], exp.Column):
            name = ex.call_name(call)
            message = f"the first argument of {name} in FROM must be a table"
            if call.find(exp.Kwarg, exp.PropertyEQ):
                message = f"named arguments of {name} are not supported"
            context.report(
                "TG-306",
                message,
                call,
                f"FROM {name}(my_source, ts, INTERVAL '1' MINUTE) AS w",
            )
            raise BrokenReference(name)
        target = exp.Table(this=call.expressions[0].this)
        bound, named = self._named(target)
        scope = Scope([Relation(target.name, named)], parent=self.parent)
        if isinstance(bound, n.LookupScan):
            _report_lookup(context, bound)
            return bound, Relation(alias or target.name, named)
        if ex.call_name(call) == "SESSION":
            relation = Relation(alias or target.name, named)
            return bind_session_table(context, bound, relation, call, Resolver(context, scope))
        time = resolve_time(call.expressions[1], Resolver(context, scope))
        window = assign_windows(context, bound, call, time)
        if window is None:
            raise BrokenReference(target.name)
        return window, Relation(alias or target.name, named + window.fields[-3:])


def _values_hint(context: BindingContext, node: exp.Values, names: list[str], table: str) -> str:
    """Suggest to insert the rows into a declared table, with the types of the first row."""
    first = node.expressions[0]
    cells = first.expressions or [first]
    types = [
        "STRING" if isinstance(cell, exp.Literal) and cell.is_string else "INT" for cell in cells
    ]
    columns = ", ".join(" ".join(pair) for pair in zip(names, types, strict=False))
    # Secrets are masked in this text.
    locations = [context.location(cell) for cell in cells]
    row = ", ".join(item.text[item.start : item.end] for item in locations)
    kind = "SOURCE" if isinstance(node.parent, exp.From) else "LOOKUP TABLE"
    key = "" if kind == "SOURCE" else f", PRIMARY KEY ({names[0]})"
    return (
        f"CREATE {kind} {table} ({columns}{key}) WITH (connector = 'memory'); INSERT INTO {table} "
        f"VALUES ({row}); then read {table}."
    )


def _lateral_view(node: exp.Unnest) -> str:
    """Return the LATERAL VIEW that has the meaning of UNNEST."""
    columns = [part.name for part in node.args["alias"].columns] if node.alias else []
    alias = f"{node.alias or 't'} AS {', '.join(columns) or 'x'}"
    return f"LATERAL VIEW explode({to_sql(node.expressions[0])}) {alias}"


def _join_type(join: exp.Join) -> str:
    kind = (join.args.get("kind") or "").upper()
    if kind in ("SEMI", "ANTI"):
        return kind
    return (join.args.get("side") or "").upper() or "INNER"


def _apply_column_aliases(
    context: BindingContext, node: exp.Expr, fields: tuple[n.Field, ...]
) -> tuple[n.Field, ...]:
    """Rename columns to the names of `AS t (a, b)`."""
    alias = node.args.get("alias")
    names = [part.name for part in alias.columns] if isinstance(alias, exp.TableAlias) else []
    if not names:
        return fields
    if len(names) != len(fields):
        columns = ", ".join(item.name for item in fields)
        count, width = pluralize(len(names), "name"), pluralize(len(fields), "column")
        message = f"the column list ({', '.join(names)}) has {count}, but the table has {width}"
        hint = f"name each column: AS {node.alias or 't'} ({columns})."
        context.report("TG-308", message, node, hint)
        if len(names) > len(fields):
            raise BrokenReference(node.alias)
        # References to the given names are not errors.
        names += [item.name for item in fields[len(names) :]]
    return tuple(item.with_name(name) for item, name in zip(fields, names, strict=True))


def bind_relation(
    context: BindingContext, name: str, span: Span | None, bind_query: BindQuery
) -> n.Node:
    """Return the node that reads a declared object."""
    declared = context.catalog.get(name)
    if isinstance(declared, cat.Source):
        return _scan_source(context, declared, span)
    if isinstance(declared, cat.SideStream):
        fields = tuple(
            n.Field(context.new_id(item.name), item.name, item.type) for item in declared.columns
        )
        return n.SideScan(fields, side=declared, span=span)
    if isinstance(declared, cat.LookupTable):
        fields = tuple(
            n.Field(context.new_id(c.name), c.name, c.type, nullable=not c.not_null)
            for c in declared.columns
        )
        return n.LookupScan(fields, table=declared, span=span)
    if isinstance(declared, cat.Stream):
        return _inline(context, declared, span, bind_query)
    if isinstance(declared, cat.Sink):
        context.report(
            "TG-201",
            f"{name} is a sink and cannot be read",
            span,
            f"read its stream: {declared.stream}.",
        )
    elif name.lower() not in context.invalid_names:
        names = context.catalog.readable_names()
        context.report(
            "TG-201",
            f"source, stream or table {name} does not exist",
            span,
            did_you_mean(name, names, "sources and streams"),
        )
    else:
        # The error in its declaration has been reported.
        raise BrokenReference(name)
    raise BrokenReference(name)


def plan_side_stream(side: cat.SideStream) -> n.Emit:
    """Return the plan of a stream of late rows or dead letters."""
    fields = tuple(n.Field(item.name, item.name, item.type) for item in side.columns)
    scanned = n.SideScan(fields, side=side)
    return n.Emit(fields, input=scanned, clause=None)


class BrokenReference(Exception):
    """Raised for a table that cannot be bound, after the error has been reported."""


def _scan_source(context: BindingContext, source: cat.Source, span: Span | None) -> n.Node:
    fields: list[n.Field] = []
    time_name = source.watermark.column.lower() if source.watermark else None
    for item in source.columns:
        volatile = item.computed is not None and is_volatile(item.computed, {})
        fields.append(
            n.Field(
                context.new_id(item.name),
                item.name,
                item.type,
                n.Role.TIME if item.name.lower() == time_name else n.Role.PLAIN,
                None,
                volatile,
                not item.not_null,
            )
        )
    return n.Scan(tuple(fields), source=source, span=span)


def _inline(
    context: BindingContext, stream: cat.Stream, span: Span | None, bind_query: BindQuery
) -> n.Node:
    """Bind the query of a stream again, with column ids of this plan."""
    inner_context = BindingContext(
        context.catalog,
        stream.script.text,
        stream.script.file,
        stream.statement.span,
        stream.query.emit,
        stream.options.get("state_ttl"),
        context.function_exists,
        context.invalid_names,
        ids=context.ids,
    )
    plan = bind_query(stream.query.tree, inner_context, {}, None)
    plan = n.Emit(plan.fields, input=plan, clause=stream.query.emit)
    types = {item.name: item.type for item in stream.plan.fields}
    fields = tuple(replace(f, type=f.type or types.get(f.name)) for f in plan.fields)
    return n.StreamReference(fields, input=plan, name=stream.name, span=span)
