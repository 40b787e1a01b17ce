"""check, explain and how every command ends, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.cli import report, scripts
from tidegate.cli.main import app
from tidegate.compile.compiler import Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import RunError

SOURCE = """
CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) WITH (connector = 'memory');
"""
GOOD = (
    SOURCE
    + """
CREATE STREAM cheap AS SELECT * FROM bids WHERE price < 10;
CREATE STREAM dear AS SELECT * FROM bids WHERE price > 10;
CREATE SINK out FROM cheap WITH (connector = 'console');
"""
)
BAD = (
    SOURCE
    + """
CREATE STREAM a AS SELECT auktion FROM bids;
CREATE STREAM b AS SELECT * FROM bits;
CREATE STREAM c AS SELECT count(*) AS n FROM bids;
"""
)
WARNED = SOURCE + ("CREATE STREAM a WITH (validator = 'warn') AS SELECT count(*) AS n FROM bids;")


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.sql").write_text(GOOD)
    Path("bad.sql").write_text(BAD)
    Path("warned.sql").write_text(WARNED)


def rendered(text: str, file: str) -> str:
    errors = Compiler(CONNECTORS, resolve_environment=False).compile(text, file).errors
    assert len(errors) == 3
    return "\n\n".join(error.render() for error in errors) + "\n"


class TestCheck:
    def test_a_good_file(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["check", "good.sql"])
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == "good.sql: ok, 1 source, 2 streams, 1 sink\n"

    def test_all_errors_exactly_as_rendered(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["check", "bad.sql"])
        assert result.exit_code == 2
        assert result.stdout == "bad.sql: 3 errors\n"
        assert result.stderr == rendered(BAD, "bad.sql")

    def test_all_files_are_checked(self, runner: CliRunner) -> None:
        Path("worse.sql").write_text(BAD)
        result = runner.invoke(app, ["check", "bad.sql", "nix.sql", "good.sql", "worse.sql"])
        assert result.exit_code == 2
        assert result.stdout.splitlines() == [
            "bad.sql: 3 errors",
            "good.sql: ok, 1 source, 2 streams, 1 sink",
            "worse.sql: 3 errors",
        ]
        missing = "error: cannot read nix.sql: No such file or directory\n"
        parts = (rendered(BAD, "bad.sql"), missing, rendered(BAD, "worse.sql"))
        assert result.stderr == "\n".join(parts)

    def test_warnings_are_shown_and_pass(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["check", "warned.sql"])
        assert result.exit_code == 0
        assert result.stdout == "warned.sql: ok, 1 source, 1 stream, 1 warning\n"
        assert result.stderr.startswith("warning[TG-403]: ")

    def test_stdin(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["check", "-"], input=BAD)
        assert result.exit_code == 2
        assert result.stdout == "stdin: 3 errors\n"
        assert "--> stdin:5:" in result.stderr

    def test_a_file_that_declares_nothing(self, runner: CliRunner) -> None:
        Path("empty.sql").write_text("-- nothing yet\n")
        result = runner.invoke(app, ["check", "empty.sql"])
        assert (result.exit_code, result.stdout) == (0, "empty.sql: ok, nothing declared\n")

    @pytest.mark.parametrize(
        ("content", "message"),
        [(b"\xff\xfe;", "it is not UTF-8 text"), (None, "Is a directory")],
    )
    def test_a_file_that_cannot_be_read(
        self, content: bytes | None, message: str, runner: CliRunner
    ) -> None:
        path = Path("odd.sql")
        path.mkdir() if content is None else path.write_bytes(content)
        result = runner.invoke(app, ["check", "odd.sql"])
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: cannot read odd.sql: {message}")

    def test_a_byte_order_mark_is_no_sql(self, runner: CliRunner) -> None:
        Path("mark.sql").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
        assert runner.invoke(app, ["check", "mark.sql"]).exit_code == 0

    def test_no_file_at_all(self, runner: CliRunner) -> None:
        assert runner.invoke(app, ["check"]).exit_code == 2


class TestExplain:
    def test_all_streams(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["explain", "good.sql"])
        assert result.exit_code == 0
        heads = [line for line in result.stdout.splitlines() if line.startswith("stream ")]
        assert heads == ["stream cheap", "stream dear"]

    def test_one_stream_in_any_case(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["explain", "good.sql", "DEAR"])
        assert result.exit_code == 0
        assert result.stdout.startswith("stream dear\n")
        assert "cheap" not in result.stdout

    def test_queries_that_the_script_explains(self, runner: CliRunner) -> None:
        Path("query.sql").write_text(SOURCE + "EXPLAIN SELECT price FROM bids;")
        result = runner.invoke(app, ["explain", "query.sql"])
        assert result.stdout.startswith("query\n")

    def test_the_plan_before_and_after_the_optimizer(self, runner: CliRunner) -> None:
        query = "SELECT p FROM (SELECT price AS p FROM bids) WHERE p > 5;"
        Path("query.sql").write_text(SOURCE + f"EXPLAIN {query}")
        optimized = runner.invoke(app, ["explain", "query.sql"]).stdout
        logical = runner.invoke(app, ["explain", "--logical", "query.sql"]).stdout
        assert (optimized.count("Project"), logical.count("Project")) == (1, 2)
        Path("query.sql").write_text(SOURCE + f"EXPLAIN LOGICAL {query}")
        assert runner.invoke(app, ["explain", "query.sql"]).stdout == logical
        Path("query.sql").write_text(SOURCE + f"SET optimizer = 'off'; EXPLAIN {query}")
        assert runner.invoke(app, ["explain", "query.sql"]).stdout == logical

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("der", "unknown stream der in good.sql\nHint: did you mean dear?"),
            ("bids", "bids is a source in good.sql"),
        ],
    )
    def test_what_is_no_stream(self, name: str, message: str, runner: CliRunner) -> None:
        result = runner.invoke(app, ["explain", "good.sql", name])
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error[TG-201]: {message}")

    def test_dead_letters_have_no_plan(self, runner: CliRunner) -> None:
        text = SOURCE.replace("'memory'", "'memory', dead_letters = 'bad_bids'")
        Path("side.sql").write_text(text)
        result = runner.invoke(app, ["explain", "side.sql", "bad_bids"])
        assert result.exit_code == 2
        assert "bad_bids contains dead letters of bids" in result.stderr

    def test_errors(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["explain", "bad.sql"])
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == rendered(BAD, "bad.sql")

    def test_nothing_to_explain(self, runner: CliRunner) -> None:
        Path("source.sql").write_text(SOURCE)
        result = runner.invoke(app, ["explain", "source.sql"])
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == "source.sql declares no stream\n"


class TestEnds:
    def test_version(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["--version"])
        assert (result.exit_code, result.stdout) == (0, f"tidegate {tidegate.__version__}\n")

    @pytest.mark.parametrize("arguments", [["explain", "good.sql"], ["--debug", "explain", "x"]])
    @pytest.mark.parametrize("error", [RunError("TG-503", "it broke"), ValueError("no\nwonder")])
    def test_stack_traces_only_on_request(
        self,
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
                "internal error: ValueError: no, run with --debug for details\n"
            )

    def test_debug_after_the_command(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["explain", "nix.sql", "--debug"])
        assert result.exit_code == 2
        assert "Traceback" in result.stderr
        assert "Traceback" not in runner.invoke(app, ["explain", "nix.sql"]).stderr

    def test_a_reader_that_leaves_early(self) -> None:
        Path("many.sql").write_text(
            SOURCE + "".join(f"CREATE STREAM s{i} AS SELECT * FROM bids;\n" for i in range(600))
        )
        command = [sys.executable, "-m", "tidegate.cli.main", "explain", "many.sql"]
        environment = {**os.environ, "PYTHONPATH": str(Path(tidegate.__file__).parents[1])}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == b"stream s0\n"
            process.stdout.close()
            assert process.stderr.read() == b""


def test_colours_change_no_word() -> None:
    for error in Compiler(CONNECTORS, resolve_environment=False).compile(BAD, "bad.sql").errors:
        assert report.coloured(error.render(), "error").plain == error.render()
        assert report.coloured(error.render(), "error").spans
