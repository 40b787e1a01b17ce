"""Values, numbers and tables as text. Nothing here knows about terminals or colours."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import SideStream, Sink, Stream
from tidegate.observe.status import State, StreamStatus, json_value

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
    """Format a timestamp without its zone, which is always UTC, and without trailing zeros."""
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


# ---- Rows as text in the shape that people or other programs want.


class LogFormat(StrEnum):
    """The format of the log of a run."""

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
    return table(columns, rows)


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
    width = max((len(printable(name)) for name in columns), default=0)
    for number, row in enumerate(rows, start=1):
        yield f"-- row {number}"
        for name, cell in zip(columns, row, strict=True):
            yield f"{printable(name):<{width}} | {value(cell)}"


# ---- What a stream is doing or waiting for, and in the end what was written where.


def doing(status: StreamStatus, ends: bool) -> str | None:
    """What a person should know beside the numbers; None if rows are passing."""
    if status.error is not None:
        return status.error
    if status.state not in (State.STARTING, State.RUNNING):
        return None
    working = status.working_seconds
    if status.epoch is None and working is not None:
        return f"working on the first epoch, which takes longest: {int(working)} s"
    if status.epoch is None:
        return "waiting for the first rows"
    if status.rows_in_per_second > 0:
        return None
    if working is not None and working >= 1:
        return f"working on an epoch: {int(working)} s"
    if not status.open_windows:
        return "waiting for rows"
    windows = f"{plural(status.open_windows, 'window')} open"
    closing = "" if ends else "; what is open at the end closes with --until-end"
    return f"waiting for rows; {windows}{closing}"


def notes(statuses: Sequence[StreamStatus], ends: bool) -> list[str]:
    """One line for each thing to know, with the streams that it is about."""
    streams: dict[str, list[str]] = {}
    for status in statuses:
        said = doing(status, ends)
        if said is not None:
            streams.setdefault(said, []).append(status.name)
    if len(streams) == 1 and len(statuses) == sum(map(len, streams.values())):
        return list(streams)
    return [f"{', '.join(names)}: {said}" for said, names in streams.items()]


def written(catalog: Catalog, statuses: Sequence[StreamStatus], data: str) -> Iterator[str]:
    """For each sink how many rows it got, and where they are."""
    rows = {status.name.lower(): status.rows_out for status in statuses}
    for sink in catalog.of(Sink):
        source = catalog.get(sink.source)
        given = rows.get(sink.source.lower())
        if isinstance(source, SideStream) and source.of_stream:
            parent = next((s for s in statuses if s.name.lower() == source.parent.lower()), None)
            if parent is not None:
                given = parent.late_rows if source.is_late else parent.dead_letters
        where = _place(sink, data)
        if given is not None and where is not None:
            yield f"{sink.name}: {plural(given, 'row')} of {sink.source} {where}"
    for stream in catalog.of(Stream):
        if stream.materialized and stream.name.lower() in rows:
            changes = plural(rows[stream.name.lower()], "change")
            yield f"{stream.name}: {changes} kept; {_asking(stream.name, data)}"


def _place(sink: Sink, data: str) -> str | None:
    if sink.connector == "files":
        folder = Path(sink.origin.folder) / sink.options["path"]
        local = "://" not in sink.options["path"]
        return f"→ {sink.options['format']} in {folder if local else sink.options['path']}"
    if sink.connector == "memory":
        return f"kept; {_asking(sink.source, data)}"
    if sink.connector in ("console", "blackhole"):
        return None
    target = sink.options.get("topic") or sink.options.get("table")
    return f"→ {sink.connector}{f' {target}' if target else ''}"


def _asking(name: str, data: str) -> str:
    return f'tidegate query {data} "SELECT * FROM {name}"'
