"""The streams whose rows are kept: materialised views, and streams with a memory sink."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import SideStream, Sink, Stream
from tidegate.connectors import view
from tidegate.connectors.view import Shape
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.planning import pipeline_of
from tidegate.runtime.reconciliation import shape_of
from tidegate.storage import NotThere
from tidegate.types import ChangelogKind

_FILE = "_readable.json"


@dataclass(frozen=True)
class Readable:
    """A stream that can be queried, and where its rows are."""

    name: str
    pipeline: str
    # The stream that runs, as manifests know it: late rows come from their parent's.
    stream: str
    sink: str
    connector: str
    shape: Shape
    # What its rows are, if it is not a stream that runs by itself.
    holds: str | None = None

    @property
    def is_view(self) -> bool:
        return self.connector == view.CONNECTOR


def readable(catalog: Catalog, sinks: Iterable[Sink]) -> dict[str, Readable]:
    """By the names of streams and of memory sinks, in lower case.

    A view is preferred, since nothing of it expires.
    """
    found: dict[str, Readable] = {}
    for sink in sinks:
        item = None
        if sink.connector in (view.CONNECTOR, "memory"):
            item = _readable(catalog, sink)
        if item is None:
            continue
        if not sink.implied:
            found[sink.name.lower()] = item
        if item.is_view or sink.source.lower() not in found:
            found[sink.source.lower()] = item
    return found


def _readable(catalog: Catalog, sink: Sink) -> Readable | None:
    stream = catalog.get(sink.source)
    if isinstance(stream, Stream):
        shape, owner = shape_of(stream), stream.name
    elif isinstance(stream, SideStream):
        columns = tuple((column.name, column.type or "VOID") for column in stream.columns)
        shape = Shape(ChangelogKind.APPEND, (), columns)
        owner = stream.parent if stream.of_stream else stream.name
    else:
        return None
    pipeline = pipeline_of(catalog.get(owner))
    holds = stream.holds.value if isinstance(stream, SideStream) else None
    return Readable(stream.name, pipeline, owner.lower(), sink.name, sink.connector, shape, holds)


# For other processes


def store_readable(directory: DataDirectory, found: Mapping[str, Readable]) -> None:
    """Say in the data directory what can be queried there."""
    content = [
        {"as": name, **vars(item), "shape": item.shape.to_json()} for name, item in found.items()
    ]
    data = json.dumps(content, indent=1).encode()
    try:
        known = directory.store.get(_FILE)
    except NotThere:
        known = b""
    if known != data:
        directory.store.put(_FILE, data, durable=False)


def stored_readable(directory: DataDirectory) -> dict[str, Readable]:
    """What can be queried in a data directory that another process may be using."""
    try:
        content: list[dict[str, Any]] = json.loads(directory.store.get(_FILE))
    except NotThere:
        return {}
    return {
        item.pop("as"): Readable(**{**item, "shape": Shape.of_json(item["shape"])})
        for item in content
    }
