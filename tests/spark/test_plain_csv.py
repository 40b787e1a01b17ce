"""What tasks decode of CSV themselves is what Spark makes of it, or they leave it to Spark."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.connectors.test_plain_csv import COLUMNS
from tests.spark.test_plain_json import TIMES
from tidegate.columns import BAD_RECORD, CONTROL, NOW, RECORD_FILE, RECORD_LINE
from tidegate.connectors.formats.csv import CsvFormat, csv_schema, decode_csv
from tidegate.connectors.formats.lines import FIRST, TEXT_BYTES
from tidegate.connectors.formats.spark_text import TextFiles
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


def texts(form: CsvFormat) -> list[bytes]:
    """Records of all kinds, and many of them with one character wrong."""
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


def ours(text: bytes, form: CsvFormat) -> dict[str, Any] | None:
    """The row of a record; None where that is left to Spark."""
    schema = csv_schema(COLUMNS)
    assert schema is not None
    try:
        (row,) = _counted(decode_csv(pa.array([text], pa.binary()), schema, form)).to_pylist()
    except RecordFailed:
        return None
    return dict(row)


def _counted(rows: pa.Table) -> pa.Table:
    """Times as numbers: Spark has some that Python has no word for."""
    place = rows.schema.get_field_index("t")
    return rows.set_column(place, "t", rows.column(place).cast(pa.int64()))


def sparks(spark: SparkSession, given: list[bytes], form: CsvFormat) -> list[dict[str, Any]]:
    count = len(given)
    raw = pa.table(
        {
            TEXT_BYTES: pa.array(given, pa.binary()),
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
    read = TextFiles(options, tuple(COLUMNS), (), True).read(spark.createDataFrame(raw))
    # Not every bad record is text.
    told = read.withColumn(BAD_RECORD, read[BAD_RECORD].isNotNull()).drop(RECORD_FILE)
    rows = sorted(_counted(told.toArrow()).to_pylist(), key=lambda row: row[RECORD_LINE])
    return [{name: row[name] for name in (*dict(COLUMNS), BAD_RECORD)} for row in rows]


@pytest.mark.parametrize("form", FORMS, ids=["comma", "semicolon", "tab"])
def test_a_record_is_read_as_spark_reads_it_or_not_at_all(
    spark: SparkSession, form: CsvFormat
) -> None:
    # Lines without text are left out before.
    given = [text for text in texts(form) if text.strip(b" \t")]
    decoded_here = bad_here = 0
    different = []
    for text, wanted in zip(given, sparks(spark, given, form), strict=True):
        row = ours(text, form)
        if row is None:
            continue
        row[BAD_RECORD] = row[BAD_RECORD] is not None
        if row[BAD_RECORD]:
            bad_here += 1
            # What Spark could read of a bad record nobody sees.
            row = {**dict.fromkeys(row), BAD_RECORD: True}
            wanted = {**dict.fromkeys(wanted), BAD_RECORD: wanted[BAD_RECORD]}
        decoded_here += not row[BAD_RECORD]
        if repr(row) != repr(wanted):
            different.append((text, row, wanted))
    assert different == [], [text for text, _, _ in different]
    assert decoded_here > 300, "many are plain"
    assert bad_here > 300, "many are bad, and that is seen without Spark"
