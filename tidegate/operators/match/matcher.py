"""The operator of MATCH_RECOGNIZE: sorts the rows of partitions and emits their matches.

A row waits until the watermark has passed its time. From then on its position in the partition is
known. The state of a partition starts with the first row at which a match may still start, preceded
by the rows that conditions can read before it. The rows are searched again when rows of the
partition arrive, and when the watermark proves that no later row can be in a match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import GROUP_ID, HASH, STORE_TIME
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.groups import Aggregator, GroupSpec
from tidegate.operators.kernels import ordering as arrival
from tidegate.operators.kernels.arrays import (
    Ints,
    as_array,
    concat,
    int_column,
    take_or_null,
    to_flags,
)
from tidegate.operators.kernels.keys import group_ids
from tidegate.operators.kernels.ordering import (
    ARRIVAL_NUMBER,
    INT,
    Ordering,
    check_partitions,
    sort_codes,
)
from tidegate.operators.late_rows import LateRowFormat, split_late
from tidegate.operators.match.search import UNDECIDED, PatternMatch, Program, Search, navigate
from tidegate.operators.operator import (
    NO_LIMITS,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    TimeProgress,
)
from tidegate.operators.store import sorted_runs as runs
from tidegate.operators.store import time_buckets as segments
from tidegate.operators.store.sorted_runs import SortedRunStore, TimeToLive
from tidegate.operators.store.time_buckets import TimeBucketStore
from tidegate.operators.watermark import END_OF_INPUT_US
from tidegate.state.codec import schema_text

# ---- Measures: values of single rows, and aggregates over the rows of variables

BOOL = pa.bool_()


@dataclass(frozen=True)
class RowMeasure:
    """The value of one row of a match, selected as in `search.NavigatedValue`."""

    value: int
    type: pa.DataType
    variables: frozenset[int]
    last: bool = True
    offset: int = 0
    back: int = 0


@dataclass(frozen=True)
class AggregateMeasure:
    """An aggregate over the rows of some variables; `call` is the call in the query."""

    call: AggregateCall
    values: tuple[int, ...]
    variables: frozenset[int]

    @property
    def type(self) -> pa.DataType:
        return self.call.result

    @cached_property
    def filtered_call(self) -> AggregateCall:
        """The call over all rows of a match, with a filter for the rows of the variables."""
        call = self.call
        arguments = call.arguments[:-1] if call.filtered else call.arguments
        return AggregateCall(
            call.function,
            call.text,
            (*arguments, BOOL),
            call.result,
            call.distinct,
            True,
            call.constants,
        )


@dataclass(frozen=True)
class MeasureEvaluator:
    """Evaluates the measures of a query for its matches."""

    measures: tuple[RowMeasure | AggregateMeasure, ...]

    @cached_property
    def aggregates(self) -> tuple[AggregateMeasure, ...]:
        return tuple(item for item in self.measures if isinstance(item, AggregateMeasure))

    @cached_property
    def aggregator(self) -> Aggregator:
        return Aggregator(GroupSpec((), tuple(item.filtered_call for item in self.aggregates)))

    def columns(
        self, rows: pa.Table, matches: Sequence[PatternMatch], partition_starts: Sequence[int]
    ) -> list[pa.Array | pa.ChunkedArray]:
        """Return a column per measure.

        `partition_starts` has the first row of the partition of each match.
        """
        aggregates = iter(self._aggregate(rows, matches)) if self.aggregates else iter(())
        columns = []
        for item in self.measures:
            if isinstance(item, AggregateMeasure):
                columns.append(next(aggregates))
                continue
            indices = np.full(len(matches), -1, np.int64)
            for number, match in enumerate(matches):
                row = navigate(match.rows(item.variables), item.last, item.offset, item.back)
                indices[number] = row if row >= partition_starts[number] else -1
            columns.append(take_or_null(rows.column(f"v{item.value}"), indices))
        return columns

    def _aggregate(self, rows: pa.Table, matches: Sequence[PatternMatch]) -> list[pa.ChunkedArray]:
        """Return the results of the aggregates by match."""
        sizes = [len(match.variables) for match in matches]
        numbers = np.repeat(np.arange(len(matches)), sizes)
        indices = np.concatenate([np.arange(match.first, match.end) for match in matches])
        variables = np.concatenate([np.asarray(match.variables) for match in matches])
        table = self._arguments(rows.take(pa.array(indices)), variables)
        table = table.append_column(GROUP_ID, pa.array(numbers, pa.int64()))
        zeros = np.zeros(len(numbers), np.int64)
        results = self.aggregator.evaluate(
            self.aggregator.pre_aggregate(table.append_column(HASH, pa.array(zeros)))
        )
        order = pa.array(np.argsort(results.column(GROUP_ID).to_numpy()))
        return [results.column(f"r{index}").take(order) for index, _ in enumerate(self.aggregates)]

    def _arguments(self, rows: pa.Table, variables: Ints) -> pa.Table:
        """Return the arguments of the aggregates, with their filters."""
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        for index, item in enumerate(self.aggregates):
            arguments = [rows.column(f"v{value}") for value in item.values]
            keep: pa.Array | pa.ChunkedArray = pa.array(np.isin(variables, list(item.variables)))
            if item.call.filtered:
                *arguments, condition = arguments
                keep = pc.and_(condition, keep)
            for number, column in enumerate([*arguments, keep]):
                columns[f"a{index}_{number}"] = column
        return pa.table(columns)


# ---- The operator

TIME, IS_OPEN = "_time", "_open"
FORMAT = "match 1"
NEXT_ROW, PAST_LAST_ROW, TO_FIRST, TO_LAST = "next", "past", "first", "last"


@dataclass(frozen=True)
class MatchSpec:
    """A MATCH_RECOGNIZE clause.

    Columns are `k0`, … (PARTITION BY), `o0`, … (ORDER BY after the time) and `v0`, … (the values
    that conditions and measures read). `skip_to` are the variables of TO FIRST and TO LAST.
    """

    keys: tuple[pa.DataType, ...]
    orders: tuple[Ordering, ...]
    values: tuple[pa.DataType, ...]
    program: Program
    measures: tuple[RowMeasure | AggregateMeasure, ...]
    skip: str = PAST_LAST_ROW
    skip_to: frozenset[int] = frozenset()
    rows_back: int = 0

    def __post_init__(self) -> None:
        check_partitions(self.keys, self.orders)

    @property
    def key_fields(self) -> list[pa.Field]:
        return [pa.field(f"k{index}", data_type) for index, data_type in enumerate(self.keys)]

    @property
    def fields(self) -> list[pa.Field]:
        """The columns after the hash that arriving and stored rows have in common."""
        orders = [pa.field(f"o{index}", item.type) for index, item in enumerate(self.orders)]
        values = [pa.field(f"v{index}", data_type) for index, data_type in enumerate(self.values)]
        return [*self.key_fields, pa.field(TIME, INT), *orders, *values]

    @cached_property
    def measure_evaluator(self) -> MeasureEvaluator:
        return MeasureEvaluator(self.measures)

    def next_start(self, match: PatternMatch) -> int:
        """Return the first row at which the next match may start."""
        if self.skip == NEXT_ROW:
            return match.first + 1
        if self.skip == PAST_LAST_ROW:
            return match.end
        rows = match.rows(self.skip_to)
        row = rows[0] if self.skip == TO_FIRST else rows[-1]
        assert row > match.first, "a match cannot start at the same row twice"
        return row


@dataclass(frozen=True)
class MatchOperator:
    """Emits matches; STORE_TIME of an arriving row is the watermark that passes its time."""

    spec: MatchSpec
    ttl_us: int | None = None
    late_rows: LateRowFormat | None = None
    limits: Limits = NO_LIMITS
    panes = None
    name: str = "match"

    @property
    def output(self) -> pa.Schema:
        data_types = [*self.spec.keys, *(item.type for item in self.spec.measures)]
        return pa.schema(
            [pa.field(f"c{index}", data_type) for index, data_type in enumerate(data_types)]
        )

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    @property
    def _fields(self) -> list[pa.Field]:
        return [pa.field(STORE_TIME, INT), pa.field(HASH, INT), *self.spec.fields]

    @property
    def arrival_schema(self) -> pa.Schema:
        return arrival.arrival_schema(self._fields)

    @cached_property
    def waiting_schema(self) -> pa.Schema:
        """The schema of a row that waits for the watermark, with its arrival number."""
        return arrival.stored_schema(self._fields)

    @cached_property
    def stored_schema(self) -> pa.Schema:
        """The schema of a row that the watermark has passed. A match may start at it if it is open.

        STORE_TIME is the watermark at which the rows of the partition must be searched again.
        """
        return pa.schema([*self.waiting_schema, pa.field(IS_OPEN, pa.bool_())])

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        late = self.late_rows
        return ((late.input_schema if late is not None else self.arrival_schema,),)

    @property
    def time_to_live(self) -> TimeToLive | None:
        if self.ttl_us is None:
            return None
        return TimeToLive(self.ttl_us, tuple(self.spec.key_fields))

    def state_format(self) -> tuple[str, ...]:
        formats = (FORMAT, runs.FORMAT, segments.FORMAT)
        return (*formats, schema_text(self.waiting_schema), schema_text(self.stored_schema))

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
        output = StepOutput()
        store = SortedRunStore(
            state,
            (self.stored_schema,),
            lambda tables: tables,
            due=lambda rows: int_column(rows, STORE_TIME),
        )
        waiting = TimeBucketStore(state, (self.waiting_schema,), None, "waiting")
        rows = self._drop_late_rows(state, inputs[0], progress, output)
        rows = arrival.number_arrivals(state, rows).select(self.waiting_schema.names)
        self._expire_and_touch(state, store, rows, progress)
        if progress.watermark_us is not None:
            passed, rows = self._split_by_watermark(waiting, rows, progress.watermark_us)
            output.rows += self._emit_matches(store, passed, progress)
        if rows.num_rows:
            waiting.append((rows,))
        self.limits.enforce_with_waiting(self.name, store, waiting, state.metrics)
        return output

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
    ) -> tuple[pa.Table, pa.Table]:
        """Return the rows that the watermark has passed, and the new rows that wait."""
        stored = [part[0] for part in waiting.load(None, watermark_us + 1)]
        waiting.drop_before(watermark_us + 1)
        is_passed = int_column(rows, STORE_TIME) <= watermark_us
        new = rows.filter(pa.array(is_passed))
        passed = pa.concat_tables([self.waiting_schema.empty_table(), *stored, new])
        return passed, rows.filter(pa.array(~is_passed))

    def _emit_matches(
        self, store: SortedRunStore, passed: pa.Table, progress: TimeProgress
    ) -> list[pa.Table]:
        """Search the partitions of new rows and those that are due; update their stored rows."""
        assert progress.watermark_us is not None, "the watermark has passed rows"
        if progress.ended:
            stored = store.load_all()[0]
            hashes = np.zeros(0, np.int64)
        else:
            due_hashes = store.due_hashes(progress.watermark_us)
            hashes = np.union1d(int_column(passed, HASH), due_hashes)
            stored = store.load(hashes)[0]
        is_open = pa.array(np.ones(passed.num_rows, np.bool_))
        rows = pa.concat_tables([stored, passed.append_column(IS_OPEN, is_open)])
        if not rows.num_rows:
            return []
        matches, remaining = _PartitionSearch(self, rows, progress).run()
        if progress.ended:
            # All later rows are late.
            store.clear()
        else:
            store.replace(hashes, (remaining,))
        return [matches] if matches.num_rows else []

    def _expire_and_touch(
        self, state: KeyGroupState, store: SortedRunStore, rows: pa.Table, progress: TimeProgress
    ) -> None:
        """Drop partitions whose time to live has ended; restart it for those with new rows."""
        ttl = self.time_to_live
        if ttl is None:
            return
        touched = SortedRunStore(
            state,
            (ttl.schema,),
            lambda tables: (ttl.keep_latest(tables[0]),),
            due=ttl.due,
            name="touched",
        )
        expired = ttl.expired(touched, progress.now_us)
        if expired.num_rows:
            hashes = int_column(expired, HASH)
            (touches,), (stored,) = touched.load(hashes), store.load(hashes)
            alive = touches.filter(pa.array(ttl.due(touches) > progress.now_us))
            touched.replace(hashes, (alive,))
            store.replace(hashes, (ttl.rows_of_keys(alive, stored),))
        if rows.num_rows:
            touched.append((ttl.touch([rows], progress.now_us),))
        touched.save()


class _PartitionSearch:
    """Searches the sorted rows of partitions."""

    def __init__(self, operator: MatchOperator, rows: pa.Table, progress: TimeProgress) -> None:
        self.operator = operator
        self.spec = spec = operator.spec
        self.progress = progress
        ids, _ = group_ids(rows, [HASH, *(item.name for item in spec.key_fields)])
        by = [sort_codes(rows.column(f"o{o}"), item) for o, item in enumerate(spec.orders)]
        order = np.lexsort(
            (int_column(rows, ARRIVAL_NUMBER), *reversed(by), int_column(rows, TIME), ids)
        )
        self.rows = rows.take(pa.array(order))
        self.ids: Ints = ids[order]
        self.times = int_column(self.rows, TIME)
        values = spec.program.values
        columns = {value: _plain_values(self.rows.column(f"v{value}")) for value in values}
        self.search = Search(spec.program, columns, self.times.tolist())
        self.matches: list[PatternMatch] = []
        # The first row of the partition of each match.
        self.partition_starts: list[int] = []

    def run(self) -> tuple[pa.Table, pa.Table]:
        """Return the matches, and the rows to store."""
        total = len(self.ids)
        is_stored, is_open = np.zeros(total, np.bool_), np.zeros(total, np.bool_)
        due_us = np.full(total, END_OF_INPUT_US, np.int64)
        was_open = to_flags(self.rows.column(IS_OPEN))
        starts = np.flatnonzero(np.diff(self.ids, prepend=-1))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), total], strict=True):
            first = start + int(np.count_nonzero(~was_open[start:stop]))
            row = self._find_matches(first, start, stop)
            is_stored[max(start, row - self.spec.rows_back) : stop] = True
            is_open[row:stop] = True
            if row < stop and self.spec.program.within_us is not None:
                due_us[start:stop] = self.times[row] + self.spec.program.within_us
        schema = self.operator.stored_schema
        hidden = {STORE_TIME: pa.array(due_us), IS_OPEN: pa.array(is_open)}
        columns = [
            hidden[name] if name in hidden else self.rows.column(name) for name in schema.names
        ]
        stored = pa.table(columns, schema=schema).filter(pa.array(is_stored))
        return self._result(), stored

    def _find_matches(self, row: int, start: int, stop: int) -> int:
        """Collect the matches of a partition; return the row at which the next one may start."""
        while row < stop:
            result = self.search.match_at(row, start, stop, self._is_complete(row))
            if result == UNDECIDED:
                return row
            if isinstance(result, PatternMatch):
                self.matches.append(result)
                self.partition_starts.append(start)
                row = self.spec.next_start(result)
            else:
                row += 1
        return row

    def _is_complete(self, row: int) -> bool:
        """Return whether no row that arrives later can be in a match that starts at this row."""
        within_us = self.spec.program.within_us
        watermark_us = self.progress.watermark_us
        assert watermark_us is not None, "the watermark has passed rows"
        if self.progress.ended:
            return True
        return within_us is not None and watermark_us >= self.times[row] + within_us

    def _result(self) -> pa.Table:
        """Return one row per match."""
        schema = self.operator.output
        if not self.matches:
            return schema.empty_table()
        firsts = pa.array([match.first for match in self.matches])
        keys = [self.rows.column(item.name).take(firsts) for item in self.spec.key_fields]
        evaluator = self.spec.measure_evaluator
        measures = evaluator.columns(self.rows, self.matches, self.partition_starts)
        return pa.table([*keys, *measures], schema=schema)


def _plain_values(column: pa.ChunkedArray) -> list[Any]:
    """Return values for conditions, which compare times, dates and intervals as integers."""
    array = as_array(column)
    data_type = array.type
    if pa.types.is_date32(data_type):
        array = array.cast(pa.int32())
    elif pa.types.is_timestamp(data_type) or pa.types.is_duration(data_type):
        array = array.cast(pa.int64())
    values: list[Any] = array.to_pylist()
    return values
