"""JSON records that are decoded in tasks. `tests/spark` compares the result with Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.columns import MALFORMED_RECORD
from tidegate.connectors.formats.json import decode_json, json_schema
from tidegate.operators.vectorized import VectorFailed

# 2026-01-01.
START_US = 1_767_225_600_000_000
COLUMNS = [
    ("a", "BIGINT"),
    ("i", "INT"),
    ("d", "DOUBLE"),
    ("b", "BOOLEAN"),
    ("s", "STRING"),
    ("t", "TIMESTAMP"),
]


def rows(*texts: bytes) -> list[dict[str, object]]:
    schema = json_schema(COLUMNS)
    assert schema is not None
    decoded: list[dict[str, object]] = decode_json(list(texts), schema).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in decoded]


def test_decodes_plain_records() -> None:
    text = '{"a": -5, "i": 7, "d": 1e3, "b": true, "s": "ä\\n\\"", "x": {"y": [1, "]"]}}'.encode()
    records = rows(text, b"{}", b'{"s":null, "a":1}', b'{"s":"\\u00e4\\ud83d\\ude00"}')
    assert records == [
        {"a": -5, "i": 7, "d": 1000.0, "b": True, "s": 'ä\n"'},
        {},
        {"a": 1},
        {"s": "ä😀"},
    ]


def test_malformed_records_keep_their_position() -> None:
    texts = [b'{"a":1}', b'{"a":2', b'{"a":3}', b"", b' {"a":4} ', b'{"a":5,}', b'{"s":"\xff"}']
    texts.append(b'{"a":6}{"a":7}')
    assert rows(*texts) == [
        {"a": 1},
        {MALFORMED_RECORD: '{"a":2'},
        {"a": 3},
        {MALFORMED_RECORD: ""},
        {"a": 4},
        {MALFORMED_RECORD: '{"a":5,}'},
        {MALFORMED_RECORD: '{"s":"\ufffd"}'},
        {MALFORMED_RECORD: '{"a":6}{"a":7}'},
    ]


@pytest.mark.parametrize(
    ("texts", "micros"),
    [
        ([b'{"t":"2026-01-01T00:00:00.5Z"}', b'{"t":"2026-01-01 02:00:00+02:00"}'], [500_000, 0]),
        ([b'{"t":"2026-01-01 00:00:01"}', b'{"t":null}'], [1_000_000, None]),
        ([b'{"t":"2026-01-01T00:00:00Z"}', b'{"t":"2026-01-01T00:00:02"}'], [0, 2_000_000]),
    ],
)
def test_decodes_timestamps_with_and_without_zone(
    texts: list[bytes], micros: list[int | None]
) -> None:
    schema = json_schema(COLUMNS)
    assert schema is not None
    timestamps = decode_json(texts, schema).column("t").cast(pa.int64()).to_pylist()
    assert [None if us is None else us - START_US for us in timestamps] == micros


@pytest.mark.parametrize(
    "texts",
    [
        [b'{"a":\n1}'],
        [b"null"],
        [b"{'a':1"],
        [b'{"x":INF,'],
        [b'{"a":1},"x":2'],
        [b'{"a":1},"end":1} x'],
        [b'{"s":"\\ud83d"}'],
        [b'{"x":"\\ude00\\ud83d"}'],
        [b'{"x":"\\\\ud83d\\ude00"}'],
        [b'{"d":NaN}'],
        [b'{"x":[ -Inf]}'],
        [b'{"d":-0}'],
        [b'{"d":1e999}'],
        [b'{"a":1,"a":1}'],
        [b'{"s":1}'],
        [b'{"t":"2026-02-30T00:00:00Z"}'],
        [b'{"t":"2026-01-01"}'],
        [b'{"x":' + b"[" * 1000 + b"]" * 1000 + b"}"],
        [b'{"x":1' + b"0" * 1000 + b"}"],
    ],
)
def test_ambiguous_records_are_left_to_spark(texts: list[bytes]) -> None:
    with pytest.raises(VectorFailed):
        rows(*texts)


@pytest.mark.parametrize("kind", ["DECIMAL(10,2)", "DATE", "FLOAT", "ARRAY<INT>", "TIMESTAMP_NTZ"])
def test_unsupported_types_are_left_to_spark(kind: str) -> None:
    assert json_schema([*COLUMNS, ("z", kind)]) is None
