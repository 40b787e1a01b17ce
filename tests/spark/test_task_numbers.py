"""An operator whose input Spark SQL computes keeps the state of key groups without new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.sessions import open_with, rows_of
from tidegate.runtime import epoch

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE SOURCE s (k STRING, v BIGINT) WITH (connector = 'memory', inserts_per_epoch = 1);
CREATE STREAM plain AS SELECT k, v FROM s WHERE v > 3;
CREATE STREAM totals AS SELECT upper(k) AS k, count(*) AS n FROM s GROUP BY upper(k) EMIT CHANGES;
"""


@pytest.mark.parametrize("tasks", ["one task", "several tasks"])
def test_key_groups_without_rows_keep_their_state(
    spark: Any, data: Path, monkeypatch: pytest.MonkeyPatch, tasks: str
) -> None:
    if tasks == "several tasks":
        monkeypatch.setattr(epoch, "_SMALL_BYTES", -1)
    with open_with(data, spark, SCRIPT, key_groups=8) as session:
        outs = {name: session.subscribe(name) for name in ("plain", "totals")}
        session.start()
        for _ in range(2):
            for k in "abcdef":
                session.insert("s", [{"k": k, "v": 5}])
                session.wait()
        rows = rows_of(outs["totals"].take_all())
    totals = {row["k"]: row["n"] for row in rows if row["_op"] in ("+I", "+U")}
    assert totals == dict.fromkeys("ABCDEF", 2)
