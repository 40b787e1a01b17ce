"""Tables of PostgreSQL as lookup tables: asked for the keys of a batch at once, with a cache.

Every Python worker has a cache and connections of its own. Keys that the cache does not know are
asked for a thousand at a time, several questions at once.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.connectors.postgres.client import Login, import_psycopg, translate_errors
from tidegate.connectors.postgres.reader import ReadColumn, read_columns, to_arrow
from tidegate.operators.join.lookup_results import LookupCache, LookupResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.connectors.base import LookupContext

_KEYS_PER_QUESTION = 1_000


@dataclass(frozen=True)
class PostgresLookupReaderFactory:
    """What asks: `keys` are the places of the key columns."""

    login: Login
    who: str
    schema: str
    name: str
    columns: tuple[ReadColumn, ...]
    keys: tuple[int, ...]
    cache_rows: int
    cache_ttl_us: int
    capacity: int

    def open(self, as_of: Any, now_us: int) -> PostgresLookupReader:
        if self not in _asking:
            _asking[self] = WorkerLookup(self)
        return PostgresLookupReader(_asking[self], now_us)

    def question(self) -> Any:
        """All rows for some keys, which are lists, one for each key column."""
        sql = import_psycopg().sql
        shown = sql.SQL(", ").join(column.selected("t") for column in self.columns)
        own = sql.Identifier(self.schema, self.name)
        keys = [self.columns[place] for place in self.keys]
        if len(keys) == 1:
            text = "SELECT {} FROM {} AS t WHERE {} = ANY({})"
            return sql.SQL(text).format(shown, own, keys[0].compared("t"), keys[0].listed())
        lists = sql.SQL(", ").join(key.listed() for key in keys)
        names = sql.SQL(", ").join(sql.Identifier(f"k{place}") for place, _ in enumerate(keys))
        same = sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(key.compared("t"), sql.Identifier("k", f"k{place}"))
            for place, key in enumerate(keys)
        )
        text = "SELECT {} FROM unnest({}) AS k({}) JOIN {} AS t ON {}"
        return sql.SQL(text).format(shown, lists, names, own, same)


@dataclass
class WorkerLookup:
    """A reader in a process: its cache, its threads and their connections."""

    reader: PostgresLookupReaderFactory
    cache: LookupCache = field(init=False)
    threads: ThreadPoolExecutor = field(init=False)
    idle: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        reader = self.reader
        schema = pa.schema([column.field for column in reader.columns])
        keys = tuple(reader.columns[place].field.name for place in reader.keys)
        self.cache = LookupCache(schema, keys, reader.cache_rows, reader.cache_ttl_us)
        self.threads = ThreadPoolExecutor(reader.capacity, "tidegate lookup")

    def fetch(self, keys: list[pa.Array]) -> pa.Table:
        """The rows for different keys; several questions are under way at once."""
        count = len(keys[0])
        parts = [
            [column.slice(at, _KEYS_PER_QUESTION) for column in keys]
            for at in range(0, count, _KEYS_PER_QUESTION)
        ]
        return pa.concat_tables(self.threads.map(self._ask, parts))

    def _ask(self, keys: list[pa.Array]) -> pa.Table:
        own = [self.reader.columns[place] for place in self.reader.keys]
        lists = [column.askable(k.to_pylist()) for column, k in zip(own, keys, strict=True)]
        with translate_errors(self.reader.who), self._connection() as connection:
            rows = connection.execute(self.reader.question(), lists).fetchall()
        return to_arrow(rows, self.reader.columns, self.reader.who)

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """An idle connection, or a new one; one that failed is not used again."""
        connection = None
        with suppress(queue.Empty):
            connection = self.idle.get_nowait()
            with suppress(import_psycopg().Error):
                connection.execute("SELECT 1")
            if connection.broken or connection.closed:
                connection = None
        connection = (
            connection if connection is not None else self.reader.login.connect(self.reader.who)
        )
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self.idle.put(connection)


@dataclass(frozen=True)
class PostgresLookupReader:
    """The table as one task asks it, at the time of its epoch."""

    asking: WorkerLookup
    now_us: int

    def find(self, keys: list[pa.Array]) -> LookupResult:
        return self.asking.cache.find(keys, self.now_us, self.asking.fetch)


# What asks in this process.
_asking: dict[PostgresLookupReaderFactory, WorkerLookup] = {}


class PostgresLookup:
    """A table that is asked; nobody can tell what it was as of an epoch."""

    def __init__(self, context: LookupContext) -> None:
        self.table = context.table
        self.options = context.table.options
        self.login = Login.of(self.options)
        kinds = [(column.name, str(column.type)) for column in self.table.columns]
        who = f"the lookup table {self.table.name}"
        with translate_errors(who), self.login.connect(who) as connection:
            self.schema, self.name, found = read_columns(
                connection, self.options["table"], kinds, who
            )
        self.columns = {column.declared.lower(): column for column in found}

    def as_of(self, spark: SparkSession) -> None:
        return None

    def reader(
        self, columns: Sequence[tuple[str, str]], keys: Sequence[str]
    ) -> PostgresLookupReaderFactory:
        names = [name for name, _ in columns]
        return PostgresLookupReaderFactory(
            self.login,
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
