"""Reads of one key among a million in memory, and stored values of small and large tables.

    python benchmarks/state.py [--keys 1000000] [--reads 100000]

The first part prints p50 and p99 of one read; a read's p99 is to be at most 10 ms. The second part
prints what one stored value costs: each operator does it once per key group and epoch.
"""

from __future__ import annotations

import argparse
import random
import time
import timeit
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from tidegate.state import codec
from tidegate.state.keyed_state import encode_key, key_group_of
from tidegate.state.memory import MemoryStore

OPERATOR, NAME = 1, "total"


def fill(count: int) -> tuple[MemoryStore, list[bytes]]:
    """A store of so many keys, put in no particular order."""
    store, users = MemoryStore(), [encode_key((f"user-{number}",)) for number in range(count)]
    random.Random(1).shuffle(users)
    for user in users:
        store.backend(OPERATOR, key_group_of(user)).put(NAME, user, b"x" * 100)
    return store, users


def measure(title: str, action: Callable[[bytes], object], users: list[bytes]) -> None:
    """Time each action by itself and print one line."""
    took_us = []
    for user in users:
        started = time.perf_counter_ns()
        action(user)
        took_us.append((time.perf_counter_ns() - started) / 1000)
    took_us.sort()
    p50, p99 = (took_us[int(len(took_us) * part)] for part in (0.5, 0.99))
    print(f"{title:<36}{p50:>12.1f}{p99:>12.1f}", flush=True)


def reads(keys: int, count: int) -> None:
    """One key, a short scan, and both right after a new key."""
    store, users = fill(keys)
    chosen = random.Random(2).choices(users, k=count)

    def get(user: bytes) -> object:
        return store.backend(OPERATOR, key_group_of(user)).get(NAME, user)

    def scan(user: bytes) -> object:
        return list(store.backend(OPERATOR, key_group_of(user)).scan(NAME, user, user + b"\xff"))

    def put_and_scan(user: bytes) -> object:
        store.backend(OPERATOR, key_group_of(user)).put(NAME, user + b"\x00", b"new")
        return scan(user)

    print(f"{keys:,} keys in memory{'p50 us':>32}{'p99 us':>12}")
    measure("get", get, chosen)
    scan(users[0])  # The first scan after so many new keys sorts them all.
    measure("scan of one key", scan, chosen)
    measure("put a new key, scan two", put_and_scan, chosen[: count // 100])


def microseconds(action: Callable[[], object]) -> float:
    loops = 200
    return min(timeit.repeat(action, number=loops, repeat=5)) / loops * 1e6


def stored_values() -> None:
    """Print the time to serialize tables and to read them back."""
    print(f"{'one value, us':<28}{'bytes':>10}{'to':>10}{'from':>10}")
    for count, rows in ((1, 10), (3, 10), (1, 10_000), (3, 10_000)):
        tables = [bids(rows)] * count
        schemas = [table.schema for table in tables]
        payload = codec.tables_to_bytes(tables)

        actions: tuple[Callable[[], object], ...] = (
            partial(codec.tables_to_bytes, tables),
            partial(codec.tables_from_bytes, payload, schemas),
        )
        costs = "".join(f"{microseconds(action):>10.1f}" for action in actions)
        print(f"{f'{count} of {rows:,} rows':<28}{len(payload):>10,}{costs}", flush=True)


def bids(rows: int) -> pa.Table:
    return pa.table(
        {
            "auction": pa.array(range(rows), pa.int64()),
            "channel": pa.array([f"channel-{row % 10}" for row in range(rows)], pa.string()),
            "price": pa.array([row * 0.5 for row in range(rows)], pa.float64()),
            "at": pa.array(range(rows), pa.timestamp("us", "UTC")),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--reads", type=int, default=100_000)
    arguments = parser.parse_args()
    reads(arguments.keys, arguments.reads)
    stored_values()


if __name__ == "__main__":
    main()
