"""LATE DATA TO makes one stream, so all rows that can be too late must fit its columns."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.plan.bind.binder import SIDE
from tidegate.plan.side_streams import LateStream, late_stream
from tidegate.types import ChangelogKind
from tidegate.validate.finding import Finding, Subject

# Joins of which late rows can be kept.
_KEPT = (n.JoinKind.INTERVAL, n.JoinKind.WINDOW, n.JoinKind.TEMPORAL, n.JoinKind.ASOF)


def late_rows_of_several(subject: Subject) -> Iterable[Finding]:
    emit = subject.emit
    if emit is None or emit.late_to is None:
        return
    late = late_stream(subject.plan)
    for message, hint in (*_clash(late), *_join(late), *_copies(late)):
        text = f"LATE DATA TO {emit.late_to}: {message}"
        yield Finding("TG-418", text, subject.plan, hint, emit.late_to_span)


def _clash(late: LateStream) -> Iterable[tuple[str, str]]:
    for one, other in late.clashes[:1]:
        what = f"two columns {other.name} of one input"
        if one.type != other.type:
            what = f"a column {one.name} of type {one.type} and one of type {other.type}"
        yield (
            f"rows can be too late in {len(late.inputs)} places of this query, and its late stream "
            f"cannot have {what}",
            f"rename one of them in a subquery below: (SELECT {other.name} AS other_{other.name}, "
            "… FROM …).",
        )


def _join(late: LateStream) -> Iterable[tuple[str, str]]:
    for node in {id(item.judge): item.judge for item in late.inputs}.values():
        if not isinstance(node, n.Join):
            continue
        what = None if node.kind in _KEPT else f"the {node.kind.value} join"
        # The right side of a temporal join is versions, which are no changes.
        sides = node.inputs[:1] if node.kind is n.JoinKind.TEMPORAL else node.inputs
        if any(side.changelog is not ChangelogKind.APPEND for side in sides):
            what = "a join of changes"
        if what is not None:
            yield (
                f"late rows of {what} are counted, and cannot be kept yet",
                "leave it out, or give a stream below the join a LATE DATA TO of its own.",
            )


def _copies(late: LateStream) -> Iterable[tuple[str, str]]:
    """Late rows that are not rows of an input: copies, or members of a set operation."""
    if any(item.rows.fields[-1].name == SIDE for item in late.inputs):
        yield (
            "rows of each of the queries can be too late, and a late stream has the rows of one",
            "leave it out: late rows are counted.",
        )
    if any(isinstance(item.rows, n.Explode) and item.rows.of_sets for item in late.inputs):
        yield (
            "every row is in several sets of GROUP BY, and would be late in each of them",
            "group by all columns in a stream with LATE DATA TO, and make the sets over that one.",
        )
