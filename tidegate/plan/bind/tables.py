"""The FROM clause: sources, streams, lookup tables, subqueries, window table functions, joins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.catalog import objects as cat
from tidegate.errors import did_you_mean
from tidegate.plan import nodes as n
from tidegate.plan.bind.joins import JoinInput, build_join, parse_asof_condition
from tidegate.plan.bind.match import bind_match
from tidegate.plan.bind.resolve import Resolver
from tidegate.plan.bind.scope import Context, Relation, Scope, column, referenced_ids, volatile
from tidegate.plan.bind.windows import assign_windows, resolved_time, session_table, window_call
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span
from tidegate.types import Span

# ---- What stands in FROM, or nothing, where a stream should.


def report_lookup(context: Context, node: n.LookupScan) -> None:
    context.report(
        "TG-417",
        f"{node.table.name} is a lookup table: it is asked, not read",
        node.span,
        f"join a stream with it: FROM my_stream JOIN {node.table.name} ON …",
    )


def report_no_table(context: Context, select: exp.Select) -> None:
    source = next((item.name for item in context.catalog.of(cat.Source)), "my_source")
    context.report(
        "TG-103",
        "a SELECT without FROM is not supported on streams",
        select,
        f"add FROM {source}, or what else it reads; a constant needs no SELECT of its own: write "
        "it where it is used.",
    )


def report_values(context: Context, values: exp.Values) -> None:
    context.report(
        "TG-103",
        "VALUES is no stream: nothing says when its rows come",
        values,
        "put them into a source: CREATE SOURCE v (a INT) WITH (connector = 'memory'); INSERT "
        "INTO v VALUES (1); or, to join streams with them, into a lookup table.",
    )


@dataclass(frozen=True)
class CteEntry:
    """A common table expression and the ones that were visible to it."""

    definition: exp.CTE
    visible: Mapping[str, CteEntry]

    @property
    def tree(self) -> exp.Expr:
        query: exp.Expr = self.definition.this
        return query


Ctes = Mapping[str, CteEntry]


@dataclass
class JoinStep:
    """A joined table before its condition is complete (WHERE may add to it)."""

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
    """The first table, the joins after it, and the scope they make."""

    first: n.Node
    scope: Scope
    steps: list[JoinStep] = field(default_factory=list)

    def build(self, context: Context, unused: frozenset[str]) -> n.Node:
        node = self.first
        left = self.scope.relations[:1]
        for step in self.steps:
            condition = ex.conjunction(step.conditions)
            times = (written_time(left, node), written_time([step.relation], step.node))
            parts = JoinInput(
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
                unused=unused,
            )
            node = build_join(context, parts)
            left.append(step.relation)
        if isinstance(node, n.LookupScan):
            report_lookup(context, node)
        return node

    def absorb(self, conditions: list[exp.Expr]) -> list[exp.Expr]:
        """Move conditions of WHERE into the inner joins they belong to; returns the rest."""
        if any(step.how in ("RIGHT", "FULL") for step in self.steps):
            return conditions
        left_over = list(conditions)
        seen = {item.id for item in self.first.fields}
        for step in self.steps:
            right = {item.id for item in step.node.fields}
            if step.how == "INNER" and not step.asof and step.as_of is None:
                for condition in list(left_over):
                    ids = referenced_ids(condition)
                    if condition.find(exp.Query):
                        continue
                    if ids & right and ids & seen and ids <= seen | right:
                        step.conditions.append(condition)
                        left_over.remove(condition)
            seen |= right
        return left_over


def written_time(relations: list[Relation], node: n.Node) -> str | None:
    """The event time of a side of a join, as the query would write it."""
    times = {item.id for item in node.fields if item.is_event_time}
    for relation in relations:
        for item in relation.fields:
            if item.id in times:
                return f"{relation.alias}.{item.name}" if relation.alias else item.name
    return None


@dataclass
class TableBinder:
    """Binds the FROM clause of one SELECT."""

    context: Context
    ctes: Ctes
    parent: Scope | None
    bind_query: object

    def bind(self, select: exp.Select) -> FromClause:
        source = select.args.get("from_")
        if source is None:
            report_no_table(self.context, select)
            raise BrokenReference
        first, relation = self.table(source.this)
        if source.this.args.get("version") is not None:
            self.context.report(
                "TG-103",
                "FOR SYSTEM_TIME AS OF belongs to the right side of a join",
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
        if method not in ("", "ASOF"):
            context.report(
                "TG-103", f"{method} joins are not supported", join, "write the columns with ON."
            )
        if side in ("RIGHT", "FULL") and kind in ("SEMI", "ANTI"):
            message = f"a {side} {kind} join is not supported"
            context.report("TG-103", message, join, f"swap the tables: … {kind} JOIN …")
        node, relation = self.table(join.this)
        if relation.alias and clause.scope.named(relation.alias):
            context.report(
                "TG-302",
                f"two tables of this query are named {relation.alias}",
                join.this,
                f"give one another name: … AS {relation.alias}_2.",
            )
        before = clause.scope.fields
        clause.scope.relations.append(relation)
        resolver = Resolver(context, clause.scope)
        conditions = [resolver.resolve(part) for part in ex.conjuncts(join.args.get("on"))]
        self._reject_aggregates(join)
        how = _how(join)
        conditions += self._using(clause.scope, join, before, relation, how)
        version = join.this.args.get("version")
        as_of = None
        if version is not None:
            as_of = self._as_of(version, join, clause.scope)
        match = join.args.get("match_condition")
        nearest, tolerance = parse_asof_condition(context, join)
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

    def _as_of(self, version: exp.Expr, join: exp.Join, scope: Scope) -> exp.Expr | None:
        """The moment of FOR SYSTEM_TIME AS OF; other kinds of versions are rejected."""
        kinds = (str(version.args.get("this")), str(version.args.get("kind")))
        if kinds != ("TIMESTAMP", "AS OF") or version.expression is None:
            self.context.report(
                "TG-103",
                "the version of a table is picked by FOR SYSTEM_TIME AS OF, and by nothing else",
                join,
                "JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON …",
            )
            return None
        return resolved_time(version.expression, Resolver(self.context, scope))

    def _reject_aggregates(self, join: exp.Join) -> None:
        for key in ("on", "match_condition"):
            condition = join.args.get(key)
            if condition is None:
                continue
            if ex.has_aggregate(condition) or ex.has_over(condition):
                self.context.report(
                    "TG-305",
                    "a join compares rows, so its condition cannot hold an aggregate or OVER",
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
        """JOIN … USING (k): equality, and k alone means the merged column."""
        conditions: list[exp.Expr] = []
        for identifier in join.args.get("using") or []:
            name = identifier.name
            left = [item for item in before if item.name.lower() == name.lower()]
            right = [item for item in relation.fields if item.name.lower() == name.lower()]
            known = scope.merged.get(name.lower())
            if (known is None and len(left) != 1) or len(right) != 1:
                self.context.report(
                    "TG-301",
                    f"USING ({name}) needs one column {name} on each side",
                    identifier,
                    "write the condition with ON.",
                )
                continue
            one = known.copy() if known is not None else column(left[0], identifier)
            other = column(right[0], identifier)
            conditions.append(exp.EQ(this=one, expression=other))
            merged: exp.Expr = other if how == "RIGHT" else one
            if how == "FULL":
                merged = exp.Anonymous(this="COALESCE", expressions=[one, other])
            scope.merged[name.lower()] = merged.copy()
        return conditions

    def table(self, node: exp.Expr) -> tuple[n.Node, Relation]:
        """One table of FROM, or the matches in its rows, and the name it goes by."""
        bound, relation = self._table(node)
        match = node.args.get("match")
        if match is None:
            return bound, relation
        if isinstance(bound, n.LookupScan):
            report_lookup(self.context, bound)
            raise BrokenReference(bound.table.name)
        bound, fields = bind_match(self.context, bound, relation, match, self.parent)
        return bound, Relation(match.alias or None, _renamed(self.context, match, fields))

    def _table(self, node: exp.Expr) -> tuple[n.Node, Relation]:
        alias = node.alias or None
        self._reject_extras(node)
        if isinstance(node, exp.Subquery):
            inner = self._query(node.this, self.ctes)
            return inner, Relation(alias, _renamed(self.context, node, inner.fields))
        if isinstance(node, exp.Values):
            return self._values(node, alias)
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Anonymous):
            return self._table_function(node, alias)
        if isinstance(node, exp.Table):
            bound, named = self._named(node)
            fields = _renamed(self.context, node, named)
            return bound, Relation(alias or node.name, fields)
        message = "this kind of table is not supported"
        hint = "for arrays and maps use LATERAL VIEW explode(…) t AS x."
        if isinstance(node, exp.Lateral) and node.find(exp.Query) is not None:
            message = "a LATERAL subquery is not supported: it is asked anew for each row"
            hint = "join the table itself; the first n of each key are SELECT … FROM … QUALIFY "
            hint += "row_number() OVER (PARTITION BY … ORDER BY …) <= 3."
        self.context.report("TG-103", message, node, hint)
        raise BrokenReference(alias)

    def _reject_extras(self, node: exp.Expr) -> None:
        for key, what in (
            ("pivots", "PIVOT"),
            ("sample", "TABLESAMPLE"),
            ("ordinality", "WITH ORDINALITY"),
        ):
            if node.args.get(key):
                self.context.report(
                    "TG-103", f"{what} is not supported on streams", node, f"remove {what}."
                )

    def _query(self, tree: exp.Expr, ctes: Ctes) -> n.Node:
        return self.bind_query(tree, self.context, ctes, self.parent)  # type: ignore[operator, no-any-return]

    def _named(self, node: exp.Table) -> tuple[n.Node, tuple[n.Field, ...]]:
        """What a name stands for, and its columns by the names they have there."""
        name = node.name
        if node.db:
            self.context.report(
                "TG-201", f"{node.db}.{name}: names have no schema in front", node, f"write {name}."
            )
        entry = self.ctes.get(name.lower())
        if entry is not None and not node.db:
            inner = self._query(entry.tree, entry.visible)
            return inner, _renamed(self.context, entry.definition, inner.fields)
        at = own_span(node.this) or own_span(node)
        bound = scan(self.context, name, at, self.bind_query)
        return bound, bound.fields

    def _values(self, node: exp.Values, alias: str | None) -> tuple[n.Node, Relation]:
        """Rejected; its columns are known, so that nothing else is said of them."""
        report_values(self.context, node)
        names = [part.name for part in node.args["alias"].columns] if alias else []
        width = len(node.expressions[0].expressions or [node])
        names = names or [f"col{index + 1}" for index in range(width)]
        fields = tuple(n.Field(self.context.fresh(name), name) for name in names)
        return n.NoRows(fields, span=own_span(node)), Relation(alias, fields)

    def _table_function(self, node: exp.Table, alias: str | None) -> tuple[n.Node, Relation]:
        call = node.this
        context = self.context
        if not window_call(call):
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
            context.report(
                "TG-306",
                f"{name} as a table needs the table first",
                call,
                f"FROM {name}(my_source, ts, INTERVAL '1' MINUTE) AS w",
            )
            raise BrokenReference(name)
        target = exp.Table(this=call.expressions[0].this)
        bound, named = self._named(target)
        scope = Scope([Relation(target.name, named)], parent=self.parent)
        if isinstance(bound, n.LookupScan):
            report_lookup(context, bound)
            return bound, Relation(alias or target.name, named)
        if ex.call_name(call) == "SESSION":
            relation = Relation(alias or target.name, named)
            return session_table(context, bound, relation, call, Resolver(context, scope))
        time = resolved_time(call.expressions[1], Resolver(context, scope))
        window = assign_windows(context, bound, call, time)
        if window is None:
            raise BrokenReference(target.name)
        return window, Relation(alias or target.name, named + window.fields[-3:])


def _how(join: exp.Join) -> str:
    kind = (join.args.get("kind") or "").upper()
    if kind in ("SEMI", "ANTI"):
        return kind
    return (join.args.get("side") or "").upper() or "INNER"


def _renamed(context: Context, node: exp.Expr, fields: tuple[n.Field, ...]) -> tuple[n.Field, ...]:
    """Apply the column names of `AS t (a, b)`."""
    alias = node.args.get("alias")
    names = [part.name for part in alias.columns] if isinstance(alias, exp.TableAlias) else []
    if not names:
        return fields
    if len(names) != len(fields):
        columns = ", ".join(item.name for item in fields)
        message = f"{len(names)} names for {len(fields)} columns"
        context.report("TG-308", message, node, f"the columns: {columns}.")
        return fields
    return tuple(item.with_name(name) for item, name in zip(fields, names, strict=True))


def scan(context: Context, name: str, span: Span | None, bind_query: object) -> n.Node:
    """The node that reads a declared object."""
    declared = context.catalog.get(name)
    if isinstance(declared, cat.Source):
        return _scan_source(context, declared, span)
    if isinstance(declared, cat.SideStream):
        fields = tuple(
            n.Field(context.fresh(item.name), item.name, item.type) for item in declared.columns
        )
        return n.SideScan(fields, side=declared, span=span)
    if isinstance(declared, cat.LookupTable):
        fields = tuple(
            n.Field(context.fresh(c.name), c.name, c.type, nullable=not c.not_null)
            for c in declared.columns
        )
        return n.LookupScan(fields, table=declared, span=span)
    if isinstance(declared, cat.Stream):
        return _inline(context, declared, span, bind_query)
    if isinstance(declared, cat.Sink):
        context.report(
            "TG-201",
            f"{name} is a sink: it is written, not read",
            span,
            f"read the stream it writes: {declared.source}.",
        )
    elif name.lower() not in context.broken:
        known = context.catalog.readable()
        context.report(
            "TG-201",
            f"there is no source, stream or table {name}",
            span,
            did_you_mean(name, known, "sources and streams"),
        )
    else:
        # Its declaration has an error of its own; saying more here would only repeat it.
        raise BrokenReference(name)
    raise BrokenReference(name)


def plan_side_stream(side: cat.SideStream) -> n.Emit:
    """The plan of a stream that another declaration brings along."""
    fields = tuple(n.Field(item.name, item.name, item.type) for item in side.columns)
    scanned = n.SideScan(fields, side=side)
    return n.Emit(fields, input=scanned, clause=None)


class BrokenReference(Exception):
    """A table that could not be bound; the reason is already reported, and its columns unknown."""


def _scan_source(context: Context, source: cat.Source, span: Span | None) -> n.Node:
    fields: list[n.Field] = []
    time = source.watermark.column.lower() if source.watermark else None
    for item in source.columns:
        unstable = item.computed is not None and volatile(item.computed, {})
        fields.append(
            n.Field(
                context.fresh(item.name),
                item.name,
                item.type,
                n.Role.TIME if item.name.lower() == time else n.Role.PLAIN,
                None,
                unstable,
                not item.not_null,
            )
        )
    return n.Scan(tuple(fields), source=source, span=span)


def _inline(context: Context, stream: cat.Stream, span: Span | None, bind_query: object) -> n.Node:
    """Bind the stream's own query again, so that its columns get ids of this plan."""
    inner = Context(
        context.catalog,
        stream.origin.text,
        stream.origin.file,
        stream.statement.span,
        stream.query.emit,
        stream.options.get("state_ttl"),
        context.function_exists,
        context.broken,
        ids=context.ids,
    )
    bound = bind_query(stream.query.tree, inner, {}, None)  # type: ignore[operator]
    bound = n.Emit(bound.fields, input=bound, clause=stream.query.emit)
    types = {item.name: item.type for item in stream.plan.fields}
    fields = tuple(replace(f, type=f.type or types.get(f.name)) for f in bound.fields)
    return n.Inlined(fields, input=bound, name=stream.name, span=span)
