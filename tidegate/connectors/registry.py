"""The connectors there are."""

from __future__ import annotations

from tidegate.catalog.connector import Connectors
from tidegate.connectors import blackhole, console, files, generator_spec, kafka, memory, postgres

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
