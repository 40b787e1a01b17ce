"""Avro records compared with fastavro, and the schema registry. No Spark, no broker."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import uuid
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tests.support.compiling import compile_text
from tests.support.registry import PASSWORD, USER, FakeRegistry, running
from tidegate.connectors.kafka.avro import (
    DELETED,
    KEY,
    AvroDecoder,
    AvroEncoder,
    SchemaRegistryClient,
    avro_schema,
)
from tidegate.connectors.kafka.spec import writing_problem
from tidegate.errors import RunError, SystemUnavailable
from tidegate.physical.typed import arrow_type

BIDS = '{"type": "record", "name": "bid", "fields": [{"name": "id", "type": "long"}]}'
AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running() as server:
        yield server


def record(**fields: Any) -> str:
    field_list = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "r", "fields": field_list})


def columns(**kinds: str) -> pa.Schema:
    return pa.schema([(name, arrow_type(kind)) for name, kind in kinds.items()])


def encoded(schema: str, *rows: dict[str, Any]) -> list[bytes]:
    parsed = fastavro.parse_schema(json.loads(schema))
    records = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        records.append(out.getvalue())
    return records


def decoded(schema: str, arrow_schema: pa.Schema, *rows: dict[str, Any]) -> list[Any]:
    texts, reasons = AvroDecoder(arrow_schema, schema, None).texts(encoded(schema, *rows))
    assert reasons == [None] * len(rows), reasons
    return [json.loads(text) for text in texts]


# Reading


def test_converts_values_to_the_json_that_their_column_is_read_from() -> None:
    schema = record(
        n="int", x="double", f="float", s=["null", "string"], b="boolean", raw="bytes",
        at={"type": "long", "logicalType": "timestamp-micros"},
        ms={"type": "long", "logicalType": "timestamp-millis"},
        local={"type": "long", "logicalType": "local-timestamp-micros"},
        day={"type": "int", "logicalType": "date"},
        price={"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2},
        who={"type": "record", "name": "who", "fields": [{"name": "age", "type": "int"}]},
        xs={"type": "array", "items": ["null", "long"]},
        tags={"type": "map", "values": "string"},
        kind={"type": "enum", "name": "kind", "symbols": ["A", "B"]},
        code={"type": "fixed", "name": "code", "size": 2},
        number={"type": "string", "logicalType": "uuid"},
    )  # fmt: skip
    arrow_schema = columns(
        n="INT", x="DOUBLE", f="FLOAT", s="STRING", b="BOOLEAN", raw="BINARY", at="TIMESTAMP",
        ms="TIMESTAMP", local="TIMESTAMP_NTZ", day="DATE", price="DECIMAL(38,2)",
        who="STRUCT<age: INT>", xs="ARRAY<BIGINT>", tags="MAP<STRING, STRING>", kind="STRING",
        code="BINARY", number="STRING",
    )  # fmt: skip
    number = uuid.UUID(int=7)
    row = {
        "n": -1, "x": 0.1, "f": 0.5, "s": 'ä "\n', "b": True, "raw": b"\0\xff", "at": AT,
        "ms": AT.replace(microsecond=678000), "local": AT.replace(tzinfo=None),
        "day": AT.date(), "price": Decimal("12345678901234567890123456789012345.10"),
        "who": {"age": 3}, "xs": [1, None], "tags": {"a": "b"}, "kind": "B", "code": b"ab",
        "number": number,
    }  # fmt: skip
    (decoded_row,) = decoded(schema, arrow_schema, row)
    assert decoded_row == {
        "n": -1, "x": 0.1, "f": 0.5, "s": 'ä "\n', "b": True, "raw": "AP8=",
        "at": "2026-01-02T03:04:05.678901+00:00", "ms": "2026-01-02T03:04:05.678000+00:00",
        "local": "2026-01-02T03:04:05.678901", "day": "2026-01-02",
        "price": "12345678901234567890123456789012345.10", "who": {"age": 3}, "xs": [1, None],
        "tags": {"a": "b"}, "kind": "B", "code": "YWI=", "number": str(number),
    }  # fmt: skip


def test_keeps_nan_and_infinity() -> None:
    schema, arrow_schema = record(x="double"), columns(x="DOUBLE")
    values = [
        row["x"] for row in decoded(schema, arrow_schema, *({"x": x} for x in (math.nan, math.inf)))
    ]
    assert math.isnan(values[0]) and values[1] == math.inf


def test_explains_malformed_records_and_reads_the_others() -> None:
    good, other = encoded(BIDS, {"id": 1}, {"id": 300})
    texts, reasons = AvroDecoder(columns(id="BIGINT"), BIDS, None).texts(
        [good, b"", other[:-1], good + b"x", other]
    )
    assert [json.loads(texts[index]) for index in (0, 4)] == [{"id": 1}, {"id": 300}]
    assert reasons == [
        None,
        "the record does not match the Avro schema",
        "the record does not match the Avro schema",
        "there are bytes after the end of the Avro record",
        None,
    ]
    assert texts[3] == b"avro 0278", "not JSON, and dead letters show the bytes"


@pytest.mark.parametrize(
    ("field", "kind", "reason"),
    [
        ("long", "TIMESTAMP", "v is a timestamp, but long in the Avro schema"),
        (["null", "long"], "TIMESTAMP", "v is a timestamp, but long in the Avro schema"),
        (
            {"type": "long", "logicalType": "timestamp-nanos"},
            "TIMESTAMP",
            "v is a timestamp, but timestamp-nanos in the Avro schema",
        ),
        ("int", "DATE", "v is a date, but int in the Avro schema"),
        ("bytes", "STRING", "v is bytes in the Avro schema: declare it as BINARY"),
        ("string", "BINARY", "v is BINARY, but string in the Avro schema"),
        (
            {"type": "array", "items": "string"},
            "ARRAY<BINARY>",
            "v is BINARY, but string in the Avro schema",
        ),
        (
            {"type": "map", "values": {"type": "array", "items": "long"}},
            "MAP<STRING, ARRAY<DATE>>",
            "v is a date, but long in the Avro schema",
        ),
        (
            {"type": "record", "name": "w", "fields": [{"name": "At", "type": "long"}]},
            "STRUCT<at: TIMESTAMP>",
            "v.At is a timestamp, but long in the Avro schema",
        ),
        ("string", "TIMESTAMP", None),
        ({"type": "string"}, "STRING", None),
    ],
)
def test_checks_the_schema_for_types_that_json_would_hide(
    field: Any, kind: str, reason: str | None
) -> None:
    """Spark would read a number as seconds, and a text as base64."""
    decoder = AvroDecoder(columns(v=kind), record(v=field), None)
    _, (actual,) = decoder.texts([b"\0"])
    assert actual == reason


def test_checks_a_named_type_at_each_use() -> None:
    raw = {"type": "fixed", "name": "raw", "size": 1}
    decoder = AvroDecoder(columns(a="BINARY", b="STRING"), record(a=raw, b="raw"), None)
    assert decoder.texts([b"xy"])[1] == ["b is fixed in the Avro schema: declare it as BINARY"]


# A registry


def test_reads_each_record_with_the_schema_of_its_id(registry: FakeRegistry) -> None:
    wide = record(id="long", name="string")
    first, second = registry.add(BIDS), registry.add(wide)
    values = [
        b"\0" + first.to_bytes(4, "big") + encoded(BIDS, {"id": 1})[0],
        b"\0" + second.to_bytes(4, "big") + encoded(wide, {"id": 2, "name": "b"})[0],
        b"\0" + first.to_bytes(4, "big") + encoded(BIDS, {"id": 3})[0],
        b"\0" + (9).to_bytes(4, "big") + b"x",
        b"\1" + first.to_bytes(4, "big") + b"x",
        b"\0\0",
    ]
    decoder = AvroDecoder(columns(id="BIGINT"), None, SchemaRegistryClient("s", registry.url))
    texts, reasons = decoder.texts(values)
    read = [json.loads(text) for text in texts[:3]]
    assert read == [{"id": 1}, {"id": 2, "name": "b"}, {"id": 3}]
    no_id = "the record does not begin with a schema ID"
    assert reasons == [None] * 3 + ["the registry has no schema 9", no_id, no_id]
    count = len(registry.requests)
    decoder.texts(values[:3])
    assert len(registry.requests) == count, "schemas are cached"


def test_rejects_schemas_that_are_not_plain_avro(registry: FakeRegistry) -> None:
    numbers = [
        registry.add("message m {}", schemaType="PROTOBUF"),
        registry.add(BIDS, references=[{"name": "x"}]),
    ]
    decoder = AvroDecoder(columns(id="BIGINT"), None, SchemaRegistryClient("s", registry.url))
    for number, why in zip(
        numbers, ("has the type PROTOBUF", "refers to other schemas"), strict=True
    ):
        with pytest.raises(RunError, match=why):
            decoder.texts([b"\0" + number.to_bytes(4, "big")])


def test_retries_an_unavailable_registry_and_never_shows_the_password(
    registry: FakeRegistry,
) -> None:
    client = SchemaRegistryClient("the source s", registry.url, USER, PASSWORD)
    registry.needs_login = True
    number = client.register("topic/1-value", BIDS)
    assert client.schema(number) == BIDS and registry.subjects == {"topic/1-value": [number]}
    assert PASSWORD not in repr(client)
    with pytest.raises(RunError, match="rejected the login of the source s") as rejected:
        replace(client, password="other").schema(number)
    assert rejected.value.code == "TG-512"
    for code, kind in ((503, SystemUnavailable), (409, RunError)):
        registry.code = code
        with pytest.raises(kind) as failed:
            client.register("t-value", BIDS)
        assert str(code) in str(failed.value) and PASSWORD not in str(failed.value)
    registry.shutdown()
    registry.server_close()
    with pytest.raises(
        SystemUnavailable, match="cannot reach the registry http://127"
    ) as unavailable:
        client.schema(number)
    assert PASSWORD not in str(unavailable.value)


def test_does_not_follow_redirects_of_a_registry(registry: FakeRegistry) -> None:
    """The target of the redirect would receive the password."""
    with running() as other:
        registry.redirect = other.url
        client = SchemaRegistryClient("s", registry.url, USER, PASSWORD)
        with pytest.raises(RunError, match="302"):
            client.schema(1)
        assert other.requests == []


def test_reports_a_url_that_is_not_a_registry(registry: FakeRegistry) -> None:
    with pytest.raises(RunError, match="does not support registering schemas"):
        SchemaRegistryClient("s", f"{registry.url}/somewhere").register("t-value", BIDS)


# Writing


def table(arrow_schema: pa.Schema, rows: list[dict[str, Any]], deleted: list[bool]) -> pa.Table:
    whole = pa.Table.from_pylist(rows, arrow_schema)
    return whole.append_column(KEY, pa.array(["k"] * len(rows))).append_column(
        DELETED, pa.array(deleted)
    )


def test_writes_rows_that_fastavro_and_the_source_read() -> None:
    arrow_schema = columns(
        n="SMALLINT", i="BIGINT", x="DOUBLE", f="FLOAT", b="BOOLEAN", s="STRING", raw="BINARY",
        at="TIMESTAMP", local="TIMESTAMP_NTZ", day="DATE", price="DECIMAL(10,2)",
        who="STRUCT<age: INT, at: TIMESTAMP>", xs="ARRAY<STRUCT<a: INT>>",
        tags="MAP<STRING, BIGINT>",
    )  # fmt: skip
    row = {
        "n": 1, "i": -(2**63), "x": 0.1, "f": 0.5, "b": False, "s": "ä", "raw": b"\0", "at": AT,
        "local": AT.replace(tzinfo=None), "day": dt.date(1969, 12, 31), "price": Decimal("-1.10"),
        "who": {"age": 3, "at": AT}, "xs": [{"a": 1}, None], "tags": {"a": 1},
    }  # fmt: skip
    empty = dict.fromkeys(row)
    text = json.dumps(avro_schema("my-topic", arrow_schema))
    first, second, tombstone = AvroEncoder(text, None).values(
        table(arrow_schema, [row, empty, row], [False, False, True])
    )
    assert tombstone is None
    parsed = fastavro.parse_schema(json.loads(text))
    for value, expected in ((first, row), (second, empty)):
        assert value is not None
        assert fastavro.schemaless_reader(io.BytesIO(value), parsed, None) == expected
    texts, reasons = AvroDecoder(arrow_schema, text, None).texts([first, second])
    assert reasons == [None, None] and json.loads(texts[1]) == empty


def test_begins_records_with_their_schema_id() -> None:
    arrow_schema = columns(id="BIGINT")
    text = json.dumps(avro_schema("t", arrow_schema))
    (value,) = AvroEncoder(text, 258).values(table(arrow_schema, [{"id": 1}], [False]))
    assert value is not None and value[:5] == b"\0\0\0\1\2"
    assert value[5:] == AvroEncoder(text, None).values(table(arrow_schema, [{"id": 1}], [False]))[0]


def test_writes_times_after_the_year_9999() -> None:
    arrow_schema = columns(at="TIMESTAMP", day="DATE")
    rows = pa.table(
        {
            "at": pa.array([2**62], pa.int64()).cast(arrow_schema.field("at").type),
            "day": pa.array([10_000_000], pa.int32()).cast(pa.date32()),
            KEY: pa.array(["k"]),
            DELETED: pa.array([False]),
        }
    )
    plain = json.dumps(
        {"type": "record", "name": "t", "fields": [
            {"name": "at", "type": ["null", "long"]}, {"name": "day", "type": ["null", "int"]}]}
    )  # fmt: skip
    (value,) = AvroEncoder(json.dumps(avro_schema("t", arrow_schema)), None).values(rows)
    assert value is not None
    read = fastavro.schemaless_reader(io.BytesIO(value), json.loads(plain), None)
    assert read == {"at": 2**62, "day": 10_000_000}


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("v", "MAP<BIGINT, STRING>", "v is a MAP whose keys are not STRING"),
        ("not valid", "BIGINT", "'not valid' is not a valid name in Avro"),
        ("v", "STRUCT<`a b`: INT>", "'a b' is not a valid name in Avro"),
        ("v", "VARIANT", "type VARIANT"),
    ],
)
def test_rejects_columns_that_avro_cannot_represent(name: str, kind: str, why: str) -> None:
    wrong = writing_problem({"format": "avro"}, (("id", "BIGINT"), (name, kind)))
    assert wrong is not None and why in wrong
    assert writing_problem({"format": "json"}, ((name, kind),)) is None


def test_rejects_a_login_in_the_registry_url_without_showing_it() -> None:
    compiled = compile_text(
        "CREATE SOURCE s (id BIGINT) WITH (connector = 'kafka', topic = 't', brokers = 'b:1', "
        "format = 'avro', registry_url = 'http://alice:hunter2@host');"
    )
    (error,) = compiled.errors
    assert "registry_username and registry_password" in str(error) and "hunter2" not in str(error)
