"""Formatting of values, numbers and tables."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from tidegate.cli import text


@pytest.mark.parametrize(
    ("item", "formatted"),
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
def test_format_value(item: Any, formatted: str) -> None:
    assert text.format_value(item) == formatted


@pytest.mark.parametrize(
    ("seconds", "formatted"),
    [
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (61, "1 min 1 s"),
        (3_660, "1 h 1 min"),
        (90_000, "1 d 1 h"),
        (-3, "-3.0 s"),
    ],
)
def test_format_duration(seconds: float, formatted: str) -> None:
    assert text.format_seconds(seconds) == formatted


@pytest.mark.parametrize(
    ("size_bytes", "formatted"),
    [(0, "0 B"), (999, "999 B"), (1_200, "1.2 kB"), (123_456_789, "123 MB"), (10**16, "10000 TB")],
)
def test_format_size(size_bytes: int, formatted: str) -> None:
    assert text.format_size(size_bytes) == formatted


def test_format_table() -> None:
    rows = [(1, "日本"), (None, "x"), (200, None)]
    assert text.format_table(("number", "word"), rows).splitlines() == [
        "number | word",
        "-------+-----",
        "     1 | 日本",
        "  NULL | x",
        "   200 | NULL",
    ]


def test_format_table_without_rows() -> None:
    assert text.format_table(("a", "b"), []).splitlines() == ["a | b", "--+--"]
