"""The sink of a materialised view: every change is kept, in few files, and nothing expires."""

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
from tidegate.connectors.changelog import folded
from tidegate.errors import RunError
from tidegate.storage import NotFound, Store, open_store
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.connectors.memory.rows import ArrowWriterFactory


# ---- What a materialised view keeps: files of changes, each of a range of epochs, and what they mean.
#
# An epoch is a range of one. Ranges are folded into larger ones, by size, as long as no epoch to
# which the pipeline can go back lies inside, so that going back is leaving files out.

FOLDER, STAGED = "view", "staged"
_ABOUT = "about.json"
_SUFFIX = ".arrow"
# How many rows a stream has given out in a range, where folding has made them fewer.
_GIVEN = b"tidegate.rows"
# So many epochs that can be folded are folded.
MANY = 16


@dataclass(frozen=True)
class Shape:
    """What the rows of a view mean."""

    kind: ChangelogKind
    key: tuple[str, ...]
    # Names and Spark's types.
    columns: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "kind": self.kind.value}

    @classmethod
    def of_json(cls, stored: dict[str, Any]) -> Shape:
        columns = tuple((str(name), str(kind)) for name, kind in stored["columns"])
        return cls(ChangelogKind(stored["kind"]), tuple(stored["key"]), columns)

    def canonical_form(self, query: str) -> str:
        """Tells a view from one of another query, or with other columns."""
        text = json.dumps([self.to_json(), query], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def empty(self) -> pa.Table:
        """A table without rows."""
        import pyarrow as pa

        from tidegate.physical.typed import arrow_type

        fields = [pa.field(name, arrow_type(kind)) for name, kind in self.columns]
        return pa.schema(fields).empty_table()


@dataclass(frozen=True, order=True)
class Range:
    """Epochs that follow each other, both ends included, and how many of them had rows."""

    first: int
    last: int
    epochs: int = 1

    @property
    def file(self) -> str:
        return f"{self.first:012d}-{self.last:012d}-{self.epochs}{_SUFFIX}"

    def holds(self, epoch: int) -> bool:
        return self.first <= epoch <= self.last

    def covers(self, other: Range) -> bool:
        return self != other and self.first <= other.first and other.last <= self.last

    def never_was(self, gaps: Iterable[tuple[int, int]]) -> bool:
        """Whether the pipeline went back to before these epochs."""
        return any(before < self.first and self.last < after for before, after in gaps)


def ranges(store: Store) -> list[Range]:
    """What is there, in order; what was folded and not yet removed is left out."""
    found = []
    for item in store.list():
        name = item.name
        if "/" not in name and name.endswith(_SUFFIX):
            found.append(Range(*map(int, name.removesuffix(_SUFFIX).split("-"))))
    return sorted(r for r in found if not any(other.covers(r) for other in found))


def leftovers(store: Store) -> list[str]:
    """Files that were folded into others, and not removed."""
    kept = {item.file for item in ranges(store)}
    names = (item.name for item in store.list())
    return [n for n in names if "/" not in n and n.endswith(_SUFFIX) and n not in kept]


def read_range(store: Store, item: Range) -> tuple[pa.Table, int]:
    """The changes of a range, and how many rows the stream gave out in it."""
    import pyarrow as pa

    table = pa.ipc.open_file(pa.BufferReader(store.map(item.file))).read_all()
    metadata = table.schema.metadata or {}
    return table, int(metadata.get(_GIVEN, table.num_rows))


def range_bytes(table: pa.Table, given: int) -> bytes:
    """The content of the file of a range."""
    from tidegate.connectors.memory.rows import arrow_bytes

    metadata = {**(table.schema.metadata or {}), _GIVEN: str(given).encode()}
    return arrow_bytes(table.replace_schema_metadata(metadata).combine_chunks())


def to_fold(found: Sequence[Range], kept: Collection[int]) -> list[Range]:
    """Ranges that may become one, if single epochs among them are many.

    `kept` are the epochs to which the pipeline can go back: none may lie inside of a range, unless
    at its end.
    """
    for part in _parts(found, kept):
        epochs = 0
        chosen: list[Range] = []
        # An older range is taken along once what is new is half of it: each epoch is then written
        # again a few times only, however many there are.
        for item in reversed(part):
            if item.epochs > 1 and item.epochs > 2 * epochs:
                break
            chosen.insert(0, item)
            epochs += item.epochs
        if sum(item.epochs == 1 for item in chosen) >= MANY:
            return chosen
    return []


def _parts(found: Sequence[Range], kept: Collection[int]) -> list[list[Range]]:
    """The ranges cut at the epochs to which the pipeline can go back."""
    parts: list[list[Range]] = []
    for item in found:
        before = parts[-1][-1].last if parts else None
        if before is None or any(before <= epoch < item.first for epoch in kept):
            parts.append([])
        parts[-1].append(item)
    return parts


def store_shape(store: Store, shape: Shape) -> None:
    """Written when it is another one: readers in other processes need it."""
    if stored_shape(store) != shape:
        store.put(_ABOUT, json.dumps(shape.to_json()).encode())


def stored_shape(store: Store) -> Shape | None:
    try:
        return Shape.of_json(json.loads(store.get(_ABOUT)))
    except NotFound:
        return None


# Nobody declares a sink of this connector: CREATE MATERIALIZED VIEW does.
CONNECTOR = "view"
_LARGE = 64_000_000


def sink_name(stream: str) -> str:
    """The name of the sink of a view, as manifests know it."""
    return f"view of {stream}"


class ViewSink:
    """The changes of a stream since its first epoch, in files of ranges of epochs.

    The folder is named after the life of the stream: one that starts over has another one, and a
    restore to before that finds the old one.
    """

    def __init__(self, context: SinkContext) -> None:
        self.context = context
        self.shape = context.sink.options["shape"]
        self.lives = open_store(context.data).child(FOLDER)
        self.store = self.lives.child(context.pipeline)
        self._ranges: list[Range] = []
        self._since_fold = 0

    def recover(self, committed: CommittedState) -> None:
        store_shape(self.store, self.shape)
        self.store.delete(leftovers(self.store))
        self._ranges = ranges(self.store)
        self._forget(committed)
        if committed.committables_epoch is not None:
            self.publish(committed.committables_epoch, committed.committables)
        sweep_staged(self.store, STAGED, committed)
        self._sweep_lives()

    def _forget(self, committed: CommittedState) -> None:
        """The pipeline went back: epochs in gaps, and after the last one, never were."""
        last = committed.last.epoch if committed.last is not None else -1
        cut = [item for item in self._ranges if item.first <= last < item.last]
        if cut:
            raise RunError(
                "TG-605",
                f"the view {self.context.sink.source} cannot go back to epoch {last}: its rows of "
                f"epochs {cut[0].first} to {cut[0].last} are one",
                hint="start the stream over: run once with --on-change restart.",
            )
        gone = [r for r in self._ranges if r.first > last or r.never_was(committed.gaps)]
        self.store.delete(item.file for item in gone)
        self._ranges = [item for item in self._ranges if item not in gone]

    def _sweep_lives(self) -> None:
        """Remove what earlier lives of the stream have left, unless it could come back."""
        stream = self.context.sink.source.lower()
        kept = [m.streams.get(stream) for m in self.context.kept()]
        lives = {self.context.pipeline, *(state.id for state in kept if state is not None)}
        there = {item.name.partition("/")[0] for item in self.lives.list()}
        for life in there - lives:
            self.lives.delete_all(life)

    def columns(self, given: SqlColumns) -> SqlColumns | None:
        return None

    def writer_factory(self, schema: pa.Schema) -> ArrowWriterFactory:
        from tidegate.connectors.memory.rows import ArrowWriterFactory

        return ArrowWriterFactory(self.store.child(STAGED).uri)

    # Epochs

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        names = [f"{STAGED}/{committable}" for committable in committables]
        if names and not any(item.holds(epoch.epoch) for item in self._ranges):
            self._add(Range(epoch.epoch, epoch.epoch), names)
            self._fold()
        self.store.delete(names)

    def _add(self, item: Range, names: Sequence[str]) -> None:
        if len(names) == 1:
            self.store.move_new(names[0], item.file)
            self.store.sync([""])
        else:
            self._merge(names, item)
        self._ranges.append(item)
        self._since_fold += 1

    def _merge(self, names: Sequence[str], item: Range) -> None:
        import pyarrow as pa

        from tidegate.connectors.memory.connector import read_table
        from tidegate.connectors.memory.rows import arrow_bytes

        tables = [read_table(self.store, name) for name in names]
        self.store.put(item.file, arrow_bytes(pa.concat_tables(tables)))

    def _fold(self) -> None:
        """Make many ranges one; a crash leaves both, and then the one that covers all counts."""
        import pyarrow as pa

        if self._since_fold < MANY:
            return
        self._since_fold = 0
        chosen = self._chosen()
        if not chosen:
            return
        begin, end = self._ranges.index(chosen[0]), self._ranges.index(chosen[-1]) + 1
        tables, given = zip(*(read_range(self.store, item) for item in chosen), strict=True)
        changes = pa.concat_tables(tables)
        rows = folded(changes, self.shape.kind, self.shape.key, complete=begin == 0)
        epochs = sum(item.epochs for item in chosen)
        whole = Range(chosen[0].first, chosen[-1].last, epochs)
        self.store.put(whole.file, range_bytes(rows, sum(given)))
        self.store.delete(item.file for item in chosen)
        self._ranges[begin:end] = [whole]

    def _chosen(self) -> list[Range]:
        chosen = to_fold(self._ranges, {m.epoch for m in self.context.kept()})
        if self.shape.kind is ChangelogKind.APPEND:
            # Rows that are only added do not become fewer: large files are left as they are.
            while chosen and self.store.size(chosen[0].file) > _LARGE:
                chosen = chosen[1:]
        return chosen if len(chosen) > 1 else []


def open_sink(context: SinkContext) -> ViewSink:
    return ViewSink(context)
