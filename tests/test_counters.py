"""What the progress reports of a stream add up to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.runtime.counters import Counters


def progress(epoch: int, rows: int, good: int, durations: dict[str, int]) -> dict[str, Any]:
    return {
        "batchId": epoch,
        "batchDuration": 500,
        "durationMs": durations,
        "sources": [{"description": "files", "numInputRows": rows}],
        "stateOperators": [{"memoryUsedBytes": 2_000_000}],
        "observedMetrics": {"source_0": {"good": good}, "out": {"rows": good}} if rows else {},
    }


def test_an_idle_report_does_not_stand_for_the_epoch_that_comes() -> None:
    counters = Counters("s")
    idle, busy = {"latestOffset": 1, "triggerExecution": 2}, {"addBatch": 3, "triggerExecution": 4}
    for report in (
        progress(0, 0, 0, idle),
        progress(0, 5, 4, busy),
        progress(0, 5, 4, busy),
        progress(1, 0, 0, idle),
        progress(1, 7, 7, busy),
    ):
        counters.add(report)
    status = counters.status()
    assert (status.epoch, status.rows_in, status.rows_out, status.dead_letters) == (1, 12, 11, 1)


def test_state_is_what_the_operators_hold_not_the_memory_of_spark() -> None:
    counters = Counters("s")
    counters.add(progress(0, 1, 1, {"addBatch": 1}))
    assert counters.status().state_bytes == 2_000_000
    report = {"operator": "group_aggregate", "bytes": 0}
    counters.reports = lambda: {(1000, 0): report}
    assert counters.status().state_bytes == 0
    report["bytes"] = 300
    assert counters.status().state_bytes == 300


def test_only_the_control_stream_of_the_pipeline_is_no_input(tmp_path: Path) -> None:
    """A directory of the user's may be named like it."""
    counters = Counters("s", control=tmp_path / "_control")
    report = progress(0, 5, 4, {"addBatch": 1})
    report["sources"] = [
        {"description": f"FileStreamSource[file:{tmp_path}/_control]", "numInputRows": 1},
        {"description": "FileStreamSource[file:/in/_control/files]", "numInputRows": 5},
    ]
    counters.add(report)
    assert (counters.rows_in, counters.dead_letters) == (5, 1)
