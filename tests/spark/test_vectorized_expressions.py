"""Expressions that tasks vectorize equal Spark, or are left to Spark."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlglot import parse_one

from tests.support.sessions import bag, open_with, rows_of
from tidegate.connectors.files import source as files_source
from tidegate.operators.vectorized import VectorColumn, VectorFailed, VectorStage
from tidegate.physical.typed import arrow_type
from tidegate.physical.vectorized import Untranslatable, translate, typed_vector
from tidegate.runtime import epoch as cutting
from tidegate.runtime.graphs import GraphCache
from tidegate.spark.errors import JobFailed
from tidegate.sql.dialect import DIALECT

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = {
    "a": ("BIGINT", [None, 0, 1, -1, 7, -7, 2**63 - 1, -(2**63), 10, 123]),
    "i": ("INT", [3, None, -3, 0, 2**31 - 1, -(2**31), 1, 1, 5, -5]),
    "n": ("SMALLINT", [1, 2, None, -1, 32767, -32768, 0, 0, 4, 9]),
    "s": ("STRING", ["", None, "a", "A", "ä", "z", "OR", " a", "a ", "\U0001f30a"]),
    "z": ("STRING", ["a", "a", "", None, "z", "ab", "OR", "or", "0", "\ufffd"]),
    "t": (
        "TIMESTAMP",
        [
            None,
            START,
            START - timedelta(microseconds=1),
            datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
            *[START + timedelta(seconds=n) for n in (1, 60, 3600, 86_400)],
        ],
    ),
    "u": ("TIMESTAMP", [START] * 9 + [None]),
    "m": ("DECIMAL(9,4)", [None, *(Decimal(n) / 16 for n in range(-4, 5))]),
    "d": ("DATE", [date(2026, 1, n + 1) if n else None for n in range(10)]),
    "f": ("BOOLEAN", [True, False, None, True, False, None, True, False, None, True]),
    "g": ("BOOLEAN", [True, True, True, False, False, False, None, None, None, True]),
    "p": (
        "STRUCT<x: BIGINT, Text: STRING>",
        [None, *({"x": n or None, "Text": "ab"[n % 2]} for n in range(9))],
    ),
}
NUMBERS = ("a", "i", "n", "p.x", "0", "10", "-3", "2147483648", "9223372036854775807")
DECIMALS = ("m", "3 * m", "i", "0", "-1", "0.05", "12", "a")
LEAVES = {
    "number": NUMBERS,
    "text": ("s", "z", "p.text", "'a'", "'OR'", "''"),
    "time": ("t", "u", "timestamp_millis(i)", "timestamp_seconds(n)", "timestamp_micros(a)"),
    "condition": ("f", "g", "true", "false"),
    "decimal": ("m", "0.908", "1.5", "0.05", "00.10", "123.0"),
}


def expression(rng: random.Random, kind: str, depth: int) -> str:
    """Generate a random expression of a type."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(LEAVES[kind])
    below = lambda operand_type: expression(rng, operand_type, depth - 1)  # noqa: E731
    if kind == "condition":
        other = rng.choice(["number", "text", "time"])
        return rng.choice(
            [
                f"({below(other)} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {below(other)})",
                f"({below(kind)} AND {below(kind)})",
                f"({below(kind)} OR {below(kind)})",
                f"(NOT {below(kind)})",
                f"({below(other)} IS NULL)",
                f"({below(other)} IS NOT NULL)",
                f"({below('number')} BETWEEN {below('number')} AND {below('number')})",
                f"({below('number')} IN (1, -7, 123, 2147483648))",
                f"({below('text')} NOT IN ('a', 'OR', 'ä'))",
                f"({below('decimal')} {rng.choice(['=', '<', '>='])} {rng.choice(DECIMALS)})",
                f"({rng.choice(DECIMALS)} BETWEEN {rng.choice(DECIMALS)} AND {below('decimal')})",
            ]
        )
    options = [
        f"coalesce({below(kind)}, {below(kind)})",
        f"(CASE WHEN {below('condition')} THEN {below(kind)} ELSE {below(kind)} END)",
    ]
    if kind == "number":
        options += [f"({below(kind)} {op} {below(kind)})" for op in "+-*"]
        options += [f"({below(kind)} % 7)", f"({below(kind)} % -3)", f"(- {below(kind)})"]
        options += [f"CAST({below(kind)} AS BIGINT)", f"unix_micros({below('time')})"]
    if kind == "decimal":
        return f"({below('number')} * {rng.choice(LEAVES[kind])})"
    if kind == "time":
        options += [f"({below(kind)} {op} INTERVAL '90' SECOND)" for op in "+-"]
    return rng.choice(options)


