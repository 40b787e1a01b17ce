"""Updating ASOF joins: results are retracted when a nearer row arrives or a row is retracted.

Rows are stored by key. An epoch loads the keys of its rows and emits the difference between their
join before and after the epoch. If both inputs are bounded, the join is emitted once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import DELETE, HASH, INSERT, OP, WEIGHT
from tidegate.errors import unsupported_error
from tidegate.operators.join.asof import (
    NEAREST,
    NO_MATCH,
    AsofBounds,
    as_numbers,
    supports_distance,
)
from tidegate.operators.kernels.arrays import Ints, concat, int_column
from tidegate.operators.kernels.join_condition import JoinCondition, numbered_fields
from tidegate.operators.kernels.keys import canonicalize
from tidegate.operators.kernels.ordering import BY_ARRIVAL, arrival_schema, is_sortable
from tidegate.operators.kernels.weighted_rows import WeightedRows, consolidate
from tidegate.operators.operator import (
    NO_LIMITS,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    TimeProgress,
    with_op,
)
from tidegate.operators.store.sorted_runs import FORMAT, SortedRunStore, TimeToLive, load_same_keys
from tidegate.state.codec import schema_text

# The column with the value that MATCH_CONDITION compares.
VALUE = "_value"
_UNORDERED, _ORDERED = WeightedRows(), WeightedRows(ordered=True)


@dataclass(frozen=True)
class UpdatingAsofJoin:
    """An ASOF join whose output is a changelog; `value` is the type that MATCH_CONDITION compares.

    Rows have a weight: 1 adds a row, −1 retracts it. A key without new rows on either side expires
    after `ttl_us` of processing time. `at_end` emits the join once, when both inputs have ended.
    """

    condition: JoinCondition
    bounds: AsofBounds
    value: pa.DataType
    columns: tuple[tuple[pa.DataType, ...], tuple[pa.DataType, ...]]
    how: str
    ttl_us: int | None = None
    at_end: bool = False
    with_op: bool = True
    limits: Limits = NO_LIMITS
    panes = None
    name: str = "asof_join"
    late: pa.Schema | None = None

    def __post_init__(self) -> None:
        assert self.how in ("INNER", "LEFT"), self.how
        if not is_sortable(self.value):
            hint = "compare timestamps, numbers or strings."
            raise unsupported_error(f"an ASOF join by {self.value} is not supported", hint)
        limits = (self.bounds.lower, self.bounds.upper)
        by_distance = self.bounds.direction == NEAREST or None not in limits or any(limits)
        if by_distance and not supports_distance(self.value):
            hint = "compare integers, DOUBLE or TIMESTAMP, or remove the tolerance."
            message = f"an ASOF join with a distance is not supported over {self.value}"
            raise unsupported_error(message, hint)

    def stored_schema(self, port: int) -> pa.Schema:
        """Return the schema of stored rows; right rows are stored in the order of arrival."""
        hidden = [pa.field(HASH, pa.int64()), pa.field(VALUE, self.value)]
        columns = [*self.condition.fields, *numbered_fields(self.columns[port])]
        return pa.schema([*hidden, *columns, pa.field(WEIGHT, pa.int64())])

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        return (self.stored_schema(0),), (arrival_schema(self.stored_schema(1)),)

    @property
    def time_to_live(self) -> TimeToLive | None:
        return None if self.ttl_us is None else TimeToLive(self.ttl_us, (*self.condition.fields,))

    @property
    def _result_schema(self) -> pa.Schema:
        return pa.schema(numbered_fields(self.columns[0] + self.columns[1]))

    @property
    def output(self) -> pa.Schema:
        schema = self._result_schema
        return schema.append(pa.field(OP, pa.string())) if self.with_op else schema

    def state_format(self) -> tuple[str, ...]:
        return (FORMAT, *(schema_text(self.stored_schema(port)) for port in (0, 1)))

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        """Drop rows that can neither match nor be emitted without a match."""
        schema = self.shuffle_schemas[port][0]
        keys = {name: canonicalize(rows.column(name)) for name in self.condition.names}
        columns = [keys[name] if name in keys else rows.column(name) for name in schema.names]
        table = pa.table(columns, schema=schema)
        if port == 1 or self.how == "INNER":
            has_value = pc.is_valid(table.column(VALUE))
            table = table.filter(pc.and_(has_value, pa.array(self.condition.can_match(table))))
        return (table,)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        return concat(parts)

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        ttl = self.time_to_live
        store = self._open_store(state)
        if ttl is not None:
            ttl.drop_expired(store, progress.now_us)
        received = [self._consolidate_input(port, inputs[port]) for port in (0, 1)]
        output = StepOutput()
        if any(table.num_rows for table in received):
            old = load_same_keys(store, received, self.condition.names)
            new = self._drop_unknown_retractions(state, old, received)
            if not self.at_end:
                output.rows += self._changes(old, new)
            touches = () if ttl is None else (ttl.touch(new, progress.now_us),)
            store.append((*touches, *new))
        if self.at_end and progress.just_ended:
            output.rows += self._final_result(*store.load_all()[-2:])
        store.save()
        state.count_unknown_retractions(0)
        state.metrics["groups"] = state.metrics["rows"]
        self.limits.check(self.name, state.metrics)
        return output

    def _open_store(self, state: KeyGroupState) -> SortedRunStore:
        schemas, ttl = (self.stored_schema(0), self.stored_schema(1)), self.time_to_live
        if ttl is None:
            return SortedRunStore(state, schemas, self._merge)
        return SortedRunStore(state, (ttl.schema, *schemas), self._merge, due=ttl.due)

    def _merge(self, tables: Tables) -> Tables:
        rows = (_UNORDERED.consolidate(tables[-2]), _ORDERED.consolidate(tables[-1]))
        ttl = self.time_to_live
        return rows if ttl is None else (ttl.keep_latest(tables[0]), *rows)

    def _consolidate_input(self, port: int, parts: list[Tables]) -> pa.Table:
        """Return the consolidated rows of an input; right rows in the order of arrival."""
        if not parts:
            return self.stored_schema(port).empty_table()
        (rows,) = concat(parts)
        if port == 0:
            return _UNORDERED.consolidate(rows)
        rows = rows.sort_by(BY_ARRIVAL)
        return _ORDERED.consolidate(rows.select(self.stored_schema(1).names))

    def _drop_unknown_retractions(
        self, state: KeyGroupState, old: Sequence[pa.Table], new: Sequence[pa.Table]
    ) -> list[pa.Table]:
        """Drop and count retractions of rows that are not in the state."""
        left, unknown_left = _UNORDERED.drop_unknown_retractions(old[0], new[0])
        right, unknown_right = _ORDERED.drop_unknown_retractions(old[1], new[1])
        state.count_unknown_retractions(unknown_left + unknown_right)
        return [left, right]

    def _changes(self, old: Sequence[pa.Table], new: Sequence[pa.Table]) -> list[pa.Table]:
        """Return the difference between the join of the old rows and of all rows."""
        left, right = (pa.concat_tables(pair) for pair in zip(old, new, strict=True))
        before = self._join(old[0], old[1], -1)
        after = self._join(consolidate(left), right, 1)
        rows = consolidate(pa.concat_tables([before, after]))
        weights = int_column(rows, WEIGHT)
        changes = [
            (self._repeat(rows, np.maximum(-weights, 0)), DELETE),
            (self._repeat(rows, np.maximum(weights, 0)), INSERT),
        ]
        return [with_op(table, op) for table, op in changes if table.num_rows]

    def _final_result(self, left: pa.Table, right: pa.Table) -> list[pa.Table]:
        """Return the whole join."""
        rows = self._join(left, right, 1)
        table = self._repeat(rows, int_column(rows, WEIGHT))
        if not table.num_rows:
            return []
        return [with_op(table, INSERT) if self.with_op else table]

    def _repeat(self, rows: pa.Table, counts: Ints) -> pa.Table:
        indices = np.repeat(np.arange(rows.num_rows), counts)
        return rows.select(self._result_schema.names).take(pa.array(indices))

    def _join(self, left: pa.Table, right: pa.Table, sign: int) -> pa.Table:
        """Return the left rows with their matches; `sign` is a factor of the weights."""
        right = _ORDERED.current(right)
        left_ids, right_ids, _ = self.condition.key_ids(left, right)
        has_value = pc.is_valid(left.column(VALUE)).to_numpy(zero_copy_only=False)
        left_ids = np.where(has_value, left_ids, -1)
        left_values, right_values = as_numbers(left.column(VALUE), right.column(VALUE))
        matches = self.bounds.match(left_ids, left_values, right_ids, right_values)
        has_match = matches != NO_MATCH
        if self.how == "INNER":
            left, matches = left.filter(pa.array(has_match)), matches[has_match]
            has_match = np.ones(len(matches), np.bool_)
        names = [field.name for field in numbered_fields(self.columns[1])]
        matched = right.select(names).take(pa.array(matches, mask=~has_match))
        left_columns = [left.column(field.name) for field in numbered_fields(self.columns[0])]
        weights = pa.array(sign * int_column(left, WEIGHT))
        schema = self._result_schema.append(pa.field(WEIGHT, pa.int64()))
        return pa.table([*left_columns, *matched.columns, weights], schema=schema)
