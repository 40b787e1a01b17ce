"""Partials that Spark computes: a GROUP BY in the stage before an operator, instead of `lift`.

Generated code adds up rows faster than anything that is sent to Python first. It can only be done
where every call has partials in SQL, nothing is retracted, and rows need not be kept as they came.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidegate.operators.accumulators import PlainAccumulator
from tidegate.operators.group_kernels import HASH, PANE, ROWS, Groups, Tables
from tidegate.operators.keys import canonical


def partial_sql(groups: Groups, arguments: Sequence[Sequence[str]]) -> list[tuple[str, str]] | None:
    """The partials of all calls as (name, SQL); None if one has none.

    `arguments` are the columns of each call, the last one its filter if it has one.
    """
    if groups.spec.retracts or groups.bags or any(map(pa.types.is_nested, groups.spec.keys)):
        return None
    found: list[tuple[str, str]] = []
    for index, item in enumerate(groups.accumulators):
        if item is None:
            continue
        assert isinstance(item, PlainAccumulator), "there are no bags"
        folded = _folded(groups, index, item, list(arguments[index]))
        sql = item.partials(folded) if folded is not None else None
        if sql is None:
            return None
        found += [(f"p{index}_{place}", text) for place, text in enumerate(sql)]
    return found


def _folded(
    groups: Groups, index: int, item: PlainAccumulator, columns: list[str]
) -> list[str] | None:
    """The arguments of a call, NULL where its filter leaves a row out."""
    if not groups.spec.calls[index].filtered:
        return columns
    if item.null_place is None:
        return None
    *columns, there = columns
    if not columns:
        return [f"CASE WHEN {there} THEN true END"]
    columns[item.null_place] = f"CASE WHEN {there} THEN {columns[item.null_place]} END"
    return columns


def from_partials(groups: Groups, rows: pa.Table) -> Tables:
    """The states of groups from rows of PANE, HASH, keys, ROWS and partials."""
    names = [PANE, HASH, *groups.keys, ROWS]
    columns = [canonical(rows.column(n)) if n in groups.keys else rows.column(n) for n in names]
    for index, item in enumerate(groups.accumulators):
        if isinstance(item, PlainAccumulator):
            own = [n for n in rows.column_names if n.startswith(f"p{index}_")]
            columns += item.from_partials([rows.column(name) for name in own])
    schema = groups.schemas[0]
    cast = [c.cast(kind) for c, kind in zip(columns, schema.types, strict=True)]
    return groups.combine((pa.table(cast, schema=schema),))
