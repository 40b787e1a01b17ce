"""Functions with OVER in a SELECT: named windows, and the nodes that compute them."""

from __future__ import annotations

from sqlglot import exp

from tidegate.errors import did_you_mean
from tidegate.plan import nodes as n
from tidegate.plan.nodes.over import (
    Looks,
    closing_field,
    follows_time,
    looks_of,
    with_one_time,
    without_time,
)
from tidegate.plan.scope import Context
from tidegate.sql.dialect import own_span, to_sql
from tidegate.types import ChangelogKind

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
        groups.setdefault(_group(looks_of(function), node), []).append(place)
    for turn, partition, order in list(groups):
        # What could come out at once waits with its neighbours: that is one operator less.
        if turn == _WAITS and (_TIME, partition, order) in groups:
            groups[turn, partition, order] += groups.pop((_TIME, partition, order))
    for (turn, *_), places in sorted(groups.items(), key=lambda pair: pair[0][0]):
        below = node.fields
        if turn == _WAITS:
            below = without_time(below)
        elif turn == _TIME:
            below = with_one_time(below, looks_of(functions[places[0]]))
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


def _group(looks: Looks, node: n.Node) -> tuple[int, str, str]:
    """Functions of a group share a node: along time they also share their order."""
    partition = ", ".join(to_sql(part) for part in looks.partition)
    closes = closing_field(looks.partition, node.fields) is not None
    appended = node.changelog is ChangelogKind.APPEND
    waits = looks.rows_ahead > 0
    if appended and follows_time(looks, node.fields) and not (waits and closes):
        order = ", ".join(to_sql(part) for part in looks.order)
        return (_WAITS if waits else _TIME), partition, order
    return (_WINDOW if closes else _WHOLE), partition, ""
