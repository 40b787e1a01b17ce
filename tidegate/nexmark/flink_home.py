"""Flink in an environment of its own, which `make nexmark-flink` makes: finds it and asks it."""

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

from tidegate.connectors.generator.nexmark import TABLES
from tidegate.errors import RunError
from tidegate.nexmark import flink, flink_names, flink_program
from tidegate.nexmark.flink_program import MARK

if TYPE_CHECKING:
    import pyarrow as pa

VARIABLE = "TIDEGATE_FLINK"
UNABLE = {
    "q6": "cannot: no OVER of rows that are retracted",
    "q13": "not asked: no lookup table on files",
}
# As NEXMark is run on Flink elsewhere: small batches of changes, two phases of distinct counts.
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


@dataclass(frozen=True)
class Flink:
    """A folder with a Python environment that has PyFlink."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def version(self) -> str:
        found = (self.folder / "venv").glob("lib/python3*/site-packages/apache_flink-*.dist-info")
        return "Flink " + next(found).name.removeprefix("apache_flink-").removesuffix(".dist-info")


def unable(name: str) -> str | None:
    """Why a query is not asked of Flink."""
    return None if name in flink_names() else UNABLE[name]


def find_flink(given: Path | None) -> Flink | None:
    """Flink where it is said to be, where the environment says, or in .flink; None without it."""
    named = given or (Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None)
    found = Flink((named or Path(".flink")).absolute())
    if list((found.folder / "venv").glob("lib/python3*/site-packages/apache_flink-*.dist-info")):
        return found
    if named is not None:
        raise RunError("TG-506", f"there is no Flink in {named}", hint="make nexmark-flink")
    return None


class FlinkJobs(AbstractContextManager["FlinkJobs"]):
    """A process with Flink in it, which runs one job after the other."""

    def __init__(self, home: Flink, settings: Mapping[str, str] = SETTINGS) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        command = [str(home.python), str(Path(flink_program.__file__))]
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
        """Run statements, the last one to its end; how many seconds that one took."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(statements)) + "\n")
        self._process.stdin.flush()
        return float(self._read()["seconds"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
                if "error" in answer:
                    raise RunError("TG-503", f"Flink failed: {_cause(answer['error'])}")
                return answer
        self._log.seek(0)
        said = self._log.read().decode("utf-8", "replace").strip()[-1000:]
        raise RunError("TG-503", f"Flink ended: {said or 'it says nothing'}")


def _cause(error: str) -> str:
    """The innermost cause of a Java exception: the others only say that there was one."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes or lines or ["no message"])[-1 if causes else 0]


def source_ddl(table: str, events: Path, milliseconds: bool = False) -> list[str]:
    """A table of events. The time attribute knows no microseconds, so it is a column of its own."""
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
    """What Flink makes of the events in the end, as texts."""
    statements = [ddl for table in TABLES for ddl in source_ddl(table, events)]
    statements += [
        f"DROP VIEW IF EXISTS asked_{name}",
        f"CREATE VIEW asked_{name} AS {flink(name)}",
        "DROP TABLE IF EXISTS answered",
        f"CREATE TABLE answered WITH ('connector' = 'filesystem', "
        f"'path' = '{folder.absolute().as_uri()}', 'format' = 'debezium-json', "
        f"'debezium-json.timestamp-format.standard' = 'ISO-8601') AS SELECT * FROM asked_{name}",
    ]
    jobs.run(statements)
    return _standing(folder, columns)


def _standing(folder: Path, columns: Sequence[str]) -> pa.Table:
    """The rows that changes leave: what was inserted more often than it was retracted."""
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
            "CREATE TABLE left_over AS SELECT row, sum(times)::INT AS times FROM changes "
            "WHERE row IS NOT NULL AND row::VARCHAR <> 'null' GROUP BY row HAVING sum(times) > 0"
        )
        fields = ", ".join(f"row ->> '{name}' AS \"{name}\"" for name in columns)
        return engine.sql(f"SELECT {fields} FROM left_over, range(times)").to_arrow_table()
