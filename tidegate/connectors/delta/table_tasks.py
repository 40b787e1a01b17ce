"""What tasks do for a source of Delta Lake. Python workers import it: it must load little."""

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
# Files of an old Spark, with times in a calendar that only Spark knows.
_OLD_TIMES = (b"org.apache.spark.legacyINT96", b"org.apache.spark.legacyDateTime")


@dataclass(frozen=True)
class DeltaReader:
    """Reads shares [file, place, values of the columns that it is filed by] of a table."""

    who: str
    root: str
    columns: pa.Schema
    # Columns as they were declared, with those of the table.
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
        path, place, values = split
        store = open_store(self.root)
        file = self._opened(store, path)
        there = set(file.schema_arrow.names)
        wanted = [name for _, name in self.names if name in there]
        row = 0
        for batch in file.iter_batches(_BATCH_ROWS, columns=wanted, use_threads=False):
            arrays = self._values(batch, values)
            arrays += self._places(path, place, row, batch.num_rows)
            row += batch.num_rows
            yield pa.record_batch(arrays, schema=self.schema), batch.num_rows

    def _opened(self, store: Store, path: str) -> pq.ParquetFile:
        try:
            data = pa.BufferReader(store.map(path))
        except NotFound:
            raise RunError(
                "TG-528",
                f"{self.who}: the file {path} was removed before it was read, by VACUUM perhaps",
                hint="start the stream over with the table as it is now: run once with "
                "--on-change restart; and keep files longer than the pipeline may stand still.",
            ) from None
        file = pq.ParquetFile(data, coerce_int96_timestamp_unit="us")
        if any(key in (file.metadata.metadata or {}) for key in _OLD_TIMES):
            raise RunError(
                "TG-529",
                f"{self.who}: {path} has times in the calendar of an old Spark",
                hint="write the table anew with a Spark of today.",
            )
        return file

    def _values(self, batch: pa.RecordBatch, values: dict[str, str | None]) -> list[pa.Array]:
        found = []
        for field, (_, name) in zip(self.columns, self.names, strict=True):
            if name in self.partition_by:
                value = partition_value(values.get(name), field.type)
                found.append(pa.repeat(value, batch.num_rows))
            elif name in batch.schema.names:
                found.append(batch.column(name).cast(field.type))
            else:
                # The column is younger than the file.
                found.append(pa.nulls(batch.num_rows, field.type))
        return found

    def _places(self, path: str, place: str, row: int, count: int) -> list[pa.Array]:
        found = []
        if self.arrival:
            found.append(pa.repeat(pa.scalar(place), count))
            found.append(pa.array(np.arange(row, row + count)))
        if self.located:
            found.append(pa.repeat(pa.scalar(f"{self.root}/{path}"), count))
            found.append(pa.array(np.arange(row + 1, row + count + 1)))
        return found


def partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """A value of a type, of the text that stands for it in a log."""
    if text is None or text == "":
        return pa.scalar(None, kind)
    if pa.types.is_timestamp(kind):
        plain = pa.scalar(text.rstrip("Z").replace("T", " ")).cast(pa.timestamp("us"))
        return plain.cast(kind)
    return pa.scalar(text).cast(kind)


# ---- What tasks do for a sink of Delta Lake. Python workers import it: it must load little.
#
# The rows of a task become parquet files aside. Those of a table that is appended to hold exactly
# what the table will hold; where rows are replaced by key, the files also hold what each row does.


@dataclass(frozen=True)
class DeltaWriterFactory:
    """Opens stagers in tasks."""

    sink: str
    files: FilesWriterFactory
    # Columns of the stream with those of the table, and those of these that are never NULL.
    columns: tuple[tuple[str, str], ...]
    not_null: tuple[str, ...]
    # Those by which the table is partitioned: the log would read '' of them as NULL.
    not_empty: tuple[str, ...]

    def open(self, stamp: str, task: int) -> DeltaWriter:
        return DeltaWriter(self, self.files.open(stamp, task))


@dataclass
class DeltaWriter:
    """The rows of one task: no rows, no file."""

    how: DeltaWriterFactory
    files: FilesWriter

    def add(self, rows: pa.Table) -> None:
        pairs = [*self.how.columns, *([(OP, OP)] if OP in rows.column_names else [])]
        table = rows.select([ours for ours, _ in pairs]).rename_columns([t for _, t in pairs])
        self._require_values(table)
        self.files.add(self._with_texts(table))

    def _require_values(self, table: pa.Table) -> None:
        """What the table would not take shows before the epoch is decided."""
        if OP in table.column_names:
            table = table.filter(pc.is_in(table.column(OP), pa.array(["+I", "+U"])))
        for name in self.how.not_null:
            if table.column(name).null_count:
                raise self._unfit(f"a row has no {name}, which the table needs in every row")
        for name in self.how.not_empty:
            if pc.any(pc.equal(table.column(name).cast(pa.string()), "")).as_py():
                raise self._unfit(f"{name} is '' in a row, and the table is partitioned by it")

    def _with_texts(self, table: pa.Table) -> pa.Table:
        """Files are sorted by values as the log writes them."""
        for name in self.how.files.partition:
            texts = table.column(name).cast(pa.string())
            table = table.set_column(table.column_names.index(name), name, texts)
        return table

    def _unfit(self, why: str) -> RunError:
        return RunError(
            "TG-504",
            f"the sink {self.how.sink}: {why}",
            hint="give it another value in the query, or leave such rows out.",
        )

    def finish(self) -> list[dict[str, Any]]:
        return self.files.finish()
