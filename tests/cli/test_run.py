"""`tidegate run` on a session that only pretends, and its data directory."""

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
from dataclasses import dataclass, field, replace
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import tidegate
from tests.support.compiling import compile_text
from tidegate.catalog.catalog import Catalog
from tidegate.cli import console as watching
from tidegate.cli import live, report
from tidegate.cli import screen as plain
from tidegate.cli.main import app
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
    """Plays a script of statuses; the last one stays."""

    statuses: list[StreamStatus] = field(default_factory=lambda: [RUNNING])
    results: list[StatementResult] = field(default_factory=list)
    warnings: list[Exception] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)
    on_status: Callable[[], None] = lambda: None
    said: list[str] = field(default_factory=list)
    opened: dict[str, Any] = field(default_factory=dict)
    catalog: Catalog = field(default_factory=Catalog)

    def open(self, path: Path, **options: Any) -> FakeSession:
        self.opened = {"path": path, **options}
        return self

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        self._say("close")

    def _say(self, word: str) -> None:
        self.said.append(word)
        if word in self.errors:
            raise self.errors[word]

    def execute(self, sql: str, file: str | None = None) -> list[StatementResult]:
        self._say("execute")
        return self.results

    def add_console_sinks(self) -> list[str]:
        self._say("console")
        return ["dear"]

    def start(self, until_end: bool = False, available_now: bool = False) -> None:
        self._say(f"start {until_end}")
        self.opened["show"]("dear", 0, pa.table({"price": [11, None]}))

    def wait(self, timeout: float | None = None) -> bool:
        self._say("wait")
        return True

    def stop(self) -> None:
        self._say("stop")

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
def _signals_as_before() -> Any:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", *arguments])


