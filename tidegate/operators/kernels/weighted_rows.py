"""Changelogs as rows with weights: a weight of 1 adds a row, −1 retracts one.

A retraction carries exactly the row that was added: all columns are identical, bit by bit. In a
*consolidated* table, additions and their retractions have been cancelled. Retractions of rows that
were added before remain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import AFTER, BEFORE, DELETE, INSERT, OP, WEIGHT
from tidegate.operators.kernels.arrays import Ints, Mask, first_rows, int_column
from tidegate.operators.kernels.keys import find_rows, group_ids, rows_identical

_CONTENT = "_content"


@dataclass(frozen=True)
class WeightedRows:
    """How the rows of a changelog are stored.

    With `ordered`, every row is stored separately, in order of arrival. Otherwise identical rows
    are stored as one row with the sum of their weights.
    """

    ordered: bool = False

    def consolidate(self, rows: pa.Table) -> pa.Table:
        """Remove rows that were added and retracted; retractions of earlier rows remain."""
        if not self.ordered:
            return consolidate(rows)
        with_ids = rows.append_column(_CONTENT, pa.array(content_ids(rows)[0]))
        return cancel_pairs(with_ids, [_CONTENT], WEIGHT).drop_columns([_CONTENT])

    def current(self, rows: pa.Table) -> pa.Table:
        """Return the rows that exist, given the consolidated rows of the whole history."""
        if not self.ordered:
            return rows
        with_ids = rows.append_column(_CONTENT, pa.array(content_ids(rows)[0]))
        return cancel_earliest(with_ids, [_CONTENT], WEIGHT).drop_columns([_CONTENT])

    def drop_unknown_retractions(self, old: pa.Table, new: pa.Table) -> tuple[pa.Table, int]:
        """Remove retractions from `new` of rows that are neither in `old` nor in `new`.

        Returns the remaining rows and the number of removed retractions.
        """
        weights = int_column(new, WEIGHT)
        if not new.num_rows or weights.min() > 0:
            return new, 0
        ids, count = content_ids(pa.concat_tables([old, new]))
        balance = np.bincount(ids, np.concatenate([int_column(old, WEIGHT), weights]), count)
        missing = np.maximum(-balance, 0).astype(np.int64)
        unknown = int(missing.sum())
        if not unknown:
            return new, 0
        remaining = self._remaining_weights(ids[old.num_rows :], weights, missing)
        new = new.set_column(new.schema.get_field_index(WEIGHT), WEIGHT, pa.array(remaining))
        return new.filter(pc.not_equal(new.column(WEIGHT), 0)), unknown

    def _remaining_weights(self, ids: Ints, weights: Ints, missing: Ints) -> Ints:
        """Return the weights without `missing` retractions of each row; `ids` identify rows."""
        if not self.ordered:
            return np.where(weights < 0, weights + missing[ids], weights)
        retractions = np.flatnonzero(weights < 0)
        order = retractions[np.argsort(ids[retractions], kind="stable")]
        sorted_ids = ids[order]
        nth = np.arange(len(order)) - np.searchsorted(sorted_ids, sorted_ids)
        remaining = weights.copy()
        remaining[order[nth < missing[sorted_ids]]] = 0
        return remaining

    def expand(self, rows: pa.Table) -> pa.Table:
        """Repeat every row by its weight and drop the weights."""
        weights = int_column(rows, WEIGHT)
        rows = rows.drop_columns([WEIGHT])
        if not rows.num_rows or weights.max() == 1:
            return rows
        return rows.take(pa.array(np.repeat(np.arange(rows.num_rows), weights)))


def consolidate(rows: pa.Table) -> pa.Table:
    """Merge identical rows into one with the sum of their weights; drop rows with a sum of 0."""
    if rows.num_rows > 1:
        ids, count = content_ids(rows)
        if count < rows.num_rows:
            sums = np.zeros(count, np.int64)
            np.add.at(sums, ids, int_column(rows, WEIGHT))
            first = first_rows(ids, count, np.ones(rows.num_rows, np.bool_))
            order = np.argsort(first)
            rows = rows.take(pa.array(first[order]))
            index = rows.schema.get_field_index(WEIGHT)
            rows = rows.set_column(index, WEIGHT, pa.array(sums[order]))
    return rows.filter(pc.not_equal(rows.column(WEIGHT), 0))


def content_ids(rows: pa.Table) -> tuple[Ints, int]:
    """Return a number for each row, the same for rows that differ only in weight, and the count."""
    names = [name for name in rows.column_names if name != WEIGHT]
    if not names:
        return np.zeros(rows.num_rows, np.int64), min(rows.num_rows, 1)
    return group_ids(rows, names)


def diff_results(before: pa.Table, after: pa.Table, keys: list[str]) -> pa.Table:
    """Return the changelog that turns one result into another, as rows with `_op`.

    A changed key yields `-U` with the old and `+U` with the new row next to each other, a new key
    `+I`, and a missing key `-D`.
    """
    indices = find_rows(before, after, keys)
    exists = indices >= 0
    rows = np.arange(after.num_rows)
    unchanged = np.zeros(after.num_rows, np.bool_)
    if exists.any():
        old, new = before.take(pa.array(indices[exists])), after.take(pa.array(rows[exists]))
        unchanged[exists] = rows_identical(old, new)
    deleted = np.ones(before.num_rows, np.bool_)
    deleted[indices[exists]] = False
    changed, added = rows[exists & ~unchanged], rows[~exists]
    shift = before.num_rows
    pairs = np.stack([indices[changed], changed + shift], axis=1).ravel()
    order = np.concatenate([np.flatnonzero(deleted), pairs, added + shift])
    ops = [DELETE] * int(deleted.sum()) + [BEFORE, AFTER] * len(changed) + [INSERT] * len(added)
    both = pa.concat_tables([before, after]).take(pa.array(order.astype(np.int64)))
    return both.append_column(OP, pa.array(ops, pa.string()))


# ---- Retractions among rows in order of arrival


def cancel_pairs(table: pa.Table, keys: list[str], weight: str) -> pa.Table:
    """Remove every retraction together with the latest identical row before it.

    Rows and retractions pair up like opening and closing brackets: `( ( ) ) )` leaves `)`. So the
    parts of a changelog can be reduced in any grouping. Rows and retractions without a partner
    remain.
    """
    weights = table.column(weight).to_numpy()
    if len(weights) == 0 or weights.min() > 0:
        return table
    ids, _ = group_ids(table, keys)
    order = np.argsort(ids, kind="stable")
    keep = np.empty(len(ids), np.bool_)
    keep[order] = unpaired(ids[order], weights[order])
    return table if keep.all() else table.filter(pa.array(keep))


def unpaired(ids: Ints, weights: Ints) -> Mask:
    """Return which rows and retractions have no partner with the same id; `ids` are sorted."""
    groups = np.cumsum(np.diff(ids, prepend=ids[0]) != 0)
    starts = np.flatnonzero(np.diff(ids, prepend=ids[0] - 1) != 0)
    sums = np.cumsum(weights)
    sums_before = np.concatenate(([0], sums))[starts]
    depth = sums - sums_before[groups]
    # Separates the depths of different ids, so that one running minimum serves all of them.
    offsets = groups * (2 * len(ids) + 2)
    min_after = np.minimum.accumulate((depth + offsets)[::-1])[::-1] - offsets
    lowest = np.minimum.accumulate(np.minimum(depth, 0) - offsets) + offsets
    min_before = np.concatenate(([0], lowest[:-1]))
    min_before[starts] = 0
    result: Mask = np.where(weights > 0, min_after >= depth, depth < min_before)
    return result


def cancel_earliest(table: pa.Table, keys: list[str], weight: str) -> pa.Table:
    """Remove each retraction that `cancel_pairs` left, with the earliest identical row."""
    weights = table.column(weight).to_numpy()
    if len(weights) == 0 or weights.min() > 0:
        return table
    ids, count = group_ids(table, keys)
    retractions = np.bincount(ids[weights < 0], minlength=count)
    order = np.argsort(ids, kind="stable")
    is_row = weights[order] > 0
    total = np.cumsum(is_row)
    starts = np.flatnonzero(np.diff(ids[order], prepend=-1) != 0)
    before = (total - is_row)[starts]
    rank = total - before[ids[order]]
    keep = np.empty(len(ids), np.bool_)
    keep[order] = is_row & (rank > retractions[ids[order]])
    return table.filter(pa.array(keep))
