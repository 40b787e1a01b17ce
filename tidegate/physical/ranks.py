"""Top-N as an operator runs it: the moment that closes a partition, and what cannot run."""

from __future__ import annotations

from sqlglot import exp

from tidegate.physical.stage_sql import carries_op
from tidegate.physical.times import behind_us
from tidegate.plan import nodes as n

# A window that is only sorted keeps all its rows.
ALL_ROWS = 2**62


def limit_of(node: n.TopN) -> int | None:
    """How many rows of a partition come out, if that is known."""
    if node.limit is None:
        return ALL_ROWS
    tree = node.limit.unnest()
    return int(tree.name) if isinstance(tree, exp.Literal) and tree.is_int else None


def closes_by_window(node: n.TopN) -> bool:
    """Whether each window gives its rows out once, when the watermark passes its end."""
    return node.windowed and not carries_op(node.input)


def closing_column(node: n.TopN) -> n.Field:
    """The column of a partition that says when it is complete."""
    fields = {item.id: item for item in node.input.fields}
    found = [fields[part.name] for part in node.partition if isinstance(part, exp.Column)]
    closing = [item for item in found if item.closes and item.window is not None]
    ends = [item for item in closing if item.role is not n.Role.WINDOW_START]
    return (ends or closing)[0]


def top_n_behind_us(node: n.TopN) -> int | None:
    if not closes_by_window(node):
        return 0
    return behind_us(node.fields, closing_column(node))


def top_n_refusal(node: n.TopN) -> tuple[str, str] | None:
    """Why a top-N cannot run, and what to do instead."""
    limit = limit_of(node)
    if limit is None:
        return "a limit that is not a constant cannot run yet", "write the limit as a number."
    if limit < 1:
        return "a limit below 1 leaves no rows", "write a limit of at least 1."
    if node.windowed and carries_op(node.input) and carries_op(node):
        return (
            "the top rows of windows whose rows are taken back cannot run yet",
            "rank rows that only come, such as windows that EMIT ON WINDOW CLOSE.",
        )
    if top_n_behind_us(node) is None:
        return (
            "the top rows of sessions that keep another event time cannot run yet",
            "leave that column out.",
        )
    return None
