"""Compare the rows of a stream with the expected rows, as bags or in order, and format a diff.

Expected values are read according to the types of the output: a string is a time for a TIMESTAMP,
and an exact number for a DECIMAL. Floats are equal within one millionth.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tidegate.columns import OP
from tidegate.testing.case import Mismatch, Row
from tidegate.types import ChangelogKind

# ---- Values of case files and of Arrow, converted to a common form.


def normalize_output(value: Any) -> Any:
    """Convert a value of an Arrow table: times to UTC, maps to mappings."""
    if isinstance(value, datetime):
        return _utc(value)
    if isinstance(value, Mapping):
        return {name: normalize_output(item) for name, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {normalize_output(key): normalize_output(item) for key, item in value}
        return [normalize_output(item) for item in value]
    return value


def convert_expected(value: Any, data_type: pa.DataType | None) -> Any:
    """Convert a value of a case file to the type of the output; keep it if that fails."""
    if value is None or data_type is None:
        return value
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return (
            [convert_expected(item, data_type.value_type) for item in value]
            if _is_list(value)
            else value
        )
    if pa.types.is_struct(data_type) and isinstance(value, Mapping):
        return _struct(value, data_type)
    if pa.types.is_map(data_type):
        return _map(value, data_type)
    try:
        return _scalar(value, data_type)
    except (ValueError, ArithmeticError):
        return value


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _struct(value: Mapping[str, Any], data_type: pa.DataType) -> dict[str, Any]:
    """Order fields as in the type; keep a field that the type does not have, so that it differs."""
    by_lower = {name.lower(): item for name, item in value.items()}
    field_names = {item.name.lower() for item in data_type}
    fields = {
        item.name: convert_expected(by_lower.get(item.name.lower()), item.type)
        for item in data_type
    }
    return fields | {name: item for name, item in value.items() if name.lower() not in field_names}


def _map(value: Any, data_type: pa.DataType) -> Any:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not _is_list(pairs) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        return value
    entries = {
        convert_expected(key, data_type.key_type): convert_expected(item, data_type.item_type)
        for key, item in pairs
    }
    return entries or []


def _scalar(value: Any, data_type: pa.DataType) -> Any:
    if pa.types.is_timestamp(data_type):
        return _timestamp(value)
    if pa.types.is_date(data_type):
        return date.fromisoformat(value) if isinstance(value, str) else value
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return value.isoformat() if isinstance(value, date) else value
    if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type):
        return value.encode() if isinstance(value, str) else value
    if isinstance(value, bool):
        return value
    if pa.types.is_decimal(data_type):
        return Decimal(str(value)) if isinstance(value, str | int | float) else value
    if pa.types.is_floating(data_type):
        return float(value) if isinstance(value, str | int | float) else value
    if pa.types.is_integer(data_type) and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _timestamp(value: Any) -> Any:
    """Parse an ISO time with or without a time zone; YAML may have parsed it already."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return _utc(value)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value


def _utc(value: datetime) -> datetime:
    """Convert to UTC, the default of times without a zone, and from the subclass of pandas."""
    utc = value.astimezone(UTC) if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return datetime(
        utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, utc.microsecond, tzinfo=UTC
    )


def format_value(value: Any) -> str:
    """Format a value for a diff: NULL, ISO times in UTC, strings without quotes."""
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{name}: {format_value(item)}" for name, item in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(format_value(item) for item in value) + "]"
    return str(value)


# ---- The output of a stream: apply retractions to signed rows, and upserts by their key.


@dataclass(frozen=True)
class Change:
    """One emitted row; rows of streams without _op are inserts."""

    op: str
    row: Row

    @property
    def sign(self) -> int:
        return 1 if self.op.startswith("+") else -1


