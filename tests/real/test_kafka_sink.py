"""The Kafka sink without Spark: every epoch is published once, whatever fails in between."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.real.kafka import Broker
from tests.support.compiling import compile_text
from tests.support.sinks import committed
from tidegate.catalog.objects import Sink
from tidegate.connectors.base import CommittedState, EpochId, SinkContext, StreamSchema
from tidegate.connectors.kafka.sink import KafkaSink
from tidegate.connectors.kafka.transactions import Transactions
from tidegate.errors import RunError, SystemUnavailable
from tidegate.types import ChangelogKind

SCRIPT = (
    "CREATE SOURCE s (id BIGINT, v BIGINT) WITH (connector = 'memory');"
    "CREATE STREAM t AS SELECT id, v FROM s;"
)
NOTHING = CommittedState(None)


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create(f"t-{uuid.uuid4().hex[:8]}", 2)


def open_sink(
    broker: Broker, topic: str, folder: Path, options: str = "", **more: Any
) -> KafkaSink:
    brokers = more.pop("brokers", broker.brokers)
    script = (
        f"{SCRIPT}CREATE SINK out FROM t WITH (connector = 'kafka', topic = '{topic}', "
        f"brokers = '{brokers}'{options});"
    )
    compiled = compile_text(script)
    declared = compiled.catalog.get("out")
    assert isinstance(declared, Sink), compiled.errors
    return KafkaSink(SinkContext(declared, str(folder), topic, lambda *_: None, **more))


def stage(to: KafkaSink, epoch: EpochId, values: Sequence[str | None], tasks: int = 1) -> list[Any]:
    committables: list[Any] = []
    for task in range(tasks):
        writer = to.writer_factory(pa.schema([])).open(epoch.stamp, task)
        part = pa.array(values[task::tasks], pa.string())
        writer.add(pa.table({"key": part, "value": part}))
        committables += writer.finish()
    return committables


def run(to: KafkaSink, *epochs: int) -> list[Any]:
    committables: list[Any] = []
    for number in epochs:
        epoch = EpochId(0, number)
        committables = stage(to, epoch, [f"{number}a", f"{number}b"], 2)
        to.publish(epoch, committables)
    return committables


def values(broker: Broker, topic: str) -> list[str]:
    return sorted((m.value or b"gone").decode() for m in broker.read(topic))


def test_publishes_an_epoch_once(broker: Broker, topic: str, tmp_path: Path) -> None:
    to = open_sink(broker, topic, tmp_path)
    to.recover(NOTHING)
    committables = run(to, 0, 1)
    to.publish(EpochId(0, 1), committables)
    to.publish(EpochId(0, 2), [])
    reopened = open_sink(broker, topic, tmp_path)
    reopened.recover(committed(1, committables))
    assert values(broker, topic) == ["0a", "0b", "1a", "1b"]
    run(reopened, 3)
    assert values(broker, topic)[-2:] == ["3a", "3b"]
    assert [item.name for item in reopened.store.list()] == ["committed.json"]


def test_publishes_a_committed_epoch_when_opened(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    to = open_sink(broker, topic, tmp_path)
    to.recover(NOTHING)
    run(to, 0)
    committables = stage(to, EpochId(0, 1), ["1a", "1b"])
    obsolete = stage(to, EpochId(0, 1), ["of another task attempt"])
    reopened = open_sink(broker, topic, tmp_path)
    reopened.recover(committed(1, committables))
    assert values(broker, topic) == ["0a", "0b", "1a", "1b"]
    assert [item.name for item in reopened.store.list()] == ["committed.json"], obsolete


def test_aborts_the_open_transaction_of_a_killed_process(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    to = open_sink(broker, topic, tmp_path)
    to.recover(NOTHING)
    committables = stage(to, EpochId(0, 0), ["a", "b"])
    producer = to.transactions.producer
    producer.begin_transaction()
    producer.produce(topic, "half of it")
    producer.flush(60)
    reopened = open_sink(broker, topic, tmp_path)
    reopened.recover(committed(0, committables))
    assert values(broker, topic) == ["a", "b"]
    assert len(broker.read(topic, "read_uncommitted")) == 3


def test_fences_a_zombie_process(broker: Broker, topic: str, tmp_path: Path) -> None:
    zombie = open_sink(broker, topic, tmp_path)
    zombie.recover(NOTHING)
    run(zombie, 0)
    alive = open_sink(broker, topic, tmp_path)
    alive.recover(committed(0))
    committables = stage(zombie, EpochId(0, 1), ["of the zombie"])
    with pytest.raises(SystemUnavailable, match="the broker ended its transaction"):
        zombie.publish(EpochId(0, 1), committables)
    for _ in range(2):
        with pytest.raises(RunError, match="another process has taken over"):
            zombie.publish(EpochId(0, 1), committables)
    committables = stage(alive, EpochId(0, 1), ["1a"])
    with pytest.raises(SystemUnavailable):
        alive.publish(EpochId(0, 1), committables)
    alive.publish(EpochId(0, 1), committables)
    assert values(broker, topic) == ["0a", "0b", "1a"]


def test_repeats_a_transaction_that_the_broker_ended(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    to = open_sink(broker, topic, tmp_path)
    to.recover(NOTHING)
    # Another producer with the same ID that does not write the marker: the effect is that of a
    # transaction timeout.
    from confluent_kafka import Producer

    Producer({"bootstrap.servers": broker.brokers, "transactional.id": to.name}).init_transactions(
        60
    )
    committables = stage(to, EpochId(0, 0), ["a"])
    with pytest.raises(SystemUnavailable):
        to.publish(EpochId(0, 0), committables)
    assert to.store.exists(committables[0]), "spool files are kept until the epoch is published"
    to.publish(EpochId(0, 0), committables)
    assert values(broker, topic) == ["a"]


@contextmanager
def unreadable_marker(broker: Broker, to: KafkaSink) -> Iterator[None]:
    """Leave an offset of another producer's transaction in the sink's group, as a crash can."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    settings = {"bootstrap.servers": broker.brokers}
    group = Consumer({**settings, "group.id": to.name})
    other = Producer({**settings, "transactional.id": f"other-{uuid.uuid4().hex}"})
    other.init_transactions(60)
    other.begin_transaction()
    offset = TopicPartition(to.topic, 0, 99)
    other.send_offsets_to_transaction([offset], group.consumer_group_metadata(), 60)
    try:
        yield
    finally:
        other.abort_transaction(60)
        group.close()


