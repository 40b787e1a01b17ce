"""Python and SQL functions in running streams, and streams that replace others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate
from tests.support.sessions import bag, eventually, rows_of
from tidegate.errors import TidegateError

pytestmark = pytest.mark.spark

SOURCE = (
    "CREATE SOURCE t (k BIGINT, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'memory');"
)
ROWS = [
    {"k": 1, "v": 10, "ts": "2026-01-01 00:00:01"},
    {"k": 1, "v": None, "ts": "2026-01-01 00:00:02"},
    {"k": 2, "v": 30, "ts": "2026-01-01 00:00:03"},
    {"k": 2, "v": -5, "ts": "2026-01-01 00:00:04"},
]


def doubled(v: pa.Array) -> pa.Array:
    return pc.multiply(v, 2)


def named(k: int, v: int | None) -> str:
    return f"{k}:{v}"


def picky(v: pa.Array) -> pa.Array:
    if pc.any(pc.less(v, 0)).as_py():
        raise ValueError("negative\nvalues")
    return v


def short(v: pa.Array) -> pa.Array:
    return v[:1]


def test_functions_work_in_every_expression(spark: Any, data: Path) -> None:
    """Python functions do not get rows that WHERE or a condition drops."""
    script = (
        SOURCE
        + """
    CREATE FUNCTION plus(x BIGINT, y BIGINT) RETURNS BIGINT RETURN x + y;
    CREATE FUNCTION both(x BIGINT) RETURNS BIGINT RETURN plus(doubled(x), 1);
    CREATE STREAM rows_out AS SELECT k, plus(k, v) AS p, both(v) AS b, named(k, v) AS n
        FROM t WHERE doubled(k) < 4 OR v < 0;
    CREATE STREAM grouped AS SELECT doubled(k) AS kk, sum(both(v)) AS s, named(max(k), count(*)) AS n
        FROM t GROUP BY doubled(k), TUMBLE(ts, INTERVAL '1' MINUTE) HAVING both(count(*)) > 1;
    CREATE STREAM guarded AS SELECT picky(v) AS v, tripled(v) AS w FROM t WHERE v > 0;
    CREATE FUNCTION tripled(x BIGINT) RETURNS BIGINT LANGUAGE PYTHON WITH (scalar = true)
        AS 'prices:tripled';
    CREATE STREAM joined AS SELECT a.v AS one, b.v AS two FROM t AS a JOIN t AS b
        ON doubled(a.k) = doubled(b.k) AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' SECOND
        AND doubled(a.v) < b.v + 100;
    """
    )
    before = {row.function for row in spark.sql("SHOW USER FUNCTIONS").collect()}
    with tidegate.open(data, spark=spark) as session:
        session.function("doubled", doubled, returns="BIGINT", arguments=["BIGINT"])
        session.function("named", named, returns="STRING", scalar=True)
        session.function("picky", picky, returns="BIGINT")
        (data.parent / "prices.py").write_text(
            "BY = 3\n\ndef times(x):\n    return x * BY\n\ndef tripled(x):\n    return times(x)\n"
        )
        session.execute(script, str(data.parent / "streams.sql"))
        readers = {
            name: session.subscribe(name) for name in ("rows_out", "grouped", "guarded", "joined")
        }
        session.insert("t", ROWS)
        session.start(until_end=True)
        session.wait()
        emitted = {name: rows_of(reader.take_all()) for name, reader in readers.items()}
        assert "Filter doubled(CAST(k AS BIGINT)) < 4" in session.explain("rows_out")
        assert session.execute("SHOW FUNCTIONS;")[0].rows[0] == (
            "doubled",
            "doubled(v BIGINT) RETURNS BIGINT, Python",
        )
    assert bag(emitted["rows_out"]) == bag(
        [
            {"k": 1, "p": 11, "b": 21, "n": "1:10"},
            {"k": 1, "p": None, "b": None, "n": "1:None"},
            {"k": 2, "p": -3, "b": -9, "n": "2:-5"},
        ]
    )
    assert bag(emitted["grouped"]) == bag(
        [{"kk": 2, "s": 21, "n": "1:2"}, {"kk": 4, "s": 52, "n": "2:2"}]
    )
    assert bag(emitted["guarded"]) == bag([{"v": 10, "w": 30}, {"v": 30, "w": 90}])
    assert bag(emitted["joined"]) == bag(
        [
            {"one": 10, "two": 10},
            {"one": 30, "two": 30},
            {"one": 30, "two": -5},
            {"one": -5, "two": -5},
        ]
    )
    after = {row.function for row in spark.sql("SHOW USER FUNCTIONS").collect()}
    assert after == before, "functions were left on the user's session"


def test_errors_of_functions_are_explained(spark: Any, data: Path) -> None:
    with tidegate.open(data, spark=spark) as session:
        session.function("picky", picky, returns="BIGINT")
        session.function("short", short, returns="BIGINT")
        with pytest.raises(TidegateError) as wrong:
            session.execute(SOURCE + "CREATE FUNCTION bad(x BIGINT) RETURNS DATE RETURN x + 1;")
        assert wrong.value.code == "TG-307"
        assert wrong.value.location is not None
        assert wrong.value.location.text[wrong.value.location.start :].startswith("x + 1")
        with pytest.raises(TidegateError) as wrong:
            session.execute(
                SOURCE + "CREATE FUNCTION up(x BIGINT) RETURNS BIGINT RETURN x + 1;"
                "CREATE STREAM s AS SELECT up(array(k)) AS c FROM t;"
            )
        assert wrong.value.code == "TG-307"
        assert wrong.value.location is not None
        assert wrong.value.location.text[wrong.value.location.start :].startswith("array(k)")
        session.execute(
            SOURCE + "CREATE FUNCTION per(x BIGINT, y BIGINT) RETURNS BIGINT RETURN x div y;"
            "CREATE STREAM s WITH (pipeline = 'one') AS SELECT picky(v) AS v FROM t;"
            "CREATE STREAM u WITH (pipeline = 'two') AS SELECT short(v) AS v FROM t;"
            "CREATE STREAM w WITH (pipeline = 'three') AS SELECT per(v, k - 1) AS v FROM t;"
        )
        for name in "suw":
            session.subscribe(name)
        session.insert("t", ROWS)
        session.start()
        eventually(lambda: all(status.error for status in session.status()))
        errors = {status.name: status.error for status in session.status()}
        assert (
            "the function picky failed: ValueError: negative values (test_python_functions.py, line"
            in (errors["s"] or "")
        )
        assert "the function short returned 1 values for" in (errors["u"] or "")
        with pytest.raises(TidegateError) as failed:
            session.wait()
        assert failed.value.code == "TG-510"
        failure = session._supervisor._pipelines["three"].failure
        assert failure is not None and failure.location is not None
        location = failure.location
        assert location.text[location.start : location.end] == "per(v, k - 1)"


def test_replaced_streams_continue_while_running(spark: Any, data: Path) -> None:
    summed = "SELECT k, sum(scaled(v)) AS s FROM t WHERE v > 0 GROUP BY k EMIT CHANGES"
    script = (
        SOURCE + "CREATE FUNCTION scaled(x BIGINT) RETURNS BIGINT RETURN x * 1;"
        f"CREATE STREAM sums AS {summed};"
        "CREATE STREAM above AS SELECT k, s FROM sums WHERE s > 5;"
    )
    with tidegate.open(data, spark=spark) as session:
        session.execute(script)
        reader = session.subscribe("above")
        session.start()
        session.insert("t", [(1, 10, "2026-01-01 00:00:01")])
        session.wait()
        # Above all operators: the state is kept, and readers read the new stream.
        session.execute(
            f"CREATE OR REPLACE STREAM sums AS SELECT k, s + 1000 AS s FROM ({summed[:-13]}) EMIT CHANGES;"
        )
        session.execute("ALTER STREAM above SET (trigger_interval = '1 ms');")
        assert "WITH (trigger_interval = '1 ms')" in session.execute("SHOW CREATE above;")[0].text
        session.insert("t", [(1, 5, "2026-01-01 00:00:02")])
        session.wait()
        changes = [(row["s"], row["_op"]) for row in rows_of(reader.take_all())]
        assert changes == [(10, "+I"), (1010, "-U"), (1015, "+U")]
        # Below an operator: rejected, and the old stream continues.
        for change in (
            "CREATE OR REPLACE FUNCTION scaled(x BIGINT) RETURNS BIGINT RETURN x * 2;",
            f"CREATE OR REPLACE STREAM sums AS {summed.replace('> 0', '> 1')};",
        ):
            with pytest.raises(TidegateError) as rejected:
                session.execute(change)
            assert rejected.value.code == "TG-603"
        session.insert("t", [(1, 1, "2026-01-01 00:00:03")])
        session.wait()
        assert [row["s"] for row in rows_of(reader.take_all())] == [1015, 1016]
        # Unless the stream sets on_change.
        session.execute("SET on_change = 'restart';")
        session.execute("CREATE OR REPLACE FUNCTION scaled(x BIGINT) RETURNS BIGINT RETURN x * 2;")
        session.wait()
        assert [row["s"] for row in rows_of(reader.take_all())][-1] == 1032
