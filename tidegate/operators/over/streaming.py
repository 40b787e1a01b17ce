"""OVER along event time: a row is emitted when the watermark has passed its whole frame.

New rows wait in time buckets until the watermark has passed their time. Then their position in the
partition is final, because no row can arrive before them.

Partitions are stored in sorted runs by the hash of their keys. The state of a partition has the
number of dropped rows, the states of cumulative frames, and the last rows that later rows can read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidegate.columns import GROUP_ID, HASH, STORE_TIME
from tidegate.operators.kernels import ordering as arrival
from tidegate.operators.kernels.arrays import (
    Ints,
    Mask,
    as_array,
    concat,
    int_column,
    take_or_null,
    to_flags,
    with_int_column,
)
from tidegate.operators.kernels.keys import find_rows, group_ids
from tidegate.operators.kernels.ordering import ARRIVAL_NUMBER, INT
from tidegate.operators.late_rows import LateRowFormat, split_late
from tidegate.operators.operator import (
    NO_LIMITS,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    TimeProgress,
)
from tidegate.operators.over.frames import SortedRows
from tidegate.operators.over.functions import (
    FrameGroup,
    OverSpec,
    evaluate_rank,
    evaluate_shift,
)
from tidegate.operators.over.history import (
    EMITTED,
    ENDS,
    ID,
    PEER_GROUPS_BEFORE,
    ROWS_BEFORE,
    TIME,
    FrameReach,
    PartitionHistory,
    state_column,
    state_rows_column,
)
from tidegate.operators.store import sorted_runs as runs
from tidegate.operators.store import time_buckets as segments
from tidegate.operators.store.sorted_runs import SortedRunStore, TimeToLive
from tidegate.operators.store.time_buckets import TimeBucketStore
from tidegate.operators.watermark import END_OF_INPUT_US
from tidegate.state.codec import schema_text

# ---- One epoch of some partitions: emit rows, and store the rows that later rows can read

# The status of a row: it was emitted in an earlier epoch; it is due; or the watermark has passed it
# but not its frame, so that it is only read by the frames of due rows.
_EMITTED, _DUE, _PASSED = 0, 1, 2


def advance_partitions(
    history: PartitionHistory,
    stored: Tables,
    due: pa.Table,
    ahead: pa.Table,
    limit_us: int,
    state: KeyGroupState,
    ended: bool,
) -> tuple[pa.Table, Tables]:
    """Return the rows to emit, and the stored tables of the partitions afterwards.

    The watermark has passed the `due` rows and the time range of their frames. It has passed the
    rows `ahead`, but not their frames. `limit_us` is the largest STORE_TIME of due rows, so all
    rows of later epochs are above it.
    """
    key_columns = [HASH, *(item.name for item in history.spec.key_fields)]
    partitions, due_partitions = _add_partitions(history, stored[0], due, key_columns, state)
    ahead_partitions = find_rows(partitions, ahead, key_columns)
    is_visible = ahead_partitions >= 0
    stored_partitions = _find_by_id(partitions, stored[1])
    status = [
        np.where(to_flags(stored[1].column(EMITTED)), _EMITTED, _DUE),
        np.full(due.num_rows, _DUE),
        np.full(int(is_visible.sum()), _PASSED),
    ]
    rows = pa.concat_tables(
        [
            stored[1].select(_row_names(history)),
            _as_rows(history, due),
            _as_rows(history, ahead.filter(pa.array(is_visible))),
        ]
    )
    row_partitions = np.concatenate(
        [stored_partitions, due_partitions, ahead_partitions[is_visible]]
    )
    positions = history.spec.sort_rows(rows, row_partitions, 0, int_column(rows, ARRIVAL_NUMBER))
    epoch = _PartitionEpoch(
        history,
        partitions,
        stored[2:],
        rows.take(pa.array(positions.order)),
        positions,
        np.concatenate(status)[positions.order],
        limit_us,
        ended,
    )
    return epoch.emitted_rows(), epoch.stored_tables()


def _add_partitions(
    history: PartitionHistory,
    partitions: pa.Table,
    rows: pa.Table,
    key_columns: list[str],
    state: KeyGroupState,
) -> tuple[pa.Table, Ints]:
    """Return old and new partitions, and the index of the partition of each row."""
    indices = find_rows(partitions, rows, key_columns)
    missing = np.flatnonzero(indices < 0)
    if not len(missing):
        return partitions, indices
    new_rows = rows.take(pa.array(missing))
    ids, count = group_ids(new_rows, key_columns)
    firsts = np.zeros(count, np.int64)
    firsts[ids[::-1]] = np.arange(len(ids))[::-1]
    next_id = int(state.meta.get("partitions", 0))
    state.meta["partitions"] = next_id + count
    indices[missing] = partitions.num_rows + ids
    new = history.new_partitions(new_rows.take(pa.array(firsts)), next_id)
    return pa.concat_tables([partitions, new]), indices


def _find_by_id(partitions: pa.Table, rows: pa.Table) -> Ints:
    """Return the index of the partition of each stored row."""
    ids = int_column(partitions, ID)
    order = np.argsort(ids)
    indices: Ints = order[np.searchsorted(ids[order], int_column(rows, ID))]
    return indices


def _row_names(history: PartitionHistory) -> list[str]:
    return [TIME, ARRIVAL_NUMBER, *(item.name for item in history.row_fields)]


def _as_rows(history: PartitionHistory, waiting: pa.Table) -> pa.Table:
    """Convert waiting rows, whose STORE_TIME is the watermark that passes them, to stored rows."""
    names = [STORE_TIME if name == TIME else name for name in _row_names(history)]
    schema = pa.schema([history.row_schema.field(name) for name in _row_names(history)])
    return waiting.select(names).rename_columns(_row_names(history)).cast(schema)


@dataclass(frozen=True, eq=False)
class _PartitionEpoch:
    """The partitions with input in one epoch, and their sorted rows with a status for each."""

    history: PartitionHistory
    partitions: pa.Table
    bags: Tables
    rows: pa.Table
    positions: SortedRows
    status: Ints
    limit_us: int
    ended: bool

    @cached_property
    def partition_of(self) -> Ints:
        """The index of each row's partition."""
        return self.positions.partitions

    @cached_property
    def starts(self) -> Ints:
        """The position of the first row of each partition."""
        return np.searchsorted(self.partition_of, np.arange(self.partitions.num_rows))

    @cached_property
    def stops(self) -> Ints:
        """The end of the rows of each partition, without the rows ahead."""
        indices = np.arange(self.partitions.num_rows)
        ends = np.searchsorted(self.partition_of, indices, "right")
        ahead = self.partition_of[self.status == _PASSED]
        stops: Ints = ends - np.bincount(ahead, minlength=len(indices))
        return stops

    @cached_property
    def is_emitted(self) -> Mask:
        """A mask of the rows that are emitted in this epoch."""
        reach = self.history.reach
        has_following = self.positions.positions + reach.rows_ahead < self.positions.ends
        is_emitted: Mask = (self.status == _DUE) & (has_following | self.ended)
        return is_emitted

    @cached_property
    def waiting(self) -> Ints:
        """The positions of due rows whose frames need rows that have not arrived yet."""
        return np.flatnonzero((self.status == _DUE) & ~self.is_emitted)

    @cached_property
    def frames(self) -> dict[FrameGroup, tuple[Ints, Ints]]:
        """The bounds of each row's frame.

        A cumulative frame starts at the first row that is not contained in the stored state.
        """
        spec = self.history.spec
        frames = {}
        for group in spec.frame_groups:
            starts, ends = spec.frame_bounds(group.frame, self.rows, self.positions, 0)
            if group.is_cumulative:
                number = self.history.cumulative_groups.index(group)
                starts = self._state_starts(number)[self.partition_of]
            frames[group] = starts, np.maximum(starts, ends)
        return frames

    def _state_starts(self, number: int) -> Ints:
        """Return the first row of each partition that is not in its stored state."""
        rows_in_state = int_column(self.partitions, state_rows_column(number))
        stored = rows_in_state - int_column(self.partitions, ROWS_BEFORE)
        starts: Ints = self.starts + np.maximum(stored, 0)
        return starts

    @cached_property
    def state_stops(self) -> list[Ints]:
        """The end of the rows to add to the state of each partition, for each cumulative frame."""
        result = []
        for number, group in enumerate(self.history.cumulative_groups):
            stops = self._stops_of_later_frames(group)
            waiting, ends = self.waiting, self.frames[group][1]
            np.minimum.at(stops, self.partition_of[waiting], ends[waiting])
            result.append(np.clip(stops, self._state_starts(number), self.stops))
        return result

    def _stops_of_later_frames(self, group: FrameGroup) -> Ints:
        """Return the end of the rows that the frames of all rows of later epochs contain."""
        end = group.frame.end
        assert end is not None, "no frame ends with the partition"
        if group.frame.by_rows:
            stops: Ints = self.stops + min(0, int(end) + 1)
            return stops
        if end >= 0:
            return self.stops.copy()
        passed = self._count(int_column(self.rows, TIME) <= self.limit_us + 1 + int(end))
        return np.asarray(self.starts + passed, np.int64)

    def _count(self, rows: Mask) -> Ints:
        """Count these rows by partition, without rows ahead."""
        partitions = self.partition_of[rows & (self.status != _PASSED)]
        counts: Ints = np.bincount(partitions, minlength=self.partitions.num_rows)
        return counts

    @cached_property
    def _states(self) -> dict[FrameGroup, Tables]:
        """The states of the frames of emitted rows, followed by the states to store."""
        emitted = np.flatnonzero(self.is_emitted)
        states = {}
        for group, (starts, ends) in self.frames.items():
            starts, ends = starts[emitted], ends[emitted]
            partitions = self.partition_of[emitted]
            initial = None
            if group.is_cumulative:
                number = self.history.cumulative_groups.index(group)
                initial = self.history.cumulative_states(number, self.partitions, self.bags)
                starts = np.concatenate([starts, self._state_starts(number)])
                ends = np.concatenate([ends, self.state_stops[number]])
                partitions = np.concatenate([partitions, np.arange(self.partitions.num_rows)])
            states[group] = group.states(self.rows, starts, ends, initial, partitions)
        return states

    def emitted_rows(self) -> pa.Table:
        """Return the rows to emit with the results of the functions, by time."""
        emitted = np.flatnonzero(self.is_emitted)
        spec, indices = self.history.spec, pa.array(emitted)
        rows = self.rows.take(indices)
        results: dict[int, pa.Array] = {}
        for index, function in enumerate(spec.functions):
            if function.is_rank:
                rows_before = int_column(self.partitions, ROWS_BEFORE)[self.partition_of]
                groups_before = int_column(self.partitions, PEER_GROUPS_BEFORE)[self.partition_of]
                ranks = evaluate_rank(function, self.positions, rows_before, groups_before)
                results[index] = ranks.take(indices)
            elif function.shift is not None:
                values = evaluate_shift(index, function, self.rows, self.positions)
                results[index] = values.take(indices)
        for group, states in self._states.items():
            frame_states = _select_frames(states, 0, len(emitted))
            results |= spec.aggregate_results(group, frame_states, rows)
        columns = [rows.column(item.name) for item in spec.column_fields]
        columns += [results[index] for index, _ in enumerate(spec.functions)]
        result = pa.table(columns, schema=spec.result_schema)
        order = np.lexsort((int_column(rows, ARRIVAL_NUMBER), int_column(rows, TIME)))
        return result.take(pa.array(order))

    def stored_tables(self) -> Tables:
        """Return the stored tables of the partitions after this epoch."""
        first = self._first_stored
        is_stored = self.positions.positions >= first[self.partition_of]
        stored = np.flatnonzero(is_stored & (self.status != _PASSED))
        partitions = self._count_dropped(first)
        rows = self._stored_rows(stored, partitions)
        if self.history.by_time:
            partitions = self._expire_with_rows(partitions, stored)
        bags: list[pa.Table] = []
        emitted = int(self.is_emitted.sum())
        for number, group in enumerate(self.history.cumulative_groups):
            states = _select_frames(self._states[group], emitted, self.partitions.num_rows)
            partitions = self._with_states(number, partitions, states[0])
            bags += self.history.stored_bags(number, states, partitions)
        return (partitions, rows, *bags)

    @cached_property
    def _first_stored(self) -> Ints:
        """The first row of each partition that a later row can read."""
        reach = self.history.reach
        first = self.stops - reach.rows_back
        if reach.time_back:
            invisible = self._count(int_column(self.rows, TIME) + reach.time_back <= self.limit_us)
            first = np.minimum(first, self.starts + invisible)
        for state_stops in self.state_stops:
            first = np.minimum(first, state_stops)
        waiting = self.waiting
        visible = [waiting, waiting - reach.rows_back]
        visible += [self.positions.peer_starts[waiting]] if reach.ranks else []
        visible += [
            starts[waiting] for group, (starts, _) in self.frames.items() if not group.is_cumulative
        ]
        for positions in visible:
            np.minimum.at(first, self.partition_of[waiting], positions)
        return np.clip(first, self.starts, self.stops)

    def _count_dropped(self, first: Ints) -> pa.Table:
        """Return the partitions with the counts of the rows before their first stored row."""
        peer_groups = np.zeros(len(first), np.int64)
        has_rows = self.stops > self.starts
        number = self.positions.peer_groups
        some_stored = has_rows & (first < self.stops)
        peer_groups[some_stored] = number[first[some_stored]]
        none_stored = has_rows & (first >= self.stops)
        peer_groups[none_stored] = number[self.stops[none_stored] - 1] + 1
        partitions = _add_to_column(self.partitions, ROWS_BEFORE, first - self.starts)
        return _add_to_column(partitions, PEER_GROUPS_BEFORE, peer_groups)

    def _stored_rows(self, positions: Ints, partitions: pa.Table) -> pa.Table:
        rows = self.rows.take(pa.array(positions))
        indices = pa.array(self.partition_of[positions])
        is_emitted = ~np.isin(positions, self.waiting)
        hidden = {name: partitions.column(name).take(indices) for name in (STORE_TIME, HASH, ID)}
        hidden[EMITTED] = pa.array(is_emitted)
        if self.history.by_time and not self.history.has_closing_key:
            hidden[STORE_TIME] = pa.array(self._expiry_us(int_column(rows, TIME)))
        columns = []
        for item in self.history.row_schema:
            column = hidden[item.name] if item.name in hidden else rows.column(item.name)
            if item.name[0] == "c":
                # Functions do not read the columns that are only emitted.
                indices_or_null = np.where(is_emitted, -1, np.arange(len(positions)))
                column = take_or_null(column, indices_or_null)
            columns.append(as_array(column))
        return pa.table(columns, schema=self.history.row_schema)

    def _expiry_us(self, times: Ints) -> Ints:
        """Return the watermarks from which no row can read rows of these times."""
        reach = self.history.reach
        return times + reach.time_back + reach.time_ahead

    def _expire_with_rows(self, partitions: pa.Table, stored: Ints) -> pa.Table:
        """Drop partitions without stored rows; the others expire with their last row."""
        expiry = np.full(partitions.num_rows, -END_OF_INPUT_US, np.int64)
        times = self._expiry_us(int_column(self.rows, TIME)[stored])
        np.maximum.at(expiry, self.partition_of[stored], times)
        if not self.history.has_closing_key:
            partitions = with_int_column(partitions, STORE_TIME, expiry)
        return partitions.filter(pa.array(expiry > -END_OF_INPUT_US))

    def _with_states(self, number: int, partitions: pa.Table, states: pa.Table) -> pa.Table:
        """Return partitions with the states of a cumulative frame."""
        rows = self.state_stops[number] - self.starts + int_column(self.partitions, ROWS_BEFORE)
        columns = {state_rows_column(number): pa.array(rows)}
        for name in states.column_names:
            if name not in (GROUP_ID, HASH):
                columns[state_column(number, name)] = states.column(name)
        for name, column in columns.items():
            index = partitions.schema.get_field_index(name)
            partitions = partitions.set_column(index, partitions.schema.field(index), column)
        return partitions


