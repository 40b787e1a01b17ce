"""A restart with much state, and what an epoch that changes one key in a hundred writes.

    python benchmarks/recovery.py [--groups 15000000]

A GROUP BY by a text, with count, sum and max, is built from parquet and stopped. Then 1 % of its
keys come again: the time runs from the start of the pipeline, which finds its state, to the end of
that epoch. State in a file is mapped, so that only what is asked for is read.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tidegate

PER_FILE = 1_000_000


def write(path: Path, ids: np.ndarray) -> None:
    names = np.char.add("customer-", ids.astype(str))
    values = np.random.default_rng(len(ids)).integers(0, 10**9, len(ids))
    pq.write_table(pa.table({"name": names, "v": values}), path)


def run(folder: Path) -> float:
    """Declare, start, and wait for all that is there; the seconds from the start on."""
    with tidegate.open(str(folder / "data")) as db:
        db.execute(f"""
            CREATE SOURCE s (name STRING, v BIGINT)
            WITH (connector = 'files', path = '{folder}/in', format = 'parquet');
            CREATE STREAM g AS SELECT name, count(*) AS n, sum(v) AS total, max(v) AS most
            FROM s GROUP BY name EMIT CHANGES;
            CREATE SINK o FROM g WITH (connector = 'blackhole');
        """)
        begin = time.perf_counter()
        db.start(available_now=True)
        db.wait()
        return time.perf_counter() - begin


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in (folder / "data").rglob("*") if path.is_file()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=15_000_000)
    groups = parser.parse_args().groups
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "in").mkdir()
        for first in range(0, groups, PER_FILE):
            ids = np.arange(first, min(first + PER_FILE, groups))
            write(folder / "in" / f"{first:012d}.parquet", ids)
        built = run(folder)
        state = sum(files(folder).values())
        print(f"{groups:,} groups, {state / 1e6:,.0f} MB of state, built in {built:.1f} s")
        for number in range(3):
            before = files(folder)
            some = np.random.default_rng(number).choice(groups, groups // 100, replace=False)
            write(folder / "in" / f"more-{number}.parquet", some)
            seconds = run(folder)
            wrote = sum(size for path, size in files(folder).items() if path not in before)
            print(
                f"restart and an epoch of {len(some):,} keys: {seconds:.1f} s; "
                f"it wrote {wrote / 1e6:.1f} MB, {wrote / state:.1%} of the state"
            )


if __name__ == "__main__":
    main()
