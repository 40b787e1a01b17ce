"""A pipeline between real systems, and the kills of all of them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.chaos.batch import Difference, Sinks, compare, expected
from tests.chaos.feed import AUCTIONS, Feed
from tests.chaos.program import SINKS
from tests.real.kafka import Broker
from tests.real.postgres import Postgres
from tests.support import java
from tests.support.processes import processes_of_session

ROOT = Path(__file__).parents[2]
# The systems to kill, and their shares. Starting Spark again takes longest.
KINDS = ("pipeline", "jvm", *("broker", "database") * 2, *("worker",) * 3)
# Auctions above have no seller.
SELLERS = {auction: f"seller {auction % 7}" for auction in range(AUCTIONS - 3)}
_SECONDS = 900
# The code of an error that an unavailable system may cause while a pipeline starts.
_AWAY_AT_START = "TG-509"
# The last output of a pipeline whose JVM was killed.
_JVM_GONE = "Spark's JVM exited"


class Campaign:
    """Growing topics, a pipeline that reads them, and random kills."""

    def __init__(self, folder: Path, broker: Broker, postgres: Postgres, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder, self.broker = folder, broker
        self.topic = f"chaos-{uuid.uuid4().hex[:8]}"
        database = self.topic.replace("-", "_")
        postgres.run(f"CREATE DATABASE {database}")
        self.postgres = postgres.in_database(database)
        self.feed = Feed(broker, self.topic, self.random)
        for stream in SINKS["kafka"]:
            broker.create(f"{self.topic}-{stream}", 2)
        self._fill_sellers()
        self.process: subprocess.Popen[bytes] | None = None
        self.kills: Counter[str] = Counter()
        self.jvm_killed = False
        # Output of pipelines that exited because a system was unavailable when they started.
        self.stops: list[str] = []

    def _fill_sellers(self) -> None:
        self.postgres.run("CREATE TABLE sellers (auction bigint PRIMARY KEY, name text)")
        values = ", ".join(f"({auction}, '{name}')" for auction, name in SELLERS.items())
        self.postgres.run(f"INSERT INTO sellers VALUES {values}")

    # Runs of the pipeline

    @property
    def log(self) -> Path:
        return self.folder / "program.log"

    def start(self, *more: str) -> None:
        """Start the pipeline. Its output goes to a file, because nothing reads a pipe."""
        command = [sys.executable, "-m", "tests.chaos.program"]
        command += [str(self.folder / "data"), str(self.folder / "out"), self.broker.brokers]
        command += [self.topic, self.postgres.options("TABLE"), *more]
        self.jvm_killed = False
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env={**java.environment(), **os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )

    def _until_running(self) -> None:
        """Wait until the pipeline runs. Start it again if a system was unavailable."""
        deadline = time.monotonic() + _SECONDS
        while True:
            assert time.monotonic() < deadline, (
                f"the pipeline does not start: {self.log.read_text()}"
            )
            if self.process is None or self.process.poll() is not None:
                self._record_exit()
                self.start()
            if "running" in self.log.read_text().splitlines():
                return
            time.sleep(0.05)

    def _record_exit(self) -> None:
        """Require that the pipeline exited for an expected reason, and record it."""
        if self.process is None:
            return
        output = self.log.read_text()
        reason = _JVM_GONE if self.jvm_killed else _AWAY_AT_START
        assert reason in output, f"the pipeline exited: {output}"
        if not self.jvm_killed:
            self.stops.append(next(line for line in output.splitlines() if reason in line))
        self.end()

    def end(self) -> None:
        """Kill all processes of the pipeline."""
        if self.process is None:
            return
        while living := processes_of_session(self.process.pid):
            for pid in living:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
        self.process.wait()
        self.process = None

    def run_to_end(self) -> str:
        """Run to the end of the input and return the last line of output."""
        self.end()
        self.start("--until-end")
        assert self.process is not None
        try:
            self.process.wait(_SECONDS)
        finally:
            self.end()
        output = self.log.read_text().strip()
        return output.splitlines()[-1] if output else "nothing"

    # Killing

    def kinds(self, kills: int) -> list[str]:
        """Return the systems to kill: all kinds in turn, in random order, and the pipeline last."""
        order: list[str] = []
        while len(order) < kills - 1:
            order += self.random.sample(KINDS, len(KINDS))
        return [*order[: kills - 1], "pipeline"]

    def kill(self, kind: str) -> str:
        """Kill a system at a random moment while there is input; return a description."""
        added = self.random.randrange(1, 4)
        for _ in range(added):
            self.feed.add()
        self._until_running()
        self._let_pass(self.random.randrange(added + 1))
        held = self.random.random() < 0.3
        if held:
            self.feed.hold()
        time.sleep(self.random.uniform(0, 0.5))
        how: str = getattr(self, f"_kill_{kind}")()
        self.kills[kind] += 1
        self.feed.release()
        over = ", a transaction is open" if held else ""
        return f"{how}{over}, {self._epochs()} epochs"

    def _kill_pipeline(self) -> str:
        assert self.process is not None
        if self.random.random() < 0.5:
            self.end()
            return "pipeline and its JVM"
        # Spark's JVM survives its Python process until it notices that it is gone.
        self.process.kill()
        self.process.wait()
        self.process = None
        return "pipeline alone"

    def _kill_broker(self) -> str:
        self.broker.kill()
        time.sleep(self.random.uniform(0, 1))
        self.broker.start()
        return "broker"

    def _kill_database(self) -> str:
        self.postgres.kill_all()
        time.sleep(self.random.uniform(0, 1))
        self.postgres.start()
        return "database"

    def _kill_worker(self) -> str:
        """Kill a Python worker, or the process that forks workers."""
        deadline = time.monotonic() + 60
        while not (workers := self._workers()):
            assert time.monotonic() < deadline, "there is no worker process"
            time.sleep(0.05)
        pid = self.random.choice(workers)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return f"one of {len(workers)} worker processes"

    def _workers(self) -> list[int]:
        if self.process is None:
            return []
        return [pid for pid in processes_of_session(self.process.pid) if _is_worker(_command(pid))]

    def _kill_jvm(self) -> str:
        """Kill the JVM. The pipeline must notice and exit."""
        assert self.process is not None
        self.jvm_killed = True
        for pid in processes_of_session(self.process.pid):
            if _command(pid).partition(" ")[0].endswith("java"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait(_SECONDS)
        self._record_exit()
        return "JVM"

    def _epochs(self) -> int:
        names = (self.folder / "data" / "_pipelines" / "main" / "manifests").glob("*.json")
        return max((int(name.stem.split("-")[1]) + 1 for name in names), default=0)

    def _let_pass(self, epochs: int) -> None:
        goal, deadline = self._epochs() + epochs, time.monotonic() + 20
        while self._epochs() < goal and time.monotonic() < deadline:
            assert self.process is not None
            if self.process.poll() is not None:
                self._until_running()
            time.sleep(0.02)

    # Comparing

    def differences(self) -> dict[str, Difference]:
        """Return the missing and the unexpected rows of each sink."""
        batch = expected(self.feed.read(), SELLERS)
        sinks = Sinks(self.broker, self.topic, self.postgres, self.folder / "out")
        return compare(sinks, SINKS, batch)


def _is_worker(command: str) -> bool:
    """Exclude the JVM, whose command line contains the module of its daemon."""
    return "tidegate.spark.daemon" in command and not command.partition(" ")[0].endswith("java")


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""
