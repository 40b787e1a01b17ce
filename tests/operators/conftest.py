"""Make sorted runs small, so that they are merged and divided within a few epochs."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from tidegate.operators.store import sorted_runs


@pytest.fixture(scope="package", autouse=True)
def _small_runs() -> Iterator[None]:
    with patch.multiple(sorted_runs, _FANOUT=2, _SMALL_RUN_ROWS=1, _SLICE_BYTES=300):
        yield
