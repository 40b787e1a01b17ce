"""SESSION as a table: the rows of each session are kept in a list until it closes."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.resolve import Resolver
from tidegate.plan.scope import Context, Relation, by_id, column, derived_field
from tidegate.plan.windows import assign_windows, resolved_time


def session_table(
    context: Context, node: n.Node, relation: Relation, call: exp.Expr, resolver: Resolver
) -> tuple[n.Node, Relation]:
    """SESSION(bids PARTITION BY k, ts, gap): a row comes once, when its session closes."""
    table, *keys, time, gap = call.expressions
    plain = call.copy()
    plain.set("expressions", [table.copy(), time.copy(), gap.copy()])
    resolved = [resolver.resolve(key) for key in keys]
    rows = _session_rows(context, node, plain, resolved_time(time, resolver), resolved)
    if rows is None:
        return node, relation
    pairs = zip(rows.fields, relation.fields, strict=False)
    named = tuple(item.renamed(known.name) for item, known in pairs)
    return rows, Relation(relation.alias, named + rows.fields[-3:])


def _session_rows(
    context: Context, node: n.Node, call: exp.Expr, time: exp.Expr, keys: list[exp.Expr]
) -> n.Node | None:
    """Every row of a node with the session it is in, when that closes; None after an error."""
    window = assign_windows(context, node, call, time, grouped=True)
    if window is None:
        return None
    known = by_id(window.fields)
    added = window.fields[-3:]
    trees = (*(column(item, call) for item in added), *keys)
    fields = [known.get(t.name) or derived_field(context, "key", t, known) for t in trees]
    rows = n.Field(context.fresh("rows"), "rows")
    sessions = n.Aggregate(
        (*fields, rows),
        input=window,
        keys=trees,
        aggregates=(_call("COLLECT_LIST", [_row(node.fields)]),),
        window=window.spec,
        emit=context.emit,
        ttl_us=context.ttl_us,
        span=window.span,
    )
    # The times of the rows lie anywhere in the session, so only its end is an event time.
    copies = tuple(
        replace(item, id=context.fresh(item.name), role=n.Role.PLAIN, window=None)
        for item in node.fields
    )
    exploded = n.Explode(
        sessions.fields + copies,
        input=sessions,
        generator=_call("INLINE", [column(rows)]),
        generated=tuple(item.id for item in copies),
        span=window.span,
    )
    shown = copies + added
    return n.Project(
        shown, input=exploded, expressions=tuple(column(item) for item in shown), span=window.span
    )


def _row(fields: tuple[n.Field, ...]) -> exp.Expr:
    cells: list[exp.Expr] = []
    for place, item in enumerate(fields):
        cells += [exp.Literal.string(f"c{place}"), column(item)]
    return _call("NAMED_STRUCT", cells)


def _call(name: str, parts: list[exp.Expr]) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=parts)
