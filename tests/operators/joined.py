"""What DuckDB gives for a join of two lists of rows: a key, a time, a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from tests.operators.harness import L, S

Row = tuple[str | None, int, int]
_connection = duckdb.connect(config={"threads": 1})


def joined(
    sides: Sequence[Iterable[Row]], how: str, bounds: tuple[int, int] | None, safe: bool
) -> Counter[tuple[Any, ...]]:
    for name, rows in zip(("l", "r"), sides, strict=True):
        there = list(rows)
        columns = [pa.array([row[i] for row in there], kind) for i, kind in enumerate((S, L, L))]
        _connection.register(name, pa.table(columns, names=["k", "t", "v"]))
    on = f"l.k {'IS NOT DISTINCT FROM' if safe else '='} r.k"
    if bounds is not None:
        on += f" AND l.t - r.t BETWEEN {bounds[0]} AND {bounds[1]}"
    if how in ("SEMI", "ANTI"):
        negated = "NOT " if how == "ANTI" else ""
        sql = f"SELECT l.* FROM l WHERE {negated}EXISTS (SELECT 1 FROM r WHERE {on})"
    else:
        sql = f"SELECT l.*, r.* FROM l {how} JOIN r ON {on}"
    return Counter(_connection.execute(sql).fetchall())
