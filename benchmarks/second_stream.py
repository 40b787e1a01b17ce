"""What a second stream over the same source costs, as a part of what the first one costs.

    python benchmarks/second_stream.py [--rows 1000000] [--rounds 3]

Two windowed aggregates over the same files, each alone and both in one pipeline, in turns; the
median of the rounds after a first one that does not count. Tasks read the files once for both.
In the third case both read a stream that leaves out doubles: its operator steps once for both.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tidegate

SOURCE = """
CREATE SOURCE bid (auction BIGINT, bidder BIGINT, price BIGINT, at TIMESTAMP,
    WATERMARK FOR at AS at) WITH (connector = 'files', format = '{format}', path = '{path}');
"""
FIRST = """
CREATE STREAM busy AS SELECT auction, window_start, count(*) AS n
    FROM TUMBLE(bid, at, INTERVAL 10 SECONDS) GROUP BY auction, window_start;
CREATE SINK busy_sink FROM busy WITH (connector = 'blackhole');
"""
SECOND = """
CREATE STREAM best AS SELECT bidder, window_start, max(price) AS price
    FROM TUMBLE(bid, at, INTERVAL 10 SECONDS) GROUP BY bidder, window_start;
CREATE SINK best_sink FROM best WITH (connector = 'blackhole');
"""
ONCE = "CREATE STREAM once AS SELECT DISTINCT auction, bidder, price, at FROM bid;"
FILES = 10
CASES = (
    ("json", "json", ""),
    ("parquet", "parquet", ""),
    ("parquet, DISTINCT", "parquet", ONCE),
)
FIRST_US = 1_700_000_000_000_000


def write(folder: Path, rows: int) -> None:
    """The same rows as JSON and as Parquet."""
    random = np.random.default_rng(1)
    per_file = rows // FILES
    for kind in ("json", "parquet"):
        (folder / kind).mkdir()
    for number in range(FILES):
        micros = FIRST_US + (number * per_file + np.arange(per_file)) * 100
        table = pa.table(
            {
                "auction": random.integers(0, 1_000, per_file),
                "bidder": random.integers(0, 1_000, per_file),
                "price": random.integers(0, 10_000, per_file),
                "at": pa.array(micros).cast(pa.timestamp("us", "UTC")),
            }
        )
        pq.write_table(table, folder / "parquet" / f"{number:03}.parquet")
        frame = table.to_pandas()
        frame.to_json(
            folder / "json" / f"{number:03}.json",
            orient="records",
            lines=True,
            date_format="iso",
            date_unit="us",
        )


def _over(script: str, once: bool) -> str:
    return script.replace("TUMBLE(bid,", "TUMBLE(once,") if once else script


def seconds(spark: Any, script: str) -> float:
    folder = tempfile.mkdtemp(prefix="tidegate-second-")
    try:
        with tidegate.open(folder, spark=spark) as db:
            db.execute(script)
            start = time.perf_counter()
            db.start(until_end=True)
            db.wait()
            return time.perf_counter() - start
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tidegate-second-"))
    try:
        write(folder, given.rows)
        with tidegate.open(folder / "data") as db:
            for case, kind, below in CASES:
                source = SOURCE.format(format=kind, path=folder / kind) + below
                streams = (FIRST, SECOND, FIRST + SECOND)
                scripts = [source + _over(script, bool(below)) for script in streams]
                rounds = [
                    [seconds(db.spark, script) for script in scripts]
                    for _ in range(given.rounds + 1)
                ]
                first, second, both = (statistics.median(t) for t in zip(*rounds[1:], strict=True))
                print(
                    f"{case:16} first {first:5.2f} s, second {second:5.2f} s, both {both:5.2f} s: "
                    f"the second costs {(both - first) / first:.2f} of the first",
                    flush=True,
                )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
