"""Encoding of rows for binary COPY, checked with a decoder, without a database."""

from __future__ import annotations

import datetime as dt
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.connectors.postgres.writer import binary_rows
from tidegate.errors import RunError

COLUMNS: list[tuple[str, pa.DataType, Any, str]] = [
    ("bool", pa.bool_(), st.booleans(), ">?"),
    ("int2", pa.int8(), st.integers(-128, 127), ">h"),
    ("int8", pa.int32(), st.integers(-(2**31), 2**31 - 1), ">q"),
    ("float8", pa.float32(), st.floats(width=32, allow_nan=False), ">d"),
    ("text", pa.string(), st.text(st.characters(codec="utf-8"), max_size=5), ""),
    ("bytea", pa.binary(), st.binary(max_size=3), ""),
    ("varchar", pa.string(), st.sampled_from(["ab", "cd"]), ""),
    ("date", pa.date32(), st.dates(), ">i"),
    ("timestamptz", pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC)), ">q"),
]
ROW = st.tuples(*(st.none() | values for _, _, values, _ in COLUMNS))


def read_back(data: bytes) -> list[list[bytes | None]]:
    """Decode the fields of all rows."""
    rows, at = [], 0
    while at < len(data):
        (count,) = struct.unpack_from(">h", data, at)
        at += 2
        row: list[bytes | None] = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", data, at)
            at += 4
            row.append(None if length < 0 else data[at : at + length])
            at += max(length, 0)
        rows.append(row)
    return rows


def value(field: bytes | None, kind: str, wire: str) -> Any:
    if field is None:
        return None
    if not wire:
        return field if kind == "bytea" else field.decode()
    (number,) = struct.unpack(wire, field)
    if kind == "date":
        return dt.date(2000, 1, 1) + dt.timedelta(number)
    if kind == "timestamptz":
        return dt.datetime(2000, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=number)
    return number


@given(st.lists(ROW, max_size=8), st.integers(0, 3))
def test_encoded_rows_round_trip(rows: list[tuple[Any, ...]], skipped: int) -> None:
    arrays = [
        pa.chunked_array([pa.array([row[place] for row in rows], kind)]).slice(skipped)
        for place, (_, kind, _, _) in enumerate(COLUMNS)
    ]
    fields = read_back(binary_rows(arrays, [kind for kind, *_ in COLUMNS], "the sink s"))
    wires = [(kind, wire) for kind, _, _, wire in COLUMNS]
    decoded = [tuple(value(f, *w) for f, w in zip(row, wires, strict=True)) for row in fields]
    assert decoded == rows[skipped:]


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (pa.date32(), 2**31 - 1),
        (pa.date32(), -(2**31)),
        (pa.timestamp("us", "UTC"), 2**63 - 1),
        (pa.timestamp("us", "UTC"), -(2**63)),
    ],
)
def test_rejects_times_that_would_mean_infinity(kind: pa.DataType, number: int) -> None:
    plain = pa.int32() if kind == pa.date32() else pa.int64()
    column = pa.chunked_array([pa.array([number], plain).cast(kind)])
    name = "date" if kind == pa.date32() else "timestamptz"
    with pytest.raises(RunError, match="that PostgreSQL cannot store"):
        binary_rows([column], [name], "the sink s")
