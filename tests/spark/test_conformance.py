"""Run the conformance cases of other stream processors on Spark; see tests/conformance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.cases import VARIABLE, case_files, folds_spaces, load_conformance_case
from tests.conformance.sessions import folding_spaces
from tidegate.testing import run_case
from tidegate.testing.case import Verdict
from tidegate.testing.runner import session_opener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FILES = case_files()
# Cases of which Tidegate's result differs on purpose. A case that passes must leave this list.
DIFFERS = {
    "flink_restore_temporal_join": "a row waits until the watermark is past its time",
    "spark_asof_left_null_time": "a row without an event time is a dead letter",
}
RESTARTED = ("misc", "dedup", "late", "temporal_join", "asof_join")


def require_passed(path: Path, spark: SparkSession, restart: bool = False) -> None:
    """Run a case and require that it passes."""
    opener = session_opener(spark)
    opener = folding_spaces(opener) if folds_spaces(path) else opener
    outcome = run_case(load_conformance_case(path), opener, restart=restart)
    if outcome.verdict is Verdict.SKIPPED:
        pytest.skip(outcome.reason or "")
    assert outcome.passed, f"{outcome.reason}\n{outcome.detail or ''}"


if FILES:

    @pytest.mark.parametrize(
        "path",
        [
            pytest.param(
                path,
                marks=pytest.mark.xfail(reason=DIFFERS[path.stem], strict=True)
                if path.stem in DIFFERS
                else (),
            )
            for path in FILES
        ],
        ids=lambda path: path.stem,
    )
    def test_conformance(path: Path, spark: SparkSession) -> None:
        require_passed(path, spark)

    @pytest.mark.parametrize(
        "path",
        [path for path in FILES if path.parent.name in RESTARTED and path.stem not in DIFFERS],
        ids=lambda path: path.stem,
    )
    def test_conformance_with_a_restart(path: Path, spark: SparkSession) -> None:
        require_passed(path, spark, restart=True)

else:

    @pytest.mark.skip(reason=f"no conformance cases: set {VARIABLE} to their directory")
    def test_conformance() -> None:
        """Report that no case was run."""
