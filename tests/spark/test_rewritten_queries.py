"""Rewritten queries return the same rows as Spark: their plans run as one batch query."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.support.compiling import as_stream, compile_text, plan_of
from tidegate.columns import OP
from tidegate.physical.stage_sql import output_sql
from tidegate.plan import nodes as n

pytestmark = pytest.mark.spark

COLUMNS = "a BIGINT, b STRING, v BIGINT, ts TIMESTAMP"
SOURCES = "".join(
    f"CREATE SOURCE {name} ({columns}, WATERMARK FOR ts AS ts) WITH (connector = 'memory');"
    for name, columns in (
        ("t", COLUMNS),
        ("u", COLUMNS),
        ("sure", COLUMNS.replace("a BIGINT", "a BIGINT NOT NULL")),
    )
)
MINUTE = "INTERVAL '1' MINUTE"
NEAR = "u.ts BETWEEN t.ts - INTERVAL '2' SECOND AND t.ts + INTERVAL '1' SECOND"
ONE_ROW = "(SELECT count(*) AS n, max(v) AS top FROM u WHERE a > 1) AS x"
# A query of Tidegate, and the equivalent query of Spark (the same text if there is none).
QUERIES: list[tuple[str, str | None]] = [
    ("SELECT a, b, count(*) AS n, sum(v) AS s, sum(a) AS sa FROM t GROUP BY ROLLUP(a, b)", None),
    (
        "SELECT a, b, grouping(a) AS ga, grouping(b) AS gb, grouping_id() AS g, max(v) AS m "
        "FROM t GROUP BY CUBE(a, b) HAVING grouping_id() <> 1",
        None,
    ),
    (
        "SELECT a, upper(b) AS c, grouping_id() AS g, count(DISTINCT v) AS n FROM t "
        "GROUP BY GROUPING SETS ((a, upper(b)), a, (), a)",
        None,
    ),
    ("SELECT a, b, v, count(*) AS n FROM t GROUP BY a, ROLLUP((b, v)), CUBE(v)", None),
    ("SELECT a % 2 AS odd, b, count(*) AS n FROM t GROUP BY 1, b WITH CUBE", None),
    (
        f"SELECT a, window_end, count(*) AS n FROM t GROUP BY TUMBLE(ts, {MINUTE}), ROLLUP(a)",
        "SELECT a, window.end AS window_end, count(*) AS n FROM t "
        "GROUP BY GROUPING SETS ((window(ts, '1 minute'), a), (window(ts, '1 minute')))",
    ),
    (f"SELECT a, v FROM t WHERE a IN (SELECT a FROM u WHERE u.v > 1 AND {NEAR})", None),
    (
        f"SELECT a, v FROM t WHERE v > 1 AND NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND {NEAR})",
        None,
    ),
    (
        f"SELECT a, v FROM t WHERE EXISTS (SELECT v FROM u WHERE u.a <=> t.a AND {NEAR} LIMIT 1)",
        None,
    ),
    (
        f"SELECT t.a, v FROM sure AS t WHERE a NOT IN (SELECT a FROM sure AS u WHERE v = t.v AND {NEAR})",
        None,
    ),
    (
        "SELECT a, v FROM t WHERE v IS NOT NULL AND v NOT IN "
        f"(SELECT v FROM u WHERE v IS NOT NULL AND {NEAR})",
        None,
    ),
    (f"SELECT a, v FROM t WHERE v NOT IN (SELECT v FROM u WHERE u.a = t.a AND {NEAR})", None),
    ("SELECT a, v FROM t WHERE v NOT IN (SELECT v FROM u WHERE v > 2)", None),
    (
        "SELECT a, v, v / (SELECT sum(v) FROM u) AS part FROM t "
        "WHERE v >= (SELECT count(*) / count(DISTINCT v, a) FROM u) OR a = (SELECT max(a) FROM sure)",
        None,
    ),
    (f"SELECT a, v FROM t WHERE (a, v) IN (SELECT a, v FROM u WHERE {NEAR})", None),
    (
        "SELECT a, v FROM t WHERE v > (SELECT min(r) FROM (SELECT row_number() OVER (PARTITION BY v ORDER BY ts) AS r FROM u))",
        None,
    ),
    *(
        (f"SELECT a, v FROM t WHERE {word} (SELECT 1 FROM {ONE_ROW} WHERE {condition})", None)
        for word in ("EXISTS", "NOT EXISTS")
        for condition in ("x.top > t.v", "x.n > 10 * t.a AND x.n > 1")
    ),
    (f"SELECT a, v FROM t WHERE EXISTS (SELECT 1 FROM u, {ONE_ROW} WHERE {NEAR})", None),
    ("SELECT a, v FROM t WHERE EXISTS (SELECT count(*) FROM u HAVING max(v) = t.v)", None),
    (
        "SELECT a, count(*) AS n FROM t WHERE a IN (SELECT a FROM u GROUP BY a HAVING count(*) > 2) "
        "GROUP BY a HAVING min(v) IN (SELECT v FROM u)",
        None,
    ),
    *(
        (
            f"SELECT t.a, t.b, t.v, t.ts, u.a AS ua, u.b AS ub, u.v AS uv FROM t {how} JOIN u "
            f"ON t.a = u.a AND {bound}t.v < u.v AND t.b IS NOT NULL AND u.b = 'x'",
            None,
        )
        for how in ("LEFT", "RIGHT", "FULL")
        for bound in (f"{NEAR} AND ", "")
    ),
    *(
        (
            f"SELECT t.a, t.b, t.v, t.ts FROM t {how} JOIN u ON t.a = u.a AND {NEAR} AND t.v < u.v",
            None,
        )
        for how in ("SEMI", "ANTI")
    ),
    *(
        (f"SELECT a, v FROM t {operation} SELECT a, v FROM u WHERE b IS NOT NULL", None)
        for operation in ("INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL")
    ),
    (
        "SELECT CAST(a AS INT) AS a, ts FROM t INTERSECT ALL SELECT v, ts FROM u "
        "INTERSECT ALL SELECT a, ts FROM sure",
        None,
    ),
    (
        "SELECT a, b FROM t EXCEPT ALL SELECT a, b FROM u EXCEPT ALL SELECT 1, 'x' FROM sure WHERE v = 1",
        None,
    ),
    (f"SELECT a, v FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.v > t.v AND {NEAR})", None),
    (f"SELECT a, v FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.v > t.v AND {NEAR})", None),
]


def batch_sql(query: str) -> str:
    """Return the whole plan of a query as one statement."""
    text = SOURCES + as_stream(f"{query} EMIT CHANGES", "state_ttl = '1 day'")
    compiled = compile_text(text)
    assert not compiled.errors, "\n".join(error.render() for error in compiled.errors)
    plan = plan_of(compiled, "s")
    return output_sql(plan, lambda node: node.source.name if isinstance(node, n.Scan) else None)


def make_tables(spark: Any) -> None:
    chance = random.Random(7)
    for name in ("t", "u", "sure"):
        nothing = [] if name == "sure" else [None]
        rows = [
            (
                chance.choice([1, 2, 3, *nothing]),
                chance.choice(["x", "y", None]),
                chance.choice([1, 2, 3, None]),
                f"2026-01-01 00:{chance.choice('01')}0:0{chance.randrange(6)}",
            )
            for _ in range(40)
        ]
        frame = spark.createDataFrame(rows, "a BIGINT, b STRING, v BIGINT, ts STRING")
        frame.selectExpr("a", "b", "v", "CAST(ts AS TIMESTAMP) AS ts").createOrReplaceTempView(name)


def test_rewritten_queries_equal_spark(spark: Any) -> None:
    make_tables(spark)
    for query, reference in QUERIES:
        ours = spark.sql(batch_sql(query)).drop(OP)
        theirs = spark.sql(reference or query)
        assert ours.columns == theirs.columns
        assert ours.dtypes == theirs.dtypes, query
        expected = Counter(map(tuple, theirs.collect()))
        assert expected, f"there are no rows to compare: {query}"
        assert Counter(map(tuple, ours.collect())) == expected, query
