"""A model of temporal and ASOF joins, row by row, that keeps all right rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidegate.operators.join.asof import BACKWARD, FORWARD, NEAREST, AsofBounds
from tidegate.operators.watermark import END_OF_INPUT_US


class LeftRow(NamedTuple):
    """A row of the left side."""

    key: str | None
    at: int
    number: int


class RightRow(NamedTuple):
    """A row of the right side; `alive` is false for a tombstone."""

    key: str | None
    at: int
    number: int
    alive: bool = True


Pair = tuple[LeftRow, RightRow | None]


@dataclass
class Unmatched:
    """A left row that looks forward, with its expiry and its backward match."""

    row: LeftRow
    expiry: int
    backward: RightRow | None


@dataclass
class AsofModel:
    """`epoch` returns the emitted pairs; `late` counts late rows."""

    bounds: AsofBounds
    how: str
    pending: list[LeftRow] = field(default_factory=list)
    unmatched: list[Unmatched] = field(default_factory=list)
    right: list[RightRow] = field(default_factory=list)
    late: int = 0

    def epoch(
        self,
        left: list[LeftRow],
        right: list[RightRow],
        previous: int | None,
        watermark: int | None,
    ) -> list[Pair]:
        on_time = [row for row in left if previous is None or row.at >= previous]
        self.late += sum(
            row.key is not None or self.how == "LEFT" for row in left if row not in on_time
        )
        self.pending += [row for row in on_time if row.key is not None or self.how == "LEFT"]
        late, unused = self._add_right([row for row in right if row.key is not None], previous)
        pairs: list[Pair] = []
        if watermark is not None:
            ready = [row for row in self.pending if self._ready_at(row) <= watermark]
            self.pending = [row for row in self.pending if self._ready_at(row) > watermark]
            if self.bounds.direction == BACKWARD:
                for row in ready:
                    match = self._backward(row)
                    pairs.append((row, match if match is not None and match.alive else None))
            else:
                pairs, used = self._look_forward(ready, late, watermark)
                unused = [row for row in unused if row not in used]
        self.late += len(unused)
        return [pair for pair in pairs if pair[1] is not None or self.how == "LEFT"]

    @property
    def _start(self) -> int:
        bound = {BACKWARD: self.bounds.lower, FORWARD: self.bounds.upper}
        return int(bound.get(self.bounds.direction) or 0)

    def _floor(self, watermark: int) -> int:
        return watermark - max(0, self._start)

    def _ready_at(self, row: LeftRow) -> int:
        return row.at - self._start + 1

    def _add_right(
        self, rows: list[RightRow], previous: int | None
    ) -> tuple[list[RightRow], list[RightRow]]:
        """Return the late rows, and those of them that no left row can match."""
        late = [row for row in rows if previous is not None and row.at < self._floor(previous)]
        used: list[RightRow] = []
        if self.bounds.direction != FORWARD and previous is not None:
            floor = self._floor(previous)
            for row in late:
                same_key = [other for other in (*self.right, *late) if other.key == row.key]
                below = [other for other in same_key if other.at < floor]
                choose = min if self.bounds.only_first_version else max
                last = choose(below, key=lambda other: (other.at, other.number))
                if last is row and self._can_match(row, previous):
                    used.append(row)
        self.right += [row for row in rows if row not in late] + used
        return late, [row for row in late if row not in used]

    def _can_match(self, row: RightRow, watermark: int) -> bool:
        """Return whether a left row that is not emitted yet may match a right row."""
        if self.bounds.upper is None:
            return True
        earliest = watermark
        if self.bounds.direction == BACKWARD:
            earliest += min(0, int(self.bounds.lower or 0))
        return earliest - row.at <= self.bounds.upper

    def _backward(self, row: LeftRow) -> RightRow | None:
        lower = self.bounds.lower if self.bounds.direction == BACKWARD else 0
        upper = self.bounds.upper
        candidates = [
            other
            for other in self.right
            if other.key == row.key
            and row.at - other.at >= (lower or 0)
            and (upper is None or self.bounds.only_first_version or row.at - other.at <= upper)
        ]
        choose = min if self.bounds.only_first_version else max
        return choose(candidates, key=lambda r: (r.at, r.number)) if candidates else None

    def _look_forward(
        self, ready: list[LeftRow], late: list[RightRow], watermark: int
    ) -> tuple[list[Pair], list[RightRow]]:
        """Return the emitted pairs and the right rows that are forward matches."""
        for row in ready:
            lower = self.bounds.lower
            expiry = END_OF_INPUT_US if lower is None else row.at - int(lower) + 1
            backward = self._backward(row) if self.bounds.direction == NEAREST else None
            if backward is not None:
                expiry = min(expiry, 2 * row.at - backward.at)
            if row.key is None:
                expiry = watermark
            self.unmatched.append(Unmatched(row, expiry, backward))
        pairs: list[Pair] = []
        used: list[RightRow] = []
        remaining = []
        for item in self.unmatched:
            match = self._forward(item, [*self.right, *late], watermark)
            if match is not None:
                used.append(match)
                pairs.append((item.row, match))
            elif item.expiry <= watermark:
                pairs.append((item.row, item.backward))
            else:
                remaining.append(item)
        self.unmatched = remaining
        return pairs, used

    def _forward(self, item: Unmatched, right: list[RightRow], watermark: int) -> RightRow | None:
        row, both = item.row, self.bounds.direction == NEAREST
        upper = -1 if both else self.bounds.upper
        assert upper is not None
        lower = self.bounds.lower
        candidates = [
            other
            for other in right
            if other.key == row.key
            and other.at < watermark
            and row.at - other.at <= upper
            and (lower is None or row.at - other.at >= lower)
        ]
        if not candidates or row.key is None:
            return None
        match = min(candidates, key=lambda other: (other.at, -other.number))
        is_nearer = item.backward is None or match.at - row.at < row.at - item.backward.at
        return match if not both or is_nearer else None
