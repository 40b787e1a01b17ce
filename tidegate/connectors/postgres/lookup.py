"""Tables of PostgreSQL as lookup tables, queried by the keys of a batch, with a cache.

Every Python worker has its own cache and its own connections. Keys that are not in the cache are
queried a thousand at a time, by several concurrent queries.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.connectors.postgres.client import (
    ConnectionParameters,
    import_psycopg,
    translate_errors,
)
from tidegate.connectors.postgres.reader import ReadColumn, read_columns, to_arrow
from tidegate.operators.join.lookup_cache import LookupCache, LookupResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.connectors.base import LookupContext

_KEYS_PER_QUERY = 1_000


@dataclass(frozen=True)
class PostgresLookupReaderFactory:
    """Opens readers in tasks. `keys` are the indexes of the key columns in `columns`."""

    parameters: ConnectionParameters
    label: str
    schema: str
    name: str
    columns: tuple[ReadColumn, ...]
    keys: tuple[int, ...]
    cache_rows: int
    cache_ttl_us: int
    capacity: int

    def open(self, as_of: Any, now_us: int) -> PostgresLookupReader:
        if self not in _lookups:
            _lookups[self] = WorkerLookup(self)
        return PostgresLookupReader(_lookups[self], now_us)

    def query(self) -> Any:
        """Return the query of the rows for some keys. Its parameters are one array per column."""
        sql = import_psycopg().sql
        columns = sql.SQL(", ").join(column.selected("t") for column in self.columns)
        table = sql.Identifier(self.schema, self.name)
        keys = [self.columns[index] for index in self.keys]
        if len(keys) == 1:
            text = "SELECT {} FROM {} AS t WHERE {} = ANY({})"
            return sql.SQL(text).format(
                columns, table, keys[0].compared("t"), keys[0].array_parameter()
            )
        lists = sql.SQL(", ").join(key.array_parameter() for key in keys)
        names = sql.SQL(", ").join(sql.Identifier(f"k{index}") for index, _ in enumerate(keys))
        join = sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(key.compared("t"), sql.Identifier("k", f"k{index}"))
            for index, key in enumerate(keys)
        )
        text = "SELECT {} FROM unnest({}) AS k({}) JOIN {} AS t ON {}"
        return sql.SQL(text).format(columns, lists, names, table, join)


@dataclass
class WorkerLookup:
    """The cache, threads and connections of a lookup table in this process."""

    factory: PostgresLookupReaderFactory
    cache: LookupCache = field(init=False)
    threads: ThreadPoolExecutor = field(init=False)
    idle: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        factory = self.factory
        schema = pa.schema([column.field for column in factory.columns])
        keys = tuple(factory.columns[index].field.name for index in factory.keys)
        self.cache = LookupCache(schema, keys, factory.cache_rows, factory.cache_ttl_us)
        self.threads = ThreadPoolExecutor(factory.capacity, "tidegate lookup")

    def fetch(self, keys: list[pa.Array]) -> pa.Table:
        """Query the rows for distinct keys, with several concurrent queries."""
        count = len(keys[0])
        parts = [
            [column.slice(at, _KEYS_PER_QUERY) for column in keys]
            for at in range(0, count, _KEYS_PER_QUERY)
        ]
        return pa.concat_tables(self.threads.map(self._query, parts))

    def _query(self, keys: list[pa.Array]) -> pa.Table:
        key_columns = [self.factory.columns[index] for index in self.factory.keys]
        lists = [
            column.key_values(k.to_pylist()) for column, k in zip(key_columns, keys, strict=True)
        ]
        with translate_errors(self.factory.label), self._connection() as connection:
            rows = connection.execute(self.factory.query(), lists).fetchall()
        return to_arrow(rows, self.factory.columns, self.factory.label)

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """Return an idle connection or a new one. Connections that failed are closed."""
        connection = None
        with suppress(queue.Empty):
            connection = self.idle.get_nowait()
            with suppress(import_psycopg().Error):
                connection.execute("SELECT 1")
            if connection.broken or connection.closed:
                connection = None
        connection = (
            connection
            if connection is not None
            else self.factory.parameters.connect(self.factory.label)
        )
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self.idle.put(connection)


@dataclass(frozen=True)
class PostgresLookupReader:
    """The lookup table at the processing time of an epoch, which expires cache entries."""

    lookup: WorkerLookup
    now_us: int

    def find(self, keys: list[pa.Array]) -> LookupResult:
        return self.lookup.cache.find(keys, self.now_us, self.lookup.fetch)


# The lookup tables that this process has opened.
_lookups: dict[PostgresLookupReaderFactory, WorkerLookup] = {}


class PostgresLookup:
    """A table that is queried. It has no versions: tasks see it as it is at that moment."""

    def __init__(self, context: LookupContext) -> None:
        self.table = context.table
        self.options = context.table.options
        self.parameters = ConnectionParameters.from_options(self.options)
        declared = [(column.name, str(column.type)) for column in self.table.columns]
        label = f"the lookup table {self.table.name}"
        with translate_errors(label), self.parameters.connect(label) as connection:
            self.schema, self.name, columns = read_columns(
                connection, self.options["table"], declared, label
            )
        self.columns = {column.declared.lower(): column for column in columns}

    def as_of(self, spark: SparkSession) -> None:
        return None

    def reader_factory(
        self, columns: Sequence[tuple[str, str]], keys: Sequence[str]
    ) -> PostgresLookupReaderFactory:
        names = [name for name, _ in columns]
        return PostgresLookupReaderFactory(
            self.parameters,
            f"the lookup table {self.table.name}",
            self.schema,
            self.name,
            tuple(self.columns[name.lower()] for name in names),
            tuple(names.index(key) for key in keys),
            self.options["cache_rows"],
            self.options["cache_ttl"],
            self.options["async_capacity"],
        )


def open_lookup(context: LookupContext) -> PostgresLookup:
    return PostgresLookup(context)
