"""Answer `db.query` from stored rows, and `db.peek` from stored or new rows of a stream."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Declared, SideStream, Sink, Stream
from tidegate.catalog.settings import Settings
from tidegate.errors import RunError
from tidegate.queries.engine import ask, explain_not_stored, last_rows
from tidegate.queries.snapshot import Readable, readable, store_readable
from tidegate.runtime.supervisor import Supervisor

if TYPE_CHECKING:
    from tidegate.queries.engine import QueryResult

_POLL_SECONDS = 0.05


def stream_of(catalog: Catalog, declared: Declared) -> Stream | SideStream:
    """Return the stream that a name refers to; the name of a memory sink refers to its stream."""
    if isinstance(declared, Sink) and declared.connector == "memory":
        stream = catalog.get(declared.source)
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

    def __init__(self, pipelines: Supervisor) -> None:
        self.pipelines = pipelines

    def readable(self, catalog: Catalog) -> dict[str, Readable]:
        """Return the streams and views whose rows are stored, by name."""
        return readable(catalog, self.pipelines.sinks(catalog))

    def save_declarations(self, catalog: Catalog) -> None:
        """Store in the data directory which streams can be queried, for other processes."""
        store_readable(self.pipelines.directory, self.readable(catalog))

    def query(self, catalog: Catalog, sql: str, file: str | None) -> QueryResult:
        """Run a SELECT over the stored rows."""

        def explain_missing(name: str) -> tuple[str, str] | None:
            declared = catalog.get(name)
            return explain_not_stored(declared) if declared is not None else None

        return ask(self.pipelines.directory, self.readable(catalog), sql, file, explain_missing)

    def peek(
        self, catalog: Catalog, settings: Settings, stream: str, rows: int, timeout: float
    ) -> QueryResult:
        """Return the latest stored rows of a stream, or its next rows if none are stored."""
        stored = self.readable(catalog).get(stream.lower())
        if stored is not None:
            return last_rows(self.pipelines.directory, stored, rows)
        if not self.pipelines.running:
            raise RunError(
                "TG-506",
                f"the session is not running, so {stream} produces no rows",
                hint="start the session first: db.start(), \\start in the shell.",
            )
        return _next_rows(self.pipelines, catalog, settings, stream, rows, timeout)


def _next_rows(
    pipelines: Supervisor,
    catalog: Catalog,
    settings: Settings,
    stream: str,
    rows: int,
    timeout: float,
) -> QueryResult:
    import pyarrow as pa

    from tidegate.queries.engine import QueryResult

    tables: list[Any] = []
    enough = threading.Event()

    def show(name: str, epoch: int, table: Any) -> None:
        tables.append(table.replace_schema_metadata(None))
        if sum(part.num_rows for part in tables) >= rows:
            enough.set()

    deadline = time.monotonic() + timeout
    with pipelines.peek(catalog, settings, stream, rows, show):
        while not enough.wait(_POLL_SECONDS) and time.monotonic() < deadline:
            if not pipelines.may_emit(catalog, stream):
                break
    table = pa.concat_tables(tables).slice(0, rows) if tables else pa.table({})
    return QueryResult(table)
