"""Upserts to changes: the last row of each key is remembered, and what a new one does is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, BEFORE, DELETE, OP
from tidegate.operators.changes import changes
from tidegate.operators.contract import Moment, OperatorState, Output, Tables
from tidegate.operators.group_kernels import HASH, concat
from tidegate.operators.keys import canonical, group_ids, places_of
from tidegate.operators.limits import NO_LIMITS, Limits
from tidegate.operators.runs import FORMAT, RunLog
from tidegate.state.codec import schema_text


@dataclass(frozen=True)
class Normalize:
    """`keys` are the types of the key, `columns` those of the whole row.

    A row with `-D` removes its key. `-U` says nothing that is not known here, and is ignored. The
    last row of a key is the one that stood last, also if an earlier one comes in a later epoch: so
    it is the same however the files were cut into epochs.
    """

    keys: tuple[pa.DataType, ...]
    columns: tuple[pa.DataType, ...]
    limits: Limits = NO_LIMITS
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
    def stored(self) -> pa.Schema:
        keys = [pa.field(*pair) for pair in zip(self._names, self.keys, strict=True)]
        arrival = [pa.field(ARRIVAL_FILE, pa.string()), pa.field(ARRIVAL_ROW, pa.int64())]
        return pa.schema([pa.field(HASH, pa.int64()), *keys, *self.output, *arrival])

    @property
    def packed(self) -> tuple[tuple[pa.Schema, ...], ...]:
        return ((self.stored,),)

    def stored_as(self) -> tuple[str, ...]:
        return (FORMAT, schema_text(self.stored))

    def lift(self, port: int, rows: pa.Table) -> Tables:
        schema = self.packed[0][0]
        # The columns of a row stay what they are; its key is equal where SQL says so.
        keys = {name: canonical(rows.column(name)) for name in self._names}
        columns = [keys[name] if name in keys else rows.column(name) for name in schema.names]
        rows = pa.table(columns, schema=schema)
        return (self._last(rows.filter(pc.not_equal(rows.column(OP), BEFORE))),)

    def shrink(self, port: int, parts: Sequence[Tables]) -> Tables:
        return (self._last(concat(parts)[0]),)

    def _last(self, rows: pa.Table) -> pa.Table:
        """The last row of each key, by the place where it stood; Arrow's sort is stable."""
        if rows.num_rows <= 1:
            return rows
        rows = rows.sort_by([(ARRIVAL_FILE, "ascending"), (ARRIVAL_ROW, "ascending")])
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

    def _standing(self, tables: Tables) -> Tables:
        rows = self._last(tables[0])
        return (rows.filter(pc.not_equal(rows.column(OP), DELETE)),)

    def step(self, state: OperatorState, inputs: list[list[Tables]], moment: Moment) -> Output:
        output = Output()
        log = RunLog(state, (self.stored,), self._combine, self._standing)
        if inputs[0]:
            new = self._last(concat(inputs[0])[0])
            hashes = np.asarray(new.column(HASH).to_numpy(), np.int64)
            stored = log.load(hashes)[0]
            new = self._not_before(new, stored)
            known = places_of(new, stored, self._names) >= 0
            result = changes(
                _rows(stored.filter(pa.array(known))),
                _rows(new.filter(pc.not_equal(new.column(OP), DELETE))),
                self._names,
            )
            if result.num_rows:
                output.main.append(result.select(self.output.names))
            log.append((new,))
        self.limits.enforce(self.name, log, state.gauges)
        return output


def _rows(table: pa.Table) -> pa.Table:
    """What a row is, without where it lies and stood and what it did."""
    return table.drop_columns([HASH, OP, ARRIVAL_FILE, ARRIVAL_ROW])
