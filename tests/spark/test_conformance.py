"""Cases from other stream processors. They are not part of the project: point
TIDEGATE_CONFORMANCE_DIR at the folder that holds them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidegate.testing import load_case, run_case
from tidegate.testing.loader import find_cases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FOLDER = os.environ.get("TIDEGATE_CONFORMANCE_DIR")
CASES = find_cases([Path(FOLDER) / "cases"]) if FOLDER is not None else []
# Areas whose operators are not built: every case of them is rejectd, none is wrong.
UNBUILT: frozenset[str] = frozenset()
# Cases that fail for a reason: one that passes must be taken off this list.
FAILS = {
    "proton_tumble_week_monday": "one watermark per key; ours is per source partition",
    # Its watermark stands at the time of the row: one of the same time may still come here.
    "flink_restore_temporal_join": "a row waits until the watermark is past its time",
    "spark_asof_left_null_time": "a row without an event time is a dead letter",
    "proton_session_gap_boundary_splits": "rows exactly a gap apart merge",
}
RESTARTED = ("misc", "dedup", "late", "temporal_join", "asof_join")


def _failing(path: Path) -> str | None:
    if path.parent.name in UNBUILT:
        return "TG-501"
    return FAILS.get(path.stem)


if CASES:

    @pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
    def test_conformance(path: Path, spark: SparkSession) -> None:
        """A case passes, or is known to fail; neither may change without somebody looking at it."""
        outcome = run_case(load_case(path), spark=spark)
        why = _failing(path)
        if why is None:
            assert outcome.passed, f"{outcome.reason}\n{outcome.detail or ''}"
            return
        assert not outcome.passed, f"{path.stem} passes now: take it off the list"
        if path.parent.name in UNBUILT:
            assert (outcome.reason or "").startswith("TG-501"), outcome.reason

    @pytest.mark.parametrize(
        "path",
        [path for path in CASES if path.parent.name in RESTARTED],
        ids=lambda path: path.stem,
    )
    def test_conformance_with_restarts(path: Path, spark: SparkSession) -> None:
        if _failing(path) is None:
            outcome = run_case(load_case(path), spark=spark, restart=True)
            assert outcome.passed, f"{outcome.reason}\n{outcome.detail or ''}"
