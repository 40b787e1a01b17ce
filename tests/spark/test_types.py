"""Types are those of Spark, found with one query; Arrow types follow from their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type

from tests.support.compiling import SOURCES, compile_text
from tidegate.catalog.objects import Stream
from tidegate.physical.typed import arrow_type
from tidegate.plan import nodes as n
from tidegate.spark.analysis import _sql_type, analyse_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TYPES = """
BOOLEAN; TINYINT; SMALLINT; INT; BIGINT; FLOAT; DOUBLE; DECIMAL(10,2); DECIMAL(38,18); STRING; BINARY;
DATE; TIMESTAMP; TIMESTAMP_NTZ; INTERVAL DAY TO SECOND; INTERVAL HOUR; ARRAY<STRING>; MAP<STRING,INT>;
STRUCT<a: INT, b: STRING>; STRUCT<`a b`: INT, `c``d`: DECIMAL(4,1), e: ARRAY<STRUCT<f: DATE>>>;
MAP<STRING, ARRAY<MAP<INT, STRUCT<x: TIMESTAMP>>>>; ARRAY<DECIMAL(5,0)>; STRING COLLATE UNICODE;
STRUCT<i: INTERVAL DAY TO SECOND, j: INT>
"""


def test_arrow_types_equal_spark(spark: SparkSession) -> None:
    for text in TYPES.replace("\n", " ").split(";"):
        kind = spark.sql(f"SELECT CAST(NULL AS {text.strip()}) AS c").schema.fields[0].dataType
        expected = to_arrow_type(kind, timezone="UTC")
        assert arrow_type(_sql_type(kind)) == expected, text
    assert arrow_type("VOID") == pa.null()
    for text in ("INTERVAL YEAR TO MONTH", "VARIANT"):
        with pytest.raises(ValueError, match="cannot be handed"):
            arrow_type(text)


def test_one_query_finds_the_types_of_all_fields(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compile_text(
        SOURCES
        + "CREATE STREAM s AS SELECT a.price * 2 AS twice, w.n, w.mean FROM asks AS a JOIN (SELECT "
        "auction, window_end, count(DISTINCT channel) AS n, avg(price + 1) AS mean FROM bids GROUP BY "
        "auction, TUMBLE(ts, INTERVAL '1' MINUTE)) AS w ON a.auction = w.auction AND a.ts "
        "BETWEEN w.window_end AND w.window_end + INTERVAL '1' MINUTE;"
    )
    stream = compiled.catalog.get("s")
    assert isinstance(stream, Stream)
    queries: list[str] = []
    sql = type(spark).sql
    monkeypatch.setattr(
        type(spark), "sql", lambda self, text, *rest: queries.append(text) or sql(self, text, *rest)
    )
    typed = analyse_plan(spark, stream, stream.plan, compiled.catalog)
    assert len(queries) == 1
    assert all(item.type for node in n.walk(typed.plan) for item in node.fields)
    assert [item.type for item in typed.plan.fields] == ["BIGINT", "BIGINT", "DOUBLE"]
