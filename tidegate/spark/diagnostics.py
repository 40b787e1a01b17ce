"""Diagnose failed jobs: find the expression that failed and a row on which it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from tidegate.catalog.objects import ScriptText
from tidegate.columns import SELECTED
from tidegate.errors import Location, TidegateError
from tidegate.physical.planner import LeafPlan, PhysicalPlan
from tidegate.physical.stage_sql import StageSqlWriter, is_failure
from tidegate.plan import nodes as n
from tidegate.plan.bind.functions import CALLED_FUNCTION
from tidegate.spark.errors import JobFailed, advice
from tidegate.sql.dialect import DIALECT, own_span, to_sql
from tidegate.sql.expressions import call_name
from tidegate.sql.quoting import quote_identifier

# ---- Which expression of a query failed on a row, and SQL that finds the row.
#
# Spark reports the SQL of the failed expression as it stands in a stage. Search it among the
# expressions of the plan, which know where the user wrote them.

_Leaves = tuple[LeafPlan, ...]
# Returns the rows of SQL over the leaves of a stage.
Query = Callable[[str, _Leaves], DataFrame]


@dataclass(frozen=True)
class Suspect:
    """An expression that may have failed; `sql` returns one row on which it does, as JSON."""

    # The stream whose query contains it: this one, or one that it reads.
    stream: str
    expression: exp.Expr
    sql: str
    leaves: _Leaves


def suspects(plan: PhysicalPlan, fragment: str) -> Iterator[Suspect]:
    """Return the positions of the failed SQL in a plan, the last stage first."""
    yield from _in_stage(plan, plan.node, plan.leaves, fragment)
    for operator in plan.operators:
        for fed in operator.ports:
            below = _Below(plan, fed.port.node, fed.leaves)
            for part in _matching(_expressions(operator.node), fragment):
                yield below.suspect(operator.node, part, part)
            yield from _in_stage(plan, fed.port.node, fed.leaves, fragment)
    for lookup in plan.lookups:
        yield from _in_stage(plan, lookup.node.left, lookup.leaves, fragment)


def _in_stage(
    plan: PhysicalPlan, node: n.Node, leaves: _Leaves, fragment: str
) -> Iterator[Suspect]:
    """Return the suspects of a node and of the nodes below it in the same stage."""
    if node in {leaf.node for leaf in leaves}:
        return
    for child in node.inputs:
        yield from _in_stage(plan, child, leaves, fragment)
    if len(node.inputs) != 1:
        return
    below = _Below(plan, node.inputs[0], leaves)
    for whole in _expressions(node):
        for part in _matching([whole], fragment):
            yield below.suspect(node, whole, part)


@dataclass(frozen=True)
class _Below:
    """The rows on which an expression is computed."""

    plan: PhysicalPlan
    node: n.Node
    leaves: _Leaves

    def suspect(self, owner: n.Node, whole: exp.Expr, part: exp.Expr) -> Suspect:
        writer = StageSqlWriter({leaf.node: leaf.view for leaf in self.leaves}.get)
        columns = [
            f"{quote_identifier(item.id)} AS {quote_identifier(item.name)}"
            for item in self.node.fields
        ]
        row = f"to_json(struct({', '.join(columns)}), map('ignoreNullFields', 'false'))"
        failed = f"CASE WHEN {SELECTED} THEN {is_failure(to_sql(whole))} ELSE false END"
        sql = f"SELECT {row} AS row FROM {writer.child(self.node)} WHERE {failed} LIMIT 1"
        return Suspect(_stream_of(self.plan, owner), part, sql, self.leaves)


def _stream_of(plan: PhysicalPlan, target: n.Node) -> str:
    """Return the stream whose query contains a node."""

    def search(node: n.Node, stream: str) -> str | None:
        if node is target:
            return stream
        inside = node.name if isinstance(node, n.StreamReference) else stream
        return next((s for child in node.inputs if (s := search(child, inside))), None)

    return search(plan.node, plan.stream) or plan.stream


def _matching(trees: list[exp.Expr], fragment: str) -> Iterator[exp.Expr]:
    text = _without_spaces(fragment)
    for tree in trees:
        for part in tree.walk():
            if _without_spaces(to_sql(part)) == text:
                yield part
                break


def _without_spaces(sql: str) -> str:
    return "".join(sql.split()).lower()


def _expressions(holder: object) -> list[exp.Expr]:
    """Return the expressions that a node holds directly, not those of other nodes."""
    if isinstance(holder, exp.Expr):
        return [holder]
    if isinstance(holder, tuple):
        return [expression for item in holder for expression in _expressions(item)]
    if not is_dataclass(holder):
        return []
    values = [getattr(holder, item.name) for item in fields(holder)]
    return [
        expression
        for value in values
        if not isinstance(value, n.Node | n.Field)
        for expression in _expressions(value)
    ]


# The maximum length of a row in messages.
_SHOWN = 500


@dataclass(frozen=True)
class FailingRow:
    """The expression that failed, with its stream, and the row as JSON if one was found."""

    stream: str
    expression: exp.Expr
    row: str | None


def failing_row(plan: PhysicalPlan, failed: JobFailed, query: Query) -> FailingRow | None:
    """Find the failed expression and a row; None if Spark's error does not identify it."""
    fragment = _fragment(failed.error)
    candidates = list(suspects(plan, fragment)) if fragment is not None else []
    for suspect in candidates:
        row = _row(query, suspect)
        if row is not None:
            return FailingRow(suspect.stream, suspect.expression, row)
    if len(candidates) == 1:
        return FailingRow(candidates[0].stream, candidates[0].expression, None)
    return None


