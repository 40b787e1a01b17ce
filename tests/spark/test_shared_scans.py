"""Streams that read the same range of a source decode its records once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.support.sessions import rows_of
from tidegate.physical.job_graph import JobGraph
from tidegate.runtime import epoch as cutting
from tidegate.spark.executor import SparkExecutor
from tidegate.spark.sql_stages import SqlFrames
from tidegate.spark.tasks.protocol import EpochSpec

pytestmark = pytest.mark.spark

# Spark decodes decimals.
SOURCE = """
CREATE SOURCE s (id BIGINT NOT NULL, kind STRING, at TIMESTAMP, price DECIMAL(10, 2), twice AS id * 2,
    WATERMARK FOR at AS at - INTERVAL '10' SECONDS)
    WITH (connector = 'files', path = '{given}', format = 'json', dead_letters = 'bad',
          files_per_epoch = 2);
"""
STREAMS = """
CREATE STREAM sums AS SELECT window_start, kind, sum(twice) AS total FROM s
    GROUP BY kind, TUMBLE(at, INTERVAL '1' MINUTE);
CREATE STREAM plain AS SELECT id, upper(kind) AS kind FROM s WHERE id % 2 = 0;
CREATE STREAM pairs AS SELECT a.id, b.id AS other FROM s AS a JOIN s AS b
    ON a.id = b.id - 1 AND b.at BETWEEN a.at AND a.at + INTERVAL '1' SECOND;
"""
ADDED = "CREATE STREAM later AS SELECT id FROM s;"


def _write(folder: Path, first: int, count: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(first, first + count):
        rows = [
            {"id": i, "kind": "ab"[i % 2], "at": f"2026-01-01T00:{i // 60:02}:{i % 60:02}Z"}
            for i in range(number * 40, number * 40 + 40)
        ]
        lines = [json.dumps(row) for row in rows] + ['{"id": null}', "broken"]
        (folder / f"{number:03}.json").write_text("\n".join(lines))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make every epoch large; collect the streams that share decoded rows."""
    monkeypatch.setattr(cutting, "_LARGE_BYTES", 0)
    collected: list[str] = []
    decoded_once = SqlFrames._decoded_once

    def record(self: SqlFrames, key: Any, scans: Any, *rest: Any) -> Any:
        collected.append(",".join(stream for _, streams in scans for stream in streams))
        return decoded_once(self, key, scans, *rest)

    monkeypatch.setattr(SqlFrames, "_decoded_once", record)
    return collected


def _run(path: Path, spark: Any, script: str, names: list[str], until_end: bool) -> dict[str, Any]:
    with tidegate.open(path / "data", spark=spark) as db:
        db.execute(script.format(given=path / "in"))
        readers = {name: db.subscribe(name) for name in names}
        db.start(until_end=until_end, available_now=not until_end)
        db.wait()
        results: dict[str, Any] = {name: rows_of(s.take_all()) for name, s in readers.items()}
        results["in"] = {s.name: s.rows_in for s in db.status()}
        results["dead"] = {s.name: s.dead_letters for s in db.status()}
        return results


def test_streams_over_one_source_decode_it_once(
    spark: Any, tmp_path: Path, decoded: list[str]
) -> None:
    names = ["sums", "plain", "pairs", "bad"]
    _write(tmp_path / "in", 0, 3)
    first = _run(tmp_path, spark, SOURCE + STREAMS, names, until_end=False)
    assert set(decoded) == {"sums,plain,bad,pairs,pairs"}
    # A later stream reads the old rows alone, and then shares the new ones.
    _write(tmp_path / "in", 3, 3)
    second = _run(tmp_path, spark, SOURCE + STREAMS + ADDED, [*names, "later"], until_end=True)

    ids = range(240)
    assert Counter(row["id"] for row in second["plain"]) == Counter(i for i in ids if i % 2 == 0)
    pairs = Counter((row["id"], row["other"]) for row in second["pairs"])
    assert pairs == Counter((i, i + 1) for i in ids[:-1])
    sums: Counter[tuple[int, str]] = Counter()
    for i in ids:
        sums[i // 60, "ab"[i % 2]] += 2 * i
    totals = {(r["window_start"].minute, r["kind"]): r["total"] for r in second["sums"]}
    assert totals == dict(sums)
    assert len(second["bad"]) == 12
    assert {(row["column_name"], row["line"]) for row in second["bad"]} >= {("id", 41)}
    assert sorted(row["id"] for row in second["later"]) == list(ids)

    # A self-join reads the source twice.
    assert first["in"] == {"sums": 126, "plain": 126, "pairs": 252, "bad": 126}
    assert second["in"]["later"] == 252
    assert first["dead"]["sums"] == 6


def test_tasks_read_a_range_once_for_all_streams(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: list[str]
) -> None:
    # The number of branches of each read.
    read: list[tuple[int, ...]] = []
    run = SparkExecutor.run

    def record(self: SparkExecutor, graph: JobGraph, epoch_spec: EpochSpec) -> list[bytes]:
        read.append(tuple(len(program.branches) for program in graph.levels[0].programs))
        return run(self, graph, epoch_spec)

    monkeypatch.setattr(SparkExecutor, "run", record)
    source = SOURCE.replace("DECIMAL(10, 2)", "BIGINT").replace("dead_letters = 'bad',", "")
    streams = STREAMS.replace("upper(kind) AS kind", "kind")
    _write(tmp_path / "in", 0, 3)
    names = ["sums", "plain", "pairs"]
    first = _run(tmp_path, spark, source + streams, names, until_end=False)
    # One branch for the sums, two for the join, one for the stream without operators.
    assert set(read) == {(4,)}
    assert {(plan.count("Exchange"), plan.count("MapInArrow")) for plan in plans} == {(0, 1)}
    assert first["in"] == {"sums": 126, "plain": 126, "pairs": 252}
    assert first["dead"] == {"sums": 6, "plain": 6, "pairs": 12}
    # A later stream reads separately until it has caught up.
    read.clear()
    _write(tmp_path / "in", 3, 3)
    more = "CREATE STREAM late_sums AS SELECT kind, window_end, count(*) AS n FROM s"
    more += " GROUP BY kind, TUMBLE(at, INTERVAL '1' MINUTE);"
    names.append("late_sums")
    second = _run(tmp_path, spark, source + streams + more, names, until_end=True)
    assert set(read) == {(4, 1)}
    assert second["in"] == {"sums": 126, "plain": 126, "pairs": 252, "late_sums": 252}
    assert sum(row["n"] for row in second["late_sums"]) == 240
    pairs = Counter((row["id"], row["other"]) for row in second["pairs"])
    assert pairs == Counter((i, i + 1) for i in range(239))
