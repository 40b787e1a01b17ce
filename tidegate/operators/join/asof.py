"""Temporal and ASOF joins: join each left row with the right row that is nearest in time.

A left row is emitted when the watermark proves that no nearer right row can arrive. It is pending
until the watermark passes the time at which its lookup starts. Then a backward lookup is final. A
forward lookup is final when it finds a right row that the watermark has passed, or when the
watermark passes the end of its bounds. Until then the left row is stored as unmatched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import HASH, INSERT, OP, STORE_TIME, WEIGHT
from tidegate.operators.kernels.arrays import Ints, Mask, as_array, concat, int_column
from tidegate.operators.kernels.join_condition import TIME, JoinCondition, numbered_fields
from tidegate.operators.kernels.keys import canonicalize, group_ids
from tidegate.operators.kernels.ordering import (
    ARRIVAL_FIELDS,
    ARRIVAL_NUMBER,
    Ordering,
    number_arrivals,
    sort_codes,
)
from tidegate.operators.kernels.weighted_rows import consolidate
from tidegate.operators.late_rows import LateRowFormat
from tidegate.operators.operator import (
    NO_LIMITS,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    TimeProgress,
    with_op,
)
from tidegate.operators.store.sorted_runs import FORMAT as RUNS
from tidegate.operators.store.sorted_runs import SortedRunStore
from tidegate.operators.store.time_buckets import FORMAT as SEGMENTS
from tidegate.operators.store.time_buckets import TimeBucketStore
from tidegate.operators.watermark import END_OF_INPUT_US
from tidegate.state.codec import schema_text

# ---- The lookup: the nearest right row of each left row, by key and by a value
#
# Keys and values become numbers in one order, the right side is sorted by them, and a binary search
# finds the positions of all left rows at once.

# Times and integers, or floating-point numbers.
Values = npt.NDArray[Any]
Number = int | float
BACKWARD, FORWARD, NEAREST = "backward", "forward", "nearest"
NO_MATCH = -1


@dataclass(frozen=True)
class AsofBounds:
    """The rule that selects the right row of a left row, among those with the same key.

    Candidates are right rows whose distance, left value − right value, is in [lower, upper]. None
    means unbounded, and an open end excludes the bound itself. Of the candidates,

    - BACKWARD selects the one with the largest value, FORWARD the one with the smallest;
    - NEAREST selects the closest one, and at the same distance the one with the smaller value.

    Of equal values, the last arrival is selected. With
    `only_first_version`, a left row matches only the version with the smallest value
    of the key, and the first arrival of equal ones.
    """

    direction: str
    lower: Number | None
    upper: Number | None
    lower_open: bool = False
    upper_open: bool = False
    only_first_version: bool = False

    def __post_init__(self) -> None:
        assert self.direction in (BACKWARD, FORWARD, NEAREST), self.direction
        assert self.direction != BACKWARD or self.lower is not None, "a backward lookup has a start"
        assert self.direction != FORWARD or self.upper is not None, "a forward lookup has a start"

    def match(self, left_ids: Ints, left: Values, right_ids: Ints, right: Values) -> Ints:
        """Return the index of each left row's match, or NO_MATCH.

        Rows with equal ids have equal keys. Right rows are in the order of their arrival.
        """
        if not len(left_ids) or not len(right_ids):
            return np.full(len(left_ids), NO_MATCH, np.int64)
        index = _SortedIndex(right_ids, right)
        if self.direction == NEAREST:
            return self._match_nearest(index, left_ids, left)
        if self.direction == FORWARD:
            assert self.upper is not None, "a forward lookup has a start"
            matches = index.next(left_ids, left - self.upper, self.upper_open)
        else:
            assert self.lower is not None, "a backward lookup has a start"
            target = left - self.lower
            if self.only_first_version:
                matches = index.first(left_ids, target, self.lower_open)
            else:
                matches = index.last(left_ids, target, self.lower_open)
        return self._within_bounds(matches, left, right)

    def _match_nearest(self, index: _SortedIndex, ids: Ints, left: Values) -> Ints:
        right = index.values
        before = self._within_bounds(index.last(ids, left, False), left, right)
        after = self._within_bounds(index.next(ids, left, False), left, right)
        to_before = distance(left, right[before])
        to_after = distance(right[after], left)
        takes_before = (after == NO_MATCH) | ((before != NO_MATCH) & (to_before <= to_after))
        return np.where(takes_before, before, after)

    def _within_bounds(self, matches: Ints, left: Values, right: Values) -> Ints:
        """Drop matches beyond the far bound. The lookup has already respected the near bound."""
        difference = left - right[matches]
        within = matches != NO_MATCH
        if self.upper is not None and self.direction != FORWARD:
            within &= difference < self.upper if self.upper_open else difference <= self.upper
        if self.lower is not None and self.direction != BACKWARD:
            within &= difference > self.lower if self.lower_open else difference >= self.lower
        return np.where(within, matches, NO_MATCH)


class _SortedIndex:
    """The right rows, sorted by key, value and arrival.

    A key and a value are one number, `id * width + rank of the value`, so that one binary search
    finds both. Rank 0 sorts before all values of the key.
    """

    def __init__(self, ids: Ints, values: Values) -> None:
        self.values = values
        self.distinct = np.unique(values)
        self.width = len(self.distinct) + 1
        positions = ids * self.width + np.searchsorted(self.distinct, values) + 1
        self.order = np.argsort(positions, kind="stable")
        self.positions = positions[self.order]
        self.ids = ids[self.order]

    def last(self, ids: Ints, target: Values, below: bool) -> Ints:
        """Return the last row of a key whose value is at most (or below) the target."""
        rank = np.searchsorted(self.distinct, target, "left" if below else "right")
        return self._rows(
            ids, np.searchsorted(self.positions, ids * self.width + rank, "right") - 1
        )

    def next(self, ids: Ints, target: Values, above: bool) -> Ints:
        """Return the last row of a key with the smallest value at or above the target."""
        rank = np.searchsorted(self.distinct, target, "right" if above else "left")
        first = np.searchsorted(self.positions, ids * self.width + rank + 1, "left")
        position = self.positions[np.minimum(first, len(self.positions) - 1)]
        last = np.searchsorted(self.positions, position, "right") - 1
        return self._rows(ids, np.where(first < len(self.positions), last, NO_MATCH))

    def first(self, ids: Ints, target: Values, below: bool) -> Ints:
        """Return the first row of a key if its value is at most (or below) the target."""
        rank = np.searchsorted(self.distinct, target, "left" if below else "right")
        first = np.searchsorted(self.positions, ids * self.width, "left")
        position = self.positions[np.minimum(first, len(self.positions) - 1)]
        exists = (first < len(self.positions)) & (position <= ids * self.width + rank)
        return self._rows(ids, np.where(exists, first, NO_MATCH))

    def _rows(self, ids: Ints, indices: Ints) -> Ints:
        """Return the rows at sorted indices, or NO_MATCH for a row of another key."""
        same_key = (indices != NO_MATCH) & (self.ids[indices] == ids)
        return np.where(same_key, self.order[indices], NO_MATCH)


def distance(larger: Values, smaller: Values) -> Values:
    """Return the difference of two values, unsigned because it can exceed a BIGINT."""
    difference: Values = larger - smaller
    return difference if difference.dtype.kind == "f" else difference.view(np.uint64)


def supports_distance(data_type: pa.DataType) -> bool:
    """Return whether values of a type have a distance, and not only an order."""
    return bool(
        pa.types.is_integer(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_timestamp(data_type)
    )


def as_numbers(left: pa.ChunkedArray, right: pa.ChunkedArray) -> tuple[Values, Values]:
    """Return the values of both sides as numbers in the same order; NULL becomes any number."""
    both = as_array(pa.chunked_array([*left.chunks, *right.chunks], left.type))
    if pa.types.is_floating(both.type):
        # Adding zero turns -0.0 into 0.0.
        values = pc.fill_null(both, 0.0).cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
    elif supports_distance(both.type):
        values = pc.fill_null(both.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    else:
        values = sort_codes(both, Ordering(both.type))
    return values[: len(left)], values[len(left) :]


# ---- Stored right rows
#
# Recent rows, from the floor on, are stored by time. Of the rows below the floor, a backward lookup
# needs only one row per key: the one that later left rows would match.


@dataclass(frozen=True)
class AsofRetention:
    """How long right rows are kept. The bounds are in microseconds."""

    bounds: AsofBounds

    def floor_us(self, watermark_us: int) -> int:
        """Return the time below which only the last row of each key can match later left rows."""
        bounds = self.bounds
        start = {BACKWARD: bounds.lower, FORWARD: bounds.upper}.get(bounds.direction)
        return watermark_us - max(0, int(start or 0))

    @property
    def keeps_last(self) -> bool:
        """Whether left rows may match rows below the floor."""
        return self.bounds.direction != FORWARD

    def expiry_us(self, times: Ints) -> Ints:
        """Return, for right rows of these times, the watermark from which no left row matches."""
        bounds = self.bounds
        assert bounds.upper is not None, "without a bound rows never expire"
        start = min(0, int(bounds.lower or 0)) if bounds.direction == BACKWARD else 0
        return times + int(bounds.upper) - start + 1


class RightRowStore:
    """The right rows of a key group; STORE_TIME in `schema` is the time of a row."""

    def __init__(
        self, state: KeyGroupState, schema: pa.Schema, keys: list[str], bounds: AsofBounds
    ) -> None:
        self.schema = schema
        self.key_columns = [HASH, *keys]
        self.retention = AsofRetention(bounds)
        self.only_first_version = bounds.only_first_version
        self.recent = TimeBucketStore(state, (schema,), None, "right")
        expires = bounds.upper is not None
        due = (
            (lambda rows: self.retention.expiry_us(int_column(rows, STORE_TIME)))
            if expires
            else None
        )
        self.last = SortedRunStore(state, (schema,), self._last_per_key, due=due, name="last")

    def add(self, rows: pa.Table, previous_watermark_us: int | None) -> tuple[pa.Table, pa.Table]:
        """Store rows; return those below the floor, and those of them that no row can match."""
        late = rows.slice(0, 0)
        if previous_watermark_us is not None and rows.num_rows:
            is_late = int_column(rows, STORE_TIME) < self.retention.floor_us(previous_watermark_us)
            late, rows = rows.filter(pa.array(is_late)), rows.filter(pa.array(~is_late))
        if rows.num_rows:
            self.recent.append((rows,))
        if not late.num_rows or previous_watermark_us is None or not self.retention.keeps_last:
            return late, late
        stored = self.last.load(int_column(late, HASH))[0]
        (last,) = self._last_per_key((pa.concat_tables([stored, late]),))
        is_last = np.isin(int_column(late, ARRIVAL_NUMBER), int_column(last, ARRIVAL_NUMBER))
        if self.last.due is not None:
            is_last &= (
                self.retention.expiry_us(int_column(late, STORE_TIME)) > previous_watermark_us
            )
        if is_last.any():
            self.last.append((late.filter(pa.array(is_last)),))
        return late, late.filter(pa.array(~is_last))

    def load_final(self, watermark_us: int) -> pa.Table:
        """Return the recent rows that the watermark has passed, in the order of their arrival."""
        parts = [tables[0] for tables in self.recent.load(None, watermark_us)]
        return _sorted_by_arrival(pa.concat_tables([self.schema.empty_table(), *parts]))

    def with_last(self, final: pa.Table, hashes: Ints) -> pa.Table:
        """Return those rows and the last rows of the keys with these hashes."""
        if not len(hashes):
            return final
        return _sorted_by_arrival(pa.concat_tables([self.last.load(hashes)[0], final]))

    def drop_expired(self, final: pa.Table, watermark_us: int) -> None:
        """Drop rows below the floor, except for the last row of each key."""
        floor_us = self.retention.floor_us(watermark_us)
        if self.retention.keeps_last:
            below = final.filter(pa.array(int_column(final, STORE_TIME) < floor_us))
            if below.num_rows:
                self.last.append(self._last_per_key((below,)))
            if self.last.due is not None:
                self.last.drop_due(watermark_us)
        self.recent.drop_before(floor_us)

    def save(self) -> None:
        self.recent.save()
        self.last.save()

    def _last_per_key(self, tables: Tables) -> Tables:
        """Return the row of each key with the latest time and, among those, the last arrival."""
        (rows,) = tables
        if rows.num_rows <= 1:
            return tables
        ids, count = group_ids(rows, self.key_columns)
        order = np.lexsort((int_column(rows, ARRIVAL_NUMBER), int_column(rows, STORE_TIME), ids))
        if self.only_first_version:
            order = order[::-1]
        last = np.zeros(count, np.int64)
        last[ids[order]] = order
        return (rows.take(pa.array(np.sort(last))),)


def _sorted_by_arrival(rows: pa.Table) -> pa.Table:
    numbers = int_column(rows, ARRIVAL_NUMBER)
    if np.all(numbers[1:] > numbers[:-1]):
        return rows
    return rows.take(pa.array(np.argsort(numbers, kind="stable")))


# ---- The operator

# Whether a right row is a version (true) or a tombstone (false); rows with NULL are ignored.
IS_VERSION = "_is_version"
# The time of the backward match of a left row that still looks forward.
BACKWARD_TIME = "_backward_time"
_INT = pa.int64()


@dataclass(frozen=True)
class AsofJoin:
    """A temporal or ASOF join by event time, in microseconds.

    With `versions`, a right row may be a tombstone, which ends the previous version. With
    `retracts`, left rows have a weight, and a row that is retracted while it is pending is never
    emitted. With `with_op`, output rows have the changelog column, which is always INSERT.
    """

    condition: JoinCondition
    bounds: AsofBounds
    columns: tuple[tuple[pa.DataType, ...], tuple[pa.DataType, ...]]
    how: str
    versions: bool = False
    retracts: bool = False
    with_op: bool = False
    limits: Limits = NO_LIMITS
    panes = None
    name: str = "asof_join"
    late_rows: tuple[LateRowFormat, LateRowFormat] | None = None

    def __post_init__(self) -> None:
        assert self.how in ("INNER", "LEFT"), self.how
        assert not (self.bounds.lower_open or self.bounds.upper_open), "times are whole numbers"

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        hidden = [pa.field(STORE_TIME, _INT), pa.field(HASH, _INT), *self.condition.fields]
        left = pa.schema([*hidden, *numbered_fields(self.columns[0]), *self._weight_fields])
        right = pa.schema(
            [*hidden, *numbered_fields(self.columns[1]), *self._version_fields, *ARRIVAL_FIELDS]
        )
        return ((left,), (right,))

    @property
    def _weight_fields(self) -> list[pa.Field]:
        return [pa.field(WEIGHT, _INT)] if self.retracts else []

    @property
    def _version_fields(self) -> list[pa.Field]:
        return [pa.field(IS_VERSION, pa.bool_())] if self.versions else []

    @property
    def pending_schema(self) -> pa.Schema:
        """A left row before its lookup; STORE_TIME is the watermark at which the lookup starts."""
        hidden = [pa.field(name, _INT) for name in (STORE_TIME, HASH, TIME)]
        columns = numbered_fields(self.columns[0])
        return pa.schema([*hidden, *self.condition.fields, *columns, *self._weight_fields])

    @property
    def unmatched_schema(self) -> pa.Schema:
        """A left row that looks forward, with its backward match if the lookup has both ways.

        STORE_TIME is the watermark at which it is emitted without a forward match.
        """
        if self.bounds.direction != NEAREST:
            return self.pending_schema
        backward = [
            pa.field(f"r{index}", data_type) for index, data_type in enumerate(self.columns[1])
        ]
        return pa.schema([*self.pending_schema, pa.field(BACKWARD_TIME, _INT), *backward])

    @property
    def right_schema(self) -> pa.Schema:
        """A stored right row; STORE_TIME is its time."""
        hidden = [pa.field(STORE_TIME, _INT), pa.field(HASH, _INT), *self.condition.fields]
        columns = numbered_fields(self.columns[1])
        return pa.schema([*hidden, *columns, *self._version_fields, pa.field(ARRIVAL_NUMBER, _INT)])

    @property
    def output(self) -> pa.Schema:
        fields = numbered_fields(self.columns[0] + self.columns[1])
        return pa.schema([*fields, pa.field(OP, pa.string())] if self.with_op else fields)

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows[0].schema if self.late_rows is not None else None

    def state_format(self) -> tuple[str, ...]:
        schemas = (self.pending_schema, self.right_schema, self.unmatched_schema)
        return (SEGMENTS, RUNS, *(schema_text(schema) for schema in schemas))

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        """Drop rows that can neither match nor be emitted without a match."""
        schema = self.shuffle_schemas[port][0]
        keys = {name: canonicalize(rows.column(name)) for name in self.condition.names}
        columns = [keys[name] if name in keys else rows.column(name) for name in schema.names]
        table = pa.table(columns, schema=schema)
        if port == 1 or self.how == "INNER":
            table = table.filter(pa.array(self.condition.can_match(table)))
        if port == 1 and self.versions:
            table = table.filter(pc.is_valid(table.column(IS_VERSION)))
        return (table,)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        return concat(parts)

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        epoch = _Epoch(self, state, progress)
        left = epoch.drop_late_left(inputs[0])
        late_right, unused = epoch.add_right(inputs[1])
        if progress.watermark_us is None:
            epoch.store_pending(left)
        elif self.bounds.direction == BACKWARD:
            ready = epoch.take_ready(left, progress.watermark_us)
            epoch.look_backward(ready, progress.watermark_us)
        else:
            unused = epoch.look_forward(left, late_right, unused, progress.watermark_us)
        epoch.emit_late(1, unused)
        return epoch.finish()


class _Epoch:
    """One epoch of an AsofJoin in one key group."""

    def __init__(self, join: AsofJoin, state: KeyGroupState, progress: TimeProgress) -> None:
        self.join = join
        self.state = state
        self.progress = progress
        self.output = StepOutput()
        self.pending = TimeBucketStore(state, (join.pending_schema,), None, "left")
        self.right = RightRowStore(state, join.right_schema, join.condition.names, join.bounds)
        self.unmatched = SortedRunStore(
            state,
            (join.unmatched_schema,),
            lambda tables: tables,
            due=lambda rows: int_column(rows, STORE_TIME),
            name="waiting",
        )

    # Input

    def drop_late_left(self, parts: list[Tables]) -> pa.Table:
        """Return the new left rows that are on time, as pending rows."""
        join, previous_us = self.join, self.progress.previous_watermark_us
        rows = concat(parts)[0] if parts else join.shuffle_schemas[0][0].empty_table()
        if previous_us is not None and rows.num_rows:
            is_late = int_column(rows, STORE_TIME) < previous_us
            if is_late.any():
                self.emit_late(0, rows.filter(pa.array(is_late)))
                rows = rows.filter(pa.array(~is_late))
        times = int_column(rows, STORE_TIME)
        start = {BACKWARD: join.bounds.lower, FORWARD: join.bounds.upper}
        ready_us = times - int(start.get(join.bounds.direction) or 0) + 1
        hidden = {STORE_TIME: pa.array(ready_us), TIME: pa.array(times)}
        columns = [
            hidden[name] if name in hidden else rows.column(name)
            for name in join.pending_schema.names
        ]
        return pa.table(columns, schema=join.pending_schema)

    def add_right(self, parts: list[Tables]) -> tuple[pa.Table, pa.Table]:
        """Store new right rows; return the late ones, and those of them that no row can match."""
        rows = concat(parts)[0] if parts else self.join.shuffle_schemas[1][0].empty_table()
        rows = number_arrivals(self.state, rows).select(self.join.right_schema.names)
        return self.right.add(rows, self.progress.previous_watermark_us)

    def emit_late(self, port: int, rows: pa.Table) -> None:
        """Count late rows and emit them to the late stream, if there is one."""
        if not rows.num_rows:
            return
        has_weight = WEIGHT in rows.column_names
        count = int(np.abs(int_column(rows, WEIGHT)).sum()) if has_weight else rows.num_rows
        self.state.count_late(count)
        if self.join.late_rows is None:
            return
        late_rows = self.join.late_rows[port]
        fields = numbered_fields(self.join.columns[port])
        original = {
            name: rows.column(field.name)
            for name, field in zip(late_rows.names, fields, strict=True)
        }
        previous_us = self.progress.previous_watermark_us
        self.output.late.append(late_rows.with_reason(pa.table(original), None, None, previous_us))

    def store_pending(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self.pending.append((rows,))

    def take_ready(self, new: pa.Table, watermark_us: int) -> pa.Table:
        """Return the pending and new rows whose lookup starts now; store the other new rows."""
        parts = [tables[0] for tables in self.pending.load(None, watermark_us + 1)]
        self.pending.drop_before(watermark_us + 1)
        is_ready = int_column(new, STORE_TIME) <= watermark_us
        self.store_pending(new.filter(pa.array(~is_ready)))
        rows = pa.concat_tables([*parts, new.filter(pa.array(is_ready))])
        if not self.join.retracts:
            return rows
        rows = consolidate(rows)
        weights = int_column(rows, WEIGHT)
        self.state.count_unknown_retractions(int(-weights[weights < 0].sum()))
        return rows.filter(pa.array(weights > 0))

    # Backward lookups

    def look_backward(self, rows: pa.Table, watermark_us: int) -> None:
        """Emit the left rows with their matches."""
        final = self.right.load_final(watermark_us)
        right = self.right.with_last(final, int_column(rows, HASH))
        matches = self._match(self.join.bounds, rows, right)
        if self.join.versions and right.num_rows:
            is_version = right.column(IS_VERSION).to_numpy()
            matches = np.where(is_version[matches], matches, NO_MATCH)
        self._emit_matches(rows, right, matches)
        self.right.drop_expired(final, watermark_us)

    def _match(self, bounds: AsofBounds, rows: pa.Table, right: pa.Table) -> Ints:
        left_ids, right_ids, _ = self.join.condition.key_ids(rows, right)
        return bounds.match(
            left_ids, int_column(rows, TIME), right_ids, int_column(right, STORE_TIME)
        )

    # Forward lookups, and lookups in both directions

    def look_forward(
        self, new: pa.Table, late_right: pa.Table, unused: pa.Table, watermark_us: int
    ) -> pa.Table:
        """Emit the left rows whose lookup is final; return the late right rows without a match.

        A late right row may still match a left row that looks forward.
        """
        final = self.right.load_final(watermark_us)
        ready = self._start_forward(self.take_ready(new, watermark_us), final)
        right = pa.concat_tables([final, late_right])
        hashes = np.unique(
            np.concatenate(
                [
                    int_column(ready, HASH),
                    int_column(right, HASH),
                    self.unmatched.due_hashes(watermark_us),
                ]
            )
        )
        rows = pa.concat_tables([self.unmatched.load(hashes)[0], ready])
        matches = self._match(self._forward_bounds, rows, right)
        matches = np.where(self._is_nearer(rows, right, matches), matches, NO_MATCH)
        has_match = matches != NO_MATCH
        is_expired = (int_column(rows, STORE_TIME) <= watermark_us) & ~has_match
        self._emit_matches(rows.filter(pa.array(has_match)), right, matches[has_match])
        self._emit_without_forward_match(rows.filter(pa.array(is_expired)))
        self.unmatched.replace(hashes, (rows.filter(pa.array(~(has_match | is_expired))),))
        self.right.drop_expired(final, watermark_us)
        used = int_column(right, ARRIVAL_NUMBER)[matches[has_match]]
        return unused.filter(pa.array(~np.isin(int_column(unused, ARRIVAL_NUMBER), used)))

    @property
    def _forward_bounds(self) -> AsofBounds:
        """The bounds of the forward lookup; rows at the same time are backward matches."""
        bounds = self.join.bounds
        if bounds.direction == FORWARD:
            return bounds
        return replace(bounds, direction=FORWARD, upper=-1)

    def _start_forward(self, rows: pa.Table, final: pa.Table) -> pa.Table:
        """Convert ready rows to unmatched rows: add their expiry and their backward match."""
        bounds, times = self.join.bounds, int_column(rows, TIME)
        expiry = np.full(rows.num_rows, END_OF_INPUT_US, np.int64)
        if bounds.lower is not None:
            expiry = times - int(bounds.lower) + 1
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        if bounds.direction == NEAREST:
            backward = replace(bounds, direction=BACKWARD, lower=0)
            right = self.right.with_last(final, int_column(rows, HASH))
            matches = self._match(backward, rows, right)
            has_match = matches != NO_MATCH
            matched = right.take(pa.array(matches, mask=~has_match))
            columns[BACKWARD_TIME] = matched.column(STORE_TIME)
            for index, _ in enumerate(self.join.columns[1]):
                columns[f"r{index}"] = matched.column(f"c{index}")
            if has_match.any():
                # A forward match has to be nearer than the backward match.
                match_times = int_column(right, STORE_TIME)[matches[has_match]]
                expiry[has_match] = np.minimum(
                    expiry[has_match], 2 * times[has_match] - match_times
                )
        unmatchable = ~self.join.condition.can_match(rows)
        expiry[unmatchable] = int_column(rows, STORE_TIME)[unmatchable]
        columns[STORE_TIME] = pa.array(expiry)
        schema = self.join.unmatched_schema
        return pa.table([columns[name] for name in schema.names], schema)

    def _is_nearer(self, rows: pa.Table, right: pa.Table, matches: Ints) -> Mask:
        """Return where the forward match exists and is nearer than the backward match."""
        is_nearer: Mask = matches != NO_MATCH
        if self.join.bounds.direction != NEAREST or not is_nearer.any():
            return is_nearer
        times = int_column(rows, TIME)
        backward = pc.fill_null(rows.column(BACKWARD_TIME), 0).to_numpy()
        forward = int_column(right, STORE_TIME)[matches]
        no_backward = pc.is_null(rows.column(BACKWARD_TIME)).to_numpy(zero_copy_only=False)
        is_nearer &= no_backward | (distance(forward, times) < distance(times, backward))
        return is_nearer

    # Output

    def _emit_matches(self, rows: pa.Table, right: pa.Table, matches: Ints) -> None:
        """Emit left rows with their matches; an INNER join drops those without one."""
        has_match = matches != NO_MATCH
        if self.join.how == "INNER" and not has_match.all():
            rows, matches = rows.filter(pa.array(has_match)), matches[has_match]
            has_match = np.ones(len(matches), np.bool_)
        if rows.num_rows:
            names = [field.name for field in numbered_fields(self.join.columns[1])]
            matched = right.select(names).take(pa.array(matches, mask=~has_match))
            self._emit(rows, matched.columns)

    def _emit_without_forward_match(self, rows: pa.Table) -> None:
        """Emit left rows without a forward match, with their backward match if there is one."""
        is_nearest = self.join.bounds.direction == NEAREST
        if self.join.how == "INNER":
            rows = (
                rows.filter(pc.is_valid(rows.column(BACKWARD_TIME)))
                if is_nearest
                else rows.slice(0, 0)
            )
        if not rows.num_rows:
            return
        data_types = self.join.columns[1]
        self._emit(
            rows,
            [
                rows.column(f"r{index}") if is_nearest else pa.nulls(rows.num_rows, data_type)
                for index, data_type in enumerate(data_types)
            ],
        )

    def _emit(self, rows: pa.Table, right: Sequence[pa.ChunkedArray | pa.Array]) -> None:
        left = [rows.column(field.name) for field in numbered_fields(self.join.columns[0])]
        schema = pa.schema(numbered_fields(self.join.columns[0] + self.join.columns[1]))
        table = pa.table([*left, *right], schema=schema)
        if self.join.retracts:
            table = table.take(pa.array(np.repeat(np.arange(len(table)), int_column(rows, WEIGHT))))
        self.output.rows.append(with_op(table, INSERT) if self.join.with_op else table)

    def finish(self) -> StepOutput:
        """Save the stores, report their sizes and check the limits."""
        for store in (self.pending, self.right, self.unmatched):
            store.save()
        sizes = [self.pending.sizes(), self.right.recent.sizes()]
        runs = (self.right.last, self.unmatched)
        sizes += [{"rows": r.rows, "groups": r.groups, "bytes": r.bytes} for r in runs]
        for metric in ("rows", "groups", "bytes"):
            self.state.metrics[metric] = sum(size[metric] for size in sizes)
        if self.join.retracts:
            self.state.count_unknown_retractions(0)
        self.join.limits.check(self.join.name, self.state.metrics)
        return self.output