class TestWatching:
    def test_metrics_are_served_while_it_runs(self, session: FakeSession) -> None:
        seen: list[str] = []

        def look() -> None:
            session.on_status = lambda: None
            with urllib.request.urlopen(f"http://127.0.0.1:{free}/metrics") as answer:
                seen.append(answer.read().decode())

        with socket.create_server(("127.0.0.1", 0)) as taken:
            free = taken.getsockname()[1]
        session.on_status = look
        result = run("demo.sql", "--until-end", "--metrics", str(free))
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.startswith(f"metrics: http://127.0.0.1:{free}/metrics\n")
        assert 'tidegate_rows_in_total{stream="dear"}' in seen[0]
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"http://127.0.0.1:{free}/metrics")

    def test_the_console_is_served_while_it_runs(self, session: FakeSession) -> None:
        pytest.importorskip("starlette")
        result = run("demo.sql", "--until-end", "--console", "--listen", "0")
        assert (result.exit_code, result.stderr) == (0, "")
        first = result.stdout.splitlines()[0]
        assert re.fullmatch(r"console: http://127\.0\.0\.1:\d+/#token=[\w-]{32}", first)

    def test_a_console_that_is_not_installed(
        self, session: FakeSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watching, "find_spec", lambda name: None)
        result = run("demo.sql", "--console")
        assert (result.exit_code, session.said) == (2, [])
        assert result.stderr.splitlines() == [
            "error: the console is not installed",
            "Hint: pip install 'tidegate[console]'",
        ]

    def test_listen_is_about_the_console(self, session: FakeSession) -> None:
        result = run("demo.sql", "--listen", "8571")
        assert result.exit_code == 2 and "Hint: --console --listen 8571" in result.stderr

    def test_an_address_that_is_none(self, session: FakeSession) -> None:
        result = run("demo.sql", "--metrics", "here")
        assert result.exit_code == 2
        assert result.stderr.splitlines() == [
            "error: --metrics here: that is not a HOST:PORT",
            "Hint: --metrics 9464",
        ]
        assert session.said == []

    def test_a_log_of_json(self, session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(report.STYLE, "json", False)
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
    def test_to_the_end(self, session: FakeSession) -> None:
        result = run("demo.sql", "--until-end")
        assert (result.exit_code, result.stderr) == (0, "")
        lines = result.stdout.splitlines()
        assert lines[:5] == ["dear, epoch 0", "price", "-----", "   11", " NULL"]
        assert lines[6].endswith(" dear: epoch 0, 10 rows in (5.0/s), 2 rows out (1.0/s)")
        assert lines[7:] == ["dear: finished, epoch 1, 20 rows in, 4 rows out"]
        assert session.said == ["execute", "console", "start True", "close"]
        assert session.opened["path"] == ".tidegate/demo"

    def test_in_the_end_it_says_what_was_written_where(self, session: FakeSession) -> None:
        text = SQL + (
            "CREATE MATERIALIZED VIEW top AS SELECT max(price) AS m FROM bids EMIT ON UPDATE;"
            "CREATE SINK out FROM dear WITH (connector = 'files', path = 'out', format = 'csv');"
            "CREATE SINK mem FROM dear WITH (connector = 'memory');"
            "CREATE SINK shown FROM dear WITH (connector = 'console');"
        )
        session.catalog = compile_text(text, "sub/demo.sql").catalog
        assert run("demo.sql", "--until-end").stdout.splitlines()[-2:] == [
            "out: 4 rows of dear → csv in sub/out",
            'mem: 4 rows of dear kept; tidegate query .tidegate/demo "SELECT * FROM dear"',
        ]

    def test_options_reach_the_session(self, session: FakeSession) -> None:
        assert run("demo.sql", "--data", "here", "--master", "local[1]").exit_code == 0
        assert session.opened["path"] == "here"
        assert session.opened["master"] == "local[1]"
        assert "start False" in session.said

    def test_variables_and_settings_of_spark(self, session: FakeSession) -> None:
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
        assert "begin with spark." in run("demo.sql", "--conf", "driver.memory=1g").stderr
        assert "--var name=value" in run("demo.sql", "--var", "least").stderr

    def test_the_data_directory_is_beside_the_file(self, session: FakeSession) -> None:
        Path("sub").mkdir()
        Path("demo.sql").rename("sub/demo.sql")
        assert run("sub/demo.sql").exit_code == 0
        assert session.opened["path"] == "sub/.tidegate/demo"

    def test_results_and_warnings_of_statements(self, session: FakeSession) -> None:
        session.results = [
            StatementResult("streams", ("name", "what"), [("dear", "append stream")]),
            StatementResult.of_text("3 rows inserted into bids"),
        ]
        session.warnings = [SqlError("TG-401", "take care")]
        result = run("demo.sql")
        assert result.stdout.startswith("streams\nname | what\n-----+-")
        assert "\n3 rows inserted into bids\n" in result.stdout
        assert result.stderr == "warning[TG-401]: take care\n"

    def test_errors_come_before_anything_is_done(self, session: FakeSession) -> None:
        Path("demo.sql").write_text("CREATE STREAM a AS SELECT * FROM nothing;")
        kept = data_directory(Path(".tidegate/demo"))
        result = run("demo.sql", "--fresh")
        assert result.exit_code == 2
        assert result.stderr.startswith("error[TG-201]: ")
        assert session.said == []
        assert kept.exists()

    @pytest.mark.parametrize("step", ["execute", "start True"])
    def test_rejections(self, step: str, session: FakeSession) -> None:
        session.errors[step] = ScriptError([SqlError("TG-307", "one"), SqlError("TG-307", "two")])
        result = run("demo.sql", "--until-end")
        assert result.exit_code == 2
        assert result.stderr == "error[TG-307]: one\n\nerror[TG-307]: two\n"
        assert session.said[-1] == "close"

    @pytest.mark.parametrize("told", [True, False])
    def test_a_failing_stream(self, told: bool, session: FakeSession) -> None:
        failed = StreamStatus("dear", State.FAILED, 3, error="division by zero")
        session.statuses = [RUNNING, failed]
        if told:
            session.errors["wait"] = RunError("TG-503", "it broke", hint="mend it.")
        result = run("demo.sql")
        assert result.exit_code == 2
        assert "dear: failed, epoch 3" in result.stdout
        message = (
            "it broke\nHint: mend it." if told else "the stream dear stopped: division by zero"
        )
        assert result.stderr == f"error[TG-503]: {message}\n"

    def test_a_reader_that_leaves_early(
        self, session: FakeSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The rows come in a thread of Spark's, where an exception would fail the pipeline."""

        def gone(self: plain.PlainScreen, *_: object) -> None:
            raise BrokenPipeError

        monkeypatch.setattr(plain.PlainScreen, "table", gone)
        monkeypatch.setattr("tidegate.cli.guard._silence_stdout", lambda: None)
        session.statuses = [RUNNING]
        result = run("demo.sql")
        assert (result.exit_code, result.stderr) == (0, "")
        assert session.said[-1] == "close"


class TestInterrupts:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_once_stops(self, number: signal.Signals, session: FakeSession) -> None:
        session.statuses = [RUNNING]
        session.on_status = _once(lambda: os.kill(os.getpid(), number))
        result = run("demo.sql")
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.splitlines()[-2:] == [
            "stopping…",
            "dear: stopped, epoch 0, 10 rows in, 2 rows out",
        ]
        assert session.said[-2:] == ["stop", "close"]

    def test_while_spark_starts(self, session: FakeSession) -> None:
        """Spark's handler raises KeyboardInterrupt until ours is back."""
        session.errors["execute"] = KeyboardInterrupt()
        result = run("demo.sql")
        assert result.exit_code == 0
        assert "stopping…" in result.stdout
        assert session.said == ["execute", "stop", "close"]

    def test_twice_leaves_at_once(
        self, session: FakeSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        codes: list[int] = []
        monkeypatch.setattr("tidegate.cli.guard.os._exit", codes.append)
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


class TestPlainScreen:
    def test_at_most_one_line_a_second(self, capsys: pytest.CaptureFixture[str]) -> None:
        now = [0.0]
        screen = plain.PlainScreen(clock=lambda: now[0])
        for tenth in range(30):
            now[0] = tenth / 10
            screen.progress([StreamStatus("s", State.RUNNING, tenth)])
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[3] for line in lines] == ["0,", "10,", "20,"]

    def test_no_line_without_a_new_epoch(self, capsys: pytest.CaptureFixture[str]) -> None:
        now = [0.0]
        screen = plain.PlainScreen(clock=lambda: now[0])
        for second, epoch in enumerate([None, 0, 0, 0, 1]):
            now[0] = float(second)
            screen.progress([StreamStatus("s", State.RUNNING, epoch)])
        assert len(capsys.readouterr().out.splitlines()) == 2

    def test_how_much_is_read(self) -> None:
        assert "62 % of the input read" in plain.progress_line(replace(RUNNING, progress=0.62))
        assert "input" not in plain.progress_line(replace(RUNNING, progress=1.0))

    def test_everything_worth_a_word(self) -> None:
        status = StreamStatus(
            "s", State.STOPPED, 3, 1, 2, 0, 0, datetime(2024, 1, 1), 61.0, 1, 2, 3_000
        )
        assert plain.summary_line(status) == (
            "s: stopped, epoch 3, 1 row in, 2 rows out, watermark 2024-01-01 00:00:00 "
            "(1 min 1 s behind), 1 late row, 2 dead letters, state 3.0 kB"
        )


class TestLiveScreen:
    def screen(self, width: int) -> tuple[live.LiveScreen, StringIO]:
        written = StringIO()
        console = Console(file=written, width=width, force_terminal=True, color_system=None)
        return live.LiveScreen(console), written

    def test_rows_scroll_above_the_table(self) -> None:
        screen, written = self.screen(100)
        screen.progress([RUNNING])
        screen.rows("dear", 0, pa.table({"price": [11], "word": ["[bold]\x1b[2J"]}))
        screen.end([StreamStatus("dear", State.FINISHED, 7)])
        text = written.getvalue()
        assert "dear · epoch 0" in text and "[bold]\\x1b[2J" in text
        assert text.rindex("finished") > text.index("epoch 0")

    def test_narrow_screens_keep_what_matters(self) -> None:
        screen, written = self.screen(60)
        screen.end([RUNNING])
        head = next(line for line in written.getvalue().splitlines() if "stream" in line)
        assert head.split("  ")[0].strip() == "stream"
        assert "rows/s" in head and "dead letters" not in head

    def test_a_full_table_fits_the_usual_screen(self) -> None:
        screen, written = self.screen(80)
        screen.ends = True
        full = replace(RUNNING, progress=1.0, late_rows=16, dead_letters=59, state_bytes=74_800)
        screen.end([replace(full, name="sessions", rows_in=3_138, epoch_seconds=80.0)])
        assert "…" not in written.getvalue()
        for column in ("rows in", "rows out", "late", "dead letters"):
            assert column in written.getvalue()

    def test_wide_screens_show_all(self) -> None:
        screen, written = self.screen(140)
        screen.end([RUNNING])
        for column in ("rows out", "watermark", "lag", "late", "dead letters", "state size"):
            assert column in written.getvalue()

    def test_input_that_ends_has_a_bar(self) -> None:
        screen, written = self.screen(140)
        screen.end([replace(RUNNING, progress=0.999)])
        assert "input" not in written.getvalue(), "it goes on for ever"
        screen.ends = True
        screen.end([replace(RUNNING, progress=0.999)])
        assert "input" in written.getvalue() and "█████████░  99 %" in written.getvalue()

    def test_what_it_waits_for_stands_below(self) -> None:
        screen, written = self.screen(100)
        screen.end([replace(RUNNING, rows_in_per_second=0.0)])
        assert written.getvalue().rstrip().endswith("waiting for rows")


def data_directory(path: Path) -> Path:
    (path / "dear").mkdir(parents=True)
    (path / "tidegate.lock").touch()
    return path / "dear"


class TestFresh:
    def test_removes_what_is_ours(self, session: FakeSession) -> None:
        kept = data_directory(Path(".tidegate/demo"))
        assert run("demo.sql", "--fresh").exit_code == 0
        assert not kept.exists()

    def test_empty_or_absent_is_fine(self, session: FakeSession) -> None:
        assert run("demo.sql", "--fresh").exit_code == 0
        Path("empty").mkdir()
        session.statuses = [StreamStatus("dear", State.FINISHED)]
        assert run("demo.sql", "--fresh", "--data", "empty").exit_code == 0

    def test_rejects_what_is_not(self, session: FakeSession) -> None:
        Path("home").mkdir()
        Path("home/letter").touch()
        self._rejected(run("demo.sql", "--fresh", "--data", "home"), "no file tidegate.lock")
        assert Path("home/letter").exists()

    def test_rejects_a_file(self, session: FakeSession) -> None:
        self._rejected(run("demo.sql", "--fresh", "--data", "demo.sql"), "not a directory")

    def test_rejects_the_project(self, session: FakeSession) -> None:
        """`run --data .` leaves a lock in the directory of the user's own files."""
        Path("tidegate.lock").touch()
        self._rejected(run("demo.sql", "--fresh", "--data", "."), "current directory is in it")
        other = Path("project")
        data_directory(other)
        Path("project/other.sql").write_text(SQL)
        result = run("project/other.sql", "--fresh", "--data", "project")
        self._rejected(result, "project/other.sql is in it")

    def test_rejects_what_is_in_use(self, session: FakeSession) -> None:
        kept = data_directory(Path(".tidegate/demo"))
        with Path(".tidegate/demo/tidegate.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            result = run("demo.sql", "--fresh")
        assert result.exit_code == 2
        assert result.stderr.startswith("error[TG-602]: ")
        assert kept.exists()

    def _rejected(self, result: Result, reason: str) -> None:
        assert result.exit_code == 2
        assert result.stderr.startswith("error[TG-601]: --fresh does not remove ")
        assert reason in result.stderr


def test_a_locked_directory_is_one_clear_error(
    session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object, **__: object) -> None:
        raise DataDirectoryError("TG-602", "in use by process 1")

    monkeypatch.setattr(tidegate, "open", locked)
    result = run("demo.sql")
    assert (result.exit_code, result.stderr) == (2, "error[TG-602]: in use by process 1\n")
