"""How many rows per second pass now, and not how many did when the last of them came."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

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
