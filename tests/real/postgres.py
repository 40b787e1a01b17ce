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

PASSWORD = systems.PASSWORD


class Postgres(systems.Postgres):
    """A server that tests ask and disturb."""

    def kill_all(self) -> None:
        """kill -9 of the server and of all its processes."""
        leader = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        deadline = time.monotonic() + 30
        while pids := [leader, *_children(leader)] if Path(f"/proc/{leader}").exists() else []:
            assert time.monotonic() < deadline, "it does not die"
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    # Asking it

    def in_database(self, name: str) -> Postgres:
        """The same server, asked in another database."""
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
        """The tables that tasks have staged rows in."""
        found = self.query(
            "SELECT tablename FROM pg_tables WHERE starts_with(tablename, '_tidegate_')"
        )
        return [name for (name,) in found]

    def forget_staged(self) -> None:
        for name in self.staged():
            self.run(f"DROP TABLE {name}")

    def options(self, table: str, **more: Any) -> str:
        """What a WITH clause says of a table here."""
        given: dict[str, Any] = {
            "connector": "postgres",
            "host": "127.0.0.1",
            "port": self.port,
            "database": self.database,
            "user": "postgres",
            "password": PASSWORD,
            "table": table,
            **more,
        }
        return ", ".join(f"{name} = '{value}'" for name, value in given.items())


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found
