"""The loop of a pipeline with sinks on a real broker, without Spark: it dies at every step."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.real.kafka import Broker
from tests.support import pipelines
from tests.support.compiling import compile_text
from tests.support.pipelines import PipelineHarness, Killed, expected
from tidegate.catalog.objects import Stream
from tidegate.connectors.kafka.sink import KafkaSink
from tidegate.connectors.kafka.transactions import Transactions
from tidegate.runtime import pipeline as module
from tidegate.runtime.pipeline import EpochStep


class Texts(KafkaSink):
    """Takes the rows of a looped pipeline: numbers as keys, ids as values."""

    def writer_factory(self, schema: pa.Schema) -> Any:
        return _AsTexts(super().writer_factory(schema))


class _AsTexts:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def open(self, stamp: str, task: int) -> _AsTexts:
        return _AsTexts(self.inner.open(stamp, task))

    def add(self, rows: pa.Table) -> None:
        self.inner.add(pa.table({n: rows.column(n).cast(pa.string()) for n in rows.column_names}))

    def finish(self) -> list[Any]:
        return list(self.inner.finish())


class KafkaHouse(PipelineHarness):
    """One stream, two topics."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        super().__init__(folder)
        self.broker = broker
        self.topics = [broker.create(f"t-{uuid.uuid4().hex[:8]}", 2) for _ in range(2)]
        script = (
            "CREATE SOURCE s (a BIGINT) WITH (connector = 'memory', inserts_per_epoch = 1);"
            "CREATE STREAM t AS SELECT a FROM s;"
        )
        for number, topic in enumerate(self.topics):
            script += (
                f"CREATE SINK out{number} FROM t WITH (connector = 'kafka', topic = '{topic}', "
                f"brokers = '{broker.brokers}');"
            )
        self.catalog = compile_text(script).catalog
        self.streams = [self.stream(stream, False) for stream in self.catalog.of(Stream)]

    def written(self) -> list[list[tuple[int, bytes]]]:
        return [
            sorted((int(m.key), m.value) for m in self.broker.read(topic)) for topic in self.topics
        ]


@pytest.fixture
def harness(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> KafkaHouse:
    monkeypatch.setitem(pipelines.SINKS, "kafka", Texts)  # type: ignore[arg-type]
    return KafkaHouse(tmp_path, broker)


def test_killed_at_every_step_each_row_is_there_once(
    harness: KafkaHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between the two sinks, and in a transaction whose rows and marker are sent."""
    values: list[int] = []
    in_transaction = "in transaction"
    steps: list[EpochStep | str] = [*EpochStep, in_transaction]
    for number, step in enumerate(steps):
        values += [10 * number + 1, 10 * number + 2]
        harness.insert(*values[-2:])
        # Each sink marks when it is opened; the first epoch comes after that.
        left = [3 if step == in_transaction else 1 + number % 2]

        def reached(
            here: EpochStep | str, step: EpochStep | str = step, left: list[int] = left
        ) -> None:
            if here == step:
                left[0] -= 1
                if left[0] == 0:
                    raise Killed

        def publish(self: Transactions, reached: Any = reached) -> None:
            # What it leaves behind is an open transaction, as if nobody had caught this.
            self.producer.flush(60)
            reached(in_transaction)

        with monkeypatch.context() as patched:
            patched.setattr(module, "reached", reached)
            patched.setattr(Transactions, "_before_commit", publish)
            if step == in_transaction:
                patched.setattr(Transactions, "_abort", lambda self: None)
            assert harness.run().failure is not None, f"it was killed at {step}"
    assert harness.run().failure is None
    one, two = harness.written()
    assert [a for a, _ in one] == expected(*values)
    assert one == two, "rows were computed again"


@pytest.mark.usefixtures("impatient")
def test_survives_broker_kill_without_duplicates(harness: KafkaHouse, broker: Broker) -> None:
    running = harness.run(until_end=False)
    harness.insert(1, 2)
    assert running.wait(120)
    # A commit returns before its markers are in the partitions. Kafka 4.3.0 and 4.3.1 lose markers
    # that a killed broker still had to write (KAFKA-20734): no client can end that transaction.
    for topic in harness.topics:
        broker.settle(topic)
    broker.kill()
    try:
        harness.insert(3, 4)
        running.wake()
        deadline = time.monotonic() + 120
        while "cannot reach the brokers" not in (running.status()[0].error or ""):
            assert time.monotonic() < deadline, (
                "the status does not show that the broker is unavailable"
            )
            time.sleep(0.05)
    finally:
        broker.start()
    assert running.wait(120)
    assert running.status()[0].error is None
    running.stop()
    one, two = harness.written()
    assert [a for a, _ in one] == expected(1, 2, 3, 4)
    assert one == two, "rows were computed again"
