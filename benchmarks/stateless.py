"""q0, q1 and q2 of NEXMark in Tidegate and in plain PySpark, side by side in one run.

    python benchmarks/stateless.py [--events 5000000] [--rounds 5] [--sink blackhole|files]

Both read the same parquet files in the same epochs on the same Spark with the same settings, and
write to Spark's noop sink (or to parquet files). The rounds alternate, so that a slow moment of the
machine hits both. What counts is the last column: Tidegate's time over plain PySpark's, median of
the rounds.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

import tidegate
from tidegate.connectors import generator

COLUMNS = (
    "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, "
    "date_time TIMESTAMP, extra STRING"
)
QUERIES = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
}


def write_bids(spark: SparkSession, events: int, files: int, folder: Path) -> int:
    options = {"kind": "nexmark", "table": "bid", "rows": events, "seed": 1}
    defaults = {
        "events_per_second": 10_000,
        "start": "2015-07-15 00:00:00",
        "out_of_order_ms": 0,
        "keys": 10,
    }
    frame = generator.read_batch(spark, {**defaults, **options}).repartition(files)
    frame.write.parquet(str(folder))
    return int(spark.read.parquet(str(folder)).count())


def plain(spark: SparkSession, query: str, bids: Path, work: Path, sink: str, per: int) -> float:
    """The same query as a PySpark user would write it."""
    frame = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", per).parquet(str(bids))
    frame.createOrReplaceTempView("bid")
    writer = spark.sql(query).writeStream.option("checkpointLocation", str(work / "checkpoint"))
    if sink == "files":
        writer = writer.format("parquet").option("path", str(work / "out"))
    else:
        writer = writer.format("noop")
    started = time.perf_counter()
    run = writer.trigger(availableNow=True).start()
    run.awaitTermination()
    return time.perf_counter() - started


def ours(spark: SparkSession, query: str, bids: Path, work: Path, sink: str, per: int) -> float:
    """The same query in Tidegate, declared up front as the plain one is."""
    target = "connector = 'blackhole'"
    if sink == "files":
        target = f"connector = 'files', path = '{work / 'out'}'"
    with tidegate.open(work / "data", spark=spark) as session:
        session.execute(
            f"CREATE SOURCE bid ({COLUMNS}, WATERMARK FOR date_time AS date_time - INTERVAL '4' "
            f"SECOND) WITH (connector = 'files', path = '{bids}', files_per_epoch = {per}); "
            f"CREATE STREAM q AS {query}; CREATE SINK s FROM q WITH ({target});"
        )
        started = time.perf_counter()
        session.start(until_end=True)
        session.wait()
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sink", choices=("blackhole", "files"), default="blackhole")
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    per = arguments.files // arguments.epochs
    try:
        with tidegate.open(base / "spark") as session:
            spark = session.spark
            bids = base / "bids"
            rows = write_bids(spark, arguments.events, arguments.files, bids)
            print(f"{rows:,} bids, {arguments.epochs} epochs, sink {arguments.sink}")
            print(f"{'query':6}{'plain M rows/s':>16}{'tidegate M rows/s':>20}{'time ratio':>12}")
            for name, query in QUERIES.items():
                report(spark, name, query, bids, base, arguments, per, rows)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def report(
    spark: SparkSession,
    name: str,
    query: str,
    bids: Path,
    base: Path,
    arguments: argparse.Namespace,
    per: int,
    rows: int,
) -> None:
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for round_ in range(arguments.rounds + 1):
        order = (("plain", plain), ("ours", ours))
        for label, run in order if round_ % 2 else order[::-1]:
            work = base / f"{name}-{round_}-{label}"
            took = run(spark, query, bids, work, arguments.sink, per)
            shutil.rmtree(work, ignore_errors=True)
            if round_:  # The first round warms both up.
                times[label].append(took)
    ratios = [b / a for a, b in zip(times["plain"], times["ours"], strict=True)]
    speed = {label: rows / statistics.median(values) / 1e6 for label, values in times.items()}
    ratio = statistics.median(ratios)
    print(f"{name:6}{speed['plain']:>16.2f}{speed['ours']:>20.2f}{ratio:>12.2f}", flush=True)


if __name__ == "__main__":
    main()
