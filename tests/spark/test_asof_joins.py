"""Temporal and ASOF joins equal a batch, also after a restart."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.support.event_time import at
from tests.support.sessions import Step, comparable_row, play_with_restart, rows_of, standing

pytestmark = pytest.mark.spark

MEMORY = "WITH (connector = 'memory', inserts_per_epoch = 1"
SOURCES = (
    "CREATE SOURCE l (k STRING, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '3' SECOND) "
    f"{MEMORY});"
    f"CREATE SOURCE r (k STRING, v INT, ts TIMESTAMP, WATERMARK FOR ts AS ts) {MEMORY});"
    "CREATE SOURCE u (k STRING, v BIGINT, ts TIMESTAMP, PRIMARY KEY (k), "
    f"WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) {MEMORY}, changelog = true);"
)
LAST = "SELECT * FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY ts DESC) = 1"
SHOWN = "SELECT l.k AS k, l.v AS v, r.v AS found"
AS_OF = "FOR SYSTEM_TIME AS OF l.ts AS r ON l.k = r.k"
# A version and its value. A deleted version or one that a condition drops does not match.
VERSION = "CASE WHEN {1} THEN r.v END AS found FROM l ASOF LEFT JOIN u AS r ON l.k = r.k AND {0}"
BEFORE, NOT_GONE = "l.ts >= r.ts", "r.op <> '-D'"
# A stream, and the DuckDB query for the same rows.
QUERIES = {
    "temporal": (
        f"{SHOWN} FROM l JOIN u {AS_OF}",
        f"{SHOWN} FROM l ASOF JOIN u AS r ON l.k = r.k AND {BEFORE} WHERE {NOT_GONE}",
    ),
    "temporal_left": (
        f"{SHOWN} FROM l LEFT JOIN u {AS_OF} AND l.v < r.v",
        f"SELECT l.k, l.v, {VERSION.format(BEFORE, NOT_GONE + ' AND l.v < r.v')}",
    ),
    "temporal_of_some": (
        f"{SHOWN} FROM l LEFT JOIN (SELECT * FROM u WHERE v % 2 = 0) {AS_OF}",
        f"SELECT l.k, l.v, {VERSION.format(BEFORE, NOT_GONE + ' AND r.v % 2 = 0')}",
    ),
    "temporal_of_last_rows": (
        f"{SHOWN} FROM l LEFT JOIN ({LAST}) {AS_OF} LEFT JOIN u FOR SYSTEM_TIME AS OF l.ts AS w "
        "ON w.k = l.k",
        f"{SHOWN} FROM l ASOF LEFT JOIN r ON l.k = r.k AND {BEFORE}",
    ),
    # Rows are emitted behind the watermark and must not be late here.
    "counted": (
        "SELECT window_start AS b, count(found) AS n FROM (SELECT l.ts, r.v AS found FROM l "
        "ASOF LEFT JOIN r MATCH_CONDITION (r.ts >= l.ts) TOLERANCE INTERVAL '6' SECOND "
        "ON l.k = r.k) GROUP BY TUMBLE(ts, INTERVAL '4' SECOND)",
        "SELECT time_bucket(INTERVAL '4' SECOND, l.ts) AS b, "
        "count(CASE WHEN r.ts - l.ts <= INTERVAL '6' SECOND THEN r.v END) "
        "FROM l ASOF LEFT JOIN r ON l.k = r.k AND l.ts <= r.ts GROUP BY b",
    ),
    "nearest": (
        f"{SHOWN} FROM l ASOF NEAREST LEFT JOIN r MATCH_CONDITION (l.ts = r.ts) ON l.k = r.k",
        f"{SHOWN} FROM (SELECT *, row_number() OVER () AS n FROM l) AS l LEFT JOIN r ON l.k = r.k "
        "QUALIFY row_number() OVER (PARTITION BY n ORDER BY "
        "abs(epoch_us(l.ts) - epoch_us(r.ts)), r.ts) = 1",
    ),
    "after": (
        f"{SHOWN} FROM l ASOF JOIN r MATCH_CONDITION (l.ts < r.ts) ON l.k = r.k AND r.v > 2",
        f"{SHOWN} FROM l ASOF JOIN (SELECT * FROM r WHERE v > 2) AS r ON l.k = r.k AND l.ts < r.ts",
    ),
    "by_number": (
        f"{SHOWN} FROM l ASOF JOIN r ON l.k = r.k AND l.v >= r.v EMIT CHANGES",
        f"{SHOWN} FROM l ASOF JOIN r ON l.k = r.k AND l.v >= r.v",
    ),
}
# Key, number and second; each line is an epoch. Only the last row is late.
LEFT = [
    [("a", 1, 1), ("b", 2, 2), (None, 3, 2)],
    [("a", 4, 8), ("c", 2, 6)],
    [("b", 5, 11), ("b", 5, 11), ("a", None, 9)],
    [("a", 6, 21), ("c", 4, 19)],
    [("b", 7, 33)],
]
TOO_LATE = ("late", 1, 1)
RIGHT = [
    [("a", 2, 1), ("b", 4, 2)],
    [("a", 9, 3), ("b", 3, 4)],
    [("b", 6, 10), (None, 3, 11)],
    [("a", 4, 20), ("d", 4, 20)],
    [("b", 8, 30)],
]
VERSIONS = [
    [("a", 2, 0, "+I"), ("b", 4, 2, "+U")],
    [("a", 9, 5, "+U"), ("b", 2, 4, "-U")],
    [("b", 6, 12, "+U"), (None, 3, 11, "+I"), ("b", 4, 10, "-D")],
    [("a", 8, 20, "+U"), ("c", 4, 19, "+I")],
    [("c", 4, 30, "-D")],
]


def rows(values: list[Any]) -> list[dict[str, Any]]:
    changes = [{"k": k, "v": v, "ts": at(second)} for k, v, second, *_ in values]
    ops = [{"_op": rest[0]} if rest else {} for _, _, _, *rest in values]
    return [row | op for row, op in zip(changes, ops, strict=True)]


def batch(query: str) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        for name, epochs in (("l", LEFT), ("r", RIGHT), ("u", VERSIONS)):
            db.execute(f"CREATE TABLE {name} (k VARCHAR, v BIGINT, ts TIMESTAMP, op VARCHAR)")
            for k, v, second, *op in (row for epoch in epochs for row in epoch):
                if op != ["-U"]:
                    time = at(second).replace(tzinfo=None)
                    db.execute(
                        f"INSERT INTO {name} VALUES (?, ?, ?, ?)", (k, v, time, (op or ["+I"])[0])
                    )
        return Counter(db.execute(query).fetchall())


def test_temporal_and_asof_joins_equal_batch(spark: Any, data: Path) -> None:
    ttl = " WITH (state_ttl = '1 day')"
    script = SOURCES + "".join(f"CREATE STREAM {n}{ttl} AS {q};" for n, (q, _) in QUERIES.items())
    script += (
        f"CREATE STREAM watched AS {QUERIES['temporal'][0]} "
        "EMIT ON WINDOW CLOSE LATE DATA TO late_rows;"
    )
    steps: list[Step] = [
        {"l": rows(left), "r": rows(right), "u": rows(versions)}
        for left, right, versions in zip(LEFT, RIGHT, VERSIONS, strict=True)
    ]
    steps[-1]["l"] += rows([TOO_LATE])
    streams = [*QUERIES, "watched", "late_rows"]
    batches = play_with_restart(data, spark, script, streams, steps, key_groups=2)
    for name, (_, query) in QUERIES.items():
        emitted = rows_of(batches[name])
        if emitted and "_op" in emitted[0]:
            emitted = standing(emitted)
        assert Counter(map(comparable_row, emitted)) == batch(query), name
    assert Counter(map(comparable_row, rows_of(batches["watched"]))) == batch(
        QUERIES["temporal"][1]
    )
    (late,) = rows_of(batches["late_rows"])
    assert (late["k"], late["late_operator"]) == ("late", "temporal_join (left)")
