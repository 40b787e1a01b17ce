"""QUALIFY row_number() | rank() | dense_rank() OVER (PARTITION BY … ORDER BY …) <= n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, BEFORE, DELETE, INSERT, OP
from tidegate.errors import RunError
from tidegate.operators.accumulators.kernels import first_places
from tidegate.operators.changes import changes
from tidegate.operators.contract import Moment, OperatorState, Output, Tables, with_op
from tidegate.operators.group_kernels import (
    HASH,
    PANE,
    SEEN,
    WEIGHT,
    canonical,
    concat,
    group_ids,
    places_of,
)
from tidegate.operators.keyed_aggregate import TOUCHED
from tidegate.operators.keys import comparable, merge_rows
from tidegate.operators.late import LateRows
from tidegate.operators.limits import NO_LIMITS, Limits
from tidegate.operators.ordering import (
    DENSE_RANK,
    RANK,
    ROW_NUMBER,
    Ints,
    Mask,
    Ordering,
    codes,
    equal_rows,
    ranks_of,
    sortable,
)
from tidegate.operators.parts import PartLog
from tidegate.operators.segments import SegmentLog
from tidegate.state.codec import schema_text

# The place of a row among all that came: of rows that are equal in the order the first one wins.
SEQ = "_seq"
_PLACE = "_place"
_INT = pa.int64()
_ARRIVAL = (
    (ARRIVAL_FILE, Ordering(pa.string(), False, False)),
    (ARRIVAL_ROW, Ordering(_INT, False, False)),
)


@dataclass(frozen=True)
class TopN:
    """The first rows of each partition; columns are `k0`, … and `o0`, … and `c0`, ….

    With `rank` the rank is one more column of the output. `retracts`: rows carry what they do, and
    all of them are kept; else only those that can be in a result. `windowed`: the pane of a row is
    the moment at which its window closes, and with it comes the result. `at_end` gives everything
    out once, when a bounded input has ended. In all other cases changes come out as they happen.
    After `ttl_us` of processing time without a row a partition without window is forgotten.
    """

    keys: tuple[pa.DataType, ...]
    order: tuple[Ordering, ...]
    columns: tuple[pa.DataType, ...]
    limit: int
    function: str = ROW_NUMBER
    rank: pa.DataType | None = None
    retracts: bool = False
    windowed: bool = False
    with_op: bool = True
    at_end: bool = False
    ttl_us: int | None = None
    late_rows: LateRows | None = None
    limits: Limits = NO_LIMITS
    meaning: tuple[str, ...] = ()
    # The column with the start of the window of a row, for late rows.
    start: str | None = None
    bucket_us: int = 1_000_000
    name: str = "top_n"

    def __post_init__(self) -> None:
        assert self.function in (ROW_NUMBER, RANK, DENSE_RANK), self.function
        assert self.limit >= 1, "there is a first row"
        assert not (self.windowed and self.retracts), "windows are for rows that stay"
        assert not (self.windowed and self.at_end), "windows close one by one"
        assert self.windowed or self.late_rows is None, "without windows nothing is late"
        assert self.windowed or self.at_end or self.with_op, "changes say what they do"
        for kind in self.keys:
            if not comparable(kind):
                hint = "partition by the values of some of its keys, for example m['a']."
                raise RunError("TG-501", f"PARTITION BY is not supported over {kind}", hint=hint)
        for item in self.order:
            if not sortable(item.type):
                hint = "order by its parts."
                raise RunError("TG-501", f"ORDER BY is not supported over {item.type}", hint=hint)

    # Shapes

    @property
    def _by(self) -> list[str]:
        return [PANE, *(f"k{index}" for index, _ in enumerate(self.keys))]

    @property
    def _orders(self) -> list[tuple[str, Ordering]]:
        return [(f"o{index}", item) for index, item in enumerate(self.order)]

    @property
    def _rank(self) -> str:
        return f"c{len(self.columns)}" if self.rank is not None else _PLACE

    @property
    def _row(self) -> pa.Schema:
        """What a row of the result is."""
        kinds = [*self.columns, *([self.rank] if self.rank is not None else [])]
        return pa.schema([pa.field(f"c{index}", kind) for index, kind in enumerate(kinds)])

    @property
    def output(self) -> pa.Schema:
        return pa.schema([*self._row, *([pa.field(OP, pa.string())] if self.with_op else [])])

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    @property
    def _partition(self) -> list[pa.Field]:
        keys = [pa.field(*pair) for pair in zip(self._by[1:], self.keys, strict=True)]
        return [pa.field(PANE, _INT), pa.field(HASH, _INT), *keys]

    @property
    def _content(self) -> list[pa.Field]:
        """What rows have wherever they are."""
        orders = [pa.field(name, item.type) for name, item in self._orders]
        columns = [pa.field(f"c{index}", kind) for index, kind in enumerate(self.columns)]
        return [*self._partition, *orders, *columns]

    @property
    def _lifted(self) -> pa.Schema:
        """Rows that come in; SEEN counts those that were left behind where rows are read."""
        ops = [pa.field(OP, pa.string())] if self.retracts else []
        counts = [pa.field(SEEN, _INT)] if self.windowed else []
        arrival = [pa.field(ARRIVAL_FILE, pa.string()), pa.field(ARRIVAL_ROW, _INT)]
        return pa.schema([*self._content, *ops, *arrival, *counts])

    @property
    def packed(self) -> tuple[tuple[pa.Schema, ...], ...]:
        late = self.late_rows
        return ((late.packed if late is not None else self._lifted,),)

    @property
    def _kept(self) -> pa.Schema:
        weight = [pa.field(WEIGHT, _INT)] if self.retracts else []
        return pa.schema([*self._content, pa.field(SEQ, _INT), *weight])

    @property
    def lives_us(self) -> int | None:
        """Windows go with the watermark; only partitions without one have a time to live."""
        return None if self.windowed else self.ttl_us

    @property
    def stored(self) -> tuple[pa.Schema, ...]:
        """Rows; with a time to live, before them when each partition was touched."""
        if self.lives_us is None:
            return (self._kept,)
        return (pa.schema([*self._partition, pa.field(TOUCHED, _INT)]), self._kept)

    def fingerprint(self) -> tuple[str, ...]:
        orders = [(item.descending, item.nulls_first) for item in self.order]
        modes = (self.windowed, self.at_end, self.lives_us is not None)
        what = (self.function, self.limit, str(self.rank), orders, modes)
        return (repr(what), *(schema_text(schema) for schema in self.stored), *self.meaning)

    # Where the rows are

    def lift(self, port: int, rows: pa.Table) -> Tables:
        if self.late_rows is not None:
            return (self.late_rows.select(rows),)
        return (self._without_losers(self._own(rows)),)

    def shrink(self, port: int, parts: Sequence[Tables]) -> Tables:
        if self.late_rows is not None:
            return concat(parts)
        return (self._without_losers(concat(parts)[0]),)

    def _own(self, rows: pa.Table) -> pa.Table:
        """The columns that count, with keys that are equal where SQL says so."""
        made = {name: canonical(rows.column(name)) for name in self._by[1:]}
        made[SEEN] = pa.array(np.ones(rows.num_rows, np.int64))
        schema = self._lifted
        columns = [made[n] if n in made else rows.column(n) for n in schema.names]
        return pa.table(columns, schema=schema)

    def _without_losers(self, rows: pa.Table) -> pa.Table:
        """Rows that can be in a result, as they came: whatever beats one here beats it anywhere."""
        if self.retracts or rows.num_rows <= 1:
            return rows
        ids, count = group_ids(rows, self._by)
        keep = self._ranks(rows, ids, self._arrival(rows))[0] <= self.limit
        if keep.all():
            return rows
        if self.windowed:
            seen = np.zeros(rows.num_rows, np.int64)
            totals = np.bincount(ids, rows.column(SEEN).to_numpy(), count)
            seen[first_places(ids, count, keep)] = totals.astype(np.int64)
            rows = rows.set_column(rows.schema.get_field_index(SEEN), SEEN, pa.array(seen))
        return rows.filter(pa.array(keep))

    def _arrival(self, rows: pa.Table) -> list[Ints]:
        return [codes(rows.column(name), item) for name, item in _ARRIVAL]

    def _ranks(self, rows: pa.Table, ids: Ints, arrival: Sequence[Ints]) -> tuple[Ints, Ints]:
        by = [codes(rows.column(name), item) for name, item in self._orders]
        return ranks_of(self.function, ids, by, arrival)

    # Where the state is

    def step(self, state: OperatorState, inputs: list[list[Tables]], moment: Moment) -> Output:
        if self.windowed:
            return self._step_windows(state, inputs[0], moment)
        output = Output()
        due = self._due if self.lives_us is not None else None
        log = PartLog(state, self.stored, self._combine, due)
        self._forget(log, moment)
        if inputs[0]:
            new = self._without_losers(concat(inputs[0])[0])
            if new.num_rows:
                output.main += self._update(log, self._in_order(state, new), moment)
        if self.at_end and moment.just_ended:
            output.main += self._given(log.load(range(len(log.parts)))[-1])
        self.limits.enforce(self.name, log, state.gauges)
        if self.retracts:
            state.gauges["unknown"] = int(state.meta.get("unknown", 0))
        return output

    def _in_order(self, state: OperatorState, rows: pa.Table) -> pa.Table:
        """Rows in the order they came in, numbered on from those of earlier epochs."""
        first = int(state.meta.get("seq", 0))
        state.meta["seq"] = first + rows.num_rows
        order = np.lexsort(tuple(reversed(self._arrival(rows))))
        numbers = pa.array(np.arange(first, first + rows.num_rows))
        return rows.take(pa.array(order)).append_column(SEQ, numbers)

    def _update(self, log: PartLog, new: pa.Table, moment: Moment) -> list[pa.Table]:
        """The partitions that came in, before and after."""
        touched = self._touched(new, moment.now_us)
        if self.at_end and not self.retracts:
            log.append((*touched, new.select(self._kept.names)))
            return []
        hashes = np.asarray(new.column(HASH).to_numpy(), np.int64)
        stored = log.load(log.touched_by(hashes))[-1]
        old = stored.filter(pa.array(places_of(new, stored, self._by) >= 0))
        if self.retracts:
            standing, delta = self._netted(log.state, old, new)
            log.append((*touched, delta))
            return [] if self.at_end else self._changed(self._result(old), self._result(standing))
        now = self._result(pa.concat_tables([old, new.select(self._kept.names)]))
        came = pc.greater_equal(now.column(SEQ), new.column(SEQ)[0])
        log.append((*touched, now.filter(came).select(self._kept.names)))
        return self._changed(self._result(old), now)

    def _netted(
        self, state: OperatorState, old: pa.Table, new: pa.Table
    ) -> tuple[pa.Table, pa.Table]:
        """The rows that stand, and what to append to the log.

        Rows of an epoch that are taken back in it were never there, in whatever order the two came.
        What is left to take back takes the last of the equal rows that are stored.
        """
        back = pc.is_in(new.column(OP), pa.array([BEFORE, DELETE])).to_numpy()
        weights = pa.array(np.where(back, -1, 1))
        signed = new.append_column(WEIGHT, weights).select(self._kept.names)
        rows = pa.concat_tables([old, signed])
        if not back.any():
            return rows, signed
        taken = np.concatenate([np.zeros(old.num_rows, np.bool_), back])
        left, unknown = self._left(rows, taken)
        if unknown:
            state.meta["unknown"] = int(state.meta.get("unknown", 0)) + unknown
        is_old = np.arange(rows.num_rows) < old.num_rows
        gone = rows.filter(pa.array(is_old & ~left))
        place = gone.schema.get_field_index(WEIGHT)
        gone = gone.set_column(place, WEIGHT, pa.array(np.full(gone.num_rows, -1, np.int64)))
        return rows.filter(pa.array(left)), pa.concat_tables(
            [gone, rows.filter(pa.array(left & ~is_old))]
        )

    def _left(self, rows: pa.Table, taken: Mask) -> tuple[Mask, int]:
        """Of rows that are equal the first ones, as many as were not taken back."""
        names = [name for name in pa.schema(self._content).names if name != HASH]
        ids, count = equal_rows(rows.select(names))
        balance = np.bincount(ids[~taken], minlength=count) - np.bincount(ids[taken], None, count)
        left = np.zeros(rows.num_rows, np.bool_)
        seq = np.asarray(rows.column(SEQ).to_numpy(), np.int64)[~taken]
        left[~taken] = ranks_of(ROW_NUMBER, ids[~taken], [], [seq])[0] <= balance[ids[~taken]]
        return left, int(-balance[balance < 0].sum())

    # What is stored

    def _combine(self, tables: Tables) -> Tables:
        rows = tables[-1]
        if self.retracts:
            gone = rows.column(WEIGHT).to_numpy() < 0
            if gone.any():
                seq = rows.column(SEQ).to_numpy()
                rows = rows.filter(pa.array(~np.isin(seq, seq[gone])))
        elif rows.num_rows > self.limit:
            ids, _ = group_ids(rows, self._by)
            keep = self._ranks(rows, ids, [rows.column(SEQ).to_numpy()])[0] <= self.limit
            rows = rows if keep.all() else rows.filter(pa.array(keep))
        return (*(self._last_touched(table) for table in tables[:-1]), rows)

    def _last_touched(self, table: pa.Table) -> pa.Table:
        merges = [(HASH, "min"), (TOUCHED, "max")]
        merged = merge_rows(table, self._by, merges)
        return merged.select(table.column_names).cast(table.schema)

    def _touched(self, new: pa.Table, now_us: int) -> Tables:
        if self.lives_us is None:
            return ()
        stamp = pa.array(np.full(new.num_rows, now_us, np.int64))
        named = new.select([field.name for field in self._partition])
        return (self._last_touched(named.append_column(TOUCHED, stamp)),)

    def _due(self, touched: pa.Table) -> Ints:
        return np.asarray(touched.column(TOUCHED).to_numpy(), np.int64) + (self.lives_us or 0)

    def _forget(self, log: PartLog, moment: Moment) -> None:
        """Drop partitions whose time to live is over, before anything is added to them."""
        if self.lives_us is None:
            return
        for number in log.due_by(moment.now_us):
            touched, rows = log.load([number])
            touched = touched.filter(pa.array(self._due(touched) > moment.now_us))
            known = pa.array(places_of(touched, rows, self._by) >= 0)
            log.replace([number], (touched, rows.filter(known)))

    # Giving out

    def _result(self, rows: pa.Table) -> pa.Table:
        """The rows up to the limit with their rank, partition by partition."""
        ids, _ = group_ids(rows, self._by)
        ranks, order = self._ranks(rows, ids, [rows.column(SEQ).to_numpy()])
        order = order[ranks[order] <= self.limit]
        found = pa.array(ranks[order]).cast(self.rank or _INT)
        return rows.take(pa.array(order)).append_column(self._rank, found)

    def _changed(self, was: pa.Table, now: pa.Table) -> list[pa.Table]:
        """What the result had before and has not now, and the other way round."""
        ranked = [self._rank] if self.rank is not None else []
        known = [SEQ, *ranked]
        stays = places_of(was, now, known) >= 0
        goes = places_of(now, was, known) < 0
        was, now = was.filter(pa.array(goes)), now.filter(pa.array(~stays))
        if not was.num_rows and not now.num_rows:
            return []
        if self.function == ROW_NUMBER and (ranked or self.limit == 1):
            names = [*self._by, *self._row.names]
            result = changes(was.select(names), now.select(names), [*self._by, *ranked])
        else:
            result = _difference(was.select(self._row.names), now.select(self._row.names))
        return [result.select(self.output.names)] if result.num_rows else []

    def _given(self, rows: pa.Table) -> list[pa.Table]:
        """The result as it is."""
        if not rows.num_rows:
            return []
        result = self._result(rows).select(self._row.names)
        return [with_op(result, INSERT) if self.with_op else result]

    # Windows

    def _step_windows(self, state: OperatorState, parts: list[Tables], moment: Moment) -> Output:
        log = SegmentLog(state, self.stored, self._combine, self.bucket_us)
        output = Output()
        new = self._without_losers(self._on_time(state, parts, moment, output))
        rows = self._in_order(state, new).select(self._kept.names)
        after = moment.after_us
        if after is not None:
            closes = rows.column(PANE).to_numpy() <= after
            due = [part[0] for part in log.load(None, after + 1)]
            due.append(rows.filter(pa.array(closes)))
            log.drop_before(after + 1)
            whole = pa.concat_tables(due)
            # In the order of time: partitions are numbered as they are first seen.
            order = np.argsort(whole.column(PANE).to_numpy(), kind="stable")
            output.main += self._given(whole.take(pa.array(order)))
            rows = rows.filter(pa.array(~closes))
        if rows.num_rows:
            log.append((rows,))
        self.limits.enforce(self.name, log, state.gauges)
        return output

    def _on_time(
        self, state: OperatorState, parts: list[Tables], moment: Moment, output: Output
    ) -> pa.Table:
        """Rows of open windows; the others are counted, and kept if asked."""
        rows = pa.concat_tables([self.packed[0][0].empty_table(), *(part[0] for part in parts)])
        before = moment.before_us
        if before is not None and rows.num_rows:
            is_late = rows.column(PANE).to_numpy() <= before
            late, rows = rows.filter(pa.array(is_late)), rows.filter(pa.array(~is_late))
            if late.num_rows and self.late_rows is not None:
                state.count_late(late.num_rows)
                output.late.append(self._marked(self.late_rows, late, before))
            elif late.num_rows:
                state.count_late(int(late.column(SEEN).to_numpy().sum()))
        return rows if self.late_rows is None else self._own(rows)

    def _marked(self, keeper: LateRows, late: pa.Table, before: int) -> pa.Table:
        ends = starts = np.asarray(late.column(PANE).to_numpy(), np.int64)
        if self.start is not None:
            starts = np.asarray(late.column(self.start).cast(_INT).to_numpy(), np.int64)
        return keeper.marked(late, starts, ends, before)


def _difference(was: pa.Table, now: pa.Table) -> pa.Table:
    """`-D` for rows that are gone, `+I` for those that came; equal rows cancel out."""
    cut = was.num_rows
    ids, count = equal_rows(pa.concat_tables([was, now]))
    common = np.minimum(
        np.bincount(ids[:cut], minlength=count), np.bincount(ids[cut:], minlength=count)
    )
    left = [ranks_of(ROW_NUMBER, own, [])[0] > common[own] for own in (ids[:cut], ids[cut:])]
    gone, came = was.filter(pa.array(left[0])), now.filter(pa.array(left[1]))
    return pa.concat_tables([with_op(gone, DELETE), with_op(came, INSERT)])
