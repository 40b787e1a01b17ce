"""Snapshots: the stored rows of streams, as of one epoch per pipeline, while it may be running.

The newest manifest names the last committed epoch. Sinks publish it slightly later; until then the
snapshot shows the previous epoch. If files are compacted or expire during the read, it is repeated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import SideKind, SideStream, Sink, Stream
from tidegate.checkpoint.manifest import DamagedManifest, Manifest, rolled_back_between
from tidegate.checkpoint.manifests import Manifests
from tidegate.connectors import view
from tidegate.connectors.changelog_compaction import materialize
from tidegate.connectors.memory import connector as memory
from tidegate.connectors.view import FOLDER, ViewSchema, list_change_files, read_change_file
from tidegate.errors import RunError
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.planning import pipeline_of
from tidegate.runtime.reconciliation import view_schema
from tidegate.storage import NotFound, Store
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    import pyarrow as pa


_FILE = "_tables.json"


@dataclass(frozen=True)
class StoredTable:
    """A stream with stored rows, a materialized view or a memory sink, and where its rows are."""

    name: str
    pipeline: str
    # The name of the stream in manifests; for late rows this is the parent stream.
    stream: str
    sink: str
    connector: str
    schema: ViewSchema
    # The kind of rows of a side stream; None for a stream with its own query.
    side_kind: str | None = None

    @property
    def is_view(self) -> bool:
        return self.connector == view.CONNECTOR


def stored_tables(catalog: Catalog, sinks: Iterable[Sink]) -> dict[str, StoredTable]:
    """Return the streams with stored rows by the lower-case names of streams and memory sinks.

    If a stream has both, the materialized view is used, because its rows do not expire.
    """
    streams: dict[str, StoredTable] = {}
    for sink in sinks:
        item = None
        if sink.connector in (view.CONNECTOR, "memory"):
            item = _stored_table(catalog, sink)
        if item is None:
            continue
        if not sink.implicit:
            streams[sink.name.lower()] = item
        if item.is_view or sink.stream.lower() not in streams:
            streams[sink.stream.lower()] = item
    return streams


def _stored_table(catalog: Catalog, sink: Sink) -> StoredTable | None:
    stream = catalog.get(sink.stream)
    if isinstance(stream, Stream):
        schema, owner = view_schema(stream), stream.name
    elif isinstance(stream, SideStream):
        columns = tuple((column.name, column.type or "VOID") for column in stream.columns)
        schema = ViewSchema(ChangelogKind.APPEND, (), columns)
        owner = stream.parent if stream.is_from_stream else stream.name
    else:
        return None
    pipeline = pipeline_of(catalog.get(owner))
    side_kind = stream.side_kind.value if isinstance(stream, SideStream) else None
    return StoredTable(
        stream.name, pipeline, owner.lower(), sink.name, sink.connector, schema, side_kind
    )


def save_stored_tables(directory: DataDirectory, streams: Mapping[str, StoredTable]) -> None:
    """Store in the data directory which streams can be queried, for other processes."""
    content = [
        {"table": name, **vars(item), "schema": item.schema.to_json()}
        for name, item in streams.items()
    ]
    data = json.dumps(content, indent=1).encode()
    try:
        stored = directory.store.get(_FILE)
    except NotFound:
        stored = b""
    if stored != data:
        directory.store.put(_FILE, data, durable=False)


def load_stored_tables(directory: DataDirectory) -> dict[str, StoredTable]:
    """Load the streams that can be queried in a data directory, which another process may use."""
    try:
        content: list[dict[str, Any]] = json.loads(directory.store.get(_FILE))
    except NotFound:
        return {}
    return {
        item.pop("table"): StoredTable(**{**item, "schema": ViewSchema.from_json(item["schema"])})
        for item in content
    }


_MAX_ATTEMPTS = 20
_PAUSE_SECONDS = 0.05
# Attempts that wait for sinks to publish the committed epoch, before the previous one is read.
_WAITING_ATTEMPTS = 4


class _Changed(Exception):
    """Files were replaced during the read, or are not published yet; read again."""


@dataclass(frozen=True)
class Snapshot:
    """The rows of streams by name, and the epoch of each pipeline that they show."""

    tables: dict[str, pa.Table]
    epochs: dict[str, int]


@dataclass(frozen=True)
class _StoredChanges:
    """The stored changes of a stream, and the number of rows that were emitted for them."""

    table: pa.Table
    rows_out: int


def snapshot(directory: DataDirectory, streams: Sequence[StoredTable]) -> Snapshot:
    """Read the current rows of streams."""
    tables: dict[str, pa.Table] = {}
    epochs: dict[str, int] = {}
    for pipeline in sorted({item.pipeline for item in streams}):
        members = [item for item in streams if item.pipeline == pipeline]
        current, epoch = _read_pipeline(directory, pipeline, members)
        tables |= current
        if epoch is not None:
            epochs[pipeline] = epoch
    return Snapshot(tables, epochs)


def _read_pipeline(
    directory: DataDirectory, pipeline: str, streams: Sequence[StoredTable]
) -> tuple[dict[str, pa.Table], int | None]:
    for attempt in range(_MAX_ATTEMPTS):
        try:
            manifest = _newest(Manifests(directory.pipeline(pipeline)))
            if manifest is None or manifest.epoch < 0:
                return {item.name: item.schema.empty() for item in streams}, None
            epoch = _published_epoch(directory, manifest, streams, wait=attempt < _WAITING_ATTEMPTS)
            tables = {item.name: _table(directory, manifest, epoch, item) for item in streams}
            return tables, epoch
        except (_Changed, NotFound):
            time.sleep(_PAUSE_SECONDS)
    raise RunError(
        "TG-801",
        f"the rows of pipeline {pipeline} change faster than they can be read",
        hint="repeat the query, or stop the pipeline first.",
    )


def _newest(manifests: Manifests) -> Manifest | None:
    for name in reversed(manifests.names()):
        try:
            return manifests.load(name)
        except DamagedManifest:
            continue
    return None


def _published_epoch(
    directory: DataDirectory, manifest: Manifest, streams: Sequence[StoredTable], wait: bool
) -> int:
    """Return the last epoch that all sinks have published."""
    epoch = manifest.epoch
    for item in streams:
        state = manifest.sinks.get(item.sink)
        if state is None or state.stream != item.stream or state.epoch < 0:
            continue
        if not _has_published(directory, manifest, item, state.epoch):
            if wait:
                raise _Changed
            epoch = min(epoch, state.epoch - 1)
    return epoch


def _has_published(
    directory: DataDirectory, manifest: Manifest, item: StoredTable, epoch: int
) -> bool:
    store = directory.stream(item.name)
    if item.is_view:
        return any(
            part.contains(epoch) for part in list_change_files(_view_store(store, manifest, item))
        )
    return epoch <= memory.last_expired(store) or store.exists(memory.epoch_file(epoch))


def _view_store(store: Store, manifest: Manifest, item: StoredTable) -> Store:
    state = manifest.streams.get(item.stream)
    return store.child(FOLDER).child(state.id if state is not None else "none")


def _table(directory: DataDirectory, manifest: Manifest, epoch: int, item: StoredTable) -> pa.Table:
    """Read the rows of a stream as of an epoch."""
    if item.stream not in manifest.streams:
        return item.schema.empty()
    store = directory.stream(item.name)
    changes = (_read_view if item.is_view else _read_memory_sink)(store, manifest, epoch, item)
    if epoch == manifest.epoch:
        _require_all_rows(manifest, item, changes.rows_out)
    return materialize(changes.table, item.schema.kind, item.schema.key)


def _read_view(store: Store, manifest: Manifest, epoch: int, item: StoredTable) -> _StoredChanges:
    files = _view_store(store, manifest, item)
    rolled_back = rolled_back_between(manifest.lineage)
    parts = [part for part in list_change_files(files) if not part.is_undone(rolled_back)]
    if any(part.first <= epoch < part.last for part in parts):
        raise _Changed
    parts = [part for part in parts if part.last <= epoch]
    contents = [read_change_file(files, part) for part in parts]
    tables = {part.first: table for part, (table, _) in zip(parts, contents, strict=True)}
    return _StoredChanges(_concat(item, tables), sum(rows for _, rows in contents))


def _read_memory_sink(
    store: Store, manifest: Manifest, epoch: int, item: StoredTable
) -> _StoredChanges:
    expired = memory.last_expired(store)
    if expired >= 0:
        raise RunError(
            "TG-802",
            f"the memory sink of {item.name} no longer contains its first epochs: epochs up to "
            f"{expired} have expired",
            hint=f"raise its retain_epochs; or keep all rows, without subscribers: CREATE "
            f"MATERIALIZED VIEW {item.name} AS …;",
        )
    rolled_back = rolled_back_between(manifest.lineage)
    epochs = [
        number
        for number in memory.stored_epochs(store)
        if number <= epoch and not any(before < number < after for before, after in rolled_back)
    ]
    tables = {number: memory.read_table(store, memory.epoch_file(number)) for number in epochs}
    return _StoredChanges(_concat(item, tables), sum(table.num_rows for table in tables.values()))


def _concat(item: StoredTable, tables: Mapping[int, pa.Table]) -> pa.Table:
    """Concatenate tables by first epoch; raise an error if the columns have changed."""
    import pyarrow as pa

    if not tables:
        return item.schema.empty()
    newest = tables[max(tables)].schema.remove_metadata()
    for first, table in tables.items():
        if not table.schema.equals(newest):
            raise RunError(
                "TG-802",
                f"the columns of {item.name} changed after epoch {first}: they were "
                f"{', '.join(table.column_names)}, now they are {', '.join(newest.names)}",
                hint=f"restart the stream from its beginning, or add a view: CREATE MATERIALIZED "
                f"VIEW {item.name}_2 AS …;",
            )
    return pa.concat_tables([table.replace_schema_metadata(None) for table in tables.values()])


def _require_all_rows(manifest: Manifest, item: StoredTable, rows: int) -> None:
    """Raise an error if the stored rows are incomplete."""
    if item.side_kind == SideKind.FAILED_ROWS.value:
        expected = manifest.streams[item.stream].failed_rows
    elif item.side_kind == SideKind.LATE_ROWS.value:
        operators = (o for o in manifest.operators.values() if o.stream == item.stream)
        expected = sum(int(operator.report.get("late_rows") or 0) for operator in operators)
    else:
        expected = manifest.streams[item.stream].rows_out
    if rows == expected:
        return
    if item.is_view:
        raise RunError(
            "TG-605",
            f"view {item.name} contains {rows:,} of the {expected:,} rows that its stream emitted",
            hint="its files are damaged; rebuild it: run once with --on-change restart.",
        )
    raise RunError(
        "TG-802",
        f"the memory sink of {item.name} contains {rows:,} of the {expected:,} rows that its "
        "stream emitted, because it was added later",
        hint=f"store all rows in another view: CREATE MATERIALIZED VIEW {item.name}_2 AS …;",
    )
