"""Sources of windows: future rows, empty files, upserts, and local and computed times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.support.event_time import START, at
from tests.support.sessions import (
    bag,
    eventually,
    open_with,
    play,
    play_with_restart,
    rows_of,
    standing,
)

pytestmark = pytest.mark.spark

TEN = "INTERVAL '10' SECOND"


def values(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows)


def test_rows_from_the_future_do_not_move_the_watermark(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = "
        "'memory', inserts_per_epoch = 1, max_future = '1 hour', dead_letters = 'far');"
        "CREATE STREAM w AS SELECT window_start, sum(v) AS total FROM s "
        f"GROUP BY TUMBLE(ts, {TEN}) EMIT ON WINDOW CLOSE;"
    )
    future = datetime.now(UTC) + timedelta(days=400)
    with open_with(data, spark, script, key_groups=2) as session:
        out, far = session.subscribe("w"), session.subscribe("far")
        session.start()
        play(session, {"s": [(1, START), (2, future)]}, {"s": [(4, future), (8, at(5))]})

        def counted() -> tuple[Any, ...]:
            status = next(item for item in session.status() if item.name == "w")
            return status.watermark, status.dead_letters, status.late_rows

        # The last counters arrive shortly after the rows.
        eventually(lambda: counted() == (at(5), 2, 0))
        assert rows_of(out.take_all()) == []
        play(session, {"s": [(16, at(10))]})
        assert rows_of(out.take_all()) == [{"window_start": START, "total": 9}]
        reasons = [row["reason"] for row in rows_of(far.take_all())]
        assert reasons == ["ts is too far in the future"] * 2
    with open_with(data, spark, script, key_groups=2) as session:
        out = session.subscribe("w", 3)
        session.insert("s", [(32, future)])
        session.start(until_end=True)
        session.wait()
        assert rows_of(out.take_all()) == [{"window_start": at(10), "total": 16}]


def test_empty_files_are_epochs_without_rows(spark: Any, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    script = (
        "CREATE SOURCE s (k STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = "
        f"'files', path = '{folder}', format = 'json', files_per_epoch = 1);"
        f"CREATE STREAM w AS SELECT window_start, count(*) AS n FROM s GROUP BY TUMBLE(ts, {TEN});"
        "CREATE STREAM total AS SELECT count(*) AS n FROM s EMIT CHANGES;"
    )
    lines = ["", '{"k": "a", "ts": "2026-01-01T00:00:01Z"}\n', "", "\n"]
    lines += ['{"k": "b", "ts": "2026-01-01T00:00:12Z"}\n', ""]
    counts: list[list[int]] = []
    with open_with(data, spark, script, key_groups=2) as session:
        windows, total = session.subscribe("w"), session.subscribe("total")
        session.start()
        for number, text in enumerate(lines):
            (folder / f"{number}.json").write_text(text)
            session.wait()
            counts.append([row["n"] for row in rows_of(windows.take_all())])
        assert counts == [[], [], [], [], [1], []]
        assert standing(rows_of(total.take_all())) == [{"n": 2}]
    with open_with(data, spark, script, key_groups=2) as session:
        (folder / "9.json").write_text("")
        windows = session.subscribe("w", 5)
        session.start(until_end=True)
        session.wait()
        assert rows_of(windows.take_all()) == [{"window_start": at(10), "n": 1}]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_windows_follow_upserts_from_files(
    spark: Any, data: Path, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    script = (
        "CREATE SOURCE p (id INT, city STRING, ts TIMESTAMP, PRIMARY KEY (id), "
        "WATERMARK FOR ts AS ts - INTERVAL '1' HOUR) "
        f"WITH (connector = 'files', path = '{folder}', format = '{kind}', files_per_epoch = 2);"
        "CREATE STREAM now AS SELECT id, city FROM p EMIT CHANGES;"
        "CREATE STREAM cities AS SELECT city, count(*) AS n FROM p GROUP BY city EMIT CHANGES;"
        f"CREATE STREAM w AS SELECT window_start, count(*) AS n FROM p GROUP BY TUMBLE(ts, {TEN});"
    )
    streams = ("now", "cities", "w")
    last: dict[int, dict[str, Any]] = {}

    def write(file: int) -> None:
        """Write every key several times per file; later rows move some of them to other windows."""
        rows = [
            {"id": n % 7, "city": f"c{(n * (file + 1)) % 4}", "ts": at((n * 3 + file) % 40)}
            for n in range(25)
        ]
        last.update({row["id"]: row for row in rows})
        if kind == "parquet":
            table = pa.Table.from_pylist(
                rows,
                pa.schema(
                    [("id", pa.int32()), ("city", pa.string()), ("ts", pa.timestamp("us", "UTC"))]
                ),
            )
            pa.parquet.write_table(table, folder / f"{file}.parquet", row_group_size=4)
        else:
            text = [f"{r['id']},{r['city']},{r['ts'].isoformat()}\n" for r in rows]
            (folder / f"{file}.csv").write_text("id,city,ts\n" + "".join(text))

    for file in range(3):
        write(file)
    with open_with(data, spark, script, key_groups=3) as session:
        for stream in streams:
            session.subscribe(stream)
        session.start()
        session.wait()
        write(3)
        session.wait()
    write(4)
    with open_with(data, spark, script, key_groups=3) as session:
        readers = {stream: session.subscribe(stream) for stream in streams}
        session.start(until_end=True)
        session.wait()
        rows = {stream: rows_of(item.take_all()) for stream, item in readers.items()}
    assert bag(standing(rows["now"])) == bag(
        {"id": row["id"], "city": row["city"]} for row in last.values()
    )
    cities = [row["city"] for row in last.values()]
    assert bag(standing(rows["cities"])) == bag(
        {"city": city, "n": cities.count(city)} for city in set(cities)
    )
    starts = [at((row["ts"] - START).total_seconds() // 10 * 10) for row in last.values()]
    assert values(rows["w"]) == sorted((start, starts.count(start)) for start in set(starts))


def test_windows_over_local_and_computed_times(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (v BIGINT, ts TIMESTAMP_NTZ, WATERMARK FOR ts AS ts) "
        "WITH (connector = 'memory', inserts_per_epoch = 1);"
        "CREATE SOURCE c (v BIGINT, ms BIGINT, ts AS timestamp_millis(ms), "
        "WATERMARK FOR ts AS ts - INTERVAL '2' SECOND) "
        "WITH (connector = 'memory', inserts_per_epoch = 1);"
        "CREATE STREAM hops AS SELECT window_start, window_end, sum(v) AS total FROM s "
        f"GROUP BY HOP(ts, INTERVAL '4' SECOND, {TEN});"
        "CREATE STREAM computed AS SELECT window_start, window_end, sum(v) AS total FROM c "
        f"GROUP BY HOP(ts, INTERVAL '4' SECOND, {TEN});"
    )
    rows = [(1, -3), (2, 0), (4, 3), (8, 4), (16, 21), (32, 22), (64, 35), (128, 41)]
    steps = [
        {
            "s": [{"v": v, "ts": at(s).replace(tzinfo=None)} for v, s in rows[first : first + 2]],
            "c": [
                {"v": v, "ms": int(at(s).timestamp() * 1000)} for v, s in rows[first : first + 2]
            ],
        }
        for first in range(0, len(rows), 2)
    ]
    batches = play_with_restart(data, spark, script, ("hops", "computed"), steps, key_groups=2)
    expected = []
    for start in range(-16, 48, 4):
        inside = [v for v, s in rows if start <= s < start + 10]
        if inside:
            expected.append((at(start), at(start + 10), sum(inside)))
    for stream in ("hops", "computed"):
        assert values(rows_of(batches[stream])) == expected
