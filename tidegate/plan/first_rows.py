"""The first rows of each partition by event time, for queries that wait for the watermark.

They are final once the watermark has passed them, so numbering rows along event time finds them:
nothing but the numbers is kept, and nothing is retracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.scope import column
from tidegate.types import ChangelogKind

_RANK = "_tg_rank"


def along_time(order: Sequence[exp.Expr], rows: n.Node) -> bool:
    """Whether an order begins with the one event time of rows without windows, upwards."""
    first = order[0] if order else None
    if not isinstance(first, exp.Ordered) or first.args.get("desc"):
        return False
    times = [item.id for item in rows.fields if item.on_time]
    windows = any(item.window is not None for item in rows.fields)
    return not windows and isinstance(first.this, exp.Column) and times == [first.this.name]


def first_along_time(node: n.Node) -> n.Node:
    """The node with such a top-N as numbers and a condition on them."""
    if isinstance(node, n.Project | n.Filter):
        return replace(node, input=first_along_time(node.input))
    if not isinstance(node, n.TopN) or node.windowed or node.limit is None:
        return node
    if node.keeps_one and node.partition:
        # The first row of each key has an operator of its own, which forgets keys.
        return node
    rows = node.input
    if rows.bounded or rows.changelog is not ChangelogKind.APPEND:
        return node
    return _numbered(node) if along_time(node.order, rows) else node


def _numbered(node: n.TopN) -> n.Node:
    ranked = node.rank_id is not None
    rank = node.fields[-1] if ranked else n.Field(_RANK, _RANK, "INT")
    shown = node.fields if ranked else (*node.fields, rank)
    function = exp.Window(
        this=exp.Anonymous(this=node.function, expressions=[]),
        partition_by=[part.copy() for part in node.partition],
        order=exp.Order(expressions=[part.copy() for part in node.order]),
    )
    over = n.Over(
        shown, input=node.input, functions=(function,), ttl_us=node.ttl_us, span=node.span
    )
    assert node.limit is not None, "a top-N of all rows is none"
    within = exp.LTE(this=column(rank), expression=node.limit.copy())
    first = n.Filter(shown, input=over, condition=within, span=node.span)
    if ranked:
        return first
    expressions = tuple(column(item) for item in node.fields)
    return n.Project(node.fields, input=first, expressions=expressions, span=node.span)