@dataclass
class StreamOutput:
    """All rows that a stream has emitted so far."""

    changelog: ChangelogKind
    key: tuple[str, ...] = ()
    changes: list[Change] = field(default_factory=list)
    schema: pa.Schema | None = None

    def add(self, table: pa.Table) -> None:
        """Add the rows of one epoch."""
        self.schema = table.schema
        for row in table.to_pylist():
            op = row.pop(OP, None) or "+I"
            self.changes.append(Change(op, row))

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """The columns of a row except _op, with their types."""
        if self.schema is None:
            return {}
        return {item.name: item.type for item in self.schema if item.name != OP}

    def all_rows(self) -> list[Row]:
        """Return the rows after all changes are applied."""
        if self.changelog is ChangelogKind.UPSERT and self.key:
            return list(self._by_key(self.changes).values())
        rows, unmatched = net_rows(self.changes)
        if unmatched:
            raise Mismatch(
                f"the changelog retracts a row that does not exist: {dict(unmatched[0])}"
            )
        return rows

    def new_rows(self, since: int) -> list[Row]:
        """Return the rows that were added or replaced since the first `since` changes."""
        later = self.changes[since:]
        if self.changelog is ChangelogKind.UPSERT and self.key:
            return list(self._by_key(later).values())
        return net_rows(later)[0]

    def _by_key(self, changes: Iterable[Change]) -> dict[Hashable, Row]:
        rows: dict[Hashable, Row] = {}
        for change in changes:
            key = freeze([change.row[name] for name in self.key])
            if change.sign > 0:
                rows[key] = change.row
            elif change.op == "-D":
                rows.pop(key, None)
        return rows


def net_rows(changes: Sequence[Change]) -> tuple[list[Row], list[Row]]:
    """Return the rows that remain, in arrival order, and the retractions without a row.

    Within an epoch a row may be retracted before it is added, so only the balance counts.
    """
    rows: list[Row | None] = []
    indexes: dict[Hashable, list[int]] = {}
    unmatched: dict[Hashable, list[Row]] = {}
    for change in changes:
        key = freeze(change.row)
        if change.sign > 0 and unmatched.get(key):
            unmatched[key].pop()
        elif change.sign > 0:
            indexes.setdefault(key, []).append(len(rows))
            rows.append(change.row)
        elif indexes.get(key):
            rows[indexes[key].pop()] = None
        else:
            unmatched.setdefault(key, []).append(change.row)
    remaining = [row for row in rows if row is not None]
    return remaining, [row for retractions in unmatched.values() for row in retractions]


def freeze(value: Any) -> Hashable:
    """Return a hashable form of a value; the order of fields does not matter."""
    if isinstance(value, Mapping):
        pairs = ((freeze(name), freeze(item)) for name, item in value.items())
        return tuple(sorted(pairs, key=repr))
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    if isinstance(value, float) and value != value:
        return ("NaN",)
    return (type(value).__name__, value)


TOLERANCE = 1e-6
MAX_DIFF_ROWS = 20
MAX_CELL_WIDTH = 40


@dataclass(frozen=True)
class Difference:
    """The difference of two bags of rows. The note is set if their order or columns differ."""

    columns: tuple[str, ...]
    missing: tuple[Row, ...]
    unexpected: tuple[Row, ...]
    note: str | None = None

    @property
    def reason(self) -> str:
        """The difference in one line."""
        if self.note is not None:
            return self.note
        counts = ((self.missing, "missing"), (self.unexpected, "unexpected"))
        return ", ".join(
            f"{len(rows)} {'row' if len(rows) == 1 else 'rows'} {word}"
            for rows, word in counts
            if rows
        )

    def render(self) -> str:
        """Format the rows as a table; − marks missing rows, + unexpected ones."""
        marked = [
            *(("−", row) for row in self.missing[:MAX_DIFF_ROWS]),
            *(("+", row) for row in self.unexpected[:MAX_DIFF_ROWS]),
        ]
        table = [(" ", list(self.columns))]
        table += [(sign, [_cell(row.get(name)) for name in self.columns]) for sign, row in marked]
        widths = [max(len(cells[i]) for _, cells in table) for i in range(len(self.columns))]
        lines = [
            f"  {sign} " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True))
            for sign, cells in table
        ]
        for sign, rows in (("−", self.missing), ("+", self.unexpected)):
            if len(rows) > MAX_DIFF_ROWS:
                lines.append(f"  {sign} … and {len(rows) - MAX_DIFF_ROWS} more")
        return "\n".join(line.rstrip() for line in lines)


