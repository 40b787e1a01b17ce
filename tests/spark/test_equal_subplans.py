"""Equal parts of a query run once, and all readers get their rows and watermarks."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.support.sessions import Step, comparable_row, open_with, play, play_with_restart, rows_of
from tidegate.checkpoint.manifest import OperatorState
from tidegate.checkpoint.manifests import Manifests
from tidegate.errors import RunError
from tidegate.physical.job_graph import ShuffleWrite
from tidegate.storage import open_store

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1)
SOURCE = (
    "CREATE SOURCE b (k STRING, v INT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '2' SECOND) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
)
WINDOW = "GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND)"
WINDOWS = f"SELECT k, window_end, count(*) AS n FROM b {WINDOW}"
# The same for DuckDB.
ENDS = "time_bucket(INTERVAL '10' SECOND, ts) + INTERVAL '10' SECOND"
BATCH_WINDOWS = f"SELECT k, {ENDS} AS window_end, count(*) AS n FROM b GROUP BY ALL"
# Key, number and second; each line is an epoch. No row is late.
EPOCHS = [
    [("a", 1, 1), ("b", 2, 2), ("a", 1, 1)],
    [("a", 4, 8), ("c", 2, 6), ("a", 4, 8)],
    [("b", 5, 11), ("b", 5, 11), ("a", 3, 9)],
    [("a", 6, 21), ("c", 4, 19)],
    [("b", 7, 33), ("b", 7, 33)],
    [("c", 8, 47)],
]
DISTINCT = "SELECT DISTINCT ts FROM b"
TWICE = f"SELECT ts, count(*) AS n FROM ({DISTINCT} UNION ALL {DISTINCT}) GROUP BY ts"


def sums(members: str) -> str:
    return f"SELECT window_end, sum(n) AS n, count(*) AS m FROM ({members}) GROUP BY window_end"


def rows(values: list[tuple[str, int, int]]) -> list[dict[str, Any]]:
    times = [(START + timedelta(seconds=second)).replace(tzinfo=UTC) for _, _, second in values]
    return [{"k": k, "v": v, "ts": at} for (k, v, _), at in zip(values, times, strict=True)]


def batch(query: str) -> Counter[tuple[Any, ...]]:
    """Compute the rows of a query over the whole input in DuckDB."""
    with duckdb.connect() as db:
        db.execute("CREATE TABLE b (k VARCHAR, v INT, ts TIMESTAMP)")
        for k, v, second in (row for epoch in EPOCHS for row in epoch):
            db.execute("INSERT INTO b VALUES (?, ?, ?)", [k, v, START + timedelta(seconds=second)])
        return Counter(db.execute(query).fetchall())


def run(spark: Any, data: Path, script: str, **config: Any) -> Counter[tuple[Any, ...]]:
    """Run six epochs of the stream s, with a restart in the middle; return all of its rows."""
    steps: list[Step] = [{"b": rows(epoch)} for epoch in EPOCHS]
    config.setdefault("key_groups", 2)
    batches = play_with_restart(data, spark, SOURCE + script, ["s"], steps, **config)
    return Counter(comparable_row(row) for row in rows_of(batches["s"]))


def operators(data: Path) -> list[OperatorState]:
    """Return the operators in the last manifest."""
    store = open_store(str(data / "_pipelines" / "main"))
    manifest = Manifests(store, 3).recover().manifest
    assert manifest is not None
    return list(manifest.operators.values())


@pytest.mark.parametrize("vectors", ["on", "off"])
def test_equal_union_members_are_both_counted(spark: Any, data: Path, vectors: str) -> None:
    script = f"SET vectorized = '{vectors}'; CREATE STREAM s AS {TWICE};"
    emitted = run(spark, data, script)
    assert emitted == batch(TWICE)
    assert {n for _, n in emitted} == {2}


def test_equal_union_members_emit_rows_before_the_end_of_the_input(spark: Any, data: Path) -> None:
    script = f"{SOURCE} CREATE STREAM s AS {TWICE};"
    with open_with(data, spark, script, key_groups=2) as session:
        reader = session.subscribe("s")
        session.start()
        play(session, *({"b": rows(epoch)} for epoch in EPOCHS))
        # The watermark is two seconds behind the last row, which has second 47.
        status = next(item for item in session.status() if item.name == "s")
        assert status.late_rows == 0
    emitted = sorted((row["ts"].second, row["n"]) for row in rows_of(reader.take_all()))
    assert emitted == [(second, 2) for second in (1, 2, 6, 8, 9, 11, 19, 21, 33)]


def test_three_equal_members_are_all_counted(spark: Any, data: Path) -> None:
    union = " UNION ALL ".join([DISTINCT] * 3)
    query = f"SELECT ts, count(*) AS n FROM ({union}) GROUP BY ts"
    emitted = run(spark, data, f"CREATE STREAM s AS {query};")
    assert emitted == batch(query)
    assert {n for _, n in emitted} == {3}


def test_cte_read_twice_is_counted_twice(spark: Any, data: Path) -> None:
    query = f"WITH w AS ({{}}) {sums('SELECT * FROM w UNION ALL SELECT * FROM w')}"
    emitted = run(spark, data, f"CREATE STREAM s AS {query.format(WINDOWS)};")
    assert emitted == batch(query.format(BATCH_WINDOWS))


def test_stream_read_twice_is_counted_twice(spark: Any, data: Path) -> None:
    twice = sums("SELECT * FROM w UNION ALL SELECT * FROM w")
    script = f"CREATE STREAM w AS {WINDOWS}; CREATE STREAM s AS {twice};"
    assert run(spark, data, script) == batch(f"WITH w AS ({BATCH_WINDOWS}) {twice}")


@pytest.mark.parametrize(
    "operation",
    [
        "SELECT * FROM w INTERSECT SELECT * FROM w",
        "SELECT * FROM w INTERSECT ALL SELECT * FROM w",
        "SELECT * FROM w EXCEPT SELECT * FROM w WHERE n > 1",
        "(SELECT * FROM w UNION ALL SELECT * FROM w) EXCEPT ALL SELECT * FROM w",
    ],
)
def test_set_operations_of_equal_members_equal_batch(
    spark: Any, data: Path, operation: str
) -> None:
    query = f"WITH w AS ({{}}) {operation}"
    emitted = run(spark, data, f"CREATE STREAM s AS {query.format(WINDOWS)};")
    assert emitted and emitted == batch(query.format(BATCH_WINDOWS))


def test_member_except_itself_is_empty_and_holds_no_rows(spark: Any, data: Path) -> None:
    script = f"{SOURCE} CREATE STREAM s AS {DISTINCT} EXCEPT {DISTINCT};"
    with open_with(data, spark, script, key_groups=2) as session:
        reader = session.subscribe("s")
        session.start()
        play(session, *({"b": rows(epoch)} for epoch in EPOCHS))
    assert rows_of(reader.take_all()) == []
    watermark = START.replace(tzinfo=UTC) + timedelta(seconds=45)
    marks = {operator.report["watermark_us"] for operator in operators(data)}
    assert marks == {int(watermark.timestamp()) * 1_000_000}


def test_equal_members_at_different_depth_are_both_counted(spark: Any, data: Path) -> None:
    """The first member is the operator itself, the second one has another operator above it."""
    above = "SELECT window_end, k, count(*) AS n FROM ({}) GROUP BY window_end, k"
    members = "SELECT window_end, k, n FROM w UNION ALL " + above.format("SELECT * FROM w")
    query = f"WITH w AS ({{}}) {sums(members + ' UNION ALL SELECT window_end, k, n FROM w')}"
    emitted = run(spark, data, f"CREATE STREAM s AS {query.format(WINDOWS)};")
    assert emitted == batch(query.format(BATCH_WINDOWS))


def test_equal_members_of_several_streams_are_counted_in_each(spark: Any, data: Path) -> None:
    others = f"CREATE STREAM d AS {DISTINCT}; CREATE STREAM t AS {TWICE};"
    emitted = run(spark, data, f"{others} CREATE STREAM s AS {TWICE};")
    assert emitted == batch(TWICE)


def test_equal_members_step_once(spark: Any, data: Path) -> None:
    run(spark, data, f"CREATE STREAM s AS {TWICE};")
    state_handles = Counter(str(operator.state_handles) for operator in operators(data))
    assert sorted(state_handles.values()) == [1, 2]


def last_position_only(write: ShuffleWrite) -> dict[int, tuple[int, ...]]:
    """Return one position per origin, as if an origin could not have several."""
    return {origin: (position,) for origin, position in write.local}


def test_operator_without_a_watermark_is_an_error(
    spark: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShuffleWrite, "positions", property(last_position_only))
    with open_with(data, spark, f"{SOURCE} CREATE STREAM s AS {TWICE};") as session:
        session.subscribe("s")
        session.insert("b", rows(EPOCHS[0]))
        session.start(until_end=True)
        with pytest.raises(RunError, match="would never get a watermark"):
            session.wait()
