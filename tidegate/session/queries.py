"""Looking at streams: queries over what is kept, and a peek at what comes."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Declared, SideStream, Sink, Stream
from tidegate.catalog.settings import Settings
from tidegate.errors import RunError
from tidegate.queries.engine import ask, last_rows, not_kept
from tidegate.queries.snapshot import Readable, readable, store_readable
from tidegate.runtime.supervisor import Supervisor

if TYPE_CHECKING:
    from tidegate.queries.engine import QueryResult

_LOOK_SECONDS = 0.05


def stream_of(catalog: Catalog, declared: Declared) -> Stream | SideStream:
    """The stream that is meant: itself, or the one that a memory sink keeps."""
    if isinstance(declared, Sink) and declared.connector == "memory":
        kept = catalog.get(declared.source)
        assert kept is not None, "a sink has a stream"
        declared = kept
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
    """Answers questions about the streams of a session."""

    def __init__(self, pipelines: Supervisor) -> None:
        self.pipelines = pipelines

    def readable(self, catalog: Catalog) -> dict[str, Readable]:
        return readable(catalog, self.pipelines.sinks(catalog))

    def save_declarations(self, catalog: Catalog) -> None:
        """Say in the data directory what can be queried, for other processes."""
        store_readable(self.pipelines.directory, self.readable(catalog))

    def query(self, catalog: Catalog, sql: str, file: str | None) -> QueryResult:
        def other(name: str) -> tuple[str, str] | None:
            declared = catalog.get(name)
            return not_kept(declared) if declared is not None else None

        return ask(self.pipelines.directory, self.readable(catalog), sql, file, other)

    def peek(
        self, catalog: Catalog, settings: Settings, stream: str, rows: int, timeout: float
    ) -> QueryResult:
        """The last rows of a stream that keeps them; of others, the next rows that come."""
        kept = self.readable(catalog).get(stream.lower())
        if kept is not None:
            return last_rows(self.pipelines.directory, kept, rows)
        if not self.pipelines.running:
            raise RunError(
                "TG-506",
                f"nothing is running, so no rows of {stream} come",
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

    seen: list[Any] = []
    enough = threading.Event()

    def show(name: str, epoch: int, table: Any) -> None:
        seen.append(table.replace_schema_metadata(None))
        if sum(part.num_rows for part in seen) >= rows:
            enough.set()

    deadline = time.monotonic() + timeout
    with pipelines.peeking(catalog, settings, stream, rows, show):
        while not enough.wait(_LOOK_SECONDS) and time.monotonic() < deadline:
            if not pipelines.may_come(catalog, stream):
                break
    table = pa.concat_tables(seen).slice(0, rows) if seen else pa.table({})
    return QueryResult(table)
