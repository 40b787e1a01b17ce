"""LATE DATA TO makes one stream, so one operator must find the rows that are in it."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.plan.late import first_judges, late_rows_of
from tidegate.plan.set_operations import SIDE
from tidegate.validate.finding import Finding, Subject


def late_rows_of_several(subject: Subject) -> Iterable[Finding]:
    emit = subject.emit
    if emit is None or emit.late_to is None:
        return
    judges = first_judges(subject.plan)
    joins = [node for node in judges if isinstance(node, n.Join)]
    if joins:
        yield Finding(
            "TG-418",
            f"LATE DATA TO {emit.late_to}: rows of both sides of the join can be too late, and a "
            "late stream has the rows of one",
            subject.plan,
            "leave it out: late rows are counted; a window below the join may have its own.",
            emit.late_to_span,
        )
    elif len(judges) > 1:
        yield Finding(
            "TG-418",
            f"LATE DATA TO {emit.late_to}: rows can be too late in {len(judges)} places of this "
            "query, and a late stream has the rows of one",
            subject.plan,
            "make each of them a stream with a LATE DATA TO of its own, and read those streams.",
            emit.late_to_span,
        )
    elif any(late_rows_of(node).fields[-1].name == SIDE for node in judges):
        yield Finding(
            "TG-418",
            f"LATE DATA TO {emit.late_to}: rows of each of the queries can be too late, and a late "
            "stream has the rows of one",
            subject.plan,
            "leave it out: late rows are counted.",
            emit.late_to_span,
        )
    elif any(_copied(node) for node in judges):
        yield Finding(
            "TG-418",
            f"LATE DATA TO {emit.late_to}: every row is in several sets of GROUP BY, and would be "
            "late in each of them",
            subject.plan,
            "group by all columns in a stream with LATE DATA TO, and make the sets over that one.",
            emit.late_to_span,
        )


def _copied(judge: n.Node) -> bool:
    """Whether the rows that come late are copies, one per grouping set."""
    below = late_rows_of(judge)
    return isinstance(judge, n.Aggregate) and isinstance(below, n.Explode) and below.of_sets
