"""on_error = 'dead_letter': whoever reads such a stream says the same."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Stream
from tidegate.errors import Place, TidegateError, ValidationError
from tidegate.plan import nodes as n
from tidegate.types import Span

CODE = "TG-422"


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
    place = Place(stream.origin.text, at.start, at.end, stream.origin.file)
    return ValidationError(CODE, message, place=place, hint=hint)
