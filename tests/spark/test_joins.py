"""Joins, ranks, and streams over late output equal a batch, also after a restart."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.support.event_time import START, at
from tests.support.sessions import (
    Step,
    comparable_row,
    open_with,
    play,
    play_with_restart,
    rows_of,
    standing,
)

pytestmark = pytest.mark.spark

SOURCES = (
    "CREATE SOURCE l (k STRING, v INT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '3' SECOND) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
    "CREATE SOURCE r (k STRING, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
)
NEAR = "l.ts BETWEEN r.ts - INTERVAL '2' SECOND AND r.ts + INTERVAL '5' SECOND"
TUMBLED = "(SELECT * FROM TUMBLE({0}, ts, INTERVAL '10' SECOND)) AS {0}"
STARTS = "(SELECT *, time_bucket(INTERVAL '10' SECOND, ts) AS b FROM {0}) AS {0}"
SAME = "l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end"
SIDES = "l.k AS lk, l.v AS lv, r.k AS rk, r.v AS rv"
# A stream, and the DuckDB query for the same rows.
QUERIES = {
    "near": (
        f"SELECT {SIDES} FROM l LEFT JOIN r ON l.k = r.k AND {NEAR} AND r.v <> 4",
        f"SELECT {SIDES} FROM l LEFT JOIN r ON l.k = r.k AND {NEAR} AND r.v <> 4",
    ),
    "near_pairs": (
        f"SELECT {SIDES} FROM l JOIN r ON l.k = r.k AND l.v < r.v AND {NEAR} EMIT ON WINDOW CLOSE",
        f"SELECT {SIDES} FROM l JOIN r ON l.k = r.k AND l.v < r.v AND {NEAR}",
    ),
    "alone": (
        f"SELECT l.k, l.v FROM l ANTI JOIN r ON l.v = r.v AND {NEAR}",
        f"SELECT l.k, l.v FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE l.v = r.v AND {NEAR})",
    ),
    "same_window": (
        f"SELECT {SIDES} FROM {TUMBLED.format('l')} FULL JOIN {TUMBLED.format('r')} ON {SAME}",
        f"SELECT {SIDES} FROM {STARTS.format('l')} FULL JOIN {STARTS.format('r')} "
        "ON l.k = r.k AND l.b = r.b",
    ),
    # Pairs are emitted with times behind the watermark and must not be late here.
    "counted": (
        f"SELECT window_start AS b, count(*) AS n FROM (SELECT l.ts FROM l JOIN r ON l.k = r.k AND "
        f"{NEAR}) GROUP BY TUMBLE(ts, INTERVAL '4' SECOND)",
        f"SELECT time_bucket(INTERVAL '4' SECOND, l.ts) AS b, count(*) FROM l JOIN r ON "
        f"l.k = r.k AND {NEAR} GROUP BY b",
    ),
    "any_time": (
        f"SELECT {SIDES} FROM l FULL JOIN (SELECT k, max(v) AS v FROM r GROUP BY k) AS r "
        "ON l.k = r.k EMIT CHANGES",
        f"SELECT {SIDES} FROM l FULL JOIN (SELECT k, max(v) AS v FROM r GROUP BY k) AS r "
        "ON l.k = r.k",
    ),
    "last_two": (
        "SELECT k, v, n FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY ts DESC) AS n "
        "FROM l) WHERE n <= 2 EMIT CHANGES",
        "SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY ts DESC, place) AS n "
        "FROM l QUALIFY n <= 2",
    ),
    "best": (
        f"SELECT k, v FROM {TUMBLED.format('l')} QUALIFY rank() OVER "
        "(PARTITION BY window_end ORDER BY v DESC NULLS LAST) = 1",
        f"SELECT k, v FROM {STARTS.format('l')} QUALIFY rank() OVER "
        "(PARTITION BY b ORDER BY v DESC NULLS LAST) = 1",
    ),
    "once": ("SELECT DISTINCT k, v % 2 AS v FROM l", "SELECT DISTINCT k, v % 2 FROM l"),
    "either": ("SELECT k, v FROM l UNION SELECT k, v FROM r",) * 2,
    "once_of_changes": (
        "SELECT DISTINCT v FROM (SELECT k, max(v) AS v FROM r GROUP BY k) EMIT CHANGES",
        "SELECT DISTINCT v FROM (SELECT k, max(v) AS v FROM r GROUP BY k)",
    ),
}
# Key, number and second; each line is an epoch. No row is late.
LEFT = [
    [("a", 1, 1), ("b", 2, 2), (None, 3, 2)],
    [("a", 4, 8), ("c", 2, 6)],
    [("b", 5, 11), ("b", 5, 11), ("a", None, 9)],
    [("a", 6, 21), ("c", 4, 19)],
    [("b", 7, 33)],
]
RIGHT = [
    [("a", 2, 1), ("b", 4, 2)],
    [("a", 9, 3), ("b", 2, 4)],
    [("b", 6, 10), (None, 3, 11)],
    [("a", 4, 20), ("d", 4, 20)],
    [("b", 8, 30)],
]


def rows(values: list[tuple[Any, Any, int]]) -> list[dict[str, Any]]:
    return [{"k": k, "v": v, "ts": at(second)} for k, v, second in values]


def batch(query: str) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        for name, epochs in (("l", LEFT), ("r", RIGHT)):
            db.execute(f"CREATE TABLE {name} (k VARCHAR, v BIGINT, ts TIMESTAMP, place BIGINT)")
            flat = [row for epoch in epochs for row in epoch]
            times = [(k, v, at(s).replace(tzinfo=None), i) for i, (k, v, s) in enumerate(flat)]
            db.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?)", times)
        return Counter(db.execute(query).fetchall())


@pytest.mark.parametrize("group", [list(QUERIES)[:3], list(QUERIES)[3:6], list(QUERIES)[6:]])
def test_streams_of_several_inputs_equal_batch(spark: Any, data: Path, group: list[str]) -> None:
    ttl = " WITH (state_ttl = '1 day')"
    script = SOURCES + "".join(f"CREATE STREAM {n}{ttl} AS {QUERIES[n][0]};" for n in group)
    steps: list[Step] = [
        {"l": rows(left), "r": rows(right)} for left, right in zip(LEFT, RIGHT, strict=True)
    ]
    batches = play_with_restart(data, spark, script, group, steps, key_groups=2)
    for name in group:
        emitted = rows_of(batches[name])
        if emitted and "_op" in emitted[0]:
            emitted = standing(emitted)
        assert Counter(map(comparable_row, emitted)) == batch(QUERIES[name][1]), name


def test_windows_over_corrected_windows_and_held_rows_miss_no_rows(spark: Any, data: Path) -> None:
    """Corrections and held rows are emitted behind the watermark, but are not late downstream."""
    script = (
        SOURCES + "CREATE STREAM fixed AS SELECT k, window_time, count(*) AS n FROM r "
        "GROUP BY k, TUMBLE(ts, INTERVAL '5' SECOND) "
        "EMIT ON WINDOW CLOSE ALLOW LATENESS INTERVAL '20' SECOND;"
        "CREATE STREAM total AS SELECT window_start, sum(n) AS n FROM fixed "
        "GROUP BY TUMBLE(window_time, INTERVAL '10' SECOND) EMIT ON WINDOW CLOSE;"
        "CREATE STREAM held AS SELECT * FROM TUMBLE(r, ts, INTERVAL '10' SECOND) "
        "EMIT ON WINDOW CLOSE;"
        "CREATE STREAM small AS SELECT window_start, count(*) AS n FROM held "
        "GROUP BY TUMBLE(ts, INTERVAL '2' SECOND);"
    )
    with open_with(data, spark, script, key_groups=2) as session:
        totals, small = session.subscribe("total"), session.subscribe("small")
        session.start()
        play(session, {"r": rows([("a", 1, 1), ("a", 1, 7)])})
        play(session, {"r": rows([("a", 1, 13)])})
        play(session, {"r": rows([("a", 1, 2), ("b", 1, 3)])})
        play(session, {"r": rows([("a", 1, 60)])})
        status = {item.name: item for item in session.status()}
        assert status["total"].late_rows == 0
        assert status["small"].late_rows == 2, "held rows were late for their own window"
    closed = {(comparable_row(row)) for row in rows_of(totals.take_all())}
    naive = START.replace(tzinfo=None)
    assert closed == {(naive, 4), (naive + timedelta(seconds=10), 1)}
    counts = Counter(comparable_row(row) for row in rows_of(small.take_all()))
    assert counts == Counter(
        {(naive, 1): 1, (naive + timedelta(seconds=6), 1): 1, (naive + timedelta(seconds=12), 1): 1}
    )
