"""The rows of partitions in the order of a window, and the bounds of their frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.kernels.arrays import Column, Ints, Mask, as_array, valid_mask
from tidegate.operators.kernels.ordering import Ordering, differs_from_previous

Numbers = npt.NDArray[Any]
Offset = int | float | None


@dataclass(frozen=True)
class Frame:
    """The frame of a row, from `start` to `end` relative to it; None is unbounded.

    With `by_rows` (ROWS) offsets count rows. Otherwise (RANGE) they are added to the value of the
    only ORDER BY column, and 0 means the peers of the row.
    """

    by_rows: bool
    start: Offset
    end: Offset


@dataclass(frozen=True, eq=False)
class SortedRows:
    """Rows sorted by partition and ORDER BY: `order` has their indices before they were sorted.

    All other arrays are by position in that order. The partition of a row has the positions from
    `starts` to before `ends`, its peers those from `peer_starts` to before `peer_ends`.
    """

    order: Ints
    partitions: Ints
    starts: Ints
    ends: Ints
    peer_starts: Ints
    peer_ends: Ints

    @property
    def rows(self) -> int:
        return len(self.order)

    @property
    def positions(self) -> Ints:
        return np.arange(self.rows)

    @property
    def peer_groups(self) -> Ints:
        """The number of each row's peer group in its partition, from 0."""
        is_first = (self.peer_starts == self.positions).astype(np.int64)
        count: Ints = np.cumsum(is_first)
        return count - count[self.starts] if self.rows else count


def sort_rows(partitions: Ints, by: Sequence[Ints], arrival: Ints) -> SortedRows:
    """Sort rows by partition, the codes of an ORDER BY, and arrival."""
    order = np.lexsort((arrival, *reversed(by), partitions))
    sorted_partitions = partitions[order]
    is_start = differs_from_previous(sorted_partitions)
    is_peer_start = is_start.copy()
    for codes in by:
        is_peer_start |= differs_from_previous(codes[order])
    starts, ends = _runs(is_start)
    peer_starts, peer_ends = _runs(is_peer_start)
    return SortedRows(order, sorted_partitions, starts, ends, peer_starts, peer_ends)


def _runs(is_start: Mask) -> tuple[Ints, Ints]:
    """Return the start and the end of the run that each row belongs to."""
    starts = np.flatnonzero(is_start)
    lengths = np.diff(starts, append=len(is_start))
    return np.repeat(starts, lengths), np.repeat(starts + lengths, lengths)


@dataclass(frozen=True, eq=False)
class FrameValues:
    """An ORDER BY column as ascending numbers, by position; `valid` is false for NULL."""

    numbers: Numbers
    valid: Mask


def supports_range_offset(data_type: pa.DataType) -> bool:
    """Return whether RANGE can add an offset to values of a type."""
    is_number = (
        pa.types.is_integer(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_date32(data_type)
    )
    return bool(is_number or pa.types.is_timestamp(data_type) or pa.types.is_duration(data_type))


def frame_values(column: Column, ordering: Ordering) -> FrameValues:
    """Return an ORDER BY column as numbers."""
    array = as_array(column)
    valid = valid_mask(array)
    if pa.types.is_floating(array.type):
        numbers = pc.fill_null(array, 0.0).to_numpy(zero_copy_only=False)
    else:
        integers = array.cast(pa.int32()) if pa.types.is_date32(array.type) else array
        numbers = pc.fill_null(pc.cast(integers, pa.int64()), 0).to_numpy(zero_copy_only=False)
    return FrameValues(-numbers if ordering.descending else numbers, valid)


def frame_bounds(frame: Frame, rows: SortedRows, values: FrameValues | None) -> tuple[Ints, Ints]:
    """Return the positions at which the frame of each row starts, and before which it ends."""
    if frame.by_rows:
        starts = _bound_by_rows(frame.start, rows, rows.starts, 0)
        ends = _bound_by_rows(frame.end, rows, rows.ends, 1)
    else:
        starts = _bound_by_value(frame.start, rows, values, rows.starts, rows.peer_starts, "left")
        ends = _bound_by_value(frame.end, rows, values, rows.ends, rows.peer_ends, "right")
    return starts, np.maximum(starts, ends)


def _bound_by_rows(offset: Offset, rows: SortedRows, unbounded: Ints, after: int) -> Ints:
    if offset is None:
        return unbounded
    positions: Ints = rows.positions + int(offset) + after
    return np.clip(positions, rows.starts, rows.ends)


def _bound_by_value(
    offset: Offset,
    rows: SortedRows,
    values: FrameValues | None,
    unbounded: Ints,
    peers: Ints,
    side: str,
) -> Ints:
    if offset is None:
        return unbounded
    if offset == 0:
        return peers
    assert values is not None, "an offset needs values"
    positions = peers.copy()
    # The frame of a NULL is the other NULLs.
    valid = np.flatnonzero(values.valid)
    numbers, partitions = values.numbers[valid], rows.partitions[valid]
    counts = _count_before(partitions, numbers, numbers + offset, side)
    first = np.searchsorted(partitions, partitions)
    starts = valid[first] if len(valid) else valid
    positions[valid] = starts + counts - first
    return positions


def _count_before(partitions: Ints, numbers: Numbers, targets: Numbers, side: str) -> Ints:
    """Return how many (partition, number) are before each (partition, target).

    `right` also counts those that are equal.
    """
    count = len(partitions)
    # `left` sorts targets before equal numbers, `right` after them.
    ties = np.zeros(count, np.int64), np.full(count, -1 if side == "left" else 1)
    order = np.lexsort(
        (
            np.concatenate(ties),
            np.concatenate([numbers, targets]),
            np.concatenate([partitions, partitions]),
        )
    )
    counts = np.empty(2 * count, np.int64)
    counts[order] = np.cumsum(order < count)
    result: Ints = counts[count:]
    return result
