"""Upserts to changes: the last row of each key is remembered, and what a new one does is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, BEFORE, DELETE, OP
from tidegate.operators.aggregate.groups import HASH, concat
from tidegate.operators.kernels.keys import canonical, group_ids, places_of
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS, BY_ARRIVAL
from tidegate.operators.kernels.weighted_rows import changes
from tidegate.operators.operator import (
    NO_LIMITS,
    EpochTime,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
)
from tidegate.operators.store.sorted_runs import (
    FORMAT,
    TOUCHED,
    SortedRunStore,
    hashes_of,
    of_hashes,
)
from tidegate.operators.watermark import END_US
from tidegate.state.codec import schema_text


@dataclass(frozen=True)
class NormalizeOperator:
    """`keys` are the types of the key, `columns` those of the whole row.

    A row with `-D` removes its key. `-U` says nothing that is not known here, and is ignored. The
    last row of a key is the one that stood last, also if an earlier one comes in a later epoch: so
    it is the same however the files were cut into epochs. For that it is also kept where a row
    that removed its key stood, with a time to live for so long.
    """

    keys: tuple[pa.DataType, ...]
    columns: tuple[pa.DataType, ...]
    limits: Limits = NO_LIMITS
    ttl_us: int | None = None
    name: str = "normalize_upserts"
    late: pa.Schema | None = None

    @property
    def _names(self) -> list[str]:
        return [f"k{index}" for index, _ in enumerate(self.keys)]

    @property
    def output(self) -> pa.Schema:
        fields = [pa.field(f"c{index}", kind) for index, kind in enumerate(self.columns)]
        return pa.schema([*fields, pa.field(OP, pa.string())])

    @property
    def _row(self) -> pa.Schema:
        keys = [pa.field(*pair) for pair in zip(self._names, self.keys, strict=True)]
        return pa.schema([pa.field(HASH, pa.int64()), *keys, *self.output, *ARRIVAL_FIELDS])

    @property
    def stored(self) -> pa.Schema:
        row = self._row
        return row if self.ttl_us is None else row.append(pa.field(TOUCHED, pa.int64()))

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        return ((self._row,),)

    def stored_as(self) -> tuple[str, ...]:
        return (FORMAT, schema_text(self.stored))

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        schema = self.shuffle_schemas[0][0]
        # The columns of a row stay what they are; its key is equal where SQL says so.
        keys = {name: canonical(rows.column(name)) for name in self._names}
        columns = [keys[name] if name in keys else rows.column(name) for name in schema.names]
        rows = pa.table(columns, schema=schema)
        return (self._last(rows.filter(pc.not_equal(rows.column(OP), BEFORE))),)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        return (self._last(concat(parts)[0]),)

    def _last(self, rows: pa.Table) -> pa.Table:
        """The last row of each key, by the place where it stood; Arrow's sort is stable."""
        if rows.num_rows <= 1:
            return rows
        rows = rows.sort_by(BY_ARRIVAL)
        ids, count = group_ids(rows, self._names)
        last = np.zeros(count, np.int64)
        last[ids] = np.arange(rows.num_rows)
        return rows if count == rows.num_rows else rows.take(pa.array(np.sort(last)))

    def _not_before(self, new: pa.Table, stored: pa.Table) -> pa.Table:
        """Without the rows that stood before what is known of their key."""
        places = places_of(stored, new, self._names)
        met = np.flatnonzero(places >= 0)
        if not len(met):
            return new
        known, rows = stored.take(pa.array(places[met])), new.take(pa.array(met))
        files = known.column(ARRIVAL_FILE), rows.column(ARRIVAL_FILE)
        later_row = pc.greater(known.column(ARRIVAL_ROW), rows.column(ARRIVAL_ROW))
        before = pc.or_(pc.greater(*files), pc.and_(pc.equal(*files), later_row))
        kept = np.ones(new.num_rows, np.bool_)
        kept[met[before.to_numpy(zero_copy_only=False)]] = False
        return new.filter(pa.array(kept))

    def _combine(self, tables: Tables) -> Tables:
        return (self._last(tables[0]),)

    def _due(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """When a row is forgotten: a key that is gone some time after that, a row never."""
        assert self.ttl_us is not None, "without a time to live nothing is due"
        gone = pc.equal(rows.column(OP), DELETE)
        due = pc.if_else(gone, pc.add(rows.column(TOUCHED), self.ttl_us), END_US)
        return np.asarray(due.to_numpy(), np.int64)

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        output = StepOutput()
        due = None if self.ttl_us is None else self._due
        log = SortedRunStore(state, (self.stored,), self._combine, due=due)
        if self.ttl_us is not None:
            log.drop_due(epoch_time.now_us)
        if inputs[0]:
            new = self._last(concat(inputs[0])[0])
            stored = log.load(hashes_of(new))[0]
            new = self._not_before(new, stored)
            known = places_of(new, stored, self._names) >= 0
            result = changes(_rows(stored.filter(pa.array(known))), _rows(new), self._names)
            if result.num_rows:
                output.main.append(result.select(self.output.names))
            self._keep(log, new, stored.filter(pa.array(~known)), epoch_time.now_us)
        self.limits.enforce(self.name, log, state.gauges)
        return output

    def _keep(self, log: SortedRunStore, new: pa.Table, others: pa.Table, now_us: int) -> None:
        """The new rows instead of those of their keys; `others` may have the same hashes."""
        gone = pc.equal(new.column(OP), DELETE)
        kept = pa.concat_tables([new.filter(pc.invert(gone)), self._emptied(new.filter(gone))])
        if self.ttl_us is not None:
            stamps = pa.array(np.full(kept.num_rows, now_us, np.int64))
            kept = kept.append_column(TOUCHED, stamps)
        hashes = hashes_of(kept)
        (same,), _ = of_hashes((others,), hashes)
        log.replace(hashes, (pa.concat_tables([same, kept]),))

    def _emptied(self, gone: pa.Table) -> pa.Table:
        """Of a key that is gone nobody reads more than where it stood."""
        own = {f"c{index}" for index, _ in enumerate(self.columns)}
        columns = [
            pa.nulls(gone.num_rows, field.type) if field.name in own else gone.column(field.name)
            for field in gone.schema
        ]
        return pa.table(columns, schema=gone.schema)


def _rows(table: pa.Table) -> pa.Table:
    """The rows that stand, without where they lie and stood, what they did and when."""
    standing = table.filter(pc.not_equal(table.column(OP), DELETE))
    hidden = {HASH, OP, ARRIVAL_FILE, ARRIVAL_ROW, TOUCHED}
    return standing.select([name for name in table.column_names if name not in hidden])
