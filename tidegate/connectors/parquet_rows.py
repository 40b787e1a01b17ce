"""Reads parquet files in tasks, where their columns are exactly the declared ones.

Python workers import this module: it must not load the parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, RECORD_FILE, RECORD_LINE
from tidegate.storage import open_store

_BATCH_ROWS = 100_000


@dataclass(frozen=True)
class ParquetReader:
    """Reads shares [file, time, first group, last group] of the files below a root."""

    root: str
    columns: pa.Schema
    arrival: bool
    located: bool

    @property
    def schema(self) -> pa.Schema:
        fields = list(self.columns)
        if self.arrival:
            fields += [pa.field(ARRIVAL_FILE, pa.string()), pa.field(ARRIVAL_ROW, pa.int64())]
        if self.located:
            fields += [pa.field(RECORD_FILE, pa.string()), pa.field(RECORD_LINE, pa.int64())]
        return pa.schema(fields)

    def read(self, share: list[Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        name, modified_us, first, last = share
        assert isinstance(name, str) and isinstance(first, int) and isinstance(last, int)
        store = open_store(self.root)
        file = pq.ParquetFile(pa.BufferReader(store.map(name)))
        shown = f"{store.uri}/{name}"
        row = sum(file.metadata.row_group(group).num_rows for group in range(first))
        for batch in file.iter_batches(
            _BATCH_ROWS, list(range(first, last)), self.columns.names, use_threads=False
        ):
            count = batch.num_rows
            arrays = [batch.column(field.name).cast(field.type) for field in self.columns]
            if self.arrival:
                arrays.append(pa.repeat(pa.scalar(f"{modified_us:020d} {shown}"), count))
                arrays.append(pa.array(np.arange(row, row + count)))
            if self.located:
                arrays.append(pa.repeat(pa.scalar(shown), count))
                arrays.append(pa.array(np.arange(row + 1, row + count + 1)))
            row += count
            # Their footers told how many rows there are.
            yield pa.record_batch(arrays, schema=self.schema), 0


def fits(file: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether the columns of a file have exactly the types that were declared."""
    return all(
        len(file.get_all_field_indices(field.name)) == 1
        and _same(file.field(field.name).type, field.type)
        for field in wanted
    )


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    plain = not pa.types.is_nested(other) and not pa.types.is_dictionary(one)
    return plain and one.equals(other)
