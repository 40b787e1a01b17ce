"""The sink of a materialised view: every change is kept, in few files, and nothing expires."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.connectors.protocols import Decided, EpochId, SinkContext, SqlColumns, Token
from tidegate.connectors.staged import sweep_staged
from tidegate.connectors.standing import folded
from tidegate.connectors.view_files import (
    FOLDER,
    MANY,
    STAGED,
    Range,
    leftovers,
    range_bytes,
    ranges,
    read_range,
    store_shape,
    to_fold,
)
from tidegate.errors import RunError
from tidegate.storage import open_store
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.connectors.memory_tasks import ArrowStagerFactory

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

    def recover(self, decided: Decided) -> None:
        store_shape(self.store, self.shape)
        self.store.delete(leftovers(self.store))
        self._ranges = ranges(self.store)
        self._forget(decided)
        if decided.made_in is not None:
            self.commit(decided.made_in, decided.tokens)
        sweep_staged(self.store, STAGED, decided)
        self._sweep_lives()

    def _forget(self, decided: Decided) -> None:
        """The pipeline went back: epochs in gaps, and after the last one, never were."""
        last = decided.last.epoch if decided.last is not None else -1
        cut = [item for item in self._ranges if item.first <= last < item.last]
        if cut:
            raise RunError(
                "TG-605",
                f"the view {self.context.sink.source} cannot go back to epoch {last}: its rows of "
                f"epochs {cut[0].first} to {cut[0].last} are one",
                hint="start the stream over: run once with --on-change restart.",
            )
        gone = [r for r in self._ranges if r.first > last or r.never_was(decided.gaps)]
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

    def stager(self, schema: pa.Schema) -> ArrowStagerFactory:
        from tidegate.connectors.memory_tasks import ArrowStagerFactory

        return ArrowStagerFactory(self.store.child(STAGED).uri)

    # Epochs

    def commit(self, epoch: EpochId, tokens: Sequence[Token]) -> None:
        names = [f"{STAGED}/{token}" for token in tokens]
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

        from tidegate.connectors.memory import read_table
        from tidegate.connectors.memory_tasks import arrow_bytes

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
