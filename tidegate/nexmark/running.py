"""Runs queries to their end and measures them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.nexmark.scripts import SIDE_KEYS, Events, needs_side_input, script
from tidegate.session.session import Session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# Shorter than any epoch.
_SECONDS_BETWEEN_LOOKS = 0.01


@dataclass(frozen=True)
class Measured:
    """What a run of a query took and left."""

    seconds: float
    epoch_seconds: tuple[float, ...]
    state_bytes: int
    """The most that was kept after an epoch: at the end, windows are closed."""
    rows_out: int
    late_rows: int

    def epoch_percentile(self, share: float) -> float | None:
        """The time within which that share of the epochs was done."""
        if not self.epoch_seconds:
            return None
        ordered = sorted(self.epoch_seconds)
        return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


@dataclass(frozen=True)
class Job:
    """A query, what it reads, and where its rows go; windows by event time if it must be so."""

    name: str
    events: Events
    sink: str
    work: Path
    config: Mapping[str, Any]
    event_time: bool = False

    def run(self, spark: SparkSession) -> Measured:
        """From the start of the streams to the end of the last one."""
        with self._declared(spark) as session:
            return _run(session)

    def result(self, spark: SparkSession) -> pa.Table:
        """What is left of the query in the end: its rows, without those that were retracted."""
        with self._declared(spark) as session:
            _run(session)
            return session.query(f"SELECT * FROM {self.name}").to_arrow()

    def _declared(self, spark: SparkSession) -> Session:
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


def side_input() -> Any:
    """What q13 looks up."""
    import pyarrow as pa

    keys = range(SIDE_KEYS)
    return pa.table({"key": list(keys), "value": [f"value of {key}" for key in keys]})


def _run(session: Session) -> Measured:
    started = time.perf_counter()
    session.start(until_end=True)
    epochs: dict[int, float] = {}
    most = 0
    while not session.wait(_SECONDS_BETWEEN_LOOKS):
        (status,) = session.status()
        most = max(most, status.state_bytes)
        if status.epoch is not None and status.epoch_seconds is not None:
            epochs[status.epoch] = status.epoch_seconds
    seconds = time.perf_counter() - started
    (status,) = session.status()
    if status.epoch is not None and status.epoch_seconds is not None:
        epochs[status.epoch] = status.epoch_seconds
    return Measured(
        seconds,
        tuple(epochs.values()),
        max(most, status.state_bytes),
        status.rows_out,
        status.late_rows,
    )


HEADS = ("query", "events/s", "p50 epoch", "p99 epoch", "state", "rows out", "late")


def line(name: str, rows: int, measured: Measured) -> Sequence[str]:
    """One line of the table, as text."""
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
