"""Sessions, rows and waiting for tests on Spark."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidegate
from tidegate.session.session import Session
from tidegate.session.subscription import Batch


def bag(rows: Iterable[Any]) -> Counter[str]:
    """Return rows without their order."""
    return Counter(repr(sorted(row.items())) for row in rows)


def rows_of(batches: Iterable[Batch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.table.to_pylist()]


def standing(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that a changelog leaves. Retracting a missing row is an error."""
    counts: Counter[str] = Counter()
    rows_by_key: dict[str, dict[str, Any]] = {}
    for row in rows:
        plain = {name: value for name, value in row.items() if name != "_op"}
        key = repr(sorted(plain.items()))
        rows_by_key[key] = plain
        counts[key] += 1 if row["_op"] in ("+I", "+U") else -1
    assert all(count >= 0 for count in counts.values()), "a missing row was retracted"
    return [rows_by_key[key] for key in counts.elements()]


def comparable_row(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values of a row without `_op`; times have no zone, as in DuckDB."""
    values = (row[name] for name in row if name != "_op")
    return tuple(v.replace(tzinfo=None) if isinstance(v, datetime) else v for v in values)


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition holds. Busy machines need a long timeout."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.1)


def table_rows(table: pa.Table) -> list[dict[str, Any]]:
    return list(table.to_pylist())


def run_to_end(path: Path, spark: Any, script: str, stream: str, **config: Any) -> list[Batch]:
    """Run a script to its end and return all retained epochs."""
    with tidegate.open(path, spark=spark, config=config) as session:
        session.execute(script)
        subscription = session.subscribe(stream)
        session.start(until_end=True)
        session.wait()
        return subscription.take_all()


def run_some(path: Path, spark: Any, script: str, stream: str, epochs: int, **config: Any) -> int:
    """Run a script until it has emitted a number of epochs, then stop it."""
    with tidegate.open(path, spark=spark, config=config) as session:
        session.execute(script)
        subscription = session.subscribe(stream)
        session.start()
        for batch in subscription:
            if batch.epoch + 1 >= epochs:
                subscription.close()
        session.stop()
        return len(list((path / stream / "out").glob("*.arrow")))


def open_with(path: Path, spark: Any, script: str, **config: Any) -> Session:
    session = tidegate.open(path, spark=spark, config=config)
    session.execute(script)
    return session


Rows = list[dict[str, Any]]
# The rows of a step are processed before the next step.
Step = dict[str, Rows]


def play(session: Session, *steps: Step) -> None:
    """Insert each step into a running session and wait for it; each is an epoch."""
    for step in steps:
        for source, rows in step.items():
            session.insert(source, rows)
        session.wait()


def play_with_restart(
    path: Path, spark: Any, script: str, streams: Iterable[str], steps: list[Step], **config: Any
) -> dict[str, list[Batch]]:
    """Play half of the steps, then run the others to the end of the input in a new session."""
    half = (len(steps) + 1) // 2
    with open_with(path, spark, script, **config) as session:
        for stream in streams:
            session.subscribe(stream)
        session.start()
        play(session, *steps[:half])
    with open_with(path, spark, script, **config) as session:
        for step in steps[half:]:
            for source, rows in step.items():
                session.insert(source, rows)
        subscriptions = {stream: session.subscribe(stream) for stream in streams}
        session.start(until_end=True)
        session.wait()
        return {stream: item.take_all() for stream, item in subscriptions.items()}
