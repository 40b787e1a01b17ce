"""A sink and what it writes: a stream that it can take, with options that fit."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.catalog.connector import SinkSpec
from tidegate.catalog.objects import Declared, Function, LookupTable, SideStream, Sink, Stream
from tidegate.errors import CatalogError, Place, TidegateError
from tidegate.sql import statements as st
from tidegate.validate.checks.sink_changelog import sink_changelog
from tidegate.validate.checks.sink_options import sink_options
from tidegate.validate.validator import Mode

Found = list[TidegateError]


def sink_findings(
    sink: Sink, spec: SinkSpec, source: Declared, others: Sequence[Sink], mode: Mode
) -> tuple[Found, Found]:
    """Errors and warnings."""
    if not isinstance(source, Stream | SideStream):
        return [_no_stream(sink, source)], []
    plan = source.plan if isinstance(source, Stream) else None
    wrong: Found = list(sink_options(sink, spec, plan, others))
    if plan is None or wrong:
        return wrong, []
    found = None if mode is Mode.OFF else sink_changelog(sink, spec, plan)
    if found is None:
        return [], []
    return ([], [found]) if mode is Mode.WARN else ([found], [])


def _no_stream(sink: Sink, source: Declared) -> CatalogError:
    """The error of a sink that is to write something else."""
    hint = f"CREATE STREAM all_{source.name} AS SELECT * FROM {source.name}; then write it."
    if isinstance(source, LookupTable):
        hint = f"join a stream with it, and write that: FROM my_stream JOIN {source.name}."
    if isinstance(source, Function):
        hint = f"call it in a stream, and write that: SELECT {source.name}(…) AS x FROM …."
    message = f"{source.name} is a {source.kind.value.lower()}, and sinks write streams"
    assert isinstance(sink.statement, st.CreateSink), "a sink was declared by CREATE SINK"
    span = sink.statement.source_span
    place = Place(sink.origin.text, span.start, span.end, sink.origin.file)
    return CatalogError("TG-201", message, place=place, hint=hint)
