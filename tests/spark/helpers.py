"""Small things the pipeline tests share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidegate
from tidegate.session import Session
from tidegate.subscription import Batch


def bag(rows: Iterable[Any]) -> Counter[str]:
    """Rows without their order."""
    return Counter(repr(sorted(row.items())) for row in rows)


def rows_of(batches: Iterable[Batch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.table.to_pylist()]


def table_rows(table: pa.Table) -> list[dict[str, Any]]:
    return list(table.to_pylist())


def run_to_end(path: Path, spark: Any, script: str, stream: str, **config: Any) -> list[Batch]:
    """Run a script to its end on a data directory and return every epoch there is."""
    with tidegate.open(path, spark=spark, config=config) as session:
        session.execute(script)
        subscription = session.subscribe(stream)
        session.start(until_end=True)
        session.wait()
        return subscription.take_all()


def run_some(path: Path, spark: Any, script: str, stream: str, epochs: int, **config: Any) -> int:
    """Run a script until it has given out some epochs, then stop it in the middle."""
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
