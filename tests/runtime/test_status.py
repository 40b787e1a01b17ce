"""Task reports of an epoch, and the status of streams."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from tidegate.checkpoint.manifest import Manifest, OperatorState, StreamState
from tidegate.connectors.base import InputRange
from tidegate.observe.status import Rate, State
from tidegate.operators.watermark import END_OF_INPUT_US
from tidegate.runtime.epoch import EpochReport, StreamReport
from tidegate.runtime.status import StreamCounters, track_running_epoch, watermark_time

SECOND = 1_000_000


def parse(*reports: dict[str, Any]) -> EpochReport:
    return EpochReport.from_reports(json.dumps(report).encode() for report in reports)


def manifest(
    epoch: int, *operators: OperatorState, event_times_us: dict[str, int] | None = None
) -> Manifest:
    streams = {"s": StreamState("1234", event_times_us=event_times_us or {})}
    return Manifest(0, epoch, 2, 0, streams, {str(n): o for n, o in enumerate(operators)})


def operator_report(key_group: int, **report: Any) -> dict[str, Any]:
    handle = [f"file{key_group}", 0, 1, 2]
    files = ["old"] if key_group else []
    return {
        "operators": ["s.1"],
        "key_group": key_group,
        "handle": handle,
        "files": files,
        "size": 100,
        "report": report,
    }


def test_combines_reports_of_all_tasks() -> None:
    reports = parse(
        {"streams": ["S"], "source": "x", "rows": 5},
        {"streams": ["s"], "out": 3, "malformed": 1, "event_times_us": {"0": 7}},
        {"streams": ["s"], "out": 1, "event_times_us": {"0": 5, "1": 9}},
        {"streams": ["other"], "rows": 100},
        {"sink": "out", "committables": ["a"]},
        {"sink": "out", "committables": []},
        {"sink": "out", "committables": ["b"]},
    )
    assert reports.stream("s") == StreamReport(5, 4, 1, event_times_us={"0": 7, "1": 9})
    assert reports.committables == {"out": ["a", "b"]}


def test_operator_state_has_handles_of_all_key_groups() -> None:
    previous = OperatorState("s", "w", "ff", {"0": ["gone", 0, 0, 0]}, {"gone": 5, "old": 7})
    reports = parse(
        operator_report(
            0, late_rows=1, groups=2, bytes=10, open_windows=3, watermark_us=50, timer_us=None
        ),
        operator_report(
            1, late_rows=2, groups=5, bytes=20, open_windows=2, watermark_us=50, timer_us=900
        ),
    )
    after = reports.operator("s.1", previous, 2)
    assert after.state_handles == {"0": ["file0", 0, 1, 2], "1": ["file1", 0, 1, 2]}
    assert after.files == {"file0": 100, "file1": 100, "old": 7}
    assert after.report == {
        "late_rows": 3,
        "groups": 7,
        "bytes": 30,
        "open_windows": 3,
        "watermark_us": 50,
        "timer_us": 900,
    }
    assert reports.operator("another", previous, 2) is previous
    with pytest.raises(AssertionError, match="2 of 3 key groups"):
        reports.operator("s.1", previous, 3)


def test_counters_add_up_epochs() -> None:
    counters = StreamCounters("S", state=State.RUNNING)
    counters.add(manifest(0), StreamReport(5, 4, 1), 0.5)
    counters.add(manifest(1), StreamReport(7, 7, 0), 0.25)
    status = counters.status()
    assert (status.epoch, status.rows_in, status.rows_out, status.dead_letters) == (1, 12, 11, 1)
    assert status.epoch_seconds == 0.25


def test_status_shows_how_long_the_epoch_has_been_running() -> None:
    counters = [StreamCounters("s"), StreamCounters("t")]
    assert counters[0].status().running_seconds is None
    with suppress(RuntimeError), track_running_epoch(counters):
        assert all((item.status().running_seconds or -1) >= 0 for item in counters)
        raise RuntimeError("the job failed")
    assert [item.status().running_seconds for item in counters] == [None, None]


def test_progress_is_that_of_the_slowest_source() -> None:
    counters = StreamCounters("S", state=State.RUNNING)
    counters.add(manifest(0), StreamReport(), 1, {"a": InputRange({}, []), "b": InputRange({}, [])})
    assert counters.status().progress is None, "no source knows its size"
    ranges = {"a": InputRange({}, [], progress=(10, 30)), "b": InputRange({}, [], progress=(5, 5))}
    counters.add(manifest(1), StreamReport(), 1, ranges)
    assert counters.status().progress == 0.25
    counters.add(manifest(2), StreamReport(), 1, {"a": InputRange({}, [], progress=(30, 0))})
    assert counters.status().progress == 0.5
    counters.add(manifest(3), StreamReport(), 1, {"b": InputRange({}, [], progress=(5, 0))})
    assert counters.status().progress == 1


def test_rate_covers_the_last_seconds() -> None:
    now = [0.0]
    rate = Rate(lambda: now[0])
    assert rate.per_second() == 0
    for _ in range(4):
        now[0] += 1
        rate.add(100, 1.0)
    assert rate.per_second() == 100
    now[0] += 4
    assert rate.per_second() == 20, "one second of five had rows"
    now[0] += 10
    assert rate.per_second() == 0, "no recent rows"
    rate.add(5_000, 10.0)
    assert rate.per_second() == 500, "a long epoch is spread over the time it took"


def test_status_counts_operators_of_the_stream_only() -> None:
    state = OperatorState("s", "w", "ff", report={"bytes": 300, "late_rows": 2, "groups": 4})
    other = OperatorState("t", "w", "ff", report={"bytes": 999, "late_rows": 9})
    counters = StreamCounters("s")
    assert counters.status().state_bytes == 0
    counters.add(manifest(3, state, other), StreamReport(), 1)
    status = counters.status()
    assert (status.state_bytes, status.late_rows, status.operators[0].groups) == (300, 2, 4)


def test_late_rows_are_counted_since_the_start() -> None:
    def operator_state(late: int, discarded: int = 0) -> OperatorState:
        return OperatorState("s", "w", "f", report={"late_rows": late, "discarded": discarded})

    counters = StreamCounters("s")
    counters.restore(manifest(3, operator_state(7, 2)))
    assert counters.status().late_rows == 0, "they are of an earlier run"
    counters.add(manifest(4, operator_state(9, 3), operator_state(5)), StreamReport(), 1)
    status = counters.status()
    assert [item.late_rows for item in status.operators] == [2, 5]
    assert (status.late_rows, status.operators[0].discarded) == (7, 1)
    counters.add(manifest(5, operator_state(1), operator_state(5)), StreamReport(), 1)
    assert counters.status().late_rows == 6, "the first operator started with empty state"


def test_watermark_is_the_minimum() -> None:
    stateless = StreamCounters("s", {"0": 2 * SECOND, "1": 0})
    stateless.add(manifest(0, event_times_us={"0": 10 * SECOND}), StreamReport(), 1)
    assert stateless.status().watermark is None
    stateless.add(
        manifest(1, event_times_us={"0": 10 * SECOND, "1": 9 * SECOND}), StreamReport(), 1
    )
    assert stateless.status().watermark == datetime(1970, 1, 1, 0, 0, 8, tzinfo=UTC)
    fast, slow = (
        OperatorState("s", "w", "f", report={"watermark_us": us}) for us in (5 * SECOND, 3 * SECOND)
    )
    chain = StreamCounters("s")
    chain.restore(manifest(0, fast, slow))
    assert chain.status().watermark == datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)


def test_watermark_after_end_of_input_is_none() -> None:
    assert watermark_time(END_OF_INPUT_US) is None
    assert watermark_time(0) == datetime(1970, 1, 1, tzinfo=UTC)
    ended = OperatorState("s", "w", "f", report={"watermark_us": END_OF_INPUT_US})
    counters = StreamCounters("s")
    counters.restore(manifest(0, ended))
    assert counters.status().watermark is None
