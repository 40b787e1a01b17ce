"""What exact sums of doubles and the hash of keys cost.

    python benchmarks/kernels.py

Rows that stay are added up as doubles; rows that can be retracted by the exact sum. No row here is
retracted, so both give the same numbers. The hash of text is compared with that of numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidegate.columns import HASH, PANE, WEIGHT
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.groups import Aggregator, GroupSpec
from tidegate.operators.kernels.keys import hash_rows

INT, DOUBLE = pa.int64(), pa.float64()
CALLS = (
    AggregateCall("count", "count(*)", (), INT),
    AggregateCall("sum", "sum(price)", (DOUBLE,), DOUBLE),
)


def best(work: Callable[[], object], repeats: int = 7) -> float:
    """Milliseconds of the fastest run: on a busy machine the others measure the neighbours."""
    took = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        took.append((time.perf_counter() - started) * 1e3)
    return min(took)


def costs(rows: pa.Table, retracts: bool) -> tuple[list[float], pa.Table]:
    """Lifting the rows, merging two partials, evaluating one; and the result."""
    groups = Aggregator(GroupSpec((INT,), CALLS, retracts))
    part = groups.pre_aggregate(rows)
    took = [
        best(lambda: groups.pre_aggregate(rows)),
        best(lambda: groups.combine_parts([part, part])),
        best(lambda: groups.evaluate(part)),
    ]
    return took, groups.evaluate(part).sort_by("k0")


def sums() -> None:
    random = np.random.default_rng(1)
    for count, keys in ((1_000_000, 100), (1_000_000, 100_000), (1_000, 100)):
        key = random.integers(0, keys, count)
        table = {PANE: np.zeros(count, np.int64), HASH: key, "k0": key}
        table |= {"a1_0": np.round(random.uniform(0, 1000, count), 2)}
        rows = pa.table(table | {WEIGHT: np.ones(count, np.int64)})
        (plain, added), (exact, summed) = costs(rows, False), costs(rows, True)
        assert np.allclose(added["r1"].to_numpy(), summed["r1"].to_numpy()), "the same sums"
        ratio = sum(exact) / sum(plain)
        print(f"{count:>9,} rows, {keys:>7,} groups: {ratio:.1f} x plain addition", end="; ")
        names = ("lift", "merge", "evaluate")
        pairs = zip(names, plain, exact, strict=True)
        print(", ".join(f"{name} {one:.1f} -> {other:.1f} ms" for name, one, other in pairs))


def hashing() -> None:
    count = 1_000_000
    texts = pa.array([f"user-{number:07}" for number in range(count)])
    numbers = pa.array(np.arange(count))
    text, number = (best(lambda c=c: hash_rows([c], count)) for c in (texts, numbers))
    print(f"hash of 1 M texts of 12 bytes {text:.0f} ms, of 1 M numbers {number:.0f} ms")


def main() -> None:
    sums()
    hashing()


if __name__ == "__main__":
    main()
