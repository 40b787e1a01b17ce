"""A condition on the keys of a GROUP BY drops rows instead of groups."""

from __future__ import annotations

from tidegate.plan import nodes as n
from tidegate.plan.optimise.expressions import substitute
from tidegate.plan.optimise.filters import Judges, Translate, filtered, movable, split, through
from tidegate.plan.scope import referenced


def push_filter_through_aggregate(node: n.Node, judges: Judges) -> n.Node:
    if not isinstance(node, n.Filter) or not isinstance(node.input, n.Aggregate):
        return node
    aggregate = node.input
    if not movable(node) or aggregate in judges:
        return node
    window = aggregate.grouped_window
    if window is None:
        return through(node, _on_keys(aggregate, set()))
    # The aggregate makes the windows of its GROUP BY itself, so nothing comes in between.
    translate = _on_keys(aggregate, {item.id for item in window.fields[-3:]})
    stays, goes = split(node.condition, window.input, translate)
    if not goes:
        return node
    below = window.with_inputs(filtered(window.input, goes, node))
    return filtered(aggregate.with_inputs(below), stays, node)


def _on_keys(aggregate: n.Aggregate, made: set[str]) -> Translate:
    """A condition on keys as one on the rows; not on columns that are made in between."""
    pairs = zip(aggregate.key_fields, aggregate.keys, strict=True)
    mapping = {item.id: key for item, key in pairs if not referenced(key) & made}
    return lambda piece: substitute(piece, mapping)
