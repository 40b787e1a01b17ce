"""The input and the output of checks, and helpers for messages and hints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sqlglot import exp

from tidegate.errors import Location, ValidationError
from tidegate.plan import nodes as n
from tidegate.sql.dialect import to_sql
from tidegate.sql.statements import CreateStream, EmitClause, Statement
from tidegate.types import ChangelogKind, Span


@dataclass(frozen=True)
class Finding:
    """A problem of a plan: its location, a message, and a hint with SQL that is accepted.

    `{sql}` in the message stands for the SQL of the user at `quoted`.
    """

    code: str
    message: str
    node: n.Node
    hint: str
    span: Span | None = None
    quoted: Span | None = None

    def to_error(self, text: str, file: str | None, statement: Statement) -> ValidationError:
        span = self.span or self.node.span or statement.span
        location = Location(text, span.start, span.end, file)
        hint = self.hint.replace("CREATE STREAM …", f"{create_clause(statement)} …")
        quoted = self.quoted or span
        message = self.message.replace("{sql}", f"`{text[quoted.start : quoted.end]}`")
        return ValidationError(
            self.code, message, location=location, hint=hint, path=plan_path(self.node)
        )


@dataclass(frozen=True)
class Subject:
    """The plan of a stream to check, without the plans of the streams that it reads."""

    plan: n.Emit

    @property
    def emit(self) -> EmitClause | None:
        return self.plan.clause

    def nodes(self) -> list[n.Node]:
        """Return the nodes of this query; a separate check covers subqueries in expressions."""
        return n.walk(self.plan, into_inlined=False)


EXAMPLE_INTERVAL = "INTERVAL '1' MINUTE"

Check = Callable[[Subject], Iterable[Finding]]


def unbounded(node: n.Node) -> bool:
    """Return whether an input of a node never ends."""
    return any(not child.bounded for child in node.inputs)


def plan_path(node: n.Node) -> str:
    """Return the labels from a node down to an unbounded source."""
    labels = [node.label()]
    while node.inputs:
        unbounded_inputs = [child for child in node.inputs if not child.bounded]
        node = (unbounded_inputs or list(node.inputs))[0]
        if not isinstance(node, n.Project | n.Filter):
            labels.append(node.label())
        if isinstance(node, n.StreamReference):
            break
    return " → ".join(labels)


def user_sql(tree: exp.Expr, node: n.Node) -> str:
    """Return an expression as the user wrote it: with column names instead of ids."""
    names = {item.id: item.name for child in node.inputs for item in child.fields}

    def with_name(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column):
            return exp.column(exp.to_identifier(names.get(part.name, part.name)))
        return part

    return to_sql(tree.copy().transform(with_name))


def window_hint(node: n.Aggregate) -> str:
    """Suggest a window for an aggregate; return '' if its input has no event time."""
    times = [item for item in node.input.fields if item.is_event_time]
    if not times:
        return ""
    ends = [item.name for item in times if item.role is n.Role.WINDOW_END]
    window = ends[0] if ends else f"TUMBLE({times[0].name}, {EXAMPLE_INTERVAL})"
    return f"add {window} to GROUP BY, or " if node.keys else f"add GROUP BY {window}, or "


def create_clause(statement: Statement) -> str:
    """Return the beginning of a CREATE statement for a query, for hints."""
    view = isinstance(statement, CreateStream) and statement.materialized
    return "CREATE MATERIALIZED VIEW" if view else "CREATE STREAM"


def table_name(node: n.Node) -> str:
    """Return the first table below a node, for hints that can be pasted."""
    for below in n.walk(node, into_inlined=False):
        if isinstance(below, n.Scan):
            return below.source.name
        if isinstance(below, n.StreamReference):
            return below.name
    return "my_source"


def time_column(node: n.Node) -> str | None:
    """Return the name of an event-time column below a node, for hints that can be pasted."""
    for below in n.walk(node):
        if not isinstance(below, n.Scan | n.StreamReference):
            continue
        for item in below.fields:
            if item.role is n.Role.TIME and item.name != "window_time" and item.is_event_time:
                return item.name
    return None


def windowed_table(node: n.Node) -> str | None:
    """Return the only table below a node as a window in FROM; None if it has no event time."""
    while isinstance(node, n.Unary) and not isinstance(node, n.StreamReference):
        node = node.input
    if not isinstance(node, n.Scan | n.StreamReference):
        return None
    if not node.has_watermark or node.changelog is not ChangelogKind.APPEND:
        return None
    time = time_column(node)
    return f"TUMBLE({table_name(node)}, {time}, {EXAMPLE_INTERVAL})" if time else None


def hidden_key(plan: n.Emit) -> list[str]:
    """Return the key columns that the query computes but does not select."""
    below = plan.input
    while below.key is None and isinstance(below, n.Project | n.Filter):
        below = below.input
    selected = {item.id for item in plan.fields}
    keys = [below.field(key) for key in below.key or ()]
    windows = [item for item in keys if item.window is not None]
    if any(item.window is not None and item.window.kind is n.WindowKind.SESSION for item in keys):
        # Sessions with the same end can have different starts.
        roles = (n.Role.WINDOW_START, n.Role.WINDOW_END)
        ends = [item for item in windows if item.role in roles and item.id not in selected]
    elif any(item.id in selected for item in windows):
        # Each column of another window identifies it.
        ends = []
    else:
        ends = [item for item in windows if item.role is n.Role.WINDOW_END] or windows[:1]
    missing = [item for item in keys if item.window is None and item.id not in selected]
    return [item.name for item in (*missing, *ends)]
