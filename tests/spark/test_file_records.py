"""The files source returns whole records or dead letters."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.support.sessions import open_with, rows_of, run_to_end, standing
from tidegate.errors import TidegateError

pytestmark = pytest.mark.spark

Rows = list[dict[str, Any]]


def read(
    spark: Any, data: Path, columns: str, options: str, select: str = "*"
) -> tuple[Rows, Rows, tuple[int, int]]:
    """Return the rows of a source, its dead letters, and the counts of both."""
    script = (
        f"CREATE SOURCE s ({columns}) WITH (connector = 'files', path = '{data.parent / 'in'}', "
        f"dead_letters = 'bad', {options}); CREATE STREAM t AS SELECT {select} FROM s;"
    )
    with open_with(data, spark, script) as session:
        good, bad = session.subscribe("t"), session.subscribe("bad")
        session.start(until_end=True)
        session.wait()
        status = next(item for item in session.status() if item.name == "t")
        return (
            rows_of(good.take_all()),
            rows_of(bad.take_all()),
            (status.rows_in, status.dead_letters),
        )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def places(letters: Rows) -> list[tuple[Any, ...]]:
    """Return file, line, column and reason of dead letters, in order."""
    return sorted(
        (item["file"].rpartition("/")[2], item["line"], item["column_name"], item["reason"])
        for item in letters
    )


def test_json_line_is_a_record_or_a_dead_letter(spark: Any, data: Path, folder: Path) -> None:
    bad = [
        '{"id": 1, "page": "a"}{"id": 2, "page": "b"}',
        '{"id": 8} trailing',
        '{"id": 1},{"id": 2}',
        '{"id": 1}}',
        '{"id": 1}]',
        '[{"id": 1}, {"id": 2}]',
        "null",
        '{"id": "one", "page": "c"}',
        '{"id": 1, "xs": [1, "b"]}',
        '{"id": 1, "at": "2026-01-01", "who": {"age": 1.5}}',
    ]
    good = ['{"id": 3, "page": "}{ ]"}', "", ' {"id": 4, "page": "d", "more": {}} ']
    (folder / "a.json").write_text("\n".join(good + bad) + "\n")
    rows, letters, counts = read(
        spark,
        data,
        "id BIGINT, page STRING, xs ARRAY<INT>, who STRUCT<age: INT>",
        "format = 'json'",
        "id, page",
    )
    assert sorted(row["id"] for row in rows) == [3, 4]
    assert sorted(item["record"] for item in letters) == sorted(bad)
    assert counts == (12, 10)
    after = "text after the JSON object"
    assert places(letters) == [
        ("a.json", 4, None, after),
        ("a.json", 5, None, after),
        ("a.json", 6, None, after),
        ("a.json", 7, None, after),
        ("a.json", 8, None, after),
        ("a.json", 9, None, "not a JSON object"),
        ("a.json", 10, None, "not a JSON object"),
        ("a.json", 11, "id", "id is not a BIGINT"),
        ("a.json", 12, "xs", "xs is not an ARRAY<INT>"),
        ("a.json", 13, "who", "who is not a STRUCT<age: INT>"),
    ]


def test_unclosed_csv_quote_makes_its_lines_dead_letters(
    spark: Any, data: Path, folder: Path
) -> None:
    (folder / "a.csv").write_text(
        '"id",note\n1,"a, ""b"""\n3,"line1\n4,line2"\n\n5,x\n6,5" disk\n7\n8,"",\nnine,y\n'
    )
    (folder / "b.csv").write_text("id,note\n10,z\n11,\xe9\n", encoding="latin-1")
    rows, letters, counts = read(spark, data, "id INT, note STRING", "format = 'csv'")
    assert sorted((row["id"], row["note"]) for row in rows) == [(1, 'a, "b"'), (5, "x"), (10, "z")]
    assert places(letters) == [
        ("a.csv", 3, None, "a quote is not closed on its line"),
        ("a.csv", 4, None, "a quote in a value that is not quoted"),
        ("a.csv", 7, None, "a quote in a value that is not quoted"),
        ("a.csv", 8, None, "not 2 values"),
        ("a.csv", 9, None, "not 2 values"),
        ("a.csv", 10, "id", "id is not an INT"),
        ("b.csv", 3, None, "not text in utf-8"),
    ]
    assert letters[0]["source"] == "s"
    assert counts == (10, 7)


