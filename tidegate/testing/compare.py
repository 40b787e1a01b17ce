"""Rows expected against rows that came out: as bags, or in order, and a diff to read.

The types of the output say how an expected value is read: a text is a time for a TIMESTAMP, an
exact number for a DECIMAL. Floats are equal within one millionth.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.testing.case import Row
from tidegate.testing.changes import freeze
from tidegate.testing.values import actual, expected, show

TOLERANCE = 1e-6
SHOWN = 20
_WIDTH = 40


@dataclass(frozen=True)
class Difference:
    """How two bags of rows differ; empty lists and a note if only the order or columns do."""

    columns: tuple[str, ...]
    missing: tuple[Row, ...]
    unexpected: tuple[Row, ...]
    note: str | None = None

    @property
    def reason(self) -> str:
        """One line."""
        if self.note is not None:
            return self.note
        counts = ((self.missing, "missing"), (self.unexpected, "unexpected"))
        return ", ".join(
            f"{len(rows)} {'row' if len(rows) == 1 else 'rows'} {word}"
            for rows, word in counts
            if rows
        )

    def render(self) -> str:
        """The rows under their columns: − is missing, + is unexpected."""
        marked = [
            *(("−", row) for row in self.missing[:SHOWN]),
            *(("+", row) for row in self.unexpected[:SHOWN]),
        ]
        table = [(" ", list(self.columns))]
        table += [(sign, [_cell(row.get(name)) for name in self.columns]) for sign, row in marked]
        widths = [max(len(cells[i]) for _, cells in table) for i in range(len(self.columns))]
        lines = [
            f"  {sign} " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True))
            for sign, cells in table
        ]
        for sign, rows in (("−", self.missing), ("+", self.unexpected)):
            if len(rows) > SHOWN:
                lines.append(f"  {sign} … and {len(rows) - SHOWN} more")
        return "\n".join(line.rstrip() for line in lines)


def compare(
    wanted: Sequence[Row],
    found: Sequence[Row],
    columns: Mapping[str, pa.DataType],
    ordered: bool = False,
) -> Difference | None:
    """How the rows found differ from the rows wanted; None if they do not."""
    names = tuple(columns) or tuple(dict.fromkeys(name for row in wanted for name in row))
    if columns and wanted:
        note = _column_note(wanted, names)
        if note is not None:
            return Difference(names, (), (), note)
    left = [_wanted_row(row, names, columns) for row in wanted]
    right = [{name: actual(row.get(name)) for name in names} for row in found]
    if ordered:
        return _ordered(names, left, right)
    missing, unexpected = _unmatched(left, right)
    if not missing and not unexpected:
        return None
    return Difference(names, tuple(missing), tuple(unexpected))


def _column_note(wanted: Sequence[Row], names: Sequence[str]) -> str | None:
    """Columns must be the same on both sides; one that no expected row has is not ignored."""
    given = {name.lower(): name for row in wanted for name in row}
    known = {name.lower() for name in names}
    extra = [name for lower, name in given.items() if lower not in known]
    if extra:
        return f"the output has no column {', '.join(extra)}; it has {', '.join(names)}"
    left_out = [name for name in names if name.lower() not in given]
    if left_out:
        return f"no expected row has the column {', '.join(left_out)} of the output"
    return None


def _wanted_row(row: Row, names: Sequence[str], columns: Mapping[str, pa.DataType]) -> Row:
    by_lower = {name.lower(): value for name, value in row.items()}
    return {name: expected(by_lower.get(name.lower()), columns.get(name)) for name in names}


def _ordered(
    names: tuple[str, ...], left: Sequence[Row], right: Sequence[Row]
) -> Difference | None:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if not same(one, other):
            missing, unexpected = _unmatched(left, right)
            if missing or unexpected:
                return Difference(names, tuple(missing), tuple(unexpected))
            note = f"the right rows in another order, from row {index + 1} on"
            return Difference(names, (one,), (other,), note)
    if len(left) == len(right):
        return None
    return Difference(names, tuple(left[len(right) :]), tuple(right[len(left) :]))


def _unmatched(left: Sequence[Row], right: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """What is left of two bags once equal rows are paired off, exact ones before close ones."""
    spare = Counter(freeze(row) for row in left) & Counter(freeze(row) for row in right)
    missing = _without(left, Counter(spare))
    unexpected = _without(right, Counter(spare))
    groups: dict[Hashable, list[Row]] = {}
    for row in unexpected:
        groups.setdefault(_rough(row), []).append(row)
    lost = []
    for row in missing:
        group = groups.get(_rough(row), [])
        match = next((index for index, other in enumerate(group) if same(row, other)), None)
        if match is None:
            lost.append(row)
        else:
            del group[match]
    kept = {id(row) for group in groups.values() for row in group}
    return lost, [row for row in unexpected if id(row) in kept]


def _without(rows: Sequence[Row], spare: Counter[Hashable]) -> list[Row]:
    """The rows less those that `spare` pays for."""
    kept = []
    for row in rows:
        key = freeze(row)
        if spare[key] > 0:
            spare[key] -= 1
        else:
            kept.append(row)
    return kept


def _rough(value: Any) -> Hashable:
    """Equal for values that can only differ in floats."""
    if isinstance(value, Mapping):
        return frozenset((freeze(name), _rough(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_rough(item) for item in value)
    return "float" if isinstance(value, float) else freeze(value)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, floats within the tolerance."""
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def _cell(value: Any) -> str:
    text = show(value)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
