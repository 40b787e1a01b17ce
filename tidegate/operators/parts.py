"""State by key: groups lie in parts by the hash of their keys, and only touched parts are read.

Each part is a log like that of a window: an epoch appends what came in, and the part is rewritten
when that outgrows what it began with. Parts are split when they get large. A part knows the
earliest moment at which one of its rows is due, so that only parts with something to close are
opened.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.contract import OperatorState, Tables
from tidegate.operators.group_kernels import HASH, concat

_NAME = "part"
_ROWS_A_PART = 4_096
_MOST_SEGMENTS = 16
Ints = npt.NDArray[np.int64]


@dataclass
class _Part:
    base: int = 0
    rows: int = 0
    groups: int = 0
    bytes: int = 0
    due: int | None = None
    segments: list[int] = field(default_factory=list)

    def as_json(self) -> list[object]:
        return [self.base, self.rows, self.groups, self.bytes, self.due, self.segments]


class PartLog:
    """The parts of one operator and key group; the index lives in the operator's meta.

    `combine` merges rows of the same group; `due` tells when each row is due, in the first table or
    in the first `timed` ones.
    """

    def __init__(
        self,
        state: OperatorState,
        schemas: Sequence[pa.Schema],
        combine: Callable[[Tables], Tables],
        due: Callable[[pa.Table], Ints] | None = None,
        timed: int = 1,
    ) -> None:
        self.state = state
        self.schemas = schemas
        self.combine = combine
        self.due = due
        self.timed = timed
        kept = state.meta.get("parts")
        self.next = int(kept["next"]) if kept else 0
        self.parts = [_Part(*part) for part in kept["parts"]] if kept else [_Part()]

    def save(self) -> None:
        self.state.meta["parts"] = {
            "next": self.next,
            "parts": [part.as_json() for part in self.parts],
        }
        self.state.gauges["rows"] = self.rows
        self.state.gauges["groups"] = sum(part.groups for part in self.parts)
        self.state.gauges["bytes"] = sum(part.bytes for part in self.parts)

    def compact(self) -> None:
        """Rewrite what lies in several segments, so that every group is counted once."""
        for number, part in enumerate(self.parts):
            if len(part.segments) > 1:
                self.replace([number], self.load([number]))

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def touched_by(self, hashes: Ints) -> list[int]:
        """The parts in which these keys would be."""
        if len(self.parts) == 1:
            return [0] if len(hashes) else []
        return [int(number) for number in np.unique(part_of(hashes, len(self.parts)))]

    def due_by(self, mark_us: int) -> list[int]:
        """The parts that may have something due at this moment."""
        return [n for n, p in enumerate(self.parts) if p.due is not None and p.due <= mark_us]

    def load(self, numbers: Iterable[int]) -> Tables:
        """The groups of these parts, combined."""
        parts = [tables for number in numbers for tables in self._read(self.parts[number])]
        if not parts:
            return tuple(schema.empty_table() for schema in self.schemas)
        return self.combine(concat(parts))

    def _read(self, part: _Part) -> list[Tables]:
        found = []
        for segment in part.segments:
            tables = self.state.get(_NAME, _key(segment), self.schemas)
            assert tables is not None, "a segment of the index is there"
            found.append(tables)
        return found

    def append(self, tables: Tables) -> None:
        """Add what came in, without reading what is there."""
        for number, piece in self._split(tables):
            part = self.parts[number]
            self._write(part, piece)
            appended = part.rows - part.base
            if len(part.segments) > _MOST_SEGMENTS or appended > max(part.base, 2 * _ROWS_A_PART):
                self.replace([number], self.load([number]))
        if self.rows > _ROWS_A_PART * 2 * len(self.parts):
            self._grow()

    def replace(self, numbers: Sequence[int], tables: Tables) -> None:
        """These parts hold exactly this from now on."""
        for number in numbers:
            for segment in self.parts[number].segments:
                self.state.delete(_NAME, _key(segment))
            self.parts[number] = _Part()
        for number, piece in self._split(tables):
            part = self.parts[number]
            self._write(part, piece)
            part.base = part.rows

    def _split(self, tables: Tables) -> list[tuple[int, Tables]]:
        count = len(self.parts)
        if count == 1:
            return [(0, tables)] if any(table.num_rows for table in tables) else []
        owners = [part_of(table.column(HASH).to_numpy(), count) for table in tables]
        return [
            (
                int(number),
                tuple(
                    table.filter(pa.array(owner == number))
                    for table, owner in zip(tables, owners, strict=True)
                ),
            )
            for number in np.unique(np.concatenate(owners))
        ]

    def _write(self, part: _Part, tables: Tables) -> None:
        part.bytes += self.state.put(_NAME, _key(self.next), tables)
        part.rows += sum(table.num_rows for table in tables)
        part.groups += tables[0].num_rows
        part.segments.append(self.next)
        self.next += 1
        for table in tables[: self.timed]:
            if self.due is not None and table.num_rows:
                earliest = int(self.due(table).min())
                part.due = earliest if part.due is None else min(part.due, earliest)

    def _grow(self) -> None:
        """More parts, so that a touched one stays small. It happens ever more seldom."""
        everything = self.load(range(len(self.parts)))
        rows = sum(table.num_rows for table in everything)
        count = len(self.parts)
        self.replace(range(count), tuple(table.slice(0, 0) for table in everything))
        while rows > _ROWS_A_PART * count:
            count *= 2
        self.parts = [_Part() for _ in range(count)]
        self.replace([], everything)


def part_of(hashes: Ints, count: int) -> Ints:
    """By the upper half of the hash: the lower one chose the key group."""
    return np.mod(np.right_shift(hashes, 32), count)


def _key(segment: int) -> bytes:
    return struct.pack(">Q", segment)
