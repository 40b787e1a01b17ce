"""A stream that reads late rows runs with the stream that finds them, and takes them as rows."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import SideStream, Stream
from tidegate.errors import Place, TidegateError, ValidationError
from tidegate.plan import nodes as n
from tidegate.types import Span

CODE = "TG-419"


def late_readers(stream: Stream, catalog: Catalog) -> Iterator[TidegateError]:
    """Why a stream cannot read the late rows that it reads."""
    for side, span in _late_streams(stream.plan):
        at = span or stream.statement.span
        place = Place(stream.origin.text, at.start, at.end, stream.origin.file)
        for message, hint in _reasons(side, stream, catalog):
            yield ValidationError(CODE, message, place=place, hint=hint)


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
