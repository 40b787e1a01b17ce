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

from tidegate.columns import HASH, PANE
from tidegate.operators.kernels import ordering as arrival
from tidegate.operators.kernels.arrays import (
    Ints,
    Mask,
    as_array,
    concat,
    int_column,
    take_or_null,
    to_flags,
)
from tidegate.operators.kernels.keys import find_rows, group_ids
from tidegate.operators.kernels.ordering import INT, SEQ
from tidegate.operators.late_rows import LateRows, split_late
from tidegate.operators.operator import (
    NO_LIMITS,
    EpochTime,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
)
from tidegate.operators.over.frames import Placed
from tidegate.operators.over.functions import FrameGroup, OverSpec, ranked, shifted
from tidegate.operators.over.history import (
    BEFORE,
    DONE,
    ENDS,
    GROUPS,
    ID,
    TIME,
    FrameReach,
    History,
    begin_of,
    state_of,
)
from tidegate.operators.store import sorted_runs as runs
from tidegate.operators.store import time_buckets as segments
from tidegate.operators.store.sorted_runs import SortedRunStore, TimeToLive
from tidegate.operators.store.time_buckets import TimeBucketStore
from tidegate.operators.watermark import END_US
from tidegate.state.codec import schema_text

# ---- One epoch of some partitions: their new rows come out, and what later rows can see stays.

# What a row is: out already, about to come out, or only there to be seen.
_OUT, _DUE, _AHEAD = 0, 1, 2


def advance(
    history: History,
    known: Tables,
    due: pa.Table,
    ahead: pa.Table,
    limit: int,
    state: KeyGroupState,
    ended: bool,
) -> tuple[pa.Table, Tables]:
    """The rows that come out, and what is known of the partitions afterwards.

    `ahead` are rows that the watermark has passed and whose own frames it has not; rows that come
    later were passed after `limit`.
    """
    by = [HASH, *(item.name for item in history.spec.key_fields)]
    partitions, owners = _owners(history, known[0], due, by, state)
    seen_by = find_rows(partitions, ahead, by)
    seen = seen_by >= 0
    old = _places_by_id(partitions, known[1])
    stages = [
        np.where(to_flags(known[1].column(DONE)), _OUT, _DUE),
        np.full(due.num_rows, _DUE),
        np.full(int(seen.sum()), _AHEAD),
    ]
    rows = pa.concat_tables(
        [
            known[1].select(_names(history)),
            _as_rows(history, due),
            _as_rows(history, ahead.filter(pa.array(seen))),
        ]
    )
    all_owners = np.concatenate([old, owners, seen_by[seen]])
    at = history.spec.place(rows, all_owners, 0, int_column(rows, SEQ))
    order = pa.array(at.order)
    stage = np.concatenate(stages)[at.order]
    step = _Step(history, partitions, known[2:], rows.take(order), at, stage, limit, ended)
    return step.results(), step.kept()


def _owners(
    history: History, partitions: pa.Table, due: pa.Table, by: list[str], state: KeyGroupState
) -> tuple[pa.Table, Ints]:
    """All partitions, also those that are new, and the place of the partition of each row."""
    places = find_rows(partitions, due, by)
    new = np.flatnonzero(places < 0)
    if not len(new):
        return partitions, places
    some = due.take(pa.array(new))
    ids, count = group_ids(some, by)
    firsts = np.zeros(count, np.int64)
    firsts[ids[::-1]] = np.arange(len(ids))[::-1]
    next_id = int(state.meta.get("partitions", 0))
    state.meta["partitions"] = next_id + count
    places[new] = partitions.num_rows + ids
    made = history.new_partitions(some.take(pa.array(firsts)), next_id)
    return pa.concat_tables([partitions, made]), places


def _places_by_id(partitions: pa.Table, rows: pa.Table) -> Ints:
    ids = int_column(partitions, ID)
    order = np.argsort(ids)
    found: Ints = order[np.searchsorted(ids[order], int_column(rows, ID))]
    return found


