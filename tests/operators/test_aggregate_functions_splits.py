"""Aggregates return the same results for any split of the rows, any merges and any retractions."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.aggregate_inputs import (
    DEC,
    INF,
    INTERVAL,
    NAN,
    B,
    D,
    L,
    S,
    call_of,
    input_rows,
    same_result,
)
from tests.operators.test_aggregate_functions import PAIRS
from tidegate.columns import ROWS
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.groups import Aggregator, GroupSpec
from tidegate.operators.operator import Tables

VALUES: dict[pa.DataType, list[Any]] = {
    L: [None, 0, 1, 2, -7, 2**62, -(2**62)],
    D: [None, 0.0, -0.0, 1.5, -2.25, 1e6, NAN, INF, -INF],
    S: [None, "", "a", "b", "é"],
    B: [None, True, False],
    DEC: [None, Decimal("0.10"), Decimal("-99999999.99"), Decimal("7.00")],
    INTERVAL: [None, timedelta(microseconds=1), timedelta(-1), timedelta(2)],
}
# Small enough that doubles keep their digits when values nearly cancel out.
INT = pa.int32()
WIDE = pa.decimal128(20, 2)
HALF = {"constants": (0.5,)}
SKIP = {"constants": (True,)}
DISTINCT = {"distinct": True}
CALLS: list[AggregateCall] = [
    call_of("count", [L], L),
    *(call_of("count", kinds, L, **DISTINCT) for kinds in ([D], [L, S], [INTERVAL])),
    call_of("count_if", [B], L),
    call_of("sum", [INT], L),
    *(call_of("sum", [kind], result, **options)
      for kind, result in ((D, D), (DEC, WIDE), (INTERVAL, INTERVAL)) for options in ({}, DISTINCT)),
    *(call_of("avg", [kind], result, **options)
      for kind, result in ((D, D), (DEC, pa.decimal128(14, 6)), (INTERVAL, INTERVAL))
      for options in ({}, DISTINCT)),
    *(call_of(name, [kind], kind) for name in ("min", "max") for kind in VALUES),
    *(call_of(name, [kind, order], kind) for name in ("min_by", "max_by")
      for kind, order in ((S, D), (L, S), (D, INTERVAL))),
    *(call_of(name, [kind], kind, **options) for name in ("first", "last")
      for kind in (L, D, S, DEC) for options in ({}, SKIP)),
    *(call_of(name, [B], B) for name in ("bool_and", "bool_or")),
    *(call_of(name, [L], L) for name in ("bit_and", "bit_or", "bit_xor")),
    *(call_of(name, [kind], D, **options) for name in ("stddev", "var_pop", "skewness")
      for kind in (D, DEC) for options in ({}, DISTINCT)),
    *(call_of(name, [INT, DEC], D, **options) for name in ("corr", "covar_samp", "regr_intercept")
      for options in ({}, DISTINCT)),
    call_of("regr_avgx", [INT, DEC], pa.decimal128(14, 6)),
    *(call_of("collect_list", [kind], pa.list_(kind), **options)
      for kind in (L, D, S) for options in ({}, DISTINCT, {"constants": (False,)})),
    *(call_of("collect_set", [kind], pa.list_(kind)) for kind in (D, S)),
    *(call_of("string_agg", [S], S, constants=("-",), distinct=distinct) for distinct in (False, True)),
    call_of("approx_count_distinct", [D], L),
    *(call_of("approx_percentile", [kind], kind, **HALF) for kind in (D, DEC, INTERVAL)),
    call_of("percentile", [D], pa.list_(D), constants=((0.1, 0.5, 1.0),)),
    call_of("median", [DEC], D),
    *(call_of("mode", [kind], kind) for kind in (D, S)),
]  # fmt: skip


@st.composite
def histories(
    draw: st.DrawFn, call: AggregateCall, retracts: bool
) -> list[tuple[int, tuple[Any, ...], int]]:
    """Draw rows with key, arguments and weight; a retracted row must exist."""
    values = [st.sampled_from(VALUES.get(kind, [None, 1, -5])) for kind in call.arguments]
    history: list[tuple[int, tuple[Any, ...], int]] = []
    for _ in range(draw(st.integers(1, 14))):
        existing = surviving(history)
        if retracts and existing and draw(st.integers(0, 2)) == 0:
            key, row = draw(st.sampled_from(existing))
            history.append((key, row, -1))
        else:
            history.append((draw(st.integers(0, 2)), draw(st.tuples(*values)), 1))
    return history


def surviving(history: list[tuple[int, tuple[Any, ...], int]]) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the rows that remain; a retraction removes the latest of identical rows."""
    rows: list[tuple[int, tuple[Any, ...]]] = []
    for key, row, weight in history:
        if weight > 0:
            rows.append((key, row))
        else:
            names = [repr(other) for other in rows]
            del rows[len(rows) - 1 - names[::-1].index(repr((key, row)))]
    return rows


def pre_aggregate(
    aggregator: Aggregator, history: list[tuple[int, tuple[Any, ...], int]]
) -> Tables:
    kinds = aggregator.spec.calls[0].arguments
    columns = {
        f"a0_{number}": pa.array([row[number] for _, row, _ in history], kind)
        for number, kind in enumerate(kinds)
    }
    weights = [weight for _, _, weight in history] if aggregator.spec.retracts else None
    return aggregator.pre_aggregate(input_rows([key for key, _, _ in history], columns, weights))


def results_of(aggregator: Aggregator, tables: Tables) -> dict[int, Any]:
    evaluated = aggregator.evaluate(tables)
    rows = zip(
        evaluated["k0"].to_pylist(),
        evaluated["r0"].to_pylist(),
        tables[0][ROWS].to_pylist(),
        strict=True,
    )
    return {key: value for key, value, count in rows if count}


def combine_randomly(draw: st.DataObject, aggregator: Aggregator, parts: list[Tables]) -> Tables:
    """Combine adjacent parts, in random order, until one is left."""
    while len(parts) > 1:
        index = draw.draw(st.integers(0, len(parts) - 2))
        parts[index : index + 2] = [aggregator.combine_parts(parts[index : index + 2])]
    return parts[0]


@pytest.mark.parametrize("retracts", [False, True])
@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c.function}-{c.arguments}-{c.distinct}")
def test_results_do_not_depend_on_the_split(call: AggregateCall, retracts: bool) -> None:
    unsplit = Aggregator(GroupSpec((L,), (call,)))
    split = Aggregator(GroupSpec((L,), (call,), retracts=retracts))

    @settings(max_examples=12, deadline=None)
    @given(history=histories(call, retracts), draw=st.data())
    def check(history: list[tuple[int, tuple[Any, ...], int]], draw: st.DataObject) -> None:
        bounds = sorted(
            draw.draw(st.sets(st.integers(1, len(history)), max_size=5)) | {0, len(history)}
        )
        parts = [pre_aggregate(split, history[a:b]) for a, b in pairwise(bounds)]
        actual = results_of(split, combine_randomly(draw, split, parts))
        rows = [(key, row, 1) for key, row in surviving(history)]
        expected = results_of(unsplit, pre_aggregate(unsplit, rows))
        assert actual.keys() == expected.keys()
        assert all(same_result(actual[key], expected[key]) for key in actual), (actual, expected)

    check()


def test_sum_may_leave_the_range_of_bigint_and_return() -> None:
    aggregator = Aggregator(GroupSpec((L,), (call_of("sum", [L], L),)))
    parts = [pre_aggregate(aggregator, [(0, (value,), 1)] * 3) for value in (2**62, -(2**62))]
    assert results_of(aggregator, aggregator.combine_parts(parts)) == {0: 0}


@pytest.mark.parametrize("kind", [L, S, D])
@pytest.mark.parametrize("deviation", [0.05, 0.02])
def test_approx_count_distinct_is_within_its_deviation(kind: pa.DataType, deviation: float) -> None:
    sizes = [1, 10, 100, 1_000, 2_500, 10_000, 100_000]
    keys = np.repeat(np.arange(len(sizes)), sizes)
    values = pa.array(np.concatenate([np.arange(size) for size in sizes])).cast(kind)
    call = call_of("approx_count_distinct", [kind], L, constants=(deviation,))
    aggregator = Aggregator(GroupSpec((L,), (call,)))
    part = aggregator.pre_aggregate(input_rows(keys, {"a0_0": values}))
    results = results_of(aggregator, aggregator.combine_parts([part, part]))
    assert results[0] == 1 and results[1] == 10
    assert all(abs(results[i] - size) <= 3 * deviation * size for i, size in enumerate(sizes))


LIST = pa.list_(L)
DUCKDB_CALLS: list[tuple[AggregateCall, str]] = [
    (call_of("count", [L], L), "count(x)"),
    (call_of("count", [L], L, **DISTINCT), "count(DISTINCT x)"),
    (call_of("sum", [L], L), "sum(x)::BIGINT"),
    (call_of("sum", [L], L, **DISTINCT), "sum(DISTINCT x)::BIGINT"),
    (call_of("avg", [L], D), "avg(x)"),
    (call_of("min", [L], L), "min(x)"),
    (call_of("max", [L], L), "max(x)"),
    (call_of("stddev_samp", [L], D), "stddev_samp(x)"),
    (call_of("stddev_pop", [L], D), "stddev_pop(x)"),
    (call_of("var_samp", [L], D), "var_samp(x)"),
    (call_of("var_pop", [L], D), "var_pop(x)"),
    (call_of("bit_and", [L], L), "bit_and(x)"),
    (call_of("bit_or", [L], L), "bit_or(x)"),
    (call_of("bit_xor", [L], L), "bit_xor(x)"),
    (call_of("first", [L], L, **SKIP), "any_value(x ORDER BY n)"),
    (call_of("first", [L], L), "first(x ORDER BY n)"),
    (call_of("last", [L], L), "last(x ORDER BY n)"),
    (call_of("collect_list", [L], LIST), "list(x ORDER BY n) FILTER (x IS NOT NULL)"),
    (call_of("median", [L], D), "median(x)"),
    (call_of("percentile", [L], D, constants=(0.3,)), "quantile_cont(x, 0.3)"),
    (call_of("approx_percentile", [L], L, constants=(0.3,)), "quantile_disc(x, 0.3)"),
    (call_of("min_by", [L, L], L), "arg_min_null(n, x)"),
    *((call_of(name, [L, L], L if name == "regr_count" else D), f"{name}(n, x)") for name in PAIRS),
]
# The index of the first aggregate of two columns; all after it have two columns too.
FIRST_PAIR = len(DUCKDB_CALLS) - len(PAIRS) - 1


def test_results_equal_duckdb() -> None:
    random = np.random.default_rng(5)
    size = 3_000
    keys = random.integers(0, 40, size)
    values = pa.array(random.integers(-50, 50, size), mask=random.random(size) < 0.2)
    numbers = pa.array(np.arange(size))
    table = pa.table({"k": keys, "x": values, "n": numbers})
    database = duckdb.connect()
    database.execute("SET threads = 1")
    database.register("t", table)
    columns = ", ".join(sql for _, sql in DUCKDB_CALLS)
    expected = {
        row[0]: row[1:]
        for row in database.execute(f"SELECT k, {columns} FROM t GROUP BY k").fetchall()
    }
    aggregator = Aggregator(GroupSpec((L,), tuple(call for call, _ in DUCKDB_CALLS)))
    arguments = {f"a{i}_0": values for i in range(FIRST_PAIR)}
    for index in range(FIRST_PAIR, len(DUCKDB_CALLS)):
        arguments |= {f"a{index}_0": numbers, f"a{index}_1": values}
    rows = input_rows(keys, arguments)
    parts = [aggregator.pre_aggregate(rows.slice(start, 700)) for start in range(0, size, 700)]
    results = aggregator.evaluate(aggregator.combine_parts(parts))
    assert Counter(results["k0"].to_pylist()) == Counter(expected.keys())
    for row in results.to_pylist():
        for index, (call, _) in enumerate(DUCKDB_CALLS):
            assert same_result(row[f"r{index}"], expected[row["k0"]][index]), (
                call.function,
                row["k0"],
            )
