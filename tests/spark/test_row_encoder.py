"""JSON text that tasks write equals that of Spark's to_json."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate.connectors.files.sink import json_options
from tidegate.connectors.formats.row_encoder import JsonText, is_encodable, json_encoder
from tidegate.operators.vectorized import VectorFailed
from tidegate.sql.quoting import quote_identifier

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ('odd "name" \\ é', pa.string()),
        ("small", pa.int8()),
        ("big", pa.int64()),
        ("flag", pa.bool_()),
        ("price", pa.decimal128(12, 2)),
        ("ratio", pa.decimal128(38, 6)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
TEXTS = [
    "",
    "plain",
    'a "quote"',
    "back\\slash",
    "tab\tnew\nline\r\f\b",
    "é ü 漢字 😀",
    "</script>",
    "\x7f",
]
TEXTS += [f"control {chr(n)} sign" for n in range(32)]


def row(dice: random.Random) -> tuple[Any, ...]:
    first = datetime(1, 1, 1, tzinfo=UTC)
    values = (
        dice.choice(TEXTS),
        dice.choice(TEXTS),
        dice.randrange(-128, 128),
        dice.choice([0, 1, -1, 2**63 - 1, -(2**63)]),
        dice.random() < 0.5,
        Decimal(dice.choice([0, 1, -1, 10, 123456789, -99999999])).scaleb(-2),
        Decimal(dice.choice([0, 1, -1, 10**6, -(10**31) + 1])).scaleb(-6),
        date(dice.randrange(1, 10_000), dice.randrange(1, 13), dice.randrange(1, 29)),
        first + timedelta(microseconds=dice.randrange(315_537_897_600_000_000)),
    )
    return tuple(None if dice.random() < 0.1 else value for value in values)


@pytest.mark.spark
@pytest.mark.parametrize("nulls", [False, True])
def test_json_of_tasks_equals_to_json(spark: Any, nulls: bool) -> None:
    dice = random.Random(5)
    columns = zip(*(row(dice) for _ in range(2_000)), strict=True)
    arrays = [pa.array(values, f.type) for values, f in zip(columns, SCHEMA, strict=True)]
    table = pa.table(arrays, schema=SCHEMA)
    fields = ", ".join(quote_identifier(name) for name in SCHEMA.names)
    frame = spark.createDataFrame(table)
    line = f"to_json(struct({fields}), {json_options(nulls)}) AS line"
    expected = frame.selectExpr(line).toArrow().column(0).to_pylist()
    assert JsonText(tuple(SCHEMA.names), nulls).encode(table).to_pylist() == expected


def test_json_is_read_back_as_the_values() -> None:
    encoder = json_encoder(SCHEMA, "line")
    assert encoder is not None
    table = pa.table({name: pa.nulls(1, SCHEMA.field(name).type) for name in SCHEMA.names})
    assert encoder.encode(table).column("line").to_pylist() == ["{}"]
    texts = pa.table({"text": TEXTS})
    lines = JsonText(("text",)).encode(texts).to_pylist()
    assert [json.loads(line)["text"] for line in lines] == TEXTS


@pytest.mark.parametrize("us", [-62_135_596_800_000_001, 253_402_300_800_000_000])
def test_times_with_more_digits_are_left_to_spark(us: int) -> None:
    times = pa.table({"at": pa.array([us], pa.timestamp("us", "UTC"))})
    with pytest.raises(VectorFailed):
        JsonText(("at",)).encode(times)


def test_types_with_another_text_are_left_to_spark() -> None:
    for kind in (pa.float64(), pa.decimal128(20, 10), pa.list_(pa.int64()), pa.binary()):
        assert not is_encodable(kind)
        assert json_encoder(pa.schema([("a", kind)]), "line") is None


def test_text_that_is_not_utf8_is_left_to_spark() -> None:
    text = pa.array([b"ok", b"\xff"], pa.binary()).cast(pa.string(), safe=False)
    encoder = json_encoder(pa.schema([("text", pa.string())]), "line")
    assert encoder is not None
    with pytest.raises(VectorFailed):
        encoder.encode(pa.table({"text": text}))
