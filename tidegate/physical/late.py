"""LATE DATA TO: the rows that operators find too late, with the columns of one stream."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tidegate.catalog.objects import Column, SideStream
from tidegate.physical.fingerprint import canonical
from tidegate.physical.refusal import Refusal, Unrunnable
from tidegate.physical.typed import Types
from tidegate.plan import nodes as n
from tidegate.plan.side_streams import LateStream, late_stream
from tidegate.sql.quoting import quoted

if TYPE_CHECKING:
    from tidegate.operators.operator import Operator


def require_fitting(late: LateStream, node: n.Node) -> None:
    """Refuse columns whose types turn out to differ; the validator knows declared types alone."""
    for one, other in late.clashes:
        error = Unrunnable(
            Refusal(
                f"rows can be too late in {len(late.inputs)} places of this query, and their "
                f"columns {one.name} have the types {one.type} and {other.type}",
                "CAST one of them to the type of the other, or rename it, in a subquery below.",
            )
        )
        error.node = node
        raise error


def typed_side(side: SideStream, plan: n.Emit) -> SideStream:
    """A late stream with the types of its columns, and what its rows mean."""
    late = late_stream(plan)
    found = [Column(item.name, item.type) for item in late.columns]
    judges = dict.fromkeys(item.judge for item in late.inputs)
    lines = [line for judge in judges for line in canonical(judge).splitlines()]
    columns = (*found, *side.columns[len(found) :])
    return replace(side, columns=columns, meaning="; ".join(lines))


def is_judge(late: LateStream | None, node: n.Node) -> bool:
    """Whether a node finds rows that a late stream wants."""
    return late is not None and any(item.judge is node for item in late.inputs)


def in_late_stream(operator: Operator, node: n.Node, late: LateStream, types: Types) -> Operator:
    """The operator of a judge, whose late rows get the columns of the stream."""
    from tidegate.operators.late_rows import with_late_columns

    if len(late.inputs) == 1:
        return operator
    stream = tuple(types.all([quoted(item.id) for item in late.columns]))
    own = [item for item in late.inputs if item.judge is node]
    return with_late_columns(operator, stream, {item.port: late.sources(item.rows) for item in own})
