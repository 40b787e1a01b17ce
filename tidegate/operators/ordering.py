"""ORDER BY as Spark orders, on numbers: every column becomes codes, and codes are sorted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import not_built
from tidegate.operators.keys import Column, as_array, canonical, comparable, group_ids, ranks

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
ROW_NUMBER, RANK, DENSE_RANK = "ROW_NUMBER", "RANK", "DENSE_RANK"


@dataclass(frozen=True)
class Ordering:
    """One column of an ORDER BY."""

    type: pa.DataType
    descending: bool = False
    nulls_first: bool = True


def sortable(kind: pa.DataType) -> bool:
    """Whether values of a type have an order here."""
    return not (pa.types.is_nested(kind) or pa.types.is_interval(kind))


def check_partitions(keys: Sequence[pa.DataType], orders: Sequence[Ordering]) -> None:
    """Refuse what rows cannot be partitioned or ordered by."""
    for kind in keys:
        if not comparable(kind):
            hint = "partition by the values of some of its keys, for example m['a']."
            raise not_built(f"PARTITION BY is not supported over {kind}", hint)
    for item in orders:
        if not sortable(item.type):
            hint = "order by its parts."
            raise not_built(f"ORDER BY is not supported over {item.type}", hint)


def codes(column: Column, ordering: Ordering) -> Ints:
    """A number a value, in the order of the values and the same for equal ones.

    Text goes by its bytes, NaN is above all numbers, and there is one zero.
    """
    values = as_array(canonical(column))
    rows = len(values)
    if pa.types.is_null(values.type):
        return np.zeros(rows, np.int64)
    found = ranks(values)
    if ordering.descending:
        found = -found
    if values.null_count:
        missing = pc.is_null(values).to_numpy(zero_copy_only=False)
        found[missing] = -rows - 2 if ordering.nulls_first else rows + 2
    return found


def ranks_of(
    function: str, ids: Ints, by: Sequence[Ints], arrival: Sequence[Ints] = ()
) -> tuple[Ints, Ints]:
    """The rank of each row among those with its id, and all rows in order, id by id.

    Rows that are equal in `by` are peers; `arrival` puts them in order, and after that their place.
    """
    rows = len(ids)
    order = np.lexsort((*reversed(arrival), *reversed(by), ids))
    places = np.arange(rows)
    begins = _differs(ids[order])
    starts = np.maximum.accumulate(np.where(begins, places, 0))
    found = places - starts + 1
    if function != ROW_NUMBER:
        leads = begins.copy()
        for column in by:
            leads |= _differs(column[order])
        if function == RANK:
            found = np.maximum.accumulate(np.where(leads, places, 0)) - starts + 1
        else:
            count: Ints = np.cumsum(leads)
            found = count - count[starts] + 1
    ranks = np.empty(rows, np.int64)
    ranks[order] = found
    return ranks, order


def _differs(values: Ints) -> Mask:
    """Where a value is not the one before it."""
    differs = np.ones(len(values), np.bool_)
    differs[1:] = values[1:] != values[:-1]
    return differs


def equal_rows(rows: pa.Table) -> tuple[Ints, int]:
    """A number for each row, the same for rows that are identical in all columns, and how many."""
    return group_ids(rows, rows.column_names)
