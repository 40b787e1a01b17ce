"""Retractions and upserts by key, from memory and from files."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.support.event_time import at
from tests.support.sessions import open_with, play_with_restart, rows_of, standing

pytestmark = pytest.mark.spark


def change(op: str, k: str, v: int, seconds: float) -> dict[str, Any]:
    return {"_op": op, "k": k, "v": v, "ts": at(seconds)}


def order(op: str, number: int, state: str | None, amount: str | None) -> dict[str, Any]:
    return {"_op": op, "id": number, "state": state, "amount": amount, "ts": at(number)}


def test_aggregates_follow_retractions_and_upserts(spark: Any, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    script = (
        "CREATE SOURCE c (k STRING, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
        "WITH (connector = 'memory', changelog = true, inserts_per_epoch = 1);"
        "CREATE SOURCE orders (id INT, state STRING, amount DECIMAL(10, 2), ts TIMESTAMP, "
        "PRIMARY KEY (id), WATERMARK FOR ts AS ts - INTERVAL '1' HOUR) "
        "WITH (connector = 'memory', changelog = true);"
        f"CREATE SOURCE people (id INT, city STRING, PRIMARY KEY (id)) WITH (connector = 'files', "
        f"path = '{folder}', format = 'json');"
        "CREATE STREAM sums AS SELECT k, sum(v) AS total, min(v) AS low, max(v) AS high FROM c "
        "GROUP BY k EMIT ON UPDATE;"
        "CREATE STREAM windows AS SELECT k, window_start, count(*) AS n, max(v) AS high FROM c "
        "GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND);"
        "CREATE STREAM by_state AS SELECT state, count(*) AS n, sum(amount) AS amount FROM orders "
        "GROUP BY state EMIT CHANGES;"
        "CREATE STREAM cities AS SELECT city, count(*) AS n FROM people GROUP BY city EMIT CHANGES;"
    )
    (folder / "1.json").write_text(
        "".join(json.dumps({"id": n % 5, "city": f"c{n // 5}"}) + "\n" for n in range(15))
    )
    steps: list[dict[str, list[dict[str, Any]]]] = [
        {
            "c": [change("+I", "a", 5, 1), change("+I", "a", 9, 2), change("+I", "b", 1, 3)],
            "orders": [order("+I", 1, "open", "10.00"), order("+I", 2, "open", "5.50")],
        },
        {
            # Retract the maximum of a and the last row of b; another row is retracted in its own epoch.
            "c": [change("-D", "a", 9, 2), change("-U", "b", 1, 3), change("+I", "a", 2, 12)],
            "orders": [order("+U", 1, "paid", "10.00"), order("-D", 2, None, None)],
        },
        {
            "c": [change("+I", "a", 7, 13), change("-D", "a", 7, 13)],
            "orders": [order("+I", 2, "paid", "1.25"), order("-D", 9, "open", None)],
        },
    ]
    streams = ("sums", "windows", "by_state", "cities")
    batches = play_with_restart(data, spark, script, streams, steps, key_groups=4)
    sums = [[tuple(r.values()) for r in b.table.to_pylist()] for b in batches["sums"]]
    assert sorted(sums[0]) == [("a", 14, 5, 9, "+I"), ("b", 1, 1, 1, "+I")]
    assert sorted(sums[1]) == [("a", 7, 2, 5, "+U"), ("b", 1, 1, 1, "-D")]
    assert not any(sums[2:])
    closed = [tuple(row.values()) for row in rows_of(batches["windows"])]
    assert sorted(closed) == [("a", at(0), 1, 5), ("a", at(10), 1, 2)]
    assert standing(rows_of(batches["by_state"])) == [
        {"state": "paid", "n": 2, "amount": Decimal("11.25")}
    ]
    assert standing(rows_of(batches["cities"])) == [{"city": "c2", "n": 5}]


@pytest.mark.parametrize("options", ["", "WITH (state_ttl = '1 day')"])
def test_older_file_does_not_restore_a_deleted_key(
    spark: Any, data: Path, tmp_path: Path, options: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    script = (
        "CREATE SOURCE s (id INT, v STRING, PRIMARY KEY (id)) WITH (connector = 'files', "
        f"path = '{folder}', format = 'json', changelog = true);"
        f"CREATE STREAM t {options} AS SELECT id, v FROM s;"
    )
    expected = [
        {1: "new", 2: "new"},
        {2: "new"},
        {2: "new", 3: "old"},
        {1: "x", 2: "new", 3: "old"},
    ]
    for number, (moment, rows) in enumerate(
        [
            (20, [("+U", 1, "new"), ("+U", 2, "new")]),
            (30, [("-D", 1, None)]),
            (25, [("+U", 1, "old"), ("+U", 3, "old")]),
            (40, [("+U", 1, "x")]),
        ]
    ):
        lines = [json.dumps({"_op": op, "id": id, "v": v}) for op, id, v in rows]
        (folder / f"{number}.json").write_text("\n".join(lines))
        os.utime(folder / f"{number}.json", (moment, moment))
        with open_with(data, spark, script, key_groups=2) as session:
            subscription = session.subscribe("t")
            session.start(available_now=True)
            session.wait()
            remaining = standing(rows_of(subscription.take_all()))
        assert {row["id"]: row["v"] for row in remaining} == expected[number]
