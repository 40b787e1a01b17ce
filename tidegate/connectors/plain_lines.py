"""Files of JSON or CSV, a record per line, that tasks decode themselves.

Python workers import this: it must load little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, BAD_RECORD
from tidegate.connectors import plain_csv, plain_json
from tidegate.connectors.text_lines import FIRST, TEXT_BYTES, TextReader
from tidegate.operators.arrival import ARRIVAL_FIELDS
from tidegate.operators.vectors import RecordFailed


class LineFormat(Protocol):
    """How lines are decoded, and to what."""

    @property
    def schema(self) -> pa.Schema: ...

    def records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The lines that are records."""

    def rows(self, lines: pa.Array) -> pa.Table:
        """Their columns, and BAD_RECORD."""


@dataclass(frozen=True)
class JsonLines:
    schema: pa.Schema

    def records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def rows(self, lines: pa.Array) -> pa.Table:
        return plain_json.decoded(lines.to_pylist(), self.schema)


@dataclass(frozen=True)
class CsvLines:
    schema: pa.Schema
    form: plain_csv.CsvFormat
    header: bool

    def records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without the header, which must name the columns; Spark says what is wrong with others."""
        first = batch.column(FIRST)
        if not self.header or not pc.any(first).as_py():
            return batch
        (line,) = batch.filter(first).column(TEXT_BYTES).to_pylist()
        if not plain_csv.header_fits(line, self.schema.names, self.form):
            raise RecordFailed("another header")
        return batch.filter(pc.invert(first))

    def rows(self, lines: pa.Array) -> pa.Table:
        return plain_csv.decoded(lines, self.schema, self.form)


@dataclass(frozen=True)
class PlainLinesReader:
    """Reads the columns `names` of records, and where they stood."""

    lines: TextReader
    format: LineFormat
    names: tuple[str, ...]
    arrival: bool

    @property
    def schema(self) -> pa.Schema:
        fields = [self.format.schema.field(name) for name in self.names]
        if self.arrival:
            fields += ARRIVAL_FIELDS
        return pa.schema([*fields, pa.field(BAD_RECORD, pa.string())])

    def read(self, share: list[Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        for read, records in self.lines.read(share):
            batch = self.format.records(read)
            rows = self.format.rows(batch.column(TEXT_BYTES))
            arrays = [rows.column(name).combine_chunks() for name in self.names]
            if self.arrival:
                arrays += [batch.column(ARRIVAL_FILE), batch.column(ARRIVAL_ROW)]
            arrays.append(rows.column(BAD_RECORD).combine_chunks())
            yield pa.record_batch(arrays, schema=self.schema), records
