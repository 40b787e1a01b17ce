"""How much an epoch reads while there is more than it should: so much that it takes its time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

# Before anything is known, and the bounds of what can be learnt.
_FIRST_BYTES = 256 << 20
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 8 << 30
# One epoch may have been slow or fast by chance.
_LEAST_CHANGE, _MOST_CHANGE = 0.25, 4.0


class Pace:
    """The bytes that an epoch may read of a source, learnt from the epochs of before."""

    def __init__(self, target_seconds: float = 1.0) -> None:
        self.target_seconds = target_seconds
        self.bytes = _FIRST_BYTES

    def fitting(self, sizes: Iterable[int]) -> int:
        """How many of these an epoch takes: one at least, and no more than fit."""
        totals = list(accumulate(sizes))
        return max(sum(total <= self.bytes for total in totals), min(len(totals), 1))

    def learn(self, size: int, seconds: float) -> None:
        """An epoch that could have read more has read this much in this time."""
        change = self.target_seconds / max(seconds, 0.001)
        change = min(max(change, _LEAST_CHANGE), _MOST_CHANGE)
        self.bytes = int(min(max(size * change, _LEAST_BYTES), _MOST_BYTES))
