"""The JSON decoder of tasks returns the same rows as Spark, or leaves records to Spark."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.connectors.test_json_decoder import COLUMNS
from tidegate.columns import CONTROL, MALFORMED_RECORD, NOW, RECORD_FILE, RECORD_LINE
from tidegate.connectors.formats.json import decode_json, json_schema
from tidegate.connectors.formats.lines import FIRST, TEXT_BYTES
from tidegate.connectors.formats.spark_text import SparkTextDecoder
from tidegate.operators.vectorized import VectorFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NUMBERS = ["0", "-1", "-0", "1.5", "-0.0", "1e3", "1E-3", "1.0", "01", "+1", ".5", "1.", "0x1"]
NUMBERS += [
    "9223372036854775807",
    "9223372036854775808",
    "2147483648",
    "1e308",
    "1e309",
    "4.9e-324",
]
NUMBERS += ["0.1", "123456789012345678901234567890", "2.2250738585072012e-308", "NaN", "INF", "Inf"]
WORDS = ["null", "true", "false", "True", '""', '"a"', '"1"', '"true"', "{}", "[]", '{"k": [1]}']
ESCAPED = [
    "\\u0000",
    "\\u00E4",
    "\\uD83D\\uDE00",
    "\\ud83d\\ud83d",
    "\\ude00",
    "\\\\ud83d",
    "\\u12",
]
TEXTS = [*(f'"{text}"' for text in ESCAPED)]
TEXTS += [
    '"ä"',
    '"\\t\\/\\b"',
    '"\\u00e4"',
    '"\\ud83d\\ude00"',
    '"\\ud800"',
    '"\\x"',
    "'a'",
    '"\t"',
]
TIMES = [
    *("2026-01-01T00:00:00Z", "2026-01-01 00:00:00", "2026-01-01T00:00:00.123456Z", "2026-01-01"),
    *("2026-01-01T00:00:00.1234567Z", "2026-01-01T00:00:00+05:30", "2026-01-01T00:00:00-09:59"),
    *(
        "2026-02-29T00:00:00Z",
        "2024-02-29T23:59:59Z",
        "2026-01-01T24:00:00Z",
        "1000-01-01 00:00:00",
    ),
    *("2026-01-01T00:00:60Z", "2026-13-01T00:00:00Z", "2026-01-01T00:00Z", " 2026-01-01T00:00:00Z"),
    *("1582-10-10T00:00:00Z", "2999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00Z", "1700000000"),
]
WHOLE = [
    *(
        '{"\\u0061":1}',
        '{"x":"\\ud800"}',
        '{"a":1} ',
        '{"a":1}{"a":2}',
        '{"a":1} x',
        '{"a":1,}',
        '{"a":1,"a":2}',
        '{"A":1}',
        "[]",
        "1",
    ),
    *('{"x":NaN}', '{"x":Inf}', '{"x":INF}', '{"x":1/*c*/}', '{"x":tru}', '{"x":{"a":1}}', "", "{"),
    *('{"x":[1,]}', '{"x":"\\q"}', '{"x":01}', '{"":1}', '{"a":1;"i":2}', "{a:1}", '{"x":1,"x":2}'),
    '{"x":' + "[" * 1100 + "]" * 1100 + "}",
    '{"x":' + "[" * 400 + "]" * 400 + "}",
    '{"x":1' + "0" * 1100 + "}",
    '{"d":1' + "0" * 300 + "}",
]


def sample_records() -> list[bytes]:
    """Generate records of all kinds, and many with one wrong character."""
    values = {
        "a": NUMBERS + WORDS,
        "i": NUMBERS + WORDS,
        "d": NUMBERS + WORDS,
        "b": WORDS,
        "s": [*NUMBERS, *WORDS, *TEXTS],
        "t": [*(f'"{time}"' for time in TIMES), *WORDS, *NUMBERS],
    }
    plain = [f'{{"{name}": {value}}}' for name, items in values.items() for value in items]
    dice = random.Random(5)
    whole = json.dumps(
        {"a": 12, "i": -3, "d": 0.25, "b": True, "s": 'x"y', "t": TIMES[2], "x": [{"y": "z"}]}
    )
    broken = []
    for _ in range(1500):
        at = dice.randrange(len(whole))
        into = dice.choice(["", dice.choice('{}[]",:\\ 0-.eENtu\n\x01'), whole[at] * 2])
        broken.append(whole[:at] + into + whole[at + 1 :])
    broken += [whole[:at] for at in range(len(whole))]
    return [text.encode() for text in [*plain, *WHOLE, *broken]] + [b'{"s":"\xff"}', b'{"\xc3":1}']


def decode(text: bytes) -> dict[str, Any] | None:
    """Decode a record; return None if it is left to Spark."""
    schema = json_schema(COLUMNS)
    assert schema is not None
    try:
        (row,) = with_numeric_times(decode_json([text], schema)).to_pylist()
    except VectorFailed:
        return None
    return dict(row)


def with_numeric_times(rows: pa.Table) -> pa.Table:
    """Convert times to numbers, as some times of Spark do not exist in Python."""
    place = rows.schema.get_field_index("t")
    return rows.set_column(place, "t", rows.column(place).cast(pa.int64()))


def read_with_spark(spark: SparkSession, records: list[bytes]) -> list[dict[str, Any]]:
    count = len(records)
    raw = pa.table(
        {
            TEXT_BYTES: pa.array(records, pa.binary()),
            RECORD_FILE: pa.repeat(pa.scalar("t/0"), count),
            RECORD_LINE: pa.array(range(count), pa.int64()),
            FIRST: pa.repeat(pa.scalar(False), count),
            CONTROL: pa.nulls(count, pa.binary()),
            NOW: pa.repeat(pa.scalar(0, pa.int64()), count),
        }
    )
    options = {"format": "json", "multi_line": False, "encoding": "utf-8", "header": False}
    decoder = SparkTextDecoder(
        {**options, "timestamp_format": None}, tuple(COLUMNS), (), True, True
    )
    read = decoder.read(spark.createDataFrame(raw))
    # Some malformed records are not valid UTF-8.
    marked = read.withColumn(MALFORMED_RECORD, read[MALFORMED_RECORD].isNotNull()).drop(RECORD_FILE)
    table = with_numeric_times(marked.toArrow())
    rows = sorted(table.to_pylist(), key=lambda row: row[RECORD_LINE])
    return [{name: row[name] for name in (*dict(COLUMNS), MALFORMED_RECORD)} for row in rows]


def test_records_are_decoded_as_by_spark_or_left_to_it(spark: SparkSession) -> None:
    records = sample_records()
    decoded = malformed = 0
    different = []
    for text, expected in zip(records, read_with_spark(spark, records), strict=True):
        row = decode(text)
        if row is None:
            continue
        row[MALFORMED_RECORD] = row[MALFORMED_RECORD] is not None
        if row[MALFORMED_RECORD]:
            malformed += 1
            # The values that Spark read from a malformed record are not used.
            expected = {**dict.fromkeys(expected), MALFORMED_RECORD: expected[MALFORMED_RECORD]}
        decoded += not row[MALFORMED_RECORD]
        if repr(row) != repr(expected):
            different.append((text, row, expected))
    assert different == []
    assert decoded > 300, "too few records were decoded"
    assert malformed > 300, "too few malformed records were detected"
