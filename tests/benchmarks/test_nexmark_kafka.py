"""NEXMark queries over the topics of a real Kafka broker."""

from __future__ import annotations

import pytest

from benchmarks.nexmark import kafka, run
from tests.real.kafka import Broker
from tidegate.errors import SystemUnavailable

pytestmark = [pytest.mark.spark, pytest.mark.real]
QUERIES = ["q2", "q3", "q12"]


def row_counts(output: str) -> dict[str, tuple[str, str]]:
    """Return the printed numbers of emitted rows and of late rows by query."""
    lines = [line.split() for line in output.splitlines() if line.startswith("q")]
    return {cells[0]: (cells[-2], cells[-1]) for cells in lines if cells[0] in QUERIES}


def test_queries_emit_the_same_number_of_rows_from_kafka_as_from_files(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = run.Workload(QUERIES, 5_000, None)
    assert run.run(workload, "kafka", "blackhole", broker.brokers) == 0
    from_kafka = row_counts(capsys.readouterr().out)
    assert run.run(workload, "files", "blackhole") == 0
    assert from_kafka == row_counts(capsys.readouterr().out)
    assert set(from_kafka) == set(QUERIES)
    topics = broker.admin().list_topics(timeout=10).topics
    assert not [name for name in topics if name.startswith("nexmark-")]


def test_unavailable_broker_is_named_in_the_error(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.connectors.kafka.client.RESPONSE_TIMEOUT_S", 0.5)
    with (
        pytest.raises(SystemUnavailable, match=r"127\.0\.0\.1:1"),
        kafka.temporary_topics(tmp_path_factory.mktemp("events"), "127.0.0.1:1"),
    ):
        pass
