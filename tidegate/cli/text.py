"""Formatting of values, numbers, tables and rows as plain text."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from tidegate.observe.rendering import json_value

# ---- Values


def format_value(item: Any) -> str:
    """Format a value of a row. Control characters are escaped, because input is not trusted."""
    if item is None:
        return "NULL"
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, datetime):
        return format_timestamp(item)
    if isinstance(item, bytes):
        return f"0x{item.hex()}"
    if isinstance(item, dict):
        return (
            "{" + ", ".join(f"{format_value(k)}: {format_value(v)}" for k, v in item.items()) + "}"
        )
    if isinstance(item, list | tuple):
        return "[" + ", ".join(format_value(element) for element in item) + "]"
    return escape(str(item))


def escape(text: str) -> str:
    """Escape the characters that a terminal would interpret, such as \\n and \\x1b."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def format_timestamp(time: datetime) -> str:
    """Format a timestamp without its time zone, which is always UTC, and without trailing zeros."""
    text = time.replace(tzinfo=None).isoformat(sep=" ")
    return text.rstrip("0") if time.microsecond else text


# ---- Numbers

_SIZE_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_count(number: int) -> str:
    return f"{number:,}"


def format_rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == 0 else f"{per_second:.1f}"


def format_percent(fraction: float) -> str:
    """Format a fraction as percentage. It is rounded down: only finished work shows 100 %."""
    return f"{int(fraction * 100)} %"


def progress_bar(fraction: float, width: int = 10) -> str:
    """Draw a bar, followed by the percentage."""
    full = int(fraction * width)
    return f"{'█' * full}{'░' * (width - full)} {format_percent(fraction):>5}"


def format_size(size_bytes: int) -> str:
    """Format a number of bytes with a decimal unit."""
    amount = float(size_bytes)
    for unit in _SIZE_UNITS:
        if amount < 1000 or unit == _SIZE_UNITS[-1]:
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if amount >= 100 or unit == "B" else f"{amount:.1f} {unit}"


def format_seconds(seconds: float) -> str:
    """Format a duration with its two largest units."""
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if seconds < 60:
        return f"{seconds:.1f} s"
    total = round(seconds)
    days, hours, minutes = total // 86_400, total // 3_600 % 24, total // 60 % 60
    if days:
        return f"{days:,} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {total % 60} s"


# ---- Tables


def format_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Format rows as a table in the style of psql."""
    cells = [[format_value(item) for item in row] for row in rows]
    names = [escape(name) for name in columns]
    widths = [
        max([_width(name), *(_width(row[index]) for row in cells)])
        for index, name in enumerate(names)
    ]
    numeric = numeric_columns(columns, rows)
    lines = [
        _table_line(names, widths, [False] * len(names)),
        "-+-".join("-" * width for width in widths),
        *(_table_line(row, widths, numeric) for row in cells),
    ]
    return "\n".join(lines)


def numeric_columns(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[bool]:
    """Return for each column whether all its values are numbers, which are aligned right."""
    numeric = []
    for index in range(len(columns)):
        values = [row[index] for row in rows if row[index] is not None]
        numeric.append(bool(values) and all(_is_number(value) for value in values))
    return numeric


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float | Decimal)


def _table_line(cells: Sequence[str], widths: Sequence[int], align_right: Sequence[bool]) -> str:
    padded = []
    for cell, width, right in zip(cells, widths, align_right, strict=True):
        padding = " " * (width - _width(cell))
        padded.append(padding + cell if right else cell + padding)
    return " | ".join(padded).rstrip()


def _width(text: str) -> int:
    """Return the width of a text on a terminal: wide characters take two cells, combining none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


# ---- Formats of rows and logs


class LogFormat(StrEnum):
    """The format of the log of a run."""

    TEXT = "text"
    JSON = "json"


class RowFormat(StrEnum):
    """The format of query results."""

    TABLE = "table"
    VERTICAL = "vertical"
    JSON = "json"
    CSV = "csv"


def format_rows(
    row_format: RowFormat, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> str:
    """Format rows, without a newline at the end."""
    if row_format is RowFormat.JSON:
        return "\n".join(_json_row(columns, row) for row in rows)
    if row_format is RowFormat.CSV:
        return _format_csv(columns, rows)
    if row_format is RowFormat.VERTICAL:
        return "\n".join(_vertical_lines(columns, rows))
    return format_table(columns, rows)


def _json_row(columns: Sequence[str], row: Sequence[Any]) -> str:
    content = {name: json_value(value) for name, value in zip(columns, row, strict=True)}
    return json.dumps(content, ensure_ascii=False)


def _format_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(value) for value in row])
    return out.getvalue().rstrip("\n")


def _csv_cell(value: Any) -> Any:
    """Encode nested values as JSON; the CSV writer encodes None as an empty cell."""
    encoded = json_value(value)
    if isinstance(encoded, dict | list):
        return json.dumps(encoded, ensure_ascii=False)
    if isinstance(encoded, bool):
        return "true" if encoded else "false"
    return encoded


def _vertical_lines(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Format each value on its own line, for rows that are wider than the terminal."""
    width = max((len(escape(name)) for name in columns), default=0)
    for number, row in enumerate(rows, start=1):
        yield f"-- row {number}"
        for name, cell in zip(columns, row, strict=True):
            yield f"{escape(name):<{width}} | {format_value(cell)}"
