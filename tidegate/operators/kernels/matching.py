"""Which rows of two tables belong together: equal keys, and times that are near enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import unsupported_error
from tidegate.operators.kernels.arrays import Ints, Mask, as_array, int_column
from tidegate.operators.kernels.keys import group_ids, is_comparable

TIME = "_time"
# Above this, ids and times together do not fit one number.
_MOST_PLACES = 2**62
# Whose rows come out, or are kept back, by whether they have a match: left and right.
TRACKED = {
    "INNER": (False, False),
    "LEFT": (True, False),
    "RIGHT": (False, True),
    "FULL": (True, True),
    "SEMI": (True, False),
    "ANTI": (True, False),
}


@dataclass(frozen=True)
class JoinCondition:
    """Keys `k0`, `k1`, … are equal, and left time − right time lies in [lower, upper]."""

    keys: tuple[pa.DataType, ...]
    null_safe: tuple[bool, ...]
    lower_us: int = 0
    upper_us: int = 0

    def __post_init__(self) -> None:
        for kind in self.keys:
            if not is_comparable(kind):
                message = f"a join by {kind} is not supported: maps cannot be compared"
                hint = "join by the values of some of its keys, for example m['a']."
                raise unsupported_error(message, hint)

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(f"k{index}", kind) for index, kind in enumerate(self.keys)]

    @property
    def names(self) -> list[str]:
        return [item.name for item in self.fields]

    def matchable(self, table: pa.Table) -> Mask:
        """NULL equals nothing, unless the query says that it does."""
        there = np.ones(table.num_rows, np.bool_)
        for name, safe in zip(self.names, self.null_safe, strict=True):
            column = table.column(name)
            if not safe and column.null_count:
                there &= np.asarray(pc.is_valid(column).to_numpy(), np.bool_)
        return there

    def pairs(self, left: pa.Table, right: pa.Table) -> tuple[Ints, Ints]:
        """The places of the rows that match."""
        if not left.num_rows or not right.num_rows:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        left_ids, right_ids, count = self.key_ids(left, right)
        codes, low, high, width = self._on_a_line(
            int_column(left, TIME), int_column(right, TIME), count
        )
        places = right_ids * width + codes
        order = np.argsort(places, kind="stable")
        first, counts = _ranges(places[order], left_ids * width + low, left_ids * width + high)
        counts[left_ids < 0] = 0
        shifts = first - (np.cumsum(counts) - counts)
        found = order[np.repeat(shifts, counts) + np.arange(int(counts.sum()))]
        return np.repeat(np.arange(left.num_rows), counts), found

    def _on_a_line(self, left: Ints, right: Ints, count: int) -> tuple[Ints, Ints, Ints, int]:
        """The right times as numbers below a width, and the range that each left time matches."""
        base, last = int(right.min()), int(right.max())
        width = last - base + 2
        if (count + 1) * width < _MOST_PLACES:
            low = np.clip(left - self.upper_us - base, 0, width - 1)
            high = np.clip(left - self.lower_us - base + 1, 0, width - 1)
            return right - base, low, high, width
        times, codes = np.unique(right, return_inverse=True)
        low = np.searchsorted(times, left - self.upper_us, "left")
        high = np.searchsorted(times, left - self.lower_us, "right")
        return codes, low, high, len(times) + 1

    def key_ids(self, left: pa.Table, right: pa.Table) -> tuple[Ints, Ints, int]:
        """Equal numbers for equal keys; one that no other row has for what matches nothing."""
        count = 1
        ids = np.zeros(left.num_rows + right.num_rows, np.int64)
        for name in self.names:
            both = pa.concat_tables([left.select([name]), right.select([name])])
            codes, kinds = _codes(both, name)
            ids, count = (codes, kinds) if count == 1 else _dense(pa.array(ids * kinds + codes))
        left_ids = np.where(self.matchable(left), ids[: left.num_rows], -1)
        return left_ids, np.where(self.matchable(right), ids[left.num_rows :], count), count


def _codes(table: pa.Table, name: str) -> tuple[Ints, int]:
    """A number for each value of a column, the same for equal ones; NULL is one of them."""
    column = table.column(name)
    return group_ids(table, [name]) if pa.types.is_nested(column.type) else _dense(column)


def _dense(column: pa.ChunkedArray | pa.Array) -> tuple[Ints, int]:
    found = pc.dictionary_encode(as_array(column), null_encoding="encode")
    return found.indices.to_numpy().astype(np.int64), len(found.dictionary)


def _ranges(places: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Where low ≤ place < high begins in sorted places, and how many there are.

    Searching in order finds the next place near the last one, which is several times as fast.
    """
    order = np.argsort(low, kind="stable")
    first, counts = np.empty(len(low), np.int64), np.empty(len(low), np.int64)
    first[order] = np.searchsorted(places, low[order])
    counts[order] = np.searchsorted(places, high[order])
    return first, np.maximum(counts - first, 0)


def numbered_fields(kinds: tuple[pa.DataType, ...]) -> list[pa.Field]:
    """The columns of a row, as `c0`, `c1`, …."""
    return [pa.field(f"c{index}", kind) for index, kind in enumerate(kinds)]


def output_types(
    columns: tuple[tuple[pa.DataType, ...], tuple[pa.DataType, ...]], how: str
) -> tuple[pa.DataType, ...]:
    """What comes out of a join: both sides, or the left one alone."""
    return columns[0] if how in ("SEMI", "ANTI") else columns[0] + columns[1]
