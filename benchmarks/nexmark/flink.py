"""Flink in a separate environment, which `make nexmark-flink` installs: find it and run queries."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from benchmarks.nexmark import flink_names, flink_program, flink_query
from benchmarks.nexmark.flink_program import EVENT_TIME
from tidegate.connectors.generator.nexmark import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

VARIABLE = "TIDEGATE_FLINK"
UNSUPPORTED = {
    "q6": "not supported: OVER on updating input",
    "q13": "not compared: no lookup table on files",
}
# The usual NEXMark settings for Flink: mini-batches, two-phase distinct aggregates.
SETTINGS = {
    "parallelism.default": "2",
    "pipeline.object-reuse": "true",
    "table.local-time-zone": "UTC",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.memory.network.min": "256mb",
    "taskmanager.memory.network.max": "256mb",
}
_TYPES = {"TIMESTAMP": "TIMESTAMP(6)"}
_PACKAGE = "lib/python3*/site-packages/apache_flink-*.dist-info"


class FlinkError(Exception):
    """A Flink job or the Flink process failed."""


@dataclass(frozen=True)
class Flink:
    """A directory with a Python environment that contains PyFlink."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def version(self) -> str:
        packages = (self.folder / "venv").glob(_PACKAGE)
        return "Flink " + next(packages).name.removeprefix("apache_flink-").removesuffix(
            ".dist-info"
        )


def why_unsupported(name: str) -> str | None:
    """Return why a query does not run on Flink, or None if it does."""
    return None if name in flink_names() else UNSUPPORTED[name]


def find_flink(folder: Path | None) -> Flink | None:
    """Find Flink in this directory, in $TIDEGATE_FLINK, or in .flink.

    Return None if no directory was named and .flink does not exist. Exit if the named directory
    does not contain Flink.
    """
    named = folder or (Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None)
    flink = Flink((named or Path(".flink")).absolute())
    if list((flink.folder / "venv").glob(_PACKAGE)):
        return flink
    if named is not None:
        raise SystemExit(f"error: Flink is not installed in {named}. Run: make nexmark-flink")
    return None


class FlinkJobs(AbstractContextManager["FlinkJobs"]):
    """A Flink process that runs one job after the other."""

    def __init__(self, home: Flink, settings: Mapping[str, str] = SETTINGS) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        # -P: the modules beside the program must not shadow those of PyFlink.
        command = [str(home.python), "-P", str(Path(flink_program.__file__))]
        self._process = subprocess.Popen(
            command + [f"{name}={value}" for name, value in settings.items()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        )
        self._read()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def run(self, statements: Sequence[str]) -> float:
        """Run statements, wait for the last one, and return the seconds that it took."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(statements)) + "\n")
        self._process.stdin.flush()
        return float(self._read()["seconds"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(EVENT_TIME):
                answer: dict[str, Any] = json.loads(line.removeprefix(EVENT_TIME))
                if "error" in answer:
                    raise FlinkError(f"Flink failed: {_cause(answer['error'])}")
                return answer
        self._log.seek(0)
        log = self._log.read().decode("utf-8", "replace").strip()[-1000:]
        raise FlinkError(f"the Flink process ended: {log or 'no output'}")


def _cause(error: str) -> str:
    """Return the innermost cause of a Java exception; the outer ones contain no details."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes or lines or ["no message"])[-1 if causes else 0]


def source_ddl(table: str, events: Path, milliseconds: bool = False) -> list[str]:
    """Return the statements that create a table of events.

    Flink's time attribute has milliseconds, so it is a separate column `rowtime`. With
    `milliseconds`, `date_time` itself is read as milliseconds and is the time attribute.
    """
    columns = [f"{name} {_TYPES.get(kind, kind)}" for name, kind in TABLES[table].columns]
    columns += ["rowtime AS CAST(date_time AS TIMESTAMP(3))"]
    time = "rowtime"
    if milliseconds:
        time, columns = "date_time", [column.replace("(6)", "(3)") for column in columns[:-1]]
    return [
        f"DROP TABLE IF EXISTS {table}",
        f"CREATE TABLE {table} ({', '.join(columns)}, "
        f"WATERMARK FOR {time} AS {time} - INTERVAL '4' SECOND) WITH ('connector' = 'filesystem', "
        f"'path' = '{(events / table).absolute().as_uri()}', 'format' = 'parquet', "
        "'parquet.utc-timezone' = 'true')",
    ]


def flink_answer(
    jobs: FlinkJobs, name: str, events: Path, folder: Path, columns: Sequence[str]
) -> pa.Table:
    """Return Flink's final result of a query; all values are strings."""
    statements = [ddl for table in TABLES for ddl in source_ddl(table, events)]
    statements += [
        f"DROP VIEW IF EXISTS query_{name}",
        f"CREATE VIEW query_{name} AS {flink_query(name)}",
        "DROP TABLE IF EXISTS final_result",
        f"CREATE TABLE final_result WITH ('connector' = 'filesystem', "
        f"'path' = '{folder.absolute().as_uri()}', 'format' = 'debezium-json', "
        f"'debezium-json.timestamp-format.standard' = 'ISO-8601') AS SELECT * FROM query_{name}",
    ]
    jobs.run(statements)
    return _materialized_rows(folder, columns)


def _materialized_rows(folder: Path, columns: Sequence[str]) -> pa.Table:
    """Return the rows that remain after all retractions."""
    import duckdb

    files = str(folder / "**" / "*").replace("'", "''")
    with duckdb.connect() as engine:
        engine.execute(
            "CREATE VIEW changes AS "
            "SELECT unnest([before, after]) AS row, unnest([-1, 1]) AS times "
            f"FROM read_json('{files}', format = 'newline_delimited', hive_partitioning = false, "
            "columns = {before: 'JSON', after: 'JSON', op: 'VARCHAR'})"
        )
        engine.execute(
            "CREATE TABLE materialized AS SELECT row, sum(times)::INT AS times FROM changes "
            "WHERE row IS NOT NULL AND row::VARCHAR <> 'null' GROUP BY row HAVING sum(times) > 0"
        )
        fields = ", ".join(f"row ->> '{name}' AS \"{name}\"" for name in columns)
        return engine.sql(f"SELECT {fields} FROM materialized, range(times)").to_arrow_table()
