"""Invalid input is one clear error and loses or duplicates no rows."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

import tidegate
from tests.support.sessions import open_with, rows_of, run_to_end, standing
from tidegate.errors import RunError, TidegateError

pytestmark = pytest.mark.spark


def files_source(folder: Path, columns: str, kind: str) -> str:
    return (
        f"CREATE SOURCE s ({columns}) WITH (connector = 'files', path = '{folder}', "
        f"format = '{kind}', dead_letters = 'bad'); CREATE STREAM t AS SELECT * FROM s;"
    )


def failure(spark: Any, data: Path, script: str) -> TidegateError:
    with pytest.raises(TidegateError) as caught:
        run_to_end(data, spark, script, "t")
    assert "Traceback" not in caught.value.render() and "\tat " not in caught.value.render()
    return caught.value


def test_csv_header_in_another_order_is_rejected(spark: Any, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.csv").write_text('last,first\nSmith,"A ""n"" n"\n')
    error = failure(spark, data, files_source(folder, "first STRING, last STRING", "csv"))
    assert error.code == "TG-523"
    assert "header: last, first; declared: first, last" in error.message
    script = files_source(folder, "last STRING, first STRING", "csv")
    (row,) = rows_of(run_to_end(data, spark, script, "t"))
    assert row == {"last": "Smith", "first": 'A "n" n'}


ROWS = "CREATE SOURCE s (v BIGINT, p STRING) WITH (connector = 'memory');"
SOME = "INSERT INTO s VALUES (1, '1'), (7, '%Y'), (3, '3');"


@pytest.mark.parametrize(
    ("query", "message", "hint", "marked"),
    [
        (
            "SELECT v + 1 / (v - 7) AS x FROM s",
            "Division by zero",
            "try_divide(a, b)",
            "1 / (v - 7)",
        ),
        (
            "SELECT date_format(timestamp_seconds(v), p) AS x FROM s WHERE v > 6",
            "'%Y' is not a pattern for dates and times",
            "'yyyy-MM-dd HH:mm:ss'",
            None,
        ),
        (
            "SELECT v FROM s WHERE CAST(p AS INT) > 0",
            "The value '%Y' of the type",
            "try_cast(x AS …)",
            "CAST(p AS INT)",
        ),
        # Below and above an operator, in the same query and in one that it reads.
        (
            "SELECT max(CAST(p AS INT)) AS x, count(*) AS n FROM s GROUP BY v EMIT CHANGES",
            'The value \'%Y\' of the type "STRING" cannot be cast to "INT"',
            "try_cast(x AS …)",
            "CAST(p AS INT)",
        ),
        (
            "SELECT v, CAST(max(p) AS INT) AS m FROM s GROUP BY v EMIT CHANGES",
            "The value '%Y' of the type",
            "try_cast(x AS …)",
            "CAST(max(p) AS INT)",
        ),
        (
            "SELECT p AS b FROM s; CREATE STREAM t AS SELECT upper(b) AS b FROM t0 "
            "WHERE CAST(b AS BIGINT) > 3",
            "The value '%Y' of the type",
            "try_cast(x AS …)",
            "CAST(b AS BIGINT)",
        ),
    ],
)
def test_failing_expression_shows_location_row_and_hint(
    spark: Any, data: Path, query: str, message: str, hint: str, marked: str | None
) -> None:
    name = "t0" if "t0" in query else "t"
    error = failure(spark, data, f"{ROWS} CREATE STREAM {name} AS {query}; {SOME}")
    assert error.code == "TG-503"
    assert message in error.message
    assert hint in (error.hint or "")
    assert "spark.sql" not in error.render()
    if marked is None:
        assert error.location is None, "Spark does not report the place"
        return
    assert error.location is not None
    assert error.location.text[error.location.start : error.location.end] == marked
    row = json.loads(error.message.partition("in the row ")[2])
    assert 7 in row.values() or "%Y" in row.values()


def test_parquet_type_mismatch_names_both_types(spark: Any, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pa.parquet.write_table(pa.table({"a": [1]}), folder / "1.parquet")
    error = failure(spark, data, files_source(folder, "a INT", "parquet"))
    assert "the column a is declared as int, but is INT64" in error.message
    assert "INT64 is BIGINT" in (error.hint or "")
    script = files_source(folder, "a BIGINT", "parquet")
    assert rows_of(run_to_end(data, spark, script, "t")) == [{"a": 1}]


def test_invalid_utf8_becomes_a_dead_letter(spark: Any, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_bytes(b'{"a": 1}\n{"a": \xff\xfe\x00}\n')
    with open_with(data, spark, files_source(folder, "a INT", "json")) as session:
        good, bad = session.subscribe("t"), session.subscribe("bad")
        session.start(until_end=True)
        session.wait()
        assert rows_of(good.take_all()) == [{"a": 1}]
        (letter,) = rows_of(bad.take_all())
        assert letter["record"].startswith('{"a": ')


def test_new_pipeline_does_not_duplicate_rows_of_an_existing_sink(
    spark: Any, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    script = (
        "CREATE SOURCE g WITH (connector = 'generator', kind = 'series', rows = 10);"
        "CREATE STREAM t AS SELECT n FROM g; CREATE SINK o FROM t WITH (connector = 'files', "
        f"path = '{out}'{{0}});"
    )
    run_to_end(data, spark, script.format(""), "t")
    run_to_end(data, spark, script.format(""), "t")
    assert spark.read.parquet(str(out)).count() == 10
    shutil.rmtree(data)
    error = failure(spark, data, script.format(""))
    assert "would write them again" in error.message
    run_to_end(data, spark, script.format(", existing = 'append'"), "t")
    assert spark.read.parquet(str(out)).count() == 20


def test_insert_accepts_rows_of_every_kind_or_fails_with_one_error(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (a INT) WITH (connector = 'memory'); CREATE STREAM t AS SELECT a FROM s;"
    )
    with open_with(data, spark, script) as session:
        assert session.insert("s", {"a": 1}) == 1
        assert session.insert("s", ({"a": n} for n in range(2))) == 2
        for rows in ("text", None, [1], 5):
            with pytest.raises(RunError) as caught:
                session.insert("s", rows)
            assert caught.value.code == "TG-309"


def test_texts_convert_alike_from_data_frames_and_dicts(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (ts TIMESTAMP, d DATE, m DECIMAL(10, 2)) WITH (connector = 'memory'); "
        "CREATE STREAM t AS SELECT * FROM s;"
    )
    row = {"ts": "2026-01-01 10:00", "d": "2026-01-02", "m": "1.50"}
    with open_with(data, spark, script) as session:
        out = session.subscribe("t")
        session.insert("s", [row])
        session.insert("s", pd.DataFrame([row]))
        session.insert("s", pa.table({name: pa.array([text]) for name, text in row.items()}))
        with pytest.raises(RunError, match="the column ts is timestamp"):
            session.insert("s", pd.DataFrame([{"ts": "soon"}]))
        session.start(until_end=True)
        session.wait()
        first, second, third = rows_of(out.take_all())
        assert first == second == third
        assert first["ts"] == datetime(2026, 1, 1, 10, tzinfo=UTC)


def test_inserted_values_are_converted_per_column(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (id INT, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory',"
        " dead_letters = 'bad'); CREATE STREAM t AS SELECT * FROM s;"
    )
    with open_with(data, spark, script) as session:
        (result,) = session.execute(
            "INSERT INTO s VALUES (1, '2026-01-01 10:00'), ('2', TIMESTAMP '2026-01-01 11:00');"
        )
        assert result.text == "2 rows inserted into s"
        (result,) = session.execute("INSERT INTO s (id) VALUES (3);")
        assert result.text == (
            "1 row inserted into s, 1 of which is a dead letter: the event time ts is NULL"
        )
        (result,) = session.execute(
            "INSERT INTO s VALUES (4, NULL), (5, '9000-01-01'), (6, now());"
        )
        assert result.text.startswith("3 rows inserted into s, 2 of which are dead letters: ")
        (result,) = session.execute("INSERT INTO s SELECT 7, '2026-01-01 10:00';")
        assert result.text == "1 row inserted into s"
        with pytest.raises(TidegateError) as caught:
            session.execute("INSERT INTO s VALUES (4, '2026-01-01'),\n  (5, 'soon');")
        place = caught.value.location
        assert caught.value.code == "TG-309" and place is not None
        assert (place.line, place.text[place.start : place.end]) == (2, "'soon'")
        assert "does not fit the column ts" in caught.value.message
        out = session.subscribe("t")
        session.start(until_end=True)
        session.wait()
        assert sorted(row["id"] for row in rows_of(out.take_all())) == [1, 2, 6, 7]


def test_closed_session_rejects_calls(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (a INT) WITH (connector = 'memory'); CREATE STREAM t AS SELECT a FROM s;"
    )
    session = open_with(data, spark, script)
    with pytest.raises(RunError) as caught:
        session.wait()
    assert caught.value.code == "TG-506"
    session.close()
    for use in (
        lambda: session.insert("s", [(1,)]),
        lambda: session.execute("SHOW STREAMS;"),
        lambda: session.subscribe("t"),
        session.start,
        lambda: session.spark,
    ):
        with pytest.raises(RunError) as caught:
            use()
        assert caught.value.code == "TG-506"


def test_foreign_directory_is_rejected(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunError) as caught:
        tidegate.open(tmp_path, spark=spark)
    assert caught.value.code == "TG-601"
    assert "not a data directory of Tidegate" in caught.value.message


def test_sink_with_unsupported_types_is_rejected_when_declared(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (a INT, xs ARRAY<INT>) WITH (connector = 'memory');"
        "CREATE STREAM t AS SELECT a, xs FROM s;"
    )
    with open_with(data, spark, script) as session:
        for options, needle in (
            ("format = 'csv'", "CSV cannot hold the column xs"),
            ("partition_by = 'xs'", "xs is nested"),
            ("partition_by = 'a, xs'", "xs is nested"),
        ):
            with pytest.raises(TidegateError) as caught:
                session.execute(
                    f"CREATE SINK o FROM t WITH (connector = 'files', path = 'o', {options});"
                )
            assert caught.value.code == "TG-210"
            assert needle in caught.value.message
            assert session.catalog.get("o") is None


def test_upserts_of_one_epoch_apply_in_insert_order(spark: Any, data: Path) -> None:
    """Spark reads the larger of two inserts first; the last row of a key must still win."""
    script = (
        "CREATE SOURCE s (id INT, v STRING, PRIMARY KEY (id)) WITH (connector = 'memory');"
        "CREATE STREAM t AS SELECT id, v FROM s;"
    )
    others = [(n, "x" * 50 + str(n)) for n in range(2, 2000)]
    with open_with(data, spark, script) as session:
        session.insert("s", [(1, "old")])
        session.insert("s", [(1, "new"), *others])
        stream = session.subscribe("t")
        session.start()
        session.wait()
        (epoch,) = stream.take_all()
        assert [row["v"] for row in epoch.table.to_pylist() if row["id"] == 1] == ["new"]
        assert epoch.table.num_rows == 1 + len(others)
    with open_with(data, spark, script) as session:
        session.insert("s", [(1, "newer"), *others])
        session.insert("s", [(1, "newest"), (1, "new"), (2, "two"), (1, "last")])
        stream = session.subscribe("t")
        session.start(until_end=True)
        session.wait()
        _, second, *_ = epochs = stream.take_all()
        changed = {(row["_op"], row["id"]) for row in second.table.to_pylist()}
        assert changed == {("-U", 1), ("+U", 1), ("-U", 2), ("+U", 2)}
        values = {row["id"]: row["v"] for row in standing(rows_of(epochs))}
        assert values == {**dict(others), 1: "last", 2: "two"}
