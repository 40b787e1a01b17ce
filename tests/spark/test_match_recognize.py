"""MATCH_RECOGNIZE across a restart, and its conditions compared with Spark."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlglot import exp

from tests.support.sessions import play_with_restart, rows_of
from tidegate.operators.match.matcher import _plain_values
from tidegate.physical.match_conditions import known_type, scalar_of
from tidegate.sql.dialect import DIALECT

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
# Sample values by type name.
SAMPLES: dict[str, tuple[str, list[Any]]] = {
    "big": ("BIGINT", [None, 0, 2**53 + 1, 2**53]),
    "long": ("BIGINT", [None, 0, -3, 10**6, 7]),
    "int": ("INT", [None, 0, -3, 2**14]),
    "double": ("DOUBLE", [None, 0.0, -0.0, 1.1, float("nan"), float("inf"), 2.0**53]),
    "float": ("FLOAT", [None, 1.5, float("nan"), -0.0]),
    "money": ("DECIMAL(10,2)", [None, Decimal("1.10"), Decimal("-3.00"), Decimal("99999999.99")]),
    "share": ("DECIMAL(5,3)", [None, Decimal("1.100"), Decimal("-3.000")]),
    "text": ("STRING", [None, "", "a", "é", "\uffff", "\U00010000"]),
    "flag": ("BOOLEAN", [None, False, True]),
    "day": ("DATE", [None, date(1969, 12, 31), date(2024, 2, 29)]),
    "time": ("TIMESTAMP", [None, START, START - timedelta(days=30000, microseconds=1)]),
}
NUMBERS = ["long", "int", "double", "money", "share"]
COMPARED = ["a = b", "a <> b", "a < b", "a >= b", "a <=> b", "a BETWEEN b AND a"]
COUNTED = [
    "a * 1.1 > b",
    "a - b < 3",
    "abs(a - b) <= 2 OR b IS NULL",
    "NOT (a + b = -6)",
    "a IN (b, 7)",
    "coalesce(a * b > 1, a IS NULL AND b IS NULL)",
    "b <> 0 AND a / CAST(b AS DOUBLE) > 0.5",
]


def conditions() -> list[tuple[str, str, str]]:
    """Return the names of two columns, and a condition over them as a and b."""
    result = [(name, name, text) for name in SAMPLES for text in COMPARED]
    for left, right in itertools.product(NUMBERS, NUMBERS):
        result += [(left, right, text) for text in COMPARED + COUNTED]
    result += [("big", "double", text) for text in [*COMPARED, "a IN (b, 9007199254740993)"]]
    result += [("float", "double", text) for text in COMPARED]
    return [*result, ("time", "time", "a - b > a - a"), ("time", "time", "a - (b - a) <= b")]


def test_conditions_across_rows_equal_spark(spark: Any) -> None:
    """Compare every condition for every pair of values of two types in Spark and in the operator."""
    size = max(len(values) for _, values in SAMPLES.values())
    rows = [tuple(v[i % len(v)] for _, v in SAMPLES.values()) for i in range(size)]
    schema = ", ".join(f"{name} {kind}" for name, (kind, _) in SAMPLES.items())
    spark.createDataFrame(rows, schema).createOrReplaceTempView("samples")
    listed, tests = [], []
    for left, right, text in conditions():
        sql = re.sub(r"\bb\b", f"y.{right}", re.sub(r"\ba\b", f"x.{left}", text))
        listed.append(f"{sql} AS c{len(listed)}")
        tree = DIALECT.parse(f"SELECT {text}")[0]
        assert isinstance(tree, exp.Select)
        places = {"a": "?0", "b": "?1"}
        for part in list(tree.find_all(exp.Column)):
            part.replace(exp.column(exp.to_identifier(places[part.name])))
        kinds = [known_type(SAMPLES[name][0]) for name in (left, right)]
        tests.append(scalar_of("A", tree.expressions[0], kinds))
    columns = [f"{side}.{name} AS {side}_{name}" for side in "xy" for name in SAMPLES]
    query = f"SELECT {', '.join([*columns, *listed])} FROM samples AS x CROSS JOIN samples AS y"
    expected = spark.sql(query).toArrow()
    for number, ((left, right, text), test) in enumerate(zip(conditions(), tests, strict=True)):
        parts = (
            _plain_values(expected.column(f"x_{left}")),
            _plain_values(expected.column(f"y_{right}")),
        )
        results = [test.evaluate(values) for values in zip(*parts, strict=True)]
        assert results == expected.column(f"c{number}").to_pylist(), (left, right, text)


# Symbol, price, volume and second; each line is an epoch. The watermark is 5 seconds behind.
GIVEN: list[list[tuple[str, float | None, int, int]]] = [
    [("a", 10.0, 1, 0), ("b", 5.0, 2, 1), ("a", 8.5, 3, 2)],
    [("a", 7.0, 4, 8), ("a", 7.5, 5, 6), ("b", None, 1, 7), ("b", 4.0, 2, 9)],
    [("a", 9.0, 6, 12), ("b", 6.0, 7, 14), ("a", 12.0, 1, 15)],
    [("a", 11.0, 2, 30), ("b", 99.0, 3, 1), ("b", 3.0, 1, 31), ("b", 8.0, 9, 33)],
]
SCRIPT = """
    CREATE SOURCE ticker (symbol STRING, price DOUBLE, volume INT, ts TIMESTAMP,
        WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)
    WITH (connector = 'memory', inserts_per_epoch = 1);
    CREATE STREAM shapes AS
    SELECT symbol, bottom, gain, prices, volume, took, ended
    FROM ticker MATCH_RECOGNIZE (
        PARTITION BY symbol ORDER BY ts
        MEASURES LAST(DOWN.price) AS bottom, LAST(UP.price) - FIRST(STRT.price) AS gain,
            collect_list(price) AS prices, sum(UP.volume) AS volume,
            timestampdiff(SECOND, STRT.ts, LAST(UP.ts)) AS took, MATCH_ROWTIME() AS ended
        AFTER MATCH SKIP TO LAST UP
        PATTERN (STRT DOWN+ UP+) WITHIN INTERVAL '20' SECOND
        DEFINE DOWN AS DOWN.price < PREV(DOWN.price),
            UP AS UP.price > PREV(UP.price) * 1.05D AND UP.ts - STRT.ts <= INTERVAL '19' SECOND
    ) AS m LATE DATA TO too_late;
    CREATE STREAM a_minute AS
    SELECT window_end, count(*) AS shapes, max(gain) AS best
    FROM shapes GROUP BY TUMBLE(ended, INTERVAL '1' MINUTE);
