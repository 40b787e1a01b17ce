"""Types that all packages share: spans, durations, changelog kinds and names of functions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

MICROS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_UNIT_ALIASES = {
    "us": "microsecond",
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "hr": "hour",
    "d": "day",
    "w": "week",
}
# Window functions that number the rows of a partition, and those that depend on how many there are.
RANK_FUNCTIONS = frozenset({"ROW_NUMBER", "RANK", "DENSE_RANK"})
WHOLE_PARTITION_FUNCTIONS = frozenset({"NTILE", "PERCENT_RANK", "CUME_DIST"})
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")


@dataclass(frozen=True)
class Span:
    """A half-open range of characters in a script."""

    start: int
    end: int

    def cover(self, other: Span) -> Span:
        """Return the smallest span that contains both."""
        return Span(min(self.start, other.start), max(self.end, other.end))


class ChangelogKind(Enum):
    """The meaning of a stream's rows: appended, upserts by key, or changes with retractions."""

    APPEND = "append"
    UPSERT = "upsert"
    CHANGELOG = "changelog"


def unit_micros(unit: str) -> int | None:
    """Return the microseconds of a unit such as SECOND, minutes or ms; None for calendar units."""
    word = unit.lower()
    word = _UNIT_ALIASES.get(word, word)
    return MICROS.get(word) or MICROS.get(word.removesuffix("s"))


def parse_duration(text: str) -> int:
    """Parse a duration such as '30 s' or '1 day 2 hours' and return its microseconds."""
    total = 0.0
    position = 0
    while position < len(text):
        match = _DURATION.match(text, position)
        micros = unit_micros(match.group(2)) if match else None
        if match is None or micros is None:
            raise ValueError(f"{text!r} is not a duration such as '30 s' or '10 min'")
        total += float(match.group(1)) * micros
        position = match.end()
    if position == 0:
        raise ValueError("an empty text is not a duration such as '30 s' or '10 min'")
    return round(total)


def format_duration_us(micros: int) -> str:
    """Format a duration as its shortest exact text: '90 s', '2 min'."""
    sign = "-" if micros < 0 else ""
    value = abs(micros)
    if value == 0:
        return "0 s"
    for unit, label in (
        ("day", "d"),
        ("hour", "h"),
        ("minute", "min"),
        ("second", "s"),
        ("millisecond", "ms"),
    ):
        if value % MICROS[unit] == 0:
            return f"{sign}{value // MICROS[unit]} {label}"
    return f"{sign}{value} us"


def interval_sql(micros: int) -> str:
    """Format a duration as an SQL interval, in the largest exact unit."""
    units = ("day", "hour", "minute", "second", "millisecond", "microsecond")
    unit = next(unit for unit in units if micros % MICROS[unit] == 0)
    return f"INTERVAL '{micros // MICROS[unit]}' {unit.upper()}"
