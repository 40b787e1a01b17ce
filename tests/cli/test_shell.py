"""`tidegate sql`: complete input, completion, and commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from typer.testing import CliRunner, Result

import tidegate
from tidegate.catalog.catalog import Catalog
from tidegate.cli import shell
from tidegate.cli.main import app
from tidegate.cli.screen import PlainScreen
from tidegate.cli.shell import SqlCompleter, is_complete, split_command
from tidegate.compile.compiler import Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import Location, RunError, ScriptError, TidegateError
from tidegate.observe.status import State, StreamStatus
from tidegate.queries.engine import QueryResult
from tidegate.runtime.directory import DataDirectory
from tidegate.session.results import Result as StatementResult
from tidegate.session.saved_catalog import SavedDeclarations, load_declarations, save_declarations
from tidegate.session.subscription import Batch

SQL = """
CREATE SOURCE bids (auction BIGINT, price BIGINT) WITH (connector = 'memory');
CREATE STREAM dear AS SELECT auction, price AS amount FROM bids WHERE price > 10;
"""


class Subscribed(list[Batch]):
    """A subscription whose epochs are all available."""

    def close(self) -> None:
        pass


@dataclass
class FakeSession:
    """Compiles declarations and does not run streams."""

    catalog: Catalog = field(default_factory=Catalog)
    warnings: list[TidegateError] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    statuses: tuple[StreamStatus, ...] = ()
    broken: Exception | None = None
    saved: SavedDeclarations = field(default_factory=SavedDeclarations)

    def open(self, path: Path, **_: Any) -> FakeSession:
        self.calls.append(f"open {path}")
        return self

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append("close")

    def execute(self, sql: str, file: str | None = None) -> list[StatementResult]:
        if self.broken is not None:
            raise self.broken
        compiled = Compiler(CONNECTORS, self.catalog).compile(sql, file)
        if compiled.errors:
            raise ScriptError(compiled.errors)
        self.catalog = compiled.catalog
        return [StatementResult.from_text(f"did {s.text}") for s in compiled.statements]

    def load_declarations(self) -> SavedDeclarations:
        return self.saved

    def query(self, sql: str, file: str | None = None) -> QueryResult:
        self.calls.append(f"query {sql.strip()}")
        if "wrong" in sql:
            at = sql.index("wrong")
            raise RunError("TG-801", "no column wrong", location=Location(sql, at, at + 5, file))
        return QueryResult(pa.table({"a": [1, 2], "b": ["x", None]}))

    def peek(self, stream: str, rows: int = 20) -> QueryResult:
        self.calls.append(f"peek {stream} {rows}")
        return QueryResult(pa.table({"a": [7]}))

    def subscribe(self, stream: str) -> Any:
        self.calls.append(f"subscribe {stream}")
        return Subscribed([Batch(3, pa.table({"a": [7]}))])

    def add_console_sinks(self) -> list[str]:
        return ["dear"]

    def start(self, until_end: bool = False) -> None:
        self.calls.append("start to the end" if until_end else "start")
        if not self.catalog.names():
            raise RunError("TG-505", "nothing to run")
        self.statuses = (StreamStatus("dear", State.RUNNING, 3),)

    def wait(self) -> bool:
        self.calls.append("wait")
        return True

    def stop(self) -> None:
        self.calls.append("stop")
        self.statuses = ()

    def status(self) -> tuple[StreamStatus, ...]:
        return self.statuses


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSession:
    monkeypatch.chdir(tmp_path)
    fake = FakeSession()
    monkeypatch.setattr(tidegate, "open", fake.open)
    return fake


def sql(text: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["sql", *arguments], input=text)


class TestPiped:
    def test_statements_over_several_lines(self, session: FakeSession) -> None:
        result = sql("SHOW\nSOURCES;\n\nSHOW SINKS; SHOW STREAMS;")
        assert (result.exit_code, result.stderr) == (0, "")
        did = ["did SHOW", "SOURCES", "", "did SHOW SINKS", "did SHOW STREAMS"]
        assert result.stdout.splitlines() == did
        assert session.calls == ["open .tidegate/shell", "close"]

    def test_confirms_declarations(self, session: FakeSession) -> None:
        lines = sql(SQL + "DROP STREAM dear;").stdout.splitlines()
        changes = [line for line in lines if line.endswith(("declared", "dropped"))]
        assert changes == ["source bids declared", "stream dear declared", "stream dear dropped"]

    def test_last_semicolon_is_optional(self, session: FakeSession) -> None:
        assert sql("SHOW SINKS").stdout == "did SHOW SINKS\n"

    def test_errors_have_their_line_in_the_input(self, session: FakeSession) -> None:
        result = sql("SHOW SINKS;\n\nSHOW 1;\nSHOW SOURCES; SELECT\nwrong;SHOW STREAMS;\n")
        assert result.exit_code == 2
        assert result.stdout.splitlines() == [
            "did SHOW SINKS",
            "did SHOW SOURCES",
            "did SHOW STREAMS",
        ]
        assert result.stderr.startswith("error[TG-101]: SHOW 1 is not a statement")
        assert "--> stdin:3:6" in result.stderr
        assert "--> stdin:5:1" in result.stderr, "the location is in the query, not in the input"

    def test_rejects_open_quote(self, session: FakeSession) -> None:
        result = sql("SHOW SINKS;\nSET a = 'b;\n")
        assert result.exit_code == 2
        assert "is never closed" in result.stderr

    def test_runs_file_before_stdin(self, session: FakeSession) -> None:
        Path("demo.sql").write_text(SQL)
        result = sql("\\d\n\\d dear\n", "demo.sql")
        assert result.exit_code == 0
        assert "source | bids | auction, price" in result.stdout
        assert "stream | dear | auction, amount" in result.stdout
        assert "did DESCRIBE dear" in result.stdout
        assert session.calls[0] == "open .tidegate/demo"

    def test_error_in_the_file(self, session: FakeSession) -> None:
        Path("demo.sql").write_text("CREATE STREAM a AS SELECT * FROM nothing;")
        result = sql("", "demo.sql")
        assert result.exit_code == 2
        assert "--> demo.sql:1:" in result.stderr

    def test_start_status_stop(self, session: FakeSession) -> None:
        result = sql(SQL + "\\status\n\\start\n\\status\n\\stop\n")
        assert result.exit_code == 0
        assert result.stdout.splitlines()[-4:] == [
            "no streams are running; \\start starts them",
            "running: dear; printed here: dear",
            "dear: running, epoch 3, 0 rows in, 0 rows out",
            "stopped",
        ]
        assert session.calls[1:] == ["start", "stop", "close"]

    def test_waits_for_started_streams_at_end_of_input(self, session: FakeSession) -> None:
        assert sql(SQL + "\\start\n").exit_code == 0
        assert session.calls[1:] == ["start", "wait", "close"]

    def test_failed_start_stops_the_session(self, session: FakeSession) -> None:
        result = sql("\\start\n")
        assert (result.exit_code, result.stderr) == (2, "error[TG-505]: nothing to run\n")
        assert session.calls[1:] == ["start", "stop", "close"]

    def test_help_lists_every_command(self, session: FakeSession) -> None:
        result = sql("\\h\n")
        for command in ("\\q", "\\h", "\\d", "\\start", "\\stop", "\\status"):
            assert f"{command} " in result.stdout

    def test_formats_of_query_results(self, session: FakeSession) -> None:
        result = sql(
            "SELECT 1;\n\\format csv\nWITH x AS (SELECT 1) SELECT * FROM x;\n\\format json\nFROM v;"
        )
        assert result.exit_code == 0, result.stderr
        assert result.stdout.splitlines() == [
            "a | b", "--+-----", "1 | x", "2 | NULL", "", "2 rows",
            "format: csv", "a,b", "1,x", "2,",
            "format: json", '{"a": 1, "b": "x"}', '{"a": 2, "b": null}',
        ]  # fmt: skip
        assert session.calls[1:-1] == [
            "query SELECT 1;",
            "query WITH x AS (SELECT 1) SELECT * FROM x;",
            "query FROM v;",
        ]

    def test_vertical_and_unknown_format(self, session: FakeSession) -> None:
        result = sql("\\format vertical\nSELECT 1;\n\\format tabel\n")
        assert "-- row 1\na | 1\nb | x\n-- row 2\n" in result.stdout
        assert "unknown format tabel\nHint: did you mean table?" in result.stderr

    def test_peek_tail_and_end(self, session: FakeSession) -> None:
        result = sql(SQL + "\\peek dear 5\nTAIL dear;\n\\end\n")
        assert result.exit_code == 0, result.stderr
        assert "dear, epoch 3\na\n-\n7\n" in result.stdout
        assert session.calls[1:] == [
            "peek dear 5", "subscribe dear", "start", "stop", "start to the end", "wait", "stop", "close",
        ]  # fmt: skip

    def test_include(self, session: FakeSession) -> None:
        Path("more.sql").write_text("SHOW SINKS;\nSELECT wrong;")
        result = sql("\\i more.sql\n\\i\n\\i nothing.sql\n")
        assert "did SHOW SINKS" in result.stdout
        assert "--> more.sql:2:8" in result.stderr
        assert "\\i needs a file" in result.stderr and "cannot read nothing.sql" in result.stderr

    def test_command_in_the_middle_of_a_statement(self, session: FakeSession) -> None:
        result = sql("SHOW\n\\format json\nSINKS;\nSHOW 'a\n\\q';\n")
        assert "format: json\ndid SHOW\nSINKS" in result.stdout
        assert "SHOW a" in result.stderr, "the command is inside a quote"

    def test_start_of_running_streams(self, session: FakeSession) -> None:
        result = sql(SQL + "\\start\n\\start\n")
        assert result.exit_code == 0
        assert "already running: dear; new streams start automatically" in result.stdout

    def test_help_without_backslash(self, session: FakeSession) -> None:
        assert "\\peek" in sql("help\n").stdout and "\\peek" in sql("HELP;\n").stdout

    def test_unknown_command(self, session: FakeSession) -> None:
        result = sql("\\x\n")
        assert result.exit_code == 2
        assert result.stderr.startswith("error: unknown command \\x\nHint: commands: ")

    @pytest.mark.parametrize("word", ["\\q", "exit", "QUIT"])
    def test_exit(self, word: str, session: FakeSession) -> None:
        result = sql(f"SHOW SINKS;\n{word}\nSHOW SOURCES;\n")
        assert result.stdout == "did SHOW SINKS\n"

    def test_internal_error_has_no_stack_trace(self, session: FakeSession) -> None:
        session.broken = ValueError("oh")
        result = sql("SHOW SINKS;\n\\h\n")
        assert result.exit_code == 1
        assert result.stderr.startswith(
            "internal error: ValueError: oh\nHint: run again with --debug"
        )
        assert "\\start" in result.stdout


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True),
        ("  \n", True),
        ("\\d bids", True),
        ("exit", True),
        ("SHOW SINKS", False),
        ("SHOW SINKS;", True),
        ("SHOW SINKS; -- all;", True),
        ("SHOW SINKS -- ;", False),
        ("SHOW /* ; ", False),
        ("SET a = ';", False),
        ("SET a = ';';", True),
        ("SHOW CREATE `;", False),
        ("SHOW SINKS; SHOW", False),
        ("-- only a comment", True),
        ("help", True),
        ("help;", True),
        ("SHOW\n\\h", True),
        ("SELECT '\n\\h", False),
        ("SELECT\nhelp", False),
    ],
)
def test_is_complete(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


@pytest.mark.parametrize("word", ["help", "exit", "quit", "\\q", "\\h"])
def test_words_interrupt_statements_in_interactive_shell(word: str) -> None:
    assert is_complete(f"SELECT a\n{word}", interactive=True)
    assert split_command(f"SELECT a\n{word}", interactive=True) == (word, "SELECT a")


def test_restores_declarations(session: FakeSession, capsys: Any) -> None:
    session.saved = SavedDeclarations(((None, SQL),), ("hidden",))
    shell.Shell(session, PlainScreen(), interactive=True).restore_declarations()  # type: ignore[arg-type]
    assert capsys.readouterr().out == (
        "restored: bids, dear\n"
        "not saved, because they contain secrets or Python functions: hidden. Declare them again\n"
    )


def test_saves_declarations_without_secrets(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    assert load_declarations(directory) == SavedDeclarations()
    file = tmp_path / "a.sql"
    file.write_text("")
    hidden = (
        "CREATE SOURCE k (a BIGINT) WITH (connector = 'postgres', database = 'd', table = 't', password = 'hunter2');"
        "CREATE STREAM over_k AS SELECT a FROM k;"
    )
    compiled = Compiler(CONNECTORS).compile(SQL + hidden, str(file))
    assert not compiled.errors, compiled.errors
    save_declarations(directory, compiled.catalog)
    saved = load_declarations(directory)
    assert saved.unsaved == ("k", "over_k")
    ((origin, text),) = saved.scripts
    assert origin == str(file) and "hunter2" not in text
    again = Compiler(CONNECTORS).compile(text, origin)
    assert not again.errors and again.catalog.names() == ["bids", "dear"]


class TestCompletion:
    def complete(self, text: str) -> list[str]:
        catalog = Compiler(CONNECTORS).compile(SQL).catalog
        completer = SqlCompleter(lambda: catalog)
        completions = completer.get_completions(Document(text), CompleteEvent())
        return [completion.text for completion in completions]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("SELECT * FROM ", ["bids", "dear"]),
            ("SELECT * FROM de", ["dear"]),
            ("DROP STREAM d", ["dear"]),
            ("\\d b", ["bids"]),
            ("\\st", ["\\start", "\\status", "\\stop"]),
            ("SELECT dear.a", ["auction", "amount"]),
            ("EXPLAIN SELECT * FROM bids b JOIN dear AS d ON b.", ["auction", "price"]),
            ("EXPLAIN SELECT * FROM bids b JOIN dear AS d ON d.am", ["amount"]),
            ("SELECT * FROM nothing n WHERE n.", []),
            ("CREATE SO", ["SOURCE", "SOURCES"]),
            ("create so", ["source", "sources"]),
            ("", []),
        ],
    )
    def test_completions(self, text: str, expected: list[str]) -> None:
        assert self.complete(text)[: len(expected) or None] == expected

    def test_completes_columns_of_mentioned_objects(self) -> None:
        assert self.complete("SELECT * FROM dear WHERE am") == ["amount"]
        assert "price" not in self.complete("SELECT * FROM dear WHERE p")

    def test_completes_phrases(self) -> None:
        assert "EMIT ON WINDOW CLOSE" in self.complete("EM")


class TestHistory:
    def test_uses_xdg_state_home(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        assert shell.history_file() == tmp_path / "tidegate" / "history"
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setenv("HOME", "/home/someone")
        assert shell.history_file() == Path("/home/someone/.local/state/tidegate/history")

    def test_only_owner_can_read(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        shell._open_history().append_string("SET password = 'x';")
        assert shell.history_file().stat().st_mode & 0o077 == 0

    def test_continues_without_history_file(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "tidegate").touch()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        shell._open_history().append_string("SHOW SINKS;")