def _fragment(error: BaseException) -> str | None:
    """Return the SQL that failed, as the stage contains it."""
    if not isinstance(error, PySparkException) or advice(error) is None:
        return None
    return next((str(part.fragment()) for part in error.getQueryContext() if part.fragment()), None)


def _row(query: Query, suspect: Suspect) -> str | None:
    try:
        rows = query(suspect.sql, suspect.leaves).collect()
    except (PySparkException, Py4JError):
        # Some rows cannot be printed, and another expression may fail before this one.
        return None
    shown = str(rows[0]["row"]) if rows else None
    return shown if shown is None or len(shown) <= _SHOWN else shown[:_SHOWN] + "…"


# ---- Errors with the failed expression, its position in the script, and the row.

ScriptLookup = Callable[[str], ScriptText | None]


def with_failing_row(
    error: TidegateError, failing_row: FailingRow, script_of: ScriptLookup
) -> TidegateError:
    """Return the error with its location, and the row in its message."""
    row = f", in the row {failing_row.row}" if failing_row.row is not None else ""
    location = _place(failing_row.expression, script_of(failing_row.stream))
    return type(error)(error.code, error.message + row, location=location, hint=error.hint)


def _place(expression: exp.Expr, script: ScriptText | None) -> Location | None:
    """Return the location of an expression, or of the smallest enclosing one with a known span."""
    tree: exp.Expr | None = expression
    while tree is not None and script is not None:
        span = own_span(tree)
        if span is not None and _stands_there(tree, script.text[span.start : span.end]):
            return Location(script.text, span.start, span.end, script.file)
        tree = tree.parent
    return None


def _stands_there(expression: exp.Expr, text: str) -> bool:
    """Return True if a text is an expression of a plan as the user wrote it."""
    try:
        written = parse_one(text, dialect=DIALECT)
    except SqlglotError:
        return False
    function = expression.meta.get(CALLED_FUNCTION)
    if function is not None:
        return call_name(written) == str(function).upper()
    return _fits(expression, written)


def _fits(planned: Any, written: Any) -> bool:
    """Return True if two trees are equal except for columns: those of a plan may match anything."""
    if isinstance(planned, exp.Column):
        return isinstance(written, exp.Expr)
    if isinstance(planned, list) and isinstance(written, list):
        same = len(planned) == len(written)
        return same and all(_fits(p, w) for p, w in zip(planned, written, strict=True))
    if not isinstance(planned, exp.Expr) or type(planned) is not type(written):
        return bool(planned == written)
    names = {name for name, value in (*planned.args.items(), *written.args.items()) if value}
    return all(_fits(planned.args.get(name), written.args.get(name)) for name in names)
