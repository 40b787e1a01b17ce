"""The epoch loop with sinks on a real broker, without Spark, killed at every step."""

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
from tests.support.pipelines import Killed, PipelineHarness, expected
from tidegate.catalog.objects import Stream
from tidegate.connectors.kafka.sink import KafkaSink
from tidegate.connectors.kafka.transactions import Transactions
from tidegate.runtime import pipeline as module
from tidegate.runtime.pipeline import EpochStep


class TextSink(KafkaSink):
    """Writes the rows of a `PythonPipeline`: numbers as keys, IDs as values."""

    def writer_factory(self, schema: pa.Schema) -> Any:
        return _TextWriter(super().writer_factory(schema))


class _TextWriter:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def open(self, stamp: str, task: int) -> _TextWriter:
        return _TextWriter(self.inner.open(stamp, task))

    def add(self, rows: pa.Table) -> None:
        self.inner.add(pa.table({n: rows.column(n).cast(pa.string()) for n in rows.column_names}))

    def finish(self) -> list[Any]:
        return list(self.inner.finish())


class KafkaHarness(PipelineHarness):
    """One stream with two sinks."""

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
        self.streams = [self.stream(stream, False) for stream in self.catalog.of_type(Stream)]

    def published(self) -> list[list[tuple[int, bytes]]]:
        return [
            sorted((int(m.key), m.value) for m in self.broker.read(topic)) for topic in self.topics
        ]


@pytest.fixture
def harness(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> KafkaHarness:
    monkeypatch.setitem(pipelines.SINKS, "kafka", TextSink)  # type: ignore[arg-type]
    return KafkaHarness(tmp_path, broker)


def test_writes_every_row_once_after_kill_at_every_step(
    harness: KafkaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between the two sinks, and in a transaction whose records and marker were sent."""
    values: list[int] = []
    in_transaction = "in transaction"
    steps: list[EpochStep | str] = [*EpochStep, in_transaction]
    for number, step in enumerate(steps):
        values += [10 * number + 1, 10 * number + 2]
        harness.insert(*values[-2:])
        # Each sink writes its marker when it is opened, before the first epoch.
        remaining = [3 if step == in_transaction else 1 + number % 2]

        def reached(
            here: EpochStep | str, step: EpochStep | str = step, remaining: list[int] = remaining
        ) -> None:
            if here == step:
                remaining[0] -= 1
                if remaining[0] == 0:
                    raise Killed

        def publish(self: Transactions, reached: Any = reached) -> None:
            # The transaction stays open, as after a crash: `_abort` does nothing.
            self.producer.flush(60)
            reached(in_transaction)

        with monkeypatch.context() as patched:
            patched.setattr(module, "on_step", reached)
            patched.setattr(Transactions, "_before_commit", publish)
            if step == in_transaction:
                patched.setattr(Transactions, "_abort", lambda self: None)
            assert harness.run().failure is not None, f"was not killed at {step}"
    assert harness.run().failure is None
    first, second = harness.published()
    assert [a for a, _ in first] == expected(*values)
    assert first == second, "rows were computed again"


@pytest.mark.usefixtures("impatient")
def test_survives_broker_kill_without_duplicates(harness: KafkaHarness, broker: Broker) -> None:
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
    first, second = harness.published()
    assert [a for a, _ in first] == expected(1, 2, 3, 4)
    assert first == second, "rows were computed again"
