"""The memory lookup table, whose inserts are stored in the data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import OP
from tidegate.connectors.changelog_compaction import compact_changes
from tidegate.connectors.memory.connector import open_inserts, read_inserts
from tidegate.connectors.table_lookup import TableLookup
from tidegate.physical.typed import arrow_type
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.catalog.objects import LookupTable
    from tidegate.connectors.base import LookupContext


class InsertedRows:
    """The current rows after all inserts. Inserts that were read are cached in memory."""

    def __init__(self, context: LookupContext) -> None:
        self.inserts = open_inserts(context.data_uri)
        columns = [(c.name, arrow_type(str(c.type))) for c in context.table.columns]
        columns += [(OP, pa.string())] if context.table.carries_op else []
        self.schema = pa.schema(columns)
        self.key = keys_as_declared(context.table)
        self._read = 0
        self._rows = self.schema.empty_table()

    def version(self) -> int:
        return self.inserts.count()

    def rows(self, spark: SparkSession) -> pa.Table:
        count = self.inserts.count()
        parts = read_inserts(self.inserts.store.uri, self.schema, self._read, count)
        self._rows = self._apply_deletes(pa.concat_tables([self._rows, *parts])).combine_chunks()
        self._read = count
        return self._rows.drop_columns([OP]) if OP in self.schema.names else self._rows

    def _apply_deletes(self, rows: pa.Table) -> pa.Table:
        """Remove deleted rows. Deleting a row that does not exist has no effect."""
        if OP not in rows.column_names or not rows.num_rows:
            return rows
        kind = ChangelogKind.UPSERT if self.key else ChangelogKind.CHANGELOG
        changes = compact_changes(rows, kind, self.key)
        return changes.filter(pc.not_equal(changes.column(OP), "-D"))


def keys_as_declared(table: LookupTable) -> list[str]:
    """Return the primary key columns in the spelling of the column declarations."""
    names = {column.name.lower(): column.name for column in table.columns}
    return [names[name.lower()] for name in table.primary_key]


def open_lookup(context: LookupContext) -> TableLookup:
    return TableLookup(context, InsertedRows(context))
