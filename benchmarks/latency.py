"""From the row that closes a window to the row at the reader, in Tidegate and in plain PySpark.

    python benchmarks/latency.py [--epochs 30]

Files of 1,000 rows come one after the other; the rows of each close the window of the one before.
The clock runs from the moment the file is there until the closed window is. Plain PySpark runs in
append mode, which needs one more epoch to hand the window out. The two take turns, file by file.
"""

from __future__ import annotations

import argparse
import queue
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import tidegate

COLUMNS = "auction BIGINT, price BIGINT, ts TIMESTAMP"
ROWS = 1_000
WINDOW_US = 10_000_000
FIRST_US = 1_700_000_000_000_000


def drop_file(folder: Path, number: int) -> None:
    """The rows of window `number`, as a file that appears at once."""
    micros = FIRST_US + number * WINDOW_US + np.arange(ROWS) * (WINDOW_US // ROWS)
    table = pa.table(
        {
            "auction": np.arange(ROWS) % 100,
            "price": np.arange(ROWS),
            "ts": pa.array(micros, pa.timestamp("us", "UTC")),
        }
    )
    aside = folder / f".{number}.tmp"
    pq.write_table(table, aside)
    aside.rename(folder / f"{number:06d}.parquet")


class Ours:
    """A tumbling count in Tidegate, read by a subscriber."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.folder = base / "ours"
        self.folder.mkdir()
        self.session = tidegate.open(base / "data", spark=spark)
        self.session.execute(
            f"CREATE SOURCE bids ({COLUMNS}, WATERMARK FOR ts AS ts - INTERVAL '0' SECOND) "
            f"WITH (connector = 'files', path = '{self.folder}'); "
            "CREATE STREAM q AS SELECT auction, window_start, count(*) AS n, sum(price) AS total "
            "FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '10' SECOND);"
        )
        self.batches = iter(self.session.subscribe("q"))
        self.session.start()

    def next_window(self) -> int:
        """Wait for rows; how many came."""
        for batch in self.batches:
            if batch.table.num_rows:
                return int(batch.table.num_rows)
        raise RuntimeError("the stream ended")

    def close(self) -> None:
        self.session.close()


class Plain:
    """The same in plain PySpark, append mode."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.folder = base / "plain"
        self.folder.mkdir()
        self.rows: queue.Queue[int] = queue.Queue()
        own = spark.newSession()
        own.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
        own.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
        frame = own.readStream.schema(COLUMNS).parquet(str(self.folder))
        grouped = (
            frame.withWatermark("ts", "0 seconds")
            .groupBy(F.window("ts", "10 seconds"), "auction")
            .agg(F.count("*"), F.sum("price"))
        )
        writer = grouped.writeStream.foreachBatch(self._take).outputMode("append")
        self.query = writer.option("checkpointLocation", str(base / "checkpoint")).start()

    def _take(self, frame: DataFrame, epoch: int) -> None:
        rows = frame.toArrow().num_rows
        if rows:
            self.rows.put(rows)

    def next_window(self) -> int:
        return self.rows.get(timeout=60)

    def close(self) -> None:
        self.query.stop()


def measure(side: Any, number: int) -> float:
    """Milliseconds from the file to the window it closes."""
    drop_file(side.folder, number)
    started = time.perf_counter()
    rows = side.next_window()
    took = (time.perf_counter() - started) * 1e3
    assert rows == 100, f"{rows} groups instead of 100"
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=30)
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    times: dict[str, list[float]] = {"plain": [], "tidegate": []}
    try:
        with tidegate.open(base / "spark") as session:
            sides = {"plain": Plain(session.spark, base), "tidegate": Ours(session.spark, base)}
            for side in sides.values():
                drop_file(side.folder, 0)
            for number in range(1, arguments.epochs + 6):
                for name, side in sides.items():
                    took = measure(side, number)
                    if number > 5:
                        times[name].append(took)
            for side in sides.values():
                side.close()
    finally:
        shutil.rmtree(base, ignore_errors=True)
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, found in times.items():
        worst = sorted(found)[int(len(found) * 0.95)]
        print(f"{name:10} median {medians[name]:.0f} ms, p95 {worst:.0f} ms")
    print(f"ratio tidegate / plain: {medians['tidegate'] / medians['plain']:.2f}")


if __name__ == "__main__":
    main()
