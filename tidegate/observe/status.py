"""The state of a pipeline, as shown by `tidegate run` and `Session.status`."""

from __future__ import annotations

import base64
import datetime as dt
import html
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

# Nobody waits a day for rows that are on their way.
_OLD_SECONDS = 86_400


class State(Enum):
    """Where a pipeline is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class OperatorStatus:
    """What one operator keeps, all key groups together; counters are since the stream started."""

    name: str
    watermark: datetime | None = None
    late_rows: int = 0
    groups: int = 0
    open_windows: int = 0
    rows: int = 0
    bytes: int = 0
    discarded: int = 0


@dataclass(frozen=True)
class StreamStatus:
    """A snapshot of one stream; counters are since it was started, rates of the last seconds."""

    name: str
    state: State
    epoch: int | None = None
    rows_in: int = 0
    rows_out: int = 0
    rows_in_per_second: float = 0.0
    rows_out_per_second: float = 0.0
    watermark: datetime | None = None
    watermark_lag_seconds: float | None = None
    late_rows: int = 0
    dead_letters: int = 0
    state_bytes: int = 0
    error: str | None = None
    operators: tuple[OperatorStatus, ...] = ()
    # Records that were gone before they were read, and records that its sources have and that were
    # not read yet when the last epoch began, where a source can tell.
    lost: int = 0
    behind: int | None = None
    # How long its last epoch took.
    epoch_seconds: float | None = None
    # The share of its input that was read since the start, where the sources can tell.
    progress: float | None = None
    # How long an epoch has been running by now; None while it waits for news.
    working_seconds: float | None = None

    @property
    def open_windows(self) -> int:
        return sum(operator.open_windows for operator in self.operators)

    @property
    def live_lag_seconds(self) -> float | None:
        """How far the watermark is behind the clock; of old data that says nothing."""
        lag = self.watermark_lag_seconds
        return lag if lag is not None and lag < _OLD_SECONDS else None


# ---- How many rows per second pass now, and not how many did when the last of them came.

_WINDOW_SECONDS = 5.0


@dataclass
class Rate:
    """Rows of the last seconds; those of an epoch are spread over the time it took."""

    clock: Callable[[], float] = time.monotonic
    _epochs: deque[tuple[float, float, int]] = field(default_factory=deque)

    def add(self, rows: int, seconds: float) -> None:
        """An epoch that is just over."""
        now = self.clock()
        self._epochs.append((now - max(seconds, 0.001), now, rows))
        self._forget(now)

    def per_second(self) -> float:
        now = self.clock()
        self._forget(now)
        if not self._epochs:
            return 0.0
        # Right after a start less time is known of than the window is long.
        begin = max(now - _WINDOW_SECONDS, self._epochs[0][0])
        seen = sum(
            rows * (end - max(start, begin)) / (end - start) for start, end, rows in self._epochs
        )
        return seen / max(now - begin, 0.001)

    def _forget(self, now: float) -> None:
        while self._epochs and self._epochs[0][1] <= now - _WINDOW_SECONDS:
            self._epochs.popleft()


# ---- Values of rows as JSON.


def json_value(value: Any) -> Any:
    """A value of a row as JSON has it; what JSON has no word for is a text."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, datetime | date | dt.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Decimal | timedelta):
        return str(value)
    return value


# ---- Rows as HTML, for notebooks.


def html_table(columns: list[str], rows: list[dict[str, Any]], caption: str) -> str:
    """Rows as HTML; what is in them is text, never markup."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    cells = (
        "".join(f"<td>{html.escape(_text(row[name]))}</td>" for name in columns) for row in rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        f"<caption>{html.escape(caption)}</caption></table>"
    )


def _text(value: Any) -> str:
    return "NULL" if value is None else str(value)
