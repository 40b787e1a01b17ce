"""Applies rules that keep the rows of a plan and reduce its work.

Filters move towards the sources, and columns that are not needed are dropped. The rules run on
plans that `semantics` has rewritten and that were validated, so no rejection depends on them. A
rule keeps the ids of columns and makes no new ones. Each rule has a golden file of its name in
`tests/plan/rewrite/`.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.catalog.settings import Settings
from tidegate.plan import nodes as n
from tidegate.plan.rewrite.projections import merge_projects, prune_columns, remove_projects
from tidegate.plan.rewrite.pushdown_filters import (
    LateOperators,
    merge_filters,
    outer_join_to_inner,
    push_filter_into_join,
    push_filter_into_stream,
    push_filter_through_aggregate,
    push_filter_through_partitions,
    push_filter_through_project,
    push_filter_through_rows,
    push_filter_through_union,
    push_filter_through_window,
)
from tidegate.plan.side_streams import late_stream

# A rule returns the node that replaces a node, or the same node.
Rule = Callable[[n.Node, LateOperators], n.Node]

RULES: tuple[Rule, ...] = (
    merge_filters,
    outer_join_to_inner,
    push_filter_through_project,
    push_filter_into_stream,
    push_filter_through_window,
    push_filter_through_rows,
    push_filter_through_union,
    push_filter_through_aggregate,
    push_filter_through_partitions,
    push_filter_into_join,
    merge_projects,
    remove_projects,
)
# Plans reach a fixpoint after a few rounds.
_MAX_ROUNDS = 20


def optimized_plan(plan: n.Emit, settings: Settings) -> n.Emit:
    """Return the plan of a stream as it runs: optimized, unless `SET optimizer = 'off'`."""
    return optimize(plan) if settings["optimizer"] == "on" else plan


def optimize(plan: n.Emit) -> n.Emit:
    """Apply all rules until nothing changes."""
    original = plan
    try:
        for _ in range(_MAX_ROUNDS):
            before = plan
            plan = _unless_changed(plan, apply(plan, RULES))
            plan = _unless_changed(plan, prune(plan))
            if plan is before:
                break
    except RecursionError:
        # The plan is too deep for the rules. It is correct without them.
        return original
    return plan


def apply(plan: n.Emit, rules: tuple[Rule, ...]) -> n.Emit:
    """Apply rules to each node, from the root down."""
    changed = _apply_below(plan, rules, _late_operators(plan))
    assert isinstance(changed, n.Emit), "the root of a plan is an Emit node"
    return changed


def prune(plan: n.Emit) -> n.Emit:
    """Drop the columns that are not needed."""
    changed = prune_columns(plan, _late_operators(plan))
    assert isinstance(changed, n.Emit), "the root of a plan is an Emit node"
    return changed


def _apply_below(node: n.Node, rules: tuple[Rule, ...], late_operators: LateOperators) -> n.Node:
    # Nodes below are still unchanged, so `late_operators` can be compared by identity.
    changed = _fixpoint(node, rules, late_operators)
    inputs = tuple(_apply_below(child, rules, late_operators) for child in changed.inputs)
    same = all(one is other for one, other in zip(inputs, changed.inputs, strict=True))
    return changed if same else changed.with_inputs(*inputs)


def _fixpoint(node: n.Node, rules: tuple[Rule, ...], late_operators: LateOperators) -> n.Node:
    """Apply rules to a node until none changes it."""
    while True:
        before = node
        for rule in rules:
            node = rule(node, late_operators)
        if node is before:
            return node


def _late_operators(plan: n.Emit) -> LateOperators:
    """Return the operators whose late rows are kept by LATE DATA TO."""
    if plan.clause is None or plan.clause.late_to is None:
        return frozenset()
    return frozenset(item.operator for item in late_stream(plan).inputs)


def _unless_changed(before: n.Emit, after: n.Emit) -> n.Emit:
    """Return the new plan, or the old one if the properties of the stream would change.

    The query was validated, and readers of the stream planned, with the old properties.
    """
    return after if _properties(before) == _properties(after) else before


def _properties(plan: n.Emit) -> tuple[object, ...]:
    return plan.bounded, plan.has_watermark, plan.changelog, plan.key


__all__ = ["RULES", "Rule", "apply", "optimize", "optimized_plan", "prune"]
