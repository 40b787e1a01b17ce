"""Unusual but valid values, and exceeded limits."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.support.sessions import (
    bag,
    eventually,
    open_with,
    play_with_restart,
    rows_of,
    run_to_end,
)
from tidegate.errors import RunError
from tidegate.observe.status import State

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
# Keys from every Unicode plane, and some that look alike or contain NUL.
TEXTS = [chr(plane << 16 | 0x21) for plane in range(17)]
TEXTS += ["", "\0", "a\0", "a", "\u00e9", "e\u0301", "\U0001f600" * 9]


def test_windows_accept_all_times_texts_and_numbers(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (k STRING, d DOUBLE, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '1' "
        "SECOND) WITH (connector = 'memory', dead_letters = 'bad', max_future = '3000000 days');"
        "CREATE SOURCE silent (k STRING, d DOUBLE, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
        "WITH (connector = 'memory');"
        "CREATE STREAM t AS SELECT k, d, window_start, count(*) AS n, max(d) AS top FROM "
        "(SELECT * FROM s UNION ALL SELECT * FROM silent) "
        "GROUP BY k, d, TUMBLE(ts, INTERVAL '1' DAY);"
    )
    days = [datetime(1, 1, 1), datetime(1582, 10, 10), datetime(1969, 12, 31, 23, 59, 59, 999_999)]
    early = [{"k": k, "d": 0.5, "ts": START} for k in TEXTS]
    early += [{"k": "t", "d": 1.0, "ts": day} for day in days]
    numbers = [math.nan, -math.nan, 0.0, -0.0, math.inf, None, 5e-324]
    late = [{"k": None, "d": number, "ts": START} for number in numbers]
    late += [
        {"k": "n", "d": 1.0, "ts": None},
        {"k": "t", "d": 1.0, "ts": datetime(9999, 12, 31, 23)},
    ]
    steps = [{"s": early}, {"s": late}]
    batches = play_with_restart(data, spark, script, ["t", "bad"], steps, key_groups=4)
    (letter,) = rows_of(batches["bad"])
    assert letter["reason"] == "the event time ts is NULL"
    rows = rows_of(batches["t"])
    assert sorted(row["k"] for row in rows if row["d"] == 0.5) == sorted(TEXTS)
    starts = [row["window_start"].replace(tzinfo=None) for row in rows if row["k"] == "t"]
    midnights = [day.replace(hour=0, minute=0, second=0, microsecond=0) for day in days]
    assert sorted(starts) == [*midnights, datetime(9999, 12, 31)]
    counts = {repr(row["d"]): row["n"] for row in rows if row["k"] is None}
    assert counts == {"nan": 2, "0.0": 2, "inf": 1, "None": 1, "5e-324": 1}


def test_exceeded_limit_is_one_error_and_a_restart_continues(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (k BIGINT, v DECIMAL(38, 0), ts TIMESTAMP, WATERMARK FOR ts AS ts) "
        "WITH (connector = 'memory');"
        "CREATE STREAM sums AS SELECT sum(v) AS total FROM s WHERE k < 2 "
        "GROUP BY TUMBLE(ts, INTERVAL '1' HOUR);"
        "CREATE STREAM many WITH (pipeline = 'other') AS SELECT k, count(*) AS n FROM s GROUP BY k EMIT ON UPDATE;"
    )
    most = Decimal("9" * 38)
    with open_with(data, spark, "SET max_groups = 10;" + script, key_groups=4) as session:
        out = session.subscribe("many")
        session.subscribe("sums")
        session.insert("s", [(n, most, START) for n in range(1000)])
        session.start(until_end=True)
        codes = set()
        for _ in range(2):
            with pytest.raises(RunError) as caught:
                session.wait()
            codes.add((caught.value.code, (caught.value.hint or "").split(" ")[0]))
        assert codes <= {("TG-507", "cast"), ("TG-508", "group")}
        # These are two pipelines, which fail one after the other.
        eventually(lambda: {item.state for item in session.status()} == {State.FAILED})
        errors = {item.name: item.error or "" for item in session.status()}
        assert "sum(v) overflows" in errors["sums"].lower()
        assert "the limit is 10" in errors["many"]
        assert "Traceback" not in "".join(errors.values())
        assert rows_of(out.take_all()) == []
    rows = rows_of(run_to_end(data, spark, "SET max_groups = 1000;" + script, "many"))
    assert sorted(row["k"] for row in rows) == list(range(1000))


def test_query_with_a_thousand_columns(spark: Any, data: Path) -> None:
    names = [f"c{n}" for n in range(1000)]
    script = (
        f"CREATE SOURCE s ({', '.join(f'{name} INT' for name in names)}, ts TIMESTAMP, "
        "WATERMARK FOR ts AS ts) WITH (connector = 'memory');"
        f"CREATE STREAM t AS SELECT c0, {', '.join(f'max({n}) AS {n}_' for n in names[1:])} FROM s "
        "GROUP BY c0, TUMBLE(ts, INTERVAL '1' HOUR);"
    )
    rows = [{**dict.fromkeys(names, n), "c0": n % 2, "ts": START} for n in range(6)]
    steps = [{"s": rows[:3]}, {"s": rows[3:]}]
    emitted = rows_of(play_with_restart(data, spark, script, ["t"], steps, key_groups=2)["t"])
    expected = [{"c0": odd, **{f"{name}_": 4 + odd for name in names[1:]}} for odd in range(2)]
    assert bag(emitted) == bag(expected)
