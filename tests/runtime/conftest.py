"""A pipeline without Spark, on a disk that does not sync."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pipelines import NoSyncDisk, PipelineHarness
from tidegate.storage.local import use_disk


@pytest.fixture(autouse=True)
def no_sync() -> Iterator[None]:
    previous = use_disk(NoSyncDisk())
    yield
    use_disk(previous)


@pytest.fixture
def harness(tmp_path: Path) -> PipelineHarness:
    return PipelineHarness(tmp_path)
