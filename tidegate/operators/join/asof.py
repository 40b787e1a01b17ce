"""Temporal and ASOF joins: each row of the left with the one row of the right that is nearest in
time, given out when the watermark proves that no nearer one can come.

A row of the left waits in a log until it is *ripe*: until the watermark has passed the time from
which it looks. A row that looks back then has its answer. One that looks on has it when a row of
the right that the watermark has passed is found, or when nothing can come within its reach; until
then it waits with others of its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import INSERT, OP
from tidegate.operators.aggregate.groups import HASH, PANE, WEIGHT, concat
from tidegate.operators.kernels.keys import as_array, canonical, group_ids
from tidegate.operators.kernels.matching import TIME, Matching, columns_of, ints
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS, SEQ, Ordering, codes, numbered
from tidegate.operators.kernels.weighted_rows import net
from tidegate.operators.late_rows import LateRows
from tidegate.operators.operator import (
    NO_LIMITS,
    EpochTime,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    with_op,
)
from tidegate.operators.store.sorted_runs import FORMAT as RUNS
from tidegate.operators.store.sorted_runs import SortedRunStore
from tidegate.operators.store.time_buckets import FORMAT as SEGMENTS
from tidegate.operators.store.time_buckets import TimeBucketStore
from tidegate.operators.watermark import END_US
from tidegate.state.codec import schema_text

# ---- Which row of the right is the nearest to each row of the left: by key, then by a value.
#
# Keys and values become numbers on one line, the right side is sorted along it, and a binary search
# finds the place of every row of the left at once.

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
# Times and whole numbers, or numbers with a fraction.
Values = npt.NDArray[Any]
Number = int | float
BACKWARD, FORWARD, NEAREST = "backward", "forward", "nearest"
NOTHING = -1


@dataclass(frozen=True)
class AsofBounds:
    """left − right lies in [lower, upper]; an open end is out, None is no end.

    Backward takes the largest right value, forward the smallest, nearest the one that is least
    away, and of two that are as far the smaller one. Of equal ones the last that came counts.
    With `first` it is the first right value of all, and the first of equal ones, if that is in
    reach.
    """

    direction: str
    lower: Number | None
    upper: Number | None
    lower_open: bool = False
    upper_open: bool = False
    first: bool = False

    def __post_init__(self) -> None:
        assert self.direction in (BACKWARD, FORWARD, NEAREST), self.direction
        assert self.direction != BACKWARD or self.lower is not None, "it looks back from somewhere"
        assert self.direction != FORWARD or self.upper is not None, "it looks on from somewhere"

    def places(
        self, left_ids: Ints, left: Values, right_ids: Ints, right: Values
    ) -> npt.NDArray[np.int64]:
        """The place of the right row of each left row, or −1; right rows are in order of arrival.

        Rows with equal ids have equal keys.
        """
        if not len(left_ids) or not len(right_ids):
            return np.full(len(left_ids), NOTHING, np.int64)
        line = _Line(right_ids, right)
        if self.direction == NEAREST:
            return self._either(line, left_ids, left)
        if self.direction == FORWARD:
            assert self.upper is not None, "it looks on from somewhere"
            found = line.next(left_ids, left - self.upper, self.upper_open)
        else:
            assert self.lower is not None, "it looks back from somewhere"
            target = left - self.lower
            if self.first:
                found = line.first(left_ids, target, self.lower_open)
            else:
                found = line.last(left_ids, target, self.lower_open)
        return self._in_reach(found, left, right)

    def _either(self, line: _Line, ids: Ints, left: Values) -> Ints:
        right = line.values
        before = self._in_reach(line.last(ids, left, False), left, right)
        after = self._in_reach(line.next(ids, left, False), left, right)
        back = distance(left, right[before])
        on = distance(right[after], left)
        takes_before = (after == NOTHING) | ((before != NOTHING) & (back <= on))
        return np.where(takes_before, before, after)

    def _in_reach(self, found: Ints, left: Values, right: Values) -> Ints:
        """Without those that are too far away; the end where the search began is kept to."""
        apart = left - right[found]
        there = found != NOTHING
        if self.upper is not None and self.direction != FORWARD:
            there &= apart < self.upper if self.upper_open else apart <= self.upper
        if self.lower is not None and self.direction != BACKWARD:
            there &= apart > self.lower if self.lower_open else apart >= self.lower
        return np.where(there, found, NOTHING)


class _Line:
    """The right side, sorted by key and value; of equal ones the last stands last."""

    def __init__(self, ids: Ints, values: Values) -> None:
        self.values = values
        self.known = np.unique(values)
        self.width = len(self.known) + 1
        places = ids * self.width + np.searchsorted(self.known, values) + 1
        self.order = np.argsort(places, kind="stable")
        self.places = places[self.order]
        self.ids = ids[self.order]

    def last(self, ids: Ints, target: Values, below: bool) -> Ints:
        """The last row of a key whose value is at most the target, or below it."""
        count = np.searchsorted(self.known, target, "left" if below else "right")
        return self._at(ids, np.searchsorted(self.places, ids * self.width + count, "right") - 1)

    def next(self, ids: Ints, target: Values, above: bool) -> Ints:
        """The last row of a key with the smallest value that is at least the target."""
        count = np.searchsorted(self.known, target, "right" if above else "left")
        begin = np.searchsorted(self.places, ids * self.width + count + 1, "left")
        equal = self.places[np.minimum(begin, len(self.places) - 1)]
        ends = np.searchsorted(self.places, equal, "right") - 1
        return self._at(ids, np.where(begin < len(self.places), ends, NOTHING))

    def first(self, ids: Ints, target: Values, below: bool) -> Ints:
        """The first row of a key, if its value is at most the target, or below it."""
        count = np.searchsorted(self.known, target, "left" if below else "right")
        begin = np.searchsorted(self.places, ids * self.width, "left")
        value = self.places[np.minimum(begin, len(self.places) - 1)]
        there = (begin < len(self.places)) & (value <= ids * self.width + count)
        return self._at(ids, np.where(there, begin, NOTHING))

    def _at(self, ids: Ints, found: Ints) -> Ints:
        """Places on the line as places of rows; none where it is another key."""
        there = (found != NOTHING) & (self.ids[found] == ids)
        return np.where(there, self.order[found], NOTHING)


def distance(larger: Values, smaller: Values) -> Values:
    """How far apart two values are, which may be further than a whole number is large."""
    apart: Values = larger - smaller
    return apart if apart.dtype.kind == "f" else apart.view(np.uint64)


def measurable(kind: pa.DataType) -> bool:
    """Whether values of a type can be a distance apart, and not only in order."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind)
    )


