"""Holds the result of a query against the answer of another engine over the same events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.connectors.generator.nexmark import TABLES
from tidegate.nexmark import batch

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# So many rows are shown of those that only one side has.
_SHOWN = 3
# What of a result can be compared, where that is not all of it: windows of processing time are
# others in every run. With Flink: its sessions begin and end at milliseconds.
_MILLISECONDS = "date_trunc('milliseconds', CAST({0} AS TIMESTAMPTZ)) AS {0}"
_COMPARABLE_WITH_FLINK = {
    "q11": "SELECT bidder, bid_count, "
    f"{_MILLISECONDS.format('starttime')}, {_MILLISECONDS.format('endtime')} FROM result"
}
_COMPARABLE = {
    "q12": "SELECT bidder, CAST(sum(CAST(bid_count AS INT)) AS BIGINT) AS bid_count "
    "FROM result GROUP BY bidder"
}


@dataclass(frozen=True)
class Difference:
    """Rows that one side has and the other has not, or not as often; a few of them as text."""

    missing: int
    extra: int
    examples: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra)

    def __str__(self) -> str:
        if not self:
            return "equal"
        return f"{self.missing:,} rows missing, {self.extra:,} too many"


def batch_answer(name: str, events: Path, side_input: pa.Table) -> pa.Table:
    """What DuckDB makes of the events."""
    with _engine() as engine:
        for table in TABLES:
            files = str(events / table / "*.parquet").replace("'", "''")
            engine.execute(f"CREATE VIEW {table} AS FROM read_parquet('{files}')")
        engine.register("side_input", side_input)
        return engine.sql(batch(name)).to_arrow_table()


def comparable(name: str, result: pa.Table, with_flink: bool = False) -> pa.Table:
    """What of a result other engines can be asked for."""
    texts = {**_COMPARABLE, **(_COMPARABLE_WITH_FLINK if with_flink else {})}
    if name not in texts:
        return result
    with _engine() as engine:
        engine.register("result", result)
        return engine.sql(texts[name]).to_arrow_table()


def difference(result: pa.Table, answer: pa.Table) -> Difference:
    """Compare two bags of rows. Values count, and not how an engine stores them."""
    ours, theirs = result.column_names, answer.column_names
    if ours != theirs:
        return Difference(answer.num_rows, result.num_rows, (f"columns {theirs}, not {ours}",))
    with _engine() as engine:
        engine.register("given", result)
        types = [row[1] for row in engine.execute("DESCRIBE given").fetchall()]
        casts = [f'CAST("{n}" AS {t}) AS "{n}"' for n, t in zip(ours, types, strict=True)]
        columns = ", ".join(casts)
        engine.execute(f"CREATE TABLE result AS SELECT {columns} FROM given")
        engine.register("wanted", answer)
        engine.execute(f"CREATE TABLE answer AS SELECT {columns} FROM wanted")
        missing = _left_over(engine, "answer", "result")
        extra = _left_over(engine, "result", "answer")
    shown = [f"missing: {row}" for row in missing[:_SHOWN]]
    shown += [f"too many: {row}" for row in extra[:_SHOWN]]
    return Difference(len(missing), len(extra), tuple(shown))


def _left_over(engine: duckdb.DuckDBPyConnection, some: str, others: str) -> Sequence[Any]:
    return engine.execute(f"FROM {some} EXCEPT ALL FROM {others} ORDER BY ALL").fetchall()


def _engine() -> duckdb.DuckDBPyConnection:
    import duckdb

    engine = duckdb.connect()
    engine.execute("SET TimeZone = 'UTC'")
    return engine
