"""Real systems, started once for all tests that need them.

All tests here are marked `real`: `make test-real` runs them in two processes, each of which has its
own broker, database, cluster and Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.real.postgres import Postgres
from tests.spark.conftest import data, spark

if TYPE_CHECKING:
    from tests.real.kafka import Broker
    from tests.real.s3 import S3

__all__ = ["broker", "data", "impatient", "postgres", "s3", "spark"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts for brokers that do not respond. Retries are as frequent as always."""
    from tidegate.connectors.kafka import client as kafka_client
    from tidegate.connectors.kafka import transactions as kafka_transactions

    monkeypatch.setattr(kafka_client, "RESPONSE_TIMEOUT_S", 3.0)
    monkeypatch.setattr(kafka_transactions, "RESPONSE_TIMEOUT_S", 3.0)
    monkeypatch.setattr(kafka_transactions, "_COORDINATOR_TIMEOUT_S", 5.0)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    from tests.real.s3 import S3

    server = S3()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return a broker that all tests share. A test that kills it must start it again."""
    from tests.real.kafka import Broker

    running = Broker(tmp_path_factory.mktemp("kafka"))
    try:
        running.start()
        yield running
    finally:
        running.kill()
