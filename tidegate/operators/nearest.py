"""Which row of the right is the nearest to each row of the left: by key, then by a value.

Keys and values become numbers on one line, the right side is sorted along it, and a binary search
finds the place of every row of the left at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.keys import as_array
from tidegate.operators.ordering import Ordering, codes

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
# Times and whole numbers, or numbers with a fraction.
Values = npt.NDArray[Any]
Number = int | float
BACKWARD, FORWARD, NEAREST = "backward", "forward", "nearest"
NOTHING = -1


@dataclass(frozen=True)
class Nearest:
    """left − right lies in [lower, upper]; an open end is out, None is no end.

    Backward takes the largest right value, forward the smallest, nearest the one that is least
    away, and of two that are as far the smaller one. Of equal ones the last that came counts.
    With `first` it is the first right value of all, and the first of equal ones, if that is in
    reach.
    """

    direction: str
    lower: Number | None
    upper: Number | None
    lower_open: bool = False
    upper_open: bool = False
    first: bool = False

    def __post_init__(self) -> None:
        assert self.direction in (BACKWARD, FORWARD, NEAREST), self.direction
        assert self.direction != BACKWARD or self.lower is not None, "it looks back from somewhere"
        assert self.direction != FORWARD or self.upper is not None, "it looks on from somewhere"

    def places(
        self, left_ids: Ints, left: Values, right_ids: Ints, right: Values
    ) -> npt.NDArray[np.int64]:
        """The place of the right row of each left row, or −1; right rows are in order of arrival.

        Rows with equal ids have equal keys.
        """
        if not len(left_ids) or not len(right_ids):
            return np.full(len(left_ids), NOTHING, np.int64)
        line = _Line(right_ids, right)
        if self.direction == NEAREST:
            return self._either(line, left_ids, left)
        if self.direction == FORWARD:
            assert self.upper is not None, "it looks on from somewhere"
            found = line.next(left_ids, left - self.upper, self.upper_open)
        else:
            assert self.lower is not None, "it looks back from somewhere"
            target = left - self.lower
            if self.first:
                found = line.first(left_ids, target, self.lower_open)
            else:
                found = line.last(left_ids, target, self.lower_open)
        return self._in_reach(found, left, right)

    def _either(self, line: _Line, ids: Ints, left: Values) -> Ints:
        right = line.values
        before = self._in_reach(line.last(ids, left, False), left, right)
        after = self._in_reach(line.next(ids, left, False), left, right)
        back = distance(left, right[before])
        on = distance(right[after], left)
        takes_before = (after == NOTHING) | ((before != NOTHING) & (back <= on))
        return np.where(takes_before, before, after)

    def _in_reach(self, found: Ints, left: Values, right: Values) -> Ints:
        """Without those that are too far away; the end where the search began is kept to."""
        apart = left - right[found]
        there = found != NOTHING
        if self.upper is not None and self.direction != FORWARD:
            there &= apart < self.upper if self.upper_open else apart <= self.upper
        if self.lower is not None and self.direction != BACKWARD:
            there &= apart > self.lower if self.lower_open else apart >= self.lower
        return np.where(there, found, NOTHING)


class _Line:
    """The right side, sorted by key and value; of equal ones the last stands last."""

    def __init__(self, ids: Ints, values: Values) -> None:
        self.values = values
        self.known = np.unique(values)
        self.width = len(self.known) + 1
        places = ids * self.width + np.searchsorted(self.known, values) + 1
        self.order = np.argsort(places, kind="stable")
        self.places = places[self.order]
        self.ids = ids[self.order]

    def last(self, ids: Ints, target: Values, below: bool) -> Ints:
        """The last row of a key whose value is at most the target, or below it."""
        count = np.searchsorted(self.known, target, "left" if below else "right")
        return self._at(ids, np.searchsorted(self.places, ids * self.width + count, "right") - 1)

    def next(self, ids: Ints, target: Values, above: bool) -> Ints:
        """The last row of a key with the smallest value that is at least the target."""
        count = np.searchsorted(self.known, target, "right" if above else "left")
        begin = np.searchsorted(self.places, ids * self.width + count + 1, "left")
        equal = self.places[np.minimum(begin, len(self.places) - 1)]
        ends = np.searchsorted(self.places, equal, "right") - 1
        return self._at(ids, np.where(begin < len(self.places), ends, NOTHING))

    def first(self, ids: Ints, target: Values, below: bool) -> Ints:
        """The first row of a key, if its value is at most the target, or below it."""
        count = np.searchsorted(self.known, target, "left" if below else "right")
        begin = np.searchsorted(self.places, ids * self.width, "left")
        value = self.places[np.minimum(begin, len(self.places) - 1)]
        there = (begin < len(self.places)) & (value <= ids * self.width + count)
        return self._at(ids, np.where(there, begin, NOTHING))

    def _at(self, ids: Ints, found: Ints) -> Ints:
        """Places on the line as places of rows; none where it is another key."""
        there = (found != NOTHING) & (self.ids[found] == ids)
        return np.where(there, self.order[found], NOTHING)


def distance(larger: Values, smaller: Values) -> Values:
    """How far apart two values are, which may be further than a whole number is large."""
    apart: Values = larger - smaller
    return apart if apart.dtype.kind == "f" else apart.view(np.uint64)


def measurable(kind: pa.DataType) -> bool:
    """Whether values of a type can be a distance apart, and not only in order."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind)
    )


def as_numbers(left: pa.ChunkedArray, right: pa.ChunkedArray) -> tuple[Values, Values]:
    """The values of both sides as numbers in the same order; what NULL becomes means nothing."""
    both = as_array(pa.chunked_array([*left.chunks, *right.chunks], left.type))
    if pa.types.is_floating(both.type):
        # Adding zero makes one zero of two.
        values = pc.fill_null(both, 0.0).cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
    elif measurable(both.type):
        values = pc.fill_null(both.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    else:
        values = codes(both, Ordering(both.type))
    return values[: len(left)], values[len(left) :]
