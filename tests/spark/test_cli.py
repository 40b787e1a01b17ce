"""The command line on Spark, run as processes in pipes and terminals and with signals."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tidegate

pytestmark = pytest.mark.spark

# Test machines are small and busy.
PATIENCE_SECONDS = 180
ROOT = Path(tidegate.__file__).parents[1]
# Tests set the size of the terminal themselves.
_INHERITED = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
ENVIRONMENT = {**_INHERITED, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TERM": "xterm"}
COMMAND = [sys.executable, "-m", "tidegate.cli.main"]

BIDS = """
CREATE SOURCE bids (auction BIGINT, price BIGINT) WITH (connector = 'memory');
CREATE STREAM dear AS SELECT auction, price / DIVISOR AS amount FROM bids WHERE price > 10;
"""
ENDLESS = """
SET rows_per_epoch = 100;
CREATE SOURCE numbers (n BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND)
WITH (connector = 'generator', kind = 'series');
CREATE STREAM even WITH (trigger_interval = '1 s') AS SELECT n, ts FROM numbers WHERE n % 2 = 0;
"""


def tidegate_command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.fixture(autouse=True)
def _in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Terminal:
    """A process on its own terminal, so that Ctrl-C reaches the whole process group."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=ENVIRONMENT,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.text = ""

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read_until(self, done: Callable[[str], object]) -> str:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done(self.text):
            assert time.monotonic() < deadline, f"still waiting; so far:\n{self.text}"
            if not self._read() and self.process.poll() is not None:
                break
        return self.text

    def _read(self) -> bool:
        if not select.select([self.master], [], [], 0.2)[0]:
            return False
        # Linux returns an error for a terminal that no process has open.
        with contextlib.suppress(OSError):
            chunk = os.read(self.master, 65536)
            self.text += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", chunk.decode("utf-8", "replace"))
            return bool(chunk)
        return False

    def wait(self) -> int:
        self.read_until(lambda _: self.process.poll() is not None)
        return self.process.wait(timeout=PATIENCE_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        os.close(self.master)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_terminal(*arguments: str) -> Terminal:
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield open_terminal
    for item in opened:
        item.close()


def test_run_to_the_end_in_a_pipe_and_resume() -> None:
    script = BIDS.replace("DIVISOR", "1")
    insert = "INSERT INTO bids VALUES (1, 20), (2, 5), (NULL, 30);"
    Path("demo.sql").write_text(script + insert + "SHOW SOURCES;")
    done = tidegate_command("run", "demo.sql", "--until-end")
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 rows inserted into bids\n" in done.stdout
    assert "name | description\n-----+------------\nbids | memory\n" in done.stdout
    assert "dear, epoch 0\nauction | amount\n--------+-------\n" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("dear: finished, epoch 0, 3 rows in, 2 rows out")

    Path("demo.sql").write_text(script)
    resumed = tidegate_command("run", "demo.sql", "--until-end")
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert "auction" not in resumed.stdout, "rows of the first run were emitted again"


def test_failing_stream_is_one_clear_error() -> None:
    insert = "INSERT INTO bids VALUES (1, 20);"
    Path("demo.sql").write_text(BIDS.replace("DIVISOR", "(auction - 1)") + insert)
    done = tidegate_command("run", "demo.sql", "--until-end")
    assert done.returncode == 2
    assert done.stderr.startswith("error[TG-503]: the stream dear stopped: ")
    assert "Traceback" not in done.stderr and "\tat " not in done.stderr


def test_ctrl_c_stops_and_a_second_one_aborts(terminal: Callable[..., Terminal]) -> None:
    Path("endless.sql").write_text(ENDLESS)
    first = terminal("run", "endless.sql")
    text = first.read_until(lambda text: "even · epoch 1" in text and "lag" in text)
    for column in ("rows in", "rows out", "rows/s", "watermark", "lag"):
        assert column in text

    second = tidegate_command("run", "endless.sql")
    assert second.returncode == 2
    assert f"in use by process {first.process.pid}" in second.stderr

    first.press("\x03")
    assert first.wait() == 0
    assert "stopping…" in first.text and "stopped" in first.text
    assert "Traceback" not in first.text

    resumed = terminal("run", "endless.sql")
    resumed.read_until(lambda text: "even · epoch" in text)
    assert "even · epoch 0\r\n" not in resumed.text, "it did not resume after the last epoch"
    resumed.press("\x03")
    # The second Ctrl-C follows while the streams are being stopped, or just after.
    resumed.read_until(lambda text: "stopping" in text)
    resumed.press("\x03")
    assert resumed.wait() in (0, 130)
    assert "Traceback" not in resumed.text


def test_shell_in_a_pipe() -> None:
    text = BIDS.replace("DIVISOR", "1") + "INSERT INTO bids VALUES (1, 20);\n\\start\n"
    done = tidegate_command(
        "sql", stdin=text + "SELECT 41 + 1 AS answer;\nSELECT 1 FROM nowhere;\nDESCRIBE dear;\n"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error[TG-201]")
    assert "answer" in done.stdout and "42" in done.stdout
    assert "stream dear declared\n" in done.stdout
    assert "running: dear; printed here: dear\n" in done.stdout
    assert "column  | type" in done.stdout
    assert "dear, epoch 0\n" in done.stdout


def test_shell_on_a_terminal(
    terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "XDG_STATE_HOME", str(tmp_path / "state"))
    shell = terminal("sql")
    shell.read_until(lambda text: "tidegate>" in text)
    shell.press("SHOW\r")
    shell.read_until(lambda text: "...>" in text)
    shell.press("NOTHING;\r")
    shell.read_until(lambda text: "SHOW NOTHING is not a statement" in text)
    shell.press("\\d\r")
    shell.read_until(lambda text: "nothing is declared yet" in text)
    shell.press("\x03\\q\r")
    assert shell.wait() == 0
    assert "Traceback" not in shell.text
    assert "+NOTHING;" in (tmp_path / "state" / "tidegate" / "history").read_text()
