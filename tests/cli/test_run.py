"""`tidegate run` with a fake session, and its data directory."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import tidegate
from tests.support.compiling import compile_text
from tidegate.catalog.catalog import Catalog
from tidegate.cli import errors
from tidegate.cli import run as run_command
from tidegate.cli.main import app
from tidegate.cli.screen import PlainScreen
from tidegate.errors import DataDirectoryError, RunError, ScriptError, SqlError
from tidegate.observe.status import State, StreamStatus
from tidegate.observe.timeline import Timeline
from tidegate.session.results import Result as StatementResult

SQL = """
CREATE SOURCE bids (price BIGINT) WITH (connector = 'memory');
CREATE STREAM dear AS SELECT price FROM bids WHERE price > 10;
"""
RUNNING = StreamStatus("dear", State.RUNNING, 0, 10, 2, 5.0, 1.0)


@dataclass
class FakeSession:
    """Returns a sequence of statuses; the last one repeats."""

    statuses: list[StreamStatus] = field(default_factory=lambda: [RUNNING])
    results: list[StatementResult] = field(default_factory=list)
    warnings: list[Exception] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)
    on_status: Callable[[], None] = lambda: None
    calls: list[str] = field(default_factory=list)
    opened: dict[str, Any] = field(default_factory=dict)
    catalog: Catalog = field(default_factory=Catalog)

    def open(self, path: Path, **options: Any) -> FakeSession:
        self.opened = {"path": path, **options}
        return self

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        self._record("close")

    def _record(self, call: str) -> None:
        self.calls.append(call)
        if call in self.errors:
            raise self.errors[call]

    def execute(self, sql: str, file: str | None = None) -> list[StatementResult]:
        self._record("execute")
        return self.results

    def add_console_sinks(self) -> list[str]:
        self._record("console")
        return ["dear"]

    def start(self, until_end: bool = False, available_now: bool = False) -> None:
        self._record(f"start {until_end}")
        self.opened["show"]("dear", 0, pa.table({"price": [11, None]}))

    def wait(self, timeout: float | None = None) -> bool:
        self._record("wait")
        return True

    def stop(self) -> None:
        self._record("stop")

    def timelines(self) -> list[Timeline]:
        return []

    def status(self) -> tuple[StreamStatus, ...]:
        self.on_status()
        return (self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0],)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSession:
    monkeypatch.chdir(tmp_path)
    Path("demo.sql").write_text(SQL)
    fake = FakeSession([RUNNING, StreamStatus("dear", State.FINISHED, 1, 20, 4)])
    monkeypatch.setattr(tidegate, "open", fake.open)
    return fake


@pytest.fixture(autouse=True)
def _restore_signal_handlers() -> Any:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", *arguments])


class TestServers:
    def test_serves_metrics(self, session: FakeSession) -> None:
        responses: list[str] = []

        def request() -> None:
            session.on_status = lambda: None
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
                responses.append(response.read().decode())

        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        session.on_status = request
        result = run("demo.sql", "--until-end", "--metrics", str(port))
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.startswith(f"metrics: http://127.0.0.1:{port}/metrics\n")
        assert 'tidegate_rows_in_total{stream="dear"}' in responses[0]
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")

    def test_serves_the_console(self, session: FakeSession) -> None:
        pytest.importorskip("starlette")
        result = run("demo.sql", "--until-end", "--console", "--listen", "0")
        assert (result.exit_code, result.stderr) == (0, "")
        first_line = result.stdout.splitlines()[0]
        assert re.fullmatch(r"console: http://127\.0\.0\.1:\d+/#token=[\w-]{32}", first_line)

    def test_rejects_console_that_is_not_installed(
        self, session: FakeSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(run_command, "find_spec", lambda name: None)
        result = run("demo.sql", "--console")
        assert (result.exit_code, session.calls) == (2, [])
        assert result.stderr.splitlines() == [
            "error: the console is not installed",
            "Hint: pip install 'tidegate[console]'",
        ]

    def test_listen_requires_console(self, session: FakeSession) -> None:
        result = run("demo.sql", "--listen", "8571")
        assert result.exit_code == 2 and "Hint: --console --listen 8571" in result.stderr

    def test_rejects_invalid_address(self, session: FakeSession) -> None:
        result = run("demo.sql", "--metrics", "here")
        assert result.exit_code == 2
        assert result.stderr.splitlines() == [
            "error: --metrics here: expected [HOST:]PORT",
            "Hint: --metrics 9464",
        ]
        assert session.calls == []

    def test_json_log(self, session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(errors.OPTIONS, "json", False)
        session.warnings = [RunError("TG-614", "parked")]
        result = run("demo.sql", "--until-end", "--log-format", "json")
        events = [json.loads(line) for line in result.stdout.splitlines()]
        assert [e["event"] for e in events if e["event"] != "message"] == [
            "rows",
            "progress",
            "progress",
            "end",
        ]
        assert json.loads(result.stderr)["code"] == "TG-614"


class TestRun:
    def test_run_until_end(self, session: FakeSession) -> None:
        result = run("demo.sql", "--until-end")
        assert (result.exit_code, result.stderr) == (0, "")
        lines = result.stdout.splitlines()
        assert lines[:5] == ["dear, epoch 0", "price", "-----", "   11", " NULL"]
        assert lines[6].endswith(" dear: epoch 0, 10 rows in (5.0/s), 2 rows out (1.0/s)")
        assert lines[7:] == ["dear: finished, epoch 1, 20 rows in, 4 rows out"]
        assert session.calls == ["execute", "console", "start True", "close"]
        assert session.opened["path"] == ".tidegate/demo"

    def test_ends_of_a_run_exclude_each_other(self, session: FakeSession) -> None:
        result = run("demo.sql", "--until-end", "--available-now")
        assert (result.exit_code, session.calls) == (2, [])
        assert result.stderr.splitlines() == [
            "error: --until-end and --available-now cannot be combined",
            "Hint: use --until-end to close all windows at the end, or --available-now to keep "
            "them open for the next run.",
        ]

    def test_reports_a_variable_without_a_value(self, session: FakeSession) -> None:
        Path("demo.sql").write_text(SQL.replace("> 10", "> ${least}"))
        result = run("demo.sql")
        assert result.exit_code == 2
        assert "${least} has no value" in result.stderr
        assert "Hint: pass it on the command line: --var least=…" in result.stderr

    def test_prints_where_the_rows_of_sinks_are(self, session: FakeSession) -> None:
        text = SQL + (
            "CREATE MATERIALIZED VIEW top AS SELECT max(price) AS m FROM bids EMIT ON UPDATE;"
            "CREATE SINK out FROM dear WITH (connector = 'files', path = 'out', format = 'csv');"
            "CREATE SINK mem FROM dear WITH (connector = 'memory');"
            "CREATE SINK shown FROM dear WITH (connector = 'console');"
        )
        session.catalog = compile_text(text, "sub/demo.sql").catalog
        assert run("demo.sql", "--until-end").stdout.splitlines()[-2:] == [
            "out: 4 rows of dear → csv in sub/out",
            'mem: 4 rows of dear → tidegate query .tidegate/demo "SELECT * FROM dear"',
        ]

    def test_passes_options_to_the_session(self, session: FakeSession) -> None:
        assert run("demo.sql", "--data", "elsewhere", "--master", "local[1]").exit_code == 0
        assert session.opened["path"] == "elsewhere"
        assert session.opened["master"] == "local[1]"
        assert "start False" in session.calls

    def test_variables_and_spark_settings(self, session: FakeSession) -> None:
        Path("demo.sql").write_text(SQL.replace("> 10", "> ${least}"))
        assert (
            run("demo.sql", "--var", "least=7", "--conf", "spark.driver.memory=1g").exit_code == 0
        )
        assert session.opened["conf"] == {"spark.driver.memory": "1g"}
        missing = run("demo.sql", "--var", "laest=7")
        assert missing.exit_code == 2
        assert missing.stderr == (
            "error: --var laest: demo.sql does not use ${laest}\nHint: did you mean least?\n"
        )
        assert "start with spark." in run("demo.sql", "--conf", "driver.memory=1g").stderr
        assert "--var name=value" in run("demo.sql", "--var", "least").stderr

    def test_data_directory_is_next_to_the_file(self, session: FakeSession) -> None:
        Path("sub").mkdir()
        Path("demo.sql").rename("sub/demo.sql")
        assert run("sub/demo.sql").exit_code == 0
        assert session.opened["path"] == "sub/.tidegate/demo"

    def test_prints_results_and_warnings(self, session: FakeSession) -> None:
        session.results = [
            StatementResult("streams", ("name", "description"), [("dear", "append stream")]),
            StatementResult.from_text("3 rows inserted into bids"),
        ]
        session.warnings = [SqlError("TG-401", "take care")]
        result = run("demo.sql")
        assert result.stdout.startswith("streams\nname | description\n-----+-")
        assert "\n3 rows inserted into bids\n" in result.stdout
        assert result.stderr == "warning[TG-401]: take care\n"

    def test_reports_errors_before_removing_data(self, session: FakeSession) -> None:
        Path("demo.sql").write_text("CREATE STREAM a AS SELECT * FROM nothing;")
        folder = data_directory(Path(".tidegate/demo"))
        result = run("demo.sql", "--fresh")
        assert result.exit_code == 2
        assert result.stderr.startswith("error[TG-201]: ")
        assert session.calls == []
        assert folder.exists()

    @pytest.mark.parametrize("step", ["execute", "start True"])
    def test_prints_all_errors_of_a_script(self, step: str, session: FakeSession) -> None:
        session.errors[step] = ScriptError([SqlError("TG-307", "one"), SqlError("TG-307", "two")])
        result = run("demo.sql", "--until-end")
        assert result.exit_code == 2
        assert result.stderr == "error[TG-307]: one\n\nerror[TG-307]: two\n"
        assert session.calls[-1] == "close"

    @pytest.mark.parametrize("wait_fails", [True, False])
    def test_failed_stream(self, wait_fails: bool, session: FakeSession) -> None:
        failed = StreamStatus("dear", State.FAILED, 3, error="division by zero")
        session.statuses = [RUNNING, failed]
        if wait_fails:
            session.errors["wait"] = RunError("TG-503", "it broke", hint="fix it.")
        result = run("demo.sql")
        assert result.exit_code == 2
        assert "dear: failed, epoch 3" in result.stdout
        message = (
            "it broke\nHint: fix it." if wait_fails else "the stream dear stopped: division by zero"
        )
        assert result.stderr == f"error[TG-503]: {message}\n"

    def test_closed_pipe_is_not_an_error(
        self, session: FakeSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A thread of the pipeline prints rows, and an exception there would fail the pipeline."""

        def fail(self: PlainScreen, *_: object) -> None:
            raise BrokenPipeError

        monkeypatch.setattr(PlainScreen, "print_table", fail)
        monkeypatch.setattr("tidegate.cli.errors._discard_stdout", lambda: None)
        session.statuses = [RUNNING]
        result = run("demo.sql")
        assert (result.exit_code, result.stderr) == (0, "")
        assert session.calls[-1] == "close"


