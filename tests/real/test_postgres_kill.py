"""kill -9 of a pipeline with sinks and a lookup in PostgreSQL, and of the database."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidegate
from tests.real.postgres import PASSWORD, Postgres
from tests.real.postgres_program import script
from tests.support.sessions import eventually
from tidegate.runtime.pipeline import EpochStep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("postgres_program.py")
NAMES = {auction: f"seller {auction % 7}" for auction in range(20)} | {3: "nobody"}


class Campaign:
    """A growing input and the tables that the sinks write."""

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        self.random = random.Random(7)
        self.folder, self.postgres = folder, postgres
        self.inputs = folder / "in"
        self.inputs.mkdir()
        self.rows: list[dict[str, int]] = []
        self.files = 0
        postgres.drop_staged()
        for table in ("sellers", "named", "totals", "odd", "tidegate_commits"):
            postgres.run(f"DROP TABLE IF EXISTS {table}")
        postgres.run("DROP ROLE IF EXISTS writer")
        postgres.run(f"CREATE ROLE writer SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
        postgres.run("CREATE TABLE sellers (auction bigint PRIMARY KEY, name text)")
        values = ", ".join(f"({auction}, '{name}')" for auction, name in NAMES.items())
        postgres.run(f"INSERT INTO sellers VALUES {values}")

    @property
    def options(self) -> str:
        return self.postgres.options("TABLE", user="writer")

    def add_file(self) -> None:
        rows = [
            {
                "id": len(self.rows) + n,
                "auction": self.random.randrange(25),
                "price": self.random.randrange(99),
            }
            for n in range(50)
        ]
        self.rows += rows
        aside = self.folder / "aside"
        pq.write_table(pa.Table.from_pylist(rows), aside)
        aside.rename(self.inputs / f"{self.files:04d}.parquet")
        self.files += 1

    def start(self, *more: str) -> subprocess.Popen[str]:
        root = PROGRAM.parents[2]
        return subprocess.Popen(
            [
                sys.executable,
                str(PROGRAM),
                str(self.folder / "data"),
                str(self.inputs),
                self.options,
                *more,
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            start_new_session=True,
        )

    def run_until_killed(self, step: EpochStep, times: int) -> int:
        process = self.start("--kill", step.value, str(times))
        try:
            return process.wait(timeout=600)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            assert process.stdout is not None, "the output is a pipe"
            process.stdout.close()

    def differences(self) -> dict[str, tuple[int, int]]:
        """Return the missing and the duplicate rows of every table, if there are any."""
        named = [(r["id"], r["price"], _name(r["auction"])) for r in self.rows]
        counts = Counter(r["auction"] for r in self.rows)
        totals: Counter[int] = Counter()
        for row in self.rows:
            totals[row["auction"]] += row["price"]
        sold = Counter(NAMES[r["auction"]] for r in self.rows if r["auction"] in NAMES)
        expected: dict[str, list[Any]] = {
            "named": named,
            "totals": [(auction, n, totals[auction]) for auction, n in counts.items()],
            "odd": [(name, n) for name, n in sold.items() if n % 3],
        }
        published = {
            name: Counter(self.postgres.query(f"SELECT * FROM {name}")) for name in expected
        }
        pairs = {
            name: (
                (Counter(rows) - published[name]).total(),
                (published[name] - Counter(rows)).total(),
            )
            for name, rows in expected.items()
        }
        return {name: pair for name, pair in pairs.items() if any(pair)}


def _name(auction: int) -> str | None:
    name = NAMES.get(auction)
    return None if name == "nobody" else name


def test_survives_kills_before_and_during_publish_without_duplicates(
    tmp_path: Path, postgres: Postgres
) -> None:
    campaign = Campaign(tmp_path, postgres)
    # `test_postgres_loop` crashes at every step, in one process. Here the sinks are published one by
    # one, and the program is killed between the first and the second.
    for _ in range(3):
        campaign.add_file()
    assert campaign.run_until_killed(EpochStep.PUBLISHING, 2) == -9, "the pipeline was not killed"
    campaign.add_file()
    shown, _ = campaign.start("--until-end").communicate(timeout=600)
    assert shown.splitlines()[-1] == "done"
    assert campaign.differences() == {}
    assert postgres.staged() == [], "staged rows were left"


def test_waits_for_a_killed_database_but_not_for_a_rejected_login(
    tmp_path: Path, postgres: Postgres, spark: SparkSession
) -> None:
    campaign = Campaign(tmp_path, postgres)
    campaign.add_file()
    with tidegate.open(tmp_path / "data", spark=spark) as session:
        session.execute(script(str(campaign.inputs), campaign.options))
        session.start()
        session.wait()
        postgres.kill()
        try:
            campaign.add_file()
            eventually(lambda: any(s.error for s in session.status()))
            errors = [str(s.error) for s in session.status() if s.error]
            assert any("the database" in error for error in errors), errors
            assert not any(PASSWORD in error for error in errors)
        finally:
            postgres.start()
        session.wait()
        assert campaign.differences() == {}
        assert not any(status.error for status in session.status())
        shown = session.execute("SHOW CREATE named_out;")
        assert PASSWORD not in str(shown) and "***" in str(shown[0])
        state = "".join(path.read_text() for path in (tmp_path / "data").rglob("*.json"))
        assert PASSWORD not in state and session.explain("named").count(PASSWORD) == 0
        postgres.run("ALTER ROLE writer PASSWORD 'another'")
        postgres.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'writer'"
        )
        campaign.add_file()
        with pytest.raises(tidegate.TidegateError) as rejected:
            session.wait(120)
        assert rejected.value.code == "TG-512", rejected.value
        assert "password authentication failed" in rejected.value.message
        assert PASSWORD not in str(rejected.value)
    assert campaign.differences() != {}, "the last rows are not published yet"
    postgres.run(f"ALTER ROLE writer PASSWORD '{PASSWORD}'")
    with tidegate.open(tmp_path / "data", spark=spark) as session:
        session.execute(script(str(campaign.inputs), campaign.options))
        session.start()
        session.wait()
    assert campaign.differences() == {}
