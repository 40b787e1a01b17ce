"""Options of a sink that only make sense with its stream, or with the other sinks."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from pathlib import Path

from tidegate.catalog.connector import SinkSpec
from tidegate.catalog.objects import Sink, Source
from tidegate.catalog.options import OptionType
from tidegate.errors import CatalogError, Place, did_you_mean
from tidegate.plan import nodes as n
from tidegate.types import Span


def sink_options(
    sink: Sink, spec: SinkSpec, plan: n.Node | None, others: Iterable[Sink]
) -> Iterator[CatalogError]:
    """Columns that the stream does not have, and places that are written or read already."""
    place = _place(sink, spec)
    if plan is not None:
        yield from _unknown_columns(sink, spec, [item.name for item in plan.fields])
        yield from _own_input(sink, spec, plan, place)
    for other in others:
        if not place or other.connector != sink.connector:
            continue
        if _place(other, spec) == place:
            written = ", ".join(str(other.options[name]) for name in spec.exclusive)
            message = f"the sink {other.name} already writes {written}"
            hint = f"give {sink.name} another {spec.exclusive[0]}."
            yield _error(sink, "TG-210", message, sink.statement.name_span, hint)


def _place(declared: Sink | Source, spec: SinkSpec) -> list[object]:
    """What no other sink may write; out, ./out/ and file:out are one place."""
    return [_normal(declared.options[name]) for name in spec.exclusive]


def _normal(value: object) -> object:
    if not isinstance(value, str):
        return value
    scheme, separator, rest = value.partition("://")
    if separator and scheme != "file":
        return f"{scheme}://{posixpath.normpath(rest)}"
    return posixpath.normpath(str(Path.cwd() / value.removeprefix("file:")))


def _own_input(
    sink: Sink, spec: SinkSpec, plan: n.Node, place: list[object]
) -> Iterator[CatalogError]:
    """A stream that reads what it writes never ends."""
    for node in n.walk(plan):
        if not isinstance(node, n.Scan) or node.source.connector != sink.connector:
            continue
        same = bool(place) and _place(node.source, spec) == place
        if same or spec.is_read_by(sink.options, node.source.options):
            option = spec.exclusive[0] if same else "topic"
            read = node.source.options[option]
            message = f"the stream {sink.source} reads {read} through the source "
            message += f"{node.source.name}: written there, its rows would come back in"
            hint = f"give {sink.name} another {option}."
            yield _error(sink, "TG-210", message, sink.statement.name_span, hint)
            return


def _unknown_columns(sink: Sink, spec: SinkSpec, columns: list[str]) -> Iterator[CatalogError]:
    known = {name.lower() for name in columns}
    listing = {option.name for option in spec.options if option.type is OptionType.NAMES}
    spans = {option.name.lower(): option.value_span for option in sink.statement.options}
    for option in listing & set(spans):
        for name in sink.options[option]:
            if name.lower() not in known:
                hint = did_you_mean(name, columns, f"columns of {sink.source}")
                message = f"{option}: {sink.source} has no column {name}"
                yield _error(sink, "TG-301", message, spans[option], hint)


def _error(sink: Sink, code: str, message: str, span: Span, hint: str) -> CatalogError:
    place = Place(sink.origin.text, span.start, span.end, sink.origin.file)
    return CatalogError(code, message, place=place, hint=hint)
