"""Kafka clients that do not respond: calls end with an error. No broker is needed."""

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
from tidegate.connectors.kafka import client as kafka_client
from tidegate.connectors.kafka import reader as kafka_reader
from tidegate.connectors.kafka import transactions as kafka_transactions
from tidegate.connectors.kafka.client import ClientErrors, Connection, Topics
from tidegate.connectors.kafka.reader import KafkaReader
from tidegate.connectors.kafka.transactions import TopicMarker, Transactions
from tidegate.errors import RunError, SystemUnavailable

CONNECTION = Connection("the sink s", "b:9092", {"bootstrap.servers": "b:9092"})
PART = [0, "t", 0, 5, 7, 0]
MARKER = TopicMarker(EpochId(0, 0), "me")


def message(offset: int, code: int | None = None) -> Message:
    """Return a record, or the error that a consumer returns instead of one."""
    error = None if code is None else KafkaError(code)
    return Message(topic="t", partition=0, offset=offset, value=b"{}", error=error)


class Consumer:
    """A consumer whose `consume` calls a script. Consecutive consumers take consecutive scripts."""

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
    """Replace consumers by scripted ones. Readers fail after a moment of silence."""
    monkeypatch.setattr(kafka_reader, "_consumers", {})
    monkeypatch.setattr(kafka_reader, "_SILENCE_TIMEOUT_S", 0.02)
    monkeypatch.setattr(confluent_kafka, "Consumer", Consumer)

    def install(*scripts: Callable[[], list[Message]]) -> None:
        monkeypatch.setattr(Consumer, "scripts", iter(scripts), raising=False)

    return install


def silent() -> list[Message]:
    time.sleep(0.005)
    return []


def read() -> int:
    return sum(count for _, count in KafkaReader(CONNECTION, ()).read([PART]))


def test_replaces_a_silent_consumer(scripted: Callable[..., None]) -> None:
    """It is cached for later tasks, so the next attempt of the epoch would wait for it again."""
    scripted(silent, lambda: [message(5), message(6)])
    with pytest.raises(SystemUnavailable, match="silent"):
        read()
    assert read() == 2


def test_errors_do_not_count_as_a_response(scripted: Callable[..., None]) -> None:
    remaining = [200]

    def fail() -> list[Message]:
        time.sleep(0.005)
        remaining[0] -= 1
        assert remaining[0], "the consumer was polled forever"
        return [message(1000, KafkaError.UNKNOWN_TOPIC_OR_PART)]

    scripted(fail)
    with pytest.raises(SystemUnavailable, match="silent"):
        read()


def test_end_of_a_partition_ends_a_range_without_records(
    scripted: Callable[..., None],
) -> None:
    scripted(lambda: [message(7, KafkaError._PARTITION_EOF)])
    assert read() == 0


class Producer:
    """Accepts all calls. The call `stuck` never returns, and the call `failing` fails."""

    def __init__(self, stuck: str = "", failing: str = "") -> None:
        self.stuck, self.failing = stuck, failing
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, timeout: float | None = None) -> int:
            self.calls.append((name, arguments[-1] if arguments else timeout))
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
    opened = Transactions(CONNECTION, "name", "t", 60_000_000)
    opened.producer, opened.consumer = producer, Group()
    return opened


def outcome(work: Callable[[], None]) -> BaseException | None:
    """Return how a call ended; fail if it does not end."""
    outcomes: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            outcomes.append(None)
        except BaseException as error:
            outcomes.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert outcomes, "the call did not return"
    return outcomes[0]


@pytest.mark.parametrize(
    ("stuck", "failing"),
    [
        ("send_offsets_to_transaction", ""),
        ("commit_transaction", ""),
        ("abort_transaction", "commit_transaction"),
        ("abort_transaction", "send_offsets_to_transaction"),
    ],
)
def test_abandons_a_producer_whose_call_does_not_return(
    monkeypatch: pytest.MonkeyPatch, stuck: str, failing: str
) -> None:
    for name in ("_COORDINATOR_TIMEOUT_S", "RESPONSE_TIMEOUT_S", "_GRACE_S"):
        monkeypatch.setattr(kafka_transactions, name, 0.02)
    opened = transactions(Producer(stuck, failing))
    error = outcome(lambda: opened.write([], MARKER))
    assert isinstance(error, SystemUnavailable) and not opened.is_open


@pytest.mark.parametrize(("rows", "seconds"), [([], 20.0), ([(None, b"v")], 60.0)])
def test_only_records_may_take_as_long_as_the_transaction(
    rows: list[tuple[None, bytes]], seconds: float
) -> None:
    """A sink writes its marker when it is opened, and must not wait minutes for a coordinator."""
    producer = Producer()
    transactions(producer).write(rows, MARKER)
    waits = dict(producer.calls)
    assert waits["send_offsets_to_transaction"] == 20.0
    assert waits["commit_transaction"] == seconds


def test_missing_response_means_an_unavailable_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_client, "RESPONSE_TIMEOUT_S", 0.01)
    topics = Topics.__new__(Topics)
    topics.connection, topics.client_errors = CONNECTION, ClientErrors(CONNECTION)
    topics.admin = Producer()  # type: ignore[assignment]
    with pytest.raises(SystemUnavailable, match="cannot reach the brokers b:9092"):
        topics._result(Future())


@pytest.mark.parametrize("seconds", [1, 10, 60])
def test_accepts_a_short_transaction_timeout(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """The client requires that a response takes no longer than a transaction."""
    monkeypatch.setattr(kafka_transactions, "_COORDINATOR_TIMEOUT_S", 0.01)
    unreachable = Connection(
        "the sink s", "127.0.0.1:1", {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    )
    with pytest.raises(SystemUnavailable):
        Transactions(unreachable, "name", "t", seconds * 1_000_000).open()


@pytest.mark.parametrize("failing", ["init_transactions", "committed"])
def test_does_not_write_after_opening_failed(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """Without the marker it is unknown whether the topic has the epoch already."""
    for name in ("_COORDINATOR_TIMEOUT_S", "RESPONSE_TIMEOUT_S"):
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


def test_reports_a_delivery_error_that_arrives_late() -> None:
    """A rejected record fails the transaction, and calls fail before its error arrives."""

    class Late(Producer):
        def send_offsets_to_transaction(self, *_: Any) -> None:
            raise KafkaException(KafkaError(KafkaError._STATE))

        def poll(self, _: float) -> int:
            if ("begin_transaction", None) in self.calls and len(self.calls) > 2:
                opened._on_delivery_error(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), None)
            return 0

    opened = transactions(Late())
    with pytest.raises(RunError, match="the topic t rejected a record of the sink s"):
        opened.write([(None, b"v"), (None, b"w")], MARKER)
