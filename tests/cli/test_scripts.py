"""`tidegate check` and `tidegate explain`, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli.main import app
from tidegate.compile.compiler import Compiler
from tidegate.connectors.registry import CONNECTORS

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
def _project_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.sql").write_text(GOOD)
    Path("bad.sql").write_text(BAD)
    Path("warned.sql").write_text(WARNED)


def rendered(text: str, file: str) -> str:
    errors = Compiler(CONNECTORS, resolve_environment=False).compile(text, file).errors
    assert len(errors) == 3
    return "\n\n".join(error.render() for error in errors) + "\n"


class TestCheck:
    def test_valid_file(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["check", "good.sql"])
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == "good.sql: ok, 1 source, 2 streams, 1 sink\n"

    def test_prints_rendered_errors(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["check", "bad.sql"])
        assert result.exit_code == 2
        assert result.stdout == "bad.sql: 3 errors\n"
        assert result.stderr == rendered(BAD, "bad.sql")

    def test_checks_all_files(self, runner: CliRunner) -> None:
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

    def test_warnings_do_not_fail_the_check(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["check", "warned.sql"])
        assert result.exit_code == 0
        assert result.stdout == "warned.sql: ok, 1 source, 1 stream, 1 warning\n"
        assert result.stderr.startswith("warning[TG-403]: ")

    def test_reads_stdin(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["check", "-"], input=BAD)
        assert result.exit_code == 2
        assert result.stdout == "stdin: 3 errors\n"
        assert "--> stdin:5:" in result.stderr

    def test_file_without_declarations(self, runner: CliRunner) -> None:
        Path("empty.sql").write_text("-- nothing yet\n")
        result = runner.invoke(app, ["check", "empty.sql"])
        assert (result.exit_code, result.stdout) == (0, "empty.sql: ok, nothing declared\n")

    @pytest.mark.parametrize(
        ("content", "message"),
        [(b"\xff\xfe;", "it is not UTF-8 text"), (None, "Is a directory")],
    )
    def test_unreadable_file(self, content: bytes | None, message: str, runner: CliRunner) -> None:
        path = Path("odd.sql")
        path.mkdir() if content is None else path.write_bytes(content)
        result = runner.invoke(app, ["check", "odd.sql"])
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: cannot read odd.sql: {message}")

    def test_ignores_byte_order_mark(self, runner: CliRunner) -> None:
        Path("mark.sql").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
        assert runner.invoke(app, ["check", "mark.sql"]).exit_code == 0

    def test_requires_a_file(self, runner: CliRunner) -> None:
        assert runner.invoke(app, ["check"]).exit_code == 2


class TestExplain:
    def test_explains_all_streams(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["explain", "good.sql"])
        assert result.exit_code == 0
        titles = [line for line in result.stdout.splitlines() if line.startswith("stream ")]
        assert titles == ["stream cheap", "stream dear"]

    def test_stream_name_is_case_insensitive(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["explain", "good.sql", "DEAR"])
        assert result.exit_code == 0
        assert result.stdout.startswith("stream dear\n")
        assert "cheap" not in result.stdout

    def test_includes_explain_statements(self, runner: CliRunner) -> None:
        Path("query.sql").write_text(SOURCE + "EXPLAIN SELECT price FROM bids;")
        result = runner.invoke(app, ["explain", "query.sql"])
        assert result.stdout.startswith("query\n")

    def test_logical_and_optimized_plans(self, runner: CliRunner) -> None:
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
    def test_rejects_names_that_are_not_streams(
        self, name: str, message: str, runner: CliRunner
    ) -> None:
        result = runner.invoke(app, ["explain", "good.sql", name])
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error[TG-201]: {message}")

    def test_rejects_dead_letters(self, runner: CliRunner) -> None:
        text = SOURCE.replace("'memory'", "'memory', dead_letters = 'bad_bids'")
        Path("side.sql").write_text(text)
        result = runner.invoke(app, ["explain", "side.sql", "bad_bids"])
        assert result.exit_code == 2
        assert "bad_bids contains dead letters of bids" in result.stderr

    def test_rejects_invalid_scripts(self, runner: CliRunner) -> None:
        result = runner.invoke(app, ["explain", "bad.sql"])
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == rendered(BAD, "bad.sql")

    def test_script_without_streams(self, runner: CliRunner) -> None:
        Path("source.sql").write_text(SOURCE)
        result = runner.invoke(app, ["explain", "source.sql"])
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == "source.sql declares no streams\n"
