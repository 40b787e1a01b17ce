"""The first row of each key, sessions that split, and windows whose first rows change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.helpers import open_with, play, rows_of, standing

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def told(
    data: Path, spark: Any, script: str, names: tuple[str, ...], epochs: list[dict[str, Any]]
) -> dict[str, list[list[dict[str, Any]]]]:
    """What streams emit in each epoch; they are stopped and started again after the second."""
    found: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in names}
    seen: dict[str, int] = {}
    for part in (epochs[:2], epochs[2:]):
        with open_with(data, spark, script, key_groups=2) as session:
            readers = {n: session.subscribe(n, from_epoch=seen.get(n, -1) + 1) for n in names}
            session.start()
            for epoch in part:
                play(session, epoch)
                for name, reader in readers.items():
                    batches = reader.take_all()
                    seen[name] = max([seen.get(name, -1), *(batch.epoch for batch in batches)])
                    found[name].append(rows_of(batches))
    return found


def test_the_first_row_of_each_key_comes_out_once(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (k STRING, v BIGINT, ts TIMESTAMP, "
        "WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) "
        "WITH (connector = 'memory', inserts_per_epoch = 1);"
        "CREATE STREAM arrived WITH (state_ttl = '1 day') AS SELECT k, v, place FROM "
        "(SELECT *, row_number() OVER (PARTITION BY k ORDER BY PROCTIME()) AS place FROM s) "
        "WHERE place = 1;"
        "CREATE STREAM earliest WITH (state_ttl = '1 day') AS SELECT k, v FROM s "
        "QUALIFY row_number() OVER (PARTITION BY k ORDER BY ts) = 1 "
        "EMIT ON WINDOW CLOSE LATE DATA TO too_late;"
        "CREATE STREAM last AS SELECT k, v FROM s "
        "QUALIFY row_number() OVER (PARTITION BY k ORDER BY PROCTIME() DESC) = 1 EMIT CHANGES;"
        "CREATE STREAM so_far WITH (state_ttl = '1 day') AS SELECT v, "
        "rank() OVER (PARTITION BY k ORDER BY PROCTIME()) AS n, "
        "sum(v) OVER (PARTITION BY k ORDER BY PROCTIME() ROWS 1 PRECEDING) AS two FROM s EMIT CHANGES;"
    )
    # Key, value and second; each line is an epoch.
    given: list[list[tuple[str, int, int]]] = [
        [("a", 1, 9), ("a", 2, 7), ("b", 3, 8)],
        [("a", 4, 6), ("b", 5, 20)],
        [("a", 6, 3), ("c", 7, 18), ("b", 8, 30)],
        [("c", 9, 60)],
    ]
    epochs = [{"s": [{"k": k, "v": v, "ts": at(t)} for k, v, t in rows]} for rows in given]
    names = ("arrived", "earliest", "too_late", "last", "so_far")
    found = told(data, spark, script, names, epochs)
    assert [[tuple(row.values()) for row in rows] for rows in found["arrived"]] == [
        [("a", 1, 1), ("b", 3, 1)],
        [],
        [("c", 7, 1)],
        [],
    ]
    assert [sorted(row["v"] for row in rows) for rows in found["earliest"]] == [[], [3, 4], [7], []]
    assert [(row["v"], row["late_operator"]) for rows in found["too_late"] for row in rows] == [
        (6, "deduplicate")
    ]
    # Both go on in the order of arrival after a restart, also with rows that are late for others.
    last = standing([row for rows in found["last"] for row in rows])
    assert {(row["k"], row["v"]) for row in last} == {("a", 6), ("b", 8), ("c", 9)}
    so_far = [row for rows in found["so_far"] for row in rows]
    assert {row["_op"] for row in so_far} == {"+I"}, "what came is never corrected"
    assert {(row["v"], row["n"], row["two"]) for row in so_far} == {
        (1, 1, 1), (2, 2, 3), (4, 3, 6), (6, 4, 10), (3, 1, 3), (5, 2, 8), (8, 3, 13), (7, 1, 7), (9, 2, 16),
    }  # fmt: skip


def test_sessions_split_and_windows_change_when_rows_are_retracted(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE u (id BIGINT, k STRING, ts TIMESTAMP, PRIMARY KEY (id), "
        "WATERMARK FOR ts AS ts - INTERVAL '20' SECOND) "
        "WITH (connector = 'memory', inserts_per_epoch = 1);"
        "CREATE STREAM sessions AS SELECT k, window_start, window_end, count(*) AS n FROM u "
        "GROUP BY k, SESSION(ts, INTERVAL '10' SECOND);"
        "CREATE STREAM counts AS SELECT k, window_end, count(*) AS n FROM u "
        "GROUP BY k, TUMBLE(ts, INTERVAL '20' SECOND) EMIT CHANGES;"
        "CREATE STREAM best AS SELECT k, window_end, n FROM counts "
        "QUALIFY row_number() OVER (PARTITION BY window_end ORDER BY n DESC, k) = 1;"
    )
    # Id, key and second; each line is an epoch.
    given: list[list[tuple[int, str, int]]] = [
        [(1, "a", 1), (2, "a", 9), (3, "a", 17), (4, "b", 2)],
        [(5, "b", 3), (6, "b", 4), (7, "b", 5)],
        [(2, "a", 18), (5, "a", 19)],
        [(8, "z", 100)],
    ]
    epochs = [{"u": [{"id": i, "k": k, "ts": at(t)} for i, k, t in rows]} for rows in given]
    found = told(data, spark, script, ("sessions", "best"), epochs)
    assert sorted(tuple(row.values()) for rows in found["sessions"] for row in rows) == [
        ("a", at(1), at(11), 1),
        ("a", at(17), at(29), 3),
        ("b", at(2), at(15), 3),
    ]
    winners = [
        [
            (row["k"], row["n"])
            for row in standing([r for rows in found["best"][:count] for r in rows])
        ]
        for count in (1, 2, 3)
    ]
    assert winners == [[("a", 3)], [("b", 4)], [("a", 4)]]


def test_a_partition_by_window_time_closes_with_its_window(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
        "WITH (connector = 'memory');"
        "CREATE STREAM best AS SELECT v, window_end FROM TUMBLE(s, ts, INTERVAL '10' SECOND) "
        "QUALIFY row_number() OVER (PARTITION BY window_time ORDER BY v DESC) = 1;"
    )
    last = at(10) - timedelta(microseconds=1)
    epochs = [
        {"s": [{"v": 1, "ts": last}]},
        # The watermark stands at the last moment of the window: a row of that moment may come.
        {"s": [{"v": 2, "ts": last}]},
        {"s": [{"v": 0, "ts": at(10)}]},
    ]
    found = told(data, spark, script, ("best",), epochs)["best"]
    assert found == [[], [], [{"v": 2, "window_end": at(10)}]]
