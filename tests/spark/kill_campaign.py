"""kill -9 a running pipeline at random moments, then run it to its end and compare with a batch.

python -m tests.spark.kill_campaign --kills 50 --seed 1
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet

from tests.spark.helpers import bag, rows_of
from tidegate.subscription import Subscription

PROGRAM = Path(__file__).with_name("kill_program.py")
START = datetime(2026, 1, 1, tzinfo=UTC)
FILE_SECONDS = 10
ROWS_PER_FILE = 400
AUCTIONS = 300
BATCH = """
SELECT auction, us - us % 15000000 AS window_start, us - us % 15000000 + 15000000 AS window_end,
       count(*) AS n, sum(price)::BIGINT AS total, max(price) AS top,
       count(DISTINCT price % 7) AS kinds
FROM bids GROUP BY ALL
"""
TIME = pa.timestamp("us", "UTC")


class Campaign:
    """Input that grows from round to round, and a pipeline that reads it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.data, self.given, self.written = (folder / name for name in ("data", "in", "out"))
        self.given.mkdir(parents=True)
        self.files = 0

    def add_file(self) -> None:
        """Ten seconds of rows in random order; some stray into the files before and after."""
        first = START + timedelta(seconds=FILE_SECONDS * self.files)
        rows = [
            {
                "auction": self.random.randrange(AUCTIONS),
                "price": self.random.randrange(1000),
                "ts": first + timedelta(seconds=self.random.uniform(-8, FILE_SECONDS + 8)),
            }
            for _ in range(ROWS_PER_FILE)
        ]
        schema = pa.schema([("auction", pa.int64()), ("price", pa.int64()), ("ts", TIME)])
        table = pa.Table.from_pylist(rows, schema)
        aside = self.given / f".{self.files:06d}.tmp"
        pa.parquet.write_table(table, aside)
        aside.rename(self.given / f"{self.files:06d}.parquet")
        self.files += 1

    def run_and_kill(self) -> str:
        """One life of the pipeline; returns how it ended."""
        for _ in range(6):
            self.add_file()
        process = self._start()
        assert process.stdout is not None, "its output is a pipe"
        assert process.stdout.readline().strip() == "running", process.communicate()
        self._let_pass(self.random.randrange(4))
        time.sleep(self.random.uniform(0, 1))
        whole = self.random.random() < 0.5
        if whole:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            # Spark's JVM outlives its Python for a moment and has to find out by itself.
            process.kill()
        process.wait()
        process.stdout.close()
        return f"killed {'with its JVM' if whole else 'alone'} after {self._epochs()} epochs"

    def _epochs(self) -> int:
        commits = self.data / "sales" / "spark" / "0" / "commits"
        return sum(1 for path in commits.glob("*") if path.name.isdigit())

    def _let_pass(self, epochs: int) -> None:
        goal, deadline = self._epochs() + epochs, time.monotonic() + 60
        while self._epochs() < goal and time.monotonic() < deadline:
            time.sleep(0.02)

    def run_to_end(self) -> str:
        process = self._start("--until-end")
        shown, _ = process.communicate(timeout=600)
        return shown.splitlines()[-1] if shown else "nothing"

    def _start(self, *more: str) -> subprocess.Popen[str]:
        places = [str(path) for path in (self.data, self.given, self.written)]
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), *places, *more],
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROGRAM.parents[2],
            env={**os.environ, "PYTHONPATH": str(PROGRAM.parents[2])},
            start_new_session=True,
        )

    def differences(self) -> dict[str, tuple[int, int]]:
        """For files and subscribers: rows that are missing, and rows that are too many."""
        expected = bag(self.expected())
        found = {
            "files": self._in_files(),
            "subscriber": bag(rows_of(Subscription(self.data / "sales" / "out").take_all())),
        }
        return {
            name: ((expected - rows).total(), (rows - expected).total())
            for name, rows in found.items()
        }

    def _in_files(self) -> Counter[str]:
        schema = pa.Table.from_pylist(self.expected()).schema
        paths = [str(path) for path in sorted(self.written.glob("*.parquet"))]
        tables = [pa.parquet.read_table(path).cast(schema) for path in paths]
        return bag(row for table in tables for row in table.to_pylist())

    def expected(self) -> list[dict[str, Any]]:
        bids = pa.parquet.read_table(self.given)
        bids = bids.append_column("us", bids.column("ts").cast(pa.int64())).drop_columns(["ts"])
        with duckdb.connect() as connection:
            connection.register("bids", bids)
            table = connection.sql(BATCH).to_arrow_table()
        for name in ("window_start", "window_end"):
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, table.column(name).cast(TIME))
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), arguments.seed)
        began = time.monotonic()
        for number in range(1, arguments.kills + 1):
            print(f"{number}: {campaign.run_and_kill()}", flush=True)
        print(f"to the end: {campaign.run_to_end()}")
        differences = campaign.differences()
        print(f"{campaign.files} files, {campaign.files * ROWS_PER_FILE:,} rows in")
        print(f"{len(campaign.expected()):,} rows expected")
        for name, (missing, too_many) in differences.items():
            print(f"{name}: {missing} missing, {too_many} too many")
        print(f"{arguments.kills} kills in {time.monotonic() - began:.0f} s")
        return int(any(map(any, differences.values())))


if __name__ == "__main__":
    sys.exit(main())
