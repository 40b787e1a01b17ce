"""What streams of a pipeline cost: the shop example, many windows over one source, idle sources.

    python benchmarks/streams.py [shop] [windows] [idle] [--epochs 15]

- shop: a warm epoch of 400 rows of the eight streams in examples/shop, and the first epoch, against
  a bare chain of `mapInArrow` jobs with as many levels in the same Spark session.
- windows: an epoch of 1, 10 and 50 windowed aggregates over one source.
- idle: an epoch of one aggregate, alone and beside ten streams over a source without new rows.

Rows are files that are written between the epochs; the median of the epochs after five that do not
count.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tidegate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
SHOP = ROOT / "examples" / "shop"
WARM_UP = 5
SOURCE = """
CREATE SOURCE s{n} (k BIGINT, v BIGINT, at TIMESTAMP, WATERMARK FOR at AS at)
    WITH (connector = 'files', format = 'json', path = '{path}');
"""
WINDOW = """
CREATE STREAM w{n} AS SELECT k, window_end, count(*) AS n, sum(v + {n}) AS v
    FROM TUMBLE(s{source}, at, INTERVAL '{size}' SECOND) GROUP BY k, window_end;
CREATE SINK w{n}_out FROM w{n} WITH (connector = 'blackhole');
"""


def epochs(db: Any, write: Callable[[int], None], count: int) -> list[float]:
    """Return the durations of epochs; each reads what `write` has written before it."""
    durations = []
    for number in range(count):
        write(number)
        start = time.perf_counter()
        if number == 0:
            db.start()
        db.wait(timeout=300)
        durations.append(time.perf_counter() - start)
    return durations


def bare_chain(spark: Any, levels: int, count: int) -> float:
    """Return the median duration of a job with as many levels of `mapInArrow`, in ms."""
    from pyspark.sql import functions as F  # noqa: N812

    def passing(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    frame = spark.range(0, 64, 1, 2).mapInArrow(passing, "id long")
    for _ in range(levels - 1):
        shuffled = frame.repartitionById(2, (F.col("id") % 2).cast("int"))
        frame = shuffled.mapInArrow(passing, "id long")
    durations = []
    for _ in range(count + WARM_UP):
        start = time.perf_counter()
        frame.toArrow()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations[WARM_UP:]) * 1000


def shop(folder: Path, count: int) -> None:
    from examples.shop import rows

    script = (SHOP / "shop.sql").read_text()
    script = re.sub(r"path = '(in|out)/", rf"path = '{folder}/\1/", script)
    inputs = folder / "in"
    dice = random.Random(1)
    rows.write(
        inputs / "customers",
        "customers.csv",
        ["id,name,country", *(f"{i},name {i},DE" for i in range(25))],
    )

    def write(minute: int) -> None:
        rows.write(inputs / "clicks", f"{minute:04}.json", rows.clicks(dice, minute, 300))
        rows.write(inputs / "orders", f"{minute:04}.csv", rows.orders(dice, minute, 100))

    with tidegate.open(folder / "data") as db:
        db.execute(script)
        durations = epochs(db, write, count + WARM_UP)
        warm = statistics.median(durations[WARM_UP:]) * 1000
        db.stop()
        bare = bare_chain(db.spark, 4, count)
    print(
        f"shop, 8 streams, 400 rows: first epoch {durations[0]:.2f} s, warm {warm:.0f} ms; "
        f"bare chain of 4 levels {bare:.0f} ms: {warm / bare:.1f} x",
        flush=True,
    )


def _events(folder: Path) -> Callable[[int], None]:
    dice = random.Random(2)
    folder.mkdir(parents=True, exist_ok=True)

    def write(number: int) -> None:
        lines = [
            json.dumps(
                {
                    "k": dice.randrange(20),
                    "v": dice.randrange(1000),
                    "at": f"2026-01-01T{number // 60:02}:{number % 60:02}:{i * 59 // 400:02}Z",
                }
            )
            for i in range(400)
        ]
        temporary = folder / f".{number}"
        temporary.write_text("\n".join(lines))
        temporary.rename(folder / f"{number:05}.json")

    return write


def _run(spark: Any, script: str, write: Callable[[int], None], count: int) -> float:
    data = tempfile.mkdtemp(prefix="tidegate-streams-")
    try:
        with tidegate.open(data, spark=spark) as db:
            db.execute(script)
            durations = epochs(db, write, count + WARM_UP)
            return statistics.median(durations[WARM_UP:]) * 1000
    finally:
        shutil.rmtree(data, ignore_errors=True)


def windows(folder: Path, count: int) -> None:
    with tidegate.open(folder / "session") as db:
        results = {}
        for streams in (1, 10, 50, 1, 10, 50):
            path = folder / f"in-{len(results)}-{streams}-{time.monotonic_ns()}"
            script = SOURCE.format(n=0, path=path) + "".join(
                WINDOW.format(n=n, source=0, size=10 + n) for n in range(streams)
            )
            results.setdefault(streams, []).append(_run(db.spark, script, _events(path), count))
    one = min(results[1])
    for streams, durations in results.items():
        best = min(durations)
        print(f"{streams:3} window streams: {best:.0f} ms, {best / one:.1f} x one", flush=True)


def idle(folder: Path, count: int) -> None:
    with tidegate.open(folder / "session") as db:
        results: dict[int, list[float]] = {}
        for streams in (0, 10, 0, 10):
            base = folder / f"idle-{time.monotonic_ns()}"
            write = _events(base / "busy")
            _events(base / "idle")
            script = SOURCE.format(n=0, path=base / "busy") + SOURCE.format(n=1, path=base / "idle")
            script += WINDOW.format(n=0, source=0, size=10)
            script += "".join(
                WINDOW.format(n=n, source=1, size=10 + n) for n in range(1, streams + 1)
            )
            results.setdefault(streams, []).append(_run(db.spark, script, write, count))
    alone, beside = min(results[0]), min(results[10])
    print(
        f"one stream {alone:.0f} ms, with ten streams over an idle source {beside:.0f} ms: "
        f"{beside / alone:.2f} x",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", default=["shop", "windows", "idle"])
    parser.add_argument("--epochs", type=int, default=15)
    arguments = parser.parse_args()
    cases = {"shop": shop, "windows": windows, "idle": idle}
    for case in arguments.cases:
        folder = Path(tempfile.mkdtemp(prefix="tidegate-streams-"))
        try:
            cases[case](folder, arguments.epochs)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
