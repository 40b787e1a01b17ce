"""What `tidegate nexmark` does: finds events, runs queries one by one, prints a line for each."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.errors import RunError, TidegateError
from tidegate.nexmark import names
from tidegate.nexmark.comparing import batch_answer, comparable, difference
from tidegate.nexmark.events import stored_rows, write_events
from tidegate.nexmark.flink_home import Flink, FlinkJobs, find_flink, flink_answer, unable
from tidegate.nexmark.running import HEADS, Job, line, side_input
from tidegate.nexmark.scripts import Events, Generated, Stored
from tidegate.nexmark.topics import sent
from tidegate.session.session import Session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_ROWS_A_FILE = 250_000
# While results are compared an epoch reads two files of each table: results must not depend on it.
_FILES_COMPARED, _FILES_AN_EPOCH = 8, 2
# Few events per second make many windows of few events.
_EVENTS_PER_SECOND_COMPARED = 1_000
_WIDTHS = (6, 14, 12, 12, 16, 14, 10)


@dataclass(frozen=True)
class Wanted:
    """Which queries over how many events, which may be there already."""

    queries: Sequence[str]
    rows: int
    events: Path | None


def known(queries: Sequence[str] | None) -> list[str]:
    """The queries that are asked for; all if none is."""
    there = names()
    for name in queries or ():
        if name.lower() not in there:
            raise RunError(
                "TG-506", f"there is no query {name}", hint=f"there are {', '.join(there)}."
            )
    return [name.lower() for name in queries] if queries else there


def run(wanted: Wanted, source: str, sink: str, brokers: str | None = None) -> int:
    """Measure queries; returns the exit code."""
    _require_fitting(wanted, source, brokers)
    failed = 0
    with _workshop() as (spark, folder), contextlib.ExitStack() as stack:
        events, rows = _events(spark, folder, wanted, source)
        if brokers is not None:
            _progress("sending the events…")
            events = stack.enter_context(sent(wanted.events or folder / "events", brokers))
        print(f"{rows:,} events from {source}", flush=True)
        _print_line(HEADS)
        for name in wanted.queries:
            _progress(f"{name}…")
            job = Job(name, events, "files" if name == "q10" else sink, folder / name, {})
            try:
                _print_line(line(name, rows, job.run(spark)))
            except TidegateError as error:
                failed += _print_failure(name, error)
            shutil.rmtree(folder / name, ignore_errors=True)
    return 1 if failed else 0


def _require_fitting(wanted: Wanted, source: str, brokers: str | None) -> None:
    if wanted.events is not None and source == "generator":
        raise RunError(
            "TG-506",
            "the generator makes its own events",
            hint=f"tidegate nexmark run --source files --events {wanted.events}",
        )
    if (brokers is not None) != (source == "kafka"):
        raise RunError(
            "TG-506",
            "events from Kafka need brokers, and no others do",
            hint="tidegate nexmark run --source kafka --brokers localhost:9092",
        )


def verify(wanted: Wanted, flink_folder: Path | None) -> int:
    """Compare the results of queries with those of other engines; returns the exit code."""
    flink = find_flink(flink_folder)
    different = 0
    with _workshop() as (spark, folder), _jobs(flink) as jobs:
        _progress("writing the events…")
        stored = wanted.events or folder / "events"
        rows = wanted.rows
        if wanted.events is None:
            write_events(spark, rows, stored, _FILES_COMPARED, _EVENTS_PER_SECOND_COMPARED)
        else:
            rows = stored_rows(stored)
        print(f"{rows:,} events; {flink.version if flink else 'Flink is not installed'}")
        print(f"{'query':6}{'rows':>12}  {'DuckDB':36}{'Flink' if flink else ''}", flush=True)
        for name in wanted.queries:
            _progress(f"{name}…")
            different += _verify_one(name, spark, folder, stored, jobs)
    if different:
        print(f"{different} of {len(wanted.queries)} queries differ or failed")
    return 1 if different else 0


def generate(out: Path, rows: int, files: int | None) -> int:
    """Write events; returns the exit code."""
    with _workshop() as (spark, _):
        _progress("writing the events…")
        written = write_events(spark, rows, out, files or max(1, rows // _ROWS_A_FILE))
    _progress("")
    for table, count in written.items():
        print(f"{count:>14,} rows in {out / table}")
    return 0


def _verify_one(
    name: str, spark: SparkSession, folder: Path, stored: Path, jobs: FlinkJobs | None
) -> int:
    """Print a line about one query; 1 if anything is wrong with it."""
    job = Job(name, Stored(stored, _FILES_AN_EPOCH), "memory", folder / name, {})
    try:
        result = job.result(spark)
        rows = comparable(name, result)
        batch = difference(rows, batch_answer(name, stored, side_input()))
        said, wrong, examples = _ask_flink(name, result, stored, folder, jobs)
    except TidegateError as error:
        return _print_failure(name, error)
    finally:
        shutil.rmtree(folder / name, ignore_errors=True)
    print(f"{name:6}{result.num_rows:>12,}  {batch!s:36}{said}", flush=True)
    for example in (*batch.examples, *(f"Flink: {text}" for text in examples)):
        print(f"      {example}")
    return int(bool(batch) or wrong)


def _ask_flink(
    name: str, result: pa.Table, stored: Path, folder: Path, jobs: FlinkJobs | None
) -> tuple[str, bool, Sequence[str]]:
    """What to say of Flink's answer, whether it is wrong, and which rows differ."""
    if jobs is None:
        return "", False, ()
    reason = unable(name)
    if reason is not None:
        return reason, False, ()
    target = folder / f"{name}-flink"
    answer = flink_answer(jobs, name, stored, target, result.column_names)
    shutil.rmtree(target, ignore_errors=True)
    ours, theirs = (comparable(name, item, with_flink=True) for item in (result, answer))
    found = difference(ours, theirs)
    return str(found), bool(found), found.examples


@contextlib.contextmanager
def _jobs(flink: Flink | None) -> Iterator[FlinkJobs | None]:
    if flink is None:
        yield None
        return
    with FlinkJobs(flink) as jobs:
        yield jobs


@contextlib.contextmanager
def _workshop() -> Iterator[tuple[SparkSession, Path]]:
    """A Spark and a folder that is gone afterwards."""
    _progress("starting Spark…")
    folder = Path(tempfile.mkdtemp(prefix="tidegate-nexmark-"))
    try:
        with Session(folder / "spark") as session:
            yield session.spark, folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _events(spark: SparkSession, folder: Path, wanted: Wanted, source: str) -> tuple[Events, int]:
    if source == "generator":
        return Generated(wanted.rows), wanted.rows
    if wanted.events is not None:
        return Stored(wanted.events), stored_rows(wanted.events)
    _progress("writing the events…")
    write_events(spark, wanted.rows, folder / "events", max(1, wanted.rows // _ROWS_A_FILE))
    return Stored(folder / "events"), wanted.rows


def _print_line(cells: Sequence[str]) -> None:
    first, *others = (cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
    print(first.strip().ljust(_WIDTHS[0]) + "".join(others), flush=True)


def _progress(text: str) -> None:
    """What is going on, for someone who looks; the next line takes its place."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}\r", end="", file=sys.stderr, flush=True)


def _print_failure(name: str, error: TidegateError) -> int:
    print(f"{name:6}failed:", flush=True)
    print("      " + error.render().replace("\n", "\n      "), flush=True)
    return 1
