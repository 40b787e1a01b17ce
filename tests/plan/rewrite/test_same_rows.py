"""Random queries return the same rows with and without the optimizer, in batch on DuckDB.

TIDEGATE_EXAMPLES is the number of queries (500), TIDEGATE_SEED the first of their seeds.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import duckdb
import pytest

from tests.plan.rewrite.batch_sql import sql_of
from tests.plan.rewrite.queries import SOURCES, TABLES, Row, Script, rows
from tests.support.compiling import compile_text, plan_of
from tidegate.compile.compiler import Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.physical.explain import explain
from tidegate.plan import nodes as n
from tidegate.plan.rewrite.optimizer import optimize

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "500"))
SEED = int(os.environ.get("TIDEGATE_SEED", "1"))
BATCHES = 10
QUERIES_PER_DATABASE = 10
DECLARED = compile_text(SOURCES)


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    # Only Tidegate's optimizer is tested: that of DuckDB loses rows of some SEMI JOINs.
    connection.execute("PRAGMA disable_optimizer")
    return connection


def fill(database: duckdb.DuckDBPyConnection, tables: dict[str, list[Row]]) -> None:
    database.execute(TABLES)
    for name, values in tables.items():
        if values:
            placeholders = ", ".join("?" for _ in values[0])
            tuples = ", ".join(f"({placeholders})" for _ in values)
            flat = [value for row in values for value in row]
            database.execute(f"INSERT INTO {name} VALUES {tuples}", flat)


def answer(database: duckdb.DuckDBPyConnection, plan: n.Emit) -> Counter[str]:
    # As text, because lists are not hashable.
    return Counter(repr(row) for row in database.execute(sql_of(plan)).fetchall())


def check(database: duckdb.DuckDBPyConnection, seed: int) -> bool:
    """Check one query on random rows; return whether the optimizer changed its plan."""
    if seed % QUERIES_PER_DATABASE == 0:
        fill(database, rows(Random(seed)))
    script = Script(Random(seed)).write()
    compiled = Compiler(CONNECTORS, DECLARED.catalog, DECLARED.settings).compile(script)
    assert not compiled.errors, f"{script}\n" + "\n".join(e.render() for e in compiled.errors)
    before = plan_of(compiled, "s")
    after = optimize(before)
    same = answer(database, after) == answer(database, before)
    assert same, f"seed {seed}\n{script}\n{explain(before)}\n{explain(after)}"
    assert [item.id for item in after.fields] == [item.id for item in before.fields]
    assert after.changelog is before.changelog
    assert optimize(after) is after, f"a second run changes the plan: seed {seed}\n{script}"
    return after is not before


@pytest.mark.parametrize("batch", range(BATCHES))
def test_same_rows_with_and_without_the_optimizer(
    batch: int, database: duckdb.DuckDBPyConnection
) -> None:
    count = -(-EXAMPLES // BATCHES)
    first = (SEED + batch * count) // QUERIES_PER_DATABASE * QUERIES_PER_DATABASE
    seeds = range(first, first + count)
    changed = sum(check(database, seed) for seed in seeds)
    assert changed > len(seeds) // 2, "most queries have something to optimize"
