"""Processing time: effects of passing time, with or without rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.event_time import at
from tests.support.sessions import eventually, open_with, rows_of

pytestmark = pytest.mark.spark


def test_silent_source_holds_the_watermark_until_it_is_idle(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE p (ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory');"
        "CREATE SOURCE q (ts TIMESTAMP, WATERMARK FOR ts AS ts) "
        "WITH (connector = 'memory', idle_timeout = '2 seconds');"
        "CREATE STREAM u AS SELECT window_start, count(*) AS n FROM "
        "(SELECT ts FROM p UNION ALL SELECT ts FROM q) GROUP BY TUMBLE(ts, INTERVAL '10' SECOND);"
    )

    def watermark() -> Any:
        return session.status()[0].watermark

    with open_with(data, spark, script, key_groups=2) as session:
        out = session.subscribe("u")
        session.insert("p", [(at(1),), (at(25),)])
        session.insert("q", [(at(2),)])
        session.start()
        eventually(lambda: watermark() == at(2))
        # There are no more rows: only time passes.
        eventually(lambda: watermark() == at(25))
        eventually(lambda: any(batch.table.num_rows for batch in out.take_all()))
    with open_with(data, spark, script, key_groups=2) as session:
        out = session.subscribe("u")
        session.insert("q", [(at(26),)])
        session.start()
        eventually(lambda: watermark() in (at(25), at(26)))
        session.insert("p", [(at(60),)])
        eventually(lambda: watermark() == at(60))
        rows: list[Any] = []

        def emitted() -> list[Any]:
            rows.extend((row["window_start"], row["n"]) for row in rows_of(out.take_all()))
            return rows

        # The status shows the watermark before the epoch is written.
        eventually(lambda: len(emitted()) == 2)
        assert rows == [(at(0), 2), (at(20), 2)]
        assert session.status()[0].late_rows == 0


def test_periodic_updates_state_ttl_and_processing_time_windows(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (k STRING) WITH (connector = 'memory', inserts_per_epoch = 1);"
        "CREATE STREAM now_and_then AS SELECT k, count(*) AS n FROM s GROUP BY k "
        "EMIT EVERY INTERVAL '3' SECOND;"
        "CREATE STREAM forgets WITH (state_ttl = '3 seconds') AS SELECT k, count(*) AS n FROM s "
        "GROUP BY k EMIT ON UPDATE;"
        "CREATE STREAM clock AS SELECT k, window_start, window_end, count(*) AS n FROM s "
        "GROUP BY k, TUMBLE(PROCTIME(), INTERVAL '2' SECOND);"
    )
    began = datetime.now(UTC)
    with open_with(data, spark, script, key_groups=2) as session:
        out = {name: session.subscribe(name) for name in ("now_and_then", "forgets", "clock")}
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in out}

        def total(name: str, column: str = "n") -> int:
            rows[name] += rows_of(out[name].take_all())
            return sum(row[column] for row in rows[name])

        session.insert("s", [("a",), ("a",)])
        session.start()
        eventually(lambda: total("now_and_then") == 2 and total("forgets") == 2)
        eventually(lambda: total("clock") == 2)
        # There are no more rows: expired groups are emitted with the next rows.
        quiet = datetime.now(UTC)
        eventually(lambda: datetime.now(UTC) > quiet + timedelta(seconds=4))
        for _ in range(4):
            session.insert("s", [("a",)])
        eventually(lambda: total("clock") == 6)
        eventually(lambda: total("now_and_then") > 2 and rows["now_and_then"][-1]["n"] == 6)
        # If the first two had not expired, it would be six.
        total("forgets")
        assert max(row["n"] for row in rows["forgets"]) <= 4
        assert len(rows["now_and_then"]) <= 1 + (datetime.now(UTC) - began).total_seconds() / 3
        for row in rows["clock"]:
            assert row["window_end"] - row["window_start"] == timedelta(seconds=2)
            assert began - timedelta(seconds=2) <= row["window_start"] <= datetime.now(UTC)
