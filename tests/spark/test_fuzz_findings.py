"""Findings of the fuzzer: queries whose rows once differed from a batch run."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import tidegate
from tests.support.sessions import bag, open_with, rows_of, run_to_end
from tidegate.errors import RunError

pytestmark = pytest.mark.spark

COLUMNS = "id INT, x INT, xs ARRAY<INT>, s STRING, d DATE, ts TIMESTAMP, p STRUCT<q: INT, Q2: INT>"
AT = datetime(2020, 1, 1, 10, 0, 0, 123456, tzinfo=UTC)
ROWS = [(1, 10, [1, 2], "2020-01-01 10:00:00", date(2020, 1, 1), AT, {"q": 1, "Q2": 2})]


def test_queries_equal_batch(spark: Any, data: Path) -> None:
    queries = [
        "SELECT array(id, x)[1] AS c FROM t",
        "SELECT transform(xs, x -> x + t.x) AS c, filter(xs, X -> x > t.id) AS e FROM t",
        "SELECT x + 1 AS y, transform(xs, x -> x + y) AS c FROM t",
        "SELECT xs FROM t UNION ALL SELECT transform(xs, x_1 -> x_1 + x) FROM t",
        "SELECT d AS c FROM t UNION ALL (SELECT s FROM t UNION ALL SELECT ts FROM t)",
        "SELECT current_date AS c FROM (SELECT d AS current_date FROM t)",
        "SELECT id, e FROM t LATERAL VIEW explode(xs) v AS e WHERE e > 1",
        "SELECT pos, col FROM t LATERAL VIEW posexplode(xs) v",
        "SELECT id, explode(xs) AS e FROM t",
        "SELECT id FROM (SELECT id, explode_outer(array()) AS e FROM t)",
        "SELECT e, s FROM (SELECT explode(xs) AS e, s FROM t) WHERE e > 1 AND s <> ''",
        "SELECT timestampadd(HOUR, id, ts) AS c, datediff(DAY, ts, ts) AS e FROM t",
    ]
    script = f"CREATE SOURCE t ({COLUMNS}) WITH (connector = 'memory');"
    script += "".join(f"CREATE STREAM q{i} AS {query};" for i, query in enumerate(queries))
    with open_with(data, spark, script) as session:
        streams = [session.subscribe(f"q{i}") for i in range(len(queries))]
        session.insert("t", ROWS)
        session.start(until_end=True)
        session.wait()
        session.spark.createDataFrame(ROWS, COLUMNS).createOrReplaceTempView("t")
        for query, stream in zip(queries, streams, strict=True):
            expected = session.spark.sql(query).toArrow()
            table = pa.concat_tables(batch.table for batch in stream.take_all())
            assert table.schema.types == expected.schema.types, query
            assert bag(table.to_pylist()) == bag(expected.to_pylist()), query


def test_describe_keeps_field_names(spark: Any, data: Path) -> None:
    script = f"CREATE SOURCE t ({COLUMNS}) WITH (connector = 'memory'); "
    with open_with(data, spark, script + "CREATE STREAM q AS SELECT p FROM t;") as session:
        (shown,) = session.execute("DESCRIBE q;")
        assert shown.rows == [("p", "STRUCT<q:INT,Q2:INT>", "")]


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_malformed_records_do_not_depend_on_the_columns_read(
    spark: Any, data: Path, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    lines = {
        "json": '{"id": 1, "name": "a", "at": "2020-01-01 00:00:00"}\n{"id": "no", "name": "b"}\n',
        "csv": "id,name,at\n1,a,2020-01-01 00:00:00\nno,b,\n",
    }
    (folder / "a").write_text(lines[kind])
    script = (
        "CREATE SOURCE f (id INT, name STRING, at TIMESTAMP) WITH (connector = 'files', "
        f"path = '{folder}', format = '{kind}'); CREATE STREAM names AS SELECT name FROM f; "
        "CREATE STREAM ones AS SELECT 1 AS one FROM f;"
    )
    with open_with(data, spark, script) as session:
        names, ones = session.subscribe("names"), session.subscribe("ones")
        session.start(until_end=True)
        session.wait()
        assert rows_of(names.take_all()) == [{"name": "a"}]
        assert rows_of(ones.take_all()) == [{"one": 1}]
        assert [item.dead_letters for item in session.status()] == [1, 1]


def test_bad_rows_are_counted_even_if_parquet_could_skip_them(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE t (id INT, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory', "
        "dead_letters = 'bad'); CREATE STREAM q AS SELECT id FROM t;"
    )
    with open_with(data, spark, script) as session:
        session.subscribe("q")
        session.insert("t", [{"id": 1}, {"id": 2}])
        session.insert("t", [{"id": 3, "ts": AT}])
        session.start(until_end=True)
        session.wait()
        (status,) = session.status()
        assert (status.rows_in, status.rows_out, status.dead_letters) == (3, 1, 2)


def test_text_files_keep_microseconds_and_spaces(spark: Any, data: Path, tmp_path: Path) -> None:
    script = (
        "CREATE SOURCE t (ts TIMESTAMP, nt TIMESTAMP_NTZ, s STRING) WITH (connector = 'memory');"
    )
    script += "CREATE STREAM q AS SELECT * FROM t;"
    for kind in ("json", "csv"):
        script += (
            f"CREATE SINK {kind} FROM q WITH (connector = 'files', path = '{tmp_path}/{kind}', "
            f"format = '{kind}');"
        )
    row = {"ts": AT, "nt": AT.replace(tzinfo=None), "s": "  a "}
    with open_with(data, spark, script) as session:
        session.insert("t", [row])
        session.start(until_end=True)
        session.wait()
    for kind in ("json", "csv"):
        restored = (
            "CREATE SOURCE b (ts TIMESTAMP, nt TIMESTAMP_NTZ, s STRING) WITH (connector = 'files', "
            f"path = '{tmp_path}/{kind}', format = '{kind}'); CREATE STREAM q AS SELECT * FROM b;"
        )
        assert rows_of(run_to_end(data.with_name(f"back_{kind}"), spark, restored, "q")) == [row]


def test_column_names_may_contain_any_character(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE `it is` (`a``b` INT NOT NULL, `c'd` INT NOT NULL, _us INT, _window INT, "
        "ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory', dead_letters = 'bad');"
        "CREATE STREAM q AS SELECT * FROM TUMBLE(`it is`, ts, INTERVAL '1' DAY);"
    )
    with open_with(data, spark, script) as session:
        good, bad = session.subscribe("q"), session.subscribe("bad")
        session.insert("it is", [(1, 2, 3, 4, AT), (1, 2, 3, 4, None)])
        session.start(until_end=True)
        session.wait()
        (row,) = rows_of(good.take_all())
        assert (row["a`b"], row["c'd"], row["_us"], row["_window"]) == (1, 2, 3, 4)
        assert row["window_start"] == datetime(2020, 1, 1, tzinfo=UTC)
        (letter,) = rows_of(bad.take_all())
        assert letter["source"] == "it is"


def test_inserts_lose_no_precision(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE t (i INT, xs ARRAY<INT>, p STRUCT<q: INT, at: TIMESTAMP>, ts TIMESTAMP) "
        "WITH (connector = 'memory'); CREATE STREAM q AS SELECT * FROM t;"
    )
    with tidegate.open(data, spark=spark) as session:
        session.execute(script)
        for bad in (
            {"i": 1.5},
            {"i": Decimal("1.5")},
            {"xs": [1.5]},
            {"ts": 1.5},
            {"p": {"z": 1}},
            {"i": 1, "I": 2},
        ):
            with pytest.raises(RunError):
                session.insert("t", [bad])
        with pytest.raises(RunError):
            session.insert("t", pa.table({"i": [1], "I": [2]}))
        stream = session.subscribe("q")
        session.insert("t", [{"i": 2.0, "p": {"Q": 1, "at": "2020-01-01"}, "ts": pd.NaT}])
        session.start(until_end=True)
        session.wait()
        (row,) = rows_of(stream.take_all())
        midnight = datetime(2020, 1, 1, tzinfo=UTC)
        assert row == {"i": 2, "xs": None, "p": {"q": 1, "at": midnight}, "ts": None}


def test_files_with_unusual_paths_and_old_dates_are_read(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "a[1]{b,c}" / "in"
    folder.mkdir(parents=True)
    script = (
        f"CREATE SOURCE f (id INT) WITH (connector = 'files', path = '{folder}', format = 'json');"
        "CREATE SOURCE m (id INT) WITH (connector = 'memory'); INSERT INTO m VALUES (7);"
        "CREATE STREAM q AS SELECT * FROM f UNION ALL SELECT * FROM m;"
    )
    (folder / "new.json").write_text('{"id": 1}')
    run_to_end(folder / "data", spark, script, "q")
    (folder / "old.json").write_text('{"id": 2}')
    os.utime(folder / "old.json", (0, 0))
    rows = rows_of(run_to_end(folder / "data", spark, script, "q"))
    assert sorted(row["id"] for row in rows) == [1, 2, 7]  # an INSERT of a script runs once
