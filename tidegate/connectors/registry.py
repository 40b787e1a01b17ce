"""All connectors: their specs, and the functions that open them.

A new connector is added here. The functions import the implementation when a pipeline opens it, so
that `tidegate check` loads only the specs and no client library.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.catalog.connector import Connectors
from tidegate.connectors import debug_sinks, view
from tidegate.connectors.base import (
    LookupConnector,
    LookupContext,
    LookupFactory,
    SinkConnector,
    SinkContext,
    SinkFactory,
    SourceConnector,
    SourceContext,
    SourceFactory,
)
from tidegate.connectors.delta import options as delta_options
from tidegate.connectors.files import spec as files_spec
from tidegate.connectors.generator import generator
from tidegate.connectors.generator import options as generator_options
from tidegate.connectors.kafka import spec as kafka_spec
from tidegate.connectors.memory import connector as memory
from tidegate.connectors.postgres import spec as postgres_spec

_ALL = (
    files_spec.SPEC,
    memory.SPEC,
    generator_options.SPEC,
    debug_sinks.CONSOLE,
    debug_sinks.BLACKHOLE,
    kafka_spec.SPEC,
    postgres_spec.SPEC,
    delta_options.SPEC,
)

CONNECTORS: Connectors = {spec.name: spec for spec in _ALL}


def _files_source(context: SourceContext) -> SourceConnector:
    from tidegate.connectors.files.source import FilesSource

    return FilesSource(context)


def _files_sink(context: SinkContext) -> SinkConnector:
    from tidegate.connectors.files.sink import FilesSink

    return FilesSink(context)


def _kafka_source(context: SourceContext) -> SourceConnector:
    from tidegate.connectors.kafka.source import KafkaSource

    return KafkaSource(context)


def _kafka_sink(context: SinkContext) -> SinkConnector:
    from tidegate.connectors.kafka.sink import KafkaSink

    return KafkaSink(context)


def _postgres_source(context: SourceContext) -> SourceConnector:
    from tidegate.connectors.postgres import source as postgres_source

    return postgres_source.open_source(context)


def _postgres_sink(context: SinkContext) -> SinkConnector:
    from tidegate.connectors.postgres import sink as postgres_sink

    return postgres_sink.open_sink(context)


def _delta_sink(context: SinkContext) -> SinkConnector:
    from tidegate.connectors.delta import table_sink as delta_sink

    return delta_sink.open_sink(context)


def _delta_source(context: SourceContext) -> SourceConnector:
    from tidegate.connectors.delta import table_source as delta_source

    return delta_source.open_source(context)


def _files_lookup(context: LookupContext) -> LookupConnector:
    from tidegate.connectors.files import lookup as files_lookup

    return files_lookup.open_lookup(context)


def _postgres_lookup(context: LookupContext) -> LookupConnector:
    from tidegate.connectors.postgres import lookup as postgres_lookup

    return postgres_lookup.open_lookup(context)


def _memory_lookup(context: LookupContext) -> LookupConnector:
    from tidegate.connectors.memory import table as memory_lookup

    return memory_lookup.open_lookup(context)


# Connectors that can run. Other roles in `CONNECTORS` are only checked and explained.
SOURCES: Mapping[str, SourceFactory] = {
    "files": _files_source,
    "memory": memory.open_source,
    "generator": generator.open_source,
    "kafka": _kafka_source,
    "postgres": _postgres_source,
    "delta": _delta_source,
}
SINKS: Mapping[str, SinkFactory] = {
    "files": _files_sink,
    "memory": memory.open_sink,
    "console": debug_sinks.open_console,
    "blackhole": debug_sinks.open_blackhole,
    "kafka": _kafka_sink,
    "postgres": _postgres_sink,
    "delta": _delta_sink,
    view.CONNECTOR: view.open_sink,
}
LOOKUPS: Mapping[str, LookupFactory] = {
    "files": _files_lookup,
    "memory": _memory_lookup,
    "postgres": _postgres_lookup,
}
