"""The memory source and sink.

The source reads inserts. Every insert is a numbered Arrow file in the data directory, so it is
durable and a restart continues after the last one read. The sink writes one Arrow file per epoch,
so every subscriber can read every epoch, also after a restart.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.catalog.connector import ConnectorSpec, LookupSpec, SinkSpec, SourceSpec
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.connectors.base import (
    Committable,
    CommittedState,
    EpochId,
    FrameBuilder,
    InputRange,
    Offset,
    ScanRequest,
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
    "rows stored in the data directory, for Python programs and tests",
    source=SourceSpec(
        (
            OptionSpec(
                "inserts_per_epoch",
                OptionType.INTEGER,
                "maximum number of inserts (not rows) read per epoch",
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
                "number of the newest epochs that are kept for subscribers and queries",
                default=100_000,
                minimum=1,
            ),
        ),
        tolerates_restore=True,
    ),
    lookup=LookupSpec(
        (
            OptionSpec(
                "changelog",
                OptionType.BOOLEAN,
                "true if rows have a column _op, with -D to remove a row",
                default=False,
            ),
        ),
        insertable=True,
    ),
)

DEFAULT_RETAIN_EPOCHS = 100_000
_SUFFIX = ".arrow"
# The file with the number of the last epoch that was removed.
_EXPIRED = "last_expired"
# The file with the epochs that a restore has undone.
_ROLLED_BACK = "rolled_back.json"
_OUT, _STAGED = "out", "staged"
# The folder of inserts with an identity, and the metadata key of the identity in their rows.
_INSERT_IDS, _INSERT_ID = "insert_ids", "tidegate.insert_id"


# ---- Source.


def _insert_name(number: int) -> str:
    return f"rows/{number:012d}{_SUFFIX}"


class Inserts:
    """The inserts into one memory source or lookup table, numbered from 0. Thread-safe."""

    def __init__(self, uri: str) -> None:
        self.store = open_store(uri)
        self._lock = threading.Lock()
        self._next: int | None = None

    def count(self) -> int:
        """Return the number of inserts."""
        with self._lock:
            return self._load_count()

    def _load_count(self) -> int:
        """Return the number of inserts. The folder is listed only once."""
        if self._next is None:
            names = [item.name.rpartition("/")[2] for item in self.store.list("rows")]
            numbers = [int(name.removesuffix(_SUFFIX)) for name in names]
            self._next = max(numbers, default=-1) + 1
        return self._next

    def append(self, table: pa.Table, identity: str | None = None) -> None:
        """Add an insert and fsync it. An `identity` makes it idempotent, see `has_identity`."""
        from tidegate.operators.kernels.arrays import arrow_bytes

        with self._lock:
            number = self._load_count()
            if identity is not None:
                # The reference is written first. Only the rows prove that the insert happened.
                self.store.put(f"{_INSERT_IDS}/{identity}", str(number).encode())
                table = table.replace_schema_metadata({_INSERT_ID: identity})
            self.store.put_new(_insert_name(number), arrow_bytes(table))
            self._next = number + 1

    def has_identity(self, identity: str) -> bool:
        """Return whether there is an insert with this identity."""
        import pyarrow as pa

        try:
            number = int(self.store.get(f"{_INSERT_IDS}/{identity}"))
            rows = pa.BufferReader(self.store.map(_insert_name(number)))
        except NotFound:
            return False
        metadata = pa.ipc.open_file(rows).schema.metadata or {}
        return bool(metadata.get(_INSERT_ID.encode()) == identity.encode())


_inserts: dict[str, Inserts] = {}


def open_inserts(uri: str) -> Inserts:
    """Return the shared `Inserts` of a source. Only one process opens a data directory."""
    return _inserts.setdefault(uri, Inserts(uri))


def forget_inserts(uri: str) -> None:
    """Drop the cached `Inserts` of a dropped source, or of all sources below a closed directory."""
    for key in [key for key in _inserts if key == uri or key.startswith(f"{uri}/")]:
        del _inserts[key]


def read_inserts(uri: str, columns: pa.Schema, first: int, stop: int) -> list[pa.Table]:
    """Read the inserts with these numbers, as one table each."""
    import pyarrow as pa

    from tidegate.connectors.memory.rows import InsertReader

    reader = InsertReader(uri, columns, False)
    parts = (part for number in range(first, stop) for part in reader.read(_insert_name(number)))
    return [pa.Table.from_batches([batch]) for batch, _ in parts]


class MemorySource:
    """Reads inserts in order. The offset is the number of inserts read."""

    def __init__(self, context: SourceContext) -> None:
        self.context = context
        self.inserts = open_inserts(context.data_uri)
        self.limit = int(context.source.options["inserts_per_epoch"])

    def plan_range(self, since: Offset | None, tasks: int) -> InputRange | None:
        first = int(since["insert"]) if since is not None else 0
        count = self.inserts.count()
        if count <= first:
            return None
        stop = min(count, first + self.limit)
        names = [_insert_name(number) for number in range(first, stop)]
        sizes = [self.inserts.store.size(name) for name in names]
        fitting = self.context.sizer.fitting(sizes)
        names, stop = names[:fitting], first + fitting
        # A few inserts are read by one task: starting more tasks would take longer.
        per_task = -(-len(names) // tasks) if len(names) >= 4 * tasks else len(names)
        splits = [names[at : at + per_task] for at in range(0, len(names), per_task)]
        size, progress = sum(sizes[:fitting]), (fitting, count - stop)
        return InputRange(
            {"insert": stop}, splits, has_more=count > stop, size=size, progress=progress
        )

    def on_commit(self, offset: Offset) -> None:
        """Keep the inserts: streams that are declared later read all of them."""

    def create_reader(self, request: ScanRequest) -> InsertReader:
        import pyarrow as pa

        from tidegate.connectors.memory.rows import InsertReader
        from tidegate.physical.typed import arrow_type

        columns = pa.schema([(name, arrow_type(sql_type)) for name, sql_type in request.columns])
        return InsertReader(self.inserts.store.uri, columns, request.with_arrival)

    def frame(self, spark: SparkSession, request: ScanRequest, builder: FrameBuilder) -> DataFrame:
        return builder.read_frame(self.create_reader(request))

    def spark_read_frame(
        self, spark: SparkSession, request: ScanRequest, input_range: InputRange
    ) -> DataFrame:
        raise AssertionError("tasks read all inserts")


def open_source(context: SourceContext) -> MemorySource:
    return MemorySource(context)


# ---- Sink.


@dataclass
class MemorySink:
    """Writes one Arrow file per epoch into a folder that subscribers read."""

    store: Store
    retain_epochs: int
    # The stored epochs in order, and the last one that was removed: listing the folder of an object
    # store in every epoch is slow.
    _stored: list[int] | None = field(default=None, init=False)
    _last_expired: int = field(default=-1, init=False)

    def recover(self, committed: CommittedState) -> None:
        self._stored = None
        last = max((epochs.last for epochs in committed.lineage), default=-1)
        if committed.last is not None:
            self._reject_ahead(max(last, committed.last.epoch))
        elif any(epoch > last for epoch in stored_epochs(self.store)):
            # The stream starts over. The files of its previous run would be mistaken for its own.
            self.store.delete_all(_OUT)
        # Before publishing, which may expire epochs: these ones do not count as expired.
        self._remove_undone(committed.rolled_back_ranges)
        if committed.committables_epoch is not None:
            self.publish(committed.committables_epoch, committed.committables)
        sweep_staged(self.store, _STAGED, committed)

    def _reject_ahead(self, last: int) -> None:
        ahead = [epoch for epoch in stored_epochs(self.store) if epoch > last]
        if ahead:
            raise RunError(
                "TG-525",
                f"{self.store.uri}/{_OUT} contains epoch {ahead[-1]}, which subscribers may have "
                f"read, but the pipeline is at epoch {last}",
                hint="restore the whole data directory; or remove that folder: subscribers "
                "then miss the epochs in it.",
            )

    def _remove_undone(self, ranges: list[tuple[int, int]]) -> None:
        """Remove the epochs that a restore has undone."""
        if not ranges:
            return
        if rolled_back_ranges(self.store) != ranges:
            # Recorded before the files are deleted, for subscribers that have read them.
            self.store.put(f"{_OUT}/{_ROLLED_BACK}", json.dumps(ranges).encode())
        self.store.delete(
            epoch_file(epoch)
            for epoch in stored_epochs(self.store)
            if any(before < epoch < after for before, after in ranges)
        )

    def columns(self, stream_columns: SqlColumns) -> SqlColumns | None:
        return None

    def row_encoder(self, schema: pa.Schema) -> None:
        """Return None: rows are written unchanged."""

    def writer_factory(self, schema: pa.Schema) -> ArrowWriterFactory:
        from tidegate.connectors.memory.rows import ArrowWriterFactory

        return ArrowWriterFactory(self.store.child(_STAGED).uri)

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        names = [f"{_STAGED}/{committable}" for committable in committables]
        target = epoch_file(epoch.epoch)
        if len(names) == 1:
            self.store.move_new(names[0], target)
            self.store.sync([_OUT])
        elif names and not self.store.exists(target):
            self._merge(names, target)
        self.store.delete(names)
        self._expire(epoch.epoch, bool(names))

    def _merge(self, names: list[str], target: str) -> None:
        import pyarrow as pa

        from tidegate.operators.kernels.arrays import arrow_bytes

        tables = [read_table(self.store, name) for name in names]
        self.store.put(target, arrow_bytes(pa.concat_tables(tables)))

    def _expire(self, newest: int, has_rows: bool) -> None:
        """Remove all epochs before the newest `retain_epochs`, whose numbers may have gaps."""
        if self._stored is None:
            self._last_expired = last_expired(self.store)
            self._stored = list(stored_epochs(self.store))
        elif has_rows and (not self._stored or newest > self._stored[-1]):
            self._stored.append(newest)
        count = bisect_right(self._stored, newest - self.retain_epochs)
        if not count:
            return
        expired = self._stored[:count]
        if expired[-1] > self._last_expired:
            # Recorded before the files are deleted: a slow subscriber must not skip them silently.
            self.store.put(f"{_OUT}/{_EXPIRED}", str(expired[-1]).encode())
            self._last_expired = expired[-1]
        self.store.delete(map(epoch_file, expired))
        self._stored = self._stored[count:]


def open_sink(context: SinkContext) -> MemorySink:
    return MemorySink(open_store(context.data_uri), context.sink.options["retain_epochs"])


# ---- Reading the epochs of a sink.


def read_table(store: Store, name: str) -> pa.Table:
    """Read a whole Arrow file."""
    import pyarrow as pa

    return pa.ipc.open_file(pa.BufferReader(store.map(name))).read_all()


def epoch_file(epoch: int) -> str:
    """Return the name of the file of an epoch."""
    return f"{_OUT}/{epoch:012d}{_SUFFIX}"


def last_expired(store: Store) -> int:
    """Return the last epoch with rows that was removed, or -1."""
    try:
        return int(store.get(f"{_OUT}/{_EXPIRED}") or -1)
    except NotFound:
        return -1


def rolled_back_ranges(store: Store) -> list[tuple[int, int]]:
    """Return where the stream was restored: the last epoch before and the first one after."""
    try:
        return [
            (int(last), int(first))
            for last, first in json.loads(store.get(f"{_OUT}/{_ROLLED_BACK}"))
        ]
    except NotFound:
        return []


def stored_epochs(store: Store) -> Iterator[int]:
    """Return the stored epochs in order."""
    names = sorted(item.name.rpartition("/")[2] for item in store.list(_OUT))
    return (int(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX))


def read_epoch(store: Store, epoch: int) -> Any:
    """Read the rows of an epoch as an Arrow table."""
    try:
        return read_table(store, epoch_file(epoch))
    except NotFound:
        raise RunError(
            "TG-604",
            f"epoch {epoch} has been removed",
            hint="raise retain_epochs of the memory sink, or subscribe earlier.",
        ) from None
