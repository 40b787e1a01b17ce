"""A standalone Spark cluster on this machine: a master, and workers with one core each."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
_START_SECONDS = 180


@dataclass
class Cluster:
    """Everything listens on loopback, on ports that were free."""

    folder: Path
    # Whether Python on the workers finds the package by itself, as where it is installed.
    installed: bool = True
    port: int = 0
    master: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _started: int = 0

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def driver_environment(self) -> dict[str, str]:
        """What a program needs that is to reach the cluster, and to be reached by it."""
        return {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}

    def start(self, workers: int = 2) -> Cluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = _free_port()
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"]
        self.master = self._launch("master", "org.apache.spark.deploy.master.Master", *where)
        self._wait_for("master", "I have been elected leader", self.master)
        for _ in range(workers):
            self._add_worker()
        self._wait_for_workers()
        return self

    def stop(self) -> None:
        """Executors end with their workers."""
        for process in [*self.workers, *([self.master] if self.master is not None else [])]:
            process.terminate()
        for process in [*self.workers, *([self.master] if self.master is not None else [])]:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            if process.poll() is None:
                process.kill()
                process.wait()
        self.workers, self.master = [], None

    def add_worker(self) -> None:
        self._add_worker()
        self._wait_for_workers()

    def kill_worker(self) -> None:
        """The machine of the newest worker is gone, with all that ran on it."""
        worker = self.workers.pop()
        executors = _children(worker.pid)
        worker.kill()
        worker.wait()
        for executor in executors:
            _kill(executor)

    def executors(self) -> list[int]:
        """The processes that run tasks."""
        return [child for worker in self.workers for child in _children(worker.pid)]

    def kill_executor(self) -> None:
        """The oldest one; its worker starts another in its place."""
        _kill(min(self.executors()))

    def _add_worker(self) -> None:
        self._started += 1
        name = f"worker-{self._started}"
        where = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
        where += ["--work-dir", str(self.folder / name), self.url]
        worker = self._launch(name, "org.apache.spark.deploy.worker.Worker", *where)
        self.workers.append(worker)

    def _wait_for_workers(self) -> None:
        first = self._started - len(self.workers) + 1
        for number, worker in enumerate(self.workers, first):
            self._wait_for(f"worker-{number}", "Successfully registered with master", worker)

    def _launch(self, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            **self.driver_environment,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            # Its port would be the same for every cluster of this machine.
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
            "PYTHONPATH": str(ROOT) if self.installed else "",
        }
        command = [str(SPARK_HOME / "bin" / "spark-class"), kind, *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
            )

    def _wait_for(self, name: str, words: str, process: subprocess.Popen[bytes]) -> None:
        log = self.folder / f"{name}.log"
        deadline = time.monotonic() + _START_SECONDS
        while words not in log.read_text("utf-8", "replace"):
            assert process.poll() is None, f"{name} ended: {log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"{name} does not start: {log.read_text()[-2000:]}"
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _children(parent: int) -> list[int]:
    """The processes that a process has started and that live."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(folder.name))
    return found


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