def table() -> pa.Table:
    return pa.table(
        {name: pa.array(values, arrow_type(kind)) for name, (kind, values) in COLUMNS.items()}
    )


def in_tasks(sql: str) -> pa.Array | None:
    """Evaluate an expression like a task; return None if it is left to Spark."""
    columns = {name: typed_vector(VectorColumn(name), kind) for name, (kind, _) in COLUMNS.items()}
    try:
        expression = translate(parse_one(sql, dialect=DIALECT), columns)
    except Untranslatable:
        return None
    live = pa.array([True] * len(table()))
    batch = table().append_column("_tg_selected", live).to_batches()[0]
    try:
        stage = VectorStage((("x", expression.vector, arrow_type(expression.sql_type)),))
        return stage.apply(batch, ()).column("x")
    except VectorFailed:
        return None


def test_vectorized_expressions_equal_spark(spark: Any) -> None:
    rng = random.Random(20261116)
    texts = [
        expression(rng, rng.choice(["number", "text", "time", "decimal", "condition"]), 3)
        for _ in range(900)
    ]
    ours = {sql: values for sql in dict.fromkeys(texts) if (values := in_tasks(sql)) is not None}
    assert len(ours) > 250, "too many expressions are left to Spark"
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", "true")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    frame = session.createDataFrame(table()).coalesce(1)
    listed = list(ours)
    for start in range(0, len(listed), 40):
        part = listed[start : start + 40]
        theirs = frame.selectExpr(*[f"{sql} AS c{i}" for i, sql in enumerate(part)]).toArrow()
        for i, sql in enumerate(part):
            expected = theirs.column(f"c{i}").combine_chunks()
            assert ours[sql].type == expected.type, sql
            assert ours[sql].equals(expected), sql


SCRIPT = """
CREATE SOURCE s (k BIGINT, v INT, p STRING, ms BIGINT, ts AS timestamp_millis(ms),
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND) WITH (connector = 'memory', inserts_per_epoch = 1);
CREATE STREAM plain AS SELECT k + v AS kv, p FROM s WHERE p IN ('x', 'y') AND k % 3 <> 1;
CREATE STREAM counted AS SELECT k, window_end, count(*) AS n, max(v) AS top FROM s WHERE v > 2
    GROUP BY k, TUMBLE(ts, INTERVAL '5' SECOND);
CREATE STREAM again AS SELECT window_end, sum(n) AS n FROM counted WHERE n > 1 GROUP BY window_end;
CREATE STREAM changes AS SELECT p, sum(v) AS total FROM s GROUP BY p HAVING sum(v) > 10 EMIT CHANGES;
CREATE STREAM pairs AS SELECT a.k, b.v FROM s AS a JOIN s AS b ON a.k = b.k AND a.v < b.v
    AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '3' SECOND WHERE a.p = 'x';
CREATE STREAM begun AS SELECT k, window_start, count(*) AS n
    FROM TUMBLE(s, ts, INTERVAL '7' SECOND, INTERVAL '3' SECOND) GROUP BY k, window_start;
CREATE STREAM placed AS SELECT k, window_start, window_end, window_time
    FROM TUMBLE(s, ts, INTERVAL '7' SECOND, INTERVAL '-2' SECOND) WHERE v > 1;
"""
STREAMS = ("plain", "counted", "again", "changes", "pairs", "begun", "placed")


def run_streams(data: Path, spark: Any, script: str, vectors: str) -> Any:
    with open_with(data, spark, script, vectorized=vectors) as session:
        outs = {name: session.subscribe(name) for name in STREAMS}
        session.start(until_end=True)
        session.wait()
        status = {item.name: (item.rows_in, item.dead_letters) for item in session.status()}
        return {name: bag(rows_of(out.take_all())) for name, out in outs.items()}, status


