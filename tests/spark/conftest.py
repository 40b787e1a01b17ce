"""Spark session for the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import java
from tidegate.spark import executor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


for _name, _value in java.environment().items():
    os.environ.setdefault(_name, _value)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest test first."""
    items.sort(key=lambda item: item.path.name != "test_kill.py")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from tidegate.spark.session import own_session

    session = own_session("local[2]", tmp_path_factory.mktemp("spark") / "spark.log")
    # Batch queries only need a few tasks.
    session.conf.set("spark.sql.shuffle.partitions", "2")
    yield session
    session.stop()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Collect the physical plans of the jobs that pipelines run."""
    collected: list[str] = []
    run = executor.run_frame

    def explained(frame: Any) -> Any:
        capsys.readouterr()
        frame.reports.explain()
        collected.append(capsys.readouterr().out)
        return run(frame)

    monkeypatch.setattr(executor, "run_frame", explained)
    return collected
