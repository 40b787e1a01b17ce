"""A lookup join with a table in PostgreSQL that answers late: 20,000 keys, a warm cache.

    python -m benchmarks.lookup [--rows 1000000] [--keys 20000] [--latency-ms 5]

Between Tidegate and the database stands a proxy on loopback that hands on every answer so many
milliseconds later. The first epoch finds an empty cache, and says how long it takes to fill it;
what counts are the rows of the epochs after it.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

import tidegate
from examples.systems import PASSWORD, Postgres

FILES = 4


class Late:
    """A proxy whose answers come late, in order."""

    def __init__(self, port: int, seconds: float) -> None:
        self.goal, self.seconds = port, seconds
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        opened = asyncio.run_coroutine_threadsafe(self._open(), self.loop)
        self.port: int = opened.result(10)

    async def _open(self) -> int:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_them = await asyncio.open_connection("127.0.0.1", self.goal)
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        await asyncio.gather(
            self._hand_on(reader, to_them), self._receive(theirs, late), self._send(late, writer)
        )

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def _receive(
        self, reader: asyncio.StreamReader, late: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        data = b"-"
        while data:
            data = await reader.read(1 << 16)
            await late.put((time.monotonic() + self.seconds, data))

    async def _send(
        self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        with suppress(ConnectionError):
            while True:
                due, data = await late.get()
                await asyncio.sleep(max(due - time.monotonic(), 0))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.close()


def write_file(folder: Path, number: int, rows: int, keys: int) -> None:
    random = np.random.default_rng(number)
    table = pa.table({"id": np.arange(rows), "customer": random.integers(0, keys, rows)})
    aside = folder.parent / f"{number}.parquet"
    pq.write_table(table, aside)
    aside.rename(folder / f"{number:04d}.parquet")


def script(given: Path, port: int) -> str:
    return f"""
    CREATE SOURCE orders (id BIGINT, customer BIGINT)
    WITH (connector = 'files', path = '{given}', files_per_epoch = 1);
    CREATE LOOKUP TABLE customers (id BIGINT, name STRING, city STRING, PRIMARY KEY (id))
    WITH (connector = 'postgres', host = '127.0.0.1', port = {port}, database = 'postgres',
          user = 'postgres', password = '{PASSWORD}', table = 'customers', cache_rows = 100000);
    CREATE STREAM named AS SELECT o.id, c.name, c.city FROM orders AS o
    LEFT JOIN customers AS c ON o.customer = c.id;
    CREATE SINK s FROM named WITH (connector = 'blackhole');
    """


def measure(base: Path, port: int, rows: int, keys: int) -> None:
    given = base / "orders"
    given.mkdir()
    each = rows // FILES
    write_file(given, 0, each, keys)
    with tidegate.open(base / "data") as session:
        session.execute(script(given, port))
        started = time.perf_counter()
        session.start()
        session.wait()
        print(f"first epoch, {each:,} rows: {time.perf_counter() - started:.2f} s, start and all")
        # Tasks of the second epoch may run in workers that have not asked yet.
        write_file(given, 1, each, keys)
        session.wait()
        for number in range(2, 2 + FILES):
            write_file(given, number, each, keys)
        started = time.perf_counter()
        session.wait()
        took = time.perf_counter() - started
    print(f"warm cache: {FILES * each / took / 1000:.0f} K rows/s (wanted: 50)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--latency-ms", type=float, default=5.0)
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    server = Postgres()
    try:
        place = f"host=127.0.0.1 port={server.port} dbname=postgres user=postgres"
        with psycopg.connect(f"{place} password={PASSWORD}") as connection:
            connection.execute(
                "CREATE TABLE customers (id bigint PRIMARY KEY, name text, city text)"
            )
            connection.execute(
                "INSERT INTO customers SELECT n, 'customer ' || n, 'city ' || n %% 100 "
                "FROM generate_series(0, %s - 1) AS n",
                [arguments.keys],
            )
        late = Late(server.port, arguments.latency_ms / 1000)
        measure(base, late.port, arguments.rows, arguments.keys)
    finally:
        server.close()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