def test_csv_records_may_span_lines(spark: Any, data: Path, folder: Path) -> None:
    (folder / "a.csv").write_text(
        '\ufeffid,note\r\n1,"line1\r\nline2"\r\n\r\n2,5" disk\r\n3,c\r\n4,"never closed\r\n5,d\r\n',
        newline="",
    )
    rows, letters, _ = read(spark, data, "id INT, note STRING", "format = 'csv', multi_line = true")
    assert sorted((row["id"], row["note"]) for row in rows) == [(1, "line1\r\nline2"), (3, "c")]
    assert [item["record"] for item in sorted(letters, key=lambda item: item["line"])] == [
        '2,5" disk',
        '4,"never closed\r\n5,d\r\n',
    ]
    assert places(letters) == [
        ("a.csv", 3, None, "a quote in a value that is not quoted"),
        ("a.csv", 5, None, "a quote is not closed"),
    ]


def test_json_records_may_span_lines(spark: Any, data: Path, folder: Path) -> None:
    (folder / "a.json").write_text('[\n {"id": 1},\n {"id": 2, "d": 0.12345678901234567890}\n]\n')
    (folder / "b.json").write_text('{\n "id": 3\n}\n')
    (folder / "c.json").write_text('{"id": 4}\n{"id": 5}\n')
    (folder / "d.json").write_text('[{"id": 6}, {"id": "seven"}]')
    (folder / "e.json").write_text("[]")
    rows, letters, counts = read(
        spark, data, "id INT, d DECIMAL(38, 20)", "format = 'json', multi_line = true"
    )
    assert sorted((row["id"], str(row["d"])) for row in rows) == [
        (1, "None"),
        (2, "0.12345678901234567890"),
        (3, "None"),
    ]
    assert places(letters) == [
        ("c.json", 1, None, "not one JSON object or array"),
        ("d.json", 1, "id", "id is not an INT"),
    ]
    assert counts == (5, 2)


def test_csv_and_json_options(spark: Any, data: Path, folder: Path) -> None:
    at = datetime(2026, 2, 1, 10, 30, tzinfo=UTC)
    (folder / "a.csv").write_bytes(
        "id;note;ts\n1;'it\\'s 5 \u20ac; more';01.02.2026 10:30\n2;NA;01.02.2026 10:30\n"
        "3;'';2026-02-01\n".encode("cp1252")
    )
    rows, letters, _ = read(
        spark,
        data,
        "id INT, note STRING, ts TIMESTAMP",
        "format = 'csv', delimiter = ';', quote = '''', escape = '\\\\', null_value = 'NA', "
        "encoding = 'windows-1252', timestamp_format = 'dd.MM.yyyy HH:mm'",
    )
    assert sorted(rows, key=lambda row: row["id"]) == [
        {"id": 1, "note": "it's 5 \u20ac; more", "ts": at},
        {"id": 2, "note": None, "ts": at},
    ]
    assert places(letters) == [("a.csv", 4, "ts", "ts is not a TIMESTAMP (dd.MM.yyyy HH:mm)")]


def test_utf_16_without_quotes(spark: Any, data: Path, folder: Path) -> None:
    (folder / "a.csv").write_bytes('1,"a\n2,\u010b\n'.encode("utf-16"))
    rows, letters, _ = read(
        spark,
        data,
        "id INT, note STRING",
        "format = 'csv', header = false, multi_line = true, encoding = 'utf-16', quote = 'off'",
    )
    assert sorted((row["id"], row["note"]) for row in rows) == [(1, '"a'), (2, "\u010b")]
    assert letters == []


def test_header_mismatch_names_the_file(spark: Any, data: Path, folder: Path) -> None:
    (folder / "1.csv").write_text('"a" ,B\n1,2\n')
    (folder / "2.csv").write_text("b,a\n1,2\n")
    with pytest.raises(TidegateError) as caught:
        read(spark, data, "a INT, b INT", "format = 'csv', files_per_epoch = 1")
    assert caught.value.code == "TG-523"
    assert "2.csv" in caught.value.message
    assert "header: b, a; declared: a, b" in caught.value.message
    assert "in the order of the header" in (caught.value.hint or "")


