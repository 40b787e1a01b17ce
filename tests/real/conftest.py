"""Real systems, started once for all tests that need them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.postgres import Postgres
from tests.spark.conftest import data, spark

__all__ = ["data", "postgres", "spark"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()
