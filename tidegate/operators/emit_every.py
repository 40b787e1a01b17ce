"""EMIT EVERY: what changes waits, and comes out at most so often.

What arrives in an epoch is appended to what waits, without reading it, so an epoch costs what it
brings. Some of it comes out before its time: the last words of a group that is about to be
forgotten, because its window has closed or its time to live is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tidegate.operators.contract import Moment, OperatorState, Tables
from tidegate.operators.group_kernels import PANE
from tidegate.operators.matching import Ints, Mask, ints
from tidegate.operators.parts import PartLog


class Waiting:
    """The changes of one key group that have not come out; `schemas` are those of a change."""

    def __init__(
        self,
        state: OperatorState,
        every_us: int,
        schemas: Sequence[pa.Schema],
        combine: Callable[[Tables], Tables],
    ) -> None:
        self.state, self.every_us = state, every_us
        due = lambda table: ints(table, PANE)  # noqa: E731
        self.log = PartLog(state, schemas, combine, due, name="waiting")

    def add(self, new: Tables) -> None:
        if any(table.num_rows for table in new):
            self.log.append(new)

    def of_keys(self, hashes: Ints) -> Tables:
        """What waits of these keys, and of some others; it goes on waiting."""
        return self.log.load(self.log.touched_by(hashes))

    def is_time(self, moment: Moment) -> bool:
        last = self.state.meta.get("emitted_us")
        return last is None or moment.now_us >= last + self.every_us or moment.ended

    def emitted(self, now_us: int) -> None:
        """Note that something came out because it was time."""
        self.state.meta["emitted_us"] = now_us

    def take_all(self) -> Tables:
        """All that waits; nothing waits afterwards."""
        return self._take(range(len(self.log.parts)), lambda t: np.ones(t.num_rows, np.bool_))

    def take_closed(self, limit_us: int) -> Tables:
        """What belongs to windows that end by then."""
        return self._take(self.log.due_by(limit_us), lambda table: ints(table, PANE) <= limit_us)

    def take_keys(self, hashes: Ints, chosen: Callable[[pa.Table], Mask]) -> Tables:
        """What is chosen, of these keys."""
        return self._take(self.log.touched_by(hashes), chosen)

    def _take(self, numbers: Sequence[int], chosen: Callable[[pa.Table], Mask]) -> Tables:
        tables = self.log.load(numbers)
        if not any(table.num_rows for table in tables):
            return tables
        masks = [chosen(table) for table in tables]
        pairs = list(zip(tables, masks, strict=True))
        self.log.replace(numbers, tuple(table.filter(pa.array(~mask)) for table, mask in pairs))
        return tuple(table.filter(pa.array(mask)) for table, mask in pairs)
