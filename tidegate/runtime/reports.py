"""What the operators of a pipeline report, added up over key groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate.observe.status import OperatorStatus

_SUMMED = ("late_rows", "groups", "rows", "bytes")
# After the end of a bounded run the watermark is beyond all times.
_LATEST_US = 253_402_300_800_000_000

Reports = Mapping[tuple[int, int], Mapping[str, Any]]


def operator_statuses(reports: Reports) -> tuple[OperatorStatus, ...]:
    """One status an operator, in the order of their numbers."""
    numbers = sorted({number for number, _ in reports})
    return tuple(
        _status([report for (owner, _), report in reports.items() if owner == number])
        for number in numbers
    )


def _status(reports: Iterable[Mapping[str, Any]]) -> OperatorStatus:
    listed = list(reports)
    totals = {name: sum(int(report.get(name, 0)) for report in listed) for name in _SUMMED}
    marks = [report["watermark_us"] for report in listed if report.get("watermark_us") is not None]
    return OperatorStatus(
        name=str(listed[0]["operator"]),
        watermark=moment(min(marks)) if marks else None,
        open_windows=max((int(report.get("open_windows", 0)) for report in listed), default=0),
        discarded=max((int(report.get("discarded", 0)) for report in listed), default=0),
        **totals,
    )


def moment(micros: int) -> datetime | None:
    """A watermark as a time; None for the end of all times."""
    if not -62_135_596_800_000_000 <= micros < _LATEST_US:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