def test_rows_do_not_depend_on_who_reads_and_computes(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(7)
    rows = [
        {
            "k": rng.randrange(5),
            "v": rng.randrange(8),
            "p": rng.choice(["x", "y", "z", None]),
            "ms": None if rng.random() < 0.05 else 1_767_225_600_000 + n * 100,
        }
        for n in range(300)
    ]
    folder = tmp_path / "in"
    folder.mkdir()
    schema = pa.schema(
        [("k", pa.int64()), ("v", pa.int32()), ("p", pa.string()), ("ms", pa.int64())]
    )
    for number, part in enumerate((rows[:100], rows[100:220], rows[220:])):
        pq.write_table(pa.Table.from_pylist(part, schema), folder / f"{number}.parquet")
    script = SCRIPT.replace(
        "connector = 'memory', inserts_per_epoch = 1",
        f"connector = 'files', path = '{folder}', format = 'parquet', files_per_epoch = 1",
    )
    tasks = run_streams(tmp_path / "tasks", spark, script, "on")
    assert all(tasks[0].values())
    assert run_streams(tmp_path / "spark", spark, script, "off") == tasks
    # Spark pre-aggregates rows before they are sent to Python.
    monkeypatch.setattr(cutting, "_LARGE_ROWS", 1)
    assert run_streams(tmp_path / "large", spark, script, "off") == tasks
    # Spark's own reader reads the files.
    monkeypatch.setattr(files_source, "_NATIVE_BYTES", 1)
    assert run_streams(tmp_path / "native", spark, script, "off") == tasks
    assert run_streams(tmp_path / "still", spark, script, "on") == tasks


def json_line(row: dict[str, Any], n: int) -> str:
    return json.dumps({**row, "more": {"x": [n]}})


def csv_line(row: dict[str, Any], n: int) -> str:
    return ",".join("" if value is None else str(value) for value in row.values())


# The encoder of a row, the first line of a file, and a row that only Spark can decode.
LINES = {
    "json": (json_line, "", "{'k': 1, 'v': 2, 'p': 'x', 'ms': 1767225631000}"),
    "csv": (csv_line, "k,v,p,ms\n", "+1,2,x,1767225631000"),
}


@pytest.mark.parametrize("form", list(LINES))
def test_rows_do_not_depend_on_who_decodes_lines(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Tasks skip malformed lines; only the last line is left to Spark."""
    encode, first, odd = LINES[form]
    fallbacks: list[bool] = []
    fall_back = GraphCache.fall_back_to_spark

    def record(self: GraphCache, error: JobFailed) -> bool:
        fallbacks.append(fall_back(self, error))
        assert self.vectorized, "vectorization is off already"
        return fallbacks[-1]

    monkeypatch.setattr(GraphCache, "fall_back_to_spark", record)
    rng = random.Random(8)
    folder = tmp_path / "in"
    folder.mkdir()
    lines = []
    for n in range(300):
        row = {"k": rng.randrange(5), "v": rng.randrange(8), "p": rng.choice(["x", "é", None])}
        line = encode({**row, "ms": 1_767_225_600_000 + n * 100}, n)
        lines.append(rng.choice([line, line, line, f" {line}", line[: rng.randrange(len(line))]]))
    for number in range(3):
        text = "\n".join(lines[number * 100 : number * 100 + 100])
        (folder / f"{number}.{form}").write_text(first + text, "utf-8")
    options = f"connector = 'files', path = '{folder}', format = '{form}', files_per_epoch = 1"
    script = SCRIPT.replace("connector = 'memory', inserts_per_epoch = 1", options)
    tasks = run_streams(tmp_path / "tasks", spark, script, "on")
    assert all(tasks[0].values()) and all(dead for _, dead in tasks[1].values())
    assert run_streams(tmp_path / "spark", spark, script, "off") == tasks
    assert fallbacks == []
    (folder / f"3.{form}").write_text(f"{first}{odd}\n")
    tasks = run_streams(tmp_path / "tasks of more", spark, script, "on")
    assert run_streams(tmp_path / "spark of more", spark, script, "off") == tasks
    assert fallbacks == [True]


def test_overflow_in_a_task_is_left_to_spark(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE s (a BIGINT, ms BIGINT, ts AS timestamp_millis(ms), WATERMARK FOR ts AS ts) "
        "WITH (connector = 'memory', inserts_per_epoch = 1);"
        "CREATE STREAM t AS SELECT a + 1 AS b FROM s;"
    )
    with open_with(data, spark, script) as session:
        out = session.subscribe("t")
        session.insert("s", [{"a": 1, "ms": 1}, {"a": 2, "ms": 2**62}])
        session.start()
        session.wait()
        assert [row["b"] for row in rows_of(out.take_all())] == [2]
        assert session.status()[0].dead_letters == 1
        session.insert("s", [{"a": 2**63 - 1, "ms": 3}])
        with pytest.raises(Exception, match="overflow") as caught:
            session.wait()
        assert getattr(caught.value, "code", "") == "TG-503"
