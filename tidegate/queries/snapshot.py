"""What streams have given out, all of a pipeline as of one epoch, while it may be running.

A manifest says how far a pipeline is. Its sinks show that epoch a moment later; until then what is
read is the epoch before. Files are folded and expire meanwhile: then everything is read again.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import SideKind, SideStream, Sink, Stream
from tidegate.checkpoint.manifest import DamagedManifest, Manifest
from tidegate.checkpoint.manifests import Manifests
from tidegate.connectors import view
from tidegate.connectors.changelog import materialize
from tidegate.connectors.memory import connector as memory
from tidegate.connectors.view import FOLDER, ViewSchema, list_change_files, read_change_file
from tidegate.errors import RunError
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.planning import pipeline_of
from tidegate.runtime.reconciliation import shape_of
from tidegate.storage import NotFound, Store
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    import pyarrow as pa


# ---- The streams whose rows are kept: materialised views, and streams with a memory sink.

_FILE = "_readable.json"


@dataclass(frozen=True)
class Readable:
    """A stream that can be queried, and where its rows are."""

    name: str
    pipeline: str
    # The stream that runs, as manifests know it: late rows come from their parent's.
    stream: str
    sink: str
    connector: str
    shape: ViewSchema
    # What its rows are, if it is not a stream that runs by itself.
    holds: str | None = None

    @property
    def is_view(self) -> bool:
        return self.connector == view.CONNECTOR


def readable(catalog: Catalog, sinks: Iterable[Sink]) -> dict[str, Readable]:
    """By the names of streams and of memory sinks, in lower case.

    A view is preferred, since nothing of it expires.
    """
    found: dict[str, Readable] = {}
    for sink in sinks:
        item = None
        if sink.connector in (view.CONNECTOR, "memory"):
            item = _readable(catalog, sink)
        if item is None:
            continue
        if not sink.implied:
            found[sink.name.lower()] = item
        if item.is_view or sink.source.lower() not in found:
            found[sink.source.lower()] = item
    return found


def _readable(catalog: Catalog, sink: Sink) -> Readable | None:
    stream = catalog.get(sink.source)
    if isinstance(stream, Stream):
        shape, owner = shape_of(stream), stream.name
    elif isinstance(stream, SideStream):
        columns = tuple((column.name, column.type or "VOID") for column in stream.columns)
        shape = ViewSchema(ChangelogKind.APPEND, (), columns)
        owner = stream.parent if stream.of_stream else stream.name
    else:
        return None
    pipeline = pipeline_of(catalog.get(owner))
    holds = stream.holds.value if isinstance(stream, SideStream) else None
    return Readable(stream.name, pipeline, owner.lower(), sink.name, sink.connector, shape, holds)


# For other processes


def store_readable(directory: DataDirectory, found: Mapping[str, Readable]) -> None:
    """Say in the data directory what can be queried there."""
    content = [
        {"as": name, **vars(item), "shape": item.shape.to_json()} for name, item in found.items()
    ]
    data = json.dumps(content, indent=1).encode()
    try:
        known = directory.store.get(_FILE)
    except NotFound:
        known = b""
    if known != data:
        directory.store.put(_FILE, data, durable=False)


def stored_readable(directory: DataDirectory) -> dict[str, Readable]:
    """What can be queried in a data directory that another process may be using."""
    try:
        content: list[dict[str, Any]] = json.loads(directory.store.get(_FILE))
    except NotFound:
        return {}
    return {
        item.pop("as"): Readable(**{**item, "shape": ViewSchema.of_json(item["shape"])})
        for item in content
    }


_TRIES = 20
_PAUSE_SECONDS = 0.05
# So often an epoch that was decided is waited for, before the one before it is read.
_PATIENCE = 4


class _Moved(Exception):
    """What was being read has been replaced; reading again finds it."""


@dataclass(frozen=True)
class Snapshot:
    """The rows of streams by their names, and the epochs that they are as of, by pipeline."""

    tables: dict[str, pa.Table]
    epochs: dict[str, int]


@dataclass(frozen=True)
class _Kept:
    """What is stored of a stream: changes, and how many rows were given out for them."""

    table: pa.Table
    given: int


def snapshot(directory: DataDirectory, wanted: Sequence[Readable]) -> Snapshot:
    """The current tables of streams."""
    tables: dict[str, pa.Table] = {}
    epochs: dict[str, int] = {}
    for pipeline in sorted({item.pipeline for item in wanted}):
        own = [item for item in wanted if item.pipeline == pipeline]
        found, epoch = _of_pipeline(directory, pipeline, own)
        tables |= found
        if epoch is not None:
            epochs[pipeline] = epoch
    return Snapshot(tables, epochs)


def _of_pipeline(
    directory: DataDirectory, pipeline: str, wanted: Sequence[Readable]
) -> tuple[dict[str, pa.Table], int | None]:
    for attempt in range(_TRIES):
        try:
            manifest = _newest(Manifests(directory.pipeline(pipeline)))
            if manifest is None or manifest.epoch < 0:
                return {item.name: item.shape.empty() for item in wanted}, None
            epoch = _as_of(directory, manifest, wanted, patient=attempt < _PATIENCE)
            tables = {item.name: _table(directory, manifest, epoch, item) for item in wanted}
            return tables, epoch
        except (_Moved, NotFound):
            time.sleep(_PAUSE_SECONDS)
    raise RunError(
        "TG-801",
        f"what the pipeline {pipeline} keeps changes faster than it can be read",
        hint="ask again, or stop the pipeline first.",
    )


def _newest(manifests: Manifests) -> Manifest | None:
    for name in reversed(manifests.names()):
        try:
            return manifests.load(name)
        except DamagedManifest:
            continue
    return None


def _as_of(
    directory: DataDirectory, manifest: Manifest, wanted: Sequence[Readable], patient: bool
) -> int:
    """The last epoch that all sinks show."""
    epoch = manifest.epoch
    for item in wanted:
        state = manifest.sinks.get(item.sink)
        if state is None or state.stream != item.stream or state.epoch < 0:
            continue
        if not _shows(directory, manifest, item, state.epoch):
            if patient:
                raise _Moved
            epoch = min(epoch, state.epoch - 1)
    return epoch


def _shows(directory: DataDirectory, manifest: Manifest, item: Readable, epoch: int) -> bool:
    store = directory.stream(item.name)
    if item.is_view:
        return any(part.holds(epoch) for part in list_change_files(_life(store, manifest, item)))
    return epoch <= memory.last_expired(store) or store.exists(memory.epoch_file(epoch))


def _life(store: Store, manifest: Manifest, item: Readable) -> Store:
    state = manifest.streams.get(item.stream)
    return store.child(FOLDER).child(state.id if state is not None else "none")


def _table(directory: DataDirectory, manifest: Manifest, epoch: int, item: Readable) -> pa.Table:
    """The rows that stand after an epoch."""
    if item.stream not in manifest.streams:
        return item.shape.empty()
    store = directory.stream(item.name)
    kept = (_view if item.is_view else _memory)(store, manifest, epoch, item)
    if epoch == manifest.epoch:
        _require_all(manifest, item, kept.given)
    return materialize(kept.table, item.shape.kind, item.shape.key)


def _view(store: Store, manifest: Manifest, epoch: int, item: Readable) -> _Kept:
    life = _life(store, manifest, item)
    gaps = _gaps(manifest)
    there = [part for part in list_change_files(life) if not part.is_undone(gaps)]
    if any(part.first <= epoch < part.last for part in there):
        raise _Moved
    chosen = [part for part in there if part.last <= epoch]
    read = [read_change_file(life, part) for part in chosen]
    tables = {part.first: table for part, (table, _) in zip(chosen, read, strict=True)}
    return _Kept(_joined(item, tables), sum(given for _, given in read))


def _memory(store: Store, manifest: Manifest, epoch: int, item: Readable) -> _Kept:
    expired = memory.last_expired(store)
    if expired >= 0:
        raise RunError(
            "TG-802",
            f"the memory sink of {item.name} no longer has its first epochs: they expired up to "
            f"epoch {expired}",
            hint=f"raise its retain_epochs; or keep all rows, without subscribers: CREATE "
            f"MATERIALIZED VIEW {item.name} AS …;",
        )
    gaps = _gaps(manifest)
    chosen = [
        number
        for number in memory.stored_epochs(store)
        if number <= epoch and not any(before < number < after for before, after in gaps)
    ]
    tables = {number: memory.read_table(store, memory.epoch_file(number)) for number in chosen}
    return _Kept(_joined(item, tables), sum(table.num_rows for table in tables.values()))


def _gaps(manifest: Manifest) -> list[tuple[int, int]]:
    """Where the pipeline went back: the last epoch before, and the first one after."""
    return [(before.last, after.first) for before, after in itertools.pairwise(manifest.lineage)]


def _joined(item: Readable, tables: Mapping[int, pa.Table]) -> pa.Table:
    """One table of those that begin at epochs, in order."""
    import pyarrow as pa

    if not tables:
        return item.shape.empty()
    newest = tables[max(tables)].schema.remove_metadata()
    for first, table in tables.items():
        if not table.schema.equals(newest):
            raise RunError(
                "TG-802",
                f"the columns of {item.name} changed after epoch {first}: they were "
                f"{', '.join(table.column_names)}, now they are {', '.join(newest.names)}",
                hint=f"start the stream over, or keep it under another name: CREATE MATERIALIZED "
                f"VIEW {item.name}_2 AS …;",
            )
    return pa.concat_tables([table.replace_schema_metadata(None) for table in tables.values()])


def _require_all(manifest: Manifest, item: Readable, given: int) -> None:
    """A table without some of its rows would be wrong and look right."""
    if item.holds == SideKind.FAILED_ROWS.value:
        wanted = manifest.streams[item.stream].failed_rows
    elif item.holds == SideKind.LATE_ROWS.value:
        own = (o for o in manifest.operators.values() if o.stream == item.stream)
        wanted = sum(int(operator.report.get("late_rows") or 0) for operator in own)
    else:
        wanted = manifest.streams[item.stream].rows_out
    if given == wanted:
        return
    if item.is_view:
        raise RunError(
            "TG-605",
            f"the view {item.name} has {given:,} of the {wanted:,} rows that were given out",
            hint="its files are damaged; start it over: run once with --on-change restart.",
        )
    raise RunError(
        "TG-802",
        f"the memory sink of {item.name} has {given:,} of the {wanted:,} rows that were given "
        "out: it was not there for all of them",
        hint=f"keep all rows under another name: CREATE MATERIALIZED VIEW {item.name}_2 AS …;",
    )