def as_numbers(left: pa.ChunkedArray, right: pa.ChunkedArray) -> tuple[Values, Values]:
    """The values of both sides as numbers in the same order; what NULL becomes means nothing."""
    both = as_array(pa.chunked_array([*left.chunks, *right.chunks], left.type))
    if pa.types.is_floating(both.type):
        # Adding zero makes one zero of two.
        values = pc.fill_null(both, 0.0).cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
    elif measurable(both.type):
        values = pc.fill_null(both.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    else:
        values = codes(both, Ordering(both.type))
    return values[: len(left)], values[len(left) :]


# ---- The right side of a join by nearness, as far as rows of the left can still see it.
#
# Rows that are told apart by time lie in a log by time. Of what the watermark has passed, a join that
# looks back keeps one row per key: the one that later rows of the left see.


@dataclass(frozen=True)
class AsofRetention:
    """How far rows of the left look, in microseconds: what it means for what is kept."""

    nearest: AsofBounds

    def floor_us(self, mark_us: int) -> int:
        """The earliest time of the right that still counts by itself at this watermark."""
        nearest = self.nearest
        bound = {BACKWARD: nearest.lower, FORWARD: nearest.upper}.get(nearest.direction)
        return mark_us - max(0, int(bound or 0))

    @property
    def keeps_last(self) -> bool:
        """Whether a row of the left may look back behind the watermark."""
        return self.nearest.direction != FORWARD

    def unseen_us(self, times: Ints) -> Ints:
        """The watermark from which on no row of the left reaches back to these times."""
        assert self.nearest.upper is not None, "it does not look back for ever"
        waits = min(0, int(self.nearest.lower or 0)) if self.nearest.direction == BACKWARD else 0
        return times + int(self.nearest.upper) - waits + 1


class RightRows:
    """The rows of one key group; `schema` has PANE (their time), HASH, the keys and SEQ."""

    def __init__(
        self, state: KeyGroupState, schema: pa.Schema, keys: list[str], nearest: AsofBounds
    ) -> None:
        self.schema = schema
        self.by = [HASH, *keys]
        self.reach = AsofRetention(nearest)
        self.first = nearest.first
        self.log = TimeBucketStore(state, (schema,), None, "right")
        forgets = nearest.upper is not None
        due = (lambda rows: self.reach.unseen_us(ints(rows, PANE))) if forgets else None
        self.last = SortedRunStore(state, (schema,), self._standing, due=due, name="last")

    def add(self, rows: pa.Table, previous_watermark_us: int | None) -> tuple[pa.Table, pa.Table]:
        """Keep rows that can still be seen; returns those behind the floor, and which of them
        were of no use."""
        behind = rows.slice(0, 0)
        if previous_watermark_us is not None and rows.num_rows:
            is_behind = ints(rows, PANE) < self.reach.floor_us(previous_watermark_us)
            behind, rows = rows.filter(pa.array(is_behind)), rows.filter(pa.array(~is_behind))
        if rows.num_rows:
            self.log.append((rows,))
        if not behind.num_rows or previous_watermark_us is None or not self.reach.keeps_last:
            return behind, behind
        known = self.last.load(ints(behind, HASH))[0]
        (standing,) = self._standing((pa.concat_tables([known, behind]),))
        used = np.isin(ints(behind, SEQ), ints(standing, SEQ))
        if self.last.due is not None:
            used &= self.reach.unseen_us(ints(behind, PANE)) > previous_watermark_us
        if used.any():
            self.last.append((behind.filter(pa.array(used)),))
        return behind, behind.filter(pa.array(~used))

    def final(self, watermark_us: int) -> pa.Table:
        """The rows that the watermark has passed and that count by themselves, as they came."""
        found = [tables[0] for tables in self.log.load(None, watermark_us)]
        return _as_they_came(pa.concat_tables([self.schema.empty_table(), *found]))

    def with_last(self, final: pa.Table, hashes: Ints) -> pa.Table:
        """Those rows, and what is kept of these keys from before."""
        if not len(hashes):
            return final
        return _as_they_came(pa.concat_tables([self.last.load(hashes)[0], final]))

    def forget(self, final: pa.Table, watermark_us: int) -> None:
        """What nobody sees any more is gone; of the rest the last row of each key."""
        floor = self.reach.floor_us(watermark_us)
        if self.reach.keeps_last:
            passed = final.filter(pa.array(ints(final, PANE) < floor))
            if passed.num_rows:
                self.last.append(self._standing((passed,)))
            if self.last.due is not None:
                self.last.drop_due(watermark_us)
        self.log.drop_before(floor)

    def save(self) -> None:
        self.log.save()
        self.last.save()

    def _standing(self, tables: Tables) -> Tables:
        """Of each key the row with the latest time, and of those the last that came."""
        (rows,) = tables
        if rows.num_rows <= 1:
            return tables
        ids, count = group_ids(rows, self.by)
        order = np.lexsort((ints(rows, SEQ), ints(rows, PANE), ids))
        if self.first:
            order = order[::-1]
        stands = np.zeros(count, np.int64)
        stands[ids[order]] = order
        return (rows.take(pa.array(np.sort(stands))),)


def _as_they_came(rows: pa.Table) -> pa.Table:
    numbers = ints(rows, SEQ)
    if np.all(numbers[1:] > numbers[:-1]):
        return rows
    return rows.take(pa.array(np.argsort(numbers, kind="stable")))


# Whether a version is one, or says that there is none from its time on; NULL says nothing.
ALIVE = "_alive"
# The time of the row of the right that a waiting row has found behind it.
BACK = "_back"
_INT = pa.int64()


@dataclass(frozen=True)
class AsofJoin:
    """Times are whole microseconds, and `nearest` says which row of the right counts.

    With `versions` a row of the right may be a tombstone. `retracts`: rows of the left come with a
    weight, and those that are retracted before they are ripe cancel out. `with_op`: rows that come
    out say that they are inserts.
    """

    matching: Matching
    nearest: AsofBounds
    columns: tuple[tuple[pa.DataType, ...], tuple[pa.DataType, ...]]
    how: str
    versions: bool = False
    retracts: bool = False
    with_op: bool = False
    limits: Limits = NO_LIMITS
    name: str = "asof_join"
    late_rows: tuple[LateRows, LateRows] | None = None

    def __post_init__(self) -> None:
        assert self.how in ("INNER", "LEFT"), self.how
        assert not (self.nearest.lower_open or self.nearest.upper_open), "times are whole numbers"

    # Shapes

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        hidden = [pa.field(PANE, _INT), pa.field(HASH, _INT), *self.matching.fields]
        weight = [pa.field(WEIGHT, _INT)] if self.retracts else []
        left = pa.schema([*hidden, *columns_of(self.columns[0]), *weight])
        right = pa.schema([*hidden, *columns_of(self.columns[1]), *self._alive, *ARRIVAL_FIELDS])
        return ((left,), (right,))

    @property
    def _alive(self) -> list[pa.Field]:
        return [pa.field(ALIVE, pa.bool_())] if self.versions else []

    @property
    def left(self) -> pa.Schema:
        """A row that waits: its pane is the moment for which it does."""
        hidden = [pa.field(name, _INT) for name in (PANE, HASH, TIME)]
        weight = [pa.field(WEIGHT, _INT)] if self.retracts else []
        return pa.schema([*hidden, *self.matching.fields, *columns_of(self.columns[0]), *weight])

    @property
    def waiting(self) -> pa.Schema:
        """A ripe row that looks on; it brings what it has found behind it."""
        if self.nearest.direction != NEAREST:
            return self.left
        behind = [pa.field(f"r{index}", kind) for index, kind in enumerate(self.columns[1])]
        return pa.schema([*self.left, pa.field(BACK, _INT), *behind])

    @property
    def right(self) -> pa.Schema:
        hidden = [pa.field(PANE, _INT), pa.field(HASH, _INT), *self.matching.fields]
        own = columns_of(self.columns[1])
        return pa.schema([*hidden, *own, *self._alive, pa.field(SEQ, _INT)])

    @property
    def output(self) -> pa.Schema:
        fields = columns_of(self.columns[0] + self.columns[1])
        return pa.schema([*fields, pa.field(OP, pa.string())] if self.with_op else fields)

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows[0].schema if self.late_rows is not None else None

    def stored_as(self) -> tuple[str, ...]:
        schemas = (self.left, self.right, self.waiting)
        return (SEGMENTS, RUNS, *(schema_text(schema) for schema in schemas))

    # Where the rows are

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        schema = self.shuffle_schemas[port][0]
        keys = {name: canonical(rows.column(name)) for name in self.matching.names}
        columns = [keys[name] if name in keys else rows.column(name) for name in schema.names]
        table = pa.table(columns, schema=schema)
        if port == 1 or self.how == "INNER":
            # What matches nothing, and does not come out by itself, has nothing to do here.
            table = table.filter(pa.array(self.matching.matchable(table)))
        if port == 1 and self.versions:
            table = table.filter(pc.is_valid(table.column(ALIVE)))
        return (table,)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        return concat(parts)

    # Where the state is

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        epoch = _Epoch(self, state, epoch_time)
        new = epoch.left_in_time(inputs[0])
        behind, useless = epoch.right_in_time(inputs[1])
        if epoch_time.watermark_us is None:
            epoch.keep_unripe(new)
        elif self.nearest.direction == BACKWARD:
            epoch.look_back(epoch.ripe(new, epoch_time.watermark_us), epoch_time.watermark_us)
        else:
            useless = epoch.look_on(new, behind, useless, epoch_time.watermark_us)
        epoch.keep_late(1, useless)
        return epoch.finish()


class _Epoch:
    """One epoch of a join in one key group."""

    def __init__(self, join: AsofJoin, state: KeyGroupState, epoch_time: EpochTime) -> None:
        self.join = join
        self.state = state
        self.epoch_time = epoch_time
        self.output = StepOutput()
        self.unripe = TimeBucketStore(state, (join.left,), None, "left")
        self.right = RightRows(state, join.right, join.matching.names, join.nearest)
        self.waiting = SortedRunStore(
            state, (join.waiting,), lambda rows: rows, due=lambda t: ints(t, PANE), name="waiting"
        )

    # In

    def left_in_time(self, parts: list[Tables]) -> pa.Table:
        """New rows of the left with the moment at which they are ripe."""
        join, before = self.join, self.epoch_time.previous_watermark_us
        rows = concat(parts)[0] if parts else join.shuffle_schemas[0][0].empty_table()
        if before is not None and rows.num_rows:
            late = ints(rows, PANE) < before
            if late.any():
                self.keep_late(0, rows.filter(pa.array(late)))
                rows = rows.filter(pa.array(~late))
        times = ints(rows, PANE)
        hidden = {PANE: pa.array(self._ripe_us(times)), TIME: pa.array(times)}
        columns = [
            hidden[name] if name in hidden else rows.column(name) for name in join.left.names
        ]
        return pa.table(columns, schema=join.left)

    def _ripe_us(self, times: Ints) -> Ints:
        """From when on the watermark has passed the time from which a row looks."""
        nearest = self.join.nearest
        bound = {BACKWARD: nearest.lower, FORWARD: nearest.upper}.get(nearest.direction)
        return times - int(bound or 0) + 1

    def right_in_time(self, parts: list[Tables]) -> tuple[pa.Table, pa.Table]:
        """Keep new rows of the right; those that came late, and those that nobody can see."""
        rows = concat(parts)[0] if parts else self.join.shuffle_schemas[1][0].empty_table()
        rows = numbered(self.state, rows).select(self.join.right.names)
        return self.right.add(rows, self.epoch_time.previous_watermark_us)

    def keep_late(self, port: int, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        weighed = WEIGHT in rows.column_names
        count = int(np.abs(ints(rows, WEIGHT)).sum()) if weighed else rows.num_rows
        self.state.count_late(count)
        if self.join.late_rows is None:
            return
        keeper = self.join.late_rows[port]
        own = {
            name: rows.column(item.name)
            for name, item in zip(keeper.names, columns_of(self.join.columns[port]), strict=True)
        }
        self.output.late.append(
            keeper.marked(pa.table(own), None, None, self.epoch_time.previous_watermark_us)
        )

    def keep_unripe(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self.unripe.append((rows,))

    def ripe(self, new: pa.Table, watermark_us: int) -> pa.Table:
        """The rows whose time has come; the others are kept."""
        found = [tables[0] for tables in self.unripe.load(None, watermark_us + 1)]
        self.unripe.drop_before(watermark_us + 1)
        now = ints(new, PANE) <= watermark_us
        self.keep_unripe(new.filter(pa.array(~now)))
        rows = pa.concat_tables([*found, new.filter(pa.array(now))])
        return self._netted(rows) if self.join.retracts else rows

    def _netted(self, rows: pa.Table) -> pa.Table:
        """Each row as often as it is there; what was retracted without having come is counted."""
        rows = net(rows)
        weights = ints(rows, WEIGHT)
        self.state.count_unknown(int(-weights[weights < 0].sum()))
        return rows.filter(pa.array(weights > 0))

    # Backward

    def look_back(self, rows: pa.Table, watermark_us: int) -> None:
        final = self.right.final(watermark_us)
        seen = self.right.with_last(final, ints(rows, HASH))
        found = self._places(self.join.nearest, rows, seen)
        self._give(rows, seen, self._alive(seen, found))
        self.right.forget(final, watermark_us)

    def _places(self, nearest: AsofBounds, rows: pa.Table, others: pa.Table) -> Ints:
        left, right, _ = self.join.matching.key_ids(rows, others)
        return nearest.places(left, ints(rows, TIME), right, ints(others, PANE))

    def _alive(self, others: pa.Table, found: Ints) -> Ints:
        """Without versions that say that there is none."""
        if not self.join.versions or not others.num_rows:
            return found
        alive = others.column(ALIVE).to_numpy()
        return np.where(alive[found], found, NOTHING)

    # Forward, and both ways

    def look_on(
        self, new: pa.Table, behind: pa.Table, useless: pa.Table, watermark_us: int
    ) -> pa.Table:
        """Answer what can be answered; returns the late rows that were of no use after all."""
        final = self.right.final(watermark_us)
        ripe = self._begun(self.ripe(new, watermark_us), final)
        ahead = pa.concat_tables([final, behind])
        hashes = np.unique(
            np.concatenate(
                [ints(ripe, HASH), ints(ahead, HASH), self.waiting.due_hashes(watermark_us)]
            )
        )
        rows = pa.concat_tables([self.waiting.load(hashes)[0], ripe])
        found = self._places(self._ahead, rows, ahead)
        found = np.where(self._nearer_ahead(rows, ahead, found), found, NOTHING)
        gives_up = (ints(rows, PANE) <= watermark_us) & (found == NOTHING)
        done = (found != NOTHING) | gives_up
        ahead_of = found != NOTHING
        self._give(rows.filter(pa.array(ahead_of)), ahead, found[ahead_of])
        self._give_back(rows.filter(pa.array(gives_up)))
        self.waiting.replace(hashes, (rows.filter(pa.array(~done)),))
        self.right.forget(final, watermark_us)
        used = ints(ahead, SEQ)[found[ahead_of]]
        return useless.filter(pa.array(~np.isin(ints(useless, SEQ), used)))

    @property
    def _ahead(self) -> AsofBounds:
        """What a ripe row still looks for: of rows at its own time it has found the last."""
        nearest = self.join.nearest
        if nearest.direction == FORWARD:
            return nearest
        return replace(nearest, direction=FORWARD, upper=-1)

    def _begun(self, rows: pa.Table, final: pa.Table) -> pa.Table:
        """Ripe rows as they wait: with the moment at which they give up, and what is behind."""
        nearest, times = self.join.nearest, ints(rows, TIME)
        until = np.full(rows.num_rows, END_US, np.int64)
        if nearest.lower is not None:
            until = times - int(nearest.lower) + 1
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        if nearest.direction == NEAREST:
            back = replace(nearest, direction=BACKWARD, lower=0)
            seen = self.right.with_last(final, ints(rows, HASH))
            found = self._places(back, rows, seen)
            has = found != NOTHING
            taken = seen.take(pa.array(found, mask=~has))
            columns[BACK] = taken.column(PANE)
            for index, _ in enumerate(self.join.columns[1]):
                columns[f"r{index}"] = taken.column(f"c{index}")
            if has.any():
                # Only what is nearer than that could still change the answer.
                until[has] = np.minimum(until[has], 2 * times[has] - ints(seen, PANE)[found[has]])
        hopeless = ~self.join.matching.matchable(rows)
        until[hopeless] = ints(rows, PANE)[hopeless]
        columns[PANE] = pa.array(until)
        return pa.table([columns[name] for name in self.join.waiting.names], self.join.waiting)

    def _nearer_ahead(self, rows: pa.Table, ahead: pa.Table, found: Ints) -> Mask:
        """Whether what is ahead of a row is nearer than what is behind it."""
        there: Mask = found != NOTHING
        if self.join.nearest.direction != NEAREST or not there.any():
            return there
        times = ints(rows, TIME)
        behind = pc.fill_null(rows.column(BACK), 0).to_numpy()
        nearer = distance(ints(ahead, PANE)[found], times) < distance(times, behind)
        nothing = pc.is_null(rows.column(BACK)).to_numpy(zero_copy_only=False)
        there &= nothing | nearer
        return there

    # Out

    def _give(self, rows: pa.Table, others: pa.Table, found: Ints) -> None:
        """Rows of the left, each with the row of the right that was found for it."""
        has = found != NOTHING
        if self.join.how == "INNER" and not has.all():
            rows, found = rows.filter(pa.array(has)), found[has]
            has = np.ones(len(found), np.bool_)
        if rows.num_rows:
            names = [item.name for item in columns_of(self.join.columns[1])]
            taken = others.select(names).take(pa.array(found, mask=~has))
            self._emit(rows, taken.columns)

    def _give_back(self, rows: pa.Table) -> None:
        """Rows of the left that have looked on in vain, with what is behind them."""
        nearest = self.join.nearest.direction == NEAREST
        if self.join.how == "INNER":
            rows = rows.filter(pc.is_valid(rows.column(BACK))) if nearest else rows.slice(0, 0)
        if not rows.num_rows:
            return
        kinds = self.join.columns[1]
        self._emit(
            rows,
            [
                rows.column(f"r{index}") if nearest else pa.nulls(rows.num_rows, kind)
                for index, kind in enumerate(kinds)
            ],
        )

    def _emit(self, rows: pa.Table, right: Sequence[pa.ChunkedArray | pa.Array]) -> None:
        left = [rows.column(item.name) for item in columns_of(self.join.columns[0])]
        schema = pa.schema(columns_of(self.join.columns[0] + self.join.columns[1]))
        table = pa.table([*left, *right], schema=schema)
        if self.join.retracts:
            table = table.take(pa.array(np.repeat(np.arange(len(table)), ints(rows, WEIGHT))))
        self.output.main.append(with_op(table, INSERT) if self.join.with_op else table)

    def finish(self) -> StepOutput:
        """Save what is kept, and say how much it is."""
        for log in (self.unripe, self.right, self.waiting):
            log.save()
        sizes = [self.unripe.sizes(), self.right.log.sizes()]
        runs = (self.right.last, self.waiting)
        sizes += [{"rows": r.rows, "groups": r.groups, "bytes": r.bytes} for r in runs]
        for what in ("rows", "groups", "bytes"):
            self.state.gauges[what] = sum(size[what] for size in sizes)
        if self.join.retracts:
            self.state.count_unknown(0)
        self.join.limits.check(self.join.name, self.state.gauges)
        return self.output
