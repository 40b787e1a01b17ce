"""Type errors show the message of Spark for the marked expression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.sessions import open_with
from tidegate.errors import ScriptError

pytestmark = pytest.mark.spark

BY_TIME = "OVER (PARTITION BY id ORDER BY ts)"
ROWS_BACK = "OVER (PARTITION BY id ORDER BY ts ROWS BETWEEN 1 PRECEDING AND 2 PRECEDING)"


@pytest.mark.parametrize(
    ("query", "blamed", "words"),
    [
        ("id, v + arr AS x FROM t", "v + arr", '"(v + arr)"|"INT" and "ARRAY<INT>"'),
        ("id, sum(arr) AS x FROM t GROUP BY id EMIT CHANGES", "sum(arr)", '"NUMERIC"'),
        ("id, avg(day) AS x FROM t GROUP BY id EMIT CHANGES", "avg(day)", 'the type "DATE"'),
        ("id, bool_and(v) AS x FROM t GROUP BY id EMIT CHANGES", "bool_and(v)", '"BOOLEAN"'),
        ("percentile(v, 1.5) AS x FROM t EMIT CHANGES", "percentile(v, 1.5)", "between [0.0, 1.0]"),
        (f"sum(v) {ROWS_BACK} AS x FROM t", f"sum(v) {ROWS_BACK}", "The lower bound of a window"),
        # Spark's message would contain the ids of columns.
        ("b.arr + a.v AS x FROM t AS a JOIN t AS b ON a.id = b.id", "b.arr + a.v", '"(arr + v)"'),
        ("id FROM t UNION ALL SELECT arr FROM t", None, "UNION can only|compatible column types"),
        # WHEN is not an expression without CASE, nor is lag without OVER.
        ("CASE WHEN v > 1 THEN v ELSE v + arr END AS x FROM t", "v + arr", '"(v + arr)"'),
        ("CASE WHEN v THEN 1 END AS x FROM t", "CASE WHEN v THEN 1 END", '"CASE WHEN v THEN 1'),
        (f"lag(v, 1, arr) {BY_TIME} AS x FROM t", f"lag(v, 1, arr) {BY_TIME}", '"ARRAY<INT>"'),
    ],
)
def test_type_error_shows_the_message_of_spark_for_the_expression(
    spark: Any, data: Path, query: str, blamed: str | None, words: str
) -> None:
    source = (
        "CREATE SOURCE t (id INT, v INT, arr ARRAY<INT>, day DATE, ts TIMESTAMP, "
        "WATERMARK FOR ts AS ts) WITH (connector = 'memory');"
    )
    with open_with(data, spark, source) as session, pytest.raises(ScriptError) as caught:
        session.execute(f"CREATE STREAM s WITH (state_ttl = '1 day') AS SELECT {query};")
    (error,) = caught.value.errors
    assert error.code == "TG-307" and error.location is not None
    assert all(word in error.message for word in words.split("|")), error.message
    assert error.location.text[error.location.start : error.location.end] == (
        blamed or f"SELECT {query}"
    )
