"""The first rows of each window, once: when the watermark has passed its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.columns import INSERT, OP
from tidegate.operators.arrival import INT, numbered
from tidegate.operators.contract import Moment, OperatorState, Output, Tables, with_op
from tidegate.operators.group_kernels import PANE, SEEN, concat
from tidegate.operators.late import LateRows, split_late
from tidegate.operators.limits import NO_LIMITS, Limits
from tidegate.operators.matching import ints
from tidegate.operators.ranking import Partitions
from tidegate.operators.segments import FORMAT, SegmentLog
from tidegate.state.codec import schema_text


@dataclass(frozen=True)
class WindowTopN:
    """The pane of a row is the moment at which its window closes, and with it comes the result.

    Rows only come, so that those beyond the limit can be forgotten. `start` is the column with the
    start of a window, for late rows.
    """

    ranking: Partitions
    with_op: bool = False
    late_rows: LateRows | None = None
    limits: Limits = NO_LIMITS
    start: str | None = None
    name: str = "window_top_n"

    @property
    def output(self) -> pa.Schema:
        return pa.schema(
            [*self.ranking.row, *([pa.field(OP, pa.string())] if self.with_op else [])]
        )

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    @property
    def _lifted(self) -> pa.Schema:
        """Rows that come in; SEEN counts those that were left behind where rows are read."""
        return self.ranking.arrived.append(pa.field(SEEN, INT))

    @property
    def packed(self) -> tuple[tuple[pa.Schema, ...], ...]:
        late = self.late_rows
        return ((late.packed if late is not None else self._lifted,),)

    def stored_as(self) -> tuple[str, ...]:
        return (FORMAT, schema_text(self.ranking.kept))

    # Where the rows are

    def lift(self, port: int, rows: pa.Table) -> Tables:
        if self.late_rows is not None:
            return (self.late_rows.select(rows),)
        return (self.ranking.contenders(self.ranking.select(rows, self._lifted)),)

    def shrink(self, port: int, parts: Sequence[Tables]) -> Tables:
        if self.late_rows is not None:
            return concat(parts)
        return (self.ranking.contenders(concat(parts)[0]),)

    # Where the state is

    def step(self, state: OperatorState, inputs: list[list[Tables]], moment: Moment) -> Output:
        log = SegmentLog(state, (self.ranking.kept,), self._combine)
        output = Output()
        rows = numbered(state, self._on_time(state, inputs[0], moment, output))
        rows = rows.select(self.ranking.kept.names)
        after = moment.after_us
        if after is not None:
            closes = ints(rows, PANE) <= after
            parts = [part[0] for part in log.load(None, after + 1)]
            output.main += self._results([*parts, rows.filter(pa.array(closes))])
            log.drop_before(after + 1)
            rows = rows.filter(pa.array(~closes))
        if rows.num_rows:
            log.append((rows,))
        self.limits.enforce(self.name, log, state.gauges)
        return output

    def _combine(self, tables: Tables) -> Tables:
        return (self.ranking.leading(tables[0]),)

    def _on_time(
        self, state: OperatorState, parts: list[Tables], moment: Moment, output: Output
    ) -> pa.Table:
        """Rows of open windows that can win; late ones are counted, and kept if asked."""
        rows, late = split_late(self.packed[0][0], parts, state, moment)
        if self.late_rows is None:
            return self.ranking.contenders(rows)
        output.late += self.late_rows.of_windows(late, self.start, moment.before_us)
        return self.ranking.contenders(self.ranking.select(rows, self._lifted))

    def _results(self, parts: list[pa.Table]) -> list[pa.Table]:
        """What closes, in the order of time: partitions are numbered as they are first seen."""
        rows = pa.concat_tables(parts)
        if not rows.num_rows:
            return []
        order = np.argsort(ints(rows, PANE), kind="stable")
        result = self.ranking.result(rows.take(pa.array(order))).select(self.ranking.row.names)
        return [with_op(result, INSERT) if self.with_op else result]