def _add_to_column(table: pa.Table, name: str, values: Ints) -> pa.Table:
    index = table.schema.get_field_index(name)
    return table.set_column(index, name, pa.array(int_column(table, name) + values))


def _select_frames(states: Tables, first: int, count: int) -> Tables:
    """Return the states of some frames, with a GROUP_ID that starts at 0."""
    selected = []
    for table in states:
        frames = int_column(table, GROUP_ID)
        rows = table.filter(pa.array((frames >= first) & (frames < first + count)))
        selected.append(with_int_column(rows, GROUP_ID, int_column(rows, GROUP_ID) - first))
    return tuple(selected)


# ---- The operator


@dataclass(frozen=True)
class OverOperator:
    """Evaluates window functions in the order of event time, the first ORDER BY column.

    STORE_TIME of a row is the watermark that has passed its event time. With `has_closing_key`, a
    window is part of the partition's key, and the column ENDS is the watermark that closes it: no
    more rows of the partition can arrive.
    """

    spec: OverSpec
    has_closing_key: bool = False
    ttl_us: int | None = None
    late_rows: LateRowFormat | None = None
    limits: Limits = NO_LIMITS
    panes = None
    name: str = "over"

    def __post_init__(self) -> None:
        assert len(self.spec.sorts) == 1, "each ORDER BY is an operator"

    @property
    def output(self) -> pa.Schema:
        return self.spec.result_schema

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    @property
    def _fields(self) -> list[pa.Field]:
        spec = self.spec
        hidden = [pa.field(STORE_TIME, INT), pa.field(HASH, INT)]
        hidden += [pa.field(ENDS, INT)] if self.has_closing_key else []
        columns = [*spec.order_fields, *spec.argument_fields, *spec.column_fields]
        return [*hidden, *spec.key_fields, *columns]

    @property
    def arrival_schema(self) -> pa.Schema:
        return arrival.arrival_schema(self._fields)

    @property
    def waiting_schema(self) -> pa.Schema:
        """The schema of a row that waits for the watermark, with its arrival number."""
        return arrival.stored_schema(self._fields)

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        late = self.late_rows
        return ((late.input_schema if late is not None else self.arrival_schema,),)

    @cached_property
    def reach(self) -> FrameReach:
        return FrameReach.from_spec(self.spec)

    @cached_property
    def history(self) -> PartitionHistory:
        return PartitionHistory(self.spec, self.reach, self.has_closing_key)

    @property
    def time_to_live(self) -> TimeToLive | None:
        """The time to live of partitions that the watermark does not drop."""
        if self.ttl_us is None or self.has_closing_key:
            return None
        return TimeToLive(self.ttl_us, tuple(self.spec.key_fields))

    def state_format(self) -> tuple[str, ...]:
        formats = (runs.FORMAT, segments.FORMAT, schema_text(self.waiting_schema))
        return (*formats, *(schema_text(schema) for schema in self.history.schemas))

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        if self.late_rows is not None:
            return (self.late_rows.select(rows),)
        return (self._select(rows),)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        return concat(parts)

    def _select(self, rows: pa.Table) -> pa.Table:
        return arrival.select_columns(rows, self.arrival_schema, self.spec.key_fields)

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        output, store = StepOutput(), self._open_store(state)
        waiting = TimeBucketStore(state, (self.waiting_schema,), None, "waiting")
        self._drop_expired(store, progress)
        rows = self._drop_late_rows(state, inputs[0], progress, output)
        rows = arrival.number_arrivals(state, rows).select(self.waiting_schema.names)
        self._touch_partitions(store, rows, progress)
        if progress.watermark_us is not None:
            due, ahead, rows = self._split_by_watermark(waiting, rows, progress.watermark_us)
            output.rows += self._emit(store, due, ahead, progress)
        if rows.num_rows:
            waiting.append((rows,))
        self.limits.enforce_with_waiting(self.name, store, waiting, state.metrics)
        return output

    def _open_store(self, state: KeyGroupState) -> SortedRunStore:
        """Open the store of partitions; with a time to live, its first table has the touches."""
        ttl, schemas = self.time_to_live, self.history.schemas
        if ttl is not None:
            return SortedRunStore(
                state,
                (ttl.schema, *schemas),
                lambda tables: (ttl.keep_latest(tables[0]), *tables[1:]),
                due=ttl.due,
            )
        expires = self.history.expires_by_watermark
        due = (lambda table: int_column(table, STORE_TIME)) if expires else None
        return SortedRunStore(state, schemas, lambda tables: tables, due=due)

    def _drop_late_rows(
        self, state: KeyGroupState, parts: list[Tables], progress: TimeProgress, output: StepOutput
    ) -> pa.Table:
        """Return the rows that are on time; late rows are counted and emitted to a late stream."""
        rows, late = split_late(self.shuffle_schemas[0][0], parts, state, progress)
        if self.late_rows is None:
            return rows
        output.late += self.late_rows.with_window(late, None, progress.previous_watermark_us)
        return self._select(rows)

    def _split_by_watermark(
        self, waiting: TimeBucketStore, rows: pa.Table, watermark_us: int
    ) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Return due rows, passed rows that due rows can read, and the new rows that wait.

        Passed rows that are not due stay in the store of waiting rows.
        """
        limit_us = self._limit_us(watermark_us)
        stored = [part[0] for part in waiting.load(None, watermark_us + 1)]
        waiting.drop_before(limit_us + 1)
        times = int_column(rows, STORE_TIME)
        new = rows.filter(pa.array(times <= watermark_us))
        passed = pa.concat_tables([self.waiting_schema.empty_table(), *stored, new])
        is_due = int_column(passed, STORE_TIME) <= limit_us
        rest = rows.filter(pa.array(times > limit_us))
        return passed.filter(pa.array(is_due)), passed.filter(pa.array(~is_due)), rest

    def _limit_us(self, watermark_us: int) -> int:
        """Return the largest STORE_TIME of due rows: the watermark has passed their frames."""
        return (
            watermark_us
            if watermark_us == END_OF_INPUT_US
            else watermark_us - self.reach.time_ahead
        )

    def _emit(
        self, store: SortedRunStore, due: pa.Table, ahead: pa.Table, progress: TimeProgress
    ) -> list[pa.Table]:
        """Emit due rows whose frame is complete, and update the stored partitions."""
        assert progress.watermark_us is not None, "rows become due only by the watermark"
        ended = progress.ended
        emitted: list[pa.Table] = []
        emits_waiting = progress.just_ended and self.reach.rows_ahead > 0
        if due.num_rows or emits_waiting:
            touches, stored = self._load(store, int_column(due, HASH), load_all=emits_waiting)
            limit_us = self._limit_us(progress.watermark_us)
            rows, tables = advance_partitions(
                self.history, stored, due, ahead, limit_us, store.state, ended
            )
            emitted = [rows] if rows.num_rows else []
            if not ended:
                hashes = np.unique(
                    np.concatenate([int_column(stored[0], HASH), int_column(due, HASH)])
                )
                store.replace(hashes, (*touches, *tables))
        if ended:
            # All later rows are late.
            store.clear()
        elif self.history.expires_by_watermark and self.time_to_live is None:
            store.drop_due(progress.watermark_us)
        return emitted

    def _load(
        self, store: SortedRunStore, hashes: np.ndarray, load_all: bool
    ) -> tuple[Tables, Tables]:
        """Load the touches, if there is a time to live, and the tables of partitions."""
        tables = store.load_all() if load_all else store.load(hashes)
        return ((), tables) if self.time_to_live is None else (tables[:1], tables[1:])

    def _touch_partitions(
        self, store: SortedRunStore, rows: pa.Table, progress: TimeProgress
    ) -> None:
        """Extend the life of partitions with new rows."""
        ttl = self.time_to_live
        if ttl is not None and rows.num_rows:
            empty_tables = (schema.empty_table() for schema in self.history.schemas)
            store.append((ttl.touch([rows], progress.now_us), *empty_tables))

    def _drop_expired(self, store: SortedRunStore, progress: TimeProgress) -> None:
        """Drop partitions whose time to live has ended."""
        ttl = self.time_to_live
        if ttl is None:
            return
        hashes = int_column(ttl.expired(store, progress.now_us), HASH)
        if not len(hashes):
            return
        (touches,), stored = self._load(store, hashes, load_all=False)
        alive = touches.filter(pa.array(ttl.due(touches) > progress.now_us))
        is_alive = ttl.has_key(alive, stored[0])
        store.replace(hashes, (alive, *self.history.filter_partitions(stored, is_alive)))
