"""Windows on Spark equal a batch query, across epochs and a restart."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.event_time import START, row
from tests.support.sessions import Rows, Step, bag, open_with, play, play_with_restart, rows_of

pytestmark = pytest.mark.spark

# Inserts keep their order across a restart.
SOURCES = (
    "CREATE SOURCE a (k STRING, v BIGINT, tags ARRAY<STRING>, ts TIMESTAMP, "
    "WATERMARK FOR ts AS ts - INTERVAL '30' SECOND) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
    "CREATE SOURCE b (k STRING, v BIGINT, ts TIMESTAMP, "
    "WATERMARK FOR ts AS ts - INTERVAL '30' SECOND) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
)
QUERIES = {
    "tumbles": (
        "SELECT upper(k) AS key, v % 2 = 0 AS even, window_start, window_end, window_time, "
        "sum(v) / count(*) AS mean, count(DISTINCT v) AS kinds, max(v) - min(v) AS spread, "
        "count(*) FILTER (WHERE v > 50) AS big, avg(v) AS average FROM a "
        "GROUP BY upper(k), v % 2 = 0, TUMBLE(ts, INTERVAL '20' SECOND, INTERVAL '-7' SECOND) "
        "HAVING count(*) > 1",
        "SELECT upper(k) AS key, v % 2 = 0 AS even, s AS window_start, "
        "s + INTERVAL '20' SECOND AS window_end, "
        "s + INTERVAL '19.999999' SECOND AS window_time, "
        "sum(v) / count(*) AS mean, count(DISTINCT v) AS kinds, max(v) - min(v) AS spread, "
        "count(*) FILTER (WHERE v > 50) AS big, avg(v) AS average "
        "FROM (SELECT *, timestamp_micros(us - pmod(us + 7000000, 20000000)) AS s FROM a_rows) "
        "GROUP BY upper(k), v % 2 = 0, s HAVING count(*) > 1",
    ),
    # Needs only the time of a row.
    "counts": (
        "SELECT window_end, count(*) AS n FROM a GROUP BY TUMBLE(ts, INTERVAL '20' SECOND)",
        "SELECT timestamp_micros(us - pmod(us, 20000000) + 20000000) AS window_end, count(*) AS n "
        "FROM a_rows GROUP BY us - pmod(us, 20000000)",
    ),
    # Without a key, and over several rows generated from one.
    "hops": (
        "SELECT window_start, window_end, count(*) AS n, max(tag) AS last, sum(v) AS total FROM a "
        "LATERAL VIEW explode(tags) t AS tag "
        "GROUP BY HOP(ts, INTERVAL '8' SECOND, INTERVAL '20' SECOND)",
        "SELECT timestamp_micros(s) AS window_start, timestamp_micros(s + 20000000) AS window_end, "
        "count(*) AS n, max(tag) AS last, sum(v) AS total FROM (SELECT tag, v, explode(filter("
        "sequence(us - pmod(us, 8000000) - 16000000, us, 8000000), s -> s + 20000000 > us)) AS s "
        "FROM a_rows LATERAL VIEW explode(tags) t AS tag) GROUP BY s",
    ),
    "sessions": (
        "SELECT k, window_start, window_end, count(*) AS n, sum(v) AS total FROM "
        "(SELECT k, v, ts FROM a WHERE v < 90 UNION ALL SELECT k, v + 1, ts FROM b) "
        "GROUP BY k, SESSION(ts, INTERVAL '6' SECOND)",
        "SELECT k, timestamp_micros(min(us)) AS window_start, "
        "timestamp_micros(max(us) + 6000000) AS window_end, count(*) AS n, sum(v) AS total FROM "
        "(SELECT *, sum(fresh) OVER (PARTITION BY k ORDER BY us RANGE UNBOUNDED PRECEDING) AS "
        "number FROM (SELECT *, CASE WHEN us - lag(us) OVER (PARTITION BY k ORDER BY us) <= 6000000 "
        "THEN 0 ELSE 1 END AS fresh FROM (SELECT k, v, us FROM a_rows WHERE v < 90 "
        "UNION ALL SELECT k, v + 1, us FROM b_rows))) GROUP BY k, number",
    ),
    # A window over a window: the busiest key of each window, and then of each minute.
    "busiest": (
        "SELECT window_start, window_end, max(n) AS most, count(*) AS keys FROM "
        "(SELECT k, window_start, window_end, count(*) AS n FROM b "
        "GROUP BY k, CUMULATE(ts, INTERVAL '10' SECOND, INTERVAL '30' SECOND)) "
        "GROUP BY window_start, window_end",
        "SELECT timestamp_micros(base) AS window_start, timestamp_micros(e) AS window_end, "
        "max(n) AS most, count(*) AS keys FROM (SELECT k, base, e, count(*) AS n FROM "
        "(SELECT k, base, explode(sequence(us - pmod(us, 10000000) + 10000000, base + 30000000, "
        "10000000)) AS e FROM (SELECT *, us - pmod(us, 30000000) AS base FROM b_rows)) "
        "GROUP BY k, base, e) GROUP BY base, e",
    ),
    "minutes": (
        "SELECT window_start, sum(n) AS n, max(k) AS last, count(*) AS parts FROM per_key "
        "WHERE n < 9 GROUP BY TUMBLE(window_time, INTERVAL '1' MINUTE)",
        "SELECT date_trunc('MINUTE', s) AS window_start, sum(n) AS n, max(k) AS last, "
        "count(*) AS parts FROM (SELECT k, timestamp_micros(us - pmod(us, 15000000)) AS s, "
        "count(*) AS n FROM b_rows GROUP BY 1, 2) WHERE n < 9 GROUP BY 1",
    ),
}
PER_KEY = (
    "CREATE STREAM per_key AS SELECT k, window_start, window_time, count(*) AS n FROM b "
    "GROUP BY k, TUMBLE(ts, INTERVAL '15' SECOND);"
)


def random_rows(seed: int, count: int) -> Rows:
    """Generate rows whose disorder is less than the delay of the watermark."""
    rng = random.Random(seed)
    rows: Rows = [
        {
            "k": rng.choice(["x", "X", "y", "ß", None]),
            "v": rng.choice([None, *range(100)]),
            "ts": START + timedelta(seconds=rng.uniform(-100, 100)),
        }
        for _ in range(count)
    ]
    rows += [dict(row) for row in rows[: count // 10]]
    return sorted(rows, key=lambda row: row["ts"] + timedelta(seconds=rng.uniform(0, 25)))


def split(rows: Rows, parts: int) -> list[Rows]:
    size = -(-len(rows) // parts)
    return [rows[place : place + size] for place in range(0, len(rows), size)]


def test_windows_equal_batch_across_epochs_and_a_restart(spark: Any, data: Path) -> None:
    a, b = random_rows(1, 240), random_rows(2, 240)
    for place, a_row in enumerate(a):
        a_row["tags"] = [None, [], ["p"], ["p", "q", "p"]][place % 4]
    steps: list[Step] = [
        {"a": ours, "b": theirs} for ours, theirs in zip(split(a, 3), split(b, 3), strict=True)
    ]
    for name, rows, kind in (
        ("a", a, "k STRING, v BIGINT, tags ARRAY<STRING>, ts TIMESTAMP"),
        ("b", b, "k STRING, v BIGINT, ts TIMESTAMP"),
    ):
        frame = spark.createDataFrame(rows, kind).selectExpr("*", "unix_micros(ts) AS us")
        frame.createOrReplaceTempView(f"{name}_rows")
    script = "".join(f"CREATE STREAM {name} AS {query};" for name, (query, _) in QUERIES.items())
    batches = play_with_restart(
        data, spark, SOURCES + PER_KEY + script, QUERIES, steps, key_groups=4
    )
    for name, (_, batch) in QUERIES.items():
        expected = spark.sql(batch).toArrow().to_pylist()
        assert bag(rows_of(batches[name])) == bag(expected), name
        assert len(expected) > 3, name


def test_window_closes_in_the_epoch_whose_watermark_passes_it(spark: Any, data: Path) -> None:
    """Through two operators, and by a row that a filter drops. Held rows are emitted, too."""
    script = SOURCES + (
        "CREATE STREAM chain AS SELECT sum(n) AS n FROM (SELECT k, window_start, window_end, "
        "count(*) AS n FROM b WHERE v > 0 GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND)) "
        "GROUP BY window_start, window_end;"
        "CREATE STREAM in_windows AS SELECT k FROM TUMBLE(b, ts, INTERVAL '10' SECOND) "
        "WHERE v > 0 EMIT ON WINDOW CLOSE;"
    )
    names = ("chain", "in_windows")

    def epochs(subscription: Any) -> dict[int, list[Any]]:
        batches = subscription.take_all()
        return {batch.epoch: sorted(batch.table.column(0).to_pylist()) for batch in batches}

    with open_with(data, spark, script, key_groups=4) as session:
        chain, in_windows = (session.subscribe(name) for name in names)
        session.start()
        # The watermark is 30 seconds behind.
        play(session, {"b": [row("a", 1, 1), row("b", 1, 9), row("z", 0, 2)]})
        play(session, {"b": [row("a", 1, 31.5)]}, {"b": [row("z", 0, 40)]})
        assert epochs(chain) == {2: [2]}
        assert epochs(in_windows) == {2: ["a", "b"]}
        for status in session.status():
            assert status.epoch == 2
            assert status.watermark == START + timedelta(seconds=10)
            assert {item.watermark for item in status.operators} == {status.watermark}
    with open_with(data, spark, script, key_groups=4) as session:
        session.insert("b", [row("c", 1, 3), row("d", 1, 11)])
        chain, in_windows = (session.subscribe(name, from_epoch=3) for name in names)
        session.start(until_end=True)
        session.wait()
        assert epochs(chain) == {3: [1, 1]}
        assert epochs(in_windows) == {3: ["a", "d"]}
        assert [status.late_rows for status in session.status()] == [1, 1]
