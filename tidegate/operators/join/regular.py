"""Regular joins: an updating join of two changelogs, with or without bounds on time.

Rows are stored by key. An epoch loads the keys of its rows and emits the changes of their join: for
pairs, the products of weights that involve new rows; for rows without a match, the difference
between those without a match before and after the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.columns import DELETE, HASH, INSERT, OP, STORE_TIME, WEIGHT
from tidegate.operators.kernels.arrays import Ints, concat, int_column
from tidegate.operators.kernels.join_condition import (
    TIME,
    TRACKS_MATCHES,
    JoinCondition,
    numbered_fields,
    output_types,
)
from tidegate.operators.kernels.keys import canonicalize
from tidegate.operators.kernels.weighted_rows import WeightedRows, consolidate
from tidegate.operators.operator import (
    NO_LIMITS,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    TimeProgress,
)
from tidegate.operators.store.sorted_runs import FORMAT, SortedRunStore, TimeToLive, load_same_keys
from tidegate.state.codec import schema_text


@dataclass(frozen=True)
class RegularJoin:
    """An updating join.

    With `retracts`, rows have a weight: 1 adds a row, −1 retracts it. With `close_delay_us`, rows
    have times, and the watermark drops late and expired rows as in an interval join. With `ttl_us`,
    a key without new rows on either side expires after that much processing time. With `at_end`,
    the join is emitted once, when both inputs have ended.
    """

    condition: JoinCondition
    columns: tuple[tuple[pa.DataType, ...], tuple[pa.DataType, ...]]
    how: str
    retracts: bool = False
    close_delay_us: int | None = None
    ttl_us: int | None = None
    at_end: bool = False
    with_op: bool = True
    limits: Limits = NO_LIMITS
    panes = None
    name: str = "regular_join"
    late: pa.Schema | None = None

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        return tuple((self.stored_schema(port),) for port in (0, 1))

    def stored_schema(self, port: int) -> pa.Schema:
        """Return the schema of a row; STORE_TIME is the watermark from which it is not needed."""
        hidden = [pa.field(name, pa.int64()) for name in (STORE_TIME, HASH, TIME)]
        columns = [*self.condition.fields, *numbered_fields(self.columns[port])]
        return pa.schema([*hidden, *columns, pa.field(WEIGHT, pa.int64())])

    @property
    def time_to_live(self) -> TimeToLive | None:
        return None if self.ttl_us is None else TimeToLive(self.ttl_us, (*self.condition.fields,))

    @property
    def output(self) -> pa.Schema:
        fields = numbered_fields(output_types(self.columns, self.how))
        return pa.schema([*fields, pa.field(OP, pa.string())] if self.with_op else fields)

    def state_format(self) -> tuple[str, ...]:
        return (FORMAT, *(schema_text(self.stored_schema(port)) for port in (0, 1)))

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        """Consolidate rows; STORE_TIME arrives as their time and becomes their expiry."""
        times = rows.column(STORE_TIME)
        weights = rows.column(WEIGHT) if self.retracts else pa.array(np.ones(rows.num_rows, int))
        keys = [canonicalize(rows.column(name)) for name in self.condition.names]
        columns = [rows.column(item.name) for item in numbered_fields(self.columns[port])]
        expiry = self._expiry_us(port, int_column(rows, STORE_TIME))
        hidden = [pa.array(expiry), rows.column(HASH), times]
        table = pa.table([*hidden, *keys, *columns, weights], schema=self.stored_schema(port))
        if not TRACKS_MATCHES[self.how][port]:
            table = table.filter(pa.array(self.condition.can_match(table)))
        return (self._consolidate(table),)

    def _expiry_us(self, port: int, times: Ints) -> Ints:
        """Return the watermarks from which rows are not needed any more.

        From then on a row can neither match nor be retracted, and no row of the other side needs it
        to find out whether it has a match. A row of an outer side may lose its last match, so the
        rows that match it are kept as long as the row itself.
        """
        if self.close_delay_us is None:
            return times
        reaches_us = -self.condition.lower_us, self.condition.upper_us
        reach_us = reaches_us[port]
        if TRACKS_MATCHES[self.how][1 - port]:
            reach_us += max(reaches_us[1 - port], 0)
        return times + (max(reach_us, 0) if self.retracts else reach_us) + self.close_delay_us

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        return (self._consolidate(concat(parts)[0]),)

    def _consolidate(self, rows: pa.Table) -> pa.Table:
        """Merge equal rows, unless all weights are 1."""
        return consolidate(rows) if self.retracts else rows

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        store, ttl = self._open_store(state), self.time_to_live
        if ttl is not None:
            ttl.drop_expired(store, progress.now_us)
        received = [self._drop_late_rows(state, port, inputs[port], progress) for port in (0, 1)]
        output = StepOutput()
        if any(table.num_rows for table in received):
            only_stores = self.at_end and not self.retracts
            old = [] if only_stores else load_same_keys(store, received, self.condition.names)
            new = self._drop_unknown_retractions(state, old, received)
            if not self.at_end:
                output.rows += self._changes(old, new)
            touches = () if ttl is None else (ttl.touch(new, progress.now_us),)
            store.append((*touches, *new))
        if self.at_end and progress.just_ended:
            left, right = store.load_all()[-2:]
            output.rows += self._as_output(self._full_join(left, right))
        if self.close_delay_us is not None and progress.watermark_us is not None:
            store.drop_due(progress.watermark_us)
        store.save()
        if self.retracts:
            state.count_unknown_retractions(0)
        state.metrics["groups"] = state.metrics["rows"]
        self.limits.check(self.name, state.metrics)
        return output

    def _open_store(self, state: KeyGroupState) -> SortedRunStore:
        schemas = (self.stored_schema(0), self.stored_schema(1))
        ttl = self.time_to_live
        if ttl is not None:
            return SortedRunStore(state, (ttl.schema, *schemas), self._merge, due=ttl.due)
        if self.close_delay_us is not None:
            return SortedRunStore(
                state,
                schemas,
                self._merge,
                due=lambda rows: int_column(rows, STORE_TIME),
                tables_with_timers=2,
            )
        return SortedRunStore(state, schemas, self._merge)

    def _merge(self, tables: Tables) -> Tables:
        rows = tuple(self._consolidate(table) for table in tables[-2:])
        ttl = self.time_to_live
        return rows if ttl is None else (ttl.keep_latest(tables[0]), *rows)

    def _drop_late_rows(
        self, state: KeyGroupState, port: int, parts: list[Tables], progress: TimeProgress
    ) -> pa.Table:
        """Return the consolidated rows of an input that are on time; late rows are counted."""
        schema = self.stored_schema(port)
        rows = self._consolidate(concat(parts)[0]) if parts else schema.empty_table()
        previous_us = progress.previous_watermark_us
        if self.close_delay_us is None or previous_us is None or not rows.num_rows:
            return rows
        is_late = int_column(rows, TIME) + self.close_delay_us <= previous_us
        state.count_late(int(np.abs(int_column(rows, WEIGHT))[is_late].sum()))
        return rows.filter(pa.array(~is_late)) if is_late.any() else rows

    def _drop_unknown_retractions(
        self, state: KeyGroupState, old: list[pa.Table], new: list[pa.Table]
    ) -> list[pa.Table]:
        """Drop and count retractions of rows that are not in the state."""
        if not self.retracts:
            return new
        sides = [
            WeightedRows().drop_unknown_retractions(*tables)
            for tables in zip(old, new, strict=True)
        ]
        state.count_unknown_retractions(sum(unknown for _, unknown in sides))
        return [rows for rows, _ in sides]

    # Changes

    def _changes(self, old: list[pa.Table], new: list[pa.Table]) -> list[pa.Table]:
        """Return the changes of the join of these keys; `old` and `new` are rows by port."""
        current = [
            self._consolidate(pa.concat_tables(tables)) for tables in zip(old, new, strict=True)
        ]
        if self.how == "SEMI" and not self.with_op:
            return self._as_output(self._first_matches(old, new, current))
        parts = []
        if self.how not in ("SEMI", "ANTI"):
            parts += self._pairs(new[0], old[1]) + self._pairs(current[0], new[1])
        for port in (0, 1):
            if TRACKS_MATCHES[self.how][port]:
                parts += self._tracked_rows(port, old[port], old[1 - port], -1)
                parts += self._tracked_rows(port, current[port], current[1 - port], 1)
        return self._as_output(parts)

    def _first_matches(
        self, old: Sequence[pa.Table], new: Sequence[pa.Table], current: Sequence[pa.Table]
    ) -> list[pa.Table]:
        """Return the left rows of an append-only SEMI join that have a match since this epoch."""
        has_match = np.zeros(old[0].num_rows, np.bool_)
        has_match[self.condition.find_pairs(old[0], old[1])[0]] = True
        unmatched = old[0].filter(pa.array(~has_match))
        return self._tracked_rows(0, unmatched, new[1], 1) + self._tracked_rows(
            0, new[0], current[1], 1
        )

    def _full_join(self, left: pa.Table, right: pa.Table) -> list[pa.Table]:
        """Return the whole join."""
        parts = self._pairs(left, right) if self.how not in ("SEMI", "ANTI") else []
        for port, rows, others in ((0, left, right), (1, right, left)):
            if TRACKS_MATCHES[self.how][port]:
                parts += self._tracked_rows(port, rows, others, 1)
        return parts

    def _pairs(self, left: pa.Table, right: pa.Table) -> list[pa.Table]:
        """Return the pairs of matching rows; their weight is the product of both weights."""
        left_indices, right_indices = self.condition.find_pairs(left, right)
        if not len(left_indices):
            return []
        left, right = left.take(pa.array(left_indices)), right.take(pa.array(right_indices))
        weights = int_column(left, WEIGHT) * int_column(right, WEIGHT)
        return [self._result_rows(left, right, weights)]

    def _tracked_rows(
        self, port: int, rows: pa.Table, others: pa.Table, sign: int
    ) -> list[pa.Table]:
        """Return the rows of a side without a match, or with one if this is a SEMI join."""
        rows = rows.filter(pa.array(int_column(rows, WEIGHT) > 0))
        others = others.filter(pa.array(int_column(others, WEIGHT) > 0))
        sides = (rows, others) if port == 0 else (others, rows)
        has_match = np.zeros(rows.num_rows, np.bool_)
        has_match[self.condition.find_pairs(*sides)[port]] = True
        rows = rows.filter(pa.array(has_match if self.how == "SEMI" else ~has_match))
        if not rows.num_rows:
            return []
        left, right = (rows, None) if port == 0 else (None, rows)
        return [self._result_rows(left, right, sign * int_column(rows, WEIGHT))]

    def _result_rows(
        self, left: pa.Table | None, right: pa.Table | None, weights: Ints
    ) -> pa.Table:
        """Return output columns and the weight; a side that is None is NULL."""
        columns: list[pa.Array] = []
        for port, table in enumerate((left, right)):
            if port == 1 and self.how in ("SEMI", "ANTI"):
                break
            for item in numbered_fields(self.columns[port]):
                nulls = pa.nulls(len(weights), item.type)
                columns.append(nulls if table is None else table.column(item.name))
        columns.append(pa.array(weights))
        fields = numbered_fields(output_types(self.columns, self.how))
        return pa.table(columns, schema=pa.schema([*fields, pa.field(WEIGHT, pa.int64())]))

    def _as_output(self, parts: list[pa.Table]) -> list[pa.Table]:
        """Return the net changes as output rows: deletes first, then inserts."""
        if not parts:
            return []
        rows = pa.concat_tables(parts)
        if self.with_op:
            rows = consolidate(rows)
        weights = int_column(rows, WEIGHT)
        rows = rows.drop_columns([WEIGHT])
        indices = np.arange(rows.num_rows)
        deletes = np.repeat(indices, np.maximum(-weights, 0))
        inserts = np.repeat(indices, np.maximum(weights, 0))
        if not len(deletes) + len(inserts):
            return []
        assert self.with_op or not len(deletes), "an append-only join retracts nothing"
        changes = rows.take(pa.array(np.concatenate([deletes, inserts])))
        if self.with_op:
            ops = pa.array([DELETE] * len(deletes) + [INSERT] * len(inserts), pa.string())
            changes = changes.append_column(OP, ops)
        return [changes]
