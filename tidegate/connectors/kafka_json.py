"""Topics whose records tasks decode themselves. Python workers import this: it must load little."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.columns import BAD_RECORD, PARTITION
from tidegate.connectors.kafka_client import Connection
from tidegate.connectors.kafka_tasks import Taken, taken_of
from tidegate.connectors.plain_json import decoded
from tidegate.operators.arrival import ARRIVAL_FIELDS
from tidegate.operators.vectors import RecordFailed


@dataclass(frozen=True)
class JsonReader:
    """Reads the columns `names` of records, and where they stood."""

    connection: Connection
    decoded: pa.Schema
    names: tuple[str, ...]
    arrival: bool

    @property
    def schema(self) -> pa.Schema:
        fields = [self.decoded.field(name) for name in self.names]
        if self.arrival:
            fields += ARRIVAL_FIELDS
        return pa.schema(
            [*fields, pa.field(BAD_RECORD, pa.string()), pa.field(PARTITION, pa.int32())]
        )

    def read(self, share: list[list[Any]]) -> Iterator[tuple[pa.RecordBatch, int]]:
        for taken in taken_of(self.connection, share):
            yield self._batch(taken), len(taken.messages)

    def _batch(self, taken: Taken) -> pa.RecordBatch:
        texts = [value for value in taken.values if value is not None]
        if len(texts) != len(taken.messages):
            raise RecordFailed("a record without a value")
        rows = decoded(texts, self.decoded)
        arrays = [rows.column(name).combine_chunks() for name in self.names]
        if self.arrival:
            arrays.append(pa.repeat(pa.scalar(taken.arrival), len(texts)))
            arrays.append(pa.array(taken.offsets, pa.int64()))
        arrays.append(rows.column(BAD_RECORD).combine_chunks())
        arrays.append(pa.repeat(pa.scalar(taken.number, pa.int32()), len(texts)))
        return pa.record_batch(arrays, schema=self.schema)
