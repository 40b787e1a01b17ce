"""A Kafka broker for tests: its jars come by the Ivy that pyspark ships, once per user."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

VERSION = "4.3.1"
USER, PASSWORD = "alice", "zz-right-password-zz"
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
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
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


def _free_ports(count: int) -> list[int]:
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
        self.port, self.sasl_port, controller = _free_ports(3)
        self.settings = folder / "server.properties"
        self.settings.write_text(
            _SETTINGS.format(
                port=self.port,
                sasl=self.sasl_port,
                controller=controller,
                data=folder / "log",
                user=USER,
                password=PASSWORD,
            )
        )
        self.process: subprocess.Popen[bytes] | None = None
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        subprocess.run(
            self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", self.settings),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_brokers(self) -> str:
        return f"127.0.0.1:{self.sasl_port}"

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

    # What tests do with it

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.brokers})

    def create(self, topic: str, partitions: int = 1, **config: str) -> str:
        admin = self.admin()
        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, partitions, 1, config=settings)
        admin.create_topics([new])[topic].result(30)
        self._until_led(topic)
        return topic

    def _until_led(self, topic: str) -> None:
        """A topic that was just created has no leader for a moment."""
        deadline = time.monotonic() + 30
        while True:
            try:
                self._ends(self.admin(), topic, True)
                return
            except (KafkaException, KeyError):
                assert time.monotonic() < deadline, f"{topic} has no leader"
                time.sleep(0.02)

    def grow(self, topic: str, partitions: int) -> None:
        admin = self.admin()
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
        self._until_led(topic)

    def drop(self, topic: str) -> None:
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(30)

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Retention, at once."""
        admin = self.admin()
        place = TopicPartition(topic, partition, offset)
        admin.delete_records([place])[place].result(30)

    def produce(
        self,
        topic: str,
        values: Sequence[str | bytes | None],
        partition: int = 0,
        keys: Sequence[str | bytes | None] | None = None,
        **more: Any,
    ) -> None:
        producer = Producer({"bootstrap.servers": self.brokers, "linger.ms": 5})
        _produce_all(producer, topic, values, partition, keys, more)
        assert producer.flush(60) == 0

    def produce_in_transaction(
        self, topic: str, values: Sequence[str | bytes | None], partition: int, commit: bool
    ) -> None:
        """What another transactional producer does; without a commit nobody may see it."""
        name = f"other-{uuid.uuid4().hex}"
        producer = Producer({"bootstrap.servers": self.brokers, "transactional.id": name})
        producer.init_transactions(60)
        producer.begin_transaction()
        _produce_all(producer, topic, values, partition, None, {})
        producer.flush(60)
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
        self.settle(topic)

    def settle(self, topic: str) -> None:
        """Wait for markers of transactions: they are written behind the back of their producer."""
        admin = self.admin()
        deadline = time.monotonic() + 60
        while self._ends(admin, topic, True) != self._ends(admin, topic, False):
            assert time.monotonic() < deadline, f"{topic} has an open transaction"
            time.sleep(0.02)

    def _ends(self, admin: AdminClient, topic: str, committed: bool) -> list[int]:
        levels = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        known = admin.list_topics(topic, timeout=30).topics[topic].partitions
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in known}
        found = admin.list_offsets(asked, isolation_level=levels[0 if committed else 1])
        return [future.result(30).offset for _, future in sorted(found.items())]

    def read(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        """All messages of a topic, partition by partition."""
        if isolation == "read_committed":
            self.settle(topic)
        consumer = Consumer(
            {
                "bootstrap.servers": self.brokers,
                "group.id": f"test-{uuid.uuid4().hex}",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        try:
            known = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in known])
            found: list[Message] = []
            open_ends = set(known)
            deadline = time.monotonic() + 60
            while open_ends:
                assert time.monotonic() < deadline, f"{topic} has no end"
                for message in consumer.consume(1000, 0.5):
                    error = message.error()
                    if error is None:
                        found.append(Message(message))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        open_ends.discard(message.partition())
                    else:
                        raise KafkaException(error)
            return sorted(found, key=lambda item: (item.partition, item.offset))
        finally:
            consumer.close()


class Message:
    """A message as tests compare it."""

    def __init__(self, message: Any) -> None:
        self.partition, self.offset = message.partition(), message.offset()
        self.key, self.value = message.key(), message.value()
        self.headers = message.headers() or []


def _produce_all(
    producer: Producer,
    topic: str,
    values: Sequence[str | bytes | None],
    partition: int,
    keys: Sequence[str | bytes | None] | None,
    more: Mapping[str, Any],
) -> None:
    failed: list[Any] = []

    def told(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    for key, value in zip(keys or [None] * len(values), values, strict=True):
        producer.produce(topic, value, key, partition, on_delivery=told, **more)
        producer.poll(0)
    producer.flush(60)
    assert not failed, failed[0]
