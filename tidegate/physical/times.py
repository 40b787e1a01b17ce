"""How far the times in the rows of an operator are behind the time at which they come out."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.plan import nodes as n


def behind_us(fields: Sequence[n.Field], closing: n.Field) -> int | None:
    """How much older other times of a row can be than the one that lets it out.

    A row that waits for the end of its window still has its own time, which lies anywhere in that
    window. Whoever reads it by that time must not take it for late. None: nobody can tell.
    """
    window = closing.window
    if window is None or all(not item.on_time or item.window == window for item in fields):
        return 0
    return None if window.kind is n.WindowKind.SESSION else window.size_us


def aggregate_behind_us(node: n.Aggregate) -> int | None:
    """The same for a GROUP BY, whose windows may also be corrected for a while."""
    lateness = (node.emit.lateness_us or 0) if node.emit is not None else 0
    closing = closing_key(node)
    if closing is None:
        return lateness
    behind = behind_us(node.key_fields, closing)
    return None if behind is None else behind + lateness


def closing_key(node: n.Aggregate) -> n.Field | None:
    """The key that tells when a group is closed."""
    below = node.input
    if isinstance(below, n.Window) and below.grouped:
        return below.fields[-2]
    found = [item for item in node.key_fields if item.closes]
    for role in (n.Role.WINDOW_END, n.Role.TIME, n.Role.WINDOW_START):
        for item in reversed(found) if role is n.Role.TIME else found:
            if item.role is role and (role is not n.Role.WINDOW_START or item.window is not None):
                return item
    return None
