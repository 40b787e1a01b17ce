"""Compare the throughput of Tidegate and Flink, in turns in one run.

    make nexmark-flink                    # once: install Flink in a separate environment
    python -m benchmarks.nexmark compare [q0 q5] [--rows 5000000] [--rounds 3] [--only tidegate]

Both engines read the same Parquet files, ordered by name, on the same two cores, and write to a
blackhole sink. They take turns, and the order alternates between rounds. Each engine has its own
JVM, and a warm-up round is not counted. The time runs from the submission of the query to its last
row. The time of a job over 50 events is subtracted on both sides. Flink: parallelism 2, object
reuse, mini-batches, state on the heap, no checkpoints. Tidegate: default settings, so every epoch
is committed and synced. q12 uses event time on both sides, because the work of processing-time
windows depends on the speed.

The numbers are medians of the rounds. Above a ratio of 1 Tidegate is faster. The geometric mean
covers all queries that both engines ran.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tidegate
from benchmarks.nexmark import flink_names, flink_query, names
from benchmarks.nexmark.events import files_for, stored_rows, write_events
from benchmarks.nexmark.flink import FlinkError, FlinkJobs, find_flink, source_ddl
from benchmarks.nexmark.run import Job, Workload, show_progress
from benchmarks.nexmark.scripts import Stored, tables
from tidegate.errors import TidegateError

CORES = 2
EMPTY_ROWS = 50
# A shorter net time is within the variation of two start-ups and results in no ratio.
LEAST_SECONDS = 0.1
EMPTY = "empty"

Run = Callable[[str, Path], float]
"""Runs a query over the events in a directory and returns the seconds that it took."""


@dataclass
class Engine:
    """An engine, the queries that it can run, and the measured seconds by query."""

    name: str
    run: Run
    supported: set[str]
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, query: str, events: Path, counts: bool) -> None:
        """Run a query once. Report a query that fails, and exclude it from then on."""
        try:
            seconds = self.run(query, events)
        except (TidegateError, FlinkError) as error:
            if query == EMPTY:
                raise
            print(f"{query} fails in {self.name}: {error}", file=sys.stderr, flush=True)
            self.supported.discard(query)
            self.seconds.pop(query, None)
            return
        if counts:
            self.seconds.setdefault(query, []).append(seconds)

    def net(self, query: str) -> float | None:
        """Return the median seconds without start-up, or None if not measured or too short."""
        if query not in self.seconds:
            return None
        start_up = statistics.median(self.seconds[EMPTY])
        net = statistics.median(self.seconds[query]) - start_up
        return net if net >= LEAST_SECONDS else None


def compare(workload: Workload, rounds: int, only: str | None, flink_folder: Path | None) -> int:
    """Measure queries in both engines and print the ratios; return the exit code.

    Without selected queries, measure all queries that all measured engines can run.
    """
    home = None if only == "tidegate" else find_flink(flink_folder)
    if home is None and only != "tidegate":
        raise SystemExit(
            "error: Flink is not installed. Run `make nexmark-flink`, or use --only tidegate."
        )
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    base = Path(tempfile.mkdtemp(prefix="tidegate-nexmark-"))
    try:
        events, rows = _prepare(workload, base)
        print(f"{rows:,} events, {rounds} rounds, {CORES} cores", flush=True)
        engines = [] if only == "flink" else [_tidegate(base)]
        if home is None:
            queries = _measure(engines, workload.queries, base, events, rounds)
        else:
            with FlinkJobs(home) as jobs:
                engines.append(_flink(jobs))
                queries = _measure(engines, workload.queries, base, events, rounds)
        report(engines, queries, rows)
    except FlinkError as error:
        raise SystemExit(f"error: {error}") from None
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return 0


def report(engines: Sequence[Engine], queries: Sequence[str], rows: int) -> None:
    """Print millions of events per second for each query, and the geometric mean of all ratios."""
    heads = [f"{engine.name} M/s" for engine in engines]
    print("".join([f"{'':6}", *(f"{head:>16}" for head in heads), f"{'ratio':>10}"]))
    ratios: dict[str, float] = {}
    for query in queries:
        nets = [engine.net(query) for engine in engines]
        cells = ["-" if net is None else f"{rows / net / 1e6:.2f}" for net in nets]
        ratio = ""
        if len(nets) == 2 and nets[0] is not None and nets[1] is not None:
            ratios[query] = nets[1] / nets[0]
            ratio = f"{ratios[query]:.2f}{'  below 1' if ratios[query] < 1 else ''}"
        print("".join([f"{query:6}", *(f"{cell:>16}" for cell in cells), f"{'':6}{ratio}"]))
    if ratios:
        _print_mean(ratios)
    missing = [query for query in queries if query not in ratios]
    if missing and len(engines) == 2:
        print(f"without a ratio (not run by both engines, or too short): {', '.join(missing)}")
    for engine in engines:
        start_up = statistics.median(engine.seconds[EMPTY])
        print(f"{engine.name}: {start_up:.2f} s of start-up time subtracted from each run")


def _print_mean(ratios: dict[str, float]) -> None:
    mean = math.exp(statistics.mean(math.log(ratio) for ratio in ratios.values()))
    slower = [query for query, ratio in ratios.items() if ratio < 1]
    print(f"geometric mean of {len(ratios)} queries: {mean:.2f}")
    print(
        f"below 1: {len(slower)} of {len(ratios)}{' (' + ', '.join(slower) + ')' if slower else ''}"
    )


def _measure(
    engines: Sequence[Engine], selected: Sequence[str], base: Path, events: Path, rounds: int
) -> list[str]:
    """Run all queries once to warm up, then in rounds; return the queries."""
    common = set.intersection(*(engine.supported for engine in engines))
    queries = list(selected) or [name for name in names() if name in common]
    for number in range(-1, rounds):
        for query in (EMPTY, *queries):
            for engine in engines if number % 2 else engines[::-1]:
                if query == EMPTY or query in engine.supported:
                    show_progress(f"round {number + 1} of {rounds}, {query}, {engine.name}")
                    folder = base / EMPTY if query == EMPTY else events
                    engine.measure(query, folder, counts=number >= 0)
    show_progress("")
    return queries


def _tidegate(base: Path) -> Engine:
    """Return Tidegate; all queries run in the same Spark."""
    spark = tidegate.open(base / "spark").spark

    def run(query: str, events: Path) -> float:
        work = base / "work"
        name = "q0" if query == EMPTY else query
        shutil.rmtree(work, ignore_errors=True)
        started = time.perf_counter()
        Job(name, Stored(events), "blackhole", work, {}, event_time=True).run(spark)
        return time.perf_counter() - started

    return Engine("tidegate", run, set(names()))


def _flink(jobs: FlinkJobs) -> Engine:
    """Return Flink; all queries run in the same process, each with its own mini cluster."""

    def run(query: str, events: Path) -> float:
        name = "q0" if query == EMPTY else query
        # Event times are read as milliseconds, so `date_time` itself is the time attribute.
        text = flink_query(name).replace("rowtime", "date_time")
        statements = [
            ddl for table in tables(name) for ddl in source_ddl(table, events, milliseconds=True)
        ]
        statements += [
            "DROP VIEW IF EXISTS measured_query",
            f"CREATE VIEW measured_query AS {text}",
            "DROP TABLE IF EXISTS measured_sink",
            "CREATE TABLE measured_sink WITH ('connector' = 'blackhole') "
            "AS SELECT * FROM measured_query",
        ]
        return jobs.run(statements)

    return Engine("flink", run, set(flink_names()))


def _prepare(workload: Workload, base: Path) -> tuple[Path, int]:
    """Write the events unless they exist; return their directory and their number."""
    with tidegate.open(base / "writing") as session:
        write_events(session.spark, EMPTY_ROWS, base / EMPTY, 1)
        if workload.events is not None:
            return workload.events, stored_rows(workload.events)
        write_events(session.spark, workload.rows, base / "events", files_for(workload.rows))
    return base / "events", workload.rows
