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

# ---- Values of case files and of Arrow, brought to one form so that they can be compared.


def actual(value: Any) -> Any:
    """A value that came out of Arrow: times in UTC, maps as mappings."""
    if isinstance(value, datetime):
        return _utc(value)
    if isinstance(value, Mapping):
        return {name: actual(item) for name, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {actual(key): actual(item) for key, item in value}
        return [actual(item) for item in value]
    return value


def expected(value: Any, kind: pa.DataType | None) -> Any:
    """A value of a case file, read as the type of the output; what cannot be read stays."""
    if value is None or kind is None:
        return value
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [expected(item, kind.value_type) for item in value] if _is_list(value) else value
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        return _struct(value, kind)
    if pa.types.is_map(kind):
        return _expected_map(value, kind)
    try:
        return _scalar(value, kind)
    except (ValueError, ArithmeticError):
        return value


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _struct(value: Mapping[str, Any], kind: pa.DataType) -> dict[str, Any]:
    """The fields of the type in their order; a field it does not have stays and differs."""
    by_lower = {name.lower(): item for name, item in value.items()}
    field_names = {item.name.lower() for item in kind}
    fields = {item.name: expected(by_lower.get(item.name.lower()), item.type) for item in kind}
    return fields | {name: item for name, item in value.items() if name.lower() not in field_names}


def _expected_map(value: Any, kind: pa.DataType) -> Any:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not _is_list(pairs) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        return value
    read = {expected(key, kind.key_type): expected(item, kind.item_type) for key, item in pairs}
    return read or []


def _scalar(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return _time(value)
    if pa.types.is_date(kind):
        return date.fromisoformat(value) if isinstance(value, str) else value
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return value.isoformat() if isinstance(value, date) else value
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return value.encode() if isinstance(value, str) else value
    if isinstance(value, bool):
        return value
    if pa.types.is_decimal(kind):
        return Decimal(str(value)) if isinstance(value, str | int | float) else value
    if pa.types.is_floating(kind):
        return float(value) if isinstance(value, str | int | float) else value
    if pa.types.is_integer(kind) and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _time(value: Any) -> Any:
    """An ISO text, with or without a zone, or what YAML made of one."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return _utc(value)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value


def _utc(value: datetime) -> datetime:
    """Times without a zone are UTC; the class is datetime itself, not pandas' own."""
    at = value.astimezone(UTC) if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return datetime(
        at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, tzinfo=UTC
    )


def show(value: Any) -> str:
    """A value for people: NULL, ISO times in UTC, texts without quotes."""
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {show(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(show(item) for item in value) + "]"
    return str(value)


# ---- What a stream gave out, added up: signed rows to the rows that stand, upserts by their key.


@dataclass(frozen=True)
class Change:
    """One row as it came out; rows of streams without _op are inserts."""

    op: str
    row: Row

    @property
    def sign(self) -> int:
        return 1 if self.op.startswith("+") else -1


@dataclass
class StreamOutput:
    """Everything a stream gave out so far."""

    changelog: ChangelogKind
    key: tuple[str, ...] = ()
    changes: list[Change] = field(default_factory=list)
    schema: pa.Schema | None = None

    def add(self, table: pa.Table) -> None:
        """The rows of one epoch."""
        self.schema = table.schema
        for row in table.to_pylist():
            op = row.pop(OP, None) or "+I"
            self.changes.append(Change(op, row))

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """The columns of a row, without _op."""
        if self.schema is None:
            return {}
        return {item.name: item.type for item in self.schema if item.name != OP}

    def all_rows(self) -> list[Row]:
        """The rows that stand."""
        if self.changelog is ChangelogKind.UPSERT and self.key:
            return list(self._by_key(self.changes).values())
        rows, owed = standing(self.changes)
        if owed:
            raise Mismatch(f"the changelog retracts a row that is not there: {dict(owed[0])}")
        return rows

    def new_rows(self, since: int) -> list[Row]:
        """The rows that a reader of the stream has now and had not, or had otherwise, before."""
        later = self.changes[since:]
        if self.changelog is ChangelogKind.UPSERT and self.key:
            return list(self._by_key(later).values())
        return standing(later)[0]

    def _by_key(self, changes: Iterable[Change]) -> dict[Hashable, Row]:
        rows: dict[Hashable, Row] = {}
        for change in changes:
            key = freeze([change.row[name] for name in self.key])
            if change.sign > 0:
                rows[key] = change.row
            elif change.op == "-D":
                rows.pop(key, None)
        return rows


def standing(changes: Sequence[Change]) -> tuple[list[Row], list[Row]]:
    """The rows that are left in order of arrival, and those retracted that were not there.

    Within an epoch a row may be retracted before it is added: only the balance counts.
    """
    rows: list[Row | None] = []
    places: dict[Hashable, list[int]] = {}
    owed: dict[Hashable, list[Row]] = {}
    for change in changes:
        key = freeze(change.row)
        if change.sign > 0 and owed.get(key):
            owed[key].pop()
        elif change.sign > 0:
            places.setdefault(key, []).append(len(rows))
            rows.append(change.row)
        elif places.get(key):
            rows[places[key].pop()] = None
        else:
            owed.setdefault(key, []).append(change.row)
    left = [row for row in rows if row is not None]
    return left, [row for debts in owed.values() for row in debts]


def freeze(value: Any) -> Hashable:
    """A value that can be a key: equal if the values are, whatever the order of their fields."""
    if isinstance(value, Mapping):
        pairs = ((freeze(name), freeze(item)) for name, item in value.items())
        return tuple(sorted(pairs, key=repr))
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    if isinstance(value, float) and value != value:
        return ("NaN",)
    return (type(value).__name__, value)


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
    expected_rows: Sequence[Row],
    actual_rows: Sequence[Row],
    columns: Mapping[str, pa.DataType],
    ordered: bool = False,
) -> Difference | None:
    """How the rows found differ from the rows wanted; None if they do not."""
    names = tuple(columns) or tuple(dict.fromkeys(name for row in expected_rows for name in row))
    if columns and expected_rows:
        note = _column_note(expected_rows, names)
        if note is not None:
            return Difference(names, (), (), note)
    left = [_wanted_row(row, names, columns) for row in expected_rows]
    right = [{name: actual(row.get(name)) for name in names} for row in actual_rows]
    if ordered:
        return _ordered(names, left, right)
    missing, unexpected = _unmatched(left, right)
    if not missing and not unexpected:
        return None
    return Difference(names, tuple(missing), tuple(unexpected))


def _column_note(rows: Sequence[Row], names: Sequence[str]) -> str | None:
    """Columns must be the same on both sides; one that no expected row has is not ignored."""
    row_columns = {name.lower(): name for row in rows for name in row}
    columns = {name.lower() for name in names}
    extra = [name for lower, name in row_columns.items() if lower not in columns]
    if extra:
        return f"the output has no column {', '.join(extra)}; it has {', '.join(names)}"
    left_out = [name for name in names if name.lower() not in row_columns]
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
