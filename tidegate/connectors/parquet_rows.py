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

from tidegate.columns import RECORD_FILE, RECORD_LINE
from tidegate.operators.arrival import ARRIVAL_FIELDS
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
            fields += ARRIVAL_FIELDS
        if self.located:
            fields += [pa.field(RECORD_FILE, pa.string()), pa.field(RECORD_LINE, pa.int64())]
        return pa.schema(fields)

    def read(self, share: list[Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        name, modified_us, first, last = share
        assert isinstance(name, str) and isinstance(first, int) and isinstance(last, int)
        store = open_store(self.root)
        data = pa.BufferReader(store.map(name))
        file = pq.ParquetFile(data, coerce_int96_timestamp_unit="us")
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


def fits(footer: Any, wanted: pa.Schema) -> bool:
    """Whether the columns of a file, by its footer, have exactly the types that were declared."""
    file = footer.schema.to_arrow_schema()
    old = _old_times(footer)
    return all(
        len(file.get_all_field_indices(field.name)) == 1
        and (_same(file.field(field.name).type, field.type) or _is_time(field, old))
        for field in wanted
    )


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    plain = not pa.types.is_nested(other) and not pa.types.is_dictionary(one)
    return plain and one.equals(other)


def _is_time(field: pa.Field, old: set[str]) -> bool:
    return field.name in old and bool(field.type.equals(pa.timestamp("us", "UTC")))


def _old_times(footer: Any) -> set[str]:
    """Columns of times as Spark writes them, in 12 bytes, in the calendar of today.

    Times of others, or of a Spark that was told to, may be in an older calendar: Spark judges them.
    """
    told = footer.metadata or {}
    if b"org.apache.spark.version" not in told or b"org.apache.spark.legacyINT96" in told:
        return set()
    columns = [footer.schema.column(place) for place in range(len(footer.schema))]
    return {column.name for column in columns if column.physical_type == "INT96"}
