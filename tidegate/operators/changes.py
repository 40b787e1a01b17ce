"""What changed between two results of the same groups, as rows with _op."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.columns import AFTER, BEFORE, DELETE, INSERT, OP
from tidegate.operators.keys import places_of, rows_identical


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
