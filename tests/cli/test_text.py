"""Values, numbers and tables as text."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from tidegate.cli import text


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        (None, "NULL"),
        (True, "true"),
        (12, "12"),
        (Decimal("1.50"), "1.50"),
        (date(2024, 1, 2), "2024-01-02"),
        (datetime(2024, 1, 2, 3, 4, 5), "2024-01-02 03:04:05"),
        (datetime(2024, 1, 2, 3, 4, 5, 120_000, tzinfo=UTC), "2024-01-02 03:04:05.12"),
        (b"\x00\xff", "0x00ff"),
        ([1, None, "a"], "[1, NULL, a]"),
        ({"a": [True]}, "{a: [true]}"),
        ("naïve 日本", "naïve 日本"),
        ("a\nb\x1b[31m", "a\\nb\\x1b[31m"),
    ],
)
def test_value(item: Any, shown: str) -> None:
    assert text.value(item) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (61, "1 min 1 s"),
        (3_660, "1 h 1 min"),
        (90_000, "1 d 1 h"),
        (-3, "-3.0 s"),
    ],
)
def test_duration(seconds: float, shown: str) -> None:
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("bytes_", "shown"),
    [(0, "0 B"), (999, "999 B"), (1_200, "1.2 kB"), (123_456_789, "123 MB"), (10**16, "10000 TB")],
)
def test_size(bytes_: int, shown: str) -> None:
    assert text.size(bytes_) == shown


def test_table() -> None:
    rows = [(1, "日本"), (None, "x"), (200, None)]
    assert text.table(("number", "word"), rows).splitlines() == [
        "number | word",
        "-------+-----",
        "     1 | 日本",
        "  NULL | x",
        "   200 | NULL",
    ]


def test_table_without_rows() -> None:
    assert text.table(("a", "b"), []).splitlines() == ["a | b", "--+--"]
