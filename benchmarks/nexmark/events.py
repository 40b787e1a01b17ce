"""NEXMark events in Parquet files, so that several engines can read the same events."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.connectors.generator import generator
from tidegate.connectors.generator.nexmark import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_FILE = 250_000
_FIRST_TIME = 1_700_000_000


def write_events(
    spark: SparkSession, rows: int, folder: Path, files: int, events_per_second: int = 10_000
) -> dict[str, int]:
    """Write the first `rows` events, one directory per table, and return the rows per table.

    File n of every table covers the same range of event time.
    """
    _require_empty(folder)
    written = {}
    # Spark's default is INT96, which other engines read slowly or not at all.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    for table in TABLES:
        options = {
            "table": table,
            "rows": rows,
            "seed": 42,
            "events_per_second": events_per_second,
        }
        target = folder / table
        frame = read_batch(spark, options, files)
        frame.write.parquet(target.absolute().as_uri())
        _number_files(target)
        written[table] = generator.rows_between(options, None, {"event": rows})
    return written


def read_batch(
    spark: SparkSession, options: Mapping[str, Any], partitions: int | None = None
) -> DataFrame:
    """Return the rows of a generator as a batch DataFrame; its partitions are consecutive ranges.

    `options` are those of the connector.
    """
    spec = generator.GeneratorSpec.from_options(options)
    if spec.rows is None:
        raise ValueError("an unbounded generator cannot be read as a batch: set the option rows")
    partitions = partitions or spark.sparkContext.defaultParallelism
    chunk = max(1, min(generator.CHUNK_EVENTS, spec.rows // partitions))
    starts = spark.range(0, spec.rows, chunk, partitions)
    chunks = starts.selectExpr("id AS first", f"least(id + {chunk}, {spec.rows}) AS stop")
    return generator.generate_rows(chunks, spec)


def files_for(rows: int) -> int:
    """Return the default number of files per table."""
    return max(1, rows // ROWS_PER_FILE)


def stored_rows(folder: Path) -> int:
    """Count the events in a directory that `write_events` wrote."""
    import pyarrow.parquet as pq

    missing = [table for table in TABLES if not (folder / table).is_dir()]
    if missing:
        raise SystemExit(
            f"error: {folder} does not contain NEXMark events: the directory {missing[0]} is "
            "missing. Write events with: "
            f"python -m benchmarks.nexmark generate --rows 1000000 --out {folder}"
        )
    files = (path for table in TABLES for path in (folder / table).glob("*.parquet"))
    return sum(pq.read_metadata(path).num_rows for path in files)


def _require_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SystemExit(f"error: {folder} is not empty. Choose a new directory.")
    folder.mkdir(parents=True, exist_ok=True)


def _number_files(folder: Path) -> None:
    """Rename the files to their number and delete all others.

    Sources read files by modification time, so that follows the number too.
    """
    for number, path in enumerate(sorted(folder.glob("part-*.parquet"))):
        renamed = path.rename(folder / f"{number:05d}.parquet")
        os.utime(renamed, (_FIRST_TIME + number, _FIRST_TIME + number))
    for path in folder.iterdir():
        if path.suffix != ".parquet" or path.name.startswith("."):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
