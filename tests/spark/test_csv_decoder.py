"""The CSV decoder of tasks returns the same rows as Spark, or leaves records to Spark."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.connectors.test_csv_decoder import COLUMNS
from tests.spark.test_json_decoder import TIMES
from tidegate.columns import CONTROL, MALFORMED_RECORD, NOW, RECORD_FILE, RECORD_LINE
from tidegate.connectors.formats.csv import CsvFormat, csv_schema, decode_csv
from tidegate.connectors.formats.lines import FIRST, TEXT_BYTES
from tidegate.connectors.formats.spark_text import SparkTextDecoder
from tidegate.operators.vectorized import RecordFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NUMBERS = [
    "0",
    "-0",
    "-0.0",
    "007",
    "+1",
    "1.",
    ".5",
    "1.5",
    "1,5",
    "1e3",
    "1E-3",
    "0x1F",
    "1f",
    "1d",
]
NUMBERS += ["2147483647", "2147483648", "-999999999", "999999999999999999", "9223372036854775808"]
NUMBERS += ["12.34", "12.345", "9999.99", "10000.00", "-9999.9", "0.1", "123456789012345.123456789"]
NUMBERS += ["NaN", "nan", "INF", "Infinity", "-Inf", "1 ", " 1", "1_000", "--1", "-", "+", "٣", "½"]
WORDS = [
    "",
    "true",
    "FALSE",
    "tRuE",
    "yes",
    "null",
    "NULL",
    "n/a",
    "a b",
    " x ",
    "ä",
    "😀",
    "#1",
    "'q'",
]
QUOTED = [
    '"a"',
    '"a,b"',
    '""',
    '"a" ',
    ' "a"',
    'a"b',
    '"a""b"',
    '"a\\"b"',
    '"open',
    "a\\b",
    "\\",
    "\\,",
]
FORMS = (CsvFormat(",", '"', "\\"), CsvFormat(";", "'", "'"), CsvFormat("\t", None, "\\"))


def sample_records(form: CsvFormat) -> list[bytes]:
    """Generate records of all kinds, and many with one wrong character."""
    values = [*NUMBERS, *WORDS, *QUOTED, *TIMES]
    if form.quote is not None:
        values = [value.replace('"', form.quote) for value in values]
    names = [name for name, _ in COLUMNS]
    plain = [
        form.delimiter.join(value if place == at else "" for place in range(len(names)))
        for at in range(len(names))
        for value in values
    ]
    dice = random.Random(6)
    whole = form.delimiter.join(["12", "-3", "0.25", "12.5", "true", "x y", TIMES[0]])
    broken = []
    letters = [form.delimiter, form.quote or '"', "\\", " ", "0", "-", ".", "e", "x", "\x01", "é"]
    for _ in range(1500):
        at = dice.randrange(len(whole))
        into = dice.choice(["", dice.choice(letters), whole[at] * 2])
        broken.append(whole[:at] + into + whole[at + 1 :])
    broken += [whole[:at] for at in range(1, len(whole))]
    return [text.encode() for text in [*plain, *broken]] + [b"\xff", b"1,\xc3"]


def decode(text: bytes, form: CsvFormat) -> dict[str, Any] | None:
    """Decode a record; return None if it is left to Spark."""
    schema = csv_schema(COLUMNS)
    assert schema is not None
    try:
        (row,) = with_numeric_times(
            decode_csv(pa.array([text], pa.binary()), schema, form)
        ).to_pylist()
    except RecordFailed:
        return None
    return dict(row)


def with_numeric_times(rows: pa.Table) -> pa.Table:
    """Convert times to numbers, as some times of Spark do not exist in Python."""
    place = rows.schema.get_field_index("t")
    return rows.set_column(place, "t", rows.column(place).cast(pa.int64()))


def read_with_spark(
    spark: SparkSession, records: list[bytes], form: CsvFormat
) -> list[dict[str, Any]]:
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
    options = {"format": "csv", "multi_line": False, "encoding": "utf-8", "header": False}
    options |= {"delimiter": form.delimiter, "quote": form.quote, "escape": form.escape}
    options |= {"timestamp_format": None, "null_value": None}
    read = SparkTextDecoder(options, tuple(COLUMNS), (), True).read(spark.createDataFrame(raw))
    # Some malformed records are not valid UTF-8.
    marked = read.withColumn(MALFORMED_RECORD, read[MALFORMED_RECORD].isNotNull()).drop(RECORD_FILE)
    rows = sorted(
        with_numeric_times(marked.toArrow()).to_pylist(), key=lambda row: row[RECORD_LINE]
    )
    return [{name: row[name] for name in (*dict(COLUMNS), MALFORMED_RECORD)} for row in rows]


@pytest.mark.parametrize("form", FORMS, ids=["comma", "semicolon", "tab"])
def test_records_are_decoded_as_by_spark_or_left_to_it(
    spark: SparkSession, form: CsvFormat
) -> None:
    # Blank lines are dropped before they reach the decoder.
    records = [text for text in sample_records(form) if text.strip(b" \t")]
    decoded = malformed = 0
    different = []
    for text, expected in zip(records, read_with_spark(spark, records, form), strict=True):
        row = decode(text, form)
        if row is None:
            continue
        row[MALFORMED_RECORD] = row[MALFORMED_RECORD] is not None
        if row[MALFORMED_RECORD]:
            malformed += 1
            # The values that Spark read from a malformed record are not used.
            row = {**dict.fromkeys(row), MALFORMED_RECORD: True}
            expected = {**dict.fromkeys(expected), MALFORMED_RECORD: expected[MALFORMED_RECORD]}
        decoded += not row[MALFORMED_RECORD]
        if repr(row) != repr(expected):
            different.append((text, row, expected))
    assert different == [], [text for text, _, _ in different]
    assert decoded > 300, "too few records were decoded"
    assert malformed > 300, "too few malformed records were detected"
