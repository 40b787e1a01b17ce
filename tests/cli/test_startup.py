"""Commands do not import libraries that they do not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("pyspark", "pyarrow", "pandas", "numpy", "prompt_toolkit", "duckdb")
SQL = """
CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) WITH (connector = 'memory');
CREATE STREAM per_minute AS
SELECT auction, window_start, count(*) AS n FROM bids
GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE) EMIT ON WINDOW CLOSE;
"""
PROBE = """
import json, sys
from tidegate.cli.main import app
try:
    app(json.loads(sys.argv[1]), prog_name="tidegate")
except SystemExit as end:
    assert not end.code, f"exit code {end.code}"
loaded = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
print(json.dumps(loaded))
"""


# `check` constructs the aggregate functions of a query, which use Arrow.
FOR_CHECK = ("pyarrow", "numpy")


@pytest.mark.parametrize(
    "command",
    ["check FILE", "explain FILE", "checkpoints DATA", "inspect DATA", "--help", "--version"],
)
def test_command_does_not_import_heavy_libraries(command: str, tmp_path: Path) -> None:
    script = tmp_path / "demo.sql"
    script.write_text(SQL)
    (tmp_path / "tidegate.lock").touch()
    arguments = command.replace("FILE", str(script)).replace("DATA", str(tmp_path)).split()
    result = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(arguments), json.dumps(HEAVY)],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = json.loads(result.stdout.splitlines()[-1])
    allowed = FOR_CHECK if command.startswith("check ") else ()
    assert [name for name in loaded if name not in allowed] == []


def test_probe_detects_imports() -> None:
    """Without detection, the test above could not fail."""
    probe = PROBE.replace("import json, sys", "import json, sys, pyarrow")
    result = subprocess.run(
        [sys.executable, "-c", probe, json.dumps(["--version"]), json.dumps(HEAVY)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pyarrow" in json.loads(result.stdout.splitlines()[-1])


def test_python_workers_do_not_import_the_parser() -> None:
    """Spark starts many Python workers, and each would load the parser."""
    tasks = ["spark.tasks.task_functions", "spark.python_functions"]
    tasks += ["operators.top_n.window", "connectors.formats.lines", "connectors.debug_writers"]
    tasks += ["connectors.formats.row_encoder", "physical.job_graph"]
    tasks += ["connectors.generator.generator", "connectors.table_lookup", "connectors.memory.rows"]
    tasks += ["connectors.files.source", "connectors.files.writer", "connectors.delta.table_tasks"]
    tasks += ["connectors.kafka.reader", "connectors.kafka.transactions"]
    tasks += [f"connectors.postgres.{name}" for name in ("reader", "writer", "lookup")]
    probe = f"import sys; {'; '.join(f'import tidegate.{name}' for name in tasks)}; print('sqlglot' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"
