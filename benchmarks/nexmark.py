"""The NEXMark queries in Tidegate and in Flink, side by side in one run.

    make nexmark-flink                    # once: Flink in an environment of its own
    python benchmarks/nexmark.py [--rows 5000000] [--rounds 3] [--queries q0,q5] [--only tidegate]

Both read the same parquet files, file after file by name, on the same two cores, into a sink that
forgets; in turns, the other one first in every other round, each in a JVM that was warmed up by a
round that does not count. From handing over the query to the end of the last row; what a job over
fifty events takes is taken off on both sides. Flink: parallelism 2, object reuse, mini-batches,
state on the heap, no checkpoints. Tidegate: its defaults, so every epoch is decided and synced.
q12 is by event time on both sides, for equal work: of processing time there is no telling.

The numbers are medians of the rounds. Above a ratio of 1 Tidegate is faster.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import tidegate
from tidegate.errors import TidegateError
from tidegate.nexmark import flink, flink_names, names
from tidegate.nexmark.events import stored_rows, write_events
from tidegate.nexmark.flink_home import FlinkJobs, find_flink, source_ddl
from tidegate.nexmark.running import Job
from tidegate.nexmark.scripts import Stored, tables

CORES = 2
ROWS_A_FILE = 250_000
EMPTY_ROWS = 50
# Less than this is the noise of two start-ups: there is nothing to compare.
LEAST_SECONDS = 0.1
EMPTY = "empty"
# The mean is over these, those of them that both sides can run.
COUNTED = ("q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q11", "q12")

Run = Callable[[str, Path], float]
"""Runs a query over the events in a folder; how many seconds it took."""


@dataclass
class Side:
    """One of the two, and the seconds it took, by query."""

    name: str
    run: Run
    able: set[str]
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, query: str, events: Path, counts: bool) -> None:
        """Run a query once; one that fails is said so, and is left out from then on."""
        try:
            took = self.run(query, events)
        except TidegateError as error:
            if query == EMPTY:
                raise
            print(f"{query} fails in {self.name}: {error}", file=sys.stderr, flush=True)
            self.able.discard(query)
            self.seconds.pop(query, None)
            return
        if counts:
            self.seconds.setdefault(query, []).append(took)

    def net(self, query: str) -> float | None:
        """What the query took, less what a job takes that has nothing to do; None if too short."""
        if query not in self.seconds:
            return None
        start_up = statistics.median(self.seconds[EMPTY])
        net = statistics.median(self.seconds[query]) - start_up
        return net if net >= LEAST_SECONDS else None


def ours(base: Path) -> Side:
    """Tidegate; Spark is started once and stays."""
    spark = tidegate.open(base / "spark").spark

    def run(query: str, events: Path) -> float:
        work = base / "work"
        name = "q0" if query == EMPTY else query
        shutil.rmtree(work, ignore_errors=True)
        started = time.perf_counter()
        Job(name, Stored(events), "blackhole", work, {}, event_time=True).run(spark)
        return time.perf_counter() - started

    return Side("tidegate", run, set(names()))


def theirs(jobs: FlinkJobs) -> Side:
    """Flink; its process stays, and a cluster is started in it for every job."""

    def run(query: str, events: Path) -> float:
        name = "q0" if query == EMPTY else query
        # A time attribute has milliseconds; read as such it needs no column of its own.
        text = flink(name).replace("rowtime", "date_time")
        statements = [
            ddl for table in tables(name) for ddl in source_ddl(table, events, milliseconds=True)
        ]
        statements += [
            "DROP VIEW IF EXISTS asked",
            f"CREATE VIEW asked AS {text}",
            "DROP TABLE IF EXISTS nowhere",
            "CREATE TABLE nowhere WITH ('connector' = 'blackhole') AS SELECT * FROM asked",
        ]
        return jobs.run(statements)

    return Side("flink", run, set(flink_names()))


def compare(sides: list[Side], queries: list[str], base: Path, events: Path, rounds: int) -> None:
    """All queries once to warm up, then round by round."""
    for number in range(-1, rounds):
        for query in (EMPTY, *queries):
            for side in sides if number % 2 else sides[::-1]:
                if query == EMPTY or query in side.able:
                    folder = base / EMPTY if query == EMPTY else events
                    side.measure(query, folder, counts=number >= 0)
                    _progress(f"round {number + 1} of {rounds}, {query}, {side.name}")
    _progress("")


def report(sides: list[Side], queries: list[str], rows: int) -> None:
    """One line per query, in millions of events per second, and the mean of the ratios."""
    heads = [f"{side.name} M/s" for side in sides]
    print("".join([f"{'':6}", *(f"{head:>16}" for head in heads), f"{'ratio':>10}"]))
    ratios: dict[str, float] = {}
    for query in queries:
        nets = [side.net(query) for side in sides]
        cells = ["-" if net is None else f"{rows / net / 1e6:.2f}" for net in nets]
        ratio = ""
        if len(nets) == 2 and nets[0] is not None and nets[1] is not None:
            ratios[query] = nets[1] / nets[0]
            ratio = f"{ratios[query]:.2f}"
        print("".join([f"{query:6}", *(f"{cell:>16}" for cell in cells), f"{ratio:>10}"]))
    counted = [math.log(ratios[query]) for query in COUNTED if query in ratios]
    if counted:
        mean = math.exp(statistics.mean(counted))
        print(f"geometric mean of {len(counted)} queries: {mean:.2f}")
    for side in sides:
        print(f"{side.name}: {statistics.median(side.seconds[EMPTY]):.2f} s taken off each run")


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queries", default=",".join(COUNTED), help="q0,q5; or all")
    parser.add_argument("--only", choices=("tidegate", "flink"))
    parser.add_argument("--flink", type=Path, help="what `make nexmark-flink` made; .flink")
    parser.add_argument("--events", type=Path, help="what `tidegate nexmark generate` wrote")
    return parser.parse_args()


def _chosen(text: str) -> list[str]:
    chosen = names() if text == "all" else [name for name in text.split(",") if name]
    unknown = [name for name in chosen if name not in names()]
    if unknown:
        sys.exit(f"error: there is no query {unknown[0]}; there are {', '.join(names())}")
    return chosen


def _prepared(arguments: argparse.Namespace, base: Path) -> tuple[Path, int]:
    """The folder of the events, and how many there are."""
    with tidegate.open(base / "writing") as session:
        write_events(session.spark, EMPTY_ROWS, base / EMPTY, 1)
        if arguments.events is not None:
            return arguments.events, stored_rows(arguments.events)
        files = max(1, arguments.rows // ROWS_A_FILE)
        write_events(session.spark, arguments.rows, base / "events", files)
    return base / "events", arguments.rows


def main() -> None:
    arguments = _arguments()
    queries = _chosen(arguments.queries)
    home = None if arguments.only == "tidegate" else find_flink(arguments.flink)
    if home is None and arguments.only != "tidegate":
        sys.exit("error: there is no Flink here\nHint: make nexmark-flink, or --only tidegate")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    base = Path(tempfile.mkdtemp(prefix="tidegate-nexmark-"))
    try:
        events, rows = _prepared(arguments, base)
        print(f"{rows:,} events, {arguments.rounds} rounds, {CORES} cores", flush=True)
        sides = [] if arguments.only == "flink" else [ours(base)]
        if home is None:
            compare(sides, queries, base, events, arguments.rounds)
        else:
            with FlinkJobs(home) as jobs:
                sides.append(theirs(jobs))
                compare(sides, queries, base, events, arguments.rounds)
        report(sides, queries, rows)
    except TidegateError as error:
        sys.exit(error.render())
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
