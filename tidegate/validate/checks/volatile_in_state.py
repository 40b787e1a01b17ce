"""A value that differs on replay must not reach state or keys: restarts would change results."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import by_id, volatile
from tidegate.sql.dialect import own_span
from tidegate.types import ChangelogKind, Span
from tidegate.validate.finding import Finding, Subject, unbounded

_KEPT = "{} gets another value when an epoch is replayed, and it would be kept in state"


def volatile_in_state(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not unbounded(node):
            continue
        changing = _breaks_changes(node)
        if changing is not None:
            yield _finding(
                node,
                "a row that is retracted must equal the row that was given, but an expression "
                "here gets another value each time",
                own_span(changing),
            )
        kept = node.kept_expressions
        if kept is None:
            continue
        known = by_id(tuple(item for child in node.inputs for item in child.fields))
        columns = sorted({item.name for child in node.inputs for item in _volatile_fields(child)})
        if columns:
            yield _finding(node, _KEPT.format(f"the column {', '.join(columns)}"))
        elif any(volatile(part, known) for part in kept):
            yield _finding(node, _KEPT.format("an expression here"))
        elif any(_volatile_filter(child) for child in node.inputs):
            yield _finding(node, _KEPT.format("a condition below"))


def _breaks_changes(node: n.Node) -> exp.Expr | None:
    """What in a stateless step over a changelog would change a row between + and -."""
    if not isinstance(node, n.Filter | n.Project | n.Explode):
        return None
    if node.input.changelog is ChangelogKind.APPEND:
        return None
    if isinstance(node, n.Filter):
        parts: tuple[exp.Expr, ...] = (node.condition,)
    else:
        parts = (node.generator,) if isinstance(node, n.Explode) else node.expressions
    return next((part for part in parts if volatile(part, {})), None)


def _volatile_fields(node: n.Node) -> list[n.Field]:
    return [item for item in node.fields if item.volatile]


def _volatile_filter(node: n.Node) -> bool:
    """A filter on the way down to the next operator that would let other rows through."""
    while isinstance(node, n.Filter | n.Project | n.Window | n.Explode):
        if isinstance(node, n.Filter) and volatile(node.condition, by_id(node.input.fields)):
            return True
        node = node.input
    return False


def _finding(node: n.Node, message: str, span: Span | None = None) -> Finding:
    return Finding(
        "TG-414",
        message,
        node,
        "use a column of the source, such as its event time; for processing time use a window over "
        "PROCTIME(), whose value is logged with the epoch.",
        span,
    )
