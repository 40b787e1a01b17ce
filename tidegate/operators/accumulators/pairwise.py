"""Merging the states of a group two by two, for aggregates whose merge is a formula of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tidegate.operators.accumulators.kernels import Doubles
from tidegate.operators.keys import Ids

# A state of several groups: the number of values first, then what is kept of them.
State = Sequence[Doubles]


def merge_pairwise(
    states: State, ids: Ids, groups: int, merge: Callable[[State, State], State]
) -> list[Doubles]:
    """One state per group: neighbours are merged until one is left, so that little is rounded."""
    order = np.argsort(ids, kind="stable")
    order = order[states[0][order] > 0]
    kept, left = [column[order] for column in states], ids[order]
    while True:
        turns = np.arange(len(left)) - np.searchsorted(left, left)
        seconds = np.flatnonzero(turns % 2 == 1)
        if not len(seconds):
            break
        firsts = seconds - 1
        both = merge([column[firsts] for column in kept], [column[seconds] for column in kept])
        for column, merged in zip(kept, both, strict=True):
            column[firsts] = merged
        stay = turns % 2 == 0
        kept, left = [column[stay] for column in kept], left[stay]
    result = [np.zeros(groups) for _ in states]
    for column, values in zip(result, kept, strict=True):
        column[left] = values
    return result
