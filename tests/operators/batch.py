"""GROUP BY in DuckDB, over rows that the model has assigned to windows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

from tests.operators.harness import B, D, L, Query, Row, S, normalize_keys
from tests.operators.window_model import Window
from tidegate.operators.aggregate.functions import AggregateCall

DATE = pa.date32()
DEC = pa.decimal128(10, 2)
# The types of the columns that aggregates read: v0, v1, …
VALUES = (L, D, DEC, S, B, DATE)
_FLAG = VALUES.index(B)
# A call, its value columns, its FILTER column, and its SQL.
Choice = tuple[AggregateCall, tuple[int, ...], int | None, str]
Results = dict[tuple[Any, ...], tuple[Any, ...]]


def _one(sql: str, result: pa.DataType, column: int, **options: Any) -> Choice:
    function = sql.split("(")[0]
    return AggregateCall(function, sql, (VALUES[column],), result, **options), (column,), None, sql


def _filtered(choice: Choice) -> Choice:
    """Return a choice with FILTER: its argument is NULL where the flag is not true."""
    call, columns, _, sql = choice
    kinds = call.arguments or (pa.int32(),)
    text = f"{sql} FILTER (WHERE v{_FLAG})"
    return (
        AggregateCall(call.function, text, kinds, call.result, call.distinct),
        columns,
        _FLAG,
        text,
    )


COUNT: Choice = (AggregateCall("count", "count(*)", (), L), (), None, "count(*)")
_PLAIN = [
    COUNT,
    *(_one(f"count(v{i})", L, i) for i in range(len(VALUES))),
    *(_one(f"count(DISTINCT v{i})", L, i, distinct=True) for i in range(len(VALUES))),
    *(_one(f"{name}(v{i})", kind, i) for name in ("min", "max") for i, kind in enumerate(VALUES)),
    _one("sum(v0)", L, 0),
    _one("sum(DISTINCT v0)", L, 0, distinct=True),
    _one("sum(v1)", D, 1),
    _one("sum(v2)", pa.decimal128(20, 2), 2),
    _one("avg(v0)", D, 0),
    _one("avg(v1)", D, 1),
    _one("avg(v2)", pa.decimal128(14, 6), 2),
    _one("stddev(v0)", D, 0),
    _one("var_pop(v2)", D, 2),
    _one("bool_and(v4)", B, 4),
    _one("bool_or(v4)", B, 4),
    (AggregateCall("count_if", "count_if(v4)", (B,), L), (4,), None, "count(*) FILTER (WHERE v4)"),
    _one("bit_xor(v0)", L, 0),
]
CHOICES = [*_PLAIN, *(_filtered(choice) for choice in _PLAIN if "FILTER" not in choice[3])]
_connection = duckdb.connect(config={"threads": 1})


def batch_results(
    query: Query, texts: Sequence[str], assigned: list[tuple[Row, Window]]
) -> Results:
    """Return the results by keys and window, after retractions."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for row, window in assigned:
        counts[(*row.keys, *row.values, *window)] += row.weight
    assert all(count >= 0 for count in counts.values()), "every retracted row exists"
    remaining = [row for row, count in counts.items() for _ in range(count)]
    names = [f"k{i}" for i, _ in enumerate(query.keys)]
    kinds = [*query.keys, *query.values, L, L]
    columns = [*names, *(f"v{i}" for i, _ in enumerate(query.values)), "ws", "we"]
    table = pa.table(
        [pa.array([row[i] for row in remaining], kind) for i, kind in enumerate(kinds)],
        names=columns,
    )
    by = [*names, *(["ws", "we"] if query.windowed else [])]
    _connection.register("assigned", table)
    grouping = f" GROUP BY {', '.join(by)}" if by else ""
    sql = f"SELECT {', '.join([*by, *texts])} FROM assigned{grouping}"
    rows = _connection.execute(sql).fetchall()
    return {normalize_keys(row[: len(by)]): row[len(by) :] for row in rows}


def assert_same_results(actual: Results, expected: Results) -> None:
    assert set(actual) == set(expected), (actual, expected)
    for key, results in expected.items():
        pairs = zip(actual[key], results, strict=True)
        assert all(same_value(one, other) for one, other in pairs), (key, actual[key], results)


def same_value(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, float) or isinstance(other, float):
        one, other = float(one), float(other)
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        # DuckDB averages decimals as doubles; the results here have six decimal places.
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)
    if isinstance(one, Decimal) or isinstance(other, Decimal):
        return Decimal(one) == Decimal(other)
    return bool(one == other)
