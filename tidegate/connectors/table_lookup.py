"""Lookup tables that tasks hold in memory: the driver writes the table as of an epoch into one
file, whose name is in the order. So all tasks of an epoch see the same table, however often they
run.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from tidegate.connectors.memory.rows import arrow_bytes
from tidegate.operators.join.lookup_results import (
    WholeTable,
    distinct,
    key_columns,
    without_null_keys,
)
from tidegate.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.connectors.base import LookupContext


@dataclass(frozen=True)
class TableReader:
    """Loads a table where it is not loaded yet; its files never change."""

    root: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]

    def open(self, as_of: Any, now_us: int) -> WholeTable:
        known = _loaded.get(self)
        if known is None or known[0] != as_of:
            buffer = open_store(self.root).map(as_of)
            rows = pa.ipc.open_file(pa.BufferReader(buffer)).read_all()
            wanted = rows.select(list(self.columns))
            known = _loaded[self] = (as_of, WholeTable(wanted, self.keys))
        return known[1]


# What this process has loaded, and which file it is of.
_loaded: dict[TableReader, tuple[str, WholeTable]] = {}


class TableContent(Protocol):
    """Where the rows of a table come from."""

    def version(self) -> Any:
        """Something that changes with the rows."""

    def rows(self, spark: SparkSession) -> pa.Table:
        """All rows as they are now, in the order in which they came."""


class TableLookup:
    """A lookup table of which every task gets a copy."""

    def __init__(self, context: LookupContext, content: TableContent) -> None:
        self.table = context.table
        self.content = content
        self.scratch = open_store(context.scratch)
        # Nothing there is of use after a restart.
        self.scratch.delete_all("")
        self._version: Any = None
        self._files: list[str] = []

    def as_of(self, spark: SparkSession) -> str:
        version = self.content.version()
        if not self._files or version != self._version:
            rows = _last_of_keys(self.content.rows(spark), self.table.primary_key)
            name = f"{uuid.uuid4().hex}.arrow"
            self.scratch.put(name, arrow_bytes(rows), durable=False)
            # Tasks of the last epoch are over when an order is made.
            self.scratch.delete(self._files)
            self._files, self._version = [name], version
        return self._files[-1]

    def reader(self, columns: Sequence[tuple[str, str]], keys: Sequence[str]) -> TableReader:
        names = tuple(name for name, _ in columns)
        return TableReader(self.scratch.uri, names, tuple(keys))


def _last_of_keys(rows: pa.Table, primary_key: Sequence[str]) -> pa.Table:
    """With a primary key the last row of each key counts."""
    names = {name.lower(): name for name in rows.column_names}
    keys = [names[name.lower()] for name in primary_key]
    if not keys:
        return rows
    rows = without_null_keys(rows, keys)
    if not rows.num_rows:
        return rows
    found, codes = distinct(key_columns(rows, keys))
    last = [0] * len(found[0])
    for place, code in enumerate(codes.tolist()):
        last[code] = place
    return rows.take(pa.array(sorted(last), pa.int64()))
