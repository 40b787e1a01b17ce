"""ORDER BY with Spark's semantics, and the order in which rows arrive.

Every column of an ORDER BY becomes integer codes that sort like its values; rows are sorted and
ranked by these codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW
from tidegate.errors import unsupported_error
from tidegate.operators.kernels.arrays import Column, Ints, Mask, as_array
from tidegate.operators.kernels.keys import (
    canonicalize,
    dense_ranks,
    group_ids,
    is_comparable,
)
from tidegate.operators.operator import KeyGroupState

ROW_NUMBER, RANK, DENSE_RANK = "ROW_NUMBER", "RANK", "DENSE_RANK"


@dataclass(frozen=True)
class Ordering:
    """One column of an ORDER BY."""

    type: pa.DataType
    descending: bool = False
    nulls_first: bool = True


def is_sortable(data_type: pa.DataType) -> bool:
    """Return whether rows can be ordered by values of a type."""
    return not (pa.types.is_nested(data_type) or pa.types.is_interval(data_type))


def check_partitions(keys: Sequence[pa.DataType], orders: Sequence[Ordering]) -> None:
    """Reject types that rows cannot be partitioned or ordered by."""
    for data_type in keys:
        if not is_comparable(data_type):
            hint = "partition by the values of some of its keys, for example m['a']."
            raise unsupported_error(f"PARTITION BY is not supported over {data_type}", hint)
    for item in orders:
        if not is_sortable(item.type):
            hint = "order by its parts."
            raise unsupported_error(f"ORDER BY is not supported over {item.type}", hint)


def sort_codes(column: Column, ordering: Ordering) -> Ints:
    """Return integers that sort like the values of a column; equal values have equal integers.

    Text is ordered by its bytes, NaN is larger than all numbers, and −0.0 equals 0.0.
    """
    values = as_array(canonicalize(column))
    rows = len(values)
    if pa.types.is_null(values.type):
        return np.zeros(rows, np.int64)
    codes = dense_ranks(values)
    if ordering.descending:
        codes = -codes
    if values.null_count:
        is_null = pc.is_null(values).to_numpy(zero_copy_only=False)
        codes[is_null] = -rows - 2 if ordering.nulls_first else rows + 2
    return codes


def rank_rows(
    function: str, ids: Ints, by: Sequence[Ints], arrival: Sequence[Ints] = ()
) -> tuple[Ints, Ints]:
    """Rank each row among those with its id; return the ranks and all rows in order, id by id.

    Rows that are equal in `by` are peers. They are ordered by `arrival`, then by row number.
    """
    rows = len(ids)
    order = np.lexsort((*reversed(arrival), *reversed(by), ids))
    positions = np.arange(rows)
    starts_id = differs_from_previous(ids[order])
    starts = np.maximum.accumulate(np.where(starts_id, positions, 0))
    ordered_ranks = positions - starts + 1
    if function != ROW_NUMBER:
        starts_peers = starts_id.copy()
        for column in by:
            starts_peers |= differs_from_previous(column[order])
        if function == RANK:
            first_peers = np.maximum.accumulate(np.where(starts_peers, positions, 0))
            ordered_ranks = first_peers - starts + 1
        else:
            count: Ints = np.cumsum(starts_peers)
            ordered_ranks = count - count[starts] + 1
    ranks = np.empty(rows, np.int64)
    ranks[order] = ordered_ranks
    return ranks, order


def differs_from_previous(values: Ints) -> Mask:
    """Return where a value differs from the one before it; true for the first."""
    differs = np.ones(len(values), np.bool_)
    differs[1:] = values[1:] != values[:-1]
    return differs


def identical_row_ids(rows: pa.Table) -> tuple[Ints, int]:
    """Assign identical rows the same number; return also how many different rows there are."""
    return group_ids(rows, rows.column_names)


# ---- Order of arrival: a row's position in its source, and its number among all rows that arrived

INT = pa.int64()
# The number of a row in order of arrival. Among rows that are equal in an ORDER BY, the first wins.
ARRIVAL_NUMBER = "_seq"
ARRIVAL_FIELDS = (pa.field(ARRIVAL_FILE, pa.string()), pa.field(ARRIVAL_ROW, INT))
BY_ARRIVAL = [(ARRIVAL_FILE, "ascending"), (ARRIVAL_ROW, "ascending")]


def arrival_schema(content: Sequence[pa.Field]) -> pa.Schema:
    """Return the schema of input rows: the content and the row's position in its source."""
    return pa.schema([*content, *ARRIVAL_FIELDS])


def stored_schema(content: Sequence[pa.Field]) -> pa.Schema:
    """Return the schema of stored rows: the content and the row's number."""
    return pa.schema([*content, pa.field(ARRIVAL_NUMBER, INT)])


def select_columns(
    rows: pa.Table,
    schema: pa.Schema,
    keys: Sequence[pa.Field],
    computed: dict[str, pa.Array] | None = None,
) -> pa.Table:
    """Select the columns of a schema, with canonicalized keys and some `computed` columns."""
    replaced = {item.name: canonicalize(rows.column(item.name)) for item in keys}
    replaced = {**(computed or {}), **replaced}
    columns = [replaced[name] if name in replaced else rows.column(name) for name in schema.names]
    return pa.table(columns, schema=schema)


def number_arrivals(state: KeyGroupState, rows: pa.Table) -> pa.Table:
    """Sort rows by arrival and number them, continuing after the rows of earlier epochs."""
    first = int(state.meta.get("seq", 0))
    state.meta["seq"] = first + rows.num_rows
    order = np.lexsort(tuple(reversed(arrival_codes(rows))))
    numbers = pa.array(np.arange(first, first + rows.num_rows))
    return rows.take(pa.array(order)).append_column(ARRIVAL_NUMBER, numbers)


def arrival_codes(rows: pa.Table) -> list[Ints]:
    """Return sort codes of the arrival columns."""
    orderings = ((item.name, Ordering(item.type, False, False)) for item in ARRIVAL_FIELDS)
    return [sort_codes(rows.column(name), ordering) for name, ordering in orderings]
