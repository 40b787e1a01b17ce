"""Stateless pipelines: input, output and state across restarts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import tidegate
from tests.support.sessions import bag, open_with, rows_of, run_to_end
from tidegate.errors import RunError, ScriptError, TidegateError
from tidegate.observe.status import State

pytestmark = pytest.mark.spark

TRADES = (
    "CREATE SOURCE trades (id BIGINT NOT NULL, symbol STRING, price DECIMAL(10, 2), ms BIGINT, "
    "ts AS timestamp_millis(ms), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) "
    "WITH (connector = 'memory', dead_letters = 'bad_trades');"
)


def test_inserts_of_every_kind_are_read_once_across_a_restart(spark: Any, data: Path) -> None:
    script = (
        TRADES + "CREATE STREAM big AS SELECT id, symbol, price, ts FROM trades WHERE price > 1;"
    )
    with open_with(data, spark, script) as session:
        first, second = session.subscribe("big"), session.subscribe("big")
        session.start()
        assert (
            session.insert("trades", [{"id": 1, "symbol": "a", "price": "2.50", "ms": 1000}]) == 1
        )
        session.insert("trades", [(2, "b", 3.25, 2000)])
        session.insert("trades", pd.DataFrame({"id": [3], "symbol": ["c"], "ms": [3000]}))
        session.insert("trades", pa.table({"ID": [4], "price": ["4.00"], "ms": [4000]}))
        session.execute("INSERT INTO trades (id, price, ms) VALUES (5, 6.5, 5000), (6, 0.5, 6000);")
        assert session.wait()
        emitted = rows_of(first.take_all())
        assert sorted(row["id"] for row in emitted) == [1, 2, 4, 5]
        assert bag(rows_of(second.take_all())) == bag(emitted)
        assert emitted[0]["ts"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
        assert first.take_all() == []
    with open_with(data, spark, script) as session:
        session.insert("trades", [{"id": 7, "price": "9.00", "ms": 7000}])
        resumed = session.subscribe("big")
        session.start(until_end=True)
        assert session.wait()
        assert sorted(row["id"] for row in rows_of(resumed.take_all())) == [1, 2, 4, 5, 7]
        (status,) = session.status()
        assert status.state is State.FINISHED
        assert status.rows_in == 1 and status.rows_out == 1
        assert status.watermark == datetime(1970, 1, 1, 0, 0, 6, tzinfo=UTC)


def test_rows_of_other_types_are_rejected(spark: Any, data: Path) -> None:
    with open_with(data, spark, TRADES) as session:
        for rows, needle in (
            ([{"id": 1, "symbl": "a"}], "did you mean symbol"),
            ([{"symbol": "a"}], "id is NOT NULL"),
            ([{"id": "one"}], "the column id"),
            ([(1, 2)], "2 values for 4 columns"),
        ):
            with pytest.raises(RunError) as caught:
                session.insert("trades", rows)
            assert caught.value.code == "TG-309"
            assert needle in caught.value.render()
        with pytest.raises(TidegateError) as caught:
            session.execute("INSERT INTO trades VALUES (1, 'a');")
        assert "columns: id, symbol, price, ms" in caught.value.render()
        with pytest.raises(TidegateError) as caught:
            session.execute("INSERT INTO trades VALUES ('one', 'a', 1.5, 1000);")
        assert caught.value.code == "TG-309"


def test_bad_rows_are_counted_and_kept(spark: Any, data: Path) -> None:
    script = TRADES + "CREATE STREAM all_trades AS SELECT id FROM trades;"
    with open_with(data, spark, script) as session:
        good, bad = session.subscribe("all_trades"), session.subscribe("bad_trades")
        session.insert("trades", [{"id": 1, "ms": 5}, {"id": 2, "ms": None}])
        session.start(until_end=True)
        session.wait()
        assert rows_of(good.take_all()) == [{"id": 1}]
        (letter,) = rows_of(bad.take_all())
        assert letter["source"] == "trades"
        assert letter["reason"] == "the event time ts is NULL"
        assert '"id":2' in letter["record"]
        status = {item.name: item for item in session.status()}
        assert status["all_trades"].dead_letters == 1


def test_filter_neither_hides_nor_evaluates_bad_rows(spark: Any, data: Path) -> None:
    """Rows that a condition drops are counted if they are bad, and never evaluated if they fail."""
    script = (
        "CREATE SOURCE s (id BIGINT NOT NULL, `n x` BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
        "WITH (connector = 'memory', max_future = '1 hour');"
        "CREATE STREAM some AS SELECT id + 1 AS id FROM s WHERE 12 / `n x` > 2;"
        "CREATE STREAM twice AS SELECT id FROM (SELECT id FROM s WHERE 12 / `n x` > 2) WHERE id > 1;"
        "CREATE STREAM listed AS SELECT id FROM s WHERE exists(array(id), x -> x > 1);"
        "CREATE STREAM hidden AS SELECT id FROM s WHERE exists(array(id), ts -> ts > 1);"
        "CREATE STREAM none AS SELECT id FROM s WHERE id > 100;"
    )
    rows: list[dict[str, Any]] = [
        {"id": 1, "n x": 3, "ts": "2020-01-01"},
        {"id": 2, "n x": 4, "ts": "2020-01-02"},
        {"id": 3, "n x": 12, "ts": "2020-01-03"},
        {"id": 4, "n x": None, "ts": "2020-01-03"},
        {"id": 5, "n x": 0, "ts": None},
        {"id": 6, "n x": 0, "ts": "2999-01-01"},
    ]
    with open_with(data, spark, script) as session:
        readers = {
            name: session.subscribe(name) for name in ("some", "twice", "listed", "hidden", "none")
        }
        session.insert("s", rows)
        session.start(until_end=True)
        session.wait()
        emitted = {name: bag(rows_of(reader.take_all())) for name, reader in readers.items()}
        assert emitted["some"] == bag([{"id": 2}, {"id": 3}])
        assert emitted["twice"] == bag([{"id": 2}])
        assert emitted["listed"] == emitted["hidden"] == bag([{"id": 2}, {"id": 3}, {"id": 4}])
        statuses = {item.name: item for item in session.status()}
    for name, item in statuses.items():
        assert (item.rows_in, item.dead_letters) == (6, 2), name
        assert item.rows_out == sum(emitted[name].values()), name
    # Rows that a condition drops still advance the watermark.
    late = datetime(2020, 1, 3, tzinfo=UTC)
    assert {item.watermark for item in statuses.values()} == {late}
    times = pd.date_range("2021-01-01", periods=5_000, freq="s", tz="UTC")
    with open_with(data, spark, script) as session:
        session.subscribe("none")
        session.insert("s", pd.DataFrame({"id": [7] * 5_000, "n x": 1, "ts": times}))
        session.start(until_end=True)
        session.wait()
        (status,) = session.status()
    assert (status.rows_in, status.rows_out, status.dead_letters) == (5_000, 0, 0)
    # If a condition drops many rows, only some of their times are evaluated.
    assert status.watermark is not None
    assert times[-1] - pd.Timedelta(128, "s") < status.watermark <= times[-1]


def test_malformed_records_of_files_are_dead_letters(
    spark: Any, data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text('{"id": 1, "name": "x"}\n{"id": "no"}\nnonsense\n')
    (folder / "b.csv").write_text("id,name\n2,y\nzwei,z\n")
    script = "".join(
        f"CREATE SOURCE {kind} (id BIGINT, name STRING) WITH (connector = 'files', "
        f"path = '{folder}', format = '{kind}', glob = '*.{kind}', dead_letters = 'bad_{kind}');"
        for kind in ("json", "csv")
    )
    script += "CREATE STREAM both AS SELECT * FROM json UNION ALL SELECT * FROM csv;"
    with open_with(data, spark, script) as session:
        good = session.subscribe("both")
        bad = [session.subscribe("bad_json"), session.subscribe("bad_csv")]
        session.start(until_end=True)
        session.wait()
        assert bag(rows_of(good.take_all())) == bag(
            [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}]
        )
        records = [row["record"] for item in bad for row in rows_of(item.take_all())]
        assert sorted(records) == ["nonsense", "zwei,z", '{"id": "no"}']
        status = {item.name: item for item in session.status()}
        assert status["both"].dead_letters == 3


def test_future_rows_are_dead_letters(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (id INT, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory', "
        "max_future = '1 hour', dead_letters = 'far'); CREATE STREAM near AS SELECT id FROM s;"
    )
    with open_with(data, spark, script) as session:
        near, far = session.subscribe("near"), session.subscribe("far")
        session.insert("s", [{"id": 1, "ts": "2020-01-01"}, {"id": 2, "ts": "2999-01-01"}])
        session.start(until_end=True)
        session.wait()
        assert rows_of(near.take_all()) == [{"id": 1}]
        assert "future" in rows_of(far.take_all())[0]["reason"]
        watermark = next(item.watermark for item in session.status() if item.name == "near")
        assert watermark == datetime(2020, 1, 1, tzinfo=UTC)


def test_window_table_functions_before_1970(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (id INT, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory');"
        "CREATE STREAM t AS SELECT id, window_start, window_end, window_time "
        "FROM TUMBLE(s, ts, INTERVAL '1' DAY, INTERVAL '-8' HOUR);"
        "CREATE STREAM h AS SELECT id, window_start FROM HOP(s, ts, INTERVAL '40' MINUTE, "
        "INTERVAL '1' HOUR);"
        "CREATE STREAM c AS SELECT id, window_start, window_end FROM CUMULATE(s, ts, INTERVAL '5' "
        "SECOND, INTERVAL '15' SECOND);"
    )
    with open_with(data, spark, script) as session:
        t, h, c = (session.subscribe(name) for name in "thc")
        session.insert("s", [{"id": 1, "ts": "1969-12-31T23:59:53"}])
        session.start(until_end=True)
        session.wait()
        (row,) = rows_of(t.take_all())
        assert row["window_start"] == datetime(1969, 12, 31, 16, tzinfo=UTC)
        assert row["window_end"] == datetime(1970, 1, 1, 16, tzinfo=UTC)
        assert row["window_time"] == datetime(1970, 1, 1, 15, 59, 59, 999999, tzinfo=UTC)
        starts = sorted(item["window_start"] for item in rows_of(h.take_all()))
        assert starts == [datetime(1969, 12, 31, 23, 20, tzinfo=UTC)]
        ends = sorted(item["window_end"].isoformat()[14:19] for item in rows_of(c.take_all()))
        assert ends == ["00:00", "59:55"]


def test_streams_read_streams_views_and_changelogs(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (id INT, tags ARRAY<STRING>, who STRUCT<name: STRING>) "
        "WITH (connector = 'memory', changelog = true);"
        "CREATE STREAM doubled AS SELECT *, id * 2 AS twice FROM s WHERE id > 0;"
        "CREATE STREAM tagged AS SELECT d.twice, who.name, tag FROM doubled AS d "
        "LATERAL VIEW explode(tags) x AS tag;"
    )
    with open_with(data, spark, script) as session:
        tagged = session.subscribe("tagged")
        session.insert(
            "s",
            [
                {"id": 1, "tags": ["a", "b"], "who": {"name": "n"}, "_op": "+I"},
                {"id": 1, "tags": ["a"], "who": {"name": "n"}, "_op": "-D"},
                {"id": 0, "tags": ["z"], "who": {"name": "n"}, "_op": "+I"},
            ],
        )
        session.start(until_end=True)
        session.wait()
        rows = rows_of(tagged.take_all())
        assert sorted((row["tag"], row["_op"]) for row in rows) == [
            ("a", "+I"),
            ("a", "-D"),
            ("b", "+I"),
        ]
        assert {(row["twice"], row["name"]) for row in rows} == {(2, "n")}


def test_streams_and_sinks_can_be_added_after_the_start(
    spark: Any, data: Path, tmp_path: Path
) -> None:
    script = TRADES + "CREATE STREAM a AS SELECT id FROM trades;"
    with open_with(data, spark, script) as session:
        first = session.subscribe("a")
        session.start()
        session.insert("trades", [{"id": 1, "ms": 1}])
        session.wait()
        session.execute(
            "CREATE STREAM b AS SELECT id + 1 AS id FROM trades; "
            f"CREATE SINK f FROM b WITH (connector = 'files', path = '{tmp_path / 'out'}');"
        )
        late = session.subscribe("b")
        session.insert("trades", [{"id": 2, "ms": 2}])
        session.wait()
        assert sorted(row["id"] for row in rows_of(first.take_all())) == [1, 2]
        assert 3 in [row["id"] for row in rows_of(late.take_all())]
        rows = spark.read.parquet(str(tmp_path / "out")).toArrow().to_pylist()
        assert sorted(row["id"] for row in rows) == [2, 3]
        other_data = tmp_path / "again"
        session.execute(
            f"CREATE SINK f2 FROM b WITH (connector = 'files', path = '{other_data}', format = 'json');"
        )
        session.insert("trades", [{"id": 3, "ms": 3}])
        session.wait()
        assert [row["id"] for row in spark.read.json(str(other_data)).toArrow().to_pylist()] == [4]
        session.execute("DROP SINK f2;")
        session.insert("trades", [{"id": 4, "ms": 4}])
        session.wait()
        rows = spark.read.parquet(str(tmp_path / "out")).toArrow().to_pylist()
        assert sorted(row["id"] for row in rows) == [2, 3, 4, 5]
        assert len(list(other_data.glob("*.json"))) == 1
        session.execute("DROP SINK f; DROP STREAM a;")
        assert [item.name for item in session.status()] == ["b"]
        assert not (data / "a").exists()


def test_streams_declared_before_a_failing_insert_run(spark: Any, data: Path) -> None:
    script = TRADES + "CREATE STREAM a AS SELECT id FROM trades;"
    with open_with(data, spark, script) as session:
        session.subscribe("a")
        session.start()
        with pytest.raises(TidegateError, match="no such trade"):
            session.execute(
                "CREATE STREAM b AS SELECT id + 1 AS id FROM trades;"
                "CREATE SINK kept FROM b WITH (connector = 'memory');"
                "INSERT INTO trades (id, ms) SELECT CAST(raise_error('no such trade') AS BIGINT), 1;"
            )
        session.insert("trades", [{"id": 2, "ms": 2}])
        session.wait()
        assert [item.name for item in session.status()] == ["a", "b"]
        assert [row["id"] for row in rows_of(session.subscribe("b").take_all())] == [3]


def test_type_errors_have_their_location_in_the_script(spark: Any, data: Path) -> None:
    script = (
        "CREATE STREAM x AS\nSELECT id,\n  symbol + ARRAY(1) AS broken\nFROM trades;\n"
        "CREATE STREAM y AS\nSELECT id FROM trades WHERE upper(symbol, 1) = 'A';\n"
        # The optimizer drops the column, but it is still an error.
        "CREATE STREAM z AS\nSELECT id FROM (SELECT id, symbol + ARRAY(1) AS broken FROM trades);"
    )
    with open_with(data, spark, TRADES) as session:
        with pytest.raises(ScriptError) as caught:
            session.execute(script)
        first, second, third = caught.value.errors
        assert (first.code, first.location.line, first.location.column) == ("TG-307", 3, 3)
        assert first.location.text[first.location.start : first.location.end] == "symbol + ARRAY(1)"
        assert [(e.code, e.location.line) for e in (second, third)] == [
            ("TG-307", 6),
            ("TG-307", 8),
        ]
        assert "ARRAY<INT>" in first.message and "requires 1 parameters" in second.message
        assert session.catalog.get("x") is None
        with pytest.raises(ScriptError) as caught:
            session.execute(
                "CREATE SOURCE z (a INT, t AS a + 1, WATERMARK FOR t AS t) WITH (connector = 'memory');"
            )
        assert "must be a TIMESTAMP, not INT" in caught.value.message


def test_damaged_file_is_one_error_and_loses_no_rows(
    spark: Any, data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pa.parquet.write_table(pa.table({"id": [1]}), folder / "a.parquet")
    (folder / "b.parquet").write_bytes(b"this is no parquet file at all")
    script = (
        f"CREATE SOURCE s (id BIGINT) WITH (connector = 'files', path = '{folder}');"
        "CREATE STREAM t AS SELECT id FROM s;"
    )
    with pytest.raises(TidegateError) as caught:
        run_to_end(data, spark, script, "t")
    assert caught.value.code == "TG-529"
    assert "b.parquet" in caught.value.message
    assert "Exception" not in caught.value.render() and "\tat " not in caught.value.render()
    pa.parquet.write_table(pa.table({"id": [2]}), folder / "b.parquet")
    assert sorted(row["id"] for row in rows_of(run_to_end(data, spark, script, "t"))) == [1, 2]


def test_parquet_schema_mismatch_is_rejected(spark: Any, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pa.parquet.write_table(pa.table({"id": ["text"]}), folder / "a.parquet")
    script = (
        f"CREATE SOURCE s (id BIGINT) WITH (connector = 'files', path = '{folder}');"
        "CREATE STREAM t AS SELECT id FROM s;"
    )
    with pytest.raises(TidegateError) as caught:
        run_to_end(data, spark, script, "t")
    assert caught.value.code == "TG-523"
    assert "a.parquet" in caught.value.message


def test_unrunnable_streams_are_rejected_before_the_start(spark: Any, data: Path) -> None:
    with open_with(data, spark, TRADES) as session:
        with pytest.raises(RunError) as caught:
            session.start()
        assert caught.value.code == "TG-505"
        with pytest.raises(ScriptError) as script:
            session.execute(
                "CREATE STREAM n AS SELECT histogram_numeric(price, 3) AS n FROM trades EMIT CHANGES;"
                "CREATE SINK c FROM n WITH (connector = 'console');"
            )
        assert [error.code for error in script.value.errors] == ["TG-501"]
        assert session.catalog.get("n") is None
    with open_with(
        data / "endless",
        spark,
        "CREATE SOURCE g WITH (connector = 'generator'); CREATE STREAM e AS SELECT * FROM g;",
    ) as session:
        session.subscribe("e")
        with pytest.raises(RunError) as caught:
            session.start(until_end=True)
        assert caught.value.code == "TG-505"


def test_streams_that_emit_at_the_end_run_to_the_end(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE g WITH (connector = 'generator', kind = 'series', rows = 50);"
        "CREATE STREAM total AS SELECT count(*) AS n FROM g;"
    )
    with open_with(data, spark, script) as session:
        total = session.subscribe("total")
        with pytest.raises(RunError, match="only at the end of its input") as caught:
            session.start()
        assert caught.value.code == "TG-505"
        assert session.status() == ()
        session.start(until_end=True)
        session.wait()
        assert rows_of(total.take_all()) == [{"n": 50}]
        # Counters are reset even if Spark still has cached rows in memory.
        status = session.status()[0]
        assert status.operators
        assert status.state_bytes == sum(item.bytes for item in status.operators)


def test_data_directory_has_one_owner(spark: Any, data: Path, tmp_path: Path) -> None:
    with tidegate.open(data, spark=spark):
        with pytest.raises(RunError) as caught:
            tidegate.open(data, spark=spark)
        assert caught.value.code == "TG-602"
    with tidegate.open(data, spark=spark):
        pass
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RunError) as caught:
        tidegate.open(blocked / "data", spark=spark)
    assert caught.value.code == "TG-601"


def test_changed_sources_are_rejected_but_changed_stateless_queries_continue(
    spark: Any, data: Path
) -> None:
    source = "CREATE SOURCE {0} (id INT) WITH (connector = 'memory');"
    sources = source.format("a") + source.format("b")
    with open_with(data, spark, sources + "CREATE STREAM s AS SELECT id FROM a;") as session:
        session.insert("a", [{"id": 1}])
        session.subscribe("s")
        session.start(until_end=True)
        session.wait()
    with open_with(data, spark, sources + "CREATE STREAM s AS SELECT id FROM b;") as session:
        session.subscribe("s")
        with pytest.raises(RunError) as caught:
            session.start(until_end=True)
        assert caught.value.code == "TG-603"
    changed = "CREATE STREAM s AS SELECT id * 10 AS id FROM a;"
    with open_with(data, spark, sources + changed) as session:
        session.insert("a", [{"id": 2}])
        out = session.subscribe("s")
        session.start(until_end=True)
        session.wait()
        assert [row["id"] for row in rows_of(out.take_all())] == [1, 20]


def test_subscription_iterator_ends_with_the_stream_and_raises_its_error(
    spark: Any, data: Path, tmp_path: Path
) -> None:
    generated = (
        "CREATE SOURCE g WITH (connector = 'generator', kind = 'series', rows = 50);"
        "CREATE STREAM s AS SELECT n FROM g;"
    )
    with open_with(data, spark, generated, rows_per_epoch=20) as session:
        subscription = session.subscribe("s")
        session.start(until_end=True)
        rows = [row["n"] for batch in subscription for row in batch.table.to_pylist()]
        assert sorted(rows) == list(range(50))
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.parquet").write_bytes(b"not parquet")
    script = (
        f"CREATE SOURCE f (id BIGINT) WITH (connector = 'files', path = '{folder}');"
        "CREATE STREAM t AS SELECT id FROM f;"
    )
    with open_with(data / "failing", spark, script) as session:
        subscription = session.subscribe("t")
        session.start()
        with pytest.raises(TidegateError) as caught:
            list(subscription)
        assert caught.value.code == "TG-529"


def test_event_time_without_zone_is_utc(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (id INT, ts TIMESTAMP_NTZ, WATERMARK FOR ts AS ts - INTERVAL '1' MINUTE) "
        "WITH (connector = 'memory');"
        "CREATE STREAM w AS SELECT id, ts, window_end FROM TUMBLE(s, ts, INTERVAL '1' HOUR);"
    )
    with open_with(data, spark, script) as session:
        windows = session.subscribe("w")
        session.insert("s", [{"id": 1, "ts": "2026-01-01T10:20:30.000001"}])
        session.start(until_end=True)
        session.wait()
        (row,) = rows_of(windows.take_all())
        assert row["ts"] == datetime(2026, 1, 1, 10, 20, 30, 1)
        assert row["window_end"] == datetime(2026, 1, 1, 11, tzinfo=UTC)
        (status,) = session.status()
        assert status.watermark == datetime(2026, 1, 1, 10, 19, 30, 1, tzinfo=UTC)


def test_scalar_subquery_is_rejected_when_declared(spark: Any, data: Path, tmp_path: Path) -> None:
    script = (
        f"CREATE SOURCE f (id BIGINT, v STRING) WITH (connector = 'files', path = '{tmp_path}', "
        "bounded = true); CREATE STREAM s AS SELECT id, (SELECT max(id) FROM f) AS m FROM f;"
    )
    with pytest.raises(ScriptError) as caught, open_with(data, spark, script):
        pass
    assert caught.value.code == "TG-501"


def test_subscriber_joins_a_stream_that_spark_writes_directly(spark: Any, data: Path) -> None:
    script = TRADES + (
        "CREATE STREAM a AS SELECT id FROM trades; CREATE SINK n FROM a WITH (connector = 'blackhole');"
    )
    with open_with(data, spark, script) as session:
        session.start()
        session.insert("trades", [{"id": 1, "ms": 1}])
        session.wait()
        joined = session.subscribe("a")
        session.insert("trades", [{"id": 2, "ms": 2}])
        session.wait()
        assert [row["id"] for row in rows_of(joined.take_all())] == [2]


def test_available_now_reads_all_rows_and_keeps_windows_open(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (k STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
        "WITH (connector = 'memory', inserts_per_epoch = 1);"
        "CREATE STREAM w AS SELECT k, count(*) AS n FROM s GROUP BY k, TUMBLE(ts, INTERVAL '1' MINUTE);"
    )
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for run, second in enumerate((0, 30, 70)):
        with open_with(data, spark, script) as session:
            out = session.subscribe("w")
            session.insert("s", [{"k": "a", "ts": at + timedelta(seconds=second)}])
            session.start(available_now=True)
            assert session.wait(120)
            assert session.status()[0].state is State.FINISHED
            assert rows_of(out.take_all()) == ([{"k": "a", "n": 2}] if run == 2 else [])
