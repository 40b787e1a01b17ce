"""Every aggregate function by example: NULL, NaN, empty groups, overflow, FILTER, retractions."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

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
    results_by_key,
    same_result,
)
from tidegate.errors import RunError
from tidegate.operators.aggregate.functions import (
    FUNCTIONS,
    AggregateCall,
    constants_from,
    ignores_nulls,
    make_accumulator,
)
from tidegate.operators.aggregate.functions.registry import AGGREGATES


def result_of(
    function: str, kind: pa.DataType, result: pa.DataType, values: Any, **options: Any
) -> Any:
    """Return the result of call group."""
    call = call_of(function, [kind], result, **options)
    return results_by_key(call, [values], [0] * len(values))[0]


STRUCT = pa.struct([("a", D)])
MAP = pa.map_(S, D)
EXAMPLES: list[tuple[str, pa.DataType, pa.DataType, Any, Any, dict[str, Any]]] = [
    ("count", L, L, [1, None, 1], 2, {}),
    ("count", L, L, [1, None, 1, 2], 2, {"distinct": True}),
    ("count", D, L, [0.0, -0.0, NAN, NAN], 2, {"distinct": True}),
    ("count", STRUCT, L, [{"a": 0.0}, {"a": -0.0}, {"a": None}, None], 2, {"distinct": True}),
    ("count", MAP, L, [[("a", 1.0), ("b", NAN)], [("b", NAN), ("a", 1.0)], []], 2, {"distinct": True}),
    ("count_if", B, L, [True, None, False, True], 2, {}),
    ("count_if", B, L, [True, True, False], 1, {"distinct": True}),
    ("sum", L, L, [1, None, 1], 2, {}),
    ("sum", L, L, [1, None, 1], 1, {"distinct": True}),
    ("sum", pa.int8(), L, [127, 127], 254, {}),
    ("sum", L, L, [None], None, {}),
    ("sum", L, L, [2**63 - 1, 5, -5], 2**63 - 1, {}),
    ("sum", L, L, [-(2**63), 2**63 - 1], -1, {}),
    ("sum", DEC, pa.decimal128(20, 2), [Decimal("1.25"), None, Decimal(2)], Decimal("3.25"), {}),
    ("sum", D, D, [1.5, INF], INF, {}),
    ("sum", INTERVAL, INTERVAL, [timedelta(1), None, timedelta(2)], timedelta(3), {}),
    ("avg", L, D, [1, 2, None], 1.5, {}),
    ("mean", L, D, [1, 2, 2], 1.5, {"distinct": True}),
    ("avg", L, D, [None, None], None, {}),
    ("avg", DEC, pa.decimal128(14, 6), [Decimal(1), Decimal(2), Decimal(2)], Decimal("1.666667"), {}),
    ("avg", INTERVAL, INTERVAL, [timedelta(microseconds=-1), timedelta(microseconds=-2)], timedelta(microseconds=-2), {}),
    ("min", D, D, [NAN, 1.0, -INF], -INF, {}),
    ("max", D, D, [1.0, INF, NAN], NAN, {}),
    ("max", pa.float32(), pa.float32(), [1.5, None], 1.5, {}),
    ("max", D, D, [-0.0], -0.0, {}),
    ("min", S, S, ["b", None, "a"], "a", {}),
    ("max", pa.binary(), pa.binary(), [b"b", b"\xff"], b"\xff", {}),
    ("min", B, B, [True, False], False, {}),
    ("max", pa.date32(), pa.date32(), [date(1969, 1, 1), date(2020, 1, 1)], date(2020, 1, 1), {}),
    ("min", pa.timestamp("us"), pa.timestamp("us"), [datetime(1969, 1, 1), None], datetime(1969, 1, 1), {}),
    ("max", INTERVAL, INTERVAL, [timedelta(-1), timedelta(1)], timedelta(1), {}),
    ("max", DEC, DEC, [Decimal("-1.00"), Decimal("2.50")], Decimal("2.50"), {}),
    ("bool_and", B, B, [True, None, False], False, {}),
    ("every", B, B, [True, None], True, {}),
    ("some", B, B, [None], None, {}),
    ("bool_or", B, B, [False, None], False, {}),
    ("any", B, B, [False, True], True, {}),
    ("bit_and", L, L, [6, None, 3], 2, {}),
    ("bit_or", pa.int8(), pa.int8(), [-128, 1], -127, {}),
    ("bit_xor", L, L, [6, 6, 3], 3, {}),
    ("bit_xor", L, L, [6, 6, 3], 5, {"distinct": True}),
    ("bit_and", L, L, [None], None, {}),
    ("stddev", D, D, [1.0], None, {}),
    ("var_samp", D, D, [1.0, None, 3.0], 2.0, {}),
    ("var_pop", D, D, [1.0, 3.0], 1.0, {}),
    ("var_pop", D, D, [5.0], 0.0, {}),
    ("var_pop", D, D, [NAN], NAN, {}),
    ("stddev_pop", D, D, [INF], NAN, {}),
    ("std", L, D, [2, 2, 4], math.sqrt(2), {"distinct": True}),
    ("variance", D, D, [None], None, {}),
    ("stddev_samp", D, D, [1e15, 1e15 + 2], math.sqrt(2), {}),
    ("skewness", D, D, [1.0, None, 2.0, 5.0], 0.5280049792181881, {}),
    ("skewness", L, D, [1, 2, 9, 1], 0.6654688661238353, {"distinct": True}),
    ("kurtosis", DEC, D, [Decimal("1.5"), Decimal(2), Decimal(7)], -1.5, {}),
    *((name, D, D, values, result, {}) for name in ("skewness", "kurtosis")
      for values, result in (([None], None), ([3.0], None), ([0.1] * 500, None), ([INF, 1.0], NAN), ([NAN], NAN))),
    ("first", L, L, [None, 1, 2], None, {}),
    ("first_value", L, L, [None, 1, 2], 1, {"constants": (True,)}),
    ("last", S, S, ["a", None], None, {}),
    ("last_value", S, S, ["a", "b", None], "b", {"constants": (True,)}),
    ("any_value", L, L, [None, 3], None, {"constants": (False,)}),
    ("first", pa.list_(L), pa.list_(L), [[1], [2]], [1], {}),
    ("collect_list", L, pa.list_(L), [3, None, 1, 3], [3, 1, 3], {}),
    ("collect_list", L, pa.list_(L), [3, None], [3, None], {"constants": (False,)}),
    ("array_agg", L, pa.list_(L), [3, None, 1, 3], [3, 1], {"distinct": True}),
    ("array_agg", L, pa.list_(L), [None], [], {}),
    ("collect_set", L, pa.list_(L), [3, None, 1, 3], [3, 1], {}),
    ("collect_set", D, pa.list_(D), [-0.0, 0.0], [0.0], {}),
    ("collect_set", STRUCT, pa.list_(STRUCT), [{"a": 1.0}, None, {"a": 1.0}], [{"a": 1.0}], {}),
    ("last", MAP, MAP, [[("a", 1.0)], None, [("b", 2.0)]], [("b", 2.0)], {}),
    ("string_agg", S, S, ["a", None, "b", "a"], "aba", {}),
    ("string_agg", S, S, ["a", None, "b"], "ab", {"constants": (None,)}),
    ("listagg", S, S, ["a", "b", "a"], "a,b", {"constants": (",",), "distinct": True}),
    ("string_agg", pa.binary(), pa.binary(), [b"\1", b"\2"], b"\1\xff\2", {"constants": (b"\xff",)}),
    ("string_agg", S, S, [None], None, {}),
    ("approx_count_distinct", S, L, ["a", "b", "a", None], 2, {}),
    ("approx_count_distinct", D, L, [0.0, -0.0, NAN], 2, {"constants": (0.01,)}),
    ("approx_count_distinct", DEC, L, [None], 0, {}),
    ("approx_count_distinct", STRUCT, L, [{"a": 0.0}, {"a": -0.0}, {"a": 2.0}], 2, {}),
    ("approx_percentile", L, L, [10, 20, 30, 40, 50, 60, 70], 20, {"constants": (0.25,)}),
    ("percentile_approx", L, pa.list_(L), [10, 20, 20], [10, 20], {"constants": ((0, 0.5),)}),
    ("percentile_approx", L, L, [1, 2, 3], 1, {"constants": (0.5, 1)}),
    ("approx_percentile", DEC, DEC, [Decimal("0.10")], Decimal("0.10"), {"constants": (0.5,)}),
    ("approx_percentile", L, L, [None], None, {"constants": (0.5,)}),
    ("percentile", L, D, [10, 20, None], 12.5, {"constants": (Decimal("0.25"),)}),
    ("percentile", D, pa.list_(D), [INF, INF], [INF, INF], {"constants": ([0.5, 1],)}),
    ("median", L, D, [1, 1, 5], 3.0, {"distinct": True}),
    ("median", INTERVAL, INTERVAL, [timedelta(microseconds=2), timedelta(microseconds=3)], timedelta(microseconds=2), {}),
    ("mode", S, S, ["b", "a", "b", "a", None, None, None], "a", {}),
    ("mode", D, D, [NAN, NAN, 1.0], NAN, {}),
]  # fmt: skip


@pytest.mark.parametrize("retracts", [False, True])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e[0]}-{e[1]}")
def test_returns_the_expected_result(example: tuple[Any, ...], retracts: bool) -> None:
    function, kind, result, values, expected, options = example
    call = call_of(function, [kind], result, **options)
    # Key 0 is another group, and key 2 a group without values.
    keys = [0, *[1] * len(values), 2]
    column = [values[0], *values, None]
    weights = [1] * len(keys) if retracts else None
    assert same_result(results_by_key(call, [column], keys, weights)[1], expected)


def test_every_function_has_an_example() -> None:
    two_columns = {"min_by", "max_by", *PAIRS}
    assert {example[0] for example in EXAMPLES} | two_columns == set(FUNCTIONS)


def test_names_are_unique_and_documented() -> None:
    names = [name for aggregate in AGGREGATES for name in aggregate.names]
    assert len(names) == len(set(names)) and set(names) == FUNCTIONS
    text = (Path(__file__).parents[2] / "docs" / "LANGUAGE.md").read_text()
    assert [name for name in names if f"`{name}`" not in text] == []


def test_zero_keeps_its_sign_except_in_sums() -> None:
    assert math.copysign(1, result_of("max", D, D, [-0.0])) == -1
    assert math.copysign(1, result_of("sum", D, D, [-0.0])) == 1
    assert math.copysign(1, result_of("collect_list", D, pa.list_(D), [-0.0])[0]) == -1


def test_min_by_and_max_by_return_the_value_of_the_extreme_row() -> None:
    for function, expected in [("max_by", "b"), ("min_by", None)]:
        call = call_of(function, [S, D], S)
        columns = [["a", "b", "c", None, "d", "e"], [1.0, NAN, NAN, -INF, None, -INF]]
        for weights in (None, [1] * 6):
            assert results_by_key(call, columns, [0] * 6, weights) == {0: expected}
    assert results_by_key(call_of("max_by", [S, L], S), [["a"], [None]], [0]) == {0: None}


# Results of Spark for PAIR_ROWS: several pairs, one pair, equal x, equal y, no pairs, an infinity.
PAIRS: dict[str, list[Any]] = {
    "corr": [0.9933992677987827, None, None, None, None, NAN],
    "covar_pop": [1.6666666666666667, 0.0, 0.0, 0.0, None, NAN],
    "covar_samp": [2.5, None, 0.0, 0.0, None, NAN],
    "regr_count": [3, 1, 500, 2, 0, 2],
    "regr_avgx": [4.333333333333333, 2.0, 0.1, 2.5, None, 2.5],
    "regr_avgy": [2.0, 1.0, 1.5, 1.0, None, INF],
    "regr_slope": [0.3947368421052631, None, None, 0.0, None, NAN],
    "regr_intercept": [0.28947368421052655, None, None, 1.0, None, NAN],
    "regr_r2": [0.9868421052631576, None, None, 1.0, None, NAN],
    "regr_sxx": [12.666666666666668, 0.0, 0.0, 0.5, None, 0.5],
    "regr_syy": [2.0, 0.0, 125.0, 0.0, None, NAN],
    "regr_sxy": [5.0, 0.0, 0.0, 0.0, None, NAN],
}
PAIR_ROWS: list[list[tuple[float | None, float | None]]] = [
    [(1.0, 2.0), (None, 100.0), (2.0, 4.0), (3.0, 7.0), (100.0, None)],
    [(1.0, 2.0)],
    [(1.0, 0.1), (2.0, 0.1)] * 250,
    [(1.0, 2.0), (1.0, 3.0)],
    [(None, 2.0), (1.0, None)],
    [(INF, 2.0), (1.0, 3.0)],
]


@pytest.mark.parametrize("retracts", [False, True])
@pytest.mark.parametrize("function", PAIRS)
def test_aggregates_of_two_columns_equal_spark(function: str, retracts: bool) -> None:
    keys = [key for key, rows in enumerate(PAIR_ROWS) for _ in rows]
    columns = [[row[side] for rows in PAIR_ROWS for row in rows] for side in (0, 1)]
    weights = [1] * len(keys) if retracts else None
    call = call_of(function, [D, D], L if function == "regr_count" else D)
    results = results_by_key(call, columns, keys, weights)
    assert all(
        map(same_result, [results[key] for key in range(len(PAIR_ROWS))], PAIRS[function])
    ), results


@pytest.mark.parametrize("function", ["corr", "regr_sxy", "regr_avgy", "regr_avgx"])
def test_result_does_not_depend_on_retracted_pairs_and_order(function: str) -> None:
    pairs = [(0.1, 0.3), (0.1, 0.7), (0.1, -1e9), (2.5, 1e-9), (2.5, 0.1)]
    orders = [pairs, pairs[::-1], [*pairs[2:], *pairs[:2]]]
    results = set()
    for rows in orders:
        columns = [[row[side] for row in (*rows, (7.0, 1e12), (7.0, 1e12))] for side in (0, 1)]
        weights = [1] * (len(rows) + 1) + [-1]
        results.add(
            results_by_key(call_of(function, [D, D], D), columns, [0] * len(weights), weights)[0]
        )
    assert len(results) == 1


def test_regr_avg_of_decimals_is_a_decimal() -> None:
    columns = [[Decimal("1.50"), Decimal("3.50"), None], [Decimal("2.25"), Decimal(7), Decimal(9)]]
    for function, expected in [("regr_avgy", "2.5"), ("regr_avgx", "4.625")]:
        call = call_of(function, [DEC, DEC], pa.decimal128(14, 6))
        assert results_by_key(call, columns, [0, 0, 0]) == {0: Decimal(expected)}


def test_count_of_two_columns_ignores_rows_with_a_null() -> None:
    columns = [[1, 1, None, 1], ["a", "a", "a", None]]
    assert results_by_key(call_of("count", [L, S], L), columns, [0] * 4) == {0: 2}
    assert results_by_key(call_of("count", [L, S], L, distinct=True), columns, [0] * 4) == {0: 1}


@pytest.mark.parametrize("weights", [None, [1, 1, 1, 1]])
def test_filter_excludes_rows(weights: Any) -> None:
    def filtered(function: str, result: pa.DataType, **options: Any) -> Any:
        call = call_of(function, [L, B], result, filtered=True, **options)
        columns = [[7, None, 3, 9], [False, True, True, None]]
        return results_by_key(call, columns, [0, 0, 0, 1], weights)

    assert filtered("first", L) == {0: None, 1: None}
    assert filtered("last", L) == {0: 3, 1: None}
    assert filtered("sum", L) == {0: 3, 1: None}
    assert filtered("collect_list", pa.list_(L)) == {0: [3], 1: []}
    assert filtered("collect_list", pa.list_(L), constants=(False,)) == {0: [None, 3], 1: []}
    assert filtered("approx_count_distinct", L) == {0: 1, 1: 0}
    by = call_of("max_by", [S, L, B], S, filtered=True)
    columns = [["a", "b", None], [3, 2, 1], [False, True, True]]
    assert results_by_key(by, columns, [0, 0, 1], weights and weights[:3]) == {0: "b", 1: None}
    rows = call_of("count", [B], L, filtered=True)
    assert results_by_key(rows, [[True, None, False]], [0, 0, 1], weights and weights[:3]) == {
        0: 1,
        1: 0,
    }


OVERFLOWS: list[tuple[str, pa.DataType, pa.DataType, list[Any]]] = [
    ("sum", L, L, [2**63 - 1, 1]),
    ("sum", L, L, [-(2**63), -1]),
    ("sum", INTERVAL, INTERVAL, [timedelta(106_751_991), timedelta(106_751_991)]),
    ("sum", pa.decimal128(38, 0), pa.decimal128(38, 0), [Decimal("9" * 38), Decimal(1)]),
    ("avg", pa.decimal128(38, 0), pa.decimal128(38, 4), [Decimal("9" * 38)]),
    ("avg", pa.decimal128(38, 0), pa.decimal128(38, 4), [Decimal("5" + "0" * 37)] * 2),
]


@pytest.mark.parametrize("function, kind, result, values", OVERFLOWS)
def test_overflow_error_names_the_call(function: str, kind: Any, result: Any, values: Any) -> None:
    with pytest.raises(RunError, match=rf"{function}\(x\) overflows") as caught:
        result_of(function, kind, result, values)
    assert caught.value.code == "TG-507"


ODD_MAP = pa.map_(STRUCT, L)
REJECTED = [
    call_of("count", [ODD_MAP], L, distinct=True),
    call_of("max", [STRUCT], STRUCT),
    call_of("max_by", [L, pa.list_(L)], L),
    call_of("max_by", [L], L, constants=(1,)),
    call_of("first", [ODD_MAP], ODD_MAP, retracts=True),
    call_of("mode", [STRUCT], STRUCT),
    call_of("string_agg", [L], S),
    call_of("string_agg", [S], S, ordered=True),
    call_of("sum", [S], D),
    call_of("avg", [S], D),
    call_of("stddev", [S], D),
    call_of("bool_and", [S], B),
    call_of("bit_and", [D], D),
    call_of("percentile", [L], D, constants=(0.5, 2)),
    call_of("percentile", [S], D, constants=(0.5,)),
    call_of("approx_percentile", [L, D], L),
    call_of("histogram_numeric", [D, L], pa.list_(D)),
    call_of("corr", [D, S], D),
    *(call_of(f"regr_{name}", [D, D], D, distinct=True) for name in ("sxx", "syy", "avgx", "avgy")),
]


@pytest.mark.parametrize("call", REJECTED, ids=lambda call: f"{call.function}-{call.arguments}")
def test_unsupported_call_is_rejected_when_it_is_planned(call: AggregateCall) -> None:
    with pytest.raises(RunError, match=r"\(x\)") as caught:
        make_accumulator(call)
    assert caught.value.code == "TG-501"


def test_facts_that_the_planner_needs() -> None:
    assert ignores_nulls("sum") and ignores_nulls("array_agg") and not ignores_nulls("max_by")
    assert not ignores_nulls("first_value") and ignores_nulls("first_value", (True,))
    assert not ignores_nulls("collect_list", (False,))
    assert constants_from("listagg") == 1 and constants_from("max_by") == 2
    assert constants_from("count") is None
