"""Aggregates without calls or columns, with guarded arguments, and with unusual keys."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.sessions import play_with_restart, rows_of, standing

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW = "TUMBLE(ts, INTERVAL '10' SECOND)"
# Event time in seconds, a key, and a number that is sometimes a divisor.
ROWS = [
    (1, "a", 1.0),
    (2, "b", 0.0),
    (12, "a", -0.0),
    (13, None, math.nan),
    (21, "b", 4.0),
    (22, "b", None),
    (35, "c", 0.0),
    (36, "a", math.nan),
    (41, "a", 2.0),
]
PAIRS = (
    "round(covar_pop(n, ascii(k)), 9) AS covariance, round(regr_slope(n, ascii(k)), 9) AS slope, "
    "round(skewness(n), 9) AS lean"
)
# A stream, and the batch query over a table `t` with the start of the window in the column `start`.
QUERIES = {
    "no_calls": (
        f"SELECT k, window_start FROM s GROUP BY k, {WINDOW}",
        "GROUP BY k, start",
        "k, start",
    ),
    "no_columns": ("SELECT count(*) AS n FROM s EMIT CHANGES", "", "count(*)"),
    "guarded": (
        f"SELECT window_start, sum(10 / v) AS x FROM s WHERE v <> 0 GROUP BY {WINDOW}",
        "WHERE v <> 0 GROUP BY start",
        "start, sum(10 / v)",
    ),
    "guarded_key": (
        "SELECT 10 / v AS k, count(*) AS n FROM s WHERE v <> 0 GROUP BY 10 / v EMIT CHANGES",
        "WHERE v <> 0 GROUP BY 10 / v",
        "10 / v, count(*)",
    ),
    "odd_keys": (
        "SELECT v, count(*) AS n FROM s GROUP BY v EMIT CHANGES",
        "GROUP BY v",
        "v, count(*)",
    ),
    "all_keys": (
        "SELECT upper(k) AS u, 7 AS seven, count(*) AS n FROM s GROUP BY ALL EMIT CHANGES",
        "GROUP BY ALL",
        "upper(k), 7, count(*)",
    ),
    "pairs_of_changes": (
        f"SELECT {PAIRS} FROM (SELECT k, count(*) AS n FROM s GROUP BY k) EMIT CHANGES",
        f"CROSS JOIN (SELECT {PAIRS} FROM (SELECT k, count(*) AS n FROM t GROUP BY k)) AS x LIMIT 1",
        "x.covariance, x.slope, x.lean",
    ),
    "without_the_first": (
        "SELECT k, v FROM s WHERE v BETWEEN 1 AND 9 ORDER BY v DESC LIMIT 2 OFFSET 1 EMIT CHANGES",
        "WHERE v BETWEEN 1 AND 9 ORDER BY v DESC LIMIT 2 OFFSET 1",
        "k, v",
    ),
}


def texts(rows: list[tuple[Any, ...]]) -> list[str]:
    """Return comparable rows in order: NaN equals itself, and times are in UTC."""
    plain = [
        [v.replace(tzinfo=None) if isinstance(v, datetime) else v for v in row] for row in rows
    ]
    return sorted(map(repr, plain))


def test_streams_equal_batch(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (k STRING, v DOUBLE, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
        "WITH (connector = 'memory', inserts_per_epoch = 1);"
    ) + "".join(f"CREATE STREAM {name} AS {query[0]};" for name, query in QUERIES.items())
    rows = [{"k": k, "v": v, "ts": START + timedelta(seconds=s)} for s, k, v in ROWS]
    steps = [{"s": rows[first : first + 3]} for first in range(0, len(rows), 3)]
    batches = play_with_restart(data, spark, script, tuple(QUERIES), steps, key_groups=3)
    table = spark.createDataFrame(
        [(START.replace(tzinfo=None) + timedelta(seconds=s // 10 * 10), k, v) for s, k, v in ROWS],
        "start TIMESTAMP_NTZ, k STRING, v DOUBLE",
    )
    table.createOrReplaceTempView("t")
    for name, (_, rest, columns) in QUERIES.items():
        emitted = rows_of(batches[name])
        emitted = standing(emitted) if "_op" in emitted[0] else emitted
        expected = [tuple(row) for row in spark.sql(f"SELECT {columns} FROM t {rest}").collect()]
        assert texts([tuple(row.values()) for row in emitted]) == texts(expected), name
