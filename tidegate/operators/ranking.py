"""What all top-N operators share: partitions, their order, and the rows that are in a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import DELETE, INSERT
from tidegate.operators import arrival
from tidegate.operators.accumulators.kernels import first_places
from tidegate.operators.arrival import INT, SEQ
from tidegate.operators.changes import changes
from tidegate.operators.contract import with_op
from tidegate.operators.group_kernels import HASH, PANE, SEEN
from tidegate.operators.keys import group_ids, places_of
from tidegate.operators.ordering import (
    DENSE_RANK,
    RANK,
    ROW_NUMBER,
    Ints,
    Ordering,
    check_partitions,
    codes,
    equal_rows,
    ranks_of,
)

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
        return arrival.arrived(self.content)

    @property
    def kept(self) -> pa.Schema:
        return arrival.kept(self.content)

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
            seen[first_places(ids, count, keep)] = totals.astype(np.int64)
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
        by = [codes(rows.column(name), item) for name, item in self._orders]
        places = [-np.asarray(place) for place in came] if self.latest else came
        return ranks_of(self.function, ids, by, places)

    def changed(self, was: pa.Table, now: pa.Table) -> pa.Table:
        """What one result had and the next has not, and the other way round, as rows with _op."""
        ranked = [self._rank] if self.rank is not None else []
        known = [SEQ, *ranked]
        stays = places_of(was, now, known) >= 0
        goes = places_of(now, was, known) < 0
        was, now = was.filter(pa.array(goes)), now.filter(pa.array(~stays))
        if self.function == ROW_NUMBER and (ranked or self.limit == 1):
            names = [*self.by, *self.row.names]
            return changes(was.select(names), now.select(names), [*self.by, *ranked])
        return _difference(was.select(self.row.names), now.select(self.row.names))


def select(rows: pa.Table, schema: pa.Schema, keys: Sequence[pa.Field]) -> pa.Table:
    """The columns that count; a row that came is one row that was seen."""
    seen = {SEEN: pa.array(np.ones(rows.num_rows, np.int64))}
    return arrival.select(rows, schema, keys, seen)


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
