"""Explicit watermarks: after row i of a source its watermark is w.

Tidegate has no statement that sets a watermark. So a source with explicit watermarks gets a delay
so long that its rows never move the watermark, and a hidden row, which the query does not see,
whose event time is w plus that delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from tidegate.testing.case import Mark, Row
from tidegate.testing.fields import Fields, shown

MARK = "_mark"
# Longer than the span of any data, short enough that w plus it is still a timestamp.
LONG_DELAY_MS = 100 * 365 * 24 * 3600 * 1000
# Watermarks such as Flink's largest long mean the end of time.
_LAST_MS = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp() * 1000)
_INDEX = ("row_index", "after_row", "after_index", "after", "row", "index", "i")
_VALUE = ("watermark_ms", "watermark", "w")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_marks(item: Fields, time_column: str | None) -> tuple[Mark, ...]:
    """A list of {row_index, watermark} or of pairs; a watermark is a time or milliseconds."""
    if not item.has("explicit_watermarks"):
        return ()
    if time_column is None:
        raise item.error("explicit_watermarks", "expected a time_column beside them")
    raw = item.values["explicit_watermarks"]
    entries = (
        list(raw.items()) if isinstance(raw, Mapping) else item.sequence("explicit_watermarks")
    )
    marks = [_mark(item, position, entry) for position, entry in enumerate(entries)]
    return tuple(sorted(marks, key=lambda mark: mark.row_index))


def _mark(item: Fields, position: int, entry: object) -> Mark:
    where = f"explicit_watermarks[{position}]"
    index: Any = None
    value: Any = None
    if isinstance(entry, Mapping):
        index = next((entry[name] for name in _INDEX if name in entry), None)
        value = next((entry[name] for name in _VALUE if name in entry), None)
    elif isinstance(entry, list | tuple) and len(entry) == 2:
        index, value = entry
    if isinstance(index, str) and index.lstrip("-").isdigit():
        index = int(index)
    if not isinstance(index, int) or isinstance(index, bool):
        raise item.error(where, f"expected row_index and watermark, found {shown(entry)}")
    at = _milliseconds(value)
    if at is None:
        raise item.error(where, f"expected a time or milliseconds, found {shown(value)}")
    return Mark(index, min(at, _LAST_MS))


def _milliseconds(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        at = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (at - _EPOCH) // timedelta(milliseconds=1)
    if isinstance(value, date):
        return (datetime(value.year, value.month, value.day, tzinfo=UTC) - _EPOCH) // timedelta(
            milliseconds=1
        )
    return None


def marked_row(time_column: str, mark: Mark) -> Row:
    """The hidden row that moves the watermark."""
    at = _EPOCH + timedelta(milliseconds=mark.watermark_ms + LONG_DELAY_MS)
    return {time_column: at, MARK: True}