@pytest.mark.usefixtures("impatient")
def test_continues_with_an_unreadable_marker_if_the_last_epoch_is_known(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    to = open_sink(broker, topic, tmp_path)
    to.recover(NOTHING)
    committables = run(to, 0)
    with unreadable_marker(broker, to):
        to.transactions.close()
        to.publish(EpochId(0, 0), committables)
        run(to, 1)
        # A new process learns the last epoch from the data directory.
        reopened = open_sink(broker, topic, tmp_path)
        reopened.recover(CommittedState(EpochId(0, 1), (), EpochId(0, 1)))
        run(reopened, 2)
    assert values(broker, topic) == ["0a", "0b", "1a", "1b", "2a", "2b"]


@pytest.mark.usefixtures("impatient")
def test_waits_with_an_unreadable_marker_if_an_epoch_may_be_published(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction is committed, but its response is lost."""
    to = open_sink(broker, topic, tmp_path)
    to.recover(NOTHING)
    committables = stage(to, EpochId(0, 0), ["a", "b"])

    def lose_response(self: Transactions) -> None:
        self.producer.commit_transaction(60)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    with monkeypatch.context() as patched:
        patched.setattr(Transactions, "_before_commit", lose_response)
        with pytest.raises(SystemUnavailable):
            to.publish(EpochId(0, 0), committables)
    with unreadable_marker(broker, to):
        for _ in range(2):
            with pytest.raises(SystemUnavailable, match="cannot read its commit marker"):
                to.publish(EpochId(0, 0), committables)
            assert not to.transactions.is_open
        with pytest.raises(SystemUnavailable, match="cannot read its commit marker"):
            open_sink(broker, topic, tmp_path).recover(
                CommittedState(EpochId(0, 0), committables, EpochId(0, 0))
            )
    to.publish(EpochId(0, 0), committables)
    assert values(broker, topic) == ["a", "b"]


def test_rejects_a_marker_that_is_ahead(broker: Broker, topic: str, tmp_path: Path) -> None:
    to = open_sink(broker, topic, tmp_path)
    to.recover(NOTHING)
    committables = run(to, 0, 1, 2)
    with pytest.raises(RunError, match=r"contains epoch 2 .* its last epoch is 1") as error:
        open_sink(broker, topic, tmp_path).recover(committed(1))
    assert "RESTORE FROM CHECKPOINT 1 WITH (sinks = 'keep')" in (error.value.hint or "")
    with pytest.raises(RunError, match="has not committed"):
        open_sink(broker, topic, tmp_path).recover(NOTHING)
    restored = CommittedState(EpochId(1, 3), keep_before_generation=1)
    open_sink(broker, topic, tmp_path).recover(restored)
    assert len(values(broker, topic)) == 6, committables


def test_recovers_from_a_deleted_marker(broker: Broker, topic: str, tmp_path: Path) -> None:
    to = open_sink(broker, topic, tmp_path)
    to.recover(NOTHING)
    committables = run(to, 0, 1)
    _delete_marker(broker, to)
    staged = CommittedState(EpochId(0, 1), committables, EpochId(0, 1))
    reopened = open_sink(broker, topic, tmp_path)
    reopened.recover(staged)
    run(reopened, 2)
    assert values(broker, topic) == ["0a", "0b", "1a", "1b", "2a", "2b"]
    _delete_marker(broker, reopened)
    with pytest.raises(RunError, match=r"it is unknown whether the topic .* contains epoch 3"):
        open_sink(broker, topic, tmp_path).recover(CommittedState(EpochId(0, 3), [], EpochId(0, 3)))


def _delete_marker(broker: Broker, to: KafkaSink) -> None:
    to.transactions.close()
    admin = broker.admin()
    admin.delete_consumer_groups([to.name])[to.name].result(30)


@pytest.mark.usefixtures("impatient")
def test_reports_missing_topics_brokers_and_large_records(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=f"writes to the topic {topic}x, which does not exist on"):
        open_sink(broker, f"{topic}x", tmp_path).recover(NOTHING)
    with pytest.raises(SystemUnavailable, match="the sink out cannot reach the brokers"):
        open_sink(broker, topic, tmp_path, brokers="127.0.0.1:1").recover(NOTHING)
    small = broker.create(f"{topic}-small", 1, max_message_bytes="1000")
    to = open_sink(broker, small, tmp_path / "small")
    to.recover(NOTHING)
    committables = stage(to, EpochId(0, 0), ["x" * 5000])
    with pytest.raises(RunError, match=r"the topic .* rejected a record of the sink out") as error:
        to.publish(EpochId(0, 0), committables)
    assert not getattr(error.value, "retryable", False)
    assert to.store.exists(committables[0])
    run(to, 1)
    assert values(broker, small) == ["1a", "1b"]


def test_selects_keys_and_values(broker: Broker, tmp_path: Path) -> None:
    stream_columns = [("`id`", "id"), ("`v`", "v"), ("`_op`", "_op")]

    def columns(kind: ChangelogKind, key: tuple[str, ...] | None, options: str = "") -> list[str]:
        to = open_sink(broker, "t", tmp_path, options, schema=StreamSchema((), kind, key))
        return [
            sql
            for sql, _ in to.columns(
                stream_columns if kind is not ChangelogKind.APPEND else stream_columns[:2]
            )
            or []
        ]

    assert columns(ChangelogKind.APPEND, None)[0] == "CAST(NULL AS STRING)"
    assert columns(ChangelogKind.APPEND, None, ", key = 'ID', key_format = 'text'")[0] == (
        "CAST(`id` AS STRING)"
    )
    key, value = columns(ChangelogKind.UPSERT, ("id",))
    assert key.startswith("to_json(struct(`id` AS `id`)") and "_op` AS" not in value
    assert value.startswith("CASE WHEN `_op` NOT IN ('-U', '-D') THEN to_json(")
    key, value = columns(ChangelogKind.CHANGELOG, None, ", changelog = 'column'")
    assert "`_op` AS `_op`" in value and not value.startswith("CASE")
    assert columns(ChangelogKind.UPSERT, ())[0] == "'{}'"
    with pytest.raises(RunError, match="replaces rows by id, but the sink out has the key v"):
        columns(ChangelogKind.UPSERT, ("id",), ", key = 'v'")
    with pytest.raises(RunError, match="a text key has one column"):
        columns(ChangelogKind.UPSERT, ("id", "v"), ", key_format = 'text'")


def test_writes_generation_and_owner_into_the_marker(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    to = open_sink(broker, topic, tmp_path)
    to.recover(NOTHING)
    epoch = EpochId(3, 41)
    to.publish(epoch, stage(to, epoch, ["a"]))
    from confluent_kafka import TopicPartition

    (position,) = to.transactions.consumer.committed([TopicPartition(topic, 0)], timeout=30)
    assert position.offset == 42
    assert json.loads(position.metadata) == {"generation": 3, "instance_id": to.instance_id}
