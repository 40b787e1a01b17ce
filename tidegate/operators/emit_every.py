"""EMIT EVERY: what changes waits, and comes out at most so often.

What arrives in an epoch is appended to what waits, without reading it, so an epoch costs what it
brings. Some of it comes out before its time: the last words of a group that is about to be
forgotten, because its window has closed or its time to live is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from tidegate.operators.contract import Moment, OperatorState, Tables
from tidegate.operators.group_kernels import PANE
from tidegate.operators.matching import Ints, Mask, ints
from tidegate.operators.runs import RunLog


class Waiting:
    """The changes of one key group that have not come out; `schemas` are those of a change.

    `closes`: changes belong to windows, and the pane says when theirs closes.
    """

    def __init__(
        self,
        state: OperatorState,
        every_us: int,
        schemas: Sequence[pa.Schema],
        combine: Callable[[Tables], Tables],
        closes: bool,
    ) -> None:
        self.state, self.every_us = state, every_us
        due = (lambda table: ints(table, PANE)) if closes else None
        self.log = RunLog(state, schemas, combine, due=due, name="waiting")

    def add(self, new: Tables) -> None:
        if any(table.num_rows for table in new):
            self.log.append(new)

    def of_keys(self, hashes: Ints) -> Tables:
        """What waits of these keys; it goes on waiting."""
        return self.log.load(hashes)

    def is_time(self, moment: Moment) -> bool:
        last = self.state.meta.get("emitted_us")
        return last is None or moment.now_us >= last + self.every_us or moment.ended

    @property
    def due_us(self) -> int | None:
        """When what waits is to come out; None if nothing does."""
        last = self.state.meta.get("emitted_us")
        return last + self.every_us if last is not None and self.log.rows else None

    def emitted(self, now_us: int) -> None:
        """Note that something came out because it was time."""
        self.state.meta["emitted_us"] = now_us

    def take_all(self) -> Tables:
        """All that waits; nothing waits afterwards."""
        tables = self.log.everything()
        self.log.clear()
        return tables

    def take_closed(self, limit_us: int) -> Tables:
        """What belongs to windows that end by then."""
        tables = self.log.load(self.log.due_hashes(limit_us))
        self.log.drop_due(limit_us)
        return tuple(table.filter(pa.array(ints(table, PANE) <= limit_us)) for table in tables)

    def take_keys(self, hashes: Ints, chosen: Callable[[pa.Table], Mask]) -> Tables:
        """What is chosen, of these keys."""
        return self._take(hashes, chosen)

    def _take(self, hashes: Ints, chosen: Callable[[pa.Table], Mask]) -> Tables:
        tables = self.log.load(hashes)
        if not any(table.num_rows for table in tables):
            return tables
        masks = [chosen(table) for table in tables]
        pairs = list(zip(tables, masks, strict=True))
        self.log.replace(hashes, tuple(table.filter(pa.array(~mask)) for table, mask in pairs))
        return tuple(table.filter(pa.array(mask)) for table, mask in pairs)
