"""What a stream gave out, added up: signed rows to the rows that stand, upserts by their key."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.columns import OP
from tidegate.testing.case import Row
from tidegate.testing.outcome import Mismatch
from tidegate.types import ChangelogKind

_SPACES = re.compile(" +")


@dataclass(frozen=True)
class Change:
    """One row as it came out; rows of streams without _op are inserts."""

    op: str
    row: Row

    @property
    def sign(self) -> int:
        return 1 if self.op.startswith("+") else -1


@dataclass
class Output:
    """Everything a stream gave out so far."""

    changelog: ChangelogKind
    key: tuple[str, ...] = ()
    changes: list[Change] = field(default_factory=list)
    schema: pa.Schema | None = None
    # Some suites write down rows with runs of spaces as one.
    folds_spaces: bool = False

    def add(self, table: pa.Table) -> None:
        """The rows of one epoch."""
        self.schema = table.schema
        for row in table.to_pylist():
            if self.folds_spaces:
                row = {name: fold_spaces(value) for name, value in row.items()}
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


def fold_spaces(value: Any) -> Any:
    """A text with one space for each run of them."""
    return _SPACES.sub(" ", value) if isinstance(value, str) else value


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
