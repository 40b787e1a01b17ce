"""The first rows of each window, once: when the watermark has passed its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import DELETE, HASH, INSERT, OP, PANE, SEEN
from tidegate.operators.kernels import ordering as arrival
from tidegate.operators.kernels.arrays import Ints, concat, first_rows, int_column
from tidegate.operators.kernels.keys import find_rows, group_ids
from tidegate.operators.kernels.ordering import (
    DENSE_RANK,
    INT,
    RANK,
    ROW_NUMBER,
    SEQ,
    Ordering,
    check_partitions,
    identical_row_ids,
    number_arrivals,
    rank_rows,
    sort_codes,
)
from tidegate.operators.kernels.weighted_rows import diff_results
from tidegate.operators.late_rows import LateRows, split_late
from tidegate.operators.operator import (
    NO_LIMITS,
    EpochTime,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    with_op,
)
from tidegate.operators.store.time_buckets import FORMAT, TimeBucketStore
from tidegate.state.codec import schema_text

# ---- What all top-N operators share: partitions, their order, and the rows that are in a result.

_PLACE = "_place"


class Partitions(Protocol):
    """What comes out of partitions: their first rows, or all of them with more columns."""

    @property
    def key_fields(self) -> list[pa.Field]: ...

    @property
    def by(self) -> list[str]:
        """What tells partitions apart."""

    @property
    def row(self) -> pa.Schema:
        """What a row of the result is."""

    @property
    def content(self) -> list[pa.Field]:
        """What rows have wherever they are."""

    @property
    def arrived(self) -> pa.Schema:
        """A row that comes in, with its place of arrival."""

    @property
    def kept(self) -> pa.Schema:
        """A row that is stored, with its place among all that came."""

    def select(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """The columns that count, with keys that are equal where SQL says so."""

    def contenders(self, rows: pa.Table) -> pa.Table:
        """Rows that can be in a result, as they came."""

    def leading(self, rows: pa.Table) -> pa.Table:
        """Of stored rows those that can be in a result."""

    def result(self, rows: pa.Table) -> pa.Table:
        """The result of stored rows, partition by partition."""

    def changed(self, was: pa.Table, now: pa.Table) -> pa.Table:
        """What one result had and the next has not, and the other way round, as rows with _op."""


@dataclass(frozen=True)
class Ranking:
    """The first `limit` rows of each partition; columns are `k0`, … and `o0`, … and `c0`, ….

    With `rank` the rank is one more column of the result. `by_pane`: the moment that closes a
    partition is a part of what tells it apart.
    """

    keys: tuple[pa.DataType, ...]
    order: tuple[Ordering, ...]
    columns: tuple[pa.DataType, ...]
    limit: int
    function: str = ROW_NUMBER
    rank: pa.DataType | None = None
    by_pane: bool = True
    # The column that says for each row up to which rank it comes out, where that is not the same
    # for all: then all rows are kept.
    size: int | None = None
    # Of rows that are equal in the order the last one wins, not the first.
    latest: bool = False

    def __post_init__(self) -> None:
        assert self.function in (ROW_NUMBER, RANK, DENSE_RANK), self.function
        assert self.limit >= 1, "there is a first row"
        check_partitions(self.keys, self.order)

    # Shapes

    @property
    def by(self) -> list[str]:
        """What tells partitions apart."""
        return [PANE if self.by_pane else HASH, *(item.name for item in self.key_fields)]

    @property
    def key_fields(self) -> list[pa.Field]:
        return [pa.field(f"k{index}", kind) for index, kind in enumerate(self.keys)]

    @property
    def _orders(self) -> list[tuple[str, Ordering]]:
        return [(f"o{index}", item) for index, item in enumerate(self.order)]

    @property
    def _rank(self) -> str:
        return f"c{len(self.columns)}" if self.rank is not None else _PLACE

    @property
    def row(self) -> pa.Schema:
        """What a row of the result is."""
        kinds = [*self.columns, *([self.rank] if self.rank is not None else [])]
        return pa.schema([pa.field(f"c{index}", kind) for index, kind in enumerate(kinds)])

    @property
    def content(self) -> list[pa.Field]:
        """What rows have wherever they are."""
        hidden = [pa.field(PANE, INT), pa.field(HASH, INT)]
        orders = [pa.field(name, item.type) for name, item in self._orders]
        columns = [pa.field(f"c{index}", kind) for index, kind in enumerate(self.columns)]
        return [*hidden, *self.key_fields, *orders, *columns]

    @property
    def arrived(self) -> pa.Schema:
        return arrival.arrival_schema(self.content)

    @property
    def kept(self) -> pa.Schema:
        return arrival.stored_schema(self.content)

    def select(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        return select(rows, schema, self.key_fields)

    # Order

    def contenders(self, rows: pa.Table) -> pa.Table:
        """Rows that can be in a result, as they came: whatever beats one here beats it anywhere.

        With SEEN, those that stay also count the rows that were left behind.
        """
        if rows.num_rows <= 1:
            return rows
        ids, count = group_ids(rows, self.by)
        keep = self._ranks(rows, ids, arrival.arrival_codes(rows))[0] <= self.limit
        if keep.all():
            return rows
        if SEEN in rows.column_names:
            seen = np.zeros(rows.num_rows, np.int64)
            totals = np.bincount(ids, rows.column(SEEN).to_numpy(), count)
            seen[first_rows(ids, count, keep)] = totals.astype(np.int64)
            rows = rows.set_column(rows.schema.get_field_index(SEEN), SEEN, pa.array(seen))
        return rows.filter(pa.array(keep))

    def leading(self, rows: pa.Table) -> pa.Table:
        """Of stored rows those that can be in a result."""
        if rows.num_rows <= self.limit:
            return rows
        ids, _ = group_ids(rows, self.by)
        keep = self._ranks(rows, ids, [rows.column(SEQ).to_numpy()])[0] <= self.limit
        return rows if keep.all() else rows.filter(pa.array(keep))

    def result(self, rows: pa.Table) -> pa.Table:
        """The stored rows up to the limit with their rank, partition by partition."""
        ids, _ = group_ids(rows, self.by)
        ranks, order = self._ranks(rows, ids, [rows.column(SEQ).to_numpy()])
        order = order[ranks[order] <= self._limits(rows)[order]]
        found = pa.array(ranks[order]).cast(self.rank or INT)
        return rows.take(pa.array(order)).append_column(self._rank, found)

    def _limits(self, rows: pa.Table) -> Ints:
        """Up to which rank each row comes out."""
        if self.size is None:
            return np.full(rows.num_rows, self.limit, np.int64)
        sizes = pc.fill_null(pc.cast(rows.column(f"c{self.size}"), INT), 0)
        return np.asarray(sizes.to_numpy(), np.int64)

    def _ranks(self, rows: pa.Table, ids: Ints, came: Sequence[Ints]) -> tuple[Ints, Ints]:
        by = [sort_codes(rows.column(name), item) for name, item in self._orders]
        places = [-np.asarray(place) for place in came] if self.latest else came
        return rank_rows(self.function, ids, by, places)

    def changed(self, was: pa.Table, now: pa.Table) -> pa.Table:
        """What one result had and the next has not, and the other way round, as rows with _op."""
        ranked = [self._rank] if self.rank is not None else []
        known = [SEQ, *ranked]
        stays = find_rows(was, now, known) >= 0
        goes = find_rows(now, was, known) < 0
        was, now = was.filter(pa.array(goes)), now.filter(pa.array(~stays))
        if self.function == ROW_NUMBER and (ranked or self.limit == 1):
            names = [*self.by, *self.row.names]
            return diff_results(was.select(names), now.select(names), [*self.by, *ranked])
        return _difference(was.select(self.row.names), now.select(self.row.names))


def select(rows: pa.Table, schema: pa.Schema, keys: Sequence[pa.Field]) -> pa.Table:
    """The columns that count; a row that came is one row that was seen."""
    seen = {SEEN: pa.array(np.ones(rows.num_rows, np.int64))}
    return arrival.select_columns(rows, schema, keys, seen)


def _difference(was: pa.Table, now: pa.Table) -> pa.Table:
    """`-D` for rows that are gone, `+I` for those that came; equal rows cancel out."""
    cut = was.num_rows
    ids, count = identical_row_ids(pa.concat_tables([was, now]))
    common = np.minimum(
        np.bincount(ids[:cut], minlength=count), np.bincount(ids[cut:], minlength=count)
    )
    left = [rank_rows(ROW_NUMBER, own, [])[0] > common[own] for own in (ids[:cut], ids[cut:])]
    gone, came = was.filter(pa.array(left[0])), now.filter(pa.array(left[1]))
    return pa.concat_tables([with_op(gone, DELETE), with_op(came, INSERT)])


@dataclass(frozen=True)
class WindowTopN:
    """The pane of a row is the moment at which its window closes, and with it comes the result.

    Rows only come, so that those beyond the limit can be forgotten. `start` is the column with the
    start of a window, for late rows.
    """

    ranking: Partitions
    with_op: bool = False
    late_rows: LateRows | None = None
    limits: Limits = NO_LIMITS
    start: str | None = None
    name: str = "window_top_n"

    @property
    def output(self) -> pa.Schema:
        return pa.schema(
            [*self.ranking.row, *([pa.field(OP, pa.string())] if self.with_op else [])]
        )

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    @property
    def _lifted(self) -> pa.Schema:
        """Rows that come in; SEEN counts those that were left behind where rows are read."""
        return self.ranking.arrived.append(pa.field(SEEN, INT))

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        late = self.late_rows
        return ((late.input_schema if late is not None else self._lifted,),)

    def state_format(self) -> tuple[str, ...]:
        return (FORMAT, schema_text(self.ranking.kept))

    # Where the rows are

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        if self.late_rows is not None:
            return (self.late_rows.select(rows),)
        return (self.ranking.contenders(self.ranking.select(rows, self._lifted)),)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        if self.late_rows is not None:
            return concat(parts)
        return (self.ranking.contenders(concat(parts)[0]),)

    # Where the state is

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        log = TimeBucketStore(state, (self.ranking.kept,), self._combine)
        output = StepOutput()
        rows = number_arrivals(state, self._on_time(state, inputs[0], epoch_time, output))
        rows = rows.select(self.ranking.kept.names)
        after = epoch_time.watermark_us
        if after is not None:
            closes = int_column(rows, PANE) <= after
            parts = [part[0] for part in log.load(None, after + 1)]
            output.main += self._results([*parts, rows.filter(pa.array(closes))])
            log.drop_before(after + 1)
            rows = rows.filter(pa.array(~closes))
        if rows.num_rows:
            log.append((rows,))
        self.limits.enforce(self.name, log, state.gauges)
        return output

    def _combine(self, tables: Tables) -> Tables:
        return (self.ranking.leading(tables[0]),)

    def _on_time(
        self, state: KeyGroupState, parts: list[Tables], epoch_time: EpochTime, output: StepOutput
    ) -> pa.Table:
        """Rows of open windows that can win; late ones are counted, and kept if asked."""
        rows, late = split_late(self.shuffle_schemas[0][0], parts, state, epoch_time)
        if self.late_rows is None:
            return self.ranking.contenders(rows)
        output.late += self.late_rows.with_window(
            late, self.start, epoch_time.previous_watermark_us
        )
        return self.ranking.contenders(self.ranking.select(rows, self._lifted))

    def _results(self, parts: list[pa.Table]) -> list[pa.Table]:
        """What closes, in the order of time: partitions are numbered as they are first seen."""
        rows = pa.concat_tables(parts)
        if not rows.num_rows:
            return []
        order = np.argsort(int_column(rows, PANE), kind="stable")
        result = self.ranking.result(rows.take(pa.array(order))).select(self.ranking.row.names)
        return [with_op(result, INSERT) if self.with_op else result]
