"""Lookup tables that rows are inserted into; they are kept in the data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import OP
from tidegate.connectors.changelog import folded
from tidegate.connectors.memory.connector import inserted, inserts
from tidegate.connectors.table_lookup import TableLookup
from tidegate.physical.typed import arrow_type
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.catalog.objects import LookupTable
    from tidegate.connectors.base import LookupContext


class InsertedRows:
    """The rows of all inserts that stand; those that were read stay in memory."""

    def __init__(self, context: LookupContext) -> None:
        self.inserts = inserts(context.data)
        columns = [(c.name, arrow_type(str(c.type))) for c in context.table.columns]
        columns += [(OP, pa.string())] if context.table.carries_op else []
        self.schema = pa.schema(columns)
        self.key = keys_as_declared(context.table)
        self._read = 0
        self._rows = self.schema.empty_table()

    def version(self) -> int:
        return self.inserts.count()

    def rows(self, spark: SparkSession) -> pa.Table:
        there = self.inserts.count()
        parts = inserted(self.inserts.store.uri, self.schema, self._read, there)
        self._rows = self._standing(pa.concat_tables([self._rows, *parts])).combine_chunks()
        self._read = there
        return self._rows.drop_columns([OP]) if OP in self.schema.names else self._rows

    def _standing(self, rows: pa.Table) -> pa.Table:
        """Without the rows that were taken away; taking away what is not there does nothing."""
        if OP not in rows.column_names or not rows.num_rows:
            return rows
        kind = ChangelogKind.UPSERT if self.key else ChangelogKind.CHANGELOG
        left = folded(rows, kind, self.key)
        return left.filter(pc.not_equal(left.column(OP), "-D"))


def keys_as_declared(table: LookupTable) -> list[str]:
    """The columns of the primary key, spelled like the columns."""
    names = {column.name.lower(): column.name for column in table.columns}
    return [names[name.lower()] for name in table.primary_key]


def open_lookup(context: LookupContext) -> TableLookup:
    return TableLookup(context, InsertedRows(context))
