"""The connectors there are."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.catalog.connector import Connectors
from tidegate.connectors import blackhole, console, files, generator_spec, kafka, memory, postgres
from tidegate.runtime.connector import SinkFactory, SourceReader

_ALL = (
    files.SPEC,
    memory.SPEC,
    generator_spec.SPEC,
    console.SPEC,
    blackhole.SPEC,
    kafka.SPEC,
    postgres.SPEC,
)

CONNECTORS: Connectors = {spec.name: spec for spec in _ALL}

# What can be read and written today; the others are checked and explained only.
READERS: Mapping[str, SourceReader] = {
    "files": files.read,
    "memory": memory.read,
    "generator": generator_spec.read,
}
WRITERS: Mapping[str, SinkFactory] = {
    "files": files.write,
    "memory": memory.write,
    "console": console.write,
    "blackhole": blackhole.write,
}
