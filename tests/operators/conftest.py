"""Runs are small here, so that they are merged and cut within a few epochs."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from tidegate.operators.store import sorted_runs as runs


@pytest.fixture(scope="package", autouse=True)
def _small_runs() -> Iterator[None]:
    with patch.multiple(runs, _FANOUT=2, _SMALL_RUN_ROWS=1, _SLICE_BYTES=300):
        yield
