"""OVER along event time: a row comes out when the watermark has passed it and all its frame.

What the rows of a partition have in common lives in sorted runs, by the hash of its keys: how many
rows are gone, the states of frames that begin with the first row of all, and the last rows, as many
as later rows can see. A row waits by its time until the watermark has passed it. From then on its
place in the partition is known, as no row can come in before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidegate.operators import arrival, runs, segments
from tidegate.operators.arrival import INT
from tidegate.operators.clock import END_US
from tidegate.operators.contract import Moment, OperatorState, Output, Tables
from tidegate.operators.group_kernels import HASH, PANE, concat
from tidegate.operators.late import LateRows, split_late
from tidegate.operators.limits import NO_LIMITS, Limits
from tidegate.operators.matching import ints
from tidegate.operators.over_functions import OverSpec
from tidegate.operators.over_history import ENDS, History, Reach
from tidegate.operators.over_step import advance
from tidegate.operators.runs import RunLog
from tidegate.operators.segments import SegmentLog
from tidegate.operators.time_to_live import TimeToLive
from tidegate.state.codec import schema_text


@dataclass(frozen=True)
class Over:
    """The pane of a row is the moment at which the watermark has passed its time.

    The first column of the one order is that time. `closes`: a column says from when on no row of
    its partition can come.
    """

    spec: OverSpec
    closes: bool = False
    ttl_us: int | None = None
    late_rows: LateRows | None = None
    limits: Limits = NO_LIMITS
    name: str = "over"

    def __post_init__(self) -> None:
        assert len(self.spec.sorts) == 1, "other orders are other operators"

    # Shapes

    @property
    def output(self) -> pa.Schema:
        return self.spec.row

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    @property
    def _content(self) -> list[pa.Field]:
        spec = self.spec
        hidden = [pa.field(PANE, INT), pa.field(HASH, INT)]
        hidden += [pa.field(ENDS, INT)] if self.closes else []
        inner = [*spec.order_fields, *spec.argument_fields, *spec.column_fields]
        return [*hidden, *spec.key_fields, *inner]

    @property
    def arrived(self) -> pa.Schema:
        return arrival.arrived(self._content)

    @property
    def waiting(self) -> pa.Schema:
        """A row that waits for the watermark, with its place among all that came."""
        return arrival.kept(self._content)

    @property
    def packed(self) -> tuple[tuple[pa.Schema, ...], ...]:
        late = self.late_rows
        return ((late.packed if late is not None else self.arrived,),)

    @cached_property
    def reach(self) -> Reach:
        return Reach.of(self.spec)

    @cached_property
    def history(self) -> History:
        return History(self.spec, self.reach, self.closes)

    @property
    def time_to_live(self) -> TimeToLive | None:
        """Partitions that close go with the watermark."""
        if self.ttl_us is None or self.closes:
            return None
        return TimeToLive(self.ttl_us, tuple(self.spec.key_fields))

    def stored_as(self) -> tuple[str, ...]:
        formats = (runs.FORMAT, segments.FORMAT, schema_text(self.waiting))
        return (*formats, *(schema_text(schema) for schema in self.history.schemas))

    # Where the rows are

    def lift(self, port: int, rows: pa.Table) -> Tables:
        if self.late_rows is not None:
            return (self.late_rows.select(rows),)
        return (self._select(rows),)

    def shrink(self, port: int, parts: Sequence[Tables]) -> Tables:
        return concat(parts)

    def _select(self, rows: pa.Table) -> pa.Table:
        return arrival.select(rows, self.arrived, self.spec.key_fields)

    # Where the state is

    def step(self, state: OperatorState, inputs: list[list[Tables]], moment: Moment) -> Output:
        output, log = Output(), self._log(state)
        waiting = SegmentLog(state, (self.waiting,), None, "waiting")
        self._forget(log, moment)
        rows = arrival.numbered(state, self._on_time(state, inputs[0], moment, output))
        rows = rows.select(self.waiting.names)
        self._touch(log, rows, moment)
        if moment.after_us is None:
            rest = rows
        else:
            due, ahead, rest = self._split(waiting, rows, moment.after_us)
            output.main += self._results(log, due, ahead, moment)
        if rest.num_rows:
            waiting.append((rest,))
        self.limits.enforce_both(self.name, log, waiting, state.gauges)
        return output

    def _log(self, state: OperatorState) -> RunLog:
        """What is known of partitions; with a time to live, first when they were touched."""
        live, schemas = self.time_to_live, self.history.schemas
        if live is not None:
            return RunLog(
                state, (live.schema, *schemas), lambda t: (live.latest(t[0]), *t[1:]), due=live.due
            )
        due = (lambda table: ints(table, PANE)) if self.history.falls else None
        return RunLog(state, schemas, lambda tables: tables, due=due)

    def _on_time(
        self, state: OperatorState, parts: list[Tables], moment: Moment, output: Output
    ) -> pa.Table:
        """Rows that are not late; late ones are counted, and kept if asked."""
        rows, late = split_late(self.packed[0][0], parts, state, moment)
        if self.late_rows is None:
            return rows
        output.late += self.late_rows.of_windows(late, None, moment.before_us)
        return self._select(rows)

    def _split(
        self, waiting: SegmentLog, rows: pa.Table, after: int
    ) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Rows whose frames the watermark has passed, those they may see, and new ones to keep."""
        limit = self._limit(after)
        known = [part[0] for part in waiting.load(None, after + 1)]
        waiting.drop_before(limit + 1)
        panes = ints(rows, PANE)
        passed = pa.concat_tables(
            [self.waiting.empty_table(), *known, rows.filter(pa.array(panes <= after))]
        )
        due = ints(passed, PANE) <= limit
        rest = rows.filter(pa.array(panes > limit))
        return passed.filter(pa.array(due)), passed.filter(pa.array(~due)), rest

    def _limit(self, after: int) -> int:
        """Rows that were passed up to then have all rows of their frames by value."""
        return after if after == END_US else after - self.reach.time_ahead

    def _results(
        self, log: RunLog, due: pa.Table, ahead: pa.Table, moment: Moment
    ) -> list[pa.Table]:
        assert moment.after_us is not None, "the watermark has passed something"
        ended = moment.ended
        found: list[pa.Table] = []
        waits = moment.just_ended and self.reach.rows_ahead > 0
        if due.num_rows or waits:
            touches, known = self._load(log, ints(due, HASH), whole=waits)
            limit = self._limit(moment.after_us)
            rows, kept = advance(self.history, known, due, ahead, limit, log.state, ended)
            found = [rows] if rows.num_rows else []
            if not ended:
                hashes = np.unique(np.concatenate([ints(known[0], HASH), ints(due, HASH)]))
                log.replace(hashes, (*touches, *kept))
        if ended:
            # Whatever comes now is late.
            log.clear()
        elif self.history.falls and self.time_to_live is None:
            log.drop_due(moment.after_us)
        return found

    def _load(self, log: RunLog, hashes: np.ndarray, whole: bool) -> tuple[Tables, Tables]:
        """Touches if there are any, and what is known of partitions."""
        tables = log.everything() if whole else log.load(hashes)
        return ((), tables) if self.time_to_live is None else (tables[:1], tables[1:])

    # Forgetting

    def _touch(self, log: RunLog, rows: pa.Table, moment: Moment) -> None:
        live = self.time_to_live
        if live is not None and rows.num_rows:
            nothing = (schema.empty_table() for schema in self.history.schemas)
            log.append((live.touches([rows], moment.now_us), *nothing))

    def _forget(self, log: RunLog, moment: Moment) -> None:
        live = self.time_to_live
        if live is None:
            return
        hashes = ints(live.expired(log, moment.now_us), HASH)
        if not len(hashes):
            return
        (touches,), known = self._load(log, hashes, whole=False)
        alive = touches.filter(pa.array(live.due(touches) > moment.now_us))
        log.replace(hashes, (alive, *self.history.of(known, live.has_key(alive, known[0]))))
