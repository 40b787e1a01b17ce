"""Files of JSON, a record per line, that tasks decode themselves. Python workers import this: it
must load little."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, BAD_RECORD
from tidegate.connectors.plain_json import decoded
from tidegate.connectors.text_lines import TEXT_BYTES, TextReader


@dataclass(frozen=True)
class JsonLinesReader:
    """Reads the columns `names` of records, and where they stood."""

    lines: TextReader
    decoded: pa.Schema
    names: tuple[str, ...]
    arrival: bool

    @property
    def schema(self) -> pa.Schema:
        fields = [self.decoded.field(name) for name in self.names]
        if self.arrival:
            fields += [pa.field(ARRIVAL_FILE, pa.string()), pa.field(ARRIVAL_ROW, pa.int64())]
        return pa.schema([*fields, pa.field(BAD_RECORD, pa.string())])

    def read(self, share: list[Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        for batch, records in self.lines.read(share):
            rows = decoded(batch.column(TEXT_BYTES).to_pylist(), self.decoded)
            arrays = [rows.column(name).combine_chunks() for name in self.names]
            if self.arrival:
                arrays += [batch.column(ARRIVAL_FILE), batch.column(ARRIVAL_ROW)]
            arrays.append(rows.column(BAD_RECORD).combine_chunks())
            yield pa.record_batch(arrays, schema=self.schema), records
