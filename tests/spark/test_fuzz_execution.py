"""Run a few mutations of `fuzz_execution`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.fuzz_execution import findings

pytestmark = pytest.mark.spark


def test_accepted_mutations_run_or_fail_with_an_explanation(spark: Any, tmp_path: Path) -> None:
    results = list(findings(spark, count=6, seed=1, folder=tmp_path))
    assert not results, "\n\n".join(f"{item.text}\n{item.error}" for item in results)
