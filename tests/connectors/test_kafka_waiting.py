"""Clients of Kafka that never answer: nobody waits for them for ever. No broker is needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from tidegate.connectors.base import EpochId
from tidegate.connectors.kafka import client as kafka_topics
from tidegate.connectors.kafka import reader as kafka_tasks
from tidegate.connectors.kafka import transactions as kafka_transactions
from tidegate.connectors.kafka.client import ClientErrors, Connection, Topics
from tidegate.connectors.kafka.reader import KafkaReader
from tidegate.connectors.kafka.transactions import Marker, Transactions
from tidegate.errors import RunError, SystemUnavailable

CONNECTION = Connection("the sink s", "b:9092", {"bootstrap.servers": "b:9092"})
PART = [0, "t", 0, 5, 7, 0]
MARKER = Marker(EpochId(0, 0), "me")


def message(offset: int, code: int | None = None) -> Message:
    """A record, or what a consumer tells instead of one."""
    error = None if code is None else KafkaError(code)
    return Message(topic="t", partition=0, offset=offset, value=b"{}", error=error)


class Consumer:
    """Consumers made one after the other take one script each: what each call gives."""

    scripts: Iterator[Callable[[], list[Message]]]

    def __init__(self, _: dict[str, Any]) -> None:
        self.script = next(self.scripts)

    def consume(self, _: int, __: float) -> list[Message]:
        return self.script()

    def assign(self, _: Any) -> None: ...

    def unassign(self) -> None: ...

    def incremental_unassign(self, _: Any) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Consumers with these scripts; whoever hears nothing for a moment gives up."""
    monkeypatch.setattr(kafka_tasks, "_consumers", {})
    monkeypatch.setattr(kafka_tasks, "_SILENT_SECONDS", 0.02)
    monkeypatch.setattr(confluent_kafka, "Consumer", Consumer)

    def give(*scripts: Callable[[], list[Message]]) -> None:
        monkeypatch.setattr(Consumer, "scripts", iter(scripts), raising=False)

    return give


def silent() -> list[Message]:
    time.sleep(0.005)
    return []


def read() -> int:
    return sum(count for _, count in KafkaReader(CONNECTION, ()).read([PART]))


def test_a_consumer_that_fell_silent_is_not_asked_again(scripted: Callable[..., None]) -> None:
    """It outlives its tasks: the epoch that is cut anew would wait for it again, for ever."""
    scripted(silent, lambda: [message(5), message(6)])
    with pytest.raises(SystemUnavailable, match="silent"):
        read()
    assert read() == 2


def test_who_only_complains_is_silent_and_ends_no_range(scripted: Callable[..., None]) -> None:
    left = [200]

    def complain() -> list[Message]:
        time.sleep(0.005)
        left[0] -= 1
        assert left[0], "it is asked for ever"
        return [message(1000, KafkaError.UNKNOWN_TOPIC_OR_PART)]

    scripted(complain)
    with pytest.raises(SystemUnavailable, match="silent"):
        read()


def test_the_end_of_a_partition_ends_a_range_without_records(
    scripted: Callable[..., None],
) -> None:
    scripted(lambda: [message(7, KafkaError._PARTITION_EOF)])
    assert read() == 0


class Producer:
    """Does all it is asked; `stuck` is the call that never returns, `failing` one that fails."""

    def __init__(self, stuck: str = "", failing: str = "") -> None:
        self.stuck, self.failing = stuck, failing
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, timeout: float | None = None) -> int:
            self.calls.append((name, given[-1] if given else timeout))
            if name == self.stuck:
                threading.Event().wait()
            if name == self.failing:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return 0

        return call


class Group:
    def consumer_group_metadata(self) -> None: ...

    def close(self) -> None: ...


def transactions(producer: Producer) -> Transactions:
    made = Transactions(CONNECTION, "name", "t", 60_000_000)
    made.producer, made.consumer = producer, Group()
    return made


