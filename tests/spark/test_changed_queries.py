"""Changed queries: matching state is kept, other state is discarded or the change is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.event_time import row
from tests.support.sessions import open_with, play, rows_of
from tidegate.errors import RunError

pytestmark = pytest.mark.spark

SOURCE = (
    "CREATE SOURCE s (k STRING, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
)
INNER = (
    "SELECT k, window_start, window_end, {0}(v) AS r FROM s "
    "GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND)"
)


def stream(function: str) -> str:
    """Declare two operators; only the first one depends on the argument."""
    return SOURCE + (
        f"CREATE STREAM t WITH (on_change = 'continue') AS SELECT window_start, count(*) AS n, "
        f"max(r) AS top FROM "
        f"({INNER.format(function)}) GROUP BY TUMBLE(window_end, INTERVAL '1' MINUTE);"
    )


def test_changed_aggregate_discards_its_state_and_others_continue(spark: Any, data: Path) -> None:
    with open_with(data, spark, stream("sum"), key_groups=4) as session:
        session.subscribe("t")
        session.start()
        # The first window closes and is kept by the second operator; a row of the next stays open.
        play(session, {"s": [row("a", 1, 1), row("a", 2, 2)]}, {"s": [row("b", 100, 11)]})
        assert [item.discarded for item in session.status()[0].operators] == [0, 0]
    with open_with(data, spark, stream("max"), key_groups=4) as session:
        out = session.subscribe("t")
        session.start()
        assert [warning.code for warning in session.warnings] == ["TG-606"] * 2
        assert "window_aggregate of the stream t" in session.warnings[0].message
        play(session, {"s": [row("c", 5, 12), row("c", 7, 13), row("c", 9, 3)]})
        (status,) = session.status()
        assert [item.discarded for item in status.operators] == [1, 1]
        assert [item.late_rows for item in status.operators] == [0, 1]
        session.stop()
        session.start(until_end=True)
        session.wait()
        # a and b were discarded; c of after the change is counted.
        assert [row["n"] for row in rows_of(out.take_all())] == [1]
    session_window = INNER.format("max").replace("TUMBLE", "SESSION")
    for changed in (f"CREATE STREAM t AS {session_window};", "CREATE STREAM t AS SELECT k FROM s;"):
        with open_with(data, spark, SOURCE + changed) as session:
            session.subscribe("t")
            with pytest.raises(RunError) as caught:
                session.start(until_end=True)
            assert caught.value.code == "TG-603"
            assert "from window_aggregate, window_aggregate to" in caught.value.message


def test_changed_condition_below_an_operator_is_rejected(spark: Any, data: Path) -> None:
    """State of the old query and rows of the new one would make wrong results."""
    script = SOURCE + (
        "CREATE STREAM w AS SELECT window_start, count(*) AS n, sum(v) AS p FROM s WHERE v > {0} "
        "GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE);"
    )
    with open_with(data, spark, script.format(0), key_groups=2) as session:
        session.subscribe("w")
        session.start()
        play(session, {"s": [row("a", 5, 1), row("a", 50, 2)]})
    with open_with(data, spark, script.format(10), key_groups=2) as session:
        session.subscribe("w")
        with pytest.raises(RunError) as caught:
            session.start(until_end=True)
        assert caught.value.code == "TG-603"
        hint = caught.value.hint or ""
        assert all(way in hint for way in ("previous query", "rename the stream", "on_change"))
    with open_with(data, spark, script.format(0), key_groups=2) as session:
        out = session.subscribe("w")
        session.insert("s", [row("a", 5, 3), row("a", 60, 4)])
        session.start(until_end=True)
        session.wait()
        assert [(r["n"], r["p"]) for r in rows_of(out.take_all())] == [(4, 120)]


@pytest.mark.parametrize("on_change", ["restart", "continue"])
def test_changed_query_follows_on_change(spark: Any, data: Path, on_change: str) -> None:
    script = SOURCE + (
        "CREATE STREAM w WITH (on_change = '{1}') AS SELECT window_start, sum(v) AS p FROM s "
        "WHERE v > {0} GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE);"
    )
    with open_with(data, spark, script.format(0, on_change), key_groups=2) as session:
        session.subscribe("w")
        session.start()
        play(session, {"s": [row("a", 5, 1), row("a", 50, 2)]})
    with open_with(data, spark, script.format(10, on_change), key_groups=2) as session:
        out = session.subscribe("w")
        session.insert("s", [row("a", 6, 3), row("a", 60, 4)])
        session.start(until_end=True)
        codes = [warning.code for warning in session.warnings]
        session.wait()
        totals = [r["p"] for r in rows_of(out.take_all())]
    # From the beginning with the new query, or only from new rows with a warning.
    assert (totals, codes) == (([110], []) if on_change == "restart" else ([60], ["TG-606"]))


def test_source_without_rows_does_not_prevent_a_restart(spark: Any, data: Path) -> None:
    script = (
        SOURCE
        + SOURCE.replace("SOURCE s ", "SOURCE other ")
        + (
            "CREATE STREAM j AS SELECT s.k, s.v, o.v AS w FROM s JOIN other AS o ON s.k = o.k "
            "AND o.ts BETWEEN s.ts AND s.ts + INTERVAL '5' SECOND;"
        )
    )
    with open_with(data, spark, script, key_groups=2) as session:
        session.subscribe("j")
        session.start()
        play(session, {"s": [row("a", 1, 1)]})
    with open_with(data, spark, script, key_groups=2) as session:
        out = session.subscribe("j")
        session.insert("other", [row("a", 2, 3)])
        session.start(until_end=True)
        session.wait()
        assert rows_of(out.take_all()) == [{"k": "a", "v": 1, "w": 2}]


def test_later_stream_reads_files_from_the_beginning_without_duplicates(
    spark: Any, data: Path, tmp_path: Path
) -> None:
    """Both streams read the same source; one of them is behind."""
    folder = tmp_path / "in"
    folder.mkdir()
    source = (
        f"CREATE SOURCE f (a BIGINT) WITH (connector = 'files', path = '{folder}', "
        "format = 'json', files_per_epoch = 1);"
    )
    create_first, create_second = (
        f"CREATE STREAM {name} AS SELECT a FROM f;" for name in ("one", "two")
    )
    for number in range(4):
        (folder / f"{number}.json").write_text(f'{{"a": {number}}}\n')
    with open_with(data, spark, source + create_first) as session:
        first = session.subscribe("one")
        session.start()
        session.wait()
        session.execute(create_second)
        second = session.subscribe("two")
        for number in range(4, 8):
            (folder / f"{number}.json").write_text(f'{{"a": {number}}}\n')
        session.wait()
        for out in (first, second):
            assert sorted(r["a"] for r in rows_of(out.take_all())) == list(range(8))
