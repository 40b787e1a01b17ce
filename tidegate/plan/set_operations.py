"""INTERSECT and EXCEPT: how often each row is in each of the queries decides how often it comes."""

from __future__ import annotations

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.scope import Context, column
from tidegate.sql.statements import Emit, EmitMode

# The column that says which query a row is of.
SIDE = "_side"


def has_bound(node: n.SetOperation) -> bool:
    """Whether rows are forgotten some day."""
    closes = any(item.closes for item in node.fields)
    return closes or node.ttl_us is not None or node.bounded


def by_counting(context: Context, node: n.SetOperation) -> n.Node:
    """The same as an aggregate over the rows of all queries."""
    side = n.Field(context.fresh(SIDE), SIDE, "INT", nullable=False)
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
    side = n.Field(context.fresh(SIDE), SIDE, "INT", nullable=False)
    expressions = (*(column(item) for item in member.fields), exp.Literal.number(place))
    return n.Project((*member.fields, side), input=member, expressions=expressions)


def _count(side: n.Field, place: int) -> exp.Expr:
    same = exp.EQ(this=column(side), expression=exp.Literal.number(place))
    return exp.Anonymous(this="COUNT_IF", expressions=[same])


def _emit(context: Context, node: n.SetOperation) -> Emit | None:
    """Without a time that makes rows final, they come as changes."""
    final = any(item.closes for item in node.fields) or node.bounded
    if context.emit is not None or final:
        return context.emit
    return Emit(EmitMode.CHANGES, node.span or context.fallback)


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
