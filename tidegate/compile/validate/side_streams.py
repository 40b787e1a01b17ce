"""A stream that reads late rows runs with the stream that finds them, and takes them as rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import SideStream, Stream
from tidegate.compile.validate.finding import Finding, Subject
from tidegate.errors import Location, TidegateError, ValidationError
from tidegate.plan import nodes as n
from tidegate.plan.bind.binder import MEMBER_COLUMN
from tidegate.plan.side_streams import LateStream, late_stream
from tidegate.types import ChangelogKind, Span

LATE_READER = "TG-419"


def late_readers(stream: Stream, catalog: Catalog) -> Iterator[TidegateError]:
    """Why a stream cannot read the late rows that it reads."""
    for side, span in _late_streams(stream.plan):
        at = span or stream.statement.span
        location = Location(stream.origin.text, at.start, at.end, stream.origin.file)
        for message, hint in _reasons(side, stream, catalog):
            yield ValidationError(LATE_READER, message, location=location, hint=hint)


def _late_streams(plan: n.Node) -> Iterator[tuple[SideStream, Span | None]]:
    """The late streams of a query; those of a stream that it reads, at the name of that one."""
    for node in n.walk(plan, into_inlined=False):
        for scan in n.walk(node) if isinstance(node, n.Inlined) else [node]:
            if isinstance(scan, n.SideScan) and scan.side.is_late:
                yield scan.side, node.span


def _reasons(side: SideStream, stream: Stream, catalog: Catalog) -> Iterator[tuple[str, str]]:
    parent = catalog.get(side.parent)
    if isinstance(parent, Stream) and parent.pipeline != stream.pipeline:
        yield (
            f"the late rows of {side.parent} are found in the pipeline {parent.pipeline}, and "
            f"{stream.name} is to run in the pipeline {stream.pipeline}",
            f"CREATE STREAM {stream.name} WITH (pipeline = '{parent.pipeline}') AS …",
        )
    if side.changes:
        yield (
            f"{side.parent} reads rows that are retracted, and its late rows do not say whether "
            "they were to be added or retracted",
            f"put a sink on it: CREATE SINK late FROM {side.name} WITH (…).",
        )
    names = [column.name.lower() for column in side.columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        yield (
            f"{side.name} has two columns {twice}",
            f"rename one of them in a subquery of {side.parent}: (SELECT {twice} AS other_{twice}, "
            "… FROM …).",
        )


# ---- LATE DATA TO makes one stream, so all rows that can be too late must fit its columns.

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
    for node in {id(item.operator): item.operator for item in late.inputs}.values():
        if not isinstance(node, n.Join):
            continue
        what = None if node.kind in _KEPT else f"the {node.kind.value} join"
        # The right side of a temporal join contains versions, not changes.
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
    if any(item.rows.fields[-1].name == MEMBER_COLUMN for item in late.inputs):
        yield (
            "rows of each of the queries can be too late, and a late stream has the rows of one",
            "leave it out: late rows are counted.",
        )
    if any(isinstance(item.rows, n.Explode) and item.rows.of_sets for item in late.inputs):
        yield (
            "every row is in several sets of GROUP BY, and would be late in each of them",
            "group by all columns in a stream with LATE DATA TO, and make the sets over that one.",
        )


# ---- on_error = 'dead_letter': readers of such a stream must set it, too.

FAILING_ROW = "TG-422"


def failing_rows(stream: Stream, catalog: Catalog) -> Iterator[TidegateError]:
    """What is wrong with how a stream treats rows that fail."""
    if stream.on_error == "dead_letter":
        return
    for option in stream.statement.options:
        if option.name.lower() == "dead_letters":
            yield _error(
                stream,
                option.span,
                f"{stream.name} stops at the first row on which an expression fails, so it has no "
                "dead letters",
                "add on_error = 'dead_letter' to its options.",
            )
    for node in n.walk(stream.plan):
        if not isinstance(node, n.Inlined):
            continue
        read = catalog.get(node.name)
        if isinstance(read, Stream) and read.on_error == "dead_letter":
            yield _error(
                stream,
                node.span,
                f"{read.name} goes on after rows on which an expression fails; {stream.name}, "
                "which computes it again, would stop there",
                f"CREATE STREAM {stream.name} WITH (on_error = 'dead_letter') AS …",
            )


def _error(stream: Stream, span: Span | None, message: str, hint: str) -> TidegateError:
    at = span or stream.statement.span
    location = Location(stream.origin.text, at.start, at.end, stream.origin.file)
    return ValidationError(FAILING_ROW, message, location=location, hint=hint)
