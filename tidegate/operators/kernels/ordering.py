"""ORDER BY as Spark orders, on numbers: every column becomes codes, and codes are sorted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW
from tidegate.errors import unsupported_error
from tidegate.operators.kernels.arrays import Column, Ints, Mask, as_array
from tidegate.operators.kernels.keys import canonicalize, dense_ranks, group_ids, is_comparable
from tidegate.operators.operator import KeyGroupState

ROW_NUMBER, RANK, DENSE_RANK = "ROW_NUMBER", "RANK", "DENSE_RANK"


@dataclass(frozen=True)
class Ordering:
    """One column of an ORDER BY."""

    type: pa.DataType
    descending: bool = False
    nulls_first: bool = True


def is_sortable(kind: pa.DataType) -> bool:
    """Whether values of a type have an order here."""
    return not (pa.types.is_nested(kind) or pa.types.is_interval(kind))


def check_partitions(keys: Sequence[pa.DataType], orders: Sequence[Ordering]) -> None:
    """Reject what rows cannot be partitioned or ordered by."""
    for kind in keys:
        if not is_comparable(kind):
            hint = "partition by the values of some of its keys, for example m['a']."
            raise unsupported_error(f"PARTITION BY is not supported over {kind}", hint)
    for item in orders:
        if not is_sortable(item.type):
            hint = "order by its parts."
            raise unsupported_error(f"ORDER BY is not supported over {item.type}", hint)


def sort_codes(column: Column, ordering: Ordering) -> Ints:
    """A number a value, in the order of the values and the same for equal ones.

    Text goes by its bytes, NaN is above all numbers, and there is one zero.
    """
    values = as_array(canonicalize(column))
    rows = len(values)
    if pa.types.is_null(values.type):
        return np.zeros(rows, np.int64)
    found = dense_ranks(values)
    if ordering.descending:
        found = -found
    if values.null_count:
        missing = pc.is_null(values).to_numpy(zero_copy_only=False)
        found[missing] = -rows - 2 if ordering.nulls_first else rows + 2
    return found


def rank_rows(
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


def identical_row_ids(rows: pa.Table) -> tuple[Ints, int]:
    """A number for each row, the same for rows that are identical in all columns, and how many."""
    return group_ids(rows, rows.column_names)


# ---- Rows in the order in which they came: their place of arrival, and their number among all.

INT = pa.int64()
# The place of a row among all that came: of rows that are equal in the order the first one wins.
SEQ = "_seq"
ARRIVAL_FIELDS = (pa.field(ARRIVAL_FILE, pa.string()), pa.field(ARRIVAL_ROW, INT))
BY_ARRIVAL = [(ARRIVAL_FILE, "ascending"), (ARRIVAL_ROW, "ascending")]


def arrival_schema(content: Sequence[pa.Field]) -> pa.Schema:
    """A row that comes in, with its place of arrival."""
    return pa.schema([*content, *ARRIVAL_FIELDS])


def stored_schema(content: Sequence[pa.Field]) -> pa.Schema:
    """A row that is stored, with its place among all that came."""
    return pa.schema([*content, pa.field(SEQ, INT)])


def select_columns(
    rows: pa.Table,
    schema: pa.Schema,
    keys: Sequence[pa.Field],
    made: dict[str, pa.Array] | None = None,
) -> pa.Table:
    """The columns that count, with keys that are equal where SQL says so; some are `made` anew."""
    made = {**(made or {}), **{item.name: canonicalize(rows.column(item.name)) for item in keys}}
    columns = [made[name] if name in made else rows.column(name) for name in schema.names]
    return pa.table(columns, schema=schema)


def number_arrivals(state: KeyGroupState, rows: pa.Table) -> pa.Table:
    """Rows in the order they came in, numbered on from those of earlier epochs."""
    first = int(state.meta.get("seq", 0))
    state.meta["seq"] = first + rows.num_rows
    order = np.lexsort(tuple(reversed(arrival_codes(rows))))
    numbers = pa.array(np.arange(first, first + rows.num_rows))
    return rows.take(pa.array(order)).append_column(SEQ, numbers)


def arrival_codes(rows: pa.Table) -> list[Ints]:
    """Numbers in the order of arrival."""
    orderings = ((item.name, Ordering(item.type, False, False)) for item in ARRIVAL_FIELDS)
    return [sort_codes(rows.column(name), ordering) for name, ordering in orderings]
