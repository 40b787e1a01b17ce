"""The reader of delta sources and the writer of delta sinks. Python workers import this module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.columns import OP, RECORD_FILE, RECORD_LINE
from tidegate.connectors.files.writer import FilesWriter, FilesWriterFactory
from tidegate.errors import RunError
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS
from tidegate.storage import NotFound, Store, open_store

_BATCH_ROWS = 100_000
# Metadata of files that Spark has written with timestamps in its legacy calendar.
_OLD_TIMES = (b"org.apache.spark.legacyINT96", b"org.apache.spark.legacyDateTime")


@dataclass(frozen=True)
class DeltaReader:
    """Reads splits [file, arrival position, values of the partition columns] of a table."""

    label: str
    root: str
    columns: pa.Schema
    # The declared name and the table's name of each column.
    names: tuple[tuple[str, str], ...]
    partition_by: tuple[str, ...]
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

    def read(self, split: list[Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        path, position, values = split
        store = open_store(self.root)
        file = self._open_file(store, path)
        file_columns = set(file.schema_arrow.names)
        names = [name for _, name in self.names if name in file_columns]
        row = 0
        for batch in file.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
            arrays = self._columns(batch, values)
            arrays += self._position_columns(path, position, row, batch.num_rows)
            row += batch.num_rows
            yield pa.record_batch(arrays, schema=self.schema), batch.num_rows

    def _open_file(self, store: Store, path: str) -> pq.ParquetFile:
        try:
            data = pa.BufferReader(store.map(path))
        except NotFound:
            raise RunError(
                "TG-528",
                f"{self.label}: the file {path} was removed before it was read, probably by VACUUM",
                hint="start the stream over with the current table: run once with "
                "--on-change restart; and retain files for longer than the pipeline may be "
                "stopped.",
            ) from None
        file = pq.ParquetFile(data, coerce_int96_timestamp_unit="us")
        if any(key in (file.metadata.metadata or {}) for key in _OLD_TIMES):
            raise RunError(
                "TG-529",
                f"{self.label}: {path} has timestamps in Spark's legacy calendar",
                hint="rewrite the table with a current version of Spark.",
            )
        return file

    def _columns(
        self, batch: pa.RecordBatch, partition_values: dict[str, str | None]
    ) -> list[pa.Array]:
        columns = []
        for field, (_, name) in zip(self.columns, self.names, strict=True):
            if name in self.partition_by:
                value = partition_value(partition_values.get(name), field.type)
                columns.append(pa.repeat(value, batch.num_rows))
            elif name in batch.schema.names:
                columns.append(batch.column(name).cast(field.type))
            else:
                # The column was added after the file had been written.
                columns.append(pa.nulls(batch.num_rows, field.type))
        return columns

    def _position_columns(self, path: str, position: str, row: int, count: int) -> list[pa.Array]:
        columns = []
        if self.arrival:
            columns.append(pa.repeat(pa.scalar(position), count))
            columns.append(pa.array(np.arange(row, row + count)))
        if self.located:
            columns.append(pa.repeat(pa.scalar(f"{self.root}/{path}"), count))
            columns.append(pa.array(np.arange(row + 1, row + count + 1)))
        return columns


def partition_value(text: str | None, data_type: pa.DataType) -> pa.Scalar:
    """Parse the value of a partition column from its text in the log."""
    if text is None or text == "":
        return pa.scalar(None, data_type)
    if pa.types.is_timestamp(data_type):
        plain = pa.scalar(text.rstrip("Z").replace("T", " ")).cast(pa.timestamp("us"))
        return plain.cast(data_type)
    return pa.scalar(text).cast(data_type)


# ---- The writer of a sink.
#
# The rows of a task are staged in Parquet files. If the sink appends, these become files of the
# table. If it updates by key, they also contain _op and are merged into the table.


@dataclass(frozen=True)
class DeltaWriterFactory:
    """Opens the writers of a delta sink."""

    sink: str
    files: FilesWriterFactory
    # The name of each column in the stream and in the table; the NOT NULL columns of the table.
    columns: tuple[tuple[str, str], ...]
    not_null: tuple[str, ...]
    # The partition columns. The log cannot distinguish '' from NULL.
    not_empty: tuple[str, ...]

    def open(self, stamp: str, task: int) -> DeltaWriter:
        return DeltaWriter(self, self.files.open(stamp, task))


@dataclass
class DeltaWriter:
    """Checks the rows of one task and stages them in files."""

    factory: DeltaWriterFactory
    files: FilesWriter

    def add(self, rows: pa.Table) -> None:
        pairs = [*self.factory.columns, *([(OP, OP)] if OP in rows.column_names else [])]
        table = rows.select([name for name, _ in pairs]).rename_columns([t for _, t in pairs])
        self._require_values(table)
        self.files.add(self._partition_texts(table))

    def _require_values(self, table: pa.Table) -> None:
        """Reject rows that the table cannot store, before the commit."""
        if OP in table.column_names:
            table = table.filter(pc.is_in(table.column(OP), pa.array(["+I", "+U"])))
        for name in self.factory.not_null:
            if table.column(name).null_count:
                raise self._rejected_row(f"{name} is NULL in a row, but NOT NULL in the table")
        for name in self.factory.not_empty:
            if pc.any(pc.equal(table.column(name).cast(pa.string()), "")).as_py():
                raise self._rejected_row(
                    f"{name} is '' in a row, but the table is partitioned by it"
                )

    def _partition_texts(self, table: pa.Table) -> pa.Table:
        """Convert the partition columns to text, as in the log."""
        for name in self.factory.files.partition:
            texts = table.column(name).cast(pa.string())
            table = table.set_column(table.column_names.index(name), name, texts)
        return table

    def _rejected_row(self, why: str) -> RunError:
        return RunError(
            "TG-504",
            f"the sink {self.factory.sink}: {why}",
            hint="select another value in the query, or filter such rows.",
        )

    def finish(self) -> list[dict[str, Any]]:
        return self.files.finish()
