"""Several streams over one topic: tasks decode plain JSON per stream, or Spark decodes once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.real.kafka import Broker
from tests.support.sessions import open_with, rows_of
from tidegate.runtime import epoch as cutting
from tidegate.spark.sql_stages import SqlFrames

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE SOURCE s (id BIGINT NOT NULL, kind STRING, at TIMESTAMP, WATERMARK FOR at AS at)
    WITH (connector = 'kafka', topic = 'shared', brokers = '{brokers}', dead_letters = 'bad');
CREATE STREAM sums AS SELECT window_start, kind, sum(id) AS total FROM s
    GROUP BY kind, TUMBLE(at, INTERVAL '1' MINUTE);
CREATE STREAM shown AS SELECT id, initcap(soundex(kind)) AS code FROM s WHERE id % 2 = 0;
"""


def _records(first: int, last: int) -> list[str]:
    rows = [
        {"id": i, "kind": "ab"[i % 2], "at": f"2026-01-01T00:{i // 60:02}:{i % 60:02}Z"}
        for i in range(first, last)
    ]
    return [json.dumps(row) for row in rows]


def test_streams_over_one_topic_share_decoding(
    broker: Broker, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "_LARGE_BYTES", 0)
    shared: list[tuple[str, ...]] = []
    decoded_once = SqlFrames._decoded_once

    def record(self: SqlFrames, key: Any, scans: Any, *rest: Any) -> Any:
        shared.append(tuple(sorted({stream for _, streams in scans for stream in streams})))
        return decoded_once(self, key, scans, *rest)

    monkeypatch.setattr(SqlFrames, "_decoded_once", record)
    broker.create("shared")
    broker.produce("shared", _records(0, 100))
    with open_with(tmp_path / "data", spark, SCRIPT.format(brokers=broker.brokers)) as db:
        subscriptions = {name: db.subscribe(name) for name in ("sums", "shown", "bad")}
        db.start()
        db.wait()
        assert shared == [], "tasks decode for each stream"
        broker.produce("shared", ["no JSON", *_records(100, 140)])
        db.wait()
        assert shared == [], "also if a record is malformed for every decoder"
        broker.produce("shared", ['{"id": "x"}', *_records(140, 181)])
        db.wait()
        assert shared[-1] == ("shown", "sums"), "Spark decodes once for both streams"
        assert {item.name: item.dead_letters for item in db.status()}["sums"] == 2
        rows: dict[str, Any] = {
            name: rows_of(item.take_all()) for name, item in subscriptions.items()
        }
    sums = {(row["window_start"].minute, row["kind"]): row["total"] for row in rows["sums"]}
    assert sums == {
        (minute, kind): sum(range(60 * minute + "ab".index(kind), 60 * minute + 60, 2))
        for minute in range(3)
        for kind in "ab"
    }
    assert sorted(row["id"] for row in rows["shown"]) == list(range(0, 181, 2))
    assert {row["code"] for row in rows["shown"]} == {"A000"}
    assert [row["record"] for row in rows["bad"]] == ["no JSON", '{"id": "x"}']
