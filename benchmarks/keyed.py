"""Keyed state in files: what an epoch of 1,000 scattered keys costs while the groups are many.

    python benchmarks/keyed.py [--groups 10000 1000000 10000000] [--epochs 30] [--profile]

A GROUP BY that tells its changes, one key group, without Spark. State lies in mapped files, and
every epoch writes a new one. Times are of the processor. The median is of the epochs after some
that do not count; the mean has everything since the state was there, the merging of runs included.
"""

from __future__ import annotations

import argparse
import cProfile
import mmap
import pstats
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.groups import GroupSpec, OutputColumn, OutputLayout, WindowPanes
from tidegate.operators.aggregate.updating import UpdatingAggregate
from tidegate.operators.kernels.keys import hash_rows
from tidegate.operators.runner import OperatorRunner
from tidegate.operators.watermark import Origin
from tidegate.state.state_file import StateFileBackend, StateFileBuilder, StateHandle

INT = pa.int64()
CALLS = (
    AggregateCall("count", "count(*)", (), INT),
    AggregateCall("sum", "sum(price)", (INT,), INT),
    AggregateCall("max", "max(price)", (INT,), INT),
)
KEYS_AN_EPOCH = 1_000
KEYS_WHILE_BUILDING = 250_000
WARM_UP = 10


class Files:
    """State files in a folder, each mapped once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mapped: dict[str, memoryview] = {}
        self.head: StateHandle | None = None
        self.count = 0
        self.bytes = 0

    def read(self, name: str) -> memoryview:
        if name not in self.mapped:
            with (self.folder / name).open("rb") as file:
                whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.mapped[name] = memoryview(whole)
        return self.mapped[name]

    def backend(self) -> StateFileBackend:
        return StateFileBackend(self.head, self.read, "the benchmark")

    def save(self, backend: StateFileBackend) -> None:
        self.count += 1
        file = StateFileBuilder(f"{self.count:06}", lambda name: (self.folder / name).open("wb"))
        self.head = backend.save(file)
        file.close()
        self.bytes += file.size

    def sweep(self) -> None:
        """Remove files that nothing needs."""
        assert self.head is not None, "there is state"
        needed = {self.head.file, *self.backend().needed_files}
        for path in self.folder.iterdir():
            if path.name not in needed:
                path.unlink()
                self.mapped.pop(path.name, None)


def aggregate(ttl_us: int | None) -> UpdatingAggregate:
    results = tuple(OutputColumn("result", index, INT) for index in range(3))
    layout = OutputLayout(
        (OutputColumn("key", 0, INT), *results), WindowPanes("CLOSING_TIME"), with_op=True
    )
    return UpdatingAggregate(GroupSpec((INT,), CALLS), layout, ttl_us=ttl_us)


def rows(keys: np.ndarray) -> pa.Table:
    prices = pa.array(keys % 1000)
    hashes = hash_rows([pa.chunked_array([keys])], len(keys))
    zeros = np.zeros(len(keys), np.int64)
    return pa.table({"_pane": zeros, "_hash": hashes, "k0": keys, "a1_0": prices, "a2_0": prices})


class Keyed:
    """The operator with its state in files."""

    def __init__(self, folder: Path, ttl_us: int | None) -> None:
        self.operator = aggregate(ttl_us)
        self.runner = OperatorRunner(0, self.operator, ((Origin(0),),))
        self.files = Files(folder)
        self.now_us = 0

    def epoch(self, keys: np.ndarray) -> float:
        """Milliseconds from partials to the file."""
        part = self.operator.pre_aggregate(0, rows(keys))
        self.now_us += 1_000_000
        started = time.process_time()
        backend = self.files.backend()
        result = self.runner.run_epoch(backend, [[part]], [], self.now_us)
        self.files.save(backend)
        took = (time.process_time() - started) * 1e3
        assert sum(table.num_rows for table in result.output.rows) >= len(keys), "all changed"
        self.files.sweep()
        return took


class Case:
    """A state of so many groups, and what its epochs took."""

    def __init__(self, folder: Path, groups: int, ttl_us: int | None) -> None:
        self.groups = groups
        self.random = np.random.default_rng(1)
        self.keyed = Keyed(folder, ttl_us)
        order = self.random.permutation(groups)
        parts = np.array_split(order, -(-groups // KEYS_WHILE_BUILDING))
        built = sum(self.keyed.epoch(part) for part in parts)
        written = self.keyed.files.bytes / 1e6
        print(f"{groups:>10,} groups: built in {built / 1e3:.1f} s, {written:,.0f} MB written")
        self.keyed.files.bytes = 0
        self.took: list[float] = []

    def epoch(self) -> None:
        keys = self.random.choice(self.groups, KEYS_AN_EPOCH, replace=False)
        self.took.append(self.keyed.epoch(keys))

    def told(self) -> float:
        """Print what it took; returns the median."""
        median, mean = statistics.median(self.took[WARM_UP:]), statistics.fmean(self.took)
        written = self.keyed.files.bytes / len(self.took) / 1e3
        print(f"{self.groups:>10,} groups: median {median:5.2f} ms, mean {mean:5.2f},", end=" ")
        print(f"longest {max(self.took):6.2f}; {written:,.0f} KB written an epoch", flush=True)
        return median


def measured(cases: list[Case], epochs: int) -> None:
    """In turns, so that what else the machine does hits all of them."""
    for _ in range(WARM_UP + epochs):
        for case in cases:
            case.epoch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--groups", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--ttl", action="store_true", help="keys are forgotten after an hour")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    ttl_us = 3_600_000_000 if arguments.ttl else None
    with tempfile.TemporaryDirectory() as folder:
        cases = []
        for groups in arguments.groups:
            own = Path(folder) / str(groups)
            own.mkdir()
            cases.append(Case(own, groups, ttl_us))
        with cProfile.Profile() if arguments.profile else nullcontext() as profile:
            measured(cases, arguments.epochs)
        medians = [case.told() for case in cases]
    print(f"the slowest {max(medians) / min(medians):.2f} x the fastest")
    if profile is not None:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
