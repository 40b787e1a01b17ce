"""Answer `db.query` from stored rows, and `db.peek` from stored or new rows of a stream."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Declared, SideStream, Sink, Stream
from tidegate.catalog.settings import Settings
from tidegate.errors import RunError
from tidegate.queries.engine import explain_not_stored, last_rows, run_query
from tidegate.queries.snapshot import StoredTable, save_stored_tables, stored_tables
from tidegate.runtime.supervisor import Supervisor

if TYPE_CHECKING:
    from tidegate.queries.engine import QueryResult

_POLL_SECONDS = 0.05


def stream_of(catalog: Catalog, declared: Declared) -> Stream | SideStream:
    """Return the stream that a name refers to; the name of a memory sink refers to its stream."""
    if isinstance(declared, Sink) and declared.connector == "memory":
        stream = catalog.get(declared.stream)
        assert stream is not None, "a sink has a stream"
        declared = stream
    if not isinstance(declared, Stream | SideStream):
        kind = declared.kind.value.lower()
        raise RunError(
            "TG-506",
            f"{declared.name} is a {kind}, not a stream",
            hint=f"CREATE STREAM all_{declared.name} AS SELECT * FROM {declared.name};"
            if kind == "source"
            else None,
        )
    return declared


class QueryService:
    """Runs queries over the streams of a session."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor

    def stored_tables(self, catalog: Catalog) -> dict[str, StoredTable]:
        """Return the streams and views whose rows are stored, by name."""
        return stored_tables(catalog, self.supervisor.sinks(catalog))

    def save_stored_tables(self, catalog: Catalog) -> None:
        """Store in the data directory which streams can be queried, for other processes."""
        save_stored_tables(self.supervisor.directory, self.stored_tables(catalog))

    def query(self, catalog: Catalog, sql: str, file: str | None) -> QueryResult:
        """Run a SELECT over the stored rows."""

        def explain_missing(name: str) -> tuple[str, str] | None:
            declared = catalog.get(name)
            return explain_not_stored(declared) if declared is not None else None

        return run_query(
            self.supervisor.directory, self.stored_tables(catalog), sql, file, explain_missing
        )

    def peek(
        self, catalog: Catalog, settings: Settings, stream: str, rows: int, timeout: float
    ) -> QueryResult:
        """Return the latest stored rows of a stream, or its next rows if none are stored."""
        stored = self.stored_tables(catalog).get(stream.lower())
        if stored is not None:
            return last_rows(self.supervisor.directory, stored, rows)
        return _next_rows(self.supervisor, catalog, settings, stream, rows, timeout)


def _next_rows(
    supervisor: Supervisor,
    catalog: Catalog,
    settings: Settings,
    stream: str,
    rows: int,
    timeout: float,
) -> QueryResult:
    import pyarrow as pa

    from tidegate.queries.engine import QueryResult

    tables: list[Any] = []
    has_enough = threading.Event()

    def collect(name: str, epoch: int, table: Any) -> None:
        tables.append(table.replace_schema_metadata(None))
        if sum(part.num_rows for part in tables) >= rows:
            has_enough.set()

    deadline = time.monotonic() + timeout
    with supervisor.peek(catalog, settings, stream, rows, collect):
        while not has_enough.wait(_POLL_SECONDS) and time.monotonic() < deadline:
            if not supervisor.may_emit(catalog, stream):
                break
    table = pa.concat_tables(tables).slice(0, rows) if tables else pa.table({})
    return QueryResult(table)
