"""NEXMark queries on Spark return the same rows as DuckDB over the same events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.nexmark.events import stored_rows, write_events
from benchmarks.nexmark.run import side_input
from benchmarks.nexmark.scripts import Stored, script, tables
from benchmarks.nexmark.verify import comparable, difference, duckdb_answer
from tidegate.session.session import Session

pytestmark = pytest.mark.spark

# An aggregate over an aggregate of a join, windows over windows, OVER on updating input, sessions,
# a lookup, distinct counts, a top-N.
QUERIES = ("q4", "q5", "q6", "q11", "q13", "q16", "q19")
EVENTS = 20_000


def test_stateful_queries_in_one_pipeline_return_the_same_rows_as_duckdb(
    spark: Any, data: Path, tmp_path: Path
) -> None:
    counts = write_events(spark, EVENTS, tmp_path / "events", 3, events_per_second=500)
    assert counts == {"person": 400, "auction": 1200, "bid": 18_400}
    assert stored_rows(tmp_path / "events") == EVENTS
    stored = Stored(tmp_path / "events", files_per_epoch=1)
    with Session(data, spark=spark) as session:
        # One pipeline reads the events once for all queries.
        for table in sorted({table for name in QUERIES for table in tables(name)}):
            session.execute(stored.declaration(table))
        for name in QUERIES:
            session.execute(without_sources(script(name, stored, "memory", tmp_path)))
        session.insert("side_input", side_input())
        session.start(until_end=True)
        session.wait()
        differences = {
            name: difference(
                comparable(name, session.query(f"SELECT * FROM {name}").to_arrow()),
                duckdb_answer(name, tmp_path / "events", side_input()),
            )
            for name in QUERIES
        }
        assert {status.epoch for status in session.status()} == {2}
    assert {name: (str(item), item.examples) for name, item in differences.items() if item} == {}


def without_sources(text: str) -> str:
    """Remove the sources of a script; the test declares them once for all queries."""
    return "\n".join(line for line in text.split("\n") if not line.startswith("CREATE SOURCE"))
