"""The reader of the memory source and the writer of the memory sink. Python workers import them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidegate.errors import RunError
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS
from tidegate.storage import open_store


@dataclass(frozen=True)
class InsertReader:
    """Reads inserts. A split is the name of one insert. Missing columns are NULL."""

    root: str
    columns: pa.Schema
    arrival: bool

    @property
    def schema(self) -> pa.Schema:
        fields = list(self.columns)
        if self.arrival:
            fields += ARRIVAL_FIELDS
        return pa.schema(fields)

    def read(self, split: str) -> Iterator[tuple[pa.RecordBatch, int]]:
        buffer = open_store(self.root).map(split)
        row = 0
        for batch in pa.ipc.open_file(pa.BufferReader(buffer)).read_all().to_batches():
            count = batch.num_rows
            arrays = [self._column(batch, field) for field in self.columns]
            if self.arrival:
                arrays.append(pa.repeat(pa.scalar(split), count))
                arrays.append(pa.array(np.arange(row, row + count)))
            row += count
            yield pa.record_batch(arrays, schema=self.schema), count

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            return pa.nulls(batch.num_rows, field.type)
        try:
            return batch.column(index).cast(field.type)
        except pa.ArrowException as error:
            raise RunError(
                "TG-504",
                f"rows were inserted with the column {field.name} as {batch.column(index).type}, "
                f"but it is declared as {field.type}: {error}",
                hint="declare the type that it had, or declare another source.",
            ) from None


@dataclass
class ArrowWriter:
    """Collects the rows of a task and writes them into one Arrow file."""

    root: str
    stamp: str
    task: int
    tables: list[pa.Table] = field(default_factory=list)

    def add(self, rows: pa.Table) -> None:
        self.tables.append(rows)

    def finish(self) -> list[str]:
        if not self.tables:
            return []
        name = f"{self.stamp}-{self.task:05d}-{uuid.uuid4().hex[:8]}.arrow"
        schema = self.tables[0].schema
        store = open_store(self.root)
        with store.writer(name) as out, pa.ipc.new_file(out, schema) as writer:
            for table in self.tables:
                writer.write_table(table)
        return [name]


@dataclass(frozen=True)
class ArrowWriterFactory:
    """Opens the writers of memory sinks and views."""

    root: str

    def open(self, stamp: str, task: int) -> ArrowWriter:
        return ArrowWriter(self.root, stamp, task)