class TestInterrupts:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_first_signal_stops_the_streams(
        self, number: signal.Signals, session: FakeSession
    ) -> None:
        session.statuses = [RUNNING]
        session.on_status = _once(lambda: os.kill(os.getpid(), number))
        result = run("demo.sql")
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.splitlines()[-2:] == [
            "stopping…",
            "dear: stopped, epoch 0, 10 rows in, 2 rows out",
        ]
        assert session.calls[-2:] == ["stop", "close"]

    def test_interrupt_while_spark_starts(self, session: FakeSession) -> None:
        """The handler of Spark raises KeyboardInterrupt until ours is installed again."""
        session.errors["execute"] = KeyboardInterrupt()
        result = run("demo.sql")
        assert result.exit_code == 0
        assert "stopping…" in result.stdout
        assert session.calls == ["execute", "stop", "close"]

    def test_second_signal_exits(
        self, session: FakeSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        codes: list[int] = []
        monkeypatch.setattr("tidegate.cli.errors.os._exit", codes.append)
        session.statuses = [RUNNING]
        session.on_status = _once(self._press_twice)
        run("demo.sql")
        assert codes == [130]

    def _press_twice(self) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)  # Two signals at the same instant count as one.


def _once(action: Callable[[], object]) -> Callable[[], None]:
    done = threading.Event()

    def act() -> None:
        if not done.is_set():
            done.set()
            action()

    return act


