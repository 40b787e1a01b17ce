"""Kill a running pipeline at random moments, run it to its end, and compare with a batch.

With power losses, unsynced writes are lost, too.

python -m tests.spark.kill_campaign --kills 50 --losses 10 --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet

from tests.spark.kill_program import STREAMS
from tests.support import java
from tests.support.lossy_disk import lose_power
from tests.support.processes import processes_of_session
from tests.support.sessions import bag, rows_of
from tidegate.session.subscription import Subscription
from tidegate.storage import open_store

PROGRAM = Path(__file__).with_name("kill_program.py")
# Makes every Python process of a pipeline write to a disk that can lose power.
LOSSY = Path(__file__).with_name("lossy")
START = datetime(2026, 1, 1, tzinfo=UTC)
FILE_SECONDS = 10
ROWS_PER_FILE = 200
AUCTIONS = 30
TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [("id", pa.int64()), ("auction", pa.int64()), ("price", pa.int64()), ("ts", TIME)]
)
# The same queries over all rows; times are microseconds.
_SALES = """SELECT auction, us - us % 15000000 AS window_start,
        us - us % 15000000 + 15000000 AS window_end, count(*) AS n, sum(price)::BIGINT AS total,
        max(price) AS top, count(DISTINCT price % 7) AS kinds FROM bids GROUP BY ALL"""
BATCH = {
    "sales": _SALES,
    "busy": f"SELECT * FROM ({_SALES}) WHERE n > 12",
    "visits": """SELECT auction, min(us) AS window_start, count(*) AS n FROM (
        SELECT *, sum(fresh) OVER (PARTITION BY auction ORDER BY us, id) AS visit FROM (
        SELECT *, CASE WHEN us - lag(us) OVER (PARTITION BY auction ORDER BY us, id) <= 5000000
        THEN 0 ELSE 1 END AS fresh FROM bids)) GROUP BY auction, visit""",
    "pairs": """SELECT b.id AS bid, a.id AS ask, a.price - b.price AS spread FROM bids b JOIN asks a
        ON a.auction = b.auction AND a.us BETWEEN b.us - 2000000 AND b.us + 2000000""",
    "best": """SELECT us - us % 15000000 + 15000000 AS window_end, id, price FROM bids QUALIFY
        row_number() OVER (PARTITION BY us - us % 15000000 ORDER BY price DESC, id) <= 3""",
    "cheap": "SELECT id, price FROM bids WHERE price < 500",
}
TIMES = ("window_start", "window_end")


class Campaign:
    """An input that grows each round, and a pipeline that reads it."""

    def __init__(self, folder: Path, seed: int, master: str = "local[2]") -> None:
        self.random = random.Random(seed)
        self.master = master
        self.data, self.inputs, self.outputs = (folder / name for name in ("data", "in", "out"))
        for name in ("bids", "asks"):
            (self.inputs / name).mkdir(parents=True)
        self.journal = folder / "journal"
        self.lossy = False
        self.files = 0
        self.ids = 0

    def add_file(self) -> None:
        """Add ten seconds of rows of each source in random order; some move to other files."""
        for source in ("bids", "asks"):
            first = START + timedelta(seconds=FILE_SECONDS * self.files)
            rows = []
            for _ in range(ROWS_PER_FILE):
                self.ids += 1
                stray = timedelta(seconds=self.random.uniform(-8, FILE_SECONDS + 8))
                rows.append(
                    {
                        "id": self.ids,
                        "auction": self.random.randrange(AUCTIONS),
                        "price": self.random.randrange(1000),
                        "ts": first + stray,
                    }
                )
            aside = self.inputs / source / f".{self.files:06d}.tmp"
            if source == "bids":
                pa.parquet.write_table(pa.Table.from_pylist(rows, SCHEMA), aside)
                aside.rename(aside.with_name(f"{self.files:06d}.parquet"))
            else:
                lines = [json.dumps({**row, "ts": row["ts"].isoformat()}) for row in rows]
                aside.write_text("\n".join(lines))
                aside.rename(aside.with_name(f"{self.files:06d}.json"))
        self.files += 1

    def run_and_kill(self, files: int = 6) -> str:
        """Start the pipeline and kill it; return how it ended."""
        process = self._at_a_random_moment(files)
        whole = self.random.random() < 0.5
        if whole:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            # Spark's JVM survives its Python process until it notices that it is gone.
            process.kill()
        _forget(process)
        return f"killed {'with its JVM' if whole else 'alone'} after {self._epochs()} epochs"

    def run_and_lose_power(self, files: int = 6) -> str:
        """Start the pipeline, kill all of its processes, and lose their unsynced writes."""
        self.lossy = True
        process = self._at_a_random_moment(files)
        while living := processes_of_session(process.pid):
            for pid in living:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.poll()
        _forget(process)
        self.lossy = False
        before = self._epochs()
        lose_power(self.journal, self.random if self.random.random() < 0.8 else None)
        return f"lost power after {before} epochs, {self._epochs()} were kept"

    def _at_a_random_moment(self, files: int) -> subprocess.Popen[str]:
        """Start the pipeline with new files and wait for a random time."""
        for _ in range(files):
            self.add_file()
        process = self._start()
        assert process.stdout is not None, "the output is a pipe"
        assert process.stdout.readline().strip() == "running", process.communicate()
        self._let_pass(self.random.randrange(files))
        time.sleep(self.random.uniform(0, 0.5))
        return process

    def _epochs(self) -> int:
        names = (self.data / "_pipelines" / "main" / "manifests").glob("*.json")
        return max((int(name.stem.split("-")[1]) + 1 for name in names), default=0)

    def _let_pass(self, epochs: int) -> None:
        goal, deadline = self._epochs() + epochs, time.monotonic() + 60
        while self._epochs() < goal and time.monotonic() < deadline:
            time.sleep(0.02)

    def run_until_killed(self, step: str, times: int) -> int:
        """Run until a step is reached for the given time; return the exit code."""
        process = self._start("--kill", step, str(times))
        try:
            return process.wait(timeout=600)
        finally:
            # Spark's JVM would continue for minutes, and it holds the other end of the pipe.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            assert process.stdout is not None, "the output is a pipe"
            process.stdout.close()

    def run_to_end(self) -> str:
        """Run to the end of the input and return the last line of output."""
        shown, _ = self._start("--until-end").communicate(timeout=600)
        return shown.splitlines()[-1] if shown else "nothing"

    def _directories(self) -> list[str]:
        """Return the directories of data, input and output."""
        return [str(path) for path in (self.data, self.inputs, self.outputs)]

    def _start(self, *more: str) -> subprocess.Popen[str]:
        directories = self._directories()
        path = [str(LOSSY), str(PROGRAM.parents[2])] if self.lossy else [str(PROGRAM.parents[2])]
        more_env = {"PYTHONPATH": os.pathsep.join(path), "TIDEGATE_JOURNAL": str(self.journal)}
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), *directories, *more, "--master", self.master],
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROGRAM.parents[2],
            env={**java.environment(), **os.environ, **more_env},
            start_new_session=True,
        )

    def differences(self) -> dict[str, tuple[int, int]]:
        """Return the missing and the unexpected rows of each sink, without sinks that have none."""
        expected = {name: bag(rows) for name, rows in self.expected().items()}
        actual = {}
        for name in STREAMS:
            batches = Subscription(open_store(str(self.data / name))).take_all()
            actual[name, "files"] = self._in_files(name)
            actual[name, "subscriber"] = bag(_without_dice(rows_of(batches)))
        compared = {
            f"{name} {sink}": ((expected[name] - rows).total(), (rows - expected[name]).total())
            for (name, sink), rows in actual.items()
        }
        # Rows with a random number: recomputing them would change it.
        first, second = self._in_files("cheap", dice=True), self._in_files("cheap_again", dice=True)
        third = bag(rows_of(Subscription(open_store(str(self.data / "cheap"))).take_all()))
        compared["cheap again"] = ((first - second).total(), (second - first).total())
        compared["cheap to the subscriber"] = ((first - third).total(), (third - first).total())
        return {name: pair for name, pair in compared.items() if any(pair)}

    def _in_files(self, name: str, dice: bool = False) -> Counter[str]:
        paths = sorted((self.outputs / name).glob("*.parquet"))
        rows = [row for path in paths for row in pa.parquet.read_table(path).to_pylist()]
        return bag(rows if dice else _without_dice(rows))

    def expected(self) -> dict[str, list[dict[str, Any]]]:
        """Compute the rows of each stream in a batch."""
        bids = pa.parquet.read_table(self.inputs / "bids")
        lines = [
            json.loads(line)
            for path in (self.inputs / "asks").glob("*.json")
            for line in path.read_text().splitlines()
        ]
        parsed = [{**line, "ts": datetime.fromisoformat(line["ts"])} for line in lines]
        with duckdb.connect() as connection:
            connection.register("bids", _with_micros(bids))
            connection.register("asks", _with_micros(pa.Table.from_pylist(parsed, SCHEMA)))
            tables = {name: connection.sql(sql).to_arrow_table() for name, sql in BATCH.items()}
        return {name: _with_times(table).to_pylist() for name, table in tables.items()}


def _forget(process: subprocess.Popen[str]) -> None:
    process.wait()
    assert process.stdout is not None, "the output is a pipe"
    process.stdout.close()


def _without_dice(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "dice"} for row in rows]


def _with_micros(table: pa.Table) -> pa.Table:
    return table.append_column("us", table.column("ts").cast(pa.int64())).drop_columns(["ts"])


def _with_times(table: pa.Table) -> pa.Table:
    for name in (name for name in TIMES if name in table.column_names):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table.column(name).cast(TIME))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--losses", type=int, default=0, help="losses of power")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), arguments.seed)
        began = time.monotonic()
        for number in range(1, arguments.kills + 1):
            print(f"{number}: {campaign.run_and_kill()}", flush=True)
        for number in range(1, arguments.losses + 1):
            print(f"{number}: {campaign.run_and_lose_power()}", flush=True)
        print(f"to the end: {campaign.run_to_end()}")
        differences = campaign.differences()
        print(f"{campaign.files} files of each source, {campaign.ids:,} rows in")
        for name, rows in campaign.expected().items():
            print(f"{name}: {len(rows):,} rows expected")
        for name, (missing, too_many) in differences.items():
            print(f"{name}: {missing} missing, {too_many} too many")
        print(
            f"{arguments.kills} kills, {arguments.losses} losses of power in {time.monotonic() - began:.0f} s"
        )
        return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
