"""Late rows on Spark: windows fire again, what is too late is kept, and nothing is silent."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.helpers import open_with, play, rows_of

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
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


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def row(k: str, v: int, seconds: float) -> dict[str, Any]:
    return {"k": k, "v": v, "ts": at(seconds)}


def told(subscription: Any) -> dict[int, list[tuple[Any, ...]]]:
    """The rows of each epoch that had some."""
    return {
        batch.epoch: sorted(tuple(row.values()) for row in batch.table.to_pylist())
        for batch in subscription.take_all()
    }


def test_windows_fire_again_within_lateness_and_late_rows_are_kept_beyond(
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
        assert told(windows) == {1: [("a", end, 6, 5, "+I"), ("b", end, 7, 7, "+I")]}
        assert told(visits) == {1: [("a", at(1), 2), ("b", at(3), 1)]}
        # The sum of b stays as it is, so there is nothing to say about b.
        play(session, {"s": [row("a", 2, 4), row("b", 0, 3)]})
        assert told(windows) == {2: [("a", end, 6, 5, "-U"), ("a", end, 8, 5, "+U")]}
        play(session, {"s": [row("z", 1, 25)]})
        assert told(windows) == {3: [("z", at(20), 1, 1, "+I")]}
        assert told(late) == {}
        status = {item.name: item for item in session.status()}
        assert (status["w"].late_rows, status["visits"].late_rows) == (0, 2)
        assert len(rows_of(missed.take_all())) == 2
    with open_with(data, spark, script, key_groups=4) as session:
        windows, late, missed = (session.subscribe(n, 4) for n in ("w", "too_late", "missed"))
        session.start()
        play(session, {"s": [row("a", 9, 5.5), row("c", 1, 26)]})
        assert told(windows) == {}
        (kept,) = rows_of(late.take_all())
        assert kept == {
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
        written = [p.read_text() for p in (tmp_path / "kept").glob("*.json")]
        (line,) = "".join(written).splitlines()
        assert json.loads(line)["late_window_end"].startswith("2026-01-01T00:00:10")
    with open_with(data, spark, script, key_groups=4) as session:
        session.subscribe("visits")
        windows, late = session.subscribe("w", 5), session.subscribe("too_late", 5)
        session.insert("s", [row("d", 1, 27)])
        session.start(until_end=True)
        session.wait()
        assert told(windows) == {6: [(k, at(30), 1, 1, "+I") for k in "cdz"]}
        assert told(late) == {}
        status = {item.name: item for item in session.status()}
        assert (status["w"].late_rows, status["visits"].late_rows) == (1, 3)
        assert status["w"].operators[0].late_rows == 1