def data_directory(path: Path) -> Path:
    (path / "dear").mkdir(parents=True)
    (path / "tidegate.lock").touch()
    return path / "dear"


class TestFresh:
    def test_removes_the_data_directory(self, session: FakeSession) -> None:
        folder = data_directory(Path(".tidegate/demo"))
        assert run("demo.sql", "--fresh").exit_code == 0
        assert not folder.exists()

    def test_accepts_missing_and_empty_directories(self, session: FakeSession) -> None:
        assert run("demo.sql", "--fresh").exit_code == 0
        Path("empty").mkdir()
        session.statuses = [StreamStatus("dear", State.FINISHED)]
        assert run("demo.sql", "--fresh", "--data", "empty").exit_code == 0

    def test_rejects_directory_with_other_files(self, session: FakeSession) -> None:
        Path("home").mkdir()
        Path("home/letter").touch()
        self._rejected(run("demo.sql", "--fresh", "--data", "home"), "has no file tidegate.lock")
        assert Path("home/letter").exists()

    def test_rejects_a_file(self, session: FakeSession) -> None:
        self._rejected(run("demo.sql", "--fresh", "--data", "demo.sql"), "not a directory")

    def test_rejects_directory_with_user_files(self, session: FakeSession) -> None:
        """`run --data .` creates a lock file in the directory of the project."""
        Path("tidegate.lock").touch()
        self._rejected(
            run("demo.sql", "--fresh", "--data", "."), "it contains the current directory"
        )
        other = Path("project")
        data_directory(other)
        Path("project/other.sql").write_text(SQL)
        result = run("project/other.sql", "--fresh", "--data", "project")
        self._rejected(result, "it contains project/other.sql")

    def test_rejects_directory_in_use(self, session: FakeSession) -> None:
        folder = data_directory(Path(".tidegate/demo"))
        with Path(".tidegate/demo/tidegate.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            result = run("demo.sql", "--fresh")
        assert result.exit_code == 2
        assert result.stderr.startswith("error[TG-602]: ")
        assert folder.exists()

    def _rejected(self, result: Result, reason: str) -> None:
        assert result.exit_code == 2
        assert result.stderr.startswith("error[TG-601]: --fresh does not remove ")
        assert reason in result.stderr


def test_prints_error_of_locked_directory(
    session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object, **__: object) -> None:
        raise DataDirectoryError("TG-602", "in use by process 1")

    monkeypatch.setattr(tidegate, "open", locked)
    result = run("demo.sql")
    assert (result.exit_code, result.stderr) == (2, "error[TG-602]: in use by process 1\n")
