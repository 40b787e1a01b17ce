"""Avro records on a real broker with a registry: one stream writes them, another reads them."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tests.real.kafka import Broker
from tests.support.compiling import compile_text
from tests.support.registry import PASSWORD, USER, FakeRegistry, running
from tests.support.sessions import bag, open_with, rows_of
from tidegate.catalog.objects import Sink, Source
from tidegate.catalog.settings import Settings
from tidegate.connectors.base import (
    CommittedState,
    EpochId,
    SinkContext,
    SourceContext,
    StreamSchema,
)
from tidegate.connectors.formats.lines import TEXT_BYTES
from tidegate.connectors.kafka.avro import DELETED, KEY
from tidegate.connectors.kafka.decoding import RecordDecoder
from tidegate.connectors.kafka.reader import TOMBSTONE, KafkaReader
from tidegate.connectors.kafka.sink import KafkaSink
from tidegate.connectors.kafka.source import KafkaSource
from tidegate.types import ChangelogKind


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running() as server:
        server.needs_login = True
        yield server


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create(f"t-{uuid.uuid4().hex[:8]}", 1)


def avro(broker: Broker, topic: str, registry: FakeRegistry) -> str:
    return (
        f"connector = 'kafka', topic = '{topic}', brokers = '{broker.brokers}', format = 'avro', "
        f"registry_url = '{registry.url}', registry_username = '{USER}', registry_password = '{PASSWORD}'"
    )


def test_tasks_encode_and_decode_rows_and_deletes(
    broker: Broker, topic: str, registry: FakeRegistry, tmp_path: Path
) -> None:
    catalog = compile_text(
        "CREATE SOURCE m (id BIGINT, name STRING) WITH (connector = 'memory');"
        "CREATE STREAM t AS SELECT id, max(name) AS name FROM m GROUP BY id EMIT ON UPDATE;"
        f"CREATE SINK out FROM t WITH ({avro(broker, topic, registry)});"
        f"CREATE SOURCE s (id BIGINT, name STRING, PRIMARY KEY (id)) WITH ({avro(broker, topic, registry)});"
    ).catalog
    sink, source = catalog.get("out"), catalog.get("s")
    assert isinstance(sink, Sink) and isinstance(source, Source)
    columns = (("id", "BIGINT"), ("name", "STRING"))
    rows = StreamSchema(columns, ChangelogKind.UPSERT, ("id",), has_op=True)
    context = SinkContext(
        sink, str(tmp_path), topic, lambda *_: None, (*columns, ("_op", "STRING")), rows
    )
    to = KafkaSink(context)
    to.recover(CommittedState(None))
    assert list(registry.subjects) == [f"{topic}-value"]
    sink_columns = to.columns([("`id`", "id"), ("`name`", "name"), ("`_op`", "_op")])
    assert sink_columns is not None
    assert [name for _, name in sink_columns] == [KEY, DELETED, "id", "name"]
    writer = to.writer_factory(pa.schema([])).open(EpochId(0, 0).stamp, 0)
    writer.add(
        pa.table(
            {
                KEY: ['{"id":1}', '{"id":2}'],
                DELETED: [False, True],
                "id": [1, 2],
                "name": ["a", None],
            }
        )
    )
    to.publish(EpochId(0, 0), writer.finish())
    first, second = broker.read(topic)
    assert first.key == b'{"id":1}' and first.value[:5] == b"\0\0\0\0\1"
    schema = fastavro.parse_schema(json.loads(registry.schemas[0]["schema"]))
    read = fastavro.schemaless_reader(io.BytesIO(first.value[5:]), schema, None)
    assert read == {"id": 1, "name": "a"}
    assert (second.key, second.value) == (b'{"id":2}', None)

    opened = KafkaSource(SourceContext(source, "", "", Settings()))
    input_range = opened.plan_range(None, 1)
    assert input_range is not None
    decoder = opened._avro_decoder(RecordDecoder(source, False, True).text_columns)
    reader = KafkaReader(opened.connection, (), opened._tombstone_key(), decoder)
    (batch,) = [batch for batch, _ in reader.read(input_range.splits[0][0])]
    assert batch.schema == reader.schema
    texts = [json.loads(text) for text in batch.column(TEXT_BYTES).to_pylist()]
    assert texts == [{"id": 1, "name": "a"}, {"id": 2}]
    assert batch.column(TOMBSTONE).to_pylist() == [False, True]


@pytest.mark.spark
def test_reads_records_of_another_stream_and_explains_malformed_ones(
    broker: Broker, topic: str, registry: FakeRegistry, data: Path, spark: Any
) -> None:
    columns = (
        "id BIGINT, x DOUBLE, price DECIMAL(20,3), at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, "
        "raw BINARY, who STRUCT<age: INT, at: TIMESTAMP>, xs ARRAY<STRING>, tags MAP<STRING, BIGINT>"
    )
    script = (
        f"CREATE SOURCE m ({columns}) WITH (connector = 'memory');"
        "CREATE STREAM t AS SELECT * FROM m;"
        f"CREATE SINK out FROM t WITH ({avro(broker, topic, registry)});"
        f"CREATE SOURCE s ({columns}) WITH ({avro(broker, topic, registry)}, dead_letters = 'bad');"
        "CREATE STREAM again WITH (pipeline = 'other') AS SELECT * FROM s;"
        "INSERT INTO m VALUES (1, double('NaN'), 12345678901234567.125, TIMESTAMP '2026-01-02 03:04:05.678901', "
        "TIMESTAMP_NTZ '1969-01-02 03:04:05.000001', DATE '0001-01-01', X'00FF', "
        "named_struct('age', 3, 'at', TIMESTAMP '2026-01-02 03:04:05'), array('a', NULL), map('k', 1)), "
        "(2, double('-Infinity'), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);"
    )
    broker.produce(topic, [b"\0\0\0\0\7x", b"\0\0\0\0\1\2"])
    with open_with(data, spark, script) as session:
        subscriptions = {name: session.subscribe(name) for name in ("t", "again", "bad")}
        session.start()
        session.wait()
        session.wait()
        rows = {name: rows_of(item.take_all()) for name, item in subscriptions.items()}
    assert bag(rows["again"]) == bag(rows["t"]) and len(rows["t"]) == 2
    assert {row["reason"]: row["record"] for row in rows["bad"]} == {
        "the registry has no schema 7": "avro 000000000778",
        "the record does not match the Avro schema": "avro 000000000102",
    }