"""
STREAMS = ("shapes", "too_late", "a_minute")


def test_matches_are_emitted_once_across_a_restart(spark: Any, data: Path) -> None:
    steps = [
        {
            "ticker": [
                {"symbol": s, "price": p, "volume": v, "ts": START + timedelta(seconds=at)}
                for s, p, v, at in lines
            ]
        }
        for lines in GIVEN
    ]
    batches = play_with_restart(data, spark, SCRIPT, STREAMS, steps, key_groups=2)
    emitted = {name: rows_of(parts) for name, parts in batches.items()}
    shapes = [
        {
            "symbol": "a",
            "bottom": 7.0,
            "gain": 2.0,
            "prices": [10.0, 8.5, 7.5, 7.0, 9.0, 12.0],
            "volume": 7,
            "took": 15,
            "ended": START + timedelta(seconds=15),
        },
        {
            "symbol": "b",
            "bottom": 3.0,
            "gain": 2.0,
            "prices": [6.0, 3.0, 8.0],
            "volume": 9,
            "took": 19,
            "ended": START + timedelta(seconds=33),
        },
    ]
    assert sorted(emitted["shapes"], key=lambda row: row["symbol"]) == shapes
    assert [(row["price"], row["late_operator"]) for row in emitted["too_late"]] == [
        (99.0, "match")
    ]
    minute = START + timedelta(minutes=1)
    assert emitted["a_minute"] == [{"window_end": minute, "shapes": 2, "best": 2.0}]
