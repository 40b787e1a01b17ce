"""The events as parquet files, for everyone who is to read the same ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.connectors.generator import generator
from tidegate.connectors.generator.nexmark import TABLES
from tidegate.errors import RunError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIRST_TIME = 1_700_000_000


def write_events(
    spark: SparkSession, rows: int, folder: Path, files: int, events_per_second: int = 10_000
) -> dict[str, int]:
    """Write the first `rows` events, each table into a folder of its own; how many rows each has.

    File n of every table holds the same stretch of time, and n says its place.
    """
    _require_new(folder)
    written = {}
    # What Spark writes by default is a format of its own, which others read slowly or not at all.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    for table in TABLES:
        options = {
            "table": table,
            "rows": rows,
            "seed": 42,
            "events_per_second": events_per_second,
        }
        target = folder / table
        frame = generator.read_batch(spark, options, files)
        frame.write.parquet(target.absolute().as_uri())
        _name_by_place(target)
        written[table] = generator.rows_between(options, None, {"event": rows})
    return written


def _require_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(
            "TG-506",
            f"{folder} is not empty",
            hint="name a directory that is new, or remove what is in it.",
        )
    folder.mkdir(parents=True, exist_ok=True)


def _name_by_place(folder: Path) -> None:
    """Sources read files by the time of their last change; leave nothing but files with rows."""
    for number, path in enumerate(sorted(folder.glob("part-*.parquet"))):
        place = path.rename(folder / f"{number:05d}.parquet")
        os.utime(place, (_FIRST_TIME + number, _FIRST_TIME + number))
    for path in folder.iterdir():
        if path.suffix != ".parquet" or path.name.startswith("."):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def stored_rows(folder: Path) -> int:
    """How many events there are in a folder that `write_events` wrote."""
    import pyarrow.parquet as pq

    missing = [table for table in TABLES if not (folder / table).is_dir()]
    if missing:
        raise RunError(
            "TG-506",
            f"{folder} has no folder {missing[0]}: these are no NEXMark events",
            hint=f"tidegate nexmark generate --rows 1000000 --out {folder}",
        )
    files = (path for table in TABLES for path in (folder / table).glob("*.parquet"))
    return sum(pq.read_metadata(path).num_rows for path in files)
