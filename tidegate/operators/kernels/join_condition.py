"""Find the rows of two tables that join: equal keys, and times that are close enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import unsupported_error
from tidegate.operators.kernels.arrays import Ints, Mask, as_array, int_column
from tidegate.operators.kernels.keys import group_ids, is_comparable

TIME = "_time"
# Key id and time are combined in one 64-bit number as long as it stays below this.
_MAX_POSITIONS = 2**62
# By kind of join, the sides (left, right) for which it matters whether a row has a match.
TRACKS_MATCHES = {
    "INNER": (False, False),
    "LEFT": (True, False),
    "RIGHT": (False, True),
    "FULL": (True, True),
    "SEMI": (True, False),
    "ANTI": (True, False),
}


@dataclass(frozen=True)
class JoinCondition:
    """Keys `k0`, `k1`, … are equal, and left time − right time is in [lower, upper]."""

    keys: tuple[pa.DataType, ...]
    null_safe: tuple[bool, ...]
    lower_us: int = 0
    upper_us: int = 0

    def __post_init__(self) -> None:
        for data_type in self.keys:
            if not is_comparable(data_type):
                message = f"a join by {data_type} is not supported: maps cannot be compared"
                hint = "join by the values of some of its keys, for example m['a']."
                raise unsupported_error(message, hint)

    @property
    def fields(self) -> list[pa.Field]:
        """The key columns."""
        return [pa.field(f"k{index}", data_type) for index, data_type in enumerate(self.keys)]

    @property
    def names(self) -> list[str]:
        """The names of the key columns."""
        return [item.name for item in self.fields]

    def can_match(self, table: pa.Table) -> Mask:
        """Return the rows without a NULL key; with `<=>` (null-safe) a NULL key can match too."""
        result = np.ones(table.num_rows, np.bool_)
        for name, safe in zip(self.names, self.null_safe, strict=True):
            column = table.column(name)
            if not safe and column.null_count:
                result &= np.asarray(pc.is_valid(column).to_numpy(), np.bool_)
        return result

    def find_pairs(self, left: pa.Table, right: pa.Table) -> tuple[Ints, Ints]:
        """Return the row indices of all pairs that match, ordered by the left row."""
        if not left.num_rows or not right.num_rows:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        left_ids, right_ids, count = self.key_ids(left, right)
        left_times, right_times = int_column(left, TIME), int_column(right, TIME)
        codes, low, high, width = self._time_codes(left_times, right_times, count)
        # One number per right row, ordered by key and time: a left row matches a range of them.
        positions = right_ids * width + codes
        order = np.argsort(positions, kind="stable")
        first, counts = _search_ranges(
            positions[order], left_ids * width + low, left_ids * width + high
        )
        counts[left_ids < 0] = 0
        shifts = first - (np.cumsum(counts) - counts)
        right_rows = order[np.repeat(shifts, counts) + np.arange(int(counts.sum()))]
        return np.repeat(np.arange(left.num_rows), counts), right_rows

    def _time_codes(self, left: Ints, right: Ints, count: int) -> tuple[Ints, Ints, Ints, int]:
        """Number the right times below a width; return them and the range for each left time."""
        base, last = int(right.min()), int(right.max())
        width = last - base + 2
        if (count + 1) * width < _MAX_POSITIONS:
            low = np.clip(left - self.upper_us - base, 0, width - 1)
            high = np.clip(left - self.lower_us - base + 1, 0, width - 1)
            return right - base, low, high, width
        times, codes = np.unique(right, return_inverse=True)
        low = np.searchsorted(times, left - self.upper_us, "left")
        high = np.searchsorted(times, left - self.lower_us, "right")
        return codes, low, high, len(times) + 1

    def key_ids(self, left: pa.Table, right: pa.Table) -> tuple[Ints, Ints, int]:
        """Assign equal keys of both tables the same number; return also how many there are.

        Rows that cannot match get numbers that no row of the other side has.
        """
        count = 1
        ids = np.zeros(left.num_rows + right.num_rows, np.int64)
        for name in self.names:
            both = pa.concat_tables([left.select([name]), right.select([name])])
            codes, kinds = _value_ids(both, name)
            if count == 1:
                ids, count = codes, kinds
            else:
                ids, count = _dictionary_codes(pa.array(ids * kinds + codes))
        left_ids = np.where(self.can_match(left), ids[: left.num_rows], -1)
        return left_ids, np.where(self.can_match(right), ids[left.num_rows :], count), count


def _value_ids(table: pa.Table, name: str) -> tuple[Ints, int]:
    """Assign equal values of a column the same number, and one number to all NULLs."""
    column = table.column(name)
    is_nested = pa.types.is_nested(column.type)
    return group_ids(table, [name]) if is_nested else _dictionary_codes(column)


def _dictionary_codes(column: pa.ChunkedArray | pa.Array) -> tuple[Ints, int]:
    encoded = pc.dictionary_encode(as_array(column), null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def _search_ranges(positions: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return where low ≤ position < high starts in sorted positions, and its length.

    The searches run in ascending order, which makes them several times as fast: each one reads
    memory close to the previous one.
    """
    order = np.argsort(low, kind="stable")
    first, counts = np.empty(len(low), np.int64), np.empty(len(low), np.int64)
    first[order] = np.searchsorted(positions, low[order])
    counts[order] = np.searchsorted(positions, high[order])
    return first, np.maximum(counts - first, 0)


def numbered_fields(data_types: tuple[pa.DataType, ...]) -> list[pa.Field]:
    """Name the columns of a row `c0`, `c1`, …."""
    return [pa.field(f"c{index}", data_type) for index, data_type in enumerate(data_types)]


def output_types(
    columns: tuple[tuple[pa.DataType, ...], tuple[pa.DataType, ...]], how: str
) -> tuple[pa.DataType, ...]:
    """Return the column types of a join's output: both sides, or the left one for SEMI and ANTI."""
    return columns[0] if how in ("SEMI", "ANTI") else columns[0] + columns[1]
