"""What changed between two results of the same groups, as rows with _op."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import AFTER, BEFORE, DELETE, INSERT, OP
from tidegate.operators.group_kernels import places_of

Mask = npt.NDArray[np.bool_]


def changes(before: pa.Table, after: pa.Table, keys: list[str]) -> pa.Table:
    """`-U` old and `+U` new side by side, `+I` for new groups, `-D` for those that are gone."""
    places = places_of(before, after, keys)
    known = places >= 0
    rows = np.arange(after.num_rows)
    same = np.zeros(after.num_rows, np.bool_)
    if known.any():
        old, new = before.take(pa.array(places[known])), after.take(pa.array(rows[known]))
        same[known] = rows_equal(old, new)
    gone = np.ones(before.num_rows, np.bool_)
    gone[places[known]] = False
    changed, added = rows[known & ~same], rows[~known]
    shift = before.num_rows
    pairs = np.stack([places[changed], changed + shift], axis=1).ravel()
    order = np.concatenate([np.flatnonzero(gone), pairs, added + shift])
    ops = [DELETE] * int(gone.sum()) + [BEFORE, AFTER] * len(changed) + [INSERT] * len(added)
    both = pa.concat_tables([before, after]).take(pa.array(order.astype(np.int64)))
    return both.append_column(OP, pa.array(ops, pa.string()))


def rows_equal(left: pa.Table, right: pa.Table) -> Mask:
    """Row by row: NULL equals NULL, NaN equals NaN."""
    same = np.ones(left.num_rows, np.bool_)
    for one, other in zip(left.columns, right.columns, strict=True):
        same &= _equal(one, other)
    return same


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Mask:
    if pa.types.is_nested(one.type):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.array([a == b for a, b in pairs], np.bool_)
    equal = pc.fill_null(pc.equal(one, other), False)
    equal = pc.or_(equal, pc.and_(pc.is_null(one), pc.is_null(other)))
    if pa.types.is_floating(one.type):
        nan = pc.and_(pc.fill_null(pc.is_nan(one), False), pc.fill_null(pc.is_nan(other), False))
        equal = pc.or_(equal, nan)
    return np.asarray(equal.to_numpy(), np.bool_)
