"""OVER in a restarted pipeline equals Spark in batch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.support.sessions import bag, play_with_restart, rows_of, standing

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "id BIGINT, k STRING, v INT, p DECIMAL(10, 2), d DOUBLE, ts TIMESTAMP"
# The value of the only late row.
LATE = 99
# Key, value and second; each line is an epoch. The watermark is 5 seconds behind.
GIVEN: list[list[tuple[str | None, int | None, int]]] = [
    [("a", 4, 1), ("b", 7, 2), ("a", None, 0), (None, 3, 3)],
    [("a", 9, 12), ("b", 1, 8), ("a", 5, 10)],
    [("b", 6, 16), ("a", 30, 14), (None, 3, 13), ("a", 2, 21)],
    [("a", 61, 40), ("b", None, 38), (None, 8, 37), ("b", LATE, 1)],
]
ROWS = "ORDER BY ts ROWS BETWEEN"
ALONG_TIME = f"""
    SELECT id, k, v > 2 * lag(v) OVER w AS doubled, lag(v, 2, -1) OVER w AS second,
        lag(v) IGNORE NULLS OVER w AS known, sum(v) OVER w AS total, avg(p) OVER w AS mean,
        round(stddev(d) OVER w, 9) AS spread, sum(d) OVER w AS so_far, row_number() OVER w AS nth,
        rank() OVER w AS place, dense_rank() OVER w AS level, nth_value(v, 2) OVER w AS two,
        first_value(v) IGNORE NULLS OVER w AS first, last_value(v) OVER w AS same,
        sum(p) OVER (PARTITION BY k {ROWS} 2 PRECEDING AND CURRENT ROW) AS three,
        collect_list(v) OVER (PARTITION BY k {ROWS} 2 PRECEDING AND 1 PRECEDING) AS before,
        max(d) OVER (PARTITION BY k ORDER BY ts
            RANGE BETWEEN INTERVAL '10' SECOND PRECEDING AND CURRENT ROW) AS high,
        max(v) OVER (PARTITION BY v % 2 ORDER BY ts) AS odd,
        count(*) OVER (PARTITION BY v % 2 ORDER BY ts
            RANGE BETWEEN INTERVAL '2' SECOND PRECEDING AND INTERVAL '4' SECOND FOLLOWING) AS near
    FROM s WINDOW w AS (PARTITION BY k ORDER BY ts)
"""
AHEAD = f"""
    SELECT id, v, lead(v) OVER (PARTITION BY k ORDER BY ts) AS next,
        avg(v) OVER (PARTITION BY k {ROWS} 1 PRECEDING AND 1 FOLLOWING) AS smooth
    FROM s
"""
SHARES = """
    SELECT id, unix_seconds(window_end) AS closes, v / sum(v) OVER (PARTITION BY window_end) AS share,
        ntile(2) OVER (PARTITION BY window_end ORDER BY v, id) AS half,
        percent_rank() OVER (PARTITION BY window_end ORDER BY v) AS percent,
        cume_dist() OVER (PARTITION BY window_end ORDER BY v) AS below
    FROM {windows}
"""
CORRECTED = """
    SELECT id, k, v, rank() OVER (PARTITION BY k ORDER BY v DESC) AS place,
        sum(v) OVER (PARTITION BY k) AS total
    FROM s
"""
SCRIPT = f"""
    CREATE SOURCE s ({SCHEMA}, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)
    WITH (connector = 'memory', inserts_per_epoch = 1);
    CREATE STREAM along AS {ALONG_TIME} EMIT ON WINDOW CLOSE LATE DATA TO too_late;
    CREATE STREAM ahead AS {AHEAD};
    CREATE STREAM shares AS {SHARES.format(windows="TUMBLE(s, ts, INTERVAL '10' SECOND)")};
    CREATE STREAM corrected WITH (state_ttl = '1 day') AS {CORRECTED} EMIT CHANGES;
"""
STREAMS = ("along", "too_late", "ahead", "shares", "corrected")


def step_rows() -> list[list[dict[str, Any]]]:
    epochs, number = [], 0
    for lines in GIVEN:
        rows = []
        for key, value, second in lines:
            number += 1
            decimal = None if value is None else Decimal(value) / 4
            double = None if value is None else value / 3
            ts = START + timedelta(seconds=second)
            rows.append({"id": number, "k": key, "v": value, "p": decimal, "d": double, "ts": ts})
        epochs.append(rows)
    return epochs


def test_over_equals_spark_batch(spark: Any, data: Path) -> None:
    steps = [{"s": rows} for rows in step_rows()]
    batches = play_with_restart(data, spark, SCRIPT, STREAMS, steps, key_groups=2)
    emitted = {name: rows_of(parts) for name, parts in batches.items()}
    rows = [row for epoch in step_rows() for row in epoch]
    on_time = [row for row in rows if row["v"] != LATE]
    spark.createDataFrame(on_time, SCHEMA).createOrReplaceTempView("s")
    windows = "(SELECT *, window(ts, '10 seconds').end AS window_end FROM s)"
    queries = {"along": ALONG_TIME, "ahead": AHEAD, "shares": SHARES.format(windows=windows)}
    late = [(row["v"], row["late_operator"]) for row in emitted["too_late"]]
    assert late == [(LATE, "over")]
    for name, query in queries.items():
        assert bag(emitted[name]) == bag(spark.sql(query).toArrow().to_pylist()), name
    # Streams that correct rows at once do not wait for the watermark.
    spark.createDataFrame(rows, SCHEMA).createOrReplaceTempView("s")
    assert bag(standing(emitted["corrected"])) == bag(spark.sql(CORRECTED).toArrow().to_pylist())
