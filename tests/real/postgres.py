"""A real PostgreSQL 16 for tests."""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from examples import systems
from tests.support.processes import children_of

PASSWORD = systems.PASSWORD


class Postgres(systems.Postgres):
    """A server that tests query and kill."""

    def kill_all(self) -> None:
        """Kill the server and its processes with -9."""
        leader = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        deadline = time.monotonic() + 30
        while pids := [leader, *children_of(leader)] if Path(f"/proc/{leader}").exists() else []:
            assert time.monotonic() < deadline, "the server is still running"
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    # Queries of tests

    def in_database(self, name: str) -> Postgres:
        """Return the same server, connected to another database."""
        other = copy.copy(self)
        other.database = name
        return other

    def connect(self) -> Any:
        import psycopg

        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            dbname=self.database,
            user="postgres",
            password=PASSWORD,
            autocommit=True,
        )

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            return list(connection.execute(sql, parameters).fetchall())

    def run(self, sql: str) -> None:
        with closing(self.connect()) as connection:
            connection.execute(sql)

    def staged(self) -> list[str]:
        """Return the staging tables of tasks."""
        rows = self.query(
            "SELECT tablename FROM pg_tables WHERE starts_with(tablename, '_tidegate_')"
        )
        return [name for (name,) in rows]

    def drop_staged(self) -> None:
        for name in self.staged():
            self.run(f"DROP TABLE {name}")

    def options(self, table: str, **more: Any) -> str:
        """Return the options of a WITH clause for a table of this server."""
        options: dict[str, Any] = {
            "connector": "postgres",
            "host": "127.0.0.1",
            "port": self.port,
            "database": self.database,
            "user": "postgres",
            "password": PASSWORD,
            "table": table,
            **more,
        }
        return ", ".join(f"{name} = '{value}'" for name, value in options.items())
