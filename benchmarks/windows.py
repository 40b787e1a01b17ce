"""Windowed aggregates in Tidegate and in plain PySpark, side by side in one run.

    python benchmarks/windows.py [--rows 5000000] [--rounds 3] [--only a,b,c,d]

Both read the same parquet files in the same epochs on two cores with the same number of partitions,
from building the query to the end of the last epoch. Plain PySpark uses the RocksDB state store and
has a JVM of its own with Spark's own settings; with `--tuned` it gets the settings that Tidegate
gives its sessions. A first round warms up and is left out. What counts is the last column:
Tidegate's throughput over plain PySpark's, median of the rounds; above 1 Tidegate is faster.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from plain import PlainSpark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import tidegate

COLUMNS = "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP"
ROWS_A_FILE = 250_000
EVENTS_PER_SECOND = 10_000
AGGREGATES = "count(*) AS n, sum(price) AS total, max(price) AS top"


@dataclass(frozen=True)
class Task:
    """One comparison: the window in our SQL and in Spark's, the key, and rows per epoch."""

    name: str
    title: str
    key: str
    window: str
    spark_window: Any
    rows_an_epoch: int
    target: float


TASKS = (
    Task(
        "a1",
        "tumble 10 s, 100 groups, epochs of 250 K",
        "auction",
        "TUMBLE(ts, INTERVAL '10' SECOND)",
        lambda: F.window("ts", "10 seconds"),
        250_000,
        0.8,
    ),
    Task(
        "a2",
        "tumble 10 s, 100 groups, epochs of 5 M",
        "auction",
        "TUMBLE(ts, INTERVAL '10' SECOND)",
        lambda: F.window("ts", "10 seconds"),
        5_000_000,
        0.3,
    ),
    Task(
        "b",
        "tumble 100 s, 300 K groups, epochs of 250 K",
        "bidder",
        "TUMBLE(ts, INTERVAL '100' SECOND)",
        lambda: F.window("ts", "100 seconds"),
        250_000,
        1.0,
    ),
    Task(
        "c",
        "hop 10 s by 2 s, 100 groups, epochs of 250 K",
        "auction",
        "HOP(ts, INTERVAL '2' SECOND, INTERVAL '10' SECOND)",
        lambda: F.window("ts", "10 seconds", "2 seconds"),
        250_000,
        1.0,
    ),
    Task(
        "d",
        "sessions of 300 K bidders, gap 10 s, epochs of 250 K",
        "bidder",
        "SESSION(ts, INTERVAL '10' SECOND)",
        lambda: F.session_window("ts", "10 seconds"),
        250_000,
        1.0,
    ),
)


@dataclass(frozen=True)
class Bench:
    """The input that all runs share, and who runs plain PySpark."""

    spark: SparkSession
    bids: Path
    rows: int
    other: Callable[[str, Path, Path], float]

    def plain(self, task: Task, work: Path) -> float:
        return self.other(task.name, self.bids, work)

    def ours(self, task: Task, work: Path) -> float:
        """The query in Tidegate."""
        with tidegate.open(work / "data", spark=self.spark) as session:
            session.execute(
                f"CREATE SOURCE bids ({COLUMNS}, WATERMARK FOR ts AS ts - INTERVAL '2' SECOND) "
                f"WITH (connector = 'files', path = '{self.bids}', "
                f"files_per_epoch = {max(1, task.rows_an_epoch // ROWS_A_FILE)}); "
                f"CREATE STREAM q AS SELECT {task.key}, window_start, {AGGREGATES} FROM bids "
                f"GROUP BY {task.key}, {task.window}; "
                "CREATE SINK s FROM q WITH (connector = 'blackhole');"
            )
            started = time.perf_counter()
            session.start()
            session.wait()
            return time.perf_counter() - started


def plain_query(spark: SparkSession, name: str, bids: Path, work: Path) -> float:
    """The query as a PySpark user would write it."""
    task = next(task for task in TASKS if task.name == name)
    started = time.perf_counter()
    reader = spark.readStream.schema(COLUMNS)
    reader = reader.option("maxFilesPerTrigger", max(1, task.rows_an_epoch // ROWS_A_FILE))
    frame = reader.parquet(str(bids)).withWatermark("ts", "2 seconds")
    grouped: DataFrame = frame.groupBy(task.spark_window(), F.col(task.key)).agg(
        F.count("*"), F.sum("price"), F.max("price")
    )
    writer = grouped.writeStream.format("noop").outputMode("append")
    run = writer.option("checkpointLocation", str(work / "checkpoint")).start()
    run.processAllAvailable()
    took = time.perf_counter() - started
    run.stop()
    return took


def write_bids(folder: Path, rows: int) -> None:
    """Bids in the order of their time, one file after the other."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    channels = np.array(["Google", "Facebook", "Baidu", "Apple"])
    for number in range(rows // ROWS_A_FILE):
        first = number * ROWS_A_FILE
        micros = (first + np.arange(ROWS_A_FILE)) * (1_000_000 // EVENTS_PER_SECOND)
        micros += random.integers(-500_000, 500_000, ROWS_A_FILE)
        table = pa.table(
            {
                "auction": random.integers(0, 100, ROWS_A_FILE),
                "bidder": random.integers(0, 300_000, ROWS_A_FILE),
                "price": random.integers(1, 1_000_000, ROWS_A_FILE),
                "channel": channels[random.integers(0, 4, ROWS_A_FILE)],
                "ts": pa.array(1_700_000_000_000_000 + micros, pa.timestamp("us", "UTC")),
            }
        )
        path = folder / f"{number:05d}.parquet"
        pq.write_table(table, path)
        # Spark reads files in the order of their times.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def compare(bench: Bench, base: Path, task: Task, rounds: int) -> None:
    """Alternate the two, leave the first round out, print one line."""
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for round_ in range(rounds + 1):
        order = (("plain", bench.plain), ("ours", bench.ours))
        for label, run in order if round_ % 2 else order[::-1]:
            work = base / f"{task.name}-{round_}-{label}"
            took = run(task, work)
            shutil.rmtree(work, ignore_errors=True)
            if round_:
                times[label].append(took)
    ratio = statistics.median(a / b for a, b in zip(times["plain"], times["ours"], strict=True))
    plain, ours = (bench.rows / statistics.median(times[key]) / 1e6 for key in ("plain", "ours"))
    verdict = "" if ratio >= task.target else f"  below {task.target}"
    print(
        f"{task.name:4}{task.title:54}{plain:>8.2f}{ours:>10.2f}{ratio:>8.2f}{verdict}", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--tuned", action="store_true", help="plain PySpark with our settings")
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    wanted = [name for name in arguments.only.split(",") if name]
    try:
        write_bids(base / "bids", arguments.rows)
        with tidegate.open(base / "spark") as session:
            spark = session.spark
            other = PlainSpark(plain_query)
            tuned = partial(plain_query, spark)
            run = tuned if arguments.tuned else other
            bench = Bench(spark, base / "bids", arguments.rows, run)
            print(f"{arguments.rows:,} bids, {arguments.rounds} rounds; M rows/s")
            print(f"{'':58}{'plain':>8}{'tidegate':>10}{'ratio':>8}")
            for task in TASKS:
                if not wanted or any(task.name.startswith(name) for name in wanted):
                    compare(bench, base, task, arguments.rounds)
            other.close()
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