def _names(history: History) -> list[str]:
    return [TIME, SEQ, *(item.name for item in history.content)]


def _as_rows(history: History, waited: pa.Table) -> pa.Table:
    """Rows that have waited; their pane is the moment the watermark passed them."""
    names = [PANE if name == TIME else name for name in _names(history)]
    schema = pa.schema([history.row.field(name) for name in _names(history)])
    return waited.select(names).rename_columns(_names(history)).cast(schema)


@dataclass(frozen=True, eq=False)
class _Step:
    """Rows in order, what each is (`stage`), and the partitions they belong to, by place."""

    history: History
    partitions: pa.Table
    bags: Tables
    rows: pa.Table
    at: Placed
    stage: Ints
    limit: int
    ended: bool

    # Where rows are

    @cached_property
    def owners(self) -> Ints:
        return self.at.partitions

    @cached_property
    def begins(self) -> Ints:
        """Where each partition begins; one without rows is empty."""
        every = np.arange(self.partitions.num_rows)
        return np.searchsorted(self.owners, every)

    @cached_property
    def stops(self) -> Ints:
        """Where the rows of a partition end whose own frames the watermark has passed."""
        every = np.arange(self.partitions.num_rows)
        ends = np.searchsorted(self.owners, every, "right")
        ahead = np.bincount(self.owners[self.stage == _AHEAD], minlength=len(every))
        found: Ints = ends - ahead
        return found

    @cached_property
    def comes_out(self) -> Mask:
        follow = self.at.places + self.history.reach.rows_ahead < self.at.ends
        found: Mask = (self.stage == _DUE) & (follow | self.ended)
        return found

    @cached_property
    def waits(self) -> Ints:
        """Rows that wait for rows behind them."""
        return np.flatnonzero((self.stage == _DUE) & ~self.comes_out)

    @cached_property
    def frames(self) -> dict[FrameGroup, tuple[Ints, Ints]]:
        spec = self.history.spec
        found = {}
        for group in spec.frame_groups:
            starts, ends = spec.frame(group.frame, self.rows, self.at, 0)
            if group.runs_on:
                starts = self._first_rows(self.history.running.index(group))[self.owners]
            found[group] = starts, np.maximum(starts, ends)
        return found

    def _first_rows(self, number: int) -> Ints:
        """The first row of each partition that is not in the state it carries on."""
        folded = int_column(self.partitions, begin_of(number)) - int_column(self.partitions, BEFORE)
        first: Ints = self.begins + np.maximum(folded, 0)
        return first

    @cached_property
    def folds(self) -> list[Ints]:
        """Up to where rows go into the states of frames that run on, by partition."""
        found = []
        for number, group in enumerate(self.history.running):
            stop = self._in_every_frame(group)
            waits, ends = self.waits, self.frames[group][1]
            np.minimum.at(stop, self.owners[waits], ends[waits])
            found.append(np.clip(stop, self._first_rows(number), self.stops))
        return found

    def _in_every_frame(self, group: FrameGroup) -> Ints:
        """Up to where rows are in the frames of all rows that are still to come."""
        end = group.frame.end
        assert end is not None, "it does not wait for the end of the partition"
        if group.frame.by_rows:
            stops: Ints = self.stops + min(0, int(end) + 1)
            return stops
        if end >= 0:
            return self.stops.copy()
        passed = self._count(int_column(self.rows, TIME) <= self.limit + 1 + int(end))
        return np.asarray(self.begins + passed, np.int64)

    def _count(self, rows: Mask) -> Ints:
        """How many of these rows each partition has, of those that are not only seen."""
        some = self.owners[rows & (self.stage != _AHEAD)]
        counts: Ints = np.bincount(some, minlength=self.partitions.num_rows)
        return counts

    # What comes out

    @cached_property
    def _states(self) -> dict[FrameGroup, Tables]:
        """The states of the frames of rows that come out, and then what is carried on."""
        wanted = np.flatnonzero(self.comes_out)
        found = {}
        for group, (starts, ends) in self.frames.items():
            starts, ends, owners = starts[wanted], ends[wanted], self.owners[wanted]
            carried = None
            if group.runs_on:
                number = self.history.running.index(group)
                bags = self.history.bags_of(number, self.bags)
                carried = self.history.carried(number, self.partitions, bags)
                starts = np.concatenate([starts, self._first_rows(number)])
                ends = np.concatenate([ends, self.folds[number]])
                owners = np.concatenate([owners, np.arange(self.partitions.num_rows)])
            found[group] = group.states(self.rows, starts, ends, carried, owners)
        return found

    def results(self) -> pa.Table:
        """The rows that come out, by time."""
        history, wanted = self.history, np.flatnonzero(self.comes_out)
        spec, take = history.spec, pa.array(wanted)
        rows = self.rows.take(take)
        found: dict[int, pa.Array] = {}
        for index, function in enumerate(spec.functions):
            if function.is_rank:
                before = int_column(self.partitions, BEFORE)[self.owners]
                groups = int_column(self.partitions, GROUPS)[self.owners]
                found[index] = ranked(function, self.at, before, groups).take(take)
            elif function.shift is not None:
                found[index] = shifted(index, function, self.rows, self.at).take(take)
        for group, states in self._states.items():
            found |= spec.results(group, _cut(states, 0, len(wanted)), rows)
        columns = [rows.column(item.name) for item in spec.column_fields]
        columns += [found[index] for index, _ in enumerate(spec.functions)]
        result = pa.table(columns, schema=spec.row)
        return result.take(pa.array(np.lexsort((int_column(rows, SEQ), int_column(rows, TIME)))))

    # What stays

    def kept(self) -> Tables:
        """What is known of the partitions after this."""
        first = self._first_kept
        places = self.at.places
        stays = (places >= first[self.owners]) & (self.stage != _AHEAD)
        partitions = self._moved_on(first)
        rows = self._kept_rows(np.flatnonzero(stays), partitions)
        if self.history.by_time:
            partitions = self._until_last_row(partitions, np.flatnonzero(stays))
        bags: list[pa.Table] = []
        wanted = int(self.comes_out.sum())
        for number, group in enumerate(self.history.running):
            states = _cut(self._states[group], wanted, self.partitions.num_rows)
            partitions = self._with_states(number, partitions, states[0])
            bags += self.history.stored_bags(number, states, partitions)
        return (partitions, rows, *bags)

    @cached_property
    def _first_kept(self) -> Ints:
        """The first row of each partition that a later row can see."""
        reach = self.history.reach
        first = self.stops - reach.rows_back
        if reach.time_back:
            gone = self._count(int_column(self.rows, TIME) + reach.time_back <= self.limit)
            first = np.minimum(first, self.begins + gone)
        for fold in self.folds:
            first = np.minimum(first, fold)
        waits = self.waits
        seen = [waits, waits - reach.rows_back]
        seen += [self.at.first_peers[waits]] if reach.ranks else []
        seen += [starts[waits] for group, (starts, _) in self.frames.items() if not group.runs_on]
        for places in seen:
            np.minimum.at(first, self.owners[waits], places)
        return np.clip(first, self.begins, self.stops)

    def _moved_on(self, first: Ints) -> pa.Table:
        """The partitions, of which the rows before the first kept one are gone."""
        gone = first - self.begins
        groups = np.zeros(len(gone), np.int64)
        some = self.stops > self.begins
        dense = self.at.dense
        inside = some & (first < self.stops)
        groups[inside] = dense[first[inside]]
        over = some & (first >= self.stops)
        groups[over] = dense[self.stops[over] - 1] + 1
        partitions = _plus(self.partitions, BEFORE, gone)
        return _plus(partitions, GROUPS, groups)

    def _kept_rows(self, places: Ints, partitions: pa.Table) -> pa.Table:
        take = pa.array(places)
        rows = self.rows.take(take)
        owners = pa.array(self.owners[places])
        done = ~np.isin(places, self.waits)
        made = {name: partitions.column(name).take(owners) for name in (PANE, HASH, ID)}
        made[DONE] = pa.array(done)
        if self.history.by_time and not self.history.closes:
            made[PANE] = pa.array(self._until(int_column(rows, TIME)))
        columns = []
        for item in self.history.row:
            column = made[item.name] if item.name in made else rows.column(item.name)
            if item.name[0] == "c":
                # What is out already is only looked at by functions.
                column = take_or_null(column, np.where(done, -1, np.arange(len(places))))
            columns.append(as_array(column))
        return pa.table(columns, schema=self.history.row)

    def _until(self, times: Ints) -> Ints:
        """From when on nobody can see a row."""
        reach = self.history.reach
        return times + reach.time_back + reach.time_ahead

    def _until_last_row(self, partitions: pa.Table, places: Ints) -> pa.Table:
        """Only partitions that have rows are worth keeping, and only as long as they have."""
        until = np.full(partitions.num_rows, -END_US, np.int64)
        times = self._until(int_column(self.rows, TIME)[places])
        np.maximum.at(until, self.owners[places], times)
        if not self.history.closes:
            place = partitions.schema.get_field_index(PANE)
            partitions = partitions.set_column(place, PANE, pa.array(until))
        return partitions.filter(pa.array(until > -END_US))

    def _with_states(self, number: int, partitions: pa.Table, main: pa.Table) -> pa.Table:
        folded = self.folds[number] - self.begins + int_column(self.partitions, BEFORE)
        made = {begin_of(number): pa.array(folded)}
        for name in main.column_names:
            if name not in (PANE, HASH):
                made[state_of(number, name)] = main.column(name)
        for name, column in made.items():
            place = partitions.schema.get_field_index(name)
            partitions = partitions.set_column(place, partitions.schema.field(place), column)
        return partitions


