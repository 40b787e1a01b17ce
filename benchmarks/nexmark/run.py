"""Run queries on Tidegate to the end of their input, and measure them."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.nexmark import names
from benchmarks.nexmark.events import files_for, stored_rows, write_events
from benchmarks.nexmark.kafka import temporary_topics
from benchmarks.nexmark.scripts import (
    SIDE_KEYS,
    Events,
    Generated,
    Stored,
    needs_side_input,
    script,
)
from tidegate.errors import TidegateError
from tidegate.session.session import Session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

HEADER = ("query", "events/s", "p50 epoch", "p99 epoch", "state", "rows out", "late")
_WIDTHS = (6, 14, 12, 12, 16, 14, 10)
# Shorter than any epoch, so that the status of every epoch is read.
_STATUS_SECONDS = 0.01


@dataclass(frozen=True)
class Workload:
    """The queries, the number of events, and the directory of existing events."""

    queries: Sequence[str]
    rows: int
    events: Path | None


def selected(queries: Sequence[str] | None) -> list[str]:
    """Return the selected queries, or all queries without a selection."""
    existing = names()
    for name in queries or ():
        if name.lower() not in existing:
            raise SystemExit(f"error: unknown query {name}. The queries are {', '.join(existing)}.")
    return [name.lower() for name in queries] if queries else existing


def run(workload: Workload, source: str, sink: str, brokers: str | None = None) -> int:
    """Measure queries and print one line for each; return the exit code."""
    _require_valid(workload, source, brokers)
    failed = 0
    with workspace() as (spark, folder), contextlib.ExitStack() as stack:
        events, rows = _events(spark, folder, workload, source)
        if brokers is not None:
            show_progress("sending the events…")
            stored = workload.events or folder / "events"
            events = stack.enter_context(temporary_topics(stored, brokers))
        print(f"{rows:,} events from {source}", flush=True)
        _print_line(HEADER)
        for name in workload.queries:
            show_progress(f"{name}…")
            job = Job(name, events, "files" if name == "q10" else sink, folder / name, {})
            try:
                _print_line(line(name, rows, job.run(spark)))
            except TidegateError as error:
                failed += print_failure(name, error)
            shutil.rmtree(folder / name, ignore_errors=True)
    return 1 if failed else 0


@dataclass(frozen=True)
class Measured:
    """Measurements of one run of a query."""

    seconds: float
    epoch_seconds: tuple[float, ...]
    state_bytes: int
    """The maximum after an epoch. State at the end is small, because all windows are closed."""
    rows_out: int
    late_rows: int

    def epoch_percentile(self, share: float) -> float | None:
        """Return the time within which this share of the epochs was complete."""
        if not self.epoch_seconds:
            return None
        ordered = sorted(self.epoch_seconds)
        return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


@dataclass(frozen=True)
class Job:
    """A query with its events and its sink."""

    name: str
    events: Events
    sink: str
    work: Path
    config: Mapping[str, Any]
    event_time: bool = False
    """Replace windows over processing time with windows over event time."""

    def run(self, spark: SparkSession) -> Measured:
        """Run the query to the end of its input and measure it."""
        with self._open(spark) as session:
            return _run(session)

    def result(self, spark: SparkSession) -> pa.Table:
        """Run the query and return its final result, after all retractions."""
        with self._open(spark) as session:
            _run(session)
            return session.query(f"SELECT * FROM {self.name}").to_arrow()

    def _open(self, spark: SparkSession) -> Session:
        """Open a session that contains the declarations of the query."""
        session = Session(self.work / "data", spark=spark, config=self.config)
        try:
            text = script(self.name, self.events, self.sink, self.work)
            if self.event_time:
                text = text.replace("PROCTIME(), INTERVAL", "date_time, INTERVAL")
            session.execute(text, self.name)
            if needs_side_input(self.name):
                session.insert("side_input", side_input())
        except BaseException:
            session.close()
            raise
        return session


def side_input() -> pa.Table:
    """Return the rows of the lookup table of q13."""
    import pyarrow as pa

    keys = range(SIDE_KEYS)
    return pa.table({"key": list(keys), "value": [f"value of {key}" for key in keys]})


def line(name: str, rows: int, measured: Measured) -> Sequence[str]:
    """Return the cells of one line of the table."""
    p50, p99 = (measured.epoch_percentile(share) for share in (0.5, 0.99))
    return (
        name,
        f"{rows / measured.seconds:,.0f}",
        "" if p50 is None else f"{p50 * 1000:,.0f} ms",
        "" if p99 is None else f"{p99 * 1000:,.0f} ms",
        f"{measured.state_bytes:,} B",
        f"{measured.rows_out:,}",
        f"{measured.late_rows:,}",
    )


@contextlib.contextmanager
def workspace() -> Iterator[tuple[SparkSession, Path]]:
    """Start Spark and create a temporary directory; delete the directory at the end."""
    show_progress("starting Spark…")
    folder = Path(tempfile.mkdtemp(prefix="tidegate-nexmark-"))
    try:
        with Session(folder / "spark") as session:
            yield session.spark, folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def show_progress(text: str) -> None:
    """Show the current step on a terminal; the next line overwrites it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}\r", end="", file=sys.stderr, flush=True)


def print_failure(name: str, error: Exception) -> int:
    """Print why a query failed; return 1, the number of failures."""
    print(f"{name:6}failed:", flush=True)
    print("      " + str(error).replace("\n", "\n      "), flush=True)
    return 1


def _require_valid(workload: Workload, source: str, brokers: str | None) -> None:
    if workload.events is not None and source == "generator":
        raise SystemExit(
            "error: --events requires --source files or kafka. The generator does not read files."
        )
    if (brokers is not None) != (source == "kafka"):
        raise SystemExit("error: --source kafka and --brokers HOST:PORT require each other.")


def _events(
    spark: SparkSession, folder: Path, workload: Workload, source: str
) -> tuple[Events, int]:
    """Return the events and their number; write them first if they are read from files."""
    if source == "generator":
        return Generated(workload.rows), workload.rows
    if workload.events is not None:
        return Stored(workload.events), stored_rows(workload.events)
    show_progress("writing the events…")
    write_events(spark, workload.rows, folder / "events", files_for(workload.rows))
    return Stored(folder / "events"), workload.rows


def _run(session: Session) -> Measured:
    started = time.perf_counter()
    session.start(until_end=True)
    epochs: dict[int, float] = {}
    state_bytes = 0
    ended = False
    while not ended:
        ended = session.wait(_STATUS_SECONDS)
        seconds = time.perf_counter() - started
        (status,) = session.status()
        state_bytes = max(state_bytes, status.state_bytes)
        if status.epoch is not None and status.epoch_seconds is not None:
            epochs[status.epoch] = status.epoch_seconds
    return Measured(seconds, tuple(epochs.values()), state_bytes, status.rows_out, status.late_rows)


def _print_line(cells: Sequence[str]) -> None:
    first, *others = (cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
    print(first.strip().ljust(_WIDTHS[0]) + "".join(others), flush=True)
