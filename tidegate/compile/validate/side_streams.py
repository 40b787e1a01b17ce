"""Checks of late rows and dead letters, and of streams that read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import SideStream, Stream
from tidegate.compile.validate.finding import Finding, Subject, create_clause
from tidegate.errors import Location, TidegateError, ValidationError
from tidegate.plan import nodes as n
from tidegate.plan.bind.binder import MEMBER_COLUMN
from tidegate.plan.side_streams import LateStream, late_stream
from tidegate.types import ChangelogKind, Span

LATE_READER_CODE = "TG-419"


def late_reader_errors(stream: Stream, catalog: Catalog) -> Iterator[TidegateError]:
    """Yield the reasons why a stream cannot read late rows of another stream."""
    for side, span in _late_streams(stream.plan):
        at = span or stream.statement.span
        location = Location(stream.script.text, at.start, at.end, stream.script.file)
        for message, hint in _reasons(side, stream, catalog):
            yield ValidationError(LATE_READER_CODE, message, location=location, hint=hint)


def _late_streams(plan: n.Node) -> Iterator[tuple[SideStream, Span | None]]:
    """Yield the late streams that a query reads, also indirectly, with their spans."""
    for node in n.walk(plan, into_inlined=False):
        for scan in n.walk(node) if isinstance(node, n.StreamReference) else [node]:
            if isinstance(scan, n.SideScan) and scan.side.is_late:
                yield scan.side, node.span


def _reasons(side: SideStream, stream: Stream, catalog: Catalog) -> Iterator[tuple[str, str]]:
    parent = catalog.get(side.parent)
    if isinstance(parent, Stream) and parent.pipeline != stream.pipeline:
        yield (
            f"pipeline {parent.pipeline} emits the late rows of {side.parent}, but {stream.name} "
            f"runs in pipeline {stream.pipeline}",
            f"{create_clause(stream.statement)} {stream.name} WITH (pipeline = "
            f"'{parent.pipeline}') AS …",
        )
    if side.is_changelog:
        yield (
            f"stream {side.parent} reads a changelog, and its late rows do not record whether they "
            "insert or retract a row, so no query can read them",
            f"write them to a sink: CREATE SINK late FROM {side.name} WITH (…).",
        )
    names = [column.name.lower() for column in side.columns]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        yield (
            f"{side.name} has two columns {duplicate}",
            f"rename one of them in a subquery of {side.parent}: (SELECT {duplicate} AS "
            f"other_{duplicate}, … FROM …).",
        )


# ---- LATE DATA TO creates one stream, so late rows of all inputs must have its columns

# Kinds of joins whose late rows can be emitted.
_KINDS_WITH_LATE_ROWS = (
    n.JoinKind.INTERVAL,
    n.JoinKind.WINDOW,
    n.JoinKind.TEMPORAL,
    n.JoinKind.ASOF,
)


def late_rows_of_several(subject: Subject) -> Iterable[Finding]:
    emit = subject.emit
    if emit is None or emit.late_to is None:
        return
    late = late_stream(subject.plan)
    for message, hint in (*_column_clashes(late), *_join_problems(late), *_duplicates(late)):
        text = f"LATE DATA TO {emit.late_to}: {message}"
        yield Finding("TG-418", text, subject.plan, hint, emit.late_to_span)


def _column_clashes(late: LateStream) -> Iterable[tuple[str, str]]:
    for first, second in late.clashes[:1]:
        columns = f"two columns {second.name} of one input"
        if first.type != second.type:
            columns = f"a column {first.name} of type {first.type} and one of type {second.type}"
        yield (
            f"{len(late.inputs)} inputs of this query can have late rows, but its late stream "
            f"cannot have {columns}",
            f"rename one of them in a subquery: (SELECT {second.name} AS other_{second.name}, "
            "… FROM …).",
        )


def _join_problems(late: LateStream) -> Iterable[tuple[str, str]]:
    for node in {id(item.operator): item.operator for item in late.inputs}.values():
        if not isinstance(node, n.Join):
            continue
        join = None if node.kind in _KINDS_WITH_LATE_ROWS else f"the {node.kind.value} join"
        # The right side of a temporal join contains versions, not changes.
        sides = node.inputs[:1] if node.kind is n.JoinKind.TEMPORAL else node.inputs
        if any(side.changelog is not ChangelogKind.APPEND for side in sides):
            join = "a join of changes"
        if join is not None:
            yield (
                f"late rows of {join} can only be counted",
                "remove LATE DATA TO, or add it to a stream that the join reads.",
            )


def _duplicates(late: LateStream) -> Iterable[tuple[str, str]]:
    """Yield problems of late rows that are not rows of one input: sets of GROUP BY, UNION."""
    if any(item.rows.fields[-1].name == MEMBER_COLUMN for item in late.inputs):
        yield (
            "rows of each query can be late, but a late stream contains the rows of one query",
            "remove LATE DATA TO: late rows are still counted.",
        )
    if any(isinstance(item.rows, n.Explode) and item.rows.of_sets for item in late.inputs):
        yield (
            "every row belongs to several sets of GROUP BY, and would be late in each of them",
            "group by all columns in a stream with LATE DATA TO, and compute the sets from it.",
        )


# ---- on_error = 'dead_letter': readers of such a stream must set it, too

FAILED_ROW_CODE = "TG-422"


def failed_row_errors(stream: Stream, catalog: Catalog) -> Iterator[TidegateError]:
    """Yield the errors of the options of a stream for rows that fail."""
    if stream.on_error == "dead_letter":
        return
    for option in stream.statement.options:
        if option.name.lower() == "dead_letters":
            yield _error(
                stream,
                option.span,
                f"stream {stream.name} stops at the first row on which an expression fails, so it "
                "has no dead letters",
                "add on_error = 'dead_letter' to its options.",
            )
    for node in n.walk(stream.plan):
        if not isinstance(node, n.StreamReference):
            continue
        other = catalog.get(node.name)
        if isinstance(other, Stream) and other.on_error == "dead_letter":
            yield _error(
                stream,
                node.span,
                f"stream {other.name} skips rows on which an expression fails (on_error = "
                f"'dead_letter'), but {stream.name}, which reads it, would stop on them",
                f"set it on {stream.name}, too: {create_clause(stream.statement)} {stream.name} "
                "WITH (on_error = 'dead_letter') AS …",
            )


def _error(stream: Stream, span: Span | None, message: str, hint: str) -> TidegateError:
    at = span or stream.statement.span
    location = Location(stream.script.text, at.start, at.end, stream.script.file)
    return ValidationError(FAILED_ROW_CODE, message, location=location, hint=hint)
