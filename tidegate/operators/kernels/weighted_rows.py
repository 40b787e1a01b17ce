"""Rows with weights: how many there are of each, and retractions of what is not there.

A weight of 1 adds a row, −1 retracts one. Rows are told apart by all their columns, bit by bit: a
retraction carries exactly what was added.
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
    """`ordered`: rows stay one by one as they arrived; else equal ones are one with a number."""

    ordered: bool = False

    def consolidate(self, rows: pa.Table) -> pa.Table:
        """Without rows that were added and retracted; what is owed by earlier rows stays."""
        if not self.ordered:
            return consolidate(rows)
        marked = rows.append_column(_CONTENT, pa.array(content_ids(rows)[0]))
        return cancel_pairs(marked, [_CONTENT], WEIGHT).drop_columns([_CONTENT])

    def current(self, rows: pa.Table) -> pa.Table:
        """What is there, by the net of all rows that ever came."""
        if not self.ordered:
            return rows
        marked = rows.append_column(_CONTENT, pa.array(content_ids(rows)[0]))
        return cancel_earliest(marked, [_CONTENT], WEIGHT).drop_columns([_CONTENT])

    def drop_unknown_retractions(self, old: pa.Table, new: pa.Table) -> tuple[pa.Table, int]:
        """New rows without retractions of what is not there, and how many those were."""
        weights = int_column(new, WEIGHT)
        if not new.num_rows or weights.min() > 0:
            return new, 0
        ids, count = content_ids(pa.concat_tables([old, new]))
        balance = np.bincount(ids, np.concatenate([int_column(old, WEIGHT), weights]), count)
        missing = np.maximum(-balance, 0).astype(np.int64)
        unknown = int(missing.sum())
        if not unknown:
            return new, 0
        left = self._left(ids[old.num_rows :], weights, missing)
        place = new.schema.get_field_index(WEIGHT)
        new = new.set_column(place, WEIGHT, pa.array(left))
        return new.filter(pc.not_equal(new.column(WEIGHT), 0)), unknown

    def _left(self, ids: Ints, weights: Ints, missing: Ints) -> Ints:
        """The weights without as many retractions of each row as have nothing to retract."""
        if not self.ordered:
            return np.where(weights < 0, weights + missing[ids], weights)
        retractions = np.flatnonzero(weights < 0)
        order = retractions[np.argsort(ids[retractions], kind="stable")]
        sorted_ids = ids[order]
        nth = np.arange(len(order)) - np.searchsorted(sorted_ids, sorted_ids)
        left = weights.copy()
        left[order[nth < missing[sorted_ids]]] = 0
        return left

    def one_by_one(self, rows: pa.Table) -> pa.Table:
        """Every row as often as it is there, without weights."""
        weights = int_column(rows, WEIGHT)
        rows = rows.drop_columns([WEIGHT])
        if not rows.num_rows or weights.max() == 1:
            return rows
        return rows.take(pa.array(np.repeat(np.arange(rows.num_rows), weights)))


def consolidate(rows: pa.Table) -> pa.Table:
    """Equal rows as one with the sum of their weights; without those that come to nothing."""
    if rows.num_rows > 1:
        ids, count = content_ids(rows)
        if count < rows.num_rows:
            sums = np.zeros(count, np.int64)
            np.add.at(sums, ids, int_column(rows, WEIGHT))
            first = first_rows(ids, count, np.ones(rows.num_rows, np.bool_))
            order = np.argsort(first)
            rows = rows.take(pa.array(first[order]))
            place = rows.schema.get_field_index(WEIGHT)
            rows = rows.set_column(place, WEIGHT, pa.array(sums[order]))
    return rows.filter(pc.not_equal(rows.column(WEIGHT), 0))


def content_ids(rows: pa.Table) -> tuple[Ints, int]:
    """A number for each row, the same for rows with equal columns but the weight; how many."""
    names = [name for name in rows.column_names if name != WEIGHT]
    if not names:
        return np.zeros(rows.num_rows, np.int64), min(rows.num_rows, 1)
    return group_ids(rows, names)


# ---- What changed between two results of the same groups, as rows with _op.


def diff_results(before: pa.Table, after: pa.Table, keys: list[str]) -> pa.Table:
    """`-U` old and `+U` new side by side, `+I` for new groups, `-D` for those that are gone."""
    places = find_rows(before, after, keys)
    known = places >= 0
    rows = np.arange(after.num_rows)
    same = np.zeros(after.num_rows, np.bool_)
    if known.any():
        old, new = before.take(pa.array(places[known])), after.take(pa.array(rows[known]))
        same[known] = rows_identical(old, new)
    gone = np.ones(before.num_rows, np.bool_)
    gone[places[known]] = False
    changed, added = rows[known & ~same], rows[~known]
    shift = before.num_rows
    pairs = np.stack([places[changed], changed + shift], axis=1).ravel()
    order = np.concatenate([np.flatnonzero(gone), pairs, added + shift])
    ops = [DELETE] * int(gone.sum()) + [BEFORE, AFTER] * len(changed) + [INSERT] * len(added)
    both = pa.concat_tables([before, after]).take(pa.array(order.astype(np.int64)))
    return both.append_column(OP, pa.array(ops, pa.string()))


def cancel_pairs(table: pa.Table, keys: list[str], count: str) -> pa.Table:
    """Rows as they came, without those that were retracted.

    A row that is retracted is the latest identical one before it: so opening and closing brackets
    match, and like them they can be matched in any part first. What finds no match stays.
    """
    signs = table.column(count).to_numpy()
    if len(signs) == 0 or signs.min() > 0:
        return table
    ids, _ = group_ids(table, keys)
    order = np.argsort(ids, kind="stable")
    keep = np.empty(len(ids), np.bool_)
    keep[order] = unpaired(ids[order], signs[order])
    return table if keep.all() else table.filter(pa.array(keep))


def unpaired(ids: Ints, signs: Ints) -> Mask:
    """Brackets without a partner in their run of equal ids; ids ascend."""
    runs = np.cumsum(np.diff(ids, prepend=ids[0]) != 0)
    starts = np.flatnonzero(np.diff(ids, prepend=ids[0] - 1) != 0)
    sums = np.cumsum(signs)
    before = np.concatenate(([0], sums))[starts]
    depth = sums - before[runs]
    # Runs are moved so far apart that the smallest of one never reaches into another.
    apart = runs * (2 * len(ids) + 2)
    later = np.minimum.accumulate((depth + apart)[::-1])[::-1] - apart
    lowest = np.minimum.accumulate(np.minimum(depth, 0) - apart) + apart
    earlier = np.concatenate(([0], lowest[:-1]))
    earlier[starts] = 0
    free: Mask = np.where(signs > 0, later >= depth, depth < earlier)
    return free


def cancel_earliest(table: pa.Table, keys: list[str], count: str) -> pa.Table:
    """Only rows that are there: a retraction without a pair removes the earliest identical row."""
    signs = table.column(count).to_numpy()
    if len(signs) == 0 or signs.min() > 0:
        return table
    ids, number = group_ids(table, keys)
    owed = np.bincount(ids[signs < 0], minlength=number)
    order = np.argsort(ids, kind="stable")
    there = signs[order] > 0
    total = np.cumsum(there)
    starts = np.flatnonzero(np.diff(ids[order], prepend=-1) != 0)
    before = (total - there)[starts]
    rank = total - before[ids[order]]
    keep = np.empty(len(ids), np.bool_)
    keep[order] = there & (rank > owed[ids[order]])
    return table.filter(pa.array(keep))
