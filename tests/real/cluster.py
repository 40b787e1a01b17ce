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

from tests.support.processes import children_of

SPARK_HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
_START_SECONDS = 180


@dataclass
class Cluster:
    """A cluster that listens on loopback, on free ports."""

    folder: Path
    # Whether Python on the workers can import the package, as if it was installed there.
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
        """Return the environment of a driver that connects to the cluster."""
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
        """Stop the workers with their executors, and the master."""
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
        """Kill the newest worker and its executors, as if its machine failed."""
        worker = self.workers.pop()
        executors = children_of(worker.pid)
        worker.kill()
        worker.wait()
        for executor in executors:
            _kill(executor)

    def executors(self) -> list[int]:
        """Return the processes that run tasks."""
        return [child for worker in self.workers for child in children_of(worker.pid)]

    def kill_executor(self) -> None:
        """Kill the oldest executor; its worker starts another one."""
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
            # The port of the REST server would be the same for every cluster on this machine.
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
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
