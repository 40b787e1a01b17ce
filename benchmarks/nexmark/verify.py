"""Compare the results of Tidegate with those of DuckDB and Flink over the same events."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.nexmark import duckdb_query
from benchmarks.nexmark.events import stored_rows, write_events
from benchmarks.nexmark.flink import (
    Flink,
    FlinkError,
    FlinkJobs,
    find_flink,
    flink_answer,
    why_unsupported,
)
from benchmarks.nexmark.run import (
    Job,
    Workload,
    print_failure,
    show_progress,
    side_input,
    workspace,
)
from benchmarks.nexmark.scripts import Stored
from tidegate.connectors.generator.nexmark import TABLES
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyspark.sql import SparkSession

# An epoch reads two of the eight files of each table: results must not depend on epochs.
_FILES, _FILES_PER_EPOCH = 8, 2
# Few events per second result in many windows with few events each.
_EVENTS_PER_SECOND = 1_000
# The number of differing rows that are printed, for each direction.
_SHOWN = 3
# The comparable part of results that cannot be compared completely. Processing-time windows differ
# in every run, and Flink's session bounds are milliseconds.
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
    """The number of missing and extra rows of a result, with a few examples as text."""

    missing: int
    extra: int
    examples: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra)

    def __str__(self) -> str:
        if not self:
            return "equal"
        return f"{self.missing:,} rows missing, {self.extra:,} extra"


def verify(workload: Workload, flink_folder: Path | None) -> int:
    """Compare the results of all queries; return the exit code."""
    flink = find_flink(flink_folder)
    different = 0
    with workspace() as (spark, folder), _jobs(flink) as jobs:
        show_progress("writing the events…")
        stored = workload.events or folder / "events"
        rows = workload.rows
        if workload.events is None:
            write_events(spark, rows, stored, _FILES, _EVENTS_PER_SECOND)
        else:
            rows = stored_rows(stored)
        print(f"{rows:,} events; {flink.version if flink else 'Flink is not installed'}")
        print(f"{'query':6}{'rows':>12}  {'DuckDB':36}{'Flink' if flink else ''}", flush=True)
        for name in workload.queries:
            show_progress(f"{name}…")
            different += _verify_query(name, spark, folder, stored, jobs)
    if different:
        print(f"{different} of {len(workload.queries)} queries differ or failed")
    return 1 if different else 0


def _verify_query(
    name: str, spark: SparkSession, folder: Path, stored: Path, jobs: FlinkJobs | None
) -> int:
    """Compare one query and print a line; return 1 if a result differs or the query fails."""
    job = Job(name, Stored(stored, _FILES_PER_EPOCH), "memory", folder / name, {})
    try:
        result = job.result(spark)
        duckdb = difference(comparable(name, result), duckdb_answer(name, stored, side_input()))
        flink = _compare_with_flink(name, result, stored, folder, jobs)
    except (TidegateError, FlinkError) as error:
        return print_failure(name, error)
    finally:
        shutil.rmtree(folder / name, ignore_errors=True)
    print(f"{name:6}{result.num_rows:>12,}  {duckdb!s:36}{flink}", flush=True)
    examples = [*duckdb.examples]
    if isinstance(flink, Difference):
        examples += [f"Flink: {example}" for example in flink.examples]
    for example in examples:
        print(f"      {example}")
    return int(bool(duckdb) or (isinstance(flink, Difference) and bool(flink)))


def _compare_with_flink(
    name: str, result: pa.Table, stored: Path, folder: Path, jobs: FlinkJobs | None
) -> Difference | str:
    """Return the difference from Flink's result, or why the results are not compared."""
    if jobs is None:
        return ""
    reason = why_unsupported(name)
    if reason is not None:
        return reason
    target = folder / f"{name}-flink"
    answer = flink_answer(jobs, name, stored, target, result.column_names)
    shutil.rmtree(target, ignore_errors=True)
    ours, theirs = (comparable(name, item, with_flink=True) for item in (result, answer))
    return difference(ours, theirs)


@contextlib.contextmanager
def _jobs(flink: Flink | None) -> Iterator[FlinkJobs | None]:
    if flink is None:
        yield None
        return
    with FlinkJobs(flink) as jobs:
        yield jobs


def duckdb_answer(name: str, events: Path, side_input: pa.Table) -> pa.Table:
    """Return DuckDB's result of a query."""
    with _engine() as engine:
        for table in TABLES:
            files = str(events / table / "*.parquet").replace("'", "''")
            engine.execute(f"CREATE VIEW {table} AS FROM read_parquet('{files}')")
        engine.register("side_input", side_input)
        return engine.sql(duckdb_query(name)).to_arrow_table()


def comparable(name: str, result: pa.Table, with_flink: bool = False) -> pa.Table:
    """Return the part of a result that is the same in other engines."""
    texts = {**_COMPARABLE, **(_COMPARABLE_WITH_FLINK if with_flink else {})}
    if name not in texts:
        return result
    with _engine() as engine:
        engine.register("result", result)
        return engine.sql(texts[name]).to_arrow_table()


def difference(result: pa.Table, answer: pa.Table) -> Difference:
    """Compare two results as multisets of rows, cast to the types of the first."""
    ours, theirs = result.column_names, answer.column_names
    if ours != theirs:
        return Difference(answer.num_rows, result.num_rows, (f"columns {theirs}, not {ours}",))
    with _engine() as engine:
        engine.register("result_input", result)
        types = [row[1] for row in engine.execute("DESCRIBE result_input").fetchall()]
        casts = [f'CAST("{n}" AS {t}) AS "{n}"' for n, t in zip(ours, types, strict=True)]
        columns = ", ".join(casts)
        engine.execute(f"CREATE TABLE result AS SELECT {columns} FROM result_input")
        engine.register("answer_input", answer)
        engine.execute(f"CREATE TABLE answer AS SELECT {columns} FROM answer_input")
        missing = _only_in(engine, "answer", "result")
        extra = _only_in(engine, "result", "answer")
    shown = [f"missing: {row}" for row in missing[:_SHOWN]]
    shown += [f"extra: {row}" for row in extra[:_SHOWN]]
    return Difference(len(missing), len(extra), tuple(shown))


def _only_in(engine: duckdb.DuckDBPyConnection, some: str, others: str) -> Sequence[Any]:
    return engine.execute(f"FROM {some} EXCEPT ALL FROM {others} ORDER BY ALL").fetchall()


def _engine() -> duckdb.DuckDBPyConnection:
    import duckdb

    engine = duckdb.connect()
    engine.execute("SET TimeZone = 'UTC'")
    return engine
