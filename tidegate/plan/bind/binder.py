"""The entry point of binding: queries, common table expressions and set operations."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from tidegate.errors import pluralize
from tidegate.plan import nodes as n
from tidegate.plan.bind.resolve import Resolver
from tidegate.plan.bind.scope import BindingContext, Relation, Scope, column, report_position
from tidegate.plan.bind.select import SelectBinder, apply_limit
from tidegate.plan.bind.tables import BrokenReference, CteEntry, Ctes
from tidegate.sql.dialect import own_span
from tidegate.sql.statements import EmitClause, EmitMode, Query

# ---- INTERSECT and EXCEPT, by counting how often each row occurs in each of the queries

# The column with the number of the query that a row comes from.
MEMBER_COLUMN = "_member"


def has_bounded_state(node: n.SetOperation) -> bool:
    """Return whether rows are dropped from the state at some point."""
    closes = any(item.closed_by_watermark for item in node.fields)
    return closes or node.ttl_us is not None or node.bounded


def count_members(context: BindingContext, node: n.SetOperation) -> n.Node:
    """Plan INTERSECT or EXCEPT as an aggregate over the union of all members.

    The aggregate counts how often each row occurs in each member; a filter selects the rows of the
    result, and ALL repeats them.
    """
    member_field = n.Field(context.new_id(MEMBER_COLUMN), MEMBER_COLUMN, "INT", nullable=False)
    members = tuple(
        _with_member_number(context, member, i) for i, member in enumerate(node.members)
    )
    rows = n.SetOperation(
        (*node.fields, member_field), members=members, operation="UNION", all=True, span=node.span
    )
    counts = tuple(
        n.Field(context.new_id("rows"), "rows", "BIGINT", nullable=False) for _ in members
    )
    aggregate = n.Aggregate(
        (*node.fields, *counts),
        input=rows,
        keys=tuple(column(item) for item in node.fields),
        aggregates=tuple(_count_of_member(member_field, index) for index, _ in enumerate(members)),
        window=next((item.window for item in node.fields if item.window is not None), None),
        emit=_emit_clause(context, node),
        ttl_us=node.ttl_us,
        span=node.span,
    )
    filtered = n.Filter(
        aggregate.fields, input=aggregate, condition=_has_copies(node, counts), span=node.span
    )
    result = _repeat_rows(context, node, filtered, counts) if node.all else filtered
    return n.Project(
        node.fields,
        input=result,
        expressions=tuple(column(item) for item in node.fields),
        span=node.span,
    )


def _with_member_number(context: BindingContext, member: n.Node, index: int) -> n.Node:
    member_field = n.Field(context.new_id(MEMBER_COLUMN), MEMBER_COLUMN, "INT", nullable=False)
    expressions = (*(column(item) for item in member.fields), exp.Literal.number(index))
    return n.Project((*member.fields, member_field), input=member, expressions=expressions)


def _count_of_member(member_field: n.Field, index: int) -> exp.Expr:
    is_member = exp.EQ(this=column(member_field), expression=exp.Literal.number(index))
    return exp.Anonymous(this="COUNT_IF", expressions=[is_member])


def _emit_clause(context: BindingContext, node: n.SetOperation) -> EmitClause | None:
    """Return the EMIT clause of the aggregate: CHANGES if no time makes rows final."""
    is_final = any(item.closed_by_watermark for item in node.fields) or node.bounded
    if context.emit is not None or is_final:
        return context.emit
    return EmitClause(EmitMode.CHANGES, node.span or context.default_span)


def _has_copies(node: n.SetOperation, counts: tuple[n.Field, ...]) -> exp.Expr:
    """Return the condition under which a row is in the result."""
    zero = exp.Literal.number(0)
    if node.all:
        return exp.GT(this=_copies(node, counts), expression=zero)
    first, *others = counts
    comparison = exp.GT if node.operation == "INTERSECT" else exp.EQ
    conditions = [comparison(this=column(item), expression=zero.copy()) for item in others]
    return exp.and_(exp.GT(this=column(first), expression=zero), *conditions)


def _copies(node: n.SetOperation, counts: tuple[n.Field, ...]) -> exp.Expr:
    """Return how often a row is in the result of an operation with ALL."""
    if node.operation == "INTERSECT":
        return exp.Anonymous(this="LEAST", expressions=[column(item) for item in counts])
    copies: exp.Expr = column(counts[0])
    for item in counts[1:]:
        copies = exp.Sub(this=copies, expression=column(item))
    return copies


def _repeat_rows(
    context: BindingContext, node: n.SetOperation, rows: n.Node, counts: tuple[n.Field, ...]
) -> n.Node:
    copy_field = n.Field(context.new_id("copy"), "copy", "BOOLEAN")
    copies = exp.cast(exp.Paren(this=_copies(node, counts)), "INT")
    repeated = exp.Anonymous(this="ARRAY_REPEAT", expressions=[exp.true(), copies])
    return n.Explode(
        (*rows.fields, copy_field),
        input=rows,
        generator=exp.Anonymous(this="EXPLODE", expressions=[repeated]),
        generated=(copy_field.id,),
        span=node.span,
    )


# ---- Queries

_ORDINALS = {2: "the second", 3: "the third", 4: "the fourth"}
_OPERATIONS = {exp.Union: "UNION", exp.Intersect: "INTERSECT", exp.Except: "EXCEPT"}


def bind(query: Query, context: BindingContext) -> n.Node | None:
    """Return the plan of a query, or None if it has errors, which are in `context.errors`."""
    try:
        bound = bind_query(query.tree, context, {}, None)
    except BrokenReference:
        return None
    _check_unique_names(context, query, bound)
    if context.errors:
        return None
    return n.Emit(bound.fields, input=bound, clause=query.emit, span=query.span)


def bind_query(tree: exp.Expr, context: BindingContext, ctes: Ctes, parent: Scope | None) -> n.Node:
    """Bind a SELECT or a set operation with its common table expressions."""
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


def _visible_ctes(tree: exp.Expr, context: BindingContext, ctes: Ctes) -> Ctes:
    clause = tree.args.get("with_")
    if clause is None:
        return ctes
    if clause.args.get("recursive"):
        context.report(
            "TG-103",
            "recursive queries are not supported on streams",
            clause,
            "remove RECURSIVE. A common table expression can read the ones before it.",
        )
    visible = dict(ctes)
    for cte in clause.expressions:
        visible[cte.alias.lower()] = CteEntry(cte, dict(visible))
    return visible


def _flatten(tree: exp.Expr, kind: type[exp.Expr], distinct: bool) -> list[exp.Expr]:
    """Return the operands of a UNION ALL b UNION ALL c as one list."""
    inner = tree
    while isinstance(inner, exp.Subquery) and not inner.alias and not _is_ordered(inner):
        inner = inner.this
    if (
        isinstance(inner, exp.SetOperation)
        and type(inner) is kind
        and bool(inner.args.get("distinct")) is distinct
        and not inner.args.get("with_")
        and not _is_ordered(inner)
    ):
        return _flatten_operation(inner, kind, distinct)
    return [tree]


def _flatten_operation(
    tree: exp.SetOperation, kind: type[exp.Expr], distinct: bool
) -> list[exp.Expr]:
    # The right operand is not flattened: EXCEPT is not associative, and in a UNION (b UNION c) the
    # common type of b and c is determined first.
    return [*_flatten(tree.this, kind, distinct), tree.expression]


def _is_ordered(tree: exp.Expr) -> bool:
    return any(tree.args.get(key) is not None for key in ("order", "limit", "offset"))


def _set_operation(
    tree: exp.SetOperation, context: BindingContext, ctes: Ctes, parent: Scope | None
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
    trees = _flatten_operation(tree, kind, distinct)
    members = [bind_query(member, context, ctes, parent) for member in trees]
    first = members[0]
    for number, (member, source) in enumerate(zip(members[1:], trees[1:], strict=True), 2):
        if len(member.fields) != len(first.fields):
            position = _ORDINALS.get(number, f"query {number}")
            context.report(
                "TG-308",
                f"{_OPERATIONS[kind]}: the first query has "
                f"{pluralize(len(first.fields), 'column')}, {position} has {len(member.fields)}",
                source,
                "select the same number of columns in each.",
            )
            return first
    fields = tuple(_merge_fields(context, members, index) for index in range(len(first.fields)))
    operation = n.SetOperation(
        fields,
        members=tuple(members),
        operation=_OPERATIONS[kind],
        all=not distinct,
        ttl_us=context.ttl_us,
        span=own_span(tree),
    )
    counts = operation.operation != "UNION" and has_bounded_state(operation)
    node = count_members(context, operation) if counts else operation
    return _order_and_limit(tree, context, node)


def _merge_fields(context: BindingContext, members: list[n.Node], index: int) -> n.Field:
    """Return a column of a set operation, with a role only if all members have that role."""
    columns = [member.fields[index] for member in members]
    first = columns[0]
    same_role = all(item.role is first.role and item.window == first.window for item in columns)
    keeps_role = same_role or _have_one_event_time(members, columns)
    return replace(
        first,
        id=context.new_id(first.name),
        role=first.role if keeps_role else n.Role.PLAIN,
        window=first.window if same_role else None,
        volatile=any(item.volatile for item in columns),
        nullable=any(item.nullable for item in columns),
        type=first.type if len({item.type for item in columns}) == 1 else None,
    )


def _have_one_event_time(members: list[n.Node], columns: list[n.Field]) -> bool:
    """Return whether columns are the only event time of each member, of any window."""
    all_times = all(item.role is n.Role.TIME and item.is_event_time for item in columns)
    other_fields = (item for member in members for item in member.fields if item not in columns)
    return all_times and all(item.role is n.Role.PLAIN for item in other_fields)


def _order_and_limit(tree: exp.Expr, context: BindingContext, node: n.Node) -> n.Node:
    """Bind ORDER BY and LIMIT of a set operation over its own columns."""
    resolver = Resolver(context, Scope([Relation(None, node.fields)]))
    order = tree.args.get("order")
    if order is not None:
        keys = tuple(
            resolver.resolve(_resolve_position(key, node, context)) for key in order.expressions
        )
        node = n.Sort(node.fields, input=node, order=keys, span=own_span(order))
    return apply_limit(context, tree, node)


def _resolve_position(key: exp.Expr, node: n.Node, context: BindingContext) -> exp.Expr:
    """Replace a position in ORDER BY by its column."""
    target = key.this if isinstance(key, exp.Ordered) else key
    if not isinstance(target, exp.Literal) or not target.is_int:
        return key
    if not 1 <= int(target.name) <= len(node.fields):
        names = [item.name for item in node.fields]
        report_position(context, "ORDER BY", key, int(target.name), names)
        return key
    reference = exp.column(exp.to_identifier(node.fields[int(target.name) - 1].name, quoted=True))
    ordered = key.copy() if isinstance(key, exp.Ordered) else exp.Ordered(this=reference)
    ordered.set("this", reference)
    return ordered


def _check_unique_names(context: BindingContext, query: Query, node: n.Node) -> None:
    """Report columns of a stream with the same name."""
    names = [item.name for item in node.fields if item.name != "?"]
    lower = [name.lower() for name in names]
    duplicates = [name for index, name in enumerate(names) if name.lower() in lower[:index]]
    if duplicates:
        context.report(
            "TG-308",
            f"two columns of the result are named {', '.join(dict.fromkeys(duplicates))}",
            query.tree,
            f"rename one: {duplicates[0]} AS {duplicates[0]}_2.",
        )
