"""Late rows on Spark: windows fire again within the lateness; later rows are kept and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.event_time import at, row
from tests.support.sessions import open_with, play, rows_of
from tidegate.connectors.base import EpochId
from tidegate.connectors.memory.connector import MemorySink
from tidegate.errors import RunError

pytestmark = pytest.mark.spark

SCRIPT = (
    "CREATE SOURCE s (k STRING, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
    "CREATE STREAM w AS SELECT k, window_end, sum(v) AS total, max(v) AS top FROM s "
    "GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND) "
    "EMIT ON WINDOW CLOSE ALLOW LATENESS INTERVAL '10' SECOND LATE DATA TO too_late;"
    "CREATE STREAM visits AS SELECT k, window_start, count(*) AS n FROM s "
    "GROUP BY k, SESSION(ts, INTERVAL '3' SECOND) EMIT ON WINDOW CLOSE LATE DATA TO missed;"
    "CREATE SINK kept FROM too_late WITH (connector = 'files', path = '{0}', format = 'json');"
)


def rows_by_epoch(subscription: Any) -> dict[int, list[tuple[Any, ...]]]:
    """Return the rows of each epoch that has rows."""
    return {
        batch.epoch: sorted(tuple(row.values()) for row in batch.table.to_pylist())
        for batch in subscription.take_all()
    }


def test_windows_fire_again_within_lateness_and_keep_later_rows(
    spark: Any, data: Path, tmp_path: Path
) -> None:
    script = SCRIPT.format(tmp_path / "kept")
    with open_with(data, spark, script, key_groups=4) as session:
        windows, late, missed = (session.subscribe(n) for n in ("w", "too_late", "missed"))
        visits = session.subscribe("visits")
        session.start()
        play(session, {"s": [row("a", 1, 1), row("a", 5, 2), row("b", 7, 3)]})
        play(session, {"s": [row("z", 1, 12)]})
        end = at(10)
        assert rows_by_epoch(windows) == {1: [("a", end, 6, 5, "+I"), ("b", end, 7, 7, "+I")]}
        assert rows_by_epoch(visits) == {1: [("a", at(1), 2), ("b", at(3), 1)]}
        # The sum of b does not change, so there is no update for b.
        play(session, {"s": [row("a", 2, 4), row("b", 0, 3)]})
        assert rows_by_epoch(windows) == {2: [("a", end, 6, 5, "-U"), ("a", end, 8, 5, "+U")]}
        play(session, {"s": [row("z", 1, 25)]})
        assert rows_by_epoch(windows) == {3: [("z", at(20), 1, 1, "+I")]}
        assert rows_by_epoch(late) == {}
        status = {item.name: item for item in session.status()}
        assert (status["w"].late_rows, status["visits"].late_rows) == (0, 2)
        assert len(rows_of(missed.take_all())) == 2
    with open_with(data, spark, script, key_groups=4) as session:
        windows, late, missed = (session.subscribe(n, 4) for n in ("w", "too_late", "missed"))
        session.start()
        play(session, {"s": [row("a", 9, 5.5), row("c", 1, 26)]})
        assert rows_by_epoch(windows) == {}
        (late_row,) = rows_of(late.take_all())
        assert late_row == {
            "k": "a",
            "v": 9,
            "ts": at(5.5),
            "late_operator": "window_aggregate",
            "late_window_start": at(0),
            "late_window_end": at(10),
            "late_watermark": at(25),
        }
        (row_of_session,) = rows_of(missed.take_all())
        assert row_of_session["late_operator"] == "session_aggregate"
        assert row_of_session["late_window_end"] == at(8.5)
        texts = [p.read_text() for p in (tmp_path / "kept").glob("*.json")]
        (line,) = "".join(texts).splitlines()
        assert json.loads(line)["late_window_end"].startswith("2026-01-01T00:00:10")
        status = {item.name: item for item in session.status()}
        assert status["w"].late_rows == status["w"].operators[0].late_rows == 1
    with open_with(data, spark, script, key_groups=4) as session:
        session.subscribe("visits")
        windows, late = session.subscribe("w", 5), session.subscribe("too_late", 5)
        session.insert("s", [row("d", 1, 27)])
        session.start(until_end=True)
        session.wait()
        assert rows_by_epoch(windows) == {5: [(k, at(30), 1, 1, "+I") for k in "cdz"]}
        assert rows_by_epoch(late) == {}
        status = {item.name: item for item in session.status()}
        assert (status["w"].late_rows, status["visits"].late_rows) == (0, 0), (
            "late rows are counted since the start"
        )
        assert status["w"].operators[0].late_rows == 0


OTHERS = (
    "CREATE SOURCE s (k STRING, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
    "CREATE SOURCE latest (k STRING, v BIGINT, ts TIMESTAMP, PRIMARY KEY (k), "
    "WATERMARK FOR ts AS ts) WITH (connector = 'memory', inserts_per_epoch = 1);"
    "CREATE STREAM inner_w AS SELECT k, window_end, window_time AS at, sum(v) AS total FROM s "
    "GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND) "
    "EMIT ON WINDOW CLOSE ALLOW LATENESS INTERVAL '1' HOUR;"
    "CREATE STREAM over_stream AS SELECT window_end, sum(total) AS total FROM inner_w "
    "GROUP BY TUMBLE(at, INTERVAL '20' SECOND) EMIT ON WINDOW CLOSE LATE DATA TO late_of_stream;"
    "CREATE STREAM over_ends AS SELECT window_end, sum(total) AS total FROM inner_w "
    "GROUP BY window_end EMIT ON WINDOW CLOSE ALLOW LATENESS INTERVAL '25' SECOND "
    "LATE DATA TO late_of_ends;"
    "CREATE STREAM over_upserts AS SELECT k, window_end, sum(v) AS total FROM latest "
    "GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND) EMIT ON WINDOW CLOSE LATE DATA TO late_of_keys;"
    "CREATE STREAM over_windows AS SELECT k, window_end, sum(v) AS total "
    "FROM TUMBLE(s, ts, INTERVAL '10' SECOND) GROUP BY k, window_end EMIT ON WINDOW CLOSE "
    "LATE DATA TO late_of_windows;"
    "CREATE STREAM over_ranks AS SELECT k, v, window_end FROM TUMBLE(s, ts, INTERVAL '10' SECOND) "
    "QUALIFY row_number() OVER (PARTITION BY window_end ORDER BY v DESC) = 1 "
    "EMIT ON WINDOW CLOSE LATE DATA TO late_of_ranks;"
)
LATE_OF = {
    "over_stream": "late_of_stream",
    "over_ends": "late_of_ends",
    "over_upserts": "late_of_keys",
    "over_windows": "late_of_windows",
    "over_ranks": "late_of_ranks",
}


def test_late_rows_belong_to_the_operator_of_the_query(spark: Any, data: Path) -> None:
    steps = [[row("a", 1, 1)], [row("b", 2, 30)], [row("a", 5, 2)], [row("c", 7, 60)]]
    steps += [[row("a", 9, 3), row("d", 1, 61)], [row("e", 1, 7200)]]
    with open_with(data, spark, OTHERS, key_groups=2) as session:
        results = {name: session.subscribe(name) for name in LATE_OF}
        late = {name: session.subscribe(side) for name, side in LATE_OF.items()}
        session.start()
        play(session, *({"s": rows, "latest": rows} for rows in steps))
        late_rows = {name: rows_of(item.take_all()) for name, item in late.items()}
        # The inner windows allow corrections for an hour, so their rows are not late.
        assert late_rows["over_stream"] == late_rows["over_ends"] == []
        # Rows of a key replace each other: both the old and the new row are late.
        assert sorted(r["v"] for r in late_rows["over_upserts"]) == [1, 5, 5, 9]
        assert [r["v"] for r in late_rows["over_windows"]] == [5, 9]
        assert {r["window_end"] for r in late_rows["over_windows"]} == {at(10)}
        assert [r["v"] for r in late_rows["over_ranks"]] == [5, 9]
        reasons = ("late_window_start", "late_window_end", "late_watermark")
        assert [late_rows["over_ranks"][0][name] for name in reasons] == [at(0), at(10), at(30)]
        for status in session.status():
            assert status.late_rows == len(late_rows[status.name]), status.name
        ends = rows_of(results["over_ends"].take_all())
        assert [(r["total"], r["_op"]) for r in ends if r["window_end"] == at(10)] == [(15, "+I")]
        whole = rows_of(results["over_stream"].take_all())
        assert {r["window_end"]: r["total"] for r in whole} == {at(20): 15, at(40): 2, at(80): 8}


def test_epoch_that_fails_before_its_late_rows_are_published_is_published_once(
    spark: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = OTHERS.split("CREATE SOURCE latest")[0] + (
        "CREATE STREAM w AS SELECT k, window_end, sum(v) AS total FROM s "
        "GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND) EMIT ON WINDOW CLOSE LATE DATA TO late;"
    )
    publish = MemorySink.publish

    def dies(sink: MemorySink, epoch: EpochId, committables: Any) -> None:
        if epoch.epoch == 2 and sink.store.uri.endswith("/late"):
            raise OSError("the disk is gone")
        publish(sink, epoch, committables)

    with open_with(data, spark, script, key_groups=2) as session:
        session.subscribe("w")
        session.subscribe("late")
        session.start()
        play(session, {"s": [row("a", 1, 1)]}, {"s": [row("b", 2, 30)]})
        monkeypatch.setattr(MemorySink, "publish", dies)
        with pytest.raises(RunError, match="the disk is gone"):
            play(session, {"s": [row("a", 5, 2), row("c", 7, 60)]})
    monkeypatch.undo()
    with open_with(data, spark, script, key_groups=2) as session:
        windows, late = session.subscribe("w"), session.subscribe("late")
        session.insert("s", [row("a", 9, 3), row("d", 1, 61)])
        session.start(until_end=True)
        session.wait()
        ends = [(r["k"], r["window_end"], r["total"]) for r in rows_of(windows.take_all())]
        expected = [("a", at(10), 1), ("b", at(40), 2), ("c", at(70), 7), ("d", at(70), 1)]
        assert sorted(ends) == expected
        assert [r["v"] for r in rows_of(late.take_all())] == [5, 9]
        assert session.status()[0].late_rows == 1


SEVERAL = (
    "CREATE SOURCE bids (k STRING, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
    "CREATE SOURCE asks (k STRING, name STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
    "CREATE STREAM near AS SELECT b.k, b.v, a.name FROM bids AS b JOIN asks AS a ON a.k = b.k "
    "AND a.ts BETWEEN b.ts - INTERVAL '2' SECOND AND b.ts + INTERVAL '2' SECOND "
    "EMIT ON WINDOW CLOSE LATE DATA TO late_near;"
    "CREATE STREAM same AS SELECT b.k, b.v, a.name "
    "FROM TUMBLE(bids, ts, INTERVAL '10' SECOND) AS b "
    "LEFT JOIN TUMBLE(asks, ts, INTERVAL '10' SECOND) AS a ON a.k = b.k "
    "AND a.window_start = b.window_start AND a.window_end = b.window_end "
    "EMIT ON WINDOW CLOSE LATE DATA TO late_same;"
    "CREATE STREAM either AS SELECT k, window_end, sum(v) AS n FROM bids "
    "GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND) UNION ALL SELECT k, window_end, count(*) AS n "
    "FROM asks GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND) "
    "EMIT ON WINDOW CLOSE LATE DATA TO late_either;"
)


def ask(k: str, name: str, seconds: float) -> dict[str, Any]:
    return {"k": k, "name": name, "ts": at(seconds)}


def test_late_rows_of_joins_and_unions_have_the_columns_of_all_inputs(
    spark: Any, data: Path
) -> None:
    names = ("near", "same", "either", "late_near", "late_same", "late_either")
    first = [
        {"bids": [row("a", 1, 1)], "asks": [ask("a", "x", 2)]},
        {"bids": [row("b", 2, 30)], "asks": [ask("b", "y", 31)]},
    ]
    late = [
        {"bids": [row("a", 5, 2), row("b", 7, 32)], "asks": [ask("a", "z", 3), ask("c", "w", 33)]}
    ]
    rows: dict[str, list[dict[str, Any]]] = {}
    with open_with(data, spark, SEVERAL, key_groups=2) as session:
        for name in names:
            session.subscribe(name)
        session.start()
        play(session, *first)
    with open_with(data, spark, SEVERAL, key_groups=2) as session:
        subscriptions = {name: session.subscribe(name) for name in names}
        session.start()
        play(session, *late)
        rows = {name: rows_of(item.take_all()) for name, item in subscriptions.items()}
        counted = {item.name: item.late_rows for item in session.status()}
    assert counted == {"near": 2, "same": 2, "either": 2}
    assert [(r["k"], r["v"], r["name"]) for r in rows["near"]] == [("a", 1, "x")]
    columns = ("k", "v", "name", "ts")
    for name in ("late_near", "late_same", "late_either"):
        late_rows = sorted(tuple(r[c] for c in columns) for r in rows[name] if r["v"] is not None)
        late_rows += sorted(tuple(r[c] for c in columns) for r in rows[name] if r["v"] is None)
        assert late_rows == [("a", 5, None, at(2)), ("a", None, "z", at(3))], name
    near = {(r["late_operator"], r["late_window_end"]) for r in rows["late_near"]}
    assert near == {("interval_join (left)", None), ("interval_join (right)", None)}
    same = {(r["late_operator"], r["late_window_start"]) for r in rows["late_same"]}
    assert same == {("window_join (left)", at(0)), ("window_join (right)", at(0))}
    assert {r["window_end"] for r in rows["late_same"]} == {at(10)}
    assert {r["late_watermark"] for r in rows["late_either"]} == {at(30), at(31)}


def test_late_rows_leave_not_null_columns_empty(spark: Any, data: Path) -> None:
    """A late row has no columns of the query, even those that Spark knows to be not null.

    A row in several grouping sets is late once.
    """
    script = (
        "CREATE SOURCE s (k STRING, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
        "WITH (connector = 'memory', inserts_per_epoch = 1);"
        "CREATE STREAM sums AS SELECT 'sum' AS what, k, sum(v) OVER (ORDER BY ts) AS total FROM s "
        "EMIT CHANGES LATE DATA TO too_late;"
        "CREATE STREAM sets AS SELECT k, count(*) AS n FROM s "
        "GROUP BY TUMBLE(ts, INTERVAL '3' SECOND), CUBE(k, v);"
        "CREATE STREAM some_sets AS SELECT k, count(*) AS n FROM s "
        "GROUP BY TUMBLE(ts, INTERVAL '3' SECOND), CUBE(k, v) HAVING grouping_id() > 1;"
    )
    with open_with(data, spark, script) as session:
        session.subscribe("sets")
        session.subscribe("some_sets")
        sums, late = session.subscribe("sums"), session.subscribe("too_late")
        session.start()
        play(session, {"s": [row("a", 1, 1)]})
        play(session, {"s": [row("b", 2, 9)]})
        play(session, {"s": [row("c", 4, 2)]})
        assert rows_by_epoch(sums) == {1: [("sum", "a", 1, "+I")]}
        assert [late_row["k"] for late_row in rows_of(late.take_all())] == ["c"]
        counted = {item.name: item.late_rows for item in session.status()}
        assert counted == {"sums": 1, "sets": 1, "some_sets": 2}, (
            "a row was counted for each grouping set"
        )


@pytest.mark.parametrize("key", ["window_start", "window_end"])
def test_late_rows_have_both_window_bounds_if_group_by_has_one(
    spark: Any, data: Path, key: str
) -> None:
    script = f"""
    CREATE SOURCE z (k BIGINT, at TIMESTAMP, WATERMARK FOR at AS at)
        WITH (connector = 'memory', inserts_per_epoch = 1);
    CREATE STREAM w AS SELECT k, {key}, count(*) AS n FROM TUMBLE(z, at, INTERVAL '5' SECOND)
        GROUP BY k, {key} LATE DATA TO late;
    """
    with open_with(data, spark, script) as session:
        out = session.subscribe("late")
        for second in (21, 2):
            session.insert("z", [{"k": 1, "at": f"2026-01-01T00:00:{second:02}Z"}])
        session.start(until_end=True)
        session.wait()
        (late_row,) = rows_of(out.take_all())
    assert (late_row["late_window_start"].second, late_row["late_window_end"].second) == (0, 5)
    assert late_row["late_window_start"].microsecond == 0
