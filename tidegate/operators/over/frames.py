"""Rows in the order of a window, and where the frame of each of them begins and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.kernels.arrays import Column, Ints, Mask, as_array, valid_mask
from tidegate.operators.kernels.ordering import Ordering

Numbers = npt.NDArray[Any]
Offset = int | float | None


@dataclass(frozen=True)
class Frame:
    """The rows from `start` to `end`, both relative to the current row; None is without bound.

    By rows an offset counts rows; else it is added to the value of the one column of the order,
    and 0 stands for all rows that are equal in the order.
    """

    by_rows: bool
    start: Offset
    end: Offset


@dataclass(frozen=True, eq=False)
class Placed:
    """Rows by partition and then in order: `order` are their numbers, and all else is by place.

    A partition goes from `begins` to before `ends`, the peers of a row from `first_peers` to before
    `after_peers`.
    """

    order: Ints
    partitions: Ints
    begins: Ints
    ends: Ints
    first_peers: Ints
    after_peers: Ints

    @property
    def rows(self) -> int:
        return len(self.order)

    @property
    def places(self) -> Ints:
        return np.arange(self.rows)

    @property
    def dense(self) -> Ints:
        """Which group of peers of its partition a row is in, from 0 on."""
        leads = (self.first_peers == self.places).astype(np.int64)
        count: Ints = np.cumsum(leads)
        return count - count[self.begins] if self.rows else count


def placed(partitions: Ints, by: Sequence[Ints], arrival: Ints) -> Placed:
    """Rows by partition, by the codes of an order, and by arrival."""
    order = np.lexsort((arrival, *reversed(by), partitions))
    own = partitions[order]
    new = _differs(own)
    leads = new.copy()
    for column in by:
        leads |= _differs(column[order])
    begins, ends = _stretches(new)
    first, after = _stretches(leads)
    return Placed(order, own, begins, ends, first, after)


def _differs(values: Ints) -> Mask:
    differs = np.ones(len(values), np.bool_)
    differs[1:] = values[1:] != values[:-1]
    return differs


def _stretches(begins: Mask) -> tuple[Ints, Ints]:
    """Where the stretch of each row begins, and where it is over."""
    starts = np.flatnonzero(begins)
    lengths = np.diff(starts, append=len(begins))
    return np.repeat(starts, lengths), np.repeat(starts + lengths, lengths)


@dataclass(frozen=True, eq=False)
class FrameValues:
    """The column of an order as numbers that grow along it, by place; NULL has none."""

    numbers: Numbers
    there: Mask


def has_distance(kind: pa.DataType) -> bool:
    """Whether an offset can be added to values of a type."""
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_date32(kind)
    return bool(plain or pa.types.is_timestamp(kind) or pa.types.is_duration(kind))


def values_of(column: Column, ordering: Ordering) -> FrameValues:
    array = as_array(column)
    there = valid_mask(array)
    if pa.types.is_floating(array.type):
        numbers = pc.fill_null(array, 0.0).to_numpy(zero_copy_only=False)
    else:
        whole = array.cast(pa.int32()) if pa.types.is_date32(array.type) else array
        numbers = pc.fill_null(pc.cast(whole, pa.int64()), 0).to_numpy(zero_copy_only=False)
    return FrameValues(-numbers if ordering.descending else numbers, there)


def bounds(frame: Frame, placed: Placed, values: FrameValues | None) -> tuple[Ints, Ints]:
    """Where the frame of each row begins, and where it is over."""
    if frame.by_rows:
        starts = _by_rows(frame.start, placed, placed.begins, 0)
        ends = _by_rows(frame.end, placed, placed.ends, 1)
    else:
        starts = _by_value(frame.start, placed, values, placed.begins, placed.first_peers, "left")
        ends = _by_value(frame.end, placed, values, placed.ends, placed.after_peers, "right")
    return starts, np.maximum(starts, ends)


def _by_rows(offset: Offset, placed: Placed, whole: Ints, after: int) -> Ints:
    if offset is None:
        return whole
    places: Ints = placed.places + int(offset) + after
    return np.clip(places, placed.begins, placed.ends)


def _by_value(
    offset: Offset, placed: Placed, values: FrameValues | None, whole: Ints, peers: Ints, side: str
) -> Ints:
    if offset is None:
        return whole
    if offset == 0:
        return peers
    assert values is not None, "a distance is one between values"
    found = peers.copy()
    # Rows without a value are peers of each other, and of nobody else.
    rows = np.flatnonzero(values.there)
    numbers, owners = values.numbers[rows], placed.partitions[rows]
    found[rows] = rows[0] if len(rows) else 0
    before = _before(owners, numbers, numbers + offset, side)
    first = np.searchsorted(owners, owners)
    starts = rows[first] if len(rows) else rows
    found[rows] = starts + before - first
    return found


def _before(owners: Ints, numbers: Numbers, targets: Numbers, side: str) -> Ints:
    """How many (owner, number) are before each (owner, target); `right`: or equal to it."""
    count = len(owners)
    own, wanted = np.zeros(count, np.int64), np.full(count, -1 if side == "left" else 1)
    order = np.lexsort(
        (
            np.concatenate([own, wanted]),
            np.concatenate([numbers, targets]),
            np.concatenate([owners, owners]),
        )
    )
    passed = np.cumsum(order < count)
    found = np.empty(2 * count, np.int64)
    found[order] = passed
    result: Ints = found[count:]
    return result