def _plus(table: pa.Table, name: str, more: Ints) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, pa.array(int_column(table, name) + more))


def _cut(states: Tables, first: int, count: int) -> Tables:
    """The states of some frames, numbered from 0."""
    found = []
    for table in states:
        panes = int_column(table, PANE)
        some = table.filter(pa.array((panes >= first) & (panes < first + count)))
        place = some.schema.get_field_index(PANE)
        found.append(some.set_column(place, PANE, pa.array(int_column(some, PANE) - first)))
    return tuple(found)


@dataclass(frozen=True)
class OverOperator:
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
        return arrival.arrival_schema(self._content)

    @property
    def waiting(self) -> pa.Schema:
        """A row that waits for the watermark, with its place among all that came."""
        return arrival.stored_schema(self._content)

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        late = self.late_rows
        return ((late.input_schema if late is not None else self.arrived,),)

    @cached_property
    def reach(self) -> FrameReach:
        return FrameReach.of(self.spec)

    @cached_property
    def history(self) -> History:
        return History(self.spec, self.reach, self.closes)

    @property
    def time_to_live(self) -> TimeToLive | None:
        """Partitions that close go with the watermark."""
        if self.ttl_us is None or self.closes:
            return None
        return TimeToLive(self.ttl_us, tuple(self.spec.key_fields))

    def state_format(self) -> tuple[str, ...]:
        formats = (runs.FORMAT, segments.FORMAT, schema_text(self.waiting))
        return (*formats, *(schema_text(schema) for schema in self.history.schemas))

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
        output, log = StepOutput(), self._log(state)
        waiting = TimeBucketStore(state, (self.waiting,), None, "waiting")
        self._forget(log, epoch_time)
        rows = arrival.number_arrivals(state, self._on_time(state, inputs[0], epoch_time, output))
        rows = rows.select(self.waiting.names)
        self._touch(log, rows, epoch_time)
        if epoch_time.watermark_us is None:
            rest = rows
        else:
            due, ahead, rest = self._split(waiting, rows, epoch_time.watermark_us)
            output.main += self._results(log, due, ahead, epoch_time)
        if rest.num_rows:
            waiting.append((rest,))
        self.limits.enforce_with_waiting(self.name, log, waiting, state.gauges)
        return output

    def _log(self, state: KeyGroupState) -> SortedRunStore:
        """What is known of partitions; with a time to live, first when they were touched."""
        live, schemas = self.time_to_live, self.history.schemas
        if live is not None:
            return SortedRunStore(
                state,
                (live.schema, *schemas),
                lambda t: (live.keep_latest(t[0]), *t[1:]),
                due=live.due,
            )
        due = (lambda table: int_column(table, PANE)) if self.history.falls else None
        return SortedRunStore(state, schemas, lambda tables: tables, due=due)

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
    ) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Rows whose frames the watermark has passed, those they may see, and new ones to keep."""
        limit = self._limit(after)
        known = [part[0] for part in waiting.load(None, after + 1)]
        waiting.drop_before(limit + 1)
        panes = int_column(rows, PANE)
        passed = pa.concat_tables(
            [self.waiting.empty_table(), *known, rows.filter(pa.array(panes <= after))]
        )
        due = int_column(passed, PANE) <= limit
        rest = rows.filter(pa.array(panes > limit))
        return passed.filter(pa.array(due)), passed.filter(pa.array(~due)), rest

    def _limit(self, after: int) -> int:
        """Rows that were passed up to then have all rows of their frames by value."""
        return after if after == END_US else after - self.reach.time_ahead

    def _results(
        self, log: SortedRunStore, due: pa.Table, ahead: pa.Table, epoch_time: EpochTime
    ) -> list[pa.Table]:
        assert epoch_time.watermark_us is not None, "the watermark has passed something"
        ended = epoch_time.ended
        found: list[pa.Table] = []
        waits = epoch_time.just_ended and self.reach.rows_ahead > 0
        if due.num_rows or waits:
            touches, known = self._load(log, int_column(due, HASH), whole=waits)
            limit = self._limit(epoch_time.watermark_us)
            rows, kept = advance(self.history, known, due, ahead, limit, log.state, ended)
            found = [rows] if rows.num_rows else []
            if not ended:
                hashes = np.unique(
                    np.concatenate([int_column(known[0], HASH), int_column(due, HASH)])
                )
                log.replace(hashes, (*touches, *kept))
        if ended:
            # Whatever comes now is late.
            log.clear()
        elif self.history.falls and self.time_to_live is None:
            log.drop_due(epoch_time.watermark_us)
        return found

    def _load(self, log: SortedRunStore, hashes: np.ndarray, whole: bool) -> tuple[Tables, Tables]:
        """Touches if there are any, and what is known of partitions."""
        tables = log.load_all() if whole else log.load(hashes)
        return ((), tables) if self.time_to_live is None else (tables[:1], tables[1:])

    # Forgetting

    def _touch(self, log: SortedRunStore, rows: pa.Table, epoch_time: EpochTime) -> None:
        live = self.time_to_live
        if live is not None and rows.num_rows:
            nothing = (schema.empty_table() for schema in self.history.schemas)
            log.append((live.touch([rows], epoch_time.now_us), *nothing))

    def _forget(self, log: SortedRunStore, epoch_time: EpochTime) -> None:
        live = self.time_to_live
        if live is None:
            return
        hashes = int_column(live.expired(log, epoch_time.now_us), HASH)
        if not len(hashes):
            return
        (touches,), known = self._load(log, hashes, whole=False)
        alive = touches.filter(pa.array(live.due(touches) > epoch_time.now_us))
        log.replace(hashes, (alive, *self.history.of(known, live.has_key(alive, known[0]))))