def test_failing_computed_column_is_a_dead_letter(spark: Any, data: Path, folder: Path) -> None:
    (folder / "a.json").write_text(
        '{"t": "2026-01-01 10:00:00", "n": "5", "d": 2, "xs": [1]}\n'
        '{"t": "garbage", "n": "5", "d": 2, "xs": [1]}\n'
        '{"t": "2026-01-01 10:00:00", "n": "x", "d": 2, "xs": [1]}\n'
        '{"t": "2026-01-01 10:00:00", "n": "5", "d": 0, "xs": [1]}\n'
        '{"t": "2026-01-01 10:00:00", "n": "5", "d": 2, "xs": []}\n'
        '{"t": "2026-01-01 10:00:00", "n": null, "d": -1}\n'
    )
    columns = (
        "t STRING, n STRING, d INT, xs ARRAY<INT>, ts AS to_timestamp(t), i AS CAST(n AS INT), "
        "r AS CASE WHEN d < 0 THEN coalesce(CAST(n AS INT), 0) ELSE 10 / d END, f AS xs[0], "
        "WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"
    )
    rows, letters, counts = read(spark, data, columns, "format = 'json'", "i, r, f")
    assert sorted(rows, key=lambda row: row["r"]) == [
        {"i": None, "r": 0.0, "f": None},
        {"i": 5, "r": 5.0, "f": 1},
    ]
    assert places(letters) == [
        ("a.json", 2, "ts", "ts cannot be computed: to_timestamp(t)"),
        ("a.json", 3, "i", "i cannot be computed: CAST(n AS INT)"),
        (
            "a.json",
            4,
            "r",
            "r cannot be computed: CASE WHEN d < 0 THEN coalesce(CAST(n AS INT), 0) ELSE 10 / d END",
        ),
        ("a.json", 5, "f", "f cannot be computed: xs[0]"),
    ]
    assert counts == (6, 4)


def test_time_in_milliseconds_does_not_end_the_stream(spark: Any, data: Path, folder: Path) -> None:
    """Taken as seconds, the time would be millennia ahead and make all other rows late."""
    tomorrow = (datetime.now(UTC) + timedelta(hours=20)).isoformat()
    for index, time in enumerate(["1772359260", "1772359200000", "1772359320", f'"{tomorrow}"']):
        (folder / f"{index}.json").write_text(f'{{"ts": {time}}}\n')
    columns = "ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '1' DAY"
    rows, letters, _ = read(spark, data, columns, "format = 'json'")
    assert len(rows) == 3
    assert places(letters) == [("1.json", 1, "ts", "ts is too far in the future")]


def test_dead_letters_of_parquet_have_row_numbers(spark: Any, data: Path, folder: Path) -> None:
    pa.parquet.write_table(pa.table({"a": pa.array([1, None], pa.int32())}), folder / "1.parquet")
    rows, letters, counts = read(spark, data, "a INT NOT NULL", "format = 'parquet'")
    assert rows == [{"a": 1}]
    assert places(letters) == [("1.parquet", 2, "a", "a is NULL")]
    assert counts == (2, 1)


def test_files_of_an_epoch_are_ordered_by_time_then_path(
    spark: Any, data: Path, folder: Path
) -> None:
    """A shorter path is first, even if the longer one continues with a character below a digit."""
    for at, name, rows in (
        (10, "u1.csv", "1,third\n3,a"),
        (10, "u.csv", "1,second"),
        (10, "u", "1,first"),
        (20, "a.csv", "2,new"),
        (10, "z.csv", "2,old"),
    ):
        (folder / name).write_text(f"id,v\n{rows}\n3,{name}\n")
        os.utime(folder / name, (at, at))
    script = (
        f"CREATE SOURCE s (id INT, v STRING, PRIMARY KEY (id)) WITH (connector = 'files', "
        f"path = '{folder}', format = 'csv'); CREATE STREAM t AS SELECT id, v FROM s;"
    )
    remaining = standing(rows_of(run_to_end(data, spark, script, "t")))
    assert {row["id"]: row["v"] for row in remaining} == {1: "third", 2: "new", 3: "a.csv"}


@pytest.mark.parametrize("kind", ["json", "parquet", "parquet in folders"])
def test_file_metadata_columns(spark: Any, data: Path, folder: Path, kind: str) -> None:
    names = ["day=1/a", "day=2/b"] if "folders" in kind else ["a", "b"]
    for number, name in enumerate(names):
        path = folder / f"{name}.{kind.split()[0]}"
        path.parent.mkdir(exist_ok=True)
        if kind == "json":
            path.write_text('{"id": 1}\n{"id": 2}\n')
        else:
            pa.parquet.write_table(pa.table({"id": [1, 2]}), path)
        os.utime(path, (1_000 + number, 1_000 + number))
    rows, letters, counts = read(
        spark,
        data,
        "at TIMESTAMP METADATA FROM 'modified', id BIGINT, path STRING METADATA",
        f"format = '{kind.split()[0]}'",
        "path, at",
    )
    metadata = [(row["path"].rpartition("/in/")[2], row["at"].timestamp()) for row in rows]
    files = [f"{name}.{kind.split()[0]}" for name in names]
    assert sorted(metadata) == [(files[0], 1000.0)] * 2 + [(files[1], 1001.0)] * 2
    assert (letters, counts) == ([], (4, 0))
