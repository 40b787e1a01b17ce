"""Rows from and to the Python process.

As a source, every insert becomes a numbered Arrow file in the data directory: it is durable, and a
restart goes on where it was. As a sink, every epoch becomes one Arrow file, so each subscriber can
read every epoch, also after a restart.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.catalog.connector import ConnectorSpec, LookupSpec, SinkSpec, SourceSpec
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.connectors.base import (
    Committable,
    CommittedState,
    EpochId,
    InputRange,
    Leaf,
    Offset,
    Read,
    SinkContext,
    SourceContext,
    SqlColumns,
    sweep_staged,
)
from tidegate.errors import RunError
from tidegate.storage import NotFound, Store, open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.connectors.memory.rows import ArrowWriterFactory, InsertReader

SPEC = ConnectorSpec(
    "memory",
    "rows from and to the Python process",
    source=SourceSpec(
        (
            OptionSpec(
                "inserts_per_epoch",
                OptionType.INTEGER,
                "inserts handed out per epoch",
                default=1_000,
                minimum=1,
            ),
        ),
        insertable=True,
    ),
    sink=SinkSpec(
        (
            OptionSpec(
                "retain_epochs",
                OptionType.INTEGER,
                "epochs kept for subscribers that come later",
                default=100_000,
                minimum=1,
            ),
        ),
        supports_rollback=True,
    ),
    lookup=LookupSpec(
        (
            OptionSpec(
                "changelog",
                OptionType.BOOLEAN,
                "true if rows are inserted with a column _op: -D takes a row away",
                default=False,
            ),
        ),
        insertable=True,
    ),
)

DEFAULT_RETAIN_EPOCHS = 100_000
_SUFFIX = ".arrow"
# The file that tells which epoch was the last one to be removed.
_EXPIRED = "expired"
# The file that tells which epochs never were, because the pipeline went back.
_GONE_BACK = "gone_back.json"
_OUT, _STAGED = "out", "staged"
# The folder, and the mark in the rows, of inserts that are made once.
_ONCE = "once"


# Rows in


def _insert_name(number: int) -> str:
    return f"rows/{number:012d}{_SUFFIX}"


class Inserts:
    """The inserts into one memory source, numbered from 0."""

    def __init__(self, data: str) -> None:
        self.store = open_store(data)
        self._lock = threading.Lock()
        self._next: int | None = None

    def count(self) -> int:
        """How many there are."""
        with self._lock:
            return self._counted()

    def _counted(self) -> int:
        if self._next is None:
            names = [item.name.rpartition("/")[2] for item in self.store.list("rows")]
            numbers = [int(name.removesuffix(_SUFFIX)) for name in names]
            self._next = max(numbers, default=-1) + 1
        return self._next

    def append(self, table: pa.Table, identity: str | None = None) -> None:
        """Make one insert durable; one with an identity can be asked for."""
        from tidegate.connectors.memory.rows import arrow_bytes

        with self._lock:
            number = self._counted()
            if identity is not None:
                # First where to look, then the rows: they alone say that it happened.
                self.store.put(f"{_ONCE}/{identity}", str(number).encode())
                table = table.replace_schema_metadata({_ONCE: identity})
            self.store.put_new(_insert_name(number), arrow_bytes(table))
            self._next = number + 1

    def has(self, identity: str) -> bool:
        """Whether an insert of this identity was made."""
        import pyarrow as pa

        try:
            number = int(self.store.get(f"{_ONCE}/{identity}"))
            rows = pa.BufferReader(self.store.map(_insert_name(number)))
        except NotFound:
            return False
        found = pa.ipc.open_file(rows).schema.metadata or {}
        return bool(found.get(_ONCE.encode()) == identity.encode())


_inserts: dict[str, Inserts] = {}


def inserts(data: str) -> Inserts:
    """The inserts of a source; a data directory is open in one process only."""
    return _inserts.setdefault(data, Inserts(data))


def forget_inserts(data: str) -> None:
    """A source is gone, or a data directory was closed with all its sources."""
    for known in [uri for uri in _inserts if uri == data or uri.startswith(f"{data}/")]:
        del _inserts[known]


def inserted(data: str, columns: pa.Schema, first: int, stop: int) -> list[pa.Table]:
    """The rows of inserts."""
    import pyarrow as pa

    from tidegate.connectors.memory.rows import InsertReader

    reader = InsertReader(data, columns, False)
    parts = (part for number in range(first, stop) for part in reader.read(_insert_name(number)))
    return [pa.Table.from_batches([batch]) for batch, _ in parts]


class MemorySource:
    """Rows that were inserted."""

    def __init__(self, context: SourceContext) -> None:
        self.context = context
        self.inserts = inserts(context.data)
        self.limit = int(context.source.options["inserts_per_epoch"])

    def plan_range(self, since: Offset | None, tasks: int) -> InputRange | None:
        first = int(since["insert"]) if since is not None else 0
        there = self.inserts.count()
        if there <= first:
            return None
        stop = min(there, first + self.limit)
        names = [_insert_name(number) for number in range(first, stop)]
        sizes = [self.inserts.store.size(name) for name in names]
        taken = self.context.pace.fitting(sizes)
        names, stop = names[:taken], first + taken
        # Few inserts are small: one task reads them, and the others need not be woken.
        per_task = -(-len(names) // tasks) if len(names) >= 4 * tasks else len(names)
        splits = [names[at : at + per_task] for at in range(0, len(names), per_task)]
        size, progress = sum(sizes[:taken]), (taken, there - stop)
        return InputRange({"insert": stop}, splits, more=there > stop, size=size, progress=progress)

    def on_commit(self, offset: Offset) -> None:
        """Inserts are kept: streams that are declared later read them all."""

    def direct(self, read: Read) -> InsertReader:
        import pyarrow as pa

        from tidegate.connectors.memory.rows import InsertReader
        from tidegate.physical.typed import arrow_type

        columns = pa.schema([(name, arrow_type(kind)) for name, kind in read.columns])
        return InsertReader(self.inserts.store.uri, columns, read.arrival)

    def frame(self, spark: SparkSession, read: Read, leaf: Leaf) -> DataFrame:
        return leaf(self.direct(read))

    def native_frame(self, spark: SparkSession, read: Read, input_range: InputRange) -> DataFrame:
        raise AssertionError("tasks read all inserts")


def open_source(context: SourceContext) -> MemorySource:
    return MemorySource(context)


# Rows out


@dataclass
class MemorySink:
    """One Arrow file per epoch, in a folder that subscribers read."""

    store: Store
    retain_epochs: int

    def recover(self, committed: CommittedState) -> None:
        last = max((stretch.last for stretch in committed.line), default=-1)
        if committed.last is not None:
            self._reject_ahead(max(last, committed.last.epoch))
        elif any(epoch > last for epoch in stored_epochs(self.store)):
            # The stream begins in another line of epochs: those of its life before would be taken
            # for them.
            self.store.delete_all(_OUT)
        if committed.committables_epoch is not None:
            self.publish(committed.committables_epoch, committed.committables)
        self._forget(committed.gaps)
        sweep_staged(self.store, _STAGED, committed)

    def _reject_ahead(self, last: int) -> None:
        ahead = [epoch for epoch in stored_epochs(self.store) if epoch > last]
        if ahead:
            raise RunError(
                "TG-504",
                f"{self.store.uri}/{_OUT} holds epoch {ahead[-1]}, which was given out to "
                f"subscribers, and the pipeline is at epoch {last}",
                hint="put back the data directory as a whole; or remove that folder: subscribers "
                "then miss the epochs in it.",
            )

    def _forget(self, gaps: list[tuple[int, int]]) -> None:
        """The pipeline went back: epochs in gaps never were."""
        if not gaps:
            return
        if gone_back(self.store) != gaps:
            # Said before it is done, for those who have taken what goes.
            self.store.put(f"{_OUT}/{_GONE_BACK}", json.dumps(gaps).encode())
        self.store.delete(
            epoch_file(epoch)
            for epoch in stored_epochs(self.store)
            if any(before < epoch < after for before, after in gaps)
        )

    def columns(self, given: SqlColumns) -> SqlColumns | None:
        return None

    def writer_factory(self, schema: pa.Schema) -> ArrowWriterFactory:
        from tidegate.connectors.memory.rows import ArrowWriterFactory

        return ArrowWriterFactory(self.store.child(_STAGED).uri)

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        names = [f"{_STAGED}/{committable}" for committable in committables]
        goal = epoch_file(epoch.epoch)
        if len(names) == 1:
            self.store.move_new(names[0], goal)
            self.store.sync([_OUT])
        elif names and not self.store.exists(goal):
            self._merge(names, goal)
        self.store.delete(names)
        self._expire(epoch.epoch - self.retain_epochs)

    def _merge(self, names: list[str], goal: str) -> None:
        import pyarrow as pa

        from tidegate.connectors.memory.rows import arrow_bytes

        tables = [read_table(self.store, name) for name in names]
        self.store.put(goal, arrow_bytes(pa.concat_tables(tables)))

    def _expire(self, epoch: int) -> None:
        name = epoch_file(epoch)
        if epoch >= 0 and self.store.exists(name):
            # Said before it is done: a slow subscriber must not take the next epoch for its own.
            self.store.put(f"{_OUT}/{_EXPIRED}", str(epoch).encode())
            self.store.delete([name])


def open_sink(context: SinkContext) -> MemorySink:
    return MemorySink(open_store(context.data), context.sink.options["retain_epochs"])


def read_table(store: Store, name: str) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_file(pa.BufferReader(store.map(name))).read_all()


def epoch_file(epoch: int) -> str:
    return f"{_OUT}/{epoch:012d}{_SUFFIX}"


def last_expired(store: Store) -> int:
    """The last epoch with rows that is no longer kept, -1 for none."""
    try:
        return int(store.get(f"{_OUT}/{_EXPIRED}") or -1)
    except NotFound:
        return -1


def gone_back(store: Store) -> list[tuple[int, int]]:
    """Where the stream went back: the last epoch before, and the first one after."""
    try:
        return [
            (int(last), int(first)) for last, first in json.loads(store.get(f"{_OUT}/{_GONE_BACK}"))
        ]
    except NotFound:
        return []


def stored_epochs(store: Store) -> Iterator[int]:
    """The epochs that are there, in order."""
    names = sorted(item.name.rpartition("/")[2] for item in store.list(_OUT))
    return (int(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX))


def read_epoch(store: Store, epoch: int) -> Any:
    """The rows of an epoch as an Arrow table."""
    try:
        return read_table(store, epoch_file(epoch))
    except NotFound:
        raise RunError(
            "TG-604",
            f"epoch {epoch} is no longer kept",
            hint="raise retain_epochs of the memory sink, or subscribe earlier.",
        ) from None