def compare(
    expected_rows: Sequence[Row],
    actual_rows: Sequence[Row],
    columns: Mapping[str, pa.DataType],
    ordered: bool = False,
) -> Difference | None:
    """Compare the actual rows with the expected ones; return None if they are equal."""
    names = tuple(columns) or tuple(dict.fromkeys(name for row in expected_rows for name in row))
    if columns and expected_rows:
        note = _column_note(expected_rows, names)
        if note is not None:
            return Difference(names, (), (), note)
    left = [_convert_row(row, names, columns) for row in expected_rows]
    right = [{name: normalize_output(row.get(name)) for name in names} for row in actual_rows]
    if ordered:
        return _compare_in_order(names, left, right)
    missing, unexpected = _unmatched(left, right)
    if not missing and not unexpected:
        return None
    return Difference(names, tuple(missing), tuple(unexpected))


def _column_note(rows: Sequence[Row], names: Sequence[str]) -> str | None:
    """Describe how the columns differ. Every output column must be in an expected row."""
    row_columns = {name.lower(): name for row in rows for name in row}
    columns = {name.lower() for name in names}
    extra = [name for lower, name in row_columns.items() if lower not in columns]
    if extra:
        return f"the output has no column {', '.join(extra)}; it has {', '.join(names)}"
    omitted = [name for name in names if name.lower() not in row_columns]
    if omitted:
        return f"no expected row has the column {', '.join(omitted)} of the output"
    return None


def _convert_row(row: Row, names: Sequence[str], columns: Mapping[str, pa.DataType]) -> Row:
    by_lower = {name.lower(): value for name, value in row.items()}
    return {name: convert_expected(by_lower.get(name.lower()), columns.get(name)) for name in names}


def _compare_in_order(
    names: tuple[str, ...], left: Sequence[Row], right: Sequence[Row]
) -> Difference | None:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if not is_equal(one, other):
            missing, unexpected = _unmatched(left, right)
            if missing or unexpected:
                return Difference(names, tuple(missing), tuple(unexpected))
            note = f"the rows are in a different order from row {index + 1} on"
            return Difference(names, (one,), (other,), note)
    if len(left) == len(right):
        return None
    return Difference(names, tuple(left[len(right) :]), tuple(right[len(left) :]))


def _unmatched(left: Sequence[Row], right: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Remove equal rows from two bags: first exact matches, then those within the tolerance."""
    common = Counter(freeze(row) for row in left) & Counter(freeze(row) for row in right)
    missing = _subtract(left, Counter(common))
    unexpected = _subtract(right, Counter(common))
    groups: dict[Hashable, list[Row]] = {}
    for row in unexpected:
        groups.setdefault(_without_floats(row), []).append(row)
    still_missing = []
    for row in missing:
        group = groups.get(_without_floats(row), [])
        match = next((index for index, other in enumerate(group) if is_equal(row, other)), None)
        if match is None:
            still_missing.append(row)
        else:
            del group[match]
    still_unexpected = {id(row) for group in groups.values() for row in group}
    return still_missing, [row for row in unexpected if id(row) in still_unexpected]


def _subtract(rows: Sequence[Row], common: Counter[Hashable]) -> list[Row]:
    """Remove as many rows as `common` counts."""
    remaining = []
    for row in rows:
        key = freeze(row)
        if common[key] > 0:
            common[key] -= 1
        else:
            remaining.append(row)
    return remaining


def _without_floats(value: Any) -> Hashable:
    """Return a key that is equal for values that differ only in floats."""
    if isinstance(value, Mapping):
        return frozenset((freeze(name), _without_floats(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_without_floats(item) for item in value)
    return "float" if isinstance(value, float) else freeze(value)


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal, floats within the tolerance."""
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return type(one) is type(other) and bool(one == other)


def _cell(value: Any) -> str:
    text = format_value(value)
    return text if len(text) <= MAX_CELL_WIDTH else text[: MAX_CELL_WIDTH - 1] + "…"
