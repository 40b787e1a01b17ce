"""Lookup tables that rows are inserted into; they are kept in the data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tidegate.connectors.memory import inserted, inserts
from tidegate.connectors.table_lookup import TableLookup
from tidegate.physical.typed import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.connectors.protocols import LookupContext


class InsertedRows:
    """The rows of all inserts; those that were read stay in memory."""

    def __init__(self, context: LookupContext) -> None:
        self.inserts = inserts(context.data)
        columns = [(c.name, arrow_type(str(c.type))) for c in context.table.columns]
        self.schema = pa.schema(columns)
        self._read = 0
        self._rows = self.schema.empty_table()

    def version(self) -> int:
        return self.inserts.count()

    def rows(self, spark: SparkSession) -> pa.Table:
        there = self.inserts.count()
        parts = inserted(self.inserts.store.uri, self.schema, self._read, there)
        self._rows = pa.concat_tables([self._rows, *parts]).combine_chunks()
        self._read = there
        return self._rows


def open_lookup(context: LookupContext) -> TableLookup:
    return TableLookup(context, InsertedRows(context))
