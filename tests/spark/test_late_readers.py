"""Streams over late rows run in the pipeline and epochs of the stream that emits them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.event_time import at
from tests.support.sessions import open_with, play, rows_of, standing
from tidegate.errors import DataDirectoryError, RunError
from tidegate.runtime import pipeline as module
from tidegate.runtime.pipeline import EpochStep

pytestmark = pytest.mark.spark

SOURCE = (
    "CREATE SOURCE s (k STRING, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
)
PARENT = (
    "CREATE STREAM w AS SELECT k, window_end, sum(v) AS total "
    "FROM (SELECT k, v * 1.5 AS v, ts FROM s) AS p "
    "GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND) EMIT ON WINDOW CLOSE LATE DATA TO late;"
)
SUMS = (
    "CREATE STREAM sums AS SELECT k, late_window_end, sum(v) AS total, count(*) AS n FROM late "
    "GROUP BY k, late_window_end EMIT CHANGES;"
)
READERS = SUMS + (
    "CREATE STREAM plain AS SELECT k, v, late_operator FROM late WHERE v > 2;"
    "CREATE STREAM both_ways AS SELECT k, v FROM late UNION ALL SELECT k, -v AS v FROM late;"
    "CREATE STREAM by_clock AS SELECT window_end > late_end AS later, sum(v) AS v FROM "
    "(SELECT v, max(late_window_end) AS late_end, window_end FROM late "
    "GROUP BY v, TUMBLE(PROCTIME(), INTERVAL '1' SECOND)) AS c GROUP BY window_end > late_end "
    "EMIT ON UPDATE;"
)
STEPS = [
    [("a", 2, 1)],
    [("z", 0, 31)],
    [("a", 4, 2), ("b", 1, 3)],
    [("a", 6, 3), ("z", 0, 41)],
    [("b", 3, 4)],
]
LATE = [("a", 6.0), ("b", 1.5), ("a", 9.0), ("b", 4.5)]


def step_rows(step: list[tuple[str, int, float]]) -> dict[str, list[dict[str, Any]]]:
    return {"s": [{"k": k, "v": v, "ts": at(seconds)} for k, v, seconds in step]}


def test_streams_and_sinks_over_late_rows_agree_across_a_restart(spark: Any, data: Path) -> None:
    names = ("late", "sums", "plain", "both_ways", "by_clock")
    script = SOURCE + PARENT + READERS
    with open_with(data, spark, script, key_groups=2) as session:
        for name in names:
            session.subscribe(name)
        session.start()
        play(session, *map(step_rows, STEPS[:3]))
    with open_with(data, spark, script, key_groups=2) as session:
        readers = {name: session.subscribe(name) for name in names}
        for step in STEPS[3:]:
            session.insert("s", step_rows(step)["s"])
        session.start(until_end=True)
        session.wait()
        rows = {name: rows_of(item.take_all()) for name, item in readers.items()}
        status = {item.name: item for item in session.status()}
    assert sorted((r["k"], float(r["v"])) for r in rows["late"]) == sorted(LATE)
    sums = sorted((r["k"], float(r["total"]), r["n"]) for r in standing(rows["sums"]))
    assert sums == [("a", 15.0, 2), ("b", 6.0, 2)]
    assert {r["late_window_end"] for r in standing(rows["sums"])} == {at(10)}
    assert sorted((r["k"], float(r["v"])) for r in rows["plain"]) == sorted(
        row for row in LATE if row[1] > 2
    )
    assert {r["late_operator"] for r in rows["plain"]} == {"window_aggregate"}
    assert len(rows["both_ways"]) == 8 and sum(r["v"] for r in rows["both_ways"]) == 0
    assert [(r["later"], float(r["v"])) for r in rows["by_clock"]][-1] == (True, 21.0)
    # Since this start: the readers have read the late rows of the other stream.
    assert status["w"].late_rows == 2
    assert [status[name].rows_in for name in names[1:4]] == [2, 2, 2]


def test_upstream_runs_once_per_epoch_and_keeps_its_state(
    spark: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows have no other reader; every operator writes one state file per epoch."""
    files: list[list[str]] = []

    def reached(step: EpochStep) -> None:
        if step is EpochStep.RAN:
            folder = data / "_pipelines" / "main" / "state"
            newest = max(path.name[:16] for path in folder.iterdir())
            files.append([p.name for p in folder.iterdir() if p.name.startswith(newest)])

    monkeypatch.setattr(module, "on_step", reached)
    with open_with(data, spark, SOURCE + PARENT + SUMS, key_groups=2) as session:
        sums = session.subscribe("sums")
        session.start()
        play(session, *map(step_rows, STEPS[:3]))
        assert [item.name for item in session.status()] == ["w", "sums"]
        assert len(rows_of(sums.take_all())) == 2
    assert [len(names) for names in files] == [2, 2, 2]
    # Without the reader the same state continues. A returning reader only gets new rows.
    with open_with(data, spark, SOURCE + PARENT, key_groups=2) as session:
        session.subscribe("w")
        session.start()
        play(session, step_rows(STEPS[3]))
        assert session.status()[0].late_rows == 1
    with open_with(data, spark, SOURCE + PARENT + SUMS, key_groups=2) as session:
        sums = session.subscribe("sums", 4)
        session.start()
        (warning,) = session.warnings
        assert (warning.code, "1 rows of late" in warning.message) == ("TG-612", True)
        play(session, step_rows(STEPS[4]))
        assert sorted((r["k"], r["n"], r["_op"]) for r in rows_of(sums.take_all())) == [
            ("b", 1, "-U"),
            ("b", 2, "+U"),
        ]


