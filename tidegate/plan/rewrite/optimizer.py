"""Rules that make a plan cheaper and keep its rows: filters go down, unneeded columns go away.

They work on plans that the rules of `tidegate.plan.rewrite.semantics` have given their meaning and that were
validated, so no rejection depends on them. One rule a file; rule, file and golden share a name. The
columns of a plan keep their ids, and no rule makes a new one.
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

# A rule looks at one node, and gives it back or another in its place.
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
# Each round moves something further down, so plans are done after a few.
_MOST_ROUNDS = 20


def plan_to_run(plan: n.Emit, settings: Settings) -> n.Emit:
    """The plan of a stream as it runs: optimized, unless `SET optimizer = 'off'`."""
    return optimize(plan) if settings["optimizer"] == "on" else plan


def optimize(plan: n.Emit) -> n.Emit:
    """The plan after all rules, applied until nothing changes."""
    try:
        return _optimize(plan)
    except RecursionError:
        # A plan too deep for the rules is right as it is.
        return plan


def _optimize(plan: n.Emit) -> n.Emit:
    for _ in range(_MOST_ROUNDS):
        before = plan
        plan = _if_kept(plan, apply(plan, RULES))
        plan = _if_kept(plan, prune(plan))
        if plan is before:
            break
    return plan


def apply(plan: n.Emit, rules: tuple[Rule, ...]) -> n.Emit:
    """The plan with rules applied to each node, from the root down."""
    judges = _kept_judges(plan)
    changed = _descend(plan, rules, judges)
    assert isinstance(changed, n.Emit), "the root of a plan emits"
    return changed


def prune(plan: n.Emit) -> n.Emit:
    """The plan without the columns that nobody needs."""
    changed = prune_columns(plan, _kept_judges(plan))
    assert isinstance(changed, n.Emit), "the root of a plan emits"
    return changed


def _descend(node: n.Node, rules: tuple[Rule, ...], judges: LateOperators) -> n.Node:
    # What is below a node is still as it was, so the judges among it are known by identity.
    changed = _fixpoint(node, rules, judges)
    inputs = tuple(_descend(child, rules, judges) for child in changed.inputs)
    same = all(one is other for one, other in zip(inputs, changed.inputs, strict=True))
    return changed if same else changed.with_inputs(*inputs)


def _fixpoint(node: n.Node, rules: tuple[Rule, ...], judges: LateOperators) -> n.Node:
    """The node after rules that are applied until none changes it."""
    while True:
        before = node
        for rule in rules:
            node = rule(node, judges)
        if node is before:
            return node


def _kept_judges(plan: n.Emit) -> LateOperators:
    """The operators whose late rows go to a stream of their own."""
    late_to = plan.clause is not None and plan.clause.late_to is not None
    return (
        frozenset(found.operator for found in late_stream(plan).inputs) if late_to else frozenset()
    )


def _if_kept(before: n.Emit, after: n.Emit) -> n.Emit:
    """What a stream promises was checked and told: a plan that promises more is not the same."""
    same = _promises(before) == _promises(after)
    return after if same else before


def _promises(plan: n.Emit) -> tuple[object, ...]:
    return plan.bounded, plan.has_watermark, plan.changelog, plan.key


__all__ = ["RULES", "Rule", "apply", "optimize", "plan_to_run", "prune"]
