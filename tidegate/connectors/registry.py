"""The connectors there are."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.catalog.connector import Connectors
from tidegate.connectors import (
    blackhole,
    console,
    delta,
    files,
    generator,
    generator_spec,
    kafka,
    memory,
    postgres,
    view,
)
from tidegate.connectors.protocols import (
    LookupContext,
    LookupFactory,
    OpenLookup,
    OpenSink,
    OpenSource,
    SinkContext,
    SinkFactory,
    SourceContext,
    SourceFactory,
)

_ALL = (
    files.SPEC,
    memory.SPEC,
    generator_spec.SPEC,
    console.SPEC,
    blackhole.SPEC,
    kafka.SPEC,
    postgres.SPEC,
    delta.SPEC,
)

CONNECTORS: Connectors = {spec.name: spec for spec in _ALL}


def _files_source(context: SourceContext) -> OpenSource:
    from tidegate.connectors.files_source import FilesSource

    return FilesSource(context)


def _files_sink(context: SinkContext) -> OpenSink:
    from tidegate.connectors.files_sink import FilesSink

    return FilesSink(context)


def _kafka_source(context: SourceContext) -> OpenSource:
    from tidegate.connectors.kafka_source import KafkaSource

    return KafkaSource(context)


def _kafka_sink(context: SinkContext) -> OpenSink:
    from tidegate.connectors.kafka_sink import KafkaSink

    return KafkaSink(context)


def _postgres_source(context: SourceContext) -> OpenSource:
    from tidegate.connectors import postgres_source

    return postgres_source.open_source(context)


def _postgres_sink(context: SinkContext) -> OpenSink:
    from tidegate.connectors import postgres_sink

    return postgres_sink.open_sink(context)


def _delta_sink(context: SinkContext) -> OpenSink:
    from tidegate.connectors import delta_sink

    return delta_sink.open_sink(context)


def _delta_source(context: SourceContext) -> OpenSource:
    from tidegate.connectors import delta_source

    return delta_source.open_source(context)


def _files_lookup(context: LookupContext) -> OpenLookup:
    from tidegate.connectors import files_lookup

    return files_lookup.open_lookup(context)


def _postgres_lookup(context: LookupContext) -> OpenLookup:
    from tidegate.connectors import postgres_lookup

    return postgres_lookup.open_lookup(context)


def _memory_lookup(context: LookupContext) -> OpenLookup:
    from tidegate.connectors import memory_lookup

    return memory_lookup.open_lookup(context)


# What can be read and written today; the others are checked and explained only.
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
    "console": console.open_sink,
    "blackhole": blackhole.open_sink,
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
