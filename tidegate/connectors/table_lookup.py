"""Lookup tables that every task loads into memory.

The driver writes the current version of the table into one file, and the epoch spec contains its
name. All tasks of an epoch therefore see the same version, also if they are retried. Connectors
provide the rows by implementing `TableContent`.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from tidegate.operators.join.lookup_cache import (
    PreloadedTable,
    drop_null_keys,
    encode_keys,
    key_columns,
)
from tidegate.operators.kernels.arrays import arrow_bytes
from tidegate.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.connectors.base import LookupContext


@dataclass(frozen=True)
class TableReaderFactory:
    """Loads the table once per process and version. The files are immutable."""

    root: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]

    def open(self, as_of: Any, now_us: int) -> PreloadedTable:
        cached = _loaded.get(self)
        if cached is None or cached[0] != as_of:
            buffer = open_store(self.root).map(as_of)
            rows = pa.ipc.open_file(pa.BufferReader(buffer)).read_all()
            selected = rows.select(list(self.columns))
            cached = _loaded[self] = (as_of, PreloadedTable(selected, self.keys))
        return cached[1]


# The tables that this process has loaded, with the name of their file.
_loaded: dict[TableReaderFactory, tuple[str, PreloadedTable]] = {}


class TableContent(Protocol):
    """The rows of a lookup table. Both methods are called on the driver, once per epoch."""

    def version(self) -> Any:
        """Return a value that changes whenever the rows change."""

    def rows(self, spark: SparkSession) -> pa.Table:
        """Return all current rows, oldest first. Called only if the version has changed."""


class TableLookup:
    """A lookup table that is copied to every task."""

    def __init__(self, context: LookupContext, content: TableContent) -> None:
        self.table = context.table
        self.content = content
        self.scratch = open_store(context.scratch_uri)
        # Files of earlier runs are not used again.
        self.scratch.delete_all("")
        self._version: Any = None
        self._files: list[str] = []

    def as_of(self, spark: SparkSession) -> str:
        version = self.content.version()
        if not self._files or version != self._version:
            rows = _current_rows(self.content.rows(spark), self.table.primary_key)
            name = f"{uuid.uuid4().hex}.arrow"
            self.scratch.put(name, arrow_bytes(rows), durable=False)
            # The tasks of the previous epoch have ended, so its file can be deleted.
            self.scratch.delete(self._files)
            self._files, self._version = [name], version
        return self._files[-1]

    def reader_factory(
        self, columns: Sequence[tuple[str, str]], keys: Sequence[str]
    ) -> TableReaderFactory:
        names = tuple(name for name, _ in columns)
        return TableReaderFactory(self.scratch.uri, names, tuple(keys))


def _current_rows(rows: pa.Table, primary_key: Sequence[str]) -> pa.Table:
    """Keep the last row of each primary key."""
    names = {name.lower(): name for name in rows.column_names}
    keys = [names[name.lower()] for name in primary_key]
    if not keys:
        return rows
    rows = drop_null_keys(rows, keys)
    if not rows.num_rows:
        return rows
    distinct_keys, codes = encode_keys(key_columns(rows, keys))
    last = [0] * len(distinct_keys[0])
    for row, code in enumerate(codes.tolist()):
        last[code] = row
    return rows.take(pa.array(sorted(last), pa.int64()))
