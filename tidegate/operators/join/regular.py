"""Joins whose result changes: rows may be retracted, and a row without a match may get one.

All rows of a key lie together. An epoch reads the keys it touches and tells how the join of their
rows changed: pairs with new rows by multiplying the number of rows on both sides, rows without a
match by comparing what had none before with what has none now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.columns import DELETE, INSERT, OP
from tidegate.operators.aggregate.groups import HASH, PANE, WEIGHT, concat
from tidegate.operators.kernels.keys import canonical
from tidegate.operators.kernels.matching import (
    TIME,
    TRACKED,
    Ints,
    Matching,
    columns_of,
    ints,
    output_kinds,
)
from tidegate.operators.kernels.weighted_rows import WeightedRows, net, same_keys
from tidegate.operators.operator import (
    NO_LIMITS,
    EpochTime,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
)
from tidegate.operators.store.sorted_runs import FORMAT, SortedRunStore, TimeToLive
from tidegate.state.codec import schema_text


@dataclass(frozen=True)
class RegularJoin:
    """`retracts` says whether rows come with a weight: 1 adds a row, −1 retracts one.

    With `step_us` rows have times, and are late and forgotten by the watermark, as in a join that
    time bounds. After `ttl_us` of processing time without a row a key is forgotten, on both sides.
    `at_end` emits everything once, when both inputs have ended.
    """

    matching: Matching
    columns: tuple[tuple[pa.DataType, ...], tuple[pa.DataType, ...]]
    how: str
    retracts: bool = False
    step_us: int | None = None
    ttl_us: int | None = None
    at_end: bool = False
    with_op: bool = True
    limits: Limits = NO_LIMITS
    name: str = "regular_join"
    late: pa.Schema | None = None

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        return tuple((self.stored(port),) for port in (0, 1))

    def stored(self, port: int) -> pa.Schema:
        """The pane of a row is the moment from which nothing can match it."""
        hidden = [pa.field(name, pa.int64()) for name in (PANE, HASH, TIME)]
        rows = [*self.matching.fields, *columns_of(self.columns[port])]
        return pa.schema([*hidden, *rows, pa.field(WEIGHT, pa.int64())])

    @property
    def time_to_live(self) -> TimeToLive | None:
        return None if self.ttl_us is None else TimeToLive(self.ttl_us, (*self.matching.fields,))

    @property
    def output(self) -> pa.Schema:
        fields = columns_of(output_kinds(self.columns, self.how))
        return pa.schema([*fields, pa.field(OP, pa.string())] if self.with_op else fields)

    def stored_as(self) -> tuple[str, ...]:
        return (FORMAT, *(schema_text(self.stored(port)) for port in (0, 1)))

    # Where the rows are

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        """The pane comes as the time of a row and becomes the moment of its last use."""
        times = rows.column(PANE)
        weights = rows.column(WEIGHT) if self.retracts else pa.array(np.ones(rows.num_rows, int))
        keys = [canonical(rows.column(name)) for name in self.matching.names]
        own = [rows.column(item.name) for item in columns_of(self.columns[port])]
        last = self._last_use(port, ints(rows, PANE))
        hidden = [pa.array(last), rows.column(HASH), times]
        table = pa.table([*hidden, *keys, *own, weights], schema=self.stored(port))
        if not TRACKED[self.how][port]:
            table = table.filter(pa.array(self.matching.matchable(table)))
        return (self._net(table),)

    def _last_use(self, port: int, times: Ints) -> Ints:
        """When nothing can match rows any more, nor retract them, nor ask what they have matched.

        A row that is there by its matches may get another when the first is past: so long as it is
        kept, those that match it are kept too.
        """
        if self.step_us is None:
            return times
        reaches = -self.matching.lower_us, self.matching.upper_us
        reach = reaches[port]
        if TRACKED[self.how][1 - port]:
            reach += max(reaches[1 - port], 0)
        return times + (max(reach, 0) if self.retracts else reach) + self.step_us

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        return (self._net(concat(parts)[0]),)

    def _net(self, rows: pa.Table) -> pa.Table:
        """Each row once, with how many of it there are; what cancelled out is gone."""
        return net(rows) if self.retracts else rows

    # Where the state is

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        log, live = self._log(state), self.time_to_live
        if live is not None:
            live.forget(log, epoch_time.now_us)
        came = [self._on_time(state, port, inputs[port], epoch_time) for port in (0, 1)]
        output = StepOutput()
        if any(table.num_rows for table in came):
            silent = self.at_end and not self.retracts
            old = [] if silent else same_keys(log, came, self.matching.names)
            new = self._known(state, old, came)
            if not self.at_end:
                output.main += self._changes(old, new)
            touches = () if live is None else (live.touches(new, epoch_time.now_us),)
            log.append((*touches, *new))
        if self.at_end and epoch_time.just_ended:
            left, right = log.everything()[-2:]
            output.main += self._emitted(self._all(left, right))
        self._drop_unused(log, epoch_time)
        log.save()
        if self.retracts:
            state.count_unknown(0)
        state.gauges["groups"] = state.gauges["rows"]
        self.limits.check(self.name, state.gauges)
        return output

    def _log(self, state: KeyGroupState) -> SortedRunStore:
        rows = (self.stored(0), self.stored(1))
        live = self.time_to_live
        if live is not None:
            return SortedRunStore(state, (live.schema, *rows), self._combine, due=live.due)
        if self.step_us is not None:
            return SortedRunStore(state, rows, self._combine, due=lambda t: ints(t, PANE), timed=2)
        return SortedRunStore(state, rows, self._combine)

    def _combine(self, tables: Tables) -> Tables:
        rows = tuple(self._net(table) for table in tables[-2:])
        live = self.time_to_live
        return rows if live is None else (live.latest(tables[0]), *rows)

    def _on_time(
        self, state: KeyGroupState, port: int, parts: list[Tables], epoch_time: EpochTime
    ) -> pa.Table:
        rows = self._net(concat(parts)[0]) if parts else self.stored(port).empty_table()
        if self.step_us is None or epoch_time.previous_watermark_us is None or not rows.num_rows:
            return rows
        late = ints(rows, TIME) + self.step_us <= epoch_time.previous_watermark_us
        state.count_late(int(np.abs(ints(rows, WEIGHT))[late].sum()))
        return rows.filter(pa.array(~late)) if late.any() else rows

    def _known(
        self, state: KeyGroupState, old: list[pa.Table], came: list[pa.Table]
    ) -> list[pa.Table]:
        """What came, without retractions of what is not there."""
        if not self.retracts:
            return came
        pairs = [WeightedRows().known(o, n) for o, n in zip(old, came, strict=True)]
        state.count_unknown(sum(unknown for _, unknown in pairs))
        return [rows for rows, _ in pairs]

    def _drop_unused(self, log: SortedRunStore, epoch_time: EpochTime) -> None:
        """Rows that nothing can match any more have said all."""
        if self.step_us is not None and epoch_time.watermark_us is not None:
            log.drop_due(epoch_time.watermark_us)

    # What changed

    def _changes(self, old: list[pa.Table], new: list[pa.Table]) -> list[pa.Table]:
        now = [self._net(pa.concat_tables([o, n])) for o, n in zip(old, new, strict=True)]
        if self.how == "SEMI" and not self.with_op:
            return self._emitted(self._first_matches(old, new, now))
        found = []
        if self.how not in ("SEMI", "ANTI"):
            found += self._pairs(new[0], old[1]) + self._pairs(now[0], new[1])
        for port in (0, 1):
            if TRACKED[self.how][port]:
                found += self._by_match(port, old[port], old[1 - port], -1)
                found += self._by_match(port, now[port], now[1 - port], 1)
        return self._emitted(found)

    def _first_matches(
        self, old: Sequence[pa.Table], new: Sequence[pa.Table], now: Sequence[pa.Table]
    ) -> list[pa.Table]:
        """The rows of the left that have a match now and had none before."""
        matched = np.zeros(old[0].num_rows, np.bool_)
        matched[self.matching.pairs(old[0], old[1])[0]] = True
        alone = old[0].filter(pa.array(~matched))
        return self._by_match(0, alone, new[1], 1) + self._by_match(0, new[0], now[1], 1)

    def _all(self, left: pa.Table, right: pa.Table) -> list[pa.Table]:
        """The whole join."""
        found = self._pairs(left, right) if self.how not in ("SEMI", "ANTI") else []
        for port, rows, others in ((0, left, right), (1, right, left)):
            if TRACKED[self.how][port]:
                found += self._by_match(port, rows, others, 1)
        return found

    def _pairs(self, left: pa.Table, right: pa.Table) -> list[pa.Table]:
        ours, theirs = self.matching.pairs(left, right)
        if not len(ours):
            return []
        one, other = left.take(pa.array(ours)), right.take(pa.array(theirs))
        return [self._rows(one, other, ints(one, WEIGHT) * ints(other, WEIGHT))]

    def _by_match(self, port: int, rows: pa.Table, others: pa.Table, sign: int) -> list[pa.Table]:
        """The rows of a side that are there because they have no match, or because they have."""
        rows = rows.filter(pa.array(ints(rows, WEIGHT) > 0))
        others = others.filter(pa.array(ints(others, WEIGHT) > 0))
        sides = (rows, others) if port == 0 else (others, rows)
        matched = np.zeros(rows.num_rows, np.bool_)
        matched[self.matching.pairs(*sides)[port]] = True
        rows = rows.filter(pa.array(matched if self.how == "SEMI" else ~matched))
        if not rows.num_rows:
            return []
        left, right = (rows, None) if port == 0 else (None, rows)
        return [self._rows(left, right, sign * ints(rows, WEIGHT))]

    def _rows(self, left: pa.Table | None, right: pa.Table | None, weights: Ints) -> pa.Table:
        """Rows as they come out, with their weight; a side that is not there is NULL."""
        columns: list[pa.Array] = []
        for port, table in enumerate((left, right)):
            if port == 1 and self.how in ("SEMI", "ANTI"):
                break
            for item in columns_of(self.columns[port]):
                nothing = pa.nulls(len(weights), item.type)
                columns.append(nothing if table is None else table.column(item.name))
        columns.append(pa.array(weights))
        fields = columns_of(output_kinds(self.columns, self.how))
        return pa.table(columns, schema=pa.schema([*fields, pa.field(WEIGHT, pa.int64())]))

    def _emitted(self, found: list[pa.Table]) -> list[pa.Table]:
        """What is retracted, then what is new."""
        if not found:
            return []
        rows = pa.concat_tables(found)
        if self.with_op:
            rows = net(rows)
        weights = ints(rows, WEIGHT)
        rows = rows.drop_columns([WEIGHT])
        places = np.arange(rows.num_rows)
        gone = np.repeat(places, np.maximum(-weights, 0))
        came = np.repeat(places, np.maximum(weights, 0))
        if not len(gone) + len(came):
            return []
        assert self.with_op or not len(gone), "a join that only adds retracts nothing"
        out = rows.take(pa.array(np.concatenate([gone, came])))
        if self.with_op:
            ops = pa.array([DELETE] * len(gone) + [INSERT] * len(came), pa.string())
            out = out.append_column(OP, ops)
        return [out]
