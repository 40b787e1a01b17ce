"""Status snapshots of streams, as `tidegate run` shows and `Session.status` returns them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

# A watermark that is further behind the clock belongs to historical data, whose lag is not useful.
_MAX_LIVE_LAG_SECONDS = 86_400


class State(Enum):
    """The lifecycle state of a stream."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class OperatorStatus:
    """State and counters of one operator of a stream, such as an aggregation or a join.

    * `groups`, `open_windows`, `rows` and `bytes`: the size of its state.
    * `late_rows`: late rows since the stream was started.
    * `discarded`: key groups whose state was discarded because the query changed.
    """

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
    """The status of a stream. Counters start with zero when the stream is started.

    * `epoch`: the last committed epoch.
    * `rows_in`, `rows_out`: rows read, and rows emitted to sinks.
    * `rows_in_per_second`, `rows_out_per_second`: rates of the last five seconds.
    * `watermark`, `watermark_lag_seconds`: the watermark, and how far it is behind the clock.
    * `late_rows`, `dead_letters`: late rows, and malformed or failed rows.
    * `lost_records`: records that were deleted before they were read.
    * `pending_records`: available records that did not fit into the last epoch; None if unknown.
    * `state_bytes`: the size of the state of all operators.
    * `error`: the cause of a failure, or what the stream waits for.
    * `epoch_seconds`: the duration of the last epoch.
    * `running_seconds`: how long the current epoch has been running; None between epochs.
    * `progress`: the fraction of the available input that was read; None if unknown.
    """

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
    # Records that were deleted before they were read.
    lost_records: int = 0
    # Available records that did not fit into the last epoch; None if no source can count them.
    pending_records: int | None = None
    # Duration of the last epoch.
    epoch_seconds: float | None = None
    # Fraction of the input that has been read since the start; None if the sources do not know.
    progress: float | None = None
    # How long the current epoch has been running; None between epochs.
    running_seconds: float | None = None

    @property
    def open_windows(self) -> int:
        """The number of open windows of all operators."""
        return sum(operator.open_windows for operator in self.operators)

    @property
    def live_lag_seconds(self) -> float | None:
        """The `watermark_lag_seconds`, but None if it is more than a day (historical data)."""
        lag = self.watermark_lag_seconds
        return lag if lag is not None and lag < _MAX_LIVE_LAG_SECONDS else None


# ---- Rates

_WINDOW_SECONDS = 5.0


@dataclass
class Rate:
    """Rows per second over the last five seconds.

    The rows of an epoch are spread evenly over its duration, and the rate falls to zero when no
    more epochs are added.
    """

    clock: Callable[[], float] = time.monotonic
    # Start, end and rows of each epoch.
    _epochs: deque[tuple[float, float, int]] = field(default_factory=deque)

    def add(self, rows: int, seconds: float) -> None:
        """Add an epoch that has just ended and took `seconds`."""
        now_s = self.clock()
        self._epochs.append((now_s - max(seconds, 0.001), now_s, rows))
        self._expire(now_s)

    def per_second(self) -> float:
        """Return the current rate."""
        now_s = self.clock()
        self._expire(now_s)
        if not self._epochs:
            return 0.0
        # Shortly after the start, the recorded epochs cover less time than the window.
        window_start_s = max(now_s - _WINDOW_SECONDS, self._epochs[0][0])
        rows_in_window = sum(
            rows * (end_s - max(start_s, window_start_s)) / (end_s - start_s)
            for start_s, end_s, rows in self._epochs
        )
        return rows_in_window / max(now_s - window_start_s, 0.001)

    def _expire(self, now_s: float) -> None:
        while self._epochs and self._epochs[0][1] <= now_s - _WINDOW_SECONDS:
            self._epochs.popleft()
