"""The first row of each key, sessions that split, and windows whose first rows change."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.event_time import at
from tests.support.sessions import open_with, play, rows_of, standing

pytestmark = pytest.mark.spark


def rows_by_epoch(
    data: Path, spark: Any, script: str, names: tuple[str, ...], epochs: list[dict[str, Any]]
) -> dict[str, list[list[dict[str, Any]]]]:
    """Return the rows of each epoch by stream; the session restarts after the second epoch."""
    rows_by_stream: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in names}
    last_epochs: dict[str, int] = {}
    for part in (epochs[:2], epochs[2:]):
        with open_with(data, spark, script, key_groups=2) as session:
            readers = {
                n: session.subscribe(n, from_epoch=last_epochs.get(n, -1) + 1) for n in names
            }
            session.start()
            for epoch in part:
                play(session, epoch)
                for name, reader in readers.items():
                    batches = reader.take_all()
                    last_epochs[name] = max(
                        [last_epochs.get(name, -1), *(batch.epoch for batch in batches)]
                    )
                    rows_by_stream[name].append(rows_of(batches))
    return rows_by_stream


def test_first_row_of_each_key_is_emitted_once(spark: Any, data: Path) -> None:
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
    inputs: list[list[tuple[str, int, int]]] = [
        [("a", 1, 9), ("a", 2, 7), ("b", 3, 8)],
        [("a", 4, 6), ("b", 5, 20)],
        [("a", 6, 3), ("c", 7, 18), ("b", 8, 30)],
        [("c", 9, 60)],
    ]
    epochs = [{"s": [{"k": k, "v": v, "ts": at(t)} for k, v, t in rows]} for rows in inputs]
    names = ("arrived", "earliest", "too_late", "last", "so_far")
    emitted = rows_by_epoch(data, spark, script, names, epochs)
    assert [[tuple(row.values()) for row in rows] for rows in emitted["arrived"]] == [
        [("a", 1, 1), ("b", 3, 1)],
        [],
        [("c", 7, 1)],
        [],
    ]
    assert [sorted(row["v"] for row in rows) for rows in emitted["earliest"]] == [
        [],
        [3, 4],
        [7],
        [],
    ]
    assert [(row["v"], row["late_operator"]) for rows in emitted["too_late"] for row in rows] == [
        (6, "deduplicate")
    ]
    # Both continue in order of arrival after a restart, including rows that are late for other streams.
    last = standing([row for rows in emitted["last"] for row in rows])
    assert {(row["k"], row["v"]) for row in last} == {("a", 6), ("b", 8), ("c", 9)}
    so_far = [row for rows in emitted["so_far"] for row in rows]
    assert {row["_op"] for row in so_far} == {"+I"}, "an emitted row was corrected"
    assert {(row["v"], row["n"], row["two"]) for row in so_far} == {
        (1, 1, 1), (2, 2, 3), (4, 3, 6), (6, 4, 10), (3, 1, 3), (5, 2, 8), (8, 3, 13), (7, 1, 7), (9, 2, 16),
    }  # fmt: skip


def test_retractions_split_sessions_and_change_windows(spark: Any, data: Path) -> None:
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
    inputs: list[list[tuple[int, str, int]]] = [
        [(1, "a", 1), (2, "a", 9), (3, "a", 17), (4, "b", 2)],
        [(5, "b", 3), (6, "b", 4), (7, "b", 5)],
        [(2, "a", 18), (5, "a", 19)],
        [(8, "z", 100)],
    ]
    epochs = [{"u": [{"id": i, "k": k, "ts": at(t)} for i, k, t in rows]} for rows in inputs]
    emitted = rows_by_epoch(data, spark, script, ("sessions", "best"), epochs)
    assert sorted(tuple(row.values()) for rows in emitted["sessions"] for row in rows) == [
        ("a", at(1), at(11), 1),
        ("a", at(17), at(29), 3),
        ("b", at(2), at(15), 3),
    ]
    winners = [
        [
            (row["k"], row["n"])
            for row in standing([r for rows in emitted["best"][:count] for r in rows])
        ]
        for count in (1, 2, 3)
    ]
    assert winners == [[("a", 3)], [("b", 4)], [("a", 4)]]


def test_partition_by_window_time_closes_with_its_window(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
        "WITH (connector = 'memory');"
        "CREATE STREAM best AS SELECT v, window_end FROM TUMBLE(s, ts, INTERVAL '10' SECOND) "
        "QUALIFY row_number() OVER (PARTITION BY window_time ORDER BY v DESC) = 1;"
    )
    last = at(10) - timedelta(microseconds=1)
    epochs = [
        {"s": [{"v": 1, "ts": last}]},
        # The watermark equals the last moment of the window: another row of that moment may follow.
        {"s": [{"v": 2, "ts": last}]},
        {"s": [{"v": 0, "ts": at(10)}]},
    ]
    emitted = rows_by_epoch(data, spark, script, ("best",), epochs)["best"]
    assert emitted == [[], [], [{"v": 2, "window_end": at(10)}]]
