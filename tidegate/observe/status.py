"""The state of a pipeline, as shown by `tidegate run` and `Session.status`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

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
