"""Rows with weights: how many there are of each, and retractions of what is not there.

A weight of 1 adds a row, −1 retracts one. Rows are told apart by all their columns, bit by bit: a
retraction carries exactly what was added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import AFTER, BEFORE, DELETE, INSERT, OP
from tidegate.operators.aggregate.functions.bags import cancel_owed, cancel_pairs
from tidegate.operators.aggregate.functions.base import first_places
from tidegate.operators.aggregate.groups import HASH, WEIGHT
from tidegate.operators.kernels.keys import group_ids, places_of, rows_identical
from tidegate.operators.kernels.matching import Ints, ints
from tidegate.operators.store.sorted_runs import SortedRunStore

_CONTENT = "_content"


def same_keys(log: SortedRunStore, came: Sequence[pa.Table], keys: Sequence[str]) -> list[pa.Table]:
    """What is kept on both sides of a join of the keys that came in."""
    by = [HASH, *keys]
    found = pa.concat_tables([table.select(by) for table in came])
    stored = log.load(ints(found, HASH))[-2:]
    known = [places_of(found, table.select(by), by) >= 0 for table in stored]
    return [table.filter(pa.array(mask)) for table, mask in zip(stored, known, strict=True)]


@dataclass(frozen=True)
class WeightedRows:
    """`ordered`: rows stay one by one as they arrived; else equal ones are one with a number."""

    ordered: bool = False

    def net(self, rows: pa.Table) -> pa.Table:
        """Without rows that were added and retracted; what is owed by earlier rows stays."""
        if not self.ordered:
            return net(rows)
        marked = rows.append_column(_CONTENT, pa.array(content_ids(rows)[0]))
        return cancel_pairs(marked, [_CONTENT], WEIGHT).drop_columns([_CONTENT])

    def present(self, rows: pa.Table) -> pa.Table:
        """What is there, by the net of all rows that ever came."""
        if not self.ordered:
            return rows
        marked = rows.append_column(_CONTENT, pa.array(content_ids(rows)[0]))
        return cancel_owed(marked, [_CONTENT], WEIGHT).drop_columns([_CONTENT])

    def known(self, old: pa.Table, new: pa.Table) -> tuple[pa.Table, int]:
        """New rows without retractions of what is not there, and how many those were."""
        weights = ints(new, WEIGHT)
        if not new.num_rows or weights.min() > 0:
            return new, 0
        ids, count = content_ids(pa.concat_tables([old, new]))
        balance = np.bincount(ids, np.concatenate([ints(old, WEIGHT), weights]), count)
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
        weights = ints(rows, WEIGHT)
        rows = rows.drop_columns([WEIGHT])
        if not rows.num_rows or weights.max() == 1:
            return rows
        return rows.take(pa.array(np.repeat(np.arange(rows.num_rows), weights)))


def net(rows: pa.Table) -> pa.Table:
    """Equal rows as one with the sum of their weights; without those that come to nothing."""
    if rows.num_rows > 1:
        ids, count = content_ids(rows)
        if count < rows.num_rows:
            sums = np.zeros(count, np.int64)
            np.add.at(sums, ids, ints(rows, WEIGHT))
            first = first_places(ids, count, np.ones(rows.num_rows, np.bool_))
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


def changes(before: pa.Table, after: pa.Table, keys: list[str]) -> pa.Table:
    """`-U` old and `+U` new side by side, `+I` for new groups, `-D` for those that are gone."""
    places = places_of(before, after, keys)
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
