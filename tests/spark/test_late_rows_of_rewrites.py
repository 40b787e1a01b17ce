"""Queries that are rewritten to other operators equal a batch over the rows that are not late."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.spark.test_joins import NEAR, SIDES, SOURCES, rows
from tests.support.event_time import START
from tests.support.sessions import comparable_row, open_with, rows_of, standing

pytestmark = pytest.mark.spark

Given = tuple[str | None, int | None, int]
SIZE = 10
# The rows of the left side again; none of them is late.
SLOW = (
    "CREATE SOURCE slow (k STRING, v INT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '1' HOUR) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
)
WINDOW = f"TUMBLE(ts, INTERVAL '{SIZE}' SECOND)"
BUCKET = f"time_bucket(INTERVAL '{SIZE}' SECOND, ts) + INTERVAL '{SIZE}' SECOND"
# A stream, and the DuckDB query over the rows in time if it differs.
BY_TIME = {
    "left_join": (f"SELECT {SIDES} FROM l LEFT JOIN r ON l.k = r.k AND {NEAR} AND l.v < r.v", None),
    "listed": (
        f"SELECT l.k, l.v FROM l WHERE l.k IN (SELECT k FROM r WHERE {NEAR})",
        None,
    ),
    "without": ("SELECT k, ts FROM l EXCEPT ALL SELECT k, ts FROM r", None),
    "in_session": (
        "SELECT k, v, window_start, window_end FROM SESSION(slow PARTITION BY k, ts, INTERVAL '2' SECOND)",
        "SELECT k, v, min(ts) OVER w, max(ts) OVER w + INTERVAL '2' SECOND FROM (SELECT *, count(*) "
        "FILTER (WHERE gap) OVER (PARTITION BY k ORDER BY ts) AS s FROM (SELECT *, ts - lag(ts) OVER "
        "(PARTITION BY k ORDER BY ts) > INTERVAL '2' SECOND AS gap FROM slow)) "
        "WINDOW w AS (PARTITION BY k, s)",
    ),
    "rolled_up": (
        "SELECT k, v, window_end, grouping_id() AS g, grouping_id(v) AS gv, grouping_id(v, k) AS "
        f"gvk, count(*) AS n FROM l GROUP BY {WINDOW}, ROLLUP(k, v)",
        f"SELECT k, v, {BUCKET} AS e, grouping_id(k, v) AS g, grouping_id(v) AS gv, "
        "grouping_id(v, k) AS gvk, count(*) AS n FROM l GROUP BY e, ROLLUP(k, v)",
    ),
}


def epochs(seed: int) -> tuple[list[list[Given]], list[list[Given]]]:
    """Generate rows of both sides, some of which are late."""
    chance = random.Random(seed)

    def some(place: int) -> list[Given]:
        return [
            (
                chance.choice(["a", "b", None]),
                chance.choice([1, 2, 3, None]),
                max(0, place * 6 + chance.randrange(-12, 6)),
            )
            for _ in range(5)
        ]

    return [some(i) for i in range(6)], [some(i) for i in range(6)]


def in_time(left: list[list[Given]], right: list[list[Given]], window: bool) -> list[list[Given]]:
    """Return the rows of each side that are not behind the watermark before their epoch."""
    on_time: list[list[Given]] = [[], []]
    marks = [-100, -100]
    for steps in zip(left, right, strict=True):
        watermark = marks[0] if window else min(marks)
        for side, values in enumerate(steps):
            for row in values:
                last = row[2] // SIZE * SIZE + SIZE - 1 if window else row[2]
                on_time[side] += [row] if last >= watermark else []
        ahead = [max(row[2] for row in steps[0]) - 3, max(row[2] for row in steps[1])]
        marks = [max(pair) for pair in zip(marks, ahead, strict=True)]
    return on_time


def batch(query: str, sides: list[list[Given]]) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        for name, values in zip(("l", "r", "slow"), sides, strict=False):
            db.execute(f"CREATE TABLE {name} (k VARCHAR, v BIGINT, ts TIMESTAMP)")
            times = [
                (k, v, (START + timedelta(seconds=s)).replace(tzinfo=None)) for k, v, s in values
            ]
            db.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", times)
        return Counter(db.execute(query).fetchall())


def run(spark: Any, data: Path, script: str, names: list[str], seed: int) -> dict[str, Any]:
    """Insert all rows first, so that each epoch has one insert of each source."""
    left, right = epochs(seed)
    with open_with(data, spark, SOURCES + SLOW + script, key_groups=2) as session:
        for left_rows, right_rows in zip(left, right, strict=True):
            session.insert("l", rows(left_rows))
            session.insert("slow", rows(left_rows))
            session.insert("r", rows(right_rows))
        readers = {name: session.subscribe(name) for name in names}
        session.start(until_end=True)
        session.wait()
        return {name: rows_of(reader.take_all()) for name, reader in readers.items()}


@pytest.mark.parametrize("name", list(BY_TIME))
def test_rewritten_queries_drop_the_same_late_rows(spark: Any, data: Path, name: str) -> None:
    query, other = BY_TIME[name]
    emitted = run(spark, data, f"CREATE STREAM {name} AS {query};", [name], 3)
    left, right = epochs(3)
    assert len(in_time(left, right, False)[0]) < sum(map(len, left)), "no row was late"
    everything = [row for epoch in left for row in epoch]
    sides = [*in_time(left, right, name == "rolled_up"), everything]
    assert Counter(map(comparable_row, emitted[name])) == batch(other or query, sides)


COUNTED = "(SELECT count(*) AS n, max(v) AS top FROM r) AS x"
NOTHING = "(SELECT count(*) AS n FROM r WHERE v > 1000000) AS x"
CHANGES = {
    "busy": "SELECT k, v FROM l WHERE k IN (SELECT k FROM r GROUP BY k HAVING count(*) > 9)",
    "full_join": f"SELECT {SIDES} FROM l FULL JOIN r ON l.k = r.k AND l.v < r.v",
    "top_rows": "SELECT v FROM l ORDER BY v DESC LIMIT 5",
    "top_sums": "SELECT k, sum(v) AS s FROM l WHERE v > 0 GROUP BY k ORDER BY s DESC, k LIMIT 2",
    "near_the_top": "SELECT v FROM l WHERE v > 0 ORDER BY abs(v - (SELECT avg(v) FROM r)), v LIMIT 3",
    "as_often": f"SELECT k, v FROM l WHERE EXISTS (SELECT 1 FROM {COUNTED} WHERE n > 20 AND top > v)",
    "not_so": f"SELECT k, v FROM l WHERE NOT EXISTS (SELECT 1 FROM {COUNTED} WHERE top > l.v)",
    "of_nothing": f"SELECT k, v FROM l WHERE EXISTS (SELECT 1 FROM {NOTHING} WHERE n < l.v)",
    "not_of_nothing": f"SELECT k, v FROM l WHERE NOT EXISTS (SELECT 1 FROM {NOTHING} WHERE n > l.v)",
    "seen_first": "SELECT k, v FROM l WHERE v IN (SELECT v FROM (SELECT v, row_number() OVER "
    "(PARTITION BY k ORDER BY v DESC NULLS LAST) AS n FROM r) WHERE n = 1)",
}


def test_rewritten_queries_without_bounds_emit_changes(spark: Any, data: Path) -> None:
    ttl = "WITH (state_ttl = '1 day')"
    script = "".join(f"CREATE STREAM {n} {ttl} AS {q} EMIT CHANGES;" for n, q in CHANGES.items())
    emitted = run(spark, data, script, list(CHANGES), 5)
    sides = [[row for epoch in side for row in epoch] for side in epochs(5)]
    for name, query in CHANGES.items():
        expected = batch(query, sides)
        assert expected, "there are no rows to compare"
        assert Counter(map(comparable_row, standing(emitted[name]))) == expected, name
