"""Changelog normalization: turns upserts into a changelog by keeping the last row of every key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, BEFORE, DELETE, HASH, OP
from tidegate.operators.kernels.arrays import concat
from tidegate.operators.kernels.keys import canonicalize, find_rows, group_ids
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS, BY_ARRIVAL
from tidegate.operators.kernels.weighted_rows import diff_results
from tidegate.operators.operator import (
    NO_LIMITS,
    KeyGroupState,
    Limits,
    StepOutput,
    Tables,
    TimeProgress,
)
from tidegate.operators.store.sorted_runs import (
    FORMAT,
    TOUCHED,
    SortedRunStore,
    hashes_of,
    split_by_hashes,
)
from tidegate.operators.watermark import END_OF_INPUT_US
from tidegate.state.codec import schema_text


@dataclass(frozen=True)
class NormalizeOperator:
    """Normalizes upserts; `keys` are the types of the key, `columns` those of the whole row.

    `-D` deletes the row of its key. `-U` is ignored, because the state has the previous row.

    The last row of a key is the last one in the input, even if the files of an epoch are read out
    of order, so the result does not depend on how the input is divided into epochs. For this the
    state keeps the input position of deletes as well, as tombstones that expire after `ttl_us`.
    """

    keys: tuple[pa.DataType, ...]
    columns: tuple[pa.DataType, ...]
    limits: Limits = NO_LIMITS
    ttl_us: int | None = None
    panes = None
    name: str = "normalize_upserts"
    late: pa.Schema | None = None

    @property
    def _key_names(self) -> list[str]:
        return [f"k{index}" for index, _ in enumerate(self.keys)]

    @property
    def output(self) -> pa.Schema:
        fields = [pa.field(f"c{index}", data_type) for index, data_type in enumerate(self.columns)]
        return pa.schema([*fields, pa.field(OP, pa.string())])

    @property
    def _input_schema(self) -> pa.Schema:
        keys = [pa.field(*pair) for pair in zip(self._key_names, self.keys, strict=True)]
        return pa.schema([pa.field(HASH, pa.int64()), *keys, *self.output, *ARRIVAL_FIELDS])

    @property
    def stored_schema(self) -> pa.Schema:
        schema = self._input_schema
        return schema if self.ttl_us is None else schema.append(pa.field(TOUCHED, pa.int64()))

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        return ((self._input_schema,),)

    def state_format(self) -> tuple[str, ...]:
        return (FORMAT, schema_text(self.stored_schema))

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        """Keep the last row of every key."""
        schema = self.shuffle_schemas[0][0]
        # Key columns are canonical, so that equal keys have equal bits; the row keeps its values.
        keys = {name: canonicalize(rows.column(name)) for name in self._key_names}
        columns = [keys[name] if name in keys else rows.column(name) for name in schema.names]
        rows = pa.table(columns, schema=schema)
        return (self._last_per_key(rows.filter(pc.not_equal(rows.column(OP), BEFORE))),)

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        return (self._last_per_key(concat(parts)[0]),)

    def _last_per_key(self, rows: pa.Table) -> pa.Table:
        """Return the row of each key with the last input position; Arrow's sort is stable."""
        if rows.num_rows <= 1:
            return rows
        rows = rows.sort_by(BY_ARRIVAL)
        ids, count = group_ids(rows, self._key_names)
        last = np.zeros(count, np.int64)
        last[ids] = np.arange(rows.num_rows)
        return rows if count == rows.num_rows else rows.take(pa.array(np.sort(last)))

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        output = StepOutput()
        due = None if self.ttl_us is None else self._expiry_us
        store = SortedRunStore(
            state,
            (self.stored_schema,),
            lambda tables: (self._last_per_key(tables[0]),),
            due=due,
        )
        if self.ttl_us is not None:
            store.drop_due(progress.now_us)
        if inputs[0]:
            new = self._last_per_key(concat(inputs[0])[0])
            stored = store.load(hashes_of(new))[0]
            new = self._drop_superseded(new, stored)
            has_new = find_rows(new, stored, self._key_names) >= 0
            result = diff_results(
                _current_rows(stored.filter(pa.array(has_new))),
                _current_rows(new),
                self._key_names,
            )
            if result.num_rows:
                output.rows.append(result.select(self.output.names))
            self._store(store, new, stored.filter(pa.array(~has_new)), progress.now_us)
        self.limits.enforce(self.name, store, state.metrics)
        return output

    def _expiry_us(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Return when stored rows expire: tombstones after the time to live, other rows never."""
        assert self.ttl_us is not None, "rows expire only with a time to live"
        is_tombstone = pc.equal(rows.column(OP), DELETE)
        expiry = pc.if_else(
            is_tombstone, pc.add(rows.column(TOUCHED), self.ttl_us), END_OF_INPUT_US
        )
        return np.asarray(expiry.to_numpy(), np.int64)

    def _drop_superseded(self, new: pa.Table, stored: pa.Table) -> pa.Table:
        """Drop new rows whose input position is before that of the stored row of their key."""
        positions = find_rows(stored, new, self._key_names)
        matches = np.flatnonzero(positions >= 0)
        if not len(matches):
            return new
        old, rows = stored.take(pa.array(positions[matches])), new.take(pa.array(matches))
        files = old.column(ARRIVAL_FILE), rows.column(ARRIVAL_FILE)
        later_row = pc.greater(old.column(ARRIVAL_ROW), rows.column(ARRIVAL_ROW))
        superseded = pc.or_(pc.greater(*files), pc.and_(pc.equal(*files), later_row))
        keep = np.ones(new.num_rows, np.bool_)
        keep[matches[superseded.to_numpy(zero_copy_only=False)]] = False
        return new.filter(pa.array(keep))

    def _store(self, store: SortedRunStore, new: pa.Table, others: pa.Table, now_us: int) -> None:
        """Replace the rows of the new rows' keys; `others` are rows of keys with the same hash."""
        is_delete = pc.equal(new.column(OP), DELETE)
        tombstones = self._tombstones(new.filter(is_delete))
        rows = pa.concat_tables([new.filter(pc.invert(is_delete)), tombstones])
        if self.ttl_us is not None:
            touched = pa.array(np.full(rows.num_rows, now_us, np.int64))
            rows = rows.append_column(TOUCHED, touched)
        hashes = hashes_of(rows)
        (same_hash,), _ = split_by_hashes((others,), hashes)
        store.replace(hashes, (pa.concat_tables([same_hash, rows]),))

    def _tombstones(self, deletes: pa.Table) -> pa.Table:
        """Clear the columns of deleted rows: only the key and the input position are needed."""
        cleared = {f"c{index}" for index, _ in enumerate(self.columns)}
        columns = [
            pa.nulls(deletes.num_rows, field.type)
            if field.name in cleared
            else deletes.column(field.name)
            for field in deletes.schema
        ]
        return pa.table(columns, schema=deletes.schema)


def _current_rows(table: pa.Table) -> pa.Table:
    """Return the rows that are not tombstones, without bookkeeping columns."""
    rows = table.filter(pc.not_equal(table.column(OP), DELETE))
    hidden = {HASH, OP, ARRIVAL_FILE, ARRIVAL_ROW, TOUCHED}
    return rows.select([name for name in table.column_names if name not in hidden])
