"""The NEXMark benchmark: queries q0 to q22 for Tidegate, DuckDB and Flink.

    python -m benchmarks.nexmark run | verify | generate | compare

`query("q5")` returns a complete Tidegate script whose sources are unbounded generators.
`duckdb_query("q5")` and `flink_query("q5")` return the same query for the other engines. The three
versions are written independently, so that their results can be compared.
"""

from __future__ import annotations

from pathlib import Path

_QUERIES = Path(__file__).parent / "queries"


def names() -> list[str]:
    """Return the names of all queries, ordered by number."""
    return _names("tidegate")


def query(name: str) -> str:
    """Return the Tidegate script of a query: its sources and one stream named like the query."""
    return _text("tidegate", name)


def duckdb_query(name: str) -> str:
    """Return the batch query for DuckDB, over tables with the names of the sources."""
    return _text("duckdb", name)


def flink_names() -> list[str]:
    """Return the names of the queries that have a version for Flink."""
    return _names("flink")


def flink_query(name: str) -> str:
    """Return the query for Flink: one SELECT over tables with the names of the sources."""
    return _text("flink", name)


def _names(engine: str) -> list[str]:
    stems = [path.stem for path in (_QUERIES / engine).glob("q*.sql")]
    return sorted(stems, key=lambda name: int(name[1:]))


def _text(engine: str, name: str) -> str:
    existing = _names(engine)
    if name not in existing:
        raise KeyError(f"unknown query {name}; the queries are {', '.join(existing)}")
    return (_QUERIES / engine / f"{name}.sql").read_text("utf-8")
