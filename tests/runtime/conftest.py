"""A pipeline without Spark, on a disk that does not wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pipelines import NoSyncDisk, PipelineHarness
from tidegate.storage import local as disk


@pytest.fixture(autouse=True)
def in_haste() -> Iterator[None]:
    before = disk.use_disk(NoSyncDisk())
    yield
    disk.use_disk(before)


@pytest.fixture
def harness(tmp_path: Path) -> PipelineHarness:
    return PipelineHarness(tmp_path)
