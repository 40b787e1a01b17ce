"""Compare results and result types of every aggregate with Spark in batch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.operators.aggregate_inputs import INF, NAN, input_rows, same_result
from tests.operators.test_aggregate_functions import PAIRS
from tidegate.errors import RunError
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.groups import Aggregator, GroupSpec

pytestmark = pytest.mark.spark

KEYS = 6


@dataclass(frozen=True)
class AggregateCase:
    """An aggregate in SQL and as a call. `loose`: the order of a list is undefined."""

    sql: str
    function: str
    arguments: tuple[str, ...] = ("x",)
    constants: tuple[Any, ...] = ()
    distinct: bool = False
    filtered: bool = False
    loose: bool = False


def simple(name: str, **options: Any) -> AggregateCase:
    return AggregateCase(f"{name}(x)", name, **options)


ANY = [
    simple("count"),
    AggregateCase("count(x, n)", "count", ("x", "n")),
    simple("first"),
    AggregateCase("first(x, true)", "first", constants=(True,)),
    simple("last"),
    AggregateCase("last_value(x) IGNORE NULLS", "last_value", constants=(True,)),
    simple("any_value"),
    AggregateCase("first(x) FILTER (WHERE c)", "first", ("x", "c"), filtered=True),
    AggregateCase("count(*) FILTER (WHERE c)", "count", ("c",), filtered=True),
    AggregateCase("min_by(x, n)", "min_by", ("x", "n")),
    AggregateCase("max_by(x, n) FILTER (WHERE c)", "max_by", ("x", "n", "c"), filtered=True),
    simple("collect_list"),
    AggregateCase("array_agg(x) FILTER (WHERE c)", "array_agg", ("x", "c"), filtered=True),
    AggregateCase("collect_list(x) RESPECT NULLS", "collect_list", constants=(False,)),
]
SETS = [
    AggregateCase("count(DISTINCT x)", "count", distinct=True),
    AggregateCase("count(DISTINCT x, c)", "count", ("x", "c"), distinct=True),
    simple("collect_set", loose=True),
    AggregateCase("array_agg(DISTINCT x)", "array_agg", distinct=True, loose=True),
    simple("approx_count_distinct"),
]
SCALAR = [
    *SETS,
    simple("min"),
    simple("max"),
    AggregateCase("max(DISTINCT x)", "max", distinct=True),
    AggregateCase("mode(x, true)", "mode", constants=(True,)),
    AggregateCase("max_by(n, u)", "max_by", ("n", "u")),
]
SUMS = [simple("sum"), simple("avg"), AggregateCase("sum(DISTINCT x)", "sum", distinct=True)]
SUMS += [AggregateCase("avg(DISTINCT x)", "avg", distinct=True), simple("mean")]
SPREADS = [
    simple(name)
    for name in ("stddev", "stddev_samp", "stddev_pop", "std", "variance", "var_samp", "var_pop")
] + [AggregateCase("stddev(DISTINCT x)", "stddev", distinct=True)]
SPREADS += [simple("skewness"), simple("kurtosis")]
SPREADS += [AggregateCase(f"{name}(n, x)", name, ("n", "x")) for name in PAIRS]
DISTINCT_PAIRS = ["corr", "covar_samp", "regr_count", "regr_slope", "regr_intercept", "regr_r2"]
SPREADS += [
    AggregateCase(f"{name}(x, u)", name, ("x", "u")) for name in ("corr", "regr_avgy", "regr_r2")
]
FRACTIONS = (0.0, 0.1, 0.5, 0.9, 1.0)
ARRAY = "array(0.0, 0.1, 0.5, 0.9, 1.0)"
EXACT_RANKS = [
    AggregateCase("percentile(x, 0.3)", "percentile", constants=(0.3,)),
    AggregateCase(f"percentile(x, {ARRAY})", "percentile", constants=(FRACTIONS,)),
    simple("median"),
    AggregateCase("median(DISTINCT x)", "median", distinct=True),
]
RANKS = [
    AggregateCase("approx_percentile(x, 0.3)", "approx_percentile", constants=(0.3,)),
    AggregateCase(
        f"percentile_approx(x, {ARRAY}, 10000)", "percentile_approx", constants=(FRACTIONS, 10000)
    ),
]
BITS = [simple("bit_and"), simple("bit_or"), simple("bit_xor")]
BITS += [AggregateCase("bit_xor(DISTINCT x)", "bit_xor", distinct=True)]
BOOLEANS = [simple(name) for name in ("bool_and", "bool_or", "every", "any", "some", "count_if")]
TEXTS = [
    simple("string_agg"),
    AggregateCase("listagg(x, NULL)", "listagg", constants=(None,)),
]
JOINED = [AggregateCase("string_agg(x, ', ')", "string_agg", constants=(", ",))]
INTEGER = [*ANY, *SCALAR, *SUMS, *SPREADS, *EXACT_RANKS, *RANKS, *BITS]
MOMENT = datetime(2024, 2, 29, 12, 30, 1, 123456)
MAPS = [[("a", 0.0), ("b", 1.0)], [("b", 1.0), ("a", -0.0)], []]
TYPES: list[tuple[str, list[Any], list[AggregateCase]]] = [
    ("TINYINT", [-128, 127, 0, 5, 5], INTEGER),
    ("INT", [-(2**31), 2**31 - 1, 0, 5, 5], INTEGER),
    # Averages are exact here; Spark rounds intermediate results.
    ("BIGINT", [-(2**59), 2**58, 0, 5, 123_456_789_012_345_678],
     [case for case in INTEGER if not case.function.startswith("regr_avg")]),
    ("FLOAT", [0.1, -2.5, 3e10, 0.0, 7.25], [*ANY, *SCALAR, *SUMS, *SPREADS, *EXACT_RANKS, *RANKS]),
    ("DOUBLE", [0.1, -2.5, 3e10, 0.0, 1e-5], [*ANY, *SCALAR, *SUMS, *SPREADS, *EXACT_RANKS, *RANKS]),
    ("DOUBLE", [NAN, INF, -INF, -0.0, 1.5], [*ANY, *SCALAR, *SUMS, *SPREADS]),
    ("DECIMAL(10, 2)", [Decimal("0.10"), Decimal("-99999999.99"), Decimal("12345.67"), Decimal("5.00")],
     [*ANY, *SCALAR, *SUMS, *SPREADS, *EXACT_RANKS, *RANKS]),
    ("DECIMAL(38, 10)", [Decimal("0.1"), Decimal("-9999999999999999.99"), Decimal("1234567890.0123456789")],
     [*ANY, *SCALAR, *SUMS, *SPREADS, *EXACT_RANKS, *RANKS]),
    # Spark reads rows in another order for several kinds of DISTINCT.
    ("DECIMAL(10, 2)", [Decimal("0.10"), Decimal("-9.99"), Decimal("5.00")],
     [AggregateCase(f"{name}(DISTINCT x, n)", name, ("x", "n"), distinct=True) for name in DISTINCT_PAIRS]),
    ("DECIMAL(30, 0)", [Decimal(10**29), Decimal(-3), Decimal(1)], [*ANY, *SCALAR, *SUMS]),
    ("STRING", ["", "a", "b", "é", "zz"], [*ANY, *SCALAR, *TEXTS, *JOINED]),
    ("BINARY", [b"", b"a", b"\xff", b"\x00"], [*ANY, *SCALAR, *TEXTS]),
    ("BOOLEAN", [True, False], [*ANY, *SCALAR, *BOOLEANS]),
    ("DATE", [date(1969, 12, 31), date(2024, 2, 29), date(2000, 1, 1)], [*ANY, *SCALAR, *RANKS]),
    ("TIMESTAMP", [MOMENT.replace(tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC)], [*ANY, *SCALAR, *RANKS]),
    ("TIMESTAMP_NTZ", [MOMENT, datetime(1960, 1, 1)], [*ANY, *SCALAR, *RANKS]),
    ("INTERVAL DAY TO SECOND", [timedelta(microseconds=1), timedelta(-3), timedelta(2, 5)],
     [*ANY, *SCALAR, *SUMS, *EXACT_RANKS, *RANKS]),
    ("STRUCT<a: INT, b: STRING>", [{"a": 1, "b": "x"}, {"a": None, "b": None}], [*ANY, *SETS]),
    ("ARRAY<DOUBLE>", [[1.5, None], [], [-0.0], [0.0], [NAN]], [*ANY, *SETS]),
    ("MAP<STRING, DOUBLE>", MAPS, ANY),
    # Spark sorts rows to count distinct maps, which changes their order.
    ("MAP<STRING, DOUBLE>", MAPS, [AggregateCase("count(DISTINCT x)", "count", distinct=True)]),
]  # fmt: skip


def arrow_type(kind: Any) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(kind, timezone="UTC")


def random_table(kind: pa.DataType, values: Sequence[Any], seed: int) -> pa.Table:
    """Generate rows with NULLs. The last key has only NULLs; the numbers in n are distinct."""
    pick = random.Random(seed)
    keys = [pick.randrange(KEYS - 1) for _ in range(60)] + [KEYS - 1] * 2
    drawn = [None if pick.random() < 0.2 else pick.choice(values) for _ in range(60)] + [None] * 2
    numbers = [None if pick.random() < 0.1 else number for number in pick.sample(range(1000), 62)]
    flags = [pick.choice([True, False, None]) for _ in keys]
    # Distinct for every row, to avoid ties.
    unequal = [float(number) if number is not None else None for number in numbers]
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "x": pa.array(drawn, kind),
            "n": pa.array(numbers, pa.int32()),
            "c": pa.array(flags, pa.bool_()),
            "u": pa.array(unequal, pa.float64()),
        }
    )


def aggregate_in_parts(
    rows: pa.Table, cases: Sequence[AggregateCase], results: Sequence[Any], retract: bool
) -> pa.Table:
    """Aggregate the rows in parts. With `retract`, add and retract other rows, too."""
    calls = tuple(
        AggregateCall(a.function, a.sql, tuple(rows.schema.field(c).type for c in a.arguments), kind,
             distinct=a.distinct, filtered=a.filtered, constants=a.constants)
        for a, kind in zip(cases, results, strict=True)
    )  # fmt: skip
    groups = Aggregator(GroupSpec((pa.int64(),), calls, retracts=retract))

    def lifted(part: pa.Table, weight: int) -> Any:
        columns = {
            f"a{i}_{place}": part[name]
            for i, a in enumerate(cases)
            for place, name in enumerate(a.arguments)
        }
        weights = [weight] * part.num_rows if retract else None
        return groups.pre_aggregate(input_rows(part["k"].to_pylist(), columns, weights))

    parts = [lifted(rows.slice(start, 20), 1) for start in range(0, rows.num_rows, 20)]
    if retract:
        noise = rows.slice(5, 30)
        parts += [lifted(noise, 1), lifted(noise, -1)]
    return groups.evaluate(
        groups.combine_parts([groups.combine_parts(parts[:2]), *parts[2:]])
    ).sort_by("k0")


def is_same(result: Any, expected: Any, loose: bool) -> bool:
    if loose and isinstance(result, list) and isinstance(expected, list):
        return same_result(sorted(result, key=repr), sorted(expected, key=repr))
    if isinstance(result, float) and isinstance(expected, float) and abs(expected) > 1:
        return same_result(result / expected, 1.0) or same_result(result, expected)
    return same_result(result, expected)


def aggregated(spark: Any, rows: pa.Table, cases: Sequence[AggregateCase]) -> Any:
    """Return the results by key as a data frame; the view `accumulated` has the rows."""
    spark.createDataFrame(rows).coalesce(1).createOrReplaceTempView("accumulated")
    columns = ", ".join(f"{a.sql} AS r{i}" for i, a in enumerate(cases))
    return spark.sql(f"SELECT k, {columns} FROM accumulated GROUP BY k")


def result_types(frame: Any) -> list[pa.DataType]:
    return [arrow_type(field.dataType) for field in frame.schema.fields[1:]]


@pytest.mark.parametrize(
    "place", range(len(TYPES)), ids=[f"{i}-{t[0]}" for i, t in enumerate(TYPES)]
)
def test_aggregates_equal_spark(spark: Any, place: int) -> None:
    sql_type, values, cases = TYPES[place]
    kind = arrow_type(spark.sql(f"SELECT CAST(NULL AS {sql_type}) AS x").schema[0].dataType)
    rows = random_table(kind, values, seed=place)
    frame = aggregated(spark, rows, cases)
    expected, kinds = frame.toArrow().sort_by("k"), result_types(frame)
    for retract in (False, True):
        result = aggregate_in_parts(rows, cases, kinds, retract)
        assert result["k0"].to_pylist() == list(range(KEYS))
        wrong = [
            (retract, case.sql, result[f"r{i}"][key].as_py(), expected[f"r{i}"][key].as_py())
            for i, case in enumerate(cases)
            for key in range(KEYS)
            if not is_same(result[f"r{i}"][key].as_py(), expected[f"r{i}"][key].as_py(), case.loose)
        ]
        assert not wrong
        assert [result[f"r{i}"].type for i, _ in enumerate(cases)] == kinds


OVERFLOWS: list[tuple[str, list[Any], AggregateCase]] = [
    ("BIGINT", [2**63 - 1, 1], simple("sum")),
    ("DECIMAL(38, 0)", [Decimal("9" * 38), Decimal(1)], simple("sum")),
    ("DECIMAL(38, 0)", [Decimal("9" * 38), Decimal("9" * 38)], simple("avg")),
    ("DECIMAL(38, 0)", [Decimal("9" * 38)], simple("avg")),
    ("INTERVAL DAY TO SECOND", [timedelta(106_751_991)] * 2, simple("sum")),
]


@pytest.mark.parametrize("sql_type, values, case", OVERFLOWS)
def test_aggregates_overflow_like_spark(
    spark: Any, sql_type: str, values: Any, case: AggregateCase
) -> None:
    from pyspark.errors import ArithmeticException

    kind = arrow_type(spark.sql(f"SELECT CAST(NULL AS {sql_type}) AS x").schema[0].dataType)
    rows = pa.table({"k": pa.array([0] * len(values), pa.int64()), "x": pa.array(values, kind)})
    spark.createDataFrame(rows).coalesce(1).createOrReplaceTempView("accumulated")
    frame = spark.sql(f"SELECT {case.sql} AS r FROM accumulated")
    with pytest.raises(ArithmeticException):
        frame.collect()
    with pytest.raises(RunError, match="overflows"):
        aggregate_in_parts(
            rows, [replace(case)], [arrow_type(frame.schema[0].dataType)], retract=False
        )
