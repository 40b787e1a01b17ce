"""What a check sees and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sqlglot import exp

from tidegate.errors import Location, ValidationError
from tidegate.plan import nodes as n
from tidegate.sql.dialect import to_sql
from tidegate.sql.statements import EmitClause
from tidegate.types import Span


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a plan: where, why, and the SQL that would work."""

    code: str
    message: str
    node: n.Node
    hint: str
    span: Span | None = None

    def error(self, text: str, file: str | None, fallback: Span) -> ValidationError:
        span = self.span or self.node.span or fallback
        location = Location(text, span.start, span.end, file)
        return ValidationError(
            self.code, self.message, location=location, hint=self.hint, path=plan_path(self.node)
        )


@dataclass(frozen=True)
class Subject:
    """A bound stream as the checks see it: the nodes of its own query, not of those it reads."""

    plan: n.Emit

    @property
    def emit(self) -> EmitClause | None:
        return self.plan.clause

    def nodes(self) -> list[n.Node]:
        """Every node of this query; subqueries in expressions have a check of their own."""
        return n.walk(self.plan, into_inlined=False)


Check = Callable[[Subject], Iterable[Finding]]


def unbounded(node: n.Node) -> bool:
    """Whether some input of a node never ends."""
    return any(not child.bounded for child in node.inputs)


def plan_path(node: n.Node) -> str:
    """From a node down to the endless source that makes it a problem."""
    labels = [node.label()]
    while node.inputs:
        endless = [child for child in node.inputs if not child.bounded]
        node = (endless or list(node.inputs))[0]
        if not isinstance(node, n.Project | n.Filter):
            labels.append(node.label())
        if isinstance(node, n.Inlined):
            break
    return " → ".join(labels)


def written(tree: exp.Expr, node: n.Node) -> str:
    """An expression with the names of the user's columns in place of ids."""
    names = {item.id: item.name for child in node.inputs for item in child.fields}

    def named(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column):
            return exp.column(exp.to_identifier(names.get(part.name, part.name)))
        return part

    return to_sql(tree.copy().transform(named))


def example_interval() -> str:
    return "INTERVAL '1' MINUTE"


def window_advice(node: n.Aggregate) -> str:
    """How this aggregate would get a window that closes; '' where it cannot have one."""
    times = [item for item in node.input.fields if item.is_event_time]
    if not times:
        return ""
    ends = [item.name for item in times if item.role is n.Role.WINDOW_END]
    window = ends[0] if ends else f"TUMBLE({times[0].name}, {example_interval()})"
    return f"add {window} to GROUP BY, or " if node.keys else f"add GROUP BY {window}, or "


def table_name(node: n.Node) -> str:
    """The first table below a node, for hints that can be pasted."""
    for below in n.walk(node, into_inlined=False):
        if isinstance(below, n.Scan):
            return below.source.name
        if isinstance(below, n.Inlined):
            return below.name
    return "my_source"


def time_column(node: n.Node) -> str:
    """The name of an event-time column below a node, for hints that can be pasted."""
    for below in n.walk(node):
        if not isinstance(below, n.Scan | n.Inlined):
            continue
        for item in below.fields:
            if item.role is n.Role.TIME and item.name != "window_time":
                return item.name
    return "ts"
