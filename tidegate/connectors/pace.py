"""How much an epoch reads while there is more than it should: so much that it takes its time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

# Before anything is known, and the bounds of what can be learnt.
_FIRST_BYTES = 256 << 20
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 8 << 30
# One epoch may have been slow or fast by chance.
_LEAST_CHANGE, _MOST_CHANGE = 0.25, 4.0
# How much larger one of two epochs must be to tell something about both.
_TELLING = 1.2


class Pace:
    """The bytes that an epoch may read of a source, learnt from the epochs of before."""

    def __init__(self, target_seconds: float = 1.0) -> None:
        self.target_seconds = target_seconds
        self.bytes = _FIRST_BYTES
        # What an epoch takes however little it reads.
        self.fixed_seconds = 0.0
        self._last: tuple[int, float] | None = None

    def fitting(self, sizes: Iterable[int]) -> int:
        """How many of these an epoch takes: one at least, and no more than fit."""
        totals = list(accumulate(sizes))
        return max(sum(total <= self.bytes for total in totals), min(len(totals), 1))

    def learn(self, size: int, seconds: float) -> None:
        """An epoch that could have read more has read this much in this time."""
        if self._last is not None:
            self._learn_fixed(*self._last, size, seconds)
        self._last = size, seconds
        # On a slow machine an epoch takes its time anyway: half of it at least is for reading.
        reading = max(self.target_seconds - self.fixed_seconds, self.fixed_seconds)
        change = reading / max(seconds - self.fixed_seconds, 0.001)
        change = min(max(change, _LEAST_CHANGE), _MOST_CHANGE)
        self.bytes = int(min(max(size * change, _LEAST_BYTES), _MOST_BYTES))

    def _learn_fixed(self, size: int, seconds: float, size_now: int, seconds_now: float) -> None:
        """Two epochs of different sizes tell what of their time is not for reading."""
        if max(size, size_now) < _TELLING * min(size, size_now):
            return
        per_byte = max((seconds_now - seconds) / (size_now - size), 0.0)
        found = min(seconds - per_byte * size, seconds_now - per_byte * size_now)
        self.fixed_seconds += (max(found, 0.0) - self.fixed_seconds) / 2
