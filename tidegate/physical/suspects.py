"""Which expression of a query failed on a row, and SQL that finds the row.

Spark tells the SQL of what failed, in the words of a stage. Here it is found again among the
expressions of the plan, which know where the user wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

from sqlglot import exp

from tidegate.columns import LIVE
from tidegate.physical.planner import LeafPlan, PhysicalPlan
from tidegate.physical.stage_sql import TickedWriter, is_failure
from tidegate.plan import nodes as n
from tidegate.sql.dialect import to_sql
from tidegate.sql.quoting import quoted

_Leaves = tuple[LeafPlan, ...]


@dataclass(frozen=True)
class Suspect:
    """An expression that may have failed; `sql` gives one row on which it does, as JSON."""

    # The stream whose text it is in: this one, or one that it reads.
    stream: str
    expression: exp.Expr
    sql: str
    leaves: _Leaves


def suspects(plan: PhysicalPlan, fragment: str) -> Iterator[Suspect]:
    """Where the SQL that failed stands in a plan, the last stage first."""
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
    """Those of a node and of what stands below it in the same stage."""
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
        writer = TickedWriter({leaf.node: leaf.view for leaf in self.leaves}.get)
        columns = [f"{quoted(item.id)} AS {quoted(item.name)}" for item in self.node.fields]
        row = f"to_json(struct({', '.join(columns)}), map('ignoreNullFields', 'false'))"
        failed = f"CASE WHEN {LIVE} THEN {is_failure(to_sql(whole))} ELSE false END"
        sql = f"SELECT {row} AS row FROM {writer.child(self.node)} WHERE {failed} LIMIT 1"
        return Suspect(_stream_of(self.plan, owner), part, sql, self.leaves)


def _stream_of(plan: PhysicalPlan, wanted: n.Node) -> str:
    """The stream whose query a node belongs to."""

    def found(node: n.Node, stream: str) -> str | None:
        if node is wanted:
            return stream
        inside = node.name if isinstance(node, n.Inlined) else stream
        return next((s for child in node.inputs if (s := found(child, inside))), None)

    return found(plan.node, plan.stream) or plan.stream


def _matching(trees: list[exp.Expr], fragment: str) -> Iterator[exp.Expr]:
    wanted = _squeezed(fragment)
    for tree in trees:
        for part in tree.walk():
            if _squeezed(to_sql(part)) == wanted:
                yield part
                break


def _squeezed(sql: str) -> str:
    return "".join(sql.split()).lower()


def _expressions(holder: object) -> list[exp.Expr]:
    """The expressions that a node holds, those of its parts included, but not of other nodes."""
    if isinstance(holder, exp.Expr):
        return [holder]
    if isinstance(holder, tuple):
        return [found for item in holder for found in _expressions(item)]
    if not is_dataclass(holder):
        return []
    values = [getattr(holder, item.name) for item in fields(holder)]
    return [
        found
        for value in values
        if not isinstance(value, n.Node | n.Field)
        for found in _expressions(value)
    ]
