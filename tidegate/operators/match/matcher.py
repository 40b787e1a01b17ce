"""MATCH_RECOGNIZE: rows of a partition in the order of time, and the matches that begin at them.

A row waits by its time until the watermark has passed it; from then on its place is known. Rows
from the first one on at which a match may still begin are kept by the hash of their keys, with so
many before them as conditions can see. They are looked at again when rows of their partition come,
and when the watermark says that no later row can be in such a match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import HASH, PANE
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
from tidegate.operators.kernels.ordering import INT, SEQ, Ordering, check_partitions, sort_codes
from tidegate.operators.late_rows import LateRows, split_late
from tidegate.operators.match.search import WAITS, PatternMatch, Program, Search, place_in
from tidegate.operators.operator import (
    NO_LIMITS,
    EpochTime,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
)
from tidegate.operators.store import sorted_runs as runs
from tidegate.operators.store import time_buckets as segments
from tidegate.operators.store.sorted_runs import SortedRunStore, TimeToLive
from tidegate.operators.store.time_buckets import TimeBucketStore
from tidegate.operators.watermark import END_US
from tidegate.state.codec import schema_text

# ---- What matches give out: values of single rows, and aggregates over the rows of variables.

BOOL = pa.bool_()


@dataclass(frozen=True)
class TakenValue:
    """The value of one row, found as in `match_search.Seen`."""

    value: int
    type: pa.DataType
    variables: frozenset[int]
    last: bool = True
    offset: int = 0
    back: int = 0


@dataclass(frozen=True)
class Totalled:
    """An aggregate of values over the rows of some variables; `call` is as the query has it."""

    call: AggregateCall
    values: tuple[int, ...]
    variables: frozenset[int]

    @property
    def type(self) -> pa.DataType:
        return self.call.result

    @cached_property
    def limited(self) -> AggregateCall:
        """The call over all rows of a match, of which those of the variables count."""
        own, call = self.call, self.call
        arguments = own.arguments[:-1] if own.filtered else own.arguments
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
class Results:
    """The measures of a query."""

    measures: tuple[TakenValue | Totalled, ...]

    @cached_property
    def totals(self) -> tuple[Totalled, ...]:
        return tuple(item for item in self.measures if isinstance(item, Totalled))

    @cached_property
    def groups(self) -> Aggregator:
        return Aggregator(GroupSpec((), tuple(item.limited for item in self.totals)))

    def columns(
        self, rows: pa.Table, matches: Sequence[PatternMatch], begins: Sequence[int]
    ) -> list[pa.Array | pa.ChunkedArray]:
        """A column a measure; `begins` says where the partition of each match begins."""
        totals = iter(self._totals(rows, matches)) if self.totals else iter(())
        found = []
        for item in self.measures:
            if isinstance(item, Totalled):
                found.append(next(totals))
            else:
                places = self._places(item, matches, begins)
                found.append(take_or_null(rows.column(f"v{item.value}"), places))
        return found

    def _places(
        self, item: TakenValue, matches: Sequence[PatternMatch], begins: Sequence[int]
    ) -> Ints:
        places = np.full(len(matches), -1, np.int64)
        for number, match in enumerate(matches):
            at = place_in(match.rows(item.variables), item.last, item.offset, item.back)
            places[number] = at if at >= begins[number] else -1
        return places

    def _totals(self, rows: pa.Table, matches: Sequence[PatternMatch]) -> list[pa.ChunkedArray]:
        sizes = [len(match.variables) for match in matches]
        numbers = np.repeat(np.arange(len(matches)), sizes)
        places = np.concatenate([np.arange(match.first, match.end) for match in matches])
        variables = np.concatenate([np.asarray(match.variables) for match in matches])
        table = self._arguments(rows.take(pa.array(places)), variables)
        table = table.append_column(PANE, pa.array(numbers, pa.int64()))
        zeros = np.zeros(len(numbers), np.int64)
        answers = self.groups.evaluate(
            self.groups.pre_aggregate(table.append_column(HASH, pa.array(zeros)))
        )
        order = pa.array(np.argsort(answers.column(PANE).to_numpy()))
        return [answers.column(f"r{index}").take(order) for index, _ in enumerate(self.totals)]

    def _arguments(self, rows: pa.Table, variables: Ints) -> pa.Table:
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        for index, item in enumerate(self.totals):
            own = [rows.column(f"v{value}") for value in item.values]
            counts: pa.Array | pa.ChunkedArray = pa.array(np.isin(variables, list(item.variables)))
            if item.call.filtered:
                *own, asked = own
                counts = pc.and_(asked, counts)
            for place, column in enumerate([*own, counts]):
                columns[f"a{index}_{place}"] = column
        return pa.table(columns)


TIME, OPEN = "_time", "_open"
FORMAT = "match 1"
NEXT_ROW, PAST_LAST_ROW, TO_FIRST, TO_LAST = "next", "past", "first", "last"


@dataclass(frozen=True)
class MatchSpec:
    """Columns are `k0`, … (keys), `o0`, … (what rows are ordered by, behind the time) and `v0`, …
    (what conditions and measures read). `skip_to` are the variables of TO FIRST and TO LAST."""

    keys: tuple[pa.DataType, ...]
    orders: tuple[Ordering, ...]
    values: tuple[pa.DataType, ...]
    program: Program
    measures: tuple[TakenValue | Totalled, ...]
    skip: str = PAST_LAST_ROW
    skip_to: frozenset[int] = frozenset()
    rows_back: int = 0

    def __post_init__(self) -> None:
        check_partitions(self.keys, self.orders)

    @property
    def key_fields(self) -> list[pa.Field]:
        return [pa.field(f"k{index}", kind) for index, kind in enumerate(self.keys)]

    @property
    def content(self) -> list[pa.Field]:
        """What rows have wherever they are, besides their hash."""
        orders = [pa.field(f"o{index}", item.type) for index, item in enumerate(self.orders)]
        values = [pa.field(f"v{index}", kind) for index, kind in enumerate(self.values)]
        return [*self.key_fields, pa.field(TIME, INT), *orders, *values]

    @cached_property
    def results(self) -> Results:
        return Results(self.measures)

    def next_row(self, match: PatternMatch) -> int:
        """The first row at which the next match may begin."""
        if self.skip == NEXT_ROW:
            return match.first + 1
        if self.skip == PAST_LAST_ROW:
            return match.end
        rows = match.rows(self.skip_to)
        row = rows[0] if self.skip == TO_FIRST else rows[-1]
        assert row > match.first, "a match is not found twice"
        return row


@dataclass(frozen=True)
class MatchOperator:
    """The pane of a row is the moment at which the watermark has passed its time."""

    spec: MatchSpec
    ttl_us: int | None = None
    late_rows: LateRows | None = None
    limits: Limits = NO_LIMITS
    name: str = "match"

    # Shapes

    @property
    def output(self) -> pa.Schema:
        kinds = [*self.spec.keys, *(item.type for item in self.spec.measures)]
        return pa.schema([pa.field(f"c{index}", kind) for index, kind in enumerate(kinds)])

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    @property
    def _content(self) -> list[pa.Field]:
        return [pa.field(PANE, INT), pa.field(HASH, INT), *self.spec.content]

    @property
    def arrived(self) -> pa.Schema:
        return arrival.arrival_schema(self._content)

    @cached_property
    def waiting(self) -> pa.Schema:
        """A row that waits for the watermark, with its place among all that came."""
        return arrival.stored_schema(self._content)

    @cached_property
    def kept(self) -> pa.Schema:
        """A row that the watermark has passed; whether a match may begin there, and until when."""
        return pa.schema([*self.waiting, pa.field(OPEN, pa.bool_())])

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        late = self.late_rows
        return ((late.input_schema if late is not None else self.arrived,),)

    @property
    def time_to_live(self) -> TimeToLive | None:
        if self.ttl_us is None:
            return None
        return TimeToLive(self.ttl_us, tuple(self.spec.key_fields))

    def state_format(self) -> tuple[str, ...]:
        formats = (FORMAT, runs.FORMAT, segments.FORMAT)
        return (*formats, schema_text(self.waiting), schema_text(self.kept))

    # Where the rows are

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        if self.late_rows is not None:
            return (self.late_rows.select(rows),)
        return (self._select(rows),)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        return concat(parts)

    def _select(self, rows: pa.Table) -> pa.Table:
        return arrival.select_columns(rows, self.arrived, self.spec.key_fields)

    # Where the state is

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        output = StepOutput()
        log = SortedRunStore(
            state, (self.kept,), lambda tables: tables, due=lambda t: int_column(t, PANE)
        )
        waiting = TimeBucketStore(state, (self.waiting,), None, "waiting")
        rows = arrival.number_arrivals(state, self._on_time(state, inputs[0], epoch_time, output))
        rows = rows.select(self.waiting.names)
        self._touch(state, log, rows, epoch_time)
        if epoch_time.watermark_us is not None:
            due, rows = self._split(waiting, rows, epoch_time.watermark_us)
            output.main += self._results(log, due, epoch_time)
        if rows.num_rows:
            waiting.append((rows,))
        self.limits.enforce_with_waiting(self.name, log, waiting, state.gauges)
        return output

    def _on_time(
        self, state: KeyGroupState, parts: list[Tables], epoch_time: EpochTime, output: StepOutput
    ) -> pa.Table:
        """Rows that are not late; late ones are counted, and kept if asked."""
        rows, late = split_late(self.shuffle_schemas[0][0], parts, state, epoch_time)
        if self.late_rows is None:
            return rows
        output.late += self.late_rows.with_window(late, None, epoch_time.previous_watermark_us)
        return self._select(rows)

    def _split(
        self, waiting: TimeBucketStore, rows: pa.Table, after: int
    ) -> tuple[pa.Table, pa.Table]:
        """Rows that the watermark has passed, and new ones that wait on."""
        known = [part[0] for part in waiting.load(None, after + 1)]
        waiting.drop_before(after + 1)
        passed = pa.array(int_column(rows, PANE) <= after)
        due = pa.concat_tables([self.waiting.empty_table(), *known, rows.filter(passed)])
        return due, rows.filter(pa.array(int_column(rows, PANE) > after))

    def _results(self, log: SortedRunStore, due: pa.Table, epoch_time: EpochTime) -> list[pa.Table]:
        assert epoch_time.watermark_us is not None, "the watermark has passed something"
        if epoch_time.ended:
            known = log.load_all()[0]
            hashes = np.zeros(0, np.int64)
        else:
            hashes = np.union1d(int_column(due, HASH), log.due_hashes(epoch_time.watermark_us))
            known = log.load(hashes)[0]
        is_open = pa.array(np.ones(due.num_rows, np.bool_))
        rows = pa.concat_tables([known, due.append_column(OPEN, is_open)])
        if not rows.num_rows:
            return []
        matched, left = _Partitions(self, rows, epoch_time).matched()
        if epoch_time.ended:
            # Whatever comes now is late.
            log.clear()
        else:
            log.replace(hashes, (left,))
        return [matched] if matched.num_rows else []

    # Forgetting

    def _touch(
        self, state: KeyGroupState, log: SortedRunStore, rows: pa.Table, epoch_time: EpochTime
    ) -> None:
        """Forget partitions whose time is over, and note those that have new rows."""
        live = self.time_to_live
        if live is None:
            return
        touched = SortedRunStore(
            state, (live.schema,), lambda t: (live.keep_latest(t[0]),), due=live.due, name="touched"
        )
        expired = live.expired(touched, epoch_time.now_us)
        if expired.num_rows:
            hashes = int_column(expired, HASH)
            (touches,), (known,) = touched.load(hashes), log.load(hashes)
            alive = touches.filter(pa.array(live.due(touches) > epoch_time.now_us))
            touched.replace(hashes, (alive,))
            log.replace(hashes, (live.rows_of_keys(alive, known),))
        if rows.num_rows:
            touched.append((live.touch([rows], epoch_time.now_us),))
        touched.save()


class _Partitions:
    """The rows of some partitions in order: what matches there, and what must be kept."""

    def __init__(self, operator: MatchOperator, rows: pa.Table, epoch_time: EpochTime) -> None:
        self.operator = operator
        self.spec = spec = operator.spec
        self.epoch_time = epoch_time
        ids, _ = group_ids(rows, [HASH, *(item.name for item in spec.key_fields)])
        by = [sort_codes(rows.column(f"o{o}"), item) for o, item in enumerate(spec.orders)]
        order = np.lexsort((int_column(rows, SEQ), *reversed(by), int_column(rows, TIME), ids))
        self.rows = rows.take(pa.array(order))
        self.ids: Ints = ids[order]
        self.times = int_column(self.rows, TIME)
        values = spec.program.values
        columns = {v: _plain(self.rows.column(f"v{v}")) for v in values}
        self.search = Search(spec.program, columns, self.times.tolist())
        self.matches: list[PatternMatch] = []
        self.begins: list[int] = []

    def matched(self) -> tuple[pa.Table, pa.Table]:
        """A row a match, and the rows that stay."""
        total = len(self.ids)
        stays, is_open = np.zeros(total, np.bool_), np.zeros(total, np.bool_)
        due = np.full(total, END_US, np.int64)
        flags = to_flags(self.rows.column(OPEN))
        begins = np.flatnonzero(np.diff(self.ids, prepend=-1))
        for begin, stop in zip(begins.tolist(), [*begins[1:].tolist(), total], strict=True):
            first = begin + int(np.count_nonzero(~flags[begin:stop]))
            row = self._search(first, begin, stop)
            stays[max(begin, row - self.spec.rows_back) : stop] = True
            is_open[row:stop] = True
            if row < stop and self.spec.program.within_us is not None:
                due[begin:stop] = self.times[row] + self.spec.program.within_us
        names = self.operator.kept.names
        made = {PANE: pa.array(due), OPEN: pa.array(is_open)}
        columns = [made[name] if name in made else self.rows.column(name) for name in names]
        kept = pa.table(columns, schema=self.operator.kept).filter(pa.array(stays))
        return self._output(), kept

    def _search(self, row: int, begin: int, stop: int) -> int:
        """Note the matches of a partition; returns the first row at which one may still begin."""
        while row < stop:
            found = self.search.at(row, begin, stop, self._is_complete(row))
            if found == WAITS:
                return row
            if isinstance(found, PatternMatch):
                self.matches.append(found)
                self.begins.append(begin)
                row = self.spec.next_row(found)
            else:
                row += 1
        return row

    def _is_complete(self, row: int) -> bool:
        """Whether no row that comes later can be in a match that begins here."""
        within, after = self.spec.program.within_us, self.epoch_time.watermark_us
        assert after is not None, "the watermark has passed something"
        return self.epoch_time.ended or (within is not None and after >= self.times[row] + within)

    def _output(self) -> pa.Table:
        schema = self.operator.output
        if not self.matches:
            return schema.empty_table()
        firsts = pa.array([match.first for match in self.matches])
        keys = [self.rows.column(item.name).take(firsts) for item in self.spec.key_fields]
        measures = self.spec.results.columns(self.rows, self.matches, self.begins)
        return pa.table([*keys, *measures], schema=schema)


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """Values as conditions compare them: times, dates and intervals are whole numbers."""
    array = as_array(column)
    kind = array.type
    if pa.types.is_date32(kind):
        array = array.cast(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        array = array.cast(pa.int64())
    values: list[Any] = array.to_pylist()
    return values
