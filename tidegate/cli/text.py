"""Values, numbers and tables as text. Nothing here knows about terminals or colours."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import Any


_SIZES = ("B", "kB", "MB", "GB", "TB")


def value(item: Any) -> str:
    """One cell. Rows come from outside, so control characters are shown and never obeyed."""
    if item is None:
        return "NULL"
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, datetime):
        return moment(item)
    if isinstance(item, bytes):
        return f"0x{item.hex()}"
    if isinstance(item, dict):
        return "{" + ", ".join(f"{value(k)}: {value(v)}" for k, v in item.items()) + "}"
    if isinstance(item, list | tuple):
        return "[" + ", ".join(value(part) for part in item) + "]"
    return printable(str(item))


def printable(text: str, keep: str = "") -> str:
    """The text with everything a terminal would act on written out, such as \\n and \\x1b."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in keep
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def is_number(item: Any) -> bool:
    """Whether a value lines up on the right."""
    return not isinstance(item, bool) and (
        isinstance(item, int | float) or type(item).__name__ == "Decimal"
    )


def moment(time: datetime) -> str:
    """A time without its zone, which is always UTC, and without zeros that say nothing."""
    text = time.replace(tzinfo=None).isoformat(sep=" ")
    return text.rstrip("0") if time.microsecond else text


def count(number: int) -> str:
    return f"{number:,}"


def rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == 0 else f"{per_second:.1f}"


def percent(share: float) -> str:
    """Rounded down: what is not done is not 100 %."""
    return f"{int(share * 100)} %"


def bar(share: float, width: int = 10) -> str:
    """A share as a bar with its number."""
    full = int(share * width)
    return f"{'█' * full}{'░' * (width - full)} {percent(share):>5}"


def size(bytes_: int) -> str:
    """Bytes in the unit that keeps the number short."""
    amount = float(bytes_)
    for unit in _SIZES:
        if amount < 1000 or unit == _SIZES[-1]:
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if amount >= 100 or unit == "B" else f"{amount:.1f} {unit}"


def duration(seconds: float) -> str:
    """A length of time in its two largest units."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    days, hours, minutes = whole // 86_400, whole // 3_600 % 24, whole // 60 % 60
    if days:
        return f"{days:,} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns lined up under their names, as psql draws them."""
    cells = [[value(item) for item in row] for row in rows]
    heads = [printable(name) for name in columns]
    widths = [
        max([_width(head), *(_width(row[index]) for row in cells)])
        for index, head in enumerate(heads)
    ]
    right = right_aligned(columns, rows)
    lines = [
        _line(heads, widths, [False] * len(heads)),
        "-+-".join("-" * width for width in widths),
        *(_line(row, widths, right) for row in cells),
    ]
    return "\n".join(lines)


def right_aligned(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[bool]:
    """Which columns hold nothing but numbers."""
    aligned = []
    for index in range(len(columns)):
        present = [row[index] for row in rows if row[index] is not None]
        aligned.append(bool(present) and all(is_number(item) for item in present))
    return aligned


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = []
    for cell, width, to_right in zip(cells, widths, right, strict=True):
        blank = " " * (width - _width(cell))
        padded.append(blank + cell if to_right else cell + blank)
    return " | ".join(padded).rstrip()


def _width(text: str) -> int:
    """The columns a text takes up: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )
