"""Any split of the rows, any tree of merges, any rows retracted: the same results."""

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

from tests.operators.test_accumulators import INF, NAN, PAIRS, B, D, L, S, call, rows_of, same
from tidegate.columns import ROWS
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.groups import Aggregator, GroupSpec
from tidegate.operators.operator import Tables

DEC = pa.decimal128(10, 2)
DAY = pa.duration("us")
VALUES: dict[pa.DataType, list[Any]] = {
    L: [None, 0, 1, 2, -7, 2**62, -(2**62)],
    D: [None, 0.0, -0.0, 1.5, -2.25, 1e6, NAN, INF, -INF],
    S: [None, "", "a", "b", "é"],
    B: [None, True, False],
    DEC: [None, Decimal("0.10"), Decimal("-99999999.99"), Decimal("7.00")],
    DAY: [None, timedelta(microseconds=1), timedelta(-1), timedelta(2)],
}
# Of larger numbers doubles leave nothing where they nearly cancel.
INT = pa.int32()
WIDE = pa.decimal128(20, 2)
HALF = {"constants": (0.5,)}
SKIP = {"constants": (True,)}
ONCE = {"distinct": True}
CALLS: list[AggregateCall] = [
    call("count", [L], L),
    *(call("count", kinds, L, **ONCE) for kinds in ([D], [L, S], [DAY])),
    call("count_if", [B], L),
    call("sum", [INT], L),
    *(call("sum", [kind], result, **options)
      for kind, result in ((D, D), (DEC, WIDE), (DAY, DAY)) for options in ({}, ONCE)),
    *(call("avg", [kind], result, **options)
      for kind, result in ((D, D), (DEC, pa.decimal128(14, 6)), (DAY, DAY))
      for options in ({}, ONCE)),
    *(call(name, [kind], kind) for name in ("min", "max") for kind in VALUES),
    *(call(name, [kind, order], kind) for name in ("min_by", "max_by")
      for kind, order in ((S, D), (L, S), (D, DAY))),
    *(call(name, [kind], kind, **options) for name in ("first", "last")
      for kind in (L, D, S, DEC) for options in ({}, SKIP)),
    *(call(name, [B], B) for name in ("bool_and", "bool_or")),
    *(call(name, [L], L) for name in ("bit_and", "bit_or", "bit_xor")),
    *(call(name, [kind], D, **options) for name in ("stddev", "var_pop", "skewness")
      for kind in (D, DEC) for options in ({}, ONCE)),
    *(call(name, [INT, DEC], D, **options) for name in ("corr", "covar_samp", "regr_intercept")
      for options in ({}, ONCE)),
    call("regr_avgx", [INT, DEC], pa.decimal128(14, 6)),
    *(call("collect_list", [kind], pa.list_(kind), **options)
      for kind in (L, D, S) for options in ({}, ONCE, {"constants": (False,)})),
    *(call("collect_set", [kind], pa.list_(kind)) for kind in (D, S)),
    *(call("string_agg", [S], S, constants=("-",), distinct=once) for once in (False, True)),
    call("approx_count_distinct", [D], L),
    *(call("approx_percentile", [kind], kind, **HALF) for kind in (D, DEC, DAY)),
    call("percentile", [D], pa.list_(D), constants=((0.1, 0.5, 1.0),)),
    call("median", [DEC], D),
    *(call("mode", [kind], kind) for kind in (D, S)),
]  # fmt: skip


@st.composite
def histories(
    draw: st.DrawFn, one: AggregateCall, taken_back: bool
) -> list[tuple[int, tuple[Any, ...], int]]:
    """Rows with key, arguments and weight; what is retracted was there."""
    values = [st.sampled_from(VALUES.get(kind, [None, 1, -5])) for kind in one.arguments]
    history: list[tuple[int, tuple[Any, ...], int]] = []
    for _ in range(draw(st.integers(1, 14))):
        there = surviving(history)
        if taken_back and there and draw(st.integers(0, 2)) == 0:
            key, row = draw(st.sampled_from(there))
            history.append((key, row, -1))
        else:
            history.append((draw(st.integers(0, 2)), draw(st.tuples(*values)), 1))
    return history


def surviving(history: list[tuple[int, tuple[Any, ...], int]]) -> list[tuple[int, tuple[Any, ...]]]:
    """The rows that are there in the end: the latest of equal rows is retracted."""
    rows: list[tuple[int, tuple[Any, ...]]] = []
    for key, row, weight in history:
        if weight > 0:
            rows.append((key, row))
        else:
            names = [repr(other) for other in rows]
            del rows[len(rows) - 1 - names[::-1].index(repr((key, row)))]
    return rows


def lifted(groups: Aggregator, history: list[tuple[int, tuple[Any, ...], int]]) -> Tables:
    kinds = groups.spec.calls[0].arguments
    columns = {
        f"a0_{place}": pa.array([row[place] for _, row, _ in history], kind)
        for place, kind in enumerate(kinds)
    }
    weights = [weight for _, _, weight in history] if groups.spec.retracts else None
    return groups.pre_aggregate(rows_of([key for key, _, _ in history], columns, weights))


def results(groups: Aggregator, tables: Tables) -> dict[int, Any]:
    evaluated = groups.evaluate(tables)
    rows = zip(
        evaluated["k0"].to_pylist(),
        evaluated["r0"].to_pylist(),
        tables[0][ROWS].to_pylist(),
        strict=True,
    )
    return {key: value for key, value, count in rows if count}


def merged(draw: st.DataObject, groups: Aggregator, parts: list[Tables]) -> Tables:
    """Neighbours become one, in any order, until one is left."""
    while len(parts) > 1:
        place = draw.draw(st.integers(0, len(parts) - 2))
        parts[place : place + 2] = [groups.combine_parts(parts[place : place + 2])]
    return parts[0]


@pytest.mark.parametrize("taken_back", [False, True])
@pytest.mark.parametrize("one", CALLS, ids=lambda c: f"{c.function}-{c.arguments}-{c.distinct}")
def test_any_split_gives_the_same(one: AggregateCall, taken_back: bool) -> None:
    whole = Aggregator(GroupSpec((L,), (one,)))
    parted = Aggregator(GroupSpec((L,), (one,), retracts=taken_back))

    @settings(max_examples=12, deadline=None)
    @given(history=histories(one, taken_back), draw=st.data())
    def check(history: list[tuple[int, tuple[Any, ...], int]], draw: st.DataObject) -> None:
        cuts = sorted(
            draw.draw(st.sets(st.integers(1, len(history)), max_size=5)) | {0, len(history)}
        )
        parts = [lifted(parted, history[a:b]) for a, b in pairwise(cuts)]
        got = results(parted, merged(draw, parted, parts))
        rows = [(key, row, 1) for key, row in surviving(history)]
        expected = results(whole, lifted(whole, rows))
        assert got.keys() == expected.keys()
        assert all(same(got[key], expected[key]) for key in got), (got, expected)

    check()


def test_a_sum_may_leave_the_range_and_come_back() -> None:
    groups = Aggregator(GroupSpec((L,), (call("sum", [L], L),)))
    parts = [lifted(groups, [(0, (value,), 1)] * 3) for value in (2**62, -(2**62))]
    assert results(groups, groups.combine_parts(parts)) == {0: 0}


@pytest.mark.parametrize("kind", [L, S, D])
@pytest.mark.parametrize("deviation", [0.05, 0.02])
def test_approx_count_distinct_is_close(kind: pa.DataType, deviation: float) -> None:
    sizes = [1, 10, 100, 1_000, 2_500, 10_000, 100_000]
    keys = np.repeat(np.arange(len(sizes)), sizes)
    values = pa.array(np.concatenate([np.arange(size) for size in sizes])).cast(kind)
    one = call("approx_count_distinct", [kind], L, constants=(deviation,))
    groups = Aggregator(GroupSpec((L,), (one,)))
    half = groups.pre_aggregate(rows_of(keys, {"a0_0": values}))
    got = results(groups, groups.combine_parts([half, half]))
    assert got[0] == 1 and got[1] == 10
    assert all(abs(got[i] - size) <= 3 * deviation * size for i, size in enumerate(sizes))


LIST = pa.list_(L)
DUCK: list[tuple[AggregateCall, str]] = [
    (call("count", [L], L), "count(x)"),
    (call("count", [L], L, **ONCE), "count(DISTINCT x)"),
    (call("sum", [L], L), "sum(x)::BIGINT"),
    (call("sum", [L], L, **ONCE), "sum(DISTINCT x)::BIGINT"),
    (call("avg", [L], D), "avg(x)"),
    (call("min", [L], L), "min(x)"),
    (call("max", [L], L), "max(x)"),
    (call("stddev_samp", [L], D), "stddev_samp(x)"),
    (call("stddev_pop", [L], D), "stddev_pop(x)"),
    (call("var_samp", [L], D), "var_samp(x)"),
    (call("var_pop", [L], D), "var_pop(x)"),
    (call("bit_and", [L], L), "bit_and(x)"),
    (call("bit_or", [L], L), "bit_or(x)"),
    (call("bit_xor", [L], L), "bit_xor(x)"),
    (call("first", [L], L, **SKIP), "any_value(x ORDER BY n)"),
    (call("first", [L], L), "first(x ORDER BY n)"),
    (call("last", [L], L), "last(x ORDER BY n)"),
    (call("collect_list", [L], LIST), "list(x ORDER BY n) FILTER (x IS NOT NULL)"),
    (call("median", [L], D), "median(x)"),
    (call("percentile", [L], D, constants=(0.3,)), "quantile_cont(x, 0.3)"),
    (call("approx_percentile", [L], L, constants=(0.3,)), "quantile_disc(x, 0.3)"),
    (call("min_by", [L, L], L), "arg_min_null(n, x)"),
    *((call(name, [L, L], L if name == "regr_count" else D), f"{name}(n, x)") for name in PAIRS),
]
# Aggregates of two columns, from the first of which on they are at the end of the list.
FIRST_PAIR = len(DUCK) - len(PAIRS) - 1


def test_as_duckdb_has_it() -> None:
    random = np.random.default_rng(5)
    size = 3_000
    keys = random.integers(0, 40, size)
    values = pa.array(random.integers(-50, 50, size), mask=random.random(size) < 0.2)
    numbers = pa.array(np.arange(size))
    table = pa.table({"k": keys, "x": values, "n": numbers})
    database = duckdb.connect()
    database.execute("SET threads = 1")
    database.register("t", table)
    columns = ", ".join(sql for _, sql in DUCK)
    expected = {
        row[0]: row[1:]
        for row in database.execute(f"SELECT k, {columns} FROM t GROUP BY k").fetchall()
    }
    groups = Aggregator(GroupSpec((L,), tuple(one for one, _ in DUCK)))
    arguments = {f"a{i}_0": values for i in range(FIRST_PAIR)}
    for place in range(FIRST_PAIR, len(DUCK)):
        arguments |= {f"a{place}_0": numbers, f"a{place}_1": values}
    rows = rows_of(keys, arguments)
    parts = [groups.pre_aggregate(rows.slice(start, 700)) for start in range(0, size, 700)]
    got = groups.evaluate(groups.combine_parts(parts))
    assert Counter(got["k0"].to_pylist()) == Counter(expected.keys())
    for row in got.to_pylist():
        for index, (one, _) in enumerate(DUCK):
            assert same(row[f"r{index}"], expected[row["k0"]][index]), (one.function, row["k0"])
