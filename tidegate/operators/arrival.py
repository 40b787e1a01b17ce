"""Rows in the order in which they came: their place of arrival, and their number among all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW
from tidegate.operators.contract import OperatorState
from tidegate.operators.keys import canonical
from tidegate.operators.ordering import Ints, Ordering, codes

INT = pa.int64()
# The place of a row among all that came: of rows that are equal in the order the first one wins.
SEQ = "_seq"
ARRIVAL_FIELDS = (pa.field(ARRIVAL_FILE, pa.string()), pa.field(ARRIVAL_ROW, INT))
BY_ARRIVAL = [(ARRIVAL_FILE, "ascending"), (ARRIVAL_ROW, "ascending")]


def arrived(content: Sequence[pa.Field]) -> pa.Schema:
    """A row that comes in, with its place of arrival."""
    return pa.schema([*content, *ARRIVAL_FIELDS])


def kept(content: Sequence[pa.Field]) -> pa.Schema:
    """A row that is stored, with its place among all that came."""
    return pa.schema([*content, pa.field(SEQ, INT)])


def select(
    rows: pa.Table,
    schema: pa.Schema,
    keys: Sequence[pa.Field],
    made: dict[str, pa.Array] | None = None,
) -> pa.Table:
    """The columns that count, with keys that are equal where SQL says so; some are `made` anew."""
    made = {**(made or {}), **{item.name: canonical(rows.column(item.name)) for item in keys}}
    columns = [made[name] if name in made else rows.column(name) for name in schema.names]
    return pa.table(columns, schema=schema)


def numbered(state: OperatorState, rows: pa.Table) -> pa.Table:
    """Rows in the order they came in, numbered on from those of earlier epochs."""
    first = int(state.meta.get("seq", 0))
    state.meta["seq"] = first + rows.num_rows
    order = np.lexsort(tuple(reversed(arrival_codes(rows))))
    numbers = pa.array(np.arange(first, first + rows.num_rows))
    return rows.take(pa.array(order)).append_column(SEQ, numbers)


def arrival_codes(rows: pa.Table) -> list[Ints]:
    """Numbers in the order of arrival."""
    orderings = ((item.name, Ordering(item.type, False, False)) for item in ARRIVAL_FIELDS)
    return [codes(rows.column(name), ordering) for name, ordering in orderings]
