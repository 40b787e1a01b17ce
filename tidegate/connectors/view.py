"""The sink of a materialized view: keeps all changes of a stream in a small number of files.

A change file contains the changes of a range of epochs. Every epoch with rows adds one file.
Adjacent files are compacted into larger ones, by size, unless an epoch that the pipeline can be
restored to lies inside: a restore must be able to drop whole files. Queries concatenate the files
and materialize the result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tidegate.connectors.base import (
    Committable,
    CommittedState,
    EpochId,
    SinkContext,
    SqlColumns,
    sweep_staged,
)
from tidegate.connectors.changelog_compaction import compact_changes
from tidegate.errors import RunError
from tidegate.storage import NotFound, Store, open_store
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.connectors.memory.rows import ArrowWriterFactory


FOLDER, STAGED = "view", "staged"
_SCHEMA_FILE = "schema.json"
_SUFFIX = ".arrow"
# Metadata key: the number of rows that the stream emitted, before compaction.
_ROWS_EMITTED = b"tidegate.rows"
# This many files of single epochs are compacted into one.
COMPACT_AFTER = 16


@dataclass(frozen=True)
class ViewSchema:
    """The columns of a view and how its changes are to be applied."""

    kind: ChangelogKind
    key: tuple[str, ...]
    # Names and Spark types.
    columns: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "kind": self.kind.value}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> ViewSchema:
        columns = tuple((str(name), str(sql_type)) for name, sql_type in stored["columns"])
        return cls(ChangelogKind(stored["kind"]), tuple(stored["key"]), columns)

    def definition_hash(self, query: str) -> str:
        """Return a hash that differs between views of different queries or columns."""
        text = json.dumps([self.to_json(), query], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def empty(self) -> pa.Table:
        """Return a table without rows."""
        import pyarrow as pa

        from tidegate.physical.typed import arrow_type

        fields = [pa.field(name, arrow_type(sql_type)) for name, sql_type in self.columns]
        return pa.schema(fields).empty_table()


@dataclass(frozen=True, order=True)
class ChangeFile:
    """The changes of a range of epochs, both ends included; `epochs` of them had rows."""

    first: int
    last: int
    epochs: int = 1

    @property
    def file(self) -> str:
        return f"{self.first:012d}-{self.last:012d}-{self.epochs}{_SUFFIX}"

    def contains(self, epoch: int) -> bool:
        return self.first <= epoch <= self.last

    def replaces(self, other: ChangeFile) -> bool:
        """Return whether the other file was compacted into this one."""
        return self != other and self.first <= other.first and other.last <= self.last

    def is_undone(self, ranges: Iterable[tuple[int, int]]) -> bool:
        """Return whether a restore has undone these epochs."""
        return any(before < self.first and self.last < after for before, after in ranges)


def list_change_files(store: Store) -> list[ChangeFile]:
    """Return the change files in order, without those that a compacted file replaces."""
    files = []
    for item in store.list():
        name = item.name
        if "/" not in name and name.endswith(_SUFFIX):
            files.append(ChangeFile(*map(int, name.removesuffix(_SUFFIX).split("-"))))
    return sorted(file for file in files if not any(other.replaces(file) for other in files))


def superseded_files(store: Store) -> list[str]:
    """Return the names of files that were compacted into others but not deleted."""
    current = {item.file for item in list_change_files(store)}
    names = (item.name for item in store.list())
    return [n for n in names if "/" not in n and n.endswith(_SUFFIX) and n not in current]


def read_change_file(store: Store, item: ChangeFile) -> tuple[pa.Table, int]:
    """Read the changes, and the number of rows that the stream emitted in these epochs."""
    import pyarrow as pa

    table = pa.ipc.open_file(pa.BufferReader(store.map(item.file))).read_all()
    metadata = table.schema.metadata or {}
    return table, int(metadata.get(_ROWS_EMITTED, table.num_rows))


def change_file_bytes(table: pa.Table, rows_emitted: int) -> bytes:
    """Serialize a change file."""
    from tidegate.operators.kernels.arrays import arrow_bytes

    metadata = {**(table.schema.metadata or {}), _ROWS_EMITTED: str(rows_emitted).encode()}
    return arrow_bytes(table.replace_schema_metadata(metadata).combine_chunks())


def files_to_compact(
    files: Sequence[ChangeFile], restorable_epochs: Collection[int]
) -> list[ChangeFile]:
    """Choose adjacent files to compact, if they contain enough files of single epochs.

    A restorable epoch may only be the last epoch of a compacted file.
    """
    for group in _split_at(files, restorable_epochs):
        epochs = 0
        chosen: list[ChangeFile] = []
        # A compacted file is only rewritten if the newer files are at least half its size, so that
        # every epoch is rewritten a logarithmic number of times.
        for item in reversed(group):
            if item.epochs > 1 and item.epochs > 2 * epochs:
                break
            chosen.insert(0, item)
            epochs += item.epochs
        if sum(item.epochs == 1 for item in chosen) >= COMPACT_AFTER:
            return chosen
    return []


def _split_at(
    files: Sequence[ChangeFile], restorable_epochs: Collection[int]
) -> list[list[ChangeFile]]:
    """Split the files after restorable epochs."""
    groups: list[list[ChangeFile]] = []
    for item in files:
        before = groups[-1][-1].last if groups else None
        if before is None or any(before <= epoch < item.first for epoch in restorable_epochs):
            groups.append([])
        groups[-1].append(item)
    return groups


def store_schema(store: Store, schema: ViewSchema) -> None:
    """Write the schema for readers in other processes, if it has changed."""
    if load_schema(store) != schema:
        store.put(_SCHEMA_FILE, json.dumps(schema.to_json()).encode())


def load_schema(store: Store) -> ViewSchema | None:
    """Read the schema, or return None if no pipeline has written one."""
    try:
        return ViewSchema.from_json(json.loads(store.get(_SCHEMA_FILE)))
    except NotFound:
        return None


# Users do not declare sinks of this connector. CREATE MATERIALIZED VIEW does.
CONNECTOR = "view"
# Append-only files above this size are not compacted.
_LARGE = 64_000_000


def sink_name(stream: str) -> str:
    """Return the name under which manifests store the sink of a view."""
    return f"view of {stream}"


class ViewSink:
    """Writes the changes of a stream since its first epoch into change files.

    The folder is named after the output id of the stream. A stream that starts over gets a new id
    and a new folder, and a restore to an earlier epoch finds the old folder.
    """

    def __init__(self, context: SinkContext) -> None:
        self.context = context
        self.schema = context.sink.options["schema"]
        self.folders = open_store(context.data_uri).child(FOLDER)
        self.store = self.folders.child(context.stream_id)
        self._files: list[ChangeFile] = []
        self._uncompacted = 0

    def recover(self, committed: CommittedState) -> None:
        store_schema(self.store, self.schema)
        self.store.delete(superseded_files(self.store))
        self._files = list_change_files(self.store)
        self._remove_undone(committed)
        if committed.committables_epoch is not None:
            self.publish(committed.committables_epoch, committed.committables)
        sweep_staged(self.store, STAGED, committed)
        self._remove_unreferenced_folders()

    def _remove_undone(self, committed: CommittedState) -> None:
        """Delete the files of epochs that a restore has undone."""
        last = committed.last.epoch if committed.last is not None else -1
        split = [item for item in self._files if item.first <= last < item.last]
        if split:
            raise RunError(
                "TG-605",
                f"the view {self.context.sink.stream} cannot be restored to epoch {last}: its rows "
                f"of epochs {split[0].first} to {split[0].last} have been compacted",
                hint="start the stream over: run once with --on-change restart.",
            )
        undone = [
            f for f in self._files if f.first > last or f.is_undone(committed.rolled_back_ranges)
        ]
        self.store.delete(item.file for item in undone)
        self._files = [item for item in self._files if item not in undone]

    def _remove_unreferenced_folders(self) -> None:
        """Delete folders of earlier runs of the stream that no restore can bring back."""
        stream = self.context.sink.stream.lower()
        states = [m.streams.get(stream) for m in self.context.restorable()]
        referenced = {self.context.stream_id, *(state.id for state in states if state is not None)}
        stored = {item.name.partition("/")[0] for item in self.folders.list()}
        for folder in stored - referenced:
            self.folders.delete_all(folder)

    def columns(self, stream_columns: SqlColumns) -> SqlColumns | None:
        return None

    def row_encoder(self, schema: pa.Schema) -> None:
        """Return None: rows are written unchanged."""

    def writer_factory(self, schema: pa.Schema) -> ArrowWriterFactory:
        from tidegate.connectors.memory.rows import ArrowWriterFactory

        return ArrowWriterFactory(self.store.child(STAGED).uri)

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        names = [f"{STAGED}/{committable}" for committable in committables]
        if names and not any(item.contains(epoch.epoch) for item in self._files):
            self._add(ChangeFile(epoch.epoch, epoch.epoch), names)
            self._compact()
        self.store.delete(names)

    def _add(self, item: ChangeFile, names: Sequence[str]) -> None:
        if len(names) == 1:
            self.store.move_new(names[0], item.file)
            self.store.sync([""])
        else:
            self._merge(names, item)
        self._files.append(item)
        self._uncompacted += 1

    def _merge(self, names: Sequence[str], item: ChangeFile) -> None:
        import pyarrow as pa

        from tidegate.connectors.memory.connector import read_table
        from tidegate.operators.kernels.arrays import arrow_bytes

        tables = [read_table(self.store, name) for name in names]
        self.store.put(item.file, arrow_bytes(pa.concat_tables(tables)))

    def _compact(self) -> None:
        """Compact files into one. After a crash both exist, and the compacted one is used."""
        import pyarrow as pa

        if self._uncompacted < COMPACT_AFTER:
            return
        self._uncompacted = 0
        chosen = self._files_to_compact()
        if not chosen:
            return
        first, stop = self._files.index(chosen[0]), self._files.index(chosen[-1]) + 1
        tables, counts = zip(*(read_change_file(self.store, item) for item in chosen), strict=True)
        changes = pa.concat_tables(tables)
        rows = compact_changes(changes, self.schema.kind, self.schema.key, complete=first == 0)
        epochs = sum(item.epochs for item in chosen)
        compacted = ChangeFile(chosen[0].first, chosen[-1].last, epochs)
        self.store.put(compacted.file, change_file_bytes(rows, sum(counts)))
        self.store.delete(item.file for item in chosen)
        self._files[first:stop] = [compacted]

    def _files_to_compact(self) -> list[ChangeFile]:
        chosen = files_to_compact(self._files, {m.epoch for m in self.context.restorable()})
        if self.schema.kind is ChangelogKind.APPEND:
            # Compaction does not make append-only changes fewer, so large files are skipped.
            while chosen and self.store.size(chosen[0].file) > _LARGE:
                chosen = chosen[1:]
        return chosen if len(chosen) > 1 else []


def open_sink(context: SinkContext) -> ViewSink:
    return ViewSink(context)
