"""CSV records that are decoded in tasks, and those that are left to Spark."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate.columns import MALFORMED_RECORD
from tidegate.connectors.formats.csv import CsvFormat, csv_schema, decode_csv, header_fits
from tidegate.operators.vectorized import RecordFailed

COLUMNS = [
    ("a", "BIGINT"),
    ("i", "INT"),
    ("d", "DOUBLE"),
    ("m", "DECIMAL(6, 2)"),
    ("b", "BOOLEAN"),
    ("s", "STRING"),
    ("t", "TIMESTAMP"),
]
PLAIN = CsvFormat(",", '"', "\\")


def rows(*lines: bytes, csv_format: CsvFormat = PLAIN) -> list[dict[str, Any]]:
    schema = csv_schema(COLUMNS)
    assert schema is not None
    decoded: list[dict[str, Any]] = decode_csv(
        pa.array(lines, pa.binary()), schema, csv_format
    ).to_pylist()
    return decoded


def test_decodes_plain_values() -> None:
    (row,) = rows(b"7,-3,0.25,12.5,TRUE,x y,2026-01-01T00:00:00Z")
    assert row["t"].isoformat() == "2026-01-01T00:00:00+00:00"
    assert {**row, "t": None} == {
        **{"a": 7, "i": -3, "d": 0.25, "m": Decimal("12.50"), "b": True, "s": "x y", "t": None},
        MALFORMED_RECORD: None,
    }


def test_empty_values_are_null_even_if_quoted() -> None:
    (row,) = rows(b",,,,,,")
    assert set(row.values()) == {None}
    assert set(rows(b'"",,,,,"",""')[0].values()) == {None}
    assert rows(b',,,,,"a,b",')[0]["s"] == "a,b"
    doubled = CsvFormat(";", "'", "'")
    assert rows(b";;;;;'it''s; so';", csv_format=doubled)[0]["s"] == "it's; so"


@pytest.mark.parametrize(
    "line",
    [
        b"one,,,,,,",
        b"1.5,,,,,,",
        b",1 2,,,,,",
        b",,n/a,,,,",
        b",,,free,,,",
        b",,,,yes,,",
        b",,,,,,never",
        b",,,,,",
        b",,,,,,,",
        b"just text",
        b",,,,,\xff,",
    ],
)
def test_invalid_values_make_a_record_malformed(line: bytes) -> None:
    before, row, after = rows(b"1,,,,,,", line, b"2,,,,,,")
    assert (before["a"], after["a"]) == (1, 2)
    assert before[MALFORMED_RECORD] is after[MALFORMED_RECORD] is None
    assert row[MALFORMED_RECORD] == line.decode("utf-8", "replace")


@pytest.mark.parametrize(
    "line",
    [
        b"9223372036854775807,,,,,,",
        b"+5,,,,,,",
        b",99999999999,,,,,",
        b",,1e5,,,,",
        b",,-0.0,,,,",
        b",,NaN,,,,",
        b",,,1.005,,,",
        b",,,12345.5,,,",
        b",,,,,,2026-01-01",
        b",,,,,,2026-02-30T00:00:00Z",
        b',,,,,"open,',
        b',,,,,a"b,',
        b",,,,,a\\b,",
        b",,,,,\0,",
    ],
)
def test_other_notations_are_left_to_spark(line: bytes) -> None:
    with pytest.raises(RecordFailed):
        rows(b"1,,,,,,", line)


def test_unsupported_types_and_characters_are_left_to_spark() -> None:
    assert csv_schema([("x", "STRUCT<a: INT>")]) is None
    assert csv_schema([("x", "DATE")]) is None
    assert PLAIN.is_plain and CsvFormat("\t", None, "").is_plain
    assert not CsvFormat("||", '"', "\\").is_plain
    assert not CsvFormat(",", ",", "\\").is_plain
    assert not CsvFormat("ä", '"', "\\").is_plain


def test_header_must_match_the_columns() -> None:
    assert header_fits(b"A, b ,C", ["a", "B", "c"], PLAIN)
    assert not header_fits(b"a,c,b", ["a", "b", "c"], PLAIN)
    assert not header_fits(b"a,b", ["a", "b", "c"], PLAIN)
