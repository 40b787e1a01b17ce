"""What the first epoch would have to wait for, begun while streams are declared and planned.

The process that Python workers are forked from imports for a second or two, and Java loads what
reads JSON and CSV and what speaks with Python when somebody first asks for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_COLUMNS = (
    "from_json(concat('{\"a\": ', id, '}'), 'a BIGINT, b STRING').a AS a",
    "from_csv(CAST(id AS STRING), 'a BIGINT').a AS b",
)


def warm_up(spark: SparkSession) -> None:
    """Run a job of two rows beside whatever comes next; nobody waits for it."""
    threading.Thread(target=_run, args=(spark,), name="tidegate-warm-up", daemon=True).start()


def _run(spark: SparkSession) -> None:
    # Whatever is wrong, the first epoch will meet it and say so.
    with suppress(Exception):
        spark.sparkContext.setJobDescription("tidegate: starts Python workers")
        rows = spark.range(0, 2, 1, 2).selectExpr(*_COLUMNS)
        rows.mapInArrow(_same, "a BIGINT, b BIGINT").toArrow()


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
