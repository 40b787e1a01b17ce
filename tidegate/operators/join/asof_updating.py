"""ASOF joins whose result changes, because no watermark proves it, or because rows are retracted.

All rows of a key lie together. An epoch reads the keys it touches and tells what the join of their
rows was and is. Where both inputs end, it tells once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import DELETE, INSERT, OP
from tidegate.errors import unsupported_error
from tidegate.operators.aggregate.groups import HASH, WEIGHT, concat
from tidegate.operators.join.asof import NEAREST, NOTHING, AsofBounds, as_numbers, measurable
from tidegate.operators.kernels.keys import canonical
from tidegate.operators.kernels.matching import Ints, Matching, columns_of, ints
from tidegate.operators.kernels.ordering import BY_ARRIVAL, arrived, sortable
from tidegate.operators.kernels.weighted_rows import WeightedRows, net, same_keys
from tidegate.operators.operator import (
    NO_LIMITS,
    EpochTime,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    with_op,
)
from tidegate.operators.store.sorted_runs import FORMAT, SortedRunStore, TimeToLive
from tidegate.state.codec import schema_text

# What rows are near by.
VALUE = "_value"
_ORDERED = WeightedRows(ordered=True)


@dataclass(frozen=True)
class UpdatingAsofJoin:
    """`value` is the type of what both sides are near by.

    Rows come with a weight: 1 adds a row, −1 retracts one. After `ttl_us` of processing time
    without a row a key is forgotten, on both sides. `at_end` emits everything once, when both
    inputs have ended.
    """

    matching: Matching
    nearest: AsofBounds
    value: pa.DataType
    columns: tuple[tuple[pa.DataType, ...], tuple[pa.DataType, ...]]
    how: str
    ttl_us: int | None = None
    at_end: bool = False
    with_op: bool = True
    limits: Limits = NO_LIMITS
    name: str = "asof_join"
    late: pa.Schema | None = None

    def __post_init__(self) -> None:
        assert self.how in ("INNER", "LEFT"), self.how
        if not sortable(self.value):
            hint = "compare times, numbers or texts."
            raise unsupported_error(f"an ASOF join by {self.value} is not supported", hint)
        reach = (self.nearest.lower, self.nearest.upper)
        by_distance = self.nearest.direction == NEAREST or None not in reach or any(reach)
        if by_distance and not measurable(self.value):
            hint = "compare whole numbers, DOUBLE or TIMESTAMP, or leave the distance out."
            message = f"how far apart values of {self.value} are is not supported in an ASOF join"
            raise unsupported_error(message, hint)

    def stored(self, port: int) -> pa.Schema:
        """Rows of the right lie in the order in which they came, which counts where they tie."""
        hidden = [pa.field(HASH, pa.int64()), pa.field(VALUE, self.value)]
        rows = [*self.matching.fields, *columns_of(self.columns[port])]
        return pa.schema([*hidden, *rows, pa.field(WEIGHT, pa.int64())])

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        return (self.stored(0),), (arrived(self.stored(1)),)

    @property
    def time_to_live(self) -> TimeToLive | None:
        return None if self.ttl_us is None else TimeToLive(self.ttl_us, (*self.matching.fields,))

    @property
    def _row(self) -> pa.Schema:
        return pa.schema(columns_of(self.columns[0] + self.columns[1]))

    @property
    def output(self) -> pa.Schema:
        return self._row.append(pa.field(OP, pa.string())) if self.with_op else self._row

    def stored_as(self) -> tuple[str, ...]:
        return (FORMAT, *(schema_text(self.stored(port)) for port in (0, 1)))

    # Where the rows are

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        schema = self.shuffle_schemas[port][0]
        keys = {name: canonical(rows.column(name)) for name in self.matching.names}
        columns = [keys[name] if name in keys else rows.column(name) for name in schema.names]
        table = pa.table(columns, schema=schema)
        if port == 1 or self.how == "INNER":
            there = pc.is_valid(table.column(VALUE))
            table = table.filter(pc.and_(there, pa.array(self.matching.matchable(table))))
        return (table,)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        return concat(parts)

    # Where the state is

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        live = self.time_to_live
        log = self._log(state)
        if live is not None:
            live.forget(log, epoch_time.now_us)
        came = [self._came(port, inputs[port]) for port in (0, 1)]
        output = StepOutput()
        if any(table.num_rows for table in came):
            old = same_keys(log, came, self.matching.names)
            new = self._known(state, old, came)
            if not self.at_end:
                output.main += self._changes(old, new)
            touches = () if live is None else (live.touches(new, epoch_time.now_us),)
            log.append((*touches, *new))
        if self.at_end and epoch_time.just_ended:
            output.main += self._all(*log.everything()[-2:])
        log.save()
        state.count_unknown(0)
        state.gauges["groups"] = state.gauges["rows"]
        self.limits.check(self.name, state.gauges)
        return output

    def _log(self, state: KeyGroupState) -> SortedRunStore:
        rows, live = (self.stored(0), self.stored(1)), self.time_to_live
        if live is None:
            return SortedRunStore(state, rows, self._combine)
        return SortedRunStore(state, (live.schema, *rows), self._combine, due=live.due)

    def _combine(self, tables: Tables) -> Tables:
        rows = (net(tables[-2]), _ORDERED.net(tables[-1]))
        live = self.time_to_live
        return rows if live is None else (live.latest(tables[0]), *rows)

    def _came(self, port: int, parts: list[Tables]) -> pa.Table:
        """What came, as it arrived."""
        if not parts:
            return self.stored(port).empty_table()
        (rows,) = concat(parts)
        if port == 0:
            return net(rows)
        rows = rows.sort_by(BY_ARRIVAL)
        return _ORDERED.net(rows.select(self.stored(1).names))

    def _known(
        self, state: KeyGroupState, old: Sequence[pa.Table], came: Sequence[pa.Table]
    ) -> list[pa.Table]:
        """What came, without retractions of what is not there."""
        left, unknown = WeightedRows().known(old[0], came[0])
        right, more = _ORDERED.known(old[1], came[1])
        state.count_unknown(unknown + more)
        return [left, right]

    # What comes out

    def _changes(self, old: Sequence[pa.Table], new: Sequence[pa.Table]) -> list[pa.Table]:
        """What the join of these keys was, and what it is now."""
        now = [pa.concat_tables(pair) for pair in zip(old, new, strict=True)]
        was, there = self._joined(old[0], old[1], -1), self._joined(net(now[0]), now[1], 1)
        rows = net(pa.concat_tables([was, there]))
        weights = ints(rows, WEIGHT)
        gone, came = np.maximum(-weights, 0), np.maximum(weights, 0)
        out = [(self._repeated(rows, gone), DELETE), (self._repeated(rows, came), INSERT)]
        return [with_op(table, op) for table, op in out if table.num_rows]

    def _all(self, left: pa.Table, right: pa.Table) -> list[pa.Table]:
        rows = self._joined(left, right, 1)
        table = self._repeated(rows, ints(rows, WEIGHT))
        if not table.num_rows:
            return []
        return [with_op(table, INSERT) if self.with_op else table]

    def _repeated(self, rows: pa.Table, counts: Ints) -> pa.Table:
        places = np.repeat(np.arange(rows.num_rows), counts)
        return rows.select(self._row.names).take(pa.array(places))

    def _joined(self, left: pa.Table, right: pa.Table, sign: int) -> pa.Table:
        """Every row of the left with the nearest of the right, and its weight."""
        right = _ORDERED.present(right)
        ids, others, _ = self.matching.key_ids(left, right)
        ids = np.where(pc.is_valid(left.column(VALUE)).to_numpy(zero_copy_only=False), ids, -1)
        values = as_numbers(left.column(VALUE), right.column(VALUE))
        found = self.nearest.places(ids, values[0], others, values[1])
        has = found != NOTHING
        if self.how == "INNER":
            left, found = left.filter(pa.array(has)), found[has]
            has = np.ones(len(found), np.bool_)
        theirs = [item.name for item in columns_of(self.columns[1])]
        taken = right.select(theirs).take(pa.array(found, mask=~has))
        ours = [left.column(item.name) for item in columns_of(self.columns[0])]
        weights = pa.array(sign * ints(left, WEIGHT))
        schema = self._row.append(pa.field(WEIGHT, pa.int64()))
        return pa.table([*ours, *taken.columns, weights], schema=schema)
