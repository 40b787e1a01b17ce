"""Rows into PostgreSQL: the sink of Tidegate against a plain COPY, side by side in one run.

    python -m benchmarks.postgres_copy [--rows 500000] [--rounds 3]

No Spark: what a task does with Arrow tables, and what the commit does, is called as the loop does,
by one task. The plain COPY gets the same rows as bytes of the binary format that were made before,
in one transaction: that is what the database takes. Staging is the time until the epoch can be
decided; the commit moves the rows into their table.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import closing
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

from examples.systems import PASSWORD, Postgres
from tidegate.catalog.objects import Sink
from tidegate.compile.compiler import Compiler
from tidegate.connectors.base import CommittedState, EpochId, SinkContext, StreamSchema
from tidegate.connectors.postgres.sink import PostgresSink
from tidegate.connectors.registry import CONNECTORS

KINDS = ("BIGINT", "BIGINT", "DOUBLE", "STRING", "TIMESTAMP")
NAMES = ("id", "auction", "price", "channel", "at")
TYPES = ("int8", "int8", "float8", "text", "timestamptz")
BATCH = 50_000


def bids(rows: int) -> pa.Table:
    random = np.random.default_rng(1)
    channels = pa.array(["Google", "Facebook", "Baidu", "Apple"])
    return pa.table(
        {
            "id": np.arange(rows),
            "auction": random.integers(0, 100_000, rows),
            "price": random.uniform(0, 1000, rows),
            "channel": channels.take(pa.array(random.integers(0, 4, rows))),
            "at": pa.array(1_700_000_000_000_000 + np.arange(rows), pa.timestamp("us", "UTC")),
        }
    )


class Server:
    """A database for the run."""

    def __init__(self) -> None:
        self.server = Postgres()

    def connect(self) -> Any:
        return psycopg.connect(
            host="127.0.0.1",
            port=self.server.port,
            dbname="postgres",
            user="postgres",
            password=PASSWORD,
            autocommit=True,
        )

    def sink(self, table: str) -> PostgresSink:
        given = (
            f"connector = 'postgres', host = '127.0.0.1', port = {self.server.port}, "
            f"database = 'postgres', user = 'postgres', password = '{PASSWORD}', "
            f"table = '{table}', create_table = true"
        )
        compiled = Compiler(CONNECTORS).compile(
            "CREATE SOURCE s (id BIGINT) WITH (connector = 'memory'); "
            f"CREATE STREAM q AS SELECT * FROM s; CREATE SINK out FROM q WITH ({given});"
        )
        declared = compiled.catalog.get("out")
        assert isinstance(declared, Sink), compiled.errors
        rows = StreamSchema(tuple(zip(NAMES, KINDS, strict=True)))
        return PostgresSink(SinkContext(declared, "", "abcd1234", lambda *_: None, schema=rows))

    def bytes_of(self, rows: pa.Table) -> list[bytes]:
        """The rows as the database itself writes them in the binary format."""
        with closing(self.connect()) as connection:
            connection.execute(f"CREATE TABLE made ({_columns()})")
            with connection.cursor().copy("COPY made FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(TYPES)
                for row in zip(*(c.to_pylist() for c in rows.columns), strict=True):
                    copy.write_row(row)
            with connection.cursor().copy("COPY made TO STDOUT (FORMAT BINARY)") as copy:
                made = b"".join(bytes(part) for part in copy)
            connection.execute("DROP TABLE made")
        return [made[at : at + (1 << 20)] for at in range(0, len(made), 1 << 20)]

    def plain(self, made: list[bytes]) -> float:
        with closing(self.connect()) as connection:
            connection.execute(f"DROP TABLE IF EXISTS plain; CREATE TABLE plain ({_columns()})")
            started = time.perf_counter()
            with connection.cursor().copy("COPY plain FROM STDIN (FORMAT BINARY)") as copy:
                for part in made:
                    copy.write(part)
            return time.perf_counter() - started

    def ours(self, rows: pa.Table) -> tuple[float, float]:
        with closing(self.connect()) as connection:
            connection.execute("DROP TABLE IF EXISTS ours, tidegate_commits")
        sink = self.sink("ours")
        sink.recover(CommittedState(None))
        started = time.perf_counter()
        writer_factory = sink.writer_factory(rows.schema).open(EpochId(0, 0).stamp, 0)
        for at in range(0, rows.num_rows, BATCH):
            writer_factory.add(rows.slice(at, BATCH))
        tokens = writer_factory.finish()
        staged = time.perf_counter()
        sink.publish(EpochId(0, 0), tokens)
        return staged - started, time.perf_counter() - staged


def _columns() -> str:
    return ", ".join(f"{name} {kind}" for name, kind in zip(NAMES, TYPES, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows = bids(arguments.rows)
    server = Server()
    try:
        made = server.bytes_of(rows)
        plain, staging, moving = [], [], []
        for number in range(arguments.rounds + 1):
            taken = server.plain(made), *server.ours(rows)
            if number:
                for times, took in zip((plain, staging, moving), taken, strict=True):
                    times.append(took)
    finally:
        server.server.close()
    for name, times in (("plain COPY", plain), ("staging", staging), ("commit", moving)):
        print(f"{name:12}{arguments.rows / statistics.median(times) / 1000:8.0f} K rows/s")
    ratios = [(p / s, p / (s + m)) for p, s, m in zip(plain, staging, moving, strict=True)]
    print(f"COPY into staging {statistics.median(r for r, _ in ratios):.2f} x plain (wanted: 0.5)")
    print(f"with the commit   {statistics.median(r for _, r in ratios):.2f} x plain")


if __name__ == "__main__":
    main()
