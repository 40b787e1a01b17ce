"""Plans return the same rows as their queries: each plan as one statement in DuckDB."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import duckdb
import pytest
import sqlglot
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.support.compiling import as_stream, compile_text, plan_of
from tidegate.physical.stage_sql import output_sql
from tidegate.plan import nodes as n
from tidegate.plan.rewrite.optimizer import optimize

SOURCES = "".join(
    f"CREATE SOURCE {name} (k BIGINT{rule}, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'memory');"
    for name, rule in (("l", ""), ("r", ""), ("sure", " NOT NULL"))
)
NEAR = "r.ts BETWEEN l.ts - INTERVAL '2' SECOND AND l.ts + INTERVAL '1' SECOND"
OUTER = [
    f"SELECT l.k, l.v, l.ts, r.k AS rk, r.v AS rv FROM l {how} JOIN r ON l.k = r.k AND {bound}"
    "l.v < r.v AND l.v > 0"
    for how in ("LEFT", "RIGHT", "FULL")
    for bound in (f"{NEAR} AND ", "")
]
QUERIES = [
    *OUTER,
    f"SELECT l.k, l.v FROM l SEMI JOIN r ON l.k = r.k AND {NEAR} AND l.v < r.v",
    f"SELECT l.k, l.v FROM l ANTI JOIN r ON {NEAR} AND l.v < r.v",
    f"SELECT l.k FROM l WHERE v IN (SELECT v FROM r WHERE r.k > l.k AND {NEAR})",
    f"SELECT l.v FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.k = l.k AND r.v <> l.v AND {NEAR})",
    "SELECT l.v FROM sure AS l WHERE k NOT IN (SELECT k FROM sure AS r WHERE r.v = l.v)",
    "SELECT v FROM l WHERE v NOT IN (SELECT k FROM r WHERE k IS NOT NULL) AND v IS NOT NULL",
    "SELECT k, v FROM l WHERE v NOT IN (SELECT k FROM r)",
    "SELECT k, v FROM sure WHERE k NOT IN (SELECT v FROM r)",
    "SELECT k, v FROM l WHERE v + 1 NOT IN (SELECT k FROM sure)",
    f"SELECT l.k, l.v FROM l WHERE v NOT IN (SELECT v FROM r WHERE {NEAR})",
    f"SELECT l.k, l.v FROM l WHERE v NOT IN (SELECT v FROM r WHERE r.k = l.k AND {NEAR} AND r.ts < l.ts)",
    "SELECT k, v FROM l WHERE v > (SELECT avg(v) FROM r)",
    "SELECT k, v FROM l WHERE v >= (SELECT count(*) - count(k) FROM r) OR k = (SELECT max(k) FROM sure)",
    "SELECT k, count(*) AS n FROM l GROUP BY k HAVING count(*) > (SELECT count(DISTINCT v) FROM r WHERE k > 0)",
    "SELECT k, v - (SELECT min(v) FROM r) AS d, (SELECT count(*) FROM r) AS n FROM l WHERE v IS NOT NULL",
    "SELECT k, v FROM l INTERSECT SELECT v, k FROM r",
    "SELECT k, v FROM l EXCEPT SELECT k, v FROM r EXCEPT SELECT k, v FROM sure",
]
NUMBERS = st.one_of(st.none(), st.integers(0, 2))
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 4)), max_size=7)
SURE = st.lists(st.tuples(st.integers(0, 2), NUMBERS, st.integers(0, 4)), max_size=5)


@cache
def planned(query: str, optimized: bool) -> str:
    """Return the plan of a query as one statement in the dialect of DuckDB."""
    text = SOURCES + as_stream(f"{query} EMIT CHANGES", "state_ttl = '1 day'")
    compiled = compile_text(text)
    assert not compiled.errors, "\n".join(error.render() for error in compiled.errors)
    plan = plan_of(compiled, "s")
    plan = optimize(plan) if optimized else plan
    sql = output_sql(plan, lambda node: node.source.name if isinstance(node, n.Scan) else None)
    # The tables have timestamps without a time zone, so the query must compare these.
    return sqlglot.transpile(sql, read="spark", write="duckdb")[0].replace(
        "TIMESTAMPTZ", "TIMESTAMP"
    )


def answer(db: Any, sql: str) -> Counter[tuple[Any, ...]]:
    rows = db.execute(sql).fetchall()
    # All rows are in one epoch, so a changelog contains only inserts.
    return Counter(tuple(row[:-1]) if row and row[-1] == "+I" else tuple(row) for row in rows)


@pytest.mark.parametrize("query", QUERIES)
@seed(20260101)
@settings(deadline=None, max_examples=25, database=None)
@given(left=ROWS, right=ROWS, sure=SURE)
def test_plan_returns_the_rows_of_the_query(query: str, left: Any, right: Any, sure: Any) -> None:
    with duckdb.connect(config={"threads": 1}) as db:
        for name, rows in (("l", left), ("r", right), ("sure", sure)):
            db.execute(f"CREATE TABLE {name} (k BIGINT, v BIGINT, ts TIMESTAMP)")
            cells = [f"({k}, {v}, TIMESTAMP '2026-01-01 00:00:0{s}')" for k, v, s in rows]
            if cells:
                values = ", ".join(cells).replace("None", "NULL")
                db.execute(f"INSERT INTO {name} VALUES {values}")
        expected = answer(db, query)
        assert answer(db, planned(query, False)) == expected
        assert answer(db, planned(query, True)) == expected
