"""What a console with an open page costs a pipeline of small epochs.

    python benchmarks/console.py [--epochs 1000]

Epochs of 100 rows follow each other, each as soon as the last one is there. Blocks of them without
a console and with one take turns; a process of its own reads what an open page reads.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import tidegate
from tidegate.console.app import ConsoleServer
from tidegate.console.providers import SessionProvider
from tidegate.observe.server import Address

BLOCK = 50
ROWS = 100
SCRIPT = """
CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory');
CREATE STREAM totals AS SELECT auction, window_start, count(*) AS n, sum(price) AS total
FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '10' SECOND);
"""


class Took(NamedTuple):
    """Milliseconds of an epoch: by the clock, and of this process, in which the console runs."""

    wall: float
    cpu: float


class Pipeline:
    """A tumbling count that is fed epoch by epoch."""

    def __init__(self, folder: Path) -> None:
        self.session = tidegate.open(folder)
        self.session.execute(SCRIPT)
        self.batches = iter(self.session.subscribe("totals"))
        self.session.start()
        self.number = 0
        self.epoch()

    def epoch(self) -> None:
        """Rows that close the window before them, and the window."""
        at_us = 1_700_000_000_000_000 + self.number * 10_000_000
        rows = [(n % 10, n, _moment(at_us + n)) for n in range(ROWS)]
        self.session.insert("bids", rows)
        if self.number and not len(next(self.batches)):
            raise RuntimeError("an epoch without rows")
        self.number += 1

    def block(self) -> list[Took]:
        """What each epoch of a block took."""
        found = []
        for _ in range(BLOCK):
            began, worked = time.perf_counter(), time.process_time()
            self.epoch()
            wall, cpu = time.perf_counter() - began, time.process_time() - worked
            found.append(Took(wall * 1e3, cpu * 1e3))
        return found


def _moment(micros: int) -> str:
    seconds, rest = divmod(micros, 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:06d}"


@contextmanager
def open_page(pipeline: Pipeline) -> Iterator[None]:
    """A console, and a process that reads what a page reads."""
    server = ConsoleServer(SessionProvider(pipeline.session, "bench"), Address("127.0.0.1", 0))
    command = [sys.executable, __file__, "--reader", f"http://{server.address}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        yield
        reader.terminate()
    server.close()


def read(base: str) -> None:
    """What console.js asks for: the page, all that is known, then events and checkpoints."""

    def get(path: str) -> bytes:
        with urllib.request.urlopen(base + path) as answer:
            return bytes(answer.read())

    def checkpoints() -> None:
        while True:
            get("/api/checkpoints")
            time.sleep(1.5)

    for path in ("/", "/static/console.js", "/static/style.css", "/api/graph"):
        get(path)
    state = json.loads(get("/api/state"))
    threading.Thread(target=checkpoints, daemon=True).start()
    with urllib.request.urlopen(f"{base}/api/events?since={state['number']}") as events:
        print("open", flush=True)
        for line in events:
            if line.startswith(b"data: "):
                json.loads(line[6:])


def measure(epochs: int) -> dict[str, list[Took]]:
    times: dict[str, list[Took]] = {"without": [], "open page": []}
    base = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    try:
        pipeline = Pipeline(base)
        for _ in range(2):
            pipeline.block()
        for turn in range(-(-epochs // BLOCK)):
            # Whoever comes second has a warmer machine: the two change places.
            for name in sorted(times, reverse=turn % 2 == 0):
                if name == "without":
                    times[name] += pipeline.block()
                else:
                    with open_page(pipeline):
                        times[name] += pipeline.block()
        pipeline.session.close()
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=1_000)
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        read(arguments.reader)
        return
    times = measure(arguments.epochs)
    medians: dict[str, float] = {}
    for name, found in times.items():
        medians[name] = statistics.median(took.wall for took in found)
        mean = statistics.fmean(took.wall for took in found)
        cpu = statistics.fmean(took.cpu for took in found)
        print(
            f"{name:10} {len(found):,} epochs: median {medians[name]:.1f} ms, mean {mean:.1f} ms, "
            f"{cpu:.2f} ms of CPU in the driver"
        )
    print(f"ratio of the medians: {medians['open page'] / medians['without']:.3f}")


if __name__ == "__main__":
    main()