def test_restarted_upstream_restarts_its_readers(spark: Any, data: Path) -> None:
    with open_with(data, spark, SOURCE + PARENT + SUMS, key_groups=2) as session:
        session.subscribe("sums")
        session.start()
        play(session, *map(step_rows, STEPS[:3]))
    changed = SOURCE + PARENT.replace("'10' SECOND", "'5' SECOND")
    changed = changed.replace("STREAM w AS", "STREAM w WITH (on_change = 'restart') AS")
    with open_with(data, spark, changed + SUMS, key_groups=2) as session:
        session.subscribe("sums")
        with pytest.raises(DataDirectoryError, match="w starts over and emits its late rows again"):
            session.start()
    over = changed + SUMS.replace("STREAM sums AS", "STREAM sums WITH (on_change = 'restart') AS")
    with open_with(data, spark, over, key_groups=2) as session:
        sums = session.subscribe("sums", 3)
        session.start()
        session.wait()
        changes = standing(rows_of(sums.take_all()))
    assert [
        (r["k"], r["n"], r["late_window_end"]) for r in sorted(changes, key=lambda r: r["k"])
    ] == [
        ("a", 1, at(5)),
        ("b", 1, at(5)),
    ]


def test_failure_of_a_reader_names_the_reader(spark: Any, data: Path) -> None:
    fails = "CREATE STREAM ratio AS SELECT k, 1 / (v - v) AS x FROM late;"
    with open_with(data, spark, SOURCE + PARENT + SUMS + fails, key_groups=2) as session:
        session.subscribe("sums")
        session.subscribe("ratio")
        session.start()
        play(session, *map(step_rows, STEPS[:2]))
        with pytest.raises(RunError, match="stream ratio") as caught:
            play(session, step_rows(STEPS[2]))
        # Spark evaluates the epoch again to find the row, including the late rows.
        assert 'in the row {"k":"a","v":6.0}' in caught.value.message
        assert caught.value.location is not None and "1 / (v - v)" in caught.value.render()


def test_many_late_rows_of_a_join_in_several_tasks(
    spark: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are enough rows for several tasks; the reader joins them with its own source."""
    script = (
        SOURCE + "CREATE SOURCE t (k STRING, name STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
        "WITH (connector = 'memory');"
        "CREATE STREAM near AS SELECT s.k, t.name FROM s JOIN t ON s.k = t.k "
        "AND t.ts BETWEEN s.ts - INTERVAL '5' SECOND AND s.ts EMIT ON WINDOW CLOSE "
        "LATE DATA TO late;"
        "CREATE STREAM named WITH (state_ttl = '1 day') AS "
        "SELECT l.k, l.v, t.name FROM late AS l JOIN t ON t.k = l.k;"
        "CREATE STREAM counts AS SELECT k, count(*) AS n FROM named GROUP BY k EMIT ON UPDATE;"
    )
    files: list[int] = []

    def reached(step: EpochStep) -> None:
        if step is EpochStep.RAN:
            folder = data / "_pipelines" / "main" / "state"
            newest = max(path.name[:16] for path in folder.iterdir())
            files.append(sum(path.name.startswith(newest) for path in folder.iterdir()))

    monkeypatch.setattr(module, "on_step", reached)
    count = 24_000
    late = [{"k": f"k{n % 50}", "v": n, "ts": at(n % 20)} for n in range(count)]
    with open_with(data, spark, script, key_groups=4) as session:
        counts, late_reader = session.subscribe("counts"), session.subscribe("late")
        session.start()
        names = [{"k": f"k{n}", "name": f"n{n}", "ts": at(60)} for n in range(0, 50, 2)]
        play(session, {"s": [{"k": "z", "v": 0, "ts": at(60)}], "t": names}, {"s": late})
        assert session.status()[0].late_rows == count
        assert sum(batch.table.num_rows for batch in late_reader.take_all()) == count
        counts_by_key = {row["k"]: row["n"] for row in rows_of(counts.take_all())}
    assert counts_by_key == {f"k{n}": count // 50 for n in range(0, 50, 2)}
    # The last epoch ran in two tasks: three operators, each of which ran once in both.
    assert files[-1] == 6
