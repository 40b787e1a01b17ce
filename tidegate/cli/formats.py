"""Rows as text in the shape that people or other programs want."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from tidegate.cli import text
from tidegate.observe.values import json_value


class LogFormat(StrEnum):
    """How a run tells what it does."""

    TEXT = "text"
    JSON = "json"


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    VERTICAL = "vertical"
    JSON = "json"
    CSV = "csv"


def formatted(kind: Format, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as text, without the last line's end."""
    if kind is Format.JSON:
        return "\n".join(json_row(dict(zip(columns, row, strict=True))) for row in rows)
    if kind is Format.CSV:
        return _csv(columns, rows)
    if kind is Format.VERTICAL:
        return "\n".join(_vertical(columns, rows))
    return text.table(columns, rows)


def json_row(row: dict[str, Any]) -> str:
    """A row as one line of JSON; what JSON has no word for is a text."""
    return json.dumps({name: json_value(value) for name, value in row.items()}, ensure_ascii=False)


def _csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(value) for value in row])
    return out.getvalue().rstrip("\n")


def _csv_cell(value: Any) -> Any:
    """NULL is empty; what is nested is JSON."""
    plain = json_value(value)
    if isinstance(plain, dict | list):
        return json.dumps(plain, ensure_ascii=False)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    return plain


def _vertical(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """A row below the other, a column a line: for rows that are wider than the screen."""
    width = max((len(text.printable(name)) for name in columns), default=0)
    for number, row in enumerate(rows, start=1):
        yield f"-- row {number}"
        for name, value in zip(columns, row, strict=True):
            yield f"{text.printable(name):<{width}} | {text.value(value)}"
