"""Operators that several streams share run once, without a visible difference."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import tidegate
from tests.support.sessions import bag, rows_of
from tidegate.checkpoint.manifests import Manifests
from tidegate.physical.graph_builder import StreamInput, _Builder
from tidegate.physical.planner import OperatorPlan
from tidegate.runtime import epoch as cutting
from tidegate.storage import open_store

pytestmark = pytest.mark.spark

SOURCE = """
CREATE SOURCE raw (id BIGINT NOT NULL, page STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '10' SECONDS)
    WITH (connector = 'files', path = '{given}', format = 'json', files_per_epoch = 1);
"""
STREAMS = """
CREATE STREAM clicks AS SELECT DISTINCT id, page, ts FROM raw;
CREATE STREAM views AS SELECT window_start, page, count(*) AS n FROM clicks
    GROUP BY page, TUMBLE(ts, INTERVAL '1' MINUTE);
CREATE STREAM many AS SELECT page AS p, n + 1 AS more FROM views WHERE n > 12;
CREATE STREAM top AS SELECT window_start, page, n FROM
    (SELECT window_start, window_end, page, count(*) AS n FROM clicks
     GROUP BY page, TUMBLE(ts, INTERVAL '1' MINUTE))
    QUALIFY row_number() OVER (PARTITION BY window_start, window_end ORDER BY n DESC, page) <= 1;
CREATE STREAM pairs AS SELECT a.id, b.id AS other FROM clicks AS a JOIN clicks AS b
    ON a.page = b.page AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '3' SECOND WHERE b.id > a.id;
CREATE STREAM totals AS SELECT page, count(*) AS n FROM clicks GROUP BY page EMIT CHANGES;
CREATE STREAM again AS SELECT page, n * 10 AS n FROM totals EMIT CHANGES;
"""
ADDED = "CREATE STREAM later AS SELECT page, max(id) AS id FROM clicks GROUP BY page EMIT CHANGES;"
NAMES = ["clicks", "views", "many", "top", "pairs", "totals", "again"]
BATCH = {
    "clicks": "FROM clicks",
    "views": "FROM views",
    "many": "SELECT page AS p, n + 1 AS more FROM views WHERE n > 12",
    "top": "FROM views QUALIFY row_number() OVER (PARTITION BY window_start ORDER BY n DESC, page) = 1",
    "pairs": "SELECT a.id, b.id AS other FROM clicks a JOIN clicks b ON a.page = b.page "
    "AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '3' SECOND WHERE b.id > a.id",
    "totals": "SELECT page, count(*) AS n FROM clicks GROUP BY page",
    "again": "SELECT page, count(*) * 10 AS n FROM clicks GROUP BY page",
    "later": "SELECT page, max(id) AS id FROM clicks GROUP BY page",
}


def _write(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    lines = [
        json.dumps({"id": i // 2, "page": "abc"[i // 2 % 3], "ts": _time(i // 2)})
        for i in range(number * 80, number * 80 + 80)
    ]
    (folder / f"{number:03}.json").write_text("\n".join([*lines, "broken"]))


def _time(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"


def _run(path: Path, spark: Any, script: str, names: list[str], until_end: bool) -> dict[str, Any]:
    with tidegate.open(path / "data", spark=spark) as db:
        db.execute(script.format(given=path / "in"))
        readers = {name: db.subscribe(name) for name in names}
        db.start(until_end=until_end, available_now=not until_end)
        db.wait()
        results: dict[str, Any] = {name: rows_of(s.take_all()) for name, s in readers.items()}
        results["status"] = {s.name: (s.rows_in, s.rows_out, s.dead_letters) for s in db.status()}
        return results


def _run_twice(path: Path, spark: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run twice; the second run is a new session with one more stream."""
    for number in range(2):
        _write(path / "in", number)
    first = _run(path, spark, SOURCE + STREAMS, NAMES, until_end=False)
    for number in range(2, 4):
        _write(path / "in", number)
    second = _run(path, spark, SOURCE + STREAMS + ADDED, [*NAMES, "later"], until_end=True)
    return first, second


def _standing(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that a changelog leaves."""
    remaining: list[dict[str, Any]] = []
    for row in rows:
        op = row.pop("_op", "+I")
        remaining.append(row) if op in ("+I", "+U") else remaining.remove(row)
    return remaining


def _expected(path: Path) -> dict[str, Any]:
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        connection.sql(
            "CREATE TABLE clicks AS SELECT DISTINCT id, page, ts::TIMESTAMPTZ AS ts FROM "
            f"read_json('{path}/in/*.json', ignore_errors = true, format = 'newline_delimited') "
            "WHERE id IS NOT NULL"
        )
        connection.sql(
            "CREATE TABLE views AS SELECT date_trunc('minute', ts) AS window_start, page, "
            "count(*) AS n FROM clicks GROUP BY ALL"
        )
        tables = {name: connection.sql(sql).to_arrow_table() for name, sql in BATCH.items()}
    return {name: bag(table.to_pylist()) for name, table in tables.items()}


_leaf_inputs = _Builder._leaf_inputs


def _inputs_of_one_stream(
    builder: _Builder, stream: StreamInput, plan: OperatorPlan
) -> Iterator[Hashable]:
    """Yield the inputs of an operator so that no two streams have equal ones."""
    yield stream.key
    yield from _leaf_inputs(builder, stream, plan)


@pytest.mark.parametrize("large", [False, True])
def test_streams_run_a_shared_operator_once(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    if large:
        monkeypatch.setattr(cutting, "_LARGE_BYTES", 0)
    together, apart = tmp_path / "together", tmp_path / "apart"
    together.mkdir()
    apart.mkdir()
    first, second = _run_twice(together, spark)
    store = open_store(str(together / "data" / "_pipelines" / "main"))
    manifest = Manifests(store, 3).recover().manifest
    assert manifest is not None
    state_handles: dict[str, list[str]] = {}
    for key, operator in manifest.operators.items():
        state_handles.setdefault(json.dumps(operator.state_handles), []).append(
            key.partition(".")[0]
        )
    shared = sorted(sorted(names) for names in state_handles.values())
    # A later stream has read the same rows, but not in the same epochs.
    assert shared == [
        ["again", "clicks", "many", "pairs", "pairs", "top", "totals", "views"],
        ["again", "totals"],
        ["later"],
        ["later"],
        ["many", "views"],
        ["pairs"],
        ["top"],
        ["top"],
    ]
    file_names = [item.name for item in store.list("state") if manifest.stamp in item.name]
    referenced = {file for operator in manifest.operators.values() for file in operator.files}
    assert {name.partition("/")[2] for name in file_names} <= referenced, "an operator ran twice"

    expected = _expected(together)
    emitted = {name: bag(_standing(rows)) for name, rows in second.items() if name in expected}
    assert emitted == expected

    if not large:
        monkeypatch.setattr(_Builder, "_leaf_inputs", _inputs_of_one_stream)
        alone, alone_again = _run_twice(apart, spark)
        assert first["status"] == alone["status"]
        assert second["status"] == alone_again["status"]
