"""Exit codes, stack traces and the colors of error messages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.cli import scripts
from tidegate.cli.errors import colored
from tidegate.cli.main import app
from tidegate.compile.compiler import Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import RunError

STREAM = """
CREATE SOURCE bids (price BIGINT) WITH (connector = 'memory');
CREATE STREAM cheap AS SELECT * FROM bids WHERE price < 10;
"""
INVALID = "CREATE STREAM a AS SELECT * FROM bits;"


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    Path("good.sql").write_text(STREAM)
    return CliRunner()


def test_version(runner: CliRunner) -> None:
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"tidegate {tidegate.__version__}\n")


@pytest.mark.parametrize("arguments", [["explain", "good.sql"], ["--debug", "explain", "x"]])
@pytest.mark.parametrize("error", [RunError("TG-503", "it broke"), ValueError("no\nwonder")])
def test_stack_traces_only_on_request(
    error: Exception,
    arguments: list[str],
    runner: CliRunner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(scripts, "explain", fail)
    result = runner.invoke(app, arguments)
    assert ("Traceback" in result.stderr) == ("--debug" in arguments)
    if isinstance(error, RunError):
        assert result.exit_code == 2
        assert result.stderr.endswith("error[TG-503]: it broke\n")
    else:
        assert result.exit_code == 1
        assert result.stderr.endswith(
            "internal error: ValueError: no\nHint: run again with --debug to see the stack trace.\n"
        )


def test_debug_option_after_the_command(runner: CliRunner) -> None:
    result = runner.invoke(app, ["explain", "nix.sql", "--debug"])
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "Traceback" not in runner.invoke(app, ["explain", "nix.sql"]).stderr


def test_closed_pipe_is_not_an_error(runner: CliRunner) -> None:
    Path("many.sql").write_text(
        STREAM + "".join(f"CREATE STREAM s{i} AS SELECT * FROM bids;\n" for i in range(600))
    )
    command = [sys.executable, "-m", "tidegate.cli.main", "explain", "many.sql"]
    environment = {**os.environ, "PYTHONPATH": str(Path(tidegate.__file__).parents[1])}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"stream cheap\n"
        process.stdout.close()
        assert process.stderr.read() == b""


def test_colors_do_not_change_the_text() -> None:
    compiled = Compiler(CONNECTORS, resolve_environment=False).compile(INVALID, "bad.sql")
    (error,) = compiled.errors
    text = colored(error.render(), "error")
    assert text.plain == error.render()
    assert text.spans
