"""Changed queries: what still fits goes on, what does not is discarded or refused, and said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.helpers import open_with, play, rows_of
from tidegate.errors import RunError

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
SOURCE = (
    "CREATE SOURCE s (k STRING, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
)
INNER = (
    "SELECT k, window_start, window_end, {0}(v) AS r FROM s "
    "GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND)"
)


def stream(function: str) -> str:
    """Two operators, of which only the first one changes."""
    return SOURCE + (
        f"CREATE STREAM t WITH (on_change = 'continue') AS SELECT window_start, count(*) AS n, "
        f"max(r) AS top FROM "
        f"({INNER.format(function)}) GROUP BY TUMBLE(window_end, INTERVAL '1' MINUTE);"
    )


def row(k: str, v: int, seconds: float) -> dict[str, Any]:
    return {"k": k, "v": v, "ts": START + timedelta(seconds=seconds)}


def test_a_changed_aggregate_starts_afresh_and_the_rest_goes_on(spark: Any, data: Path) -> None:
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
            assert "window_aggregate, window_aggregate then" in caught.value.message


def test_a_changed_condition_below_an_operator_is_refused(spark: Any, data: Path) -> None:
    """Old state of one query and new rows of another would make numbers of neither."""
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
        assert all(way in hint for way in ("query of before", "another name", "on_change"))
    with open_with(data, spark, script.format(0), key_groups=2) as session:
        out = session.subscribe("w")
        session.insert("s", [row("a", 5, 3), row("a", 60, 4)])
        session.start(until_end=True)
        session.wait()
        assert [(r["n"], r["p"]) for r in rows_of(out.take_all())] == [(4, 120)]


def test_an_epoch_that_all_sinks_have_is_repeated_for_its_state(spark: Any, data: Path) -> None:
    """A crash between the commit of the sinks and that of Spark."""
    script = SOURCE + (
        "CREATE STREAM w AS SELECT k, window_end, sum(v) AS total FROM s "
        "GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND);"
    )
    with open_with(data, spark, script, key_groups=2) as session:
        session.subscribe("w")
        session.start()
        play(session, {"s": [row("a", 1, 1)]}, {"s": [row("b", 2, 12), row("a", 4, 13)]})
    commits = data / "w" / "spark" / "0" / "commits"
    for name in ("1", ".1.crc"):
        (commits / name).unlink()
    with open_with(data, spark, script, key_groups=2) as session:
        out = session.subscribe("w")
        session.start()
        play(session, {"s": [row("a", 8, 30)]})
        found = sorted((r["k"], r["total"]) for r in rows_of(out.take_all()))
        assert found == [("a", 1), ("a", 4), ("b", 2)]
