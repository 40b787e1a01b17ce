"""A query and the catalog to a logical plan."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.bind.resolve import Resolver
from tidegate.plan.bind.scope import Context, Relation, Scope, column
from tidegate.plan.bind.select import SelectBinder, limited
from tidegate.plan.bind.tables import BrokenReference, CteEntry, Ctes
from tidegate.sql.dialect import own_span
from tidegate.sql.statements import EmitClause, EmitMode, Query

# ---- INTERSECT and EXCEPT: how often each row is in each of the queries decides how often it comes.

# The column that says which query a row is of.
CONTROL = "_side"


def has_bound(node: n.SetOperation) -> bool:
    """Whether rows are forgotten some day."""
    closes = any(item.closed_by_watermark for item in node.fields)
    return closes or node.ttl_us is not None or node.bounded


def by_counting(context: Context, node: n.SetOperation) -> n.Node:
    """The same as an aggregate over the rows of all queries."""
    side = n.Field(context.fresh(CONTROL), CONTROL, "INT", nullable=False)
    members = tuple(_numbered(context, member, i) for i, member in enumerate(node.members))
    rows = n.SetOperation(
        (*node.fields, side), members=members, operation="UNION", all=True, span=node.span
    )
    counts = tuple(
        n.Field(context.fresh("rows"), "rows", "BIGINT", nullable=False) for _ in members
    )
    counted = n.Aggregate(
        (*node.fields, *counts),
        input=rows,
        keys=tuple(column(item) for item in node.fields),
        aggregates=tuple(_count(side, place) for place, _ in enumerate(members)),
        window=next((item.window for item in node.fields if item.window is not None), None),
        emit=_emit(context, node),
        ttl_us=node.ttl_us,
        span=node.span,
    )
    wanted = n.Filter(
        counted.fields, input=counted, condition=_condition(node, counts), span=node.span
    )
    result = _repeated(context, node, wanted, counts) if node.all else wanted
    return n.Project(
        node.fields,
        input=result,
        expressions=tuple(column(item) for item in node.fields),
        span=node.span,
    )


def _numbered(context: Context, member: n.Node, place: int) -> n.Node:
    side = n.Field(context.fresh(CONTROL), CONTROL, "INT", nullable=False)
    expressions = (*(column(item) for item in member.fields), exp.Literal.number(place))
    return n.Project((*member.fields, side), input=member, expressions=expressions)


def _count(side: n.Field, place: int) -> exp.Expr:
    same = exp.EQ(this=column(side), expression=exp.Literal.number(place))
    return exp.Anonymous(this="COUNT_IF", expressions=[same])


def _emit(context: Context, node: n.SetOperation) -> EmitClause | None:
    """Without a time that makes rows final, they come as changes."""
    final = any(item.closed_by_watermark for item in node.fields) or node.bounded
    if context.emit is not None or final:
        return context.emit
    return EmitClause(EmitMode.CHANGES, node.span or context.fallback)


def _condition(node: n.SetOperation, counts: tuple[n.Field, ...]) -> exp.Expr:
    """Whether a row comes at all."""
    zero = exp.Literal.number(0)
    if node.all:
        return exp.GT(this=_times(node, counts), expression=zero)
    first, *others = counts
    kind = exp.GT if node.operation == "INTERSECT" else exp.EQ
    rest = [kind(this=column(item), expression=zero.copy()) for item in others]
    return exp.and_(exp.GT(this=column(first), expression=zero), *rest)


def _times(node: n.SetOperation, counts: tuple[n.Field, ...]) -> exp.Expr:
    """How often a row comes with ALL."""
    if node.operation == "INTERSECT":
        return exp.Anonymous(this="LEAST", expressions=[column(item) for item in counts])
    times: exp.Expr = column(counts[0])
    for item in counts[1:]:
        times = exp.Sub(this=times, expression=column(item))
    return times


def _repeated(
    context: Context, node: n.SetOperation, rows: n.Node, counts: tuple[n.Field, ...]
) -> n.Node:
    copy = n.Field(context.fresh("copy"), "copy", "BOOLEAN")
    times = exp.cast(exp.Paren(this=_times(node, counts)), "INT")
    repeated = exp.Anonymous(this="ARRAY_REPEAT", expressions=[exp.true(), times])
    return n.Explode(
        (*rows.fields, copy),
        input=rows,
        generator=exp.Anonymous(this="EXPLODE", expressions=[repeated]),
        generated=(copy.id,),
        span=node.span,
    )


_OPERATIONS = {exp.Union: "UNION", exp.Intersect: "INTERSECT", exp.Except: "EXCEPT"}


def bind(query: Query, context: Context) -> n.Node | None:
    """The plan of a query, or None when `context.errors` says why there is none."""
    try:
        bound = bind_query(query.tree, context, {}, None)
    except BrokenReference:
        return None
    _unique_names(context, query, bound)
    if context.errors:
        return None
    return n.Emit(bound.fields, input=bound, clause=query.emit, span=query.span)


def bind_query(tree: exp.Expr, context: Context, ctes: Ctes, parent: Scope | None) -> n.Node:
    """A SELECT or a set operation, with the CTEs in front of it."""
    ctes = _visible_ctes(tree, context, ctes)
    if isinstance(tree, exp.Subquery):
        inner = bind_query(tree.this, context, ctes, parent)
        return _order_and_limit(tree, context, inner)
    if isinstance(tree, exp.SetOperation):
        return _set_operation(tree, context, ctes, parent)
    if isinstance(tree, exp.Select):
        return SelectBinder(tree, context, ctes, parent, bind_query).bind()
    context.report("TG-103", "this kind of query is not supported", tree, "SELECT … FROM …")
    return n.NoRows(())


def _visible_ctes(tree: exp.Expr, context: Context, ctes: Ctes) -> Ctes:
    clause = tree.args.get("with_")
    if clause is None:
        return ctes
    if clause.args.get("recursive"):
        context.report(
            "TG-103",
            "recursive queries are not supported on streams",
            clause,
            "remove RECURSIVE, and let each query read those before it.",
        )
    visible = dict(ctes)
    for cte in clause.expressions:
        visible[cte.alias.lower()] = CteEntry(cte, dict(visible))
    return visible


def _members(tree: exp.Expr, kind: type[exp.Expr], distinct: bool) -> list[exp.Expr]:
    """a UNION ALL b UNION ALL c as one list."""
    inner = tree
    while isinstance(inner, exp.Subquery) and not inner.alias and not _ordered(inner):
        inner = inner.this
    if (
        isinstance(inner, exp.SetOperation)
        and type(inner) is kind
        and bool(inner.args.get("distinct")) is distinct
        and not inner.args.get("with_")
        and not _ordered(inner)
    ):
        return _sides(inner, kind, distinct)
    return [tree]


def _sides(tree: exp.SetOperation, kind: type[exp.Expr], distinct: bool) -> list[exp.Expr]:
    # a EXCEPT (b EXCEPT c) is not a EXCEPT b EXCEPT c; and the common type of a UNION (b UNION c)
    # is found for b and c first.
    return [*_members(tree.this, kind, distinct), tree.expression]


def _ordered(tree: exp.Expr) -> bool:
    return any(tree.args.get(key) is not None for key in ("order", "limit", "offset"))


def _set_operation(
    tree: exp.SetOperation, context: Context, ctes: Ctes, parent: Scope | None
) -> n.Node:
    kind = next(kind for kind in _OPERATIONS if isinstance(tree, kind))
    distinct = bool(tree.args.get("distinct"))
    if tree.args.get("by_name"):
        context.report(
            "TG-103",
            "UNION BY NAME is not supported",
            tree,
            "select the columns in the same order, and use UNION ALL.",
        )
    trees = _sides(tree, kind, distinct)
    members = [bind_query(member, context, ctes, parent) for member in trees]
    first = members[0]
    for member, source in zip(members[1:], trees[1:], strict=True):
        if len(member.fields) != len(first.fields):
            context.report(
                "TG-308",
                f"the queries of {_OPERATIONS[kind]} have {len(first.fields)} and "
                f"{len(member.fields)} columns",
                source,
                "select the same number of columns in each.",
            )
            return first
    fields = tuple(_union_field(context, members, index) for index in range(len(first.fields)))
    operation = n.SetOperation(
        fields,
        members=tuple(members),
        operation=_OPERATIONS[kind],
        all=not distinct,
        ttl_us=context.ttl_us,
        span=own_span(tree),
    )
    counts = operation.operation != "UNION" and has_bound(operation)
    node = by_counting(context, operation) if counts else operation
    return _order_and_limit(tree, context, node)


def _union_field(context: Context, members: list[n.Node], index: int) -> n.Field:
    """A column of a union means time only if it does so in all members."""
    columns = [member.fields[index] for member in members]
    first = columns[0]
    same = all(item.role is first.role and item.window == first.window for item in columns)
    timed = same or _only_times(members, columns)
    return replace(
        first,
        id=context.fresh(first.name),
        role=first.role if timed else n.Role.PLAIN,
        window=first.window if same else None,
        volatile=any(item.volatile for item in columns),
        nullable=any(item.nullable for item in columns),
        type=first.type if len({item.type for item in columns}) == 1 else None,
    )


def _only_times(members: list[n.Node], columns: list[n.Field]) -> bool:
    """Whether they are event times, though of different windows, and rows have no other one."""
    times = all(item.role is n.Role.TIME and item.is_event_time for item in columns)
    others = (item for member in members for item in member.fields if item not in columns)
    return times and all(item.role is n.Role.PLAIN for item in others)


def _order_and_limit(tree: exp.Expr, context: Context, node: n.Node) -> n.Node:
    """ORDER BY and LIMIT of a set operation, over its own columns."""
    resolver = Resolver(context, Scope([Relation(None, node.fields)]))
    order = tree.args.get("order")
    if order is not None:
        keys = tuple(resolver.resolve(_positioned(key, node, context)) for key in order.expressions)
        node = n.Sort(node.fields, input=node, order=keys, span=own_span(order))
    return limited(context, tree, node)


def _positioned(key: exp.Expr, node: n.Node, context: Context) -> exp.Expr:
    """ORDER BY 2 means the second column."""
    target = key.this if isinstance(key, exp.Ordered) else key
    if not isinstance(target, exp.Literal) or not target.is_int:
        return key
    if not 1 <= int(target.name) <= len(node.fields):
        hint = f"there are {len(node.fields)} columns."
        context.report("TG-301", f"ORDER BY {target.name}: no such column", key, hint)
        return key
    named = exp.column(exp.to_identifier(node.fields[int(target.name) - 1].name, quoted=True))
    ordered = key.copy() if isinstance(key, exp.Ordered) else exp.Ordered(this=named)
    ordered.set("this", named)
    return ordered


def _unique_names(context: Context, query: Query, node: n.Node) -> None:
    """The columns of a stream need names that differ."""
    names = [item.name for item in node.fields if item.name != "?"]
    lower = [name.lower() for name in names]
    twice = [name for index, name in enumerate(names) if name.lower() in lower[:index]]
    if twice:
        context.report(
            "TG-308",
            f"two columns of the result are named {', '.join(dict.fromkeys(twice))}",
            query.tree,
            f"rename one: {twice[0]} AS {twice[0]}_2.",
        )


__all__ = ["bind", "bind_query", "column"]
