"""q0, q1 and q2 of NEXMark in Tidegate and in plain PySpark, side by side in one run.

    python benchmarks/stateless.py [--events 10000000] [--rounds 5] [--warm-up 3]

Both read the same parquet files in the same epochs on two cores, from building the query to its
end, each in a JVM of its own; plain PySpark with Spark's own settings, or (`--tuned`) in Tidegate's
JVM with its settings.
The rounds alternate, so that a slow moment of the machine hits both, and the first few do not
count: after one round the JVM still compiles, and the times fall for some rounds more.
What counts is the last column: Tidegate's time over plain PySpark's, median of the rounds.

Three comparisons: into Spark's noop sink, into parquet files, and into the noop sink with an event
time declared. In the last one the plain query has withWatermark, and the two are not quite the same
work: Tidegate also sets rows without an event time apart and counts them.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from plain import PlainSpark, Work
from pyspark.sql import SparkSession

import tidegate
from benchmarks.nexmark.events import read_batch

COLUMNS = (
    "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, "
    "date_time TIMESTAMP, extra STRING"
)
QUERIES = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
}


@dataclass(frozen=True)
class Setting:
    """One comparison: where rows go, and whether the source has an event time."""

    title: str
    files: bool
    event_time: bool


SETTINGS = (
    Setting("noop sink", files=False, event_time=False),
    Setting("parquet files", files=True, event_time=False),
    Setting("noop sink, event time", files=False, event_time=True),
)


@dataclass(frozen=True)
class Bench:
    """The input that all runs share, and who runs it."""

    bids: Path
    rows: int
    files_per_epoch: int
    plain: Work
    ours: Work

    def run(self, work: Work, query: str, folder: Path, setting: Setting) -> float:
        return work(self.bids, self.files_per_epoch, query, folder, setting)


def our_query(
    spark: SparkSession, bids: Path, files: int, query: str, work: Path, setting: Setting
) -> float:
    """The query in Tidegate."""
    target = "connector = 'blackhole'"
    if setting.files:
        target = f"connector = 'files', path = '{work / 'out'}'"
    columns = COLUMNS
    if setting.event_time:
        columns += ", WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND"
    with tidegate.open(work / "data", spark=spark) as session:
        session.execute(
            f"CREATE SOURCE bid ({columns}) WITH (connector = 'files', path = '{bids}', "
            f"files_per_epoch = {files}); "
            f"CREATE STREAM q AS {query}; CREATE SINK s FROM q WITH ({target});"
        )
        started = time.perf_counter()
        session.start(until_end=True)
        session.wait()
        return time.perf_counter() - started


def our_session() -> SparkSession:
    return tidegate.open(tempfile.mkdtemp(prefix="tidegate-bench-")).spark


def either_query(spark: SparkSession, ours: bool, *arguments: Any) -> float:
    return our_query(spark, *arguments) if ours else plain_query(spark, *arguments)


def plain_query(
    spark: SparkSession, bids: Path, files: int, query: str, work: Path, setting: Setting
) -> float:
    """The query as a PySpark user would write it."""
    started = time.perf_counter()
    frame = spark.readStream.schema(COLUMNS)
    frame = frame.option("maxFilesPerTrigger", files).parquet(str(bids))
    if setting.event_time:
        frame = frame.withWatermark("date_time", "4 seconds")
    frame.createOrReplaceTempView("bid")
    writer = spark.sql(query).writeStream
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    if setting.files:
        writer = writer.format("parquet").option("path", str(work / "out"))
    else:
        writer = writer.format("noop")
    run = writer.trigger(availableNow=True).start()
    run.awaitTermination()
    return time.perf_counter() - started


def write_bids(spark: SparkSession, events: int, files: int, folder: Path) -> int:
    options = {
        "kind": "nexmark",
        "table": "bid",
        "rows": events,
        "seed": 1,
        "events_per_second": 10_000,
        "start": "2015-07-15 00:00:00",
        "out_of_order_ms": 0,
        "keys": 10,
    }
    read_batch(spark, options).repartition(files).write.parquet(str(folder))
    return int(spark.read.parquet(str(folder)).count())


def compare(bench: Bench, base: Path, name: str, setting: Setting, rounds: range) -> None:
    """Alternate the two, leave the rounds before 0 out, print one line."""
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for round_ in rounds:
        order = (("plain", bench.plain), ("ours", bench.ours))
        for label, who in order if round_ % 2 else order[::-1]:
            work = base / f"{name}-{round_}-{label}"
            took = bench.run(who, QUERIES[name], work, setting)
            shutil.rmtree(work, ignore_errors=True)
            if round_ >= 0:
                times[label].append(took)
    ratio = statistics.median(b / a for a, b in zip(times["plain"], times["ours"], strict=True))
    plain, ours = (bench.rows / statistics.median(times[key]) / 1e6 for key in ("plain", "ours"))
    print(f"{setting.title:24}{name:6}{plain:>16.2f}{ours:>20.2f}{ratio:>12.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--tuned", action="store_true", help="plain PySpark with our settings")
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    try:
        with tidegate.open(base / "spark") as session:
            rows = write_bids(session.spark, arguments.events, arguments.files, base / "bids")
        ours = PlainSpark(either_query, our_session)
        other = PlainSpark(plain_query)
        per = max(1, arguments.files // arguments.epochs)
        plain = partial(ours, False) if arguments.tuned else other
        bench = Bench(base / "bids", rows, per, plain, partial(ours, True))
        rounds = range(-arguments.warm_up, arguments.rounds)
        print(f"{rows:,} bids in {arguments.epochs} epochs, {arguments.rounds} rounds")
        print(f"{'':30}{'plain M rows/s':>16}{'tidegate M rows/s':>20}{'time ratio':>12}")
        for setting in SETTINGS:
            for name in QUERIES:
                compare(bench, base, name, setting, rounds)
        ours.close()
        other.close()
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