def finishes(work: Callable[[], None]) -> BaseException | None:
    """How a call ends that must end."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert ended, "it waits for ever"
    return ended[0]


@pytest.mark.parametrize(
    ("stuck", "failing"),
    [
        ("send_offsets_to_transaction", ""),
        ("commit_transaction", ""),
        ("abort_transaction", "commit_transaction"),
        ("abort_transaction", "send_offsets_to_transaction"),
    ],
)
def test_a_producer_that_never_returns_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, stuck: str, failing: str
) -> None:
    for name in ("_COORDINATOR_SECONDS", "ANSWER_SECONDS", "_GRACE_SECONDS"):
        monkeypatch.setattr(kafka_transactions, name, 0.02)
    made = transactions(Producer(stuck, failing))
    error = finishes(lambda: made.write([], MARKER))
    assert isinstance(error, SystemUnavailable) and not made.is_open


@pytest.mark.parametrize(("rows", "seconds"), [([], 20.0), ([(None, b"v")], 60.0)])
def test_rows_may_take_as_long_as_their_transaction_and_a_marker_may_not(
    rows: list[tuple[None, bytes]], seconds: float
) -> None:
    """Every sink marks when it is opened: a coordinator that is gone would hold it for minutes."""
    producer = Producer()
    transactions(producer).write(rows, MARKER)
    waits = dict(producer.calls)
    assert waits["send_offsets_to_transaction"] == 20.0
    assert waits["commit_transaction"] == seconds


def test_an_answer_that_never_comes_is_a_broker_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_topics, "ANSWER_SECONDS", 0.01)
    topics = Topics.__new__(Topics)
    topics.connection, topics.complaints = CONNECTION, ClientErrors(CONNECTION)
    topics.admin = Producer()  # type: ignore[assignment]
    with pytest.raises(SystemUnavailable, match="cannot reach the brokers b:9092"):
        topics._result(Future())


@pytest.mark.parametrize("seconds", [1, 10, 60])
def test_a_transaction_may_be_as_short_as_its_option_allows(
    monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """The client wants no answer to take longer than a transaction."""
    monkeypatch.setattr(kafka_transactions, "_COORDINATOR_SECONDS", 0.01)
    nobody = Connection(
        "the sink s", "127.0.0.1:1", {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    )
    with pytest.raises(SystemUnavailable):
        Transactions(nobody, "name", "t", seconds * 1_000_000).open()


@pytest.mark.parametrize("failing", ["init_transactions", "committed"])
def test_does_not_write_after_opening_failed(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """Without the marker it is unknown whether the topic has the epoch already."""
    for name in ("_COORDINATOR_SECONDS", "ANSWER_SECONDS"):
        monkeypatch.setattr(kafka_transactions, name, 0.02)
    client = Producer(failing=failing)
    for name in ("Producer", "Consumer"):
        monkeypatch.setattr(confluent_kafka, name, lambda _: client)
    monkeypatch.setattr(confluent_kafka.admin, "AdminClient", unavailable)
    opened = Transactions(CONNECTION, "name", "t", 60_000_000)
    with pytest.raises(SystemUnavailable, match="cannot reach the brokers"):
        opened.open()
    assert not opened.is_open


def unavailable(_: dict[str, Any]) -> Any:
    raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def test_the_reason_counts_even_if_the_client_tells_it_late() -> None:
    """A row that is rejected spoils the transaction; calls fail before the row is told."""

    class Late(Producer):
        def send_offsets_to_transaction(self, *_: Any) -> None:
            raise KafkaException(KafkaError(KafkaError._STATE))

        def poll(self, _: float) -> int:
            if ("begin_transaction", None) in self.calls and len(self.calls) > 2:
                made._undelivered(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), None)
            return 0

    made = transactions(Late())
    with pytest.raises(RunError, match="a row that the topic t does not take"):
        made.write([(None, b"v"), (None, b"w")], MARKER)
