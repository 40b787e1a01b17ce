"""Contracts that every connector implements.

Reading has two halves. On the driver, `SourceConnector.plan_range` chooses what the next epoch
reads and divides it into splits. In the tasks, a `SplitReader` reads a split and must return the
same rows every time it is called, because Spark may retry a task.

Writing is a two-phase commit. In the tasks, a `SinkWriter` stages rows where no reader of the
target can see them and returns committables. After the epoch's manifest has been written,
`SinkConnector.publish` makes the committables visible. `publish` may be called again with the same
arguments and must then do nothing.

A lookup table is read by key. `LookupConnector.as_of` fixes the version of the table on the driver
where that is possible, and a `LookupReader` returns the rows of the keys in the tasks.

Readers, writers and their factories are pickled and sent to Python workers. Modules that define
them must be cheap to import: no Spark session, no SQL parser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.checkpoint.manifest import EpochRange, epoch_stamp, rolled_back_between
from tidegate.errors import RunError, TidegateError
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.catalog.connector import ColumnTypes
    from tidegate.catalog.objects import LookupTable, Sink, Source
    from tidegate.catalog.settings import Settings
    from tidegate.checkpoint.manifest import Manifest
    from tidegate.operators.join.lookup_cache import LookupResult
    from tidegate.storage import Store


# ---- The adaptive size of an epoch.

# The size of the first epoch, and the limits of all following ones.
_INITIAL_BYTES = 256 << 20
_MIN_BYTES, _MAX_BYTES = 1 << 20, 8 << 30
# A single epoch may be slow or fast by chance, so it changes the size by a bounded factor.
_MIN_CHANGE, _MAX_CHANGE = 0.25, 4.0
# Two epochs are compared only if one read this many times more than the other.
_MIN_SIZE_RATIO = 1.2


class EpochSizer:
    """Chooses how many bytes an epoch reads so that it takes `target_seconds`.

    A pipeline has one sizer. Its sources call `fitting` while they plan a range, and the loop calls
    `learn` after every epoch that left input unread.
    """

    def __init__(self, target_seconds: float = 1.0) -> None:
        self.target_seconds = target_seconds
        self.bytes = _INITIAL_BYTES
        # The estimated time that an epoch takes independently of how much it reads.
        self.fixed_seconds = 0.0
        self._last: tuple[int, float] | None = None

    def fitting(self, sizes: Iterable[int]) -> int:
        """Return how many of the first items fit into an epoch, at least one if there are any."""
        totals = list(accumulate(sizes))
        return max(sum(total <= self.bytes for total in totals), min(len(totals), 1))

    def learn(self, size: int, seconds: float) -> None:
        """Adjust the size after an epoch that read `size` bytes and left input unread."""
        if self._last is not None:
            self._learn_fixed(*self._last, size, seconds)
        self._last = size, seconds
        # If the fixed cost alone exceeds the target, spend as much time on reading as on it.
        reading = max(self.target_seconds - self.fixed_seconds, self.fixed_seconds)
        change = reading / max(seconds - self.fixed_seconds, 0.001)
        change = min(max(change, _MIN_CHANGE), _MAX_CHANGE)
        self.bytes = int(min(max(size * change, _MIN_BYTES), _MAX_BYTES))

    def _learn_fixed(self, size: int, seconds: float, size_now: int, seconds_now: float) -> None:
        """Estimate the fixed cost from two epochs of different sizes."""
        if max(size, size_now) < _MIN_SIZE_RATIO * min(size, size_now):
            return
        per_byte = max((seconds_now - seconds) / (size_now - size), 0.0)
        fixed = min(seconds - per_byte * size, seconds_now - per_byte * size_now)
        self.fixed_seconds += (max(fixed, 0.0) - self.fixed_seconds) / 2


# ---- Sources.

# JSON values that only the connector interprets: the position of a source, a part of the input that
# is read by one task, and rows that a task has staged.
Offset = Any
Split = Any
Committable = Any
# Pairs of an SQL expression and the name of its column.
SqlColumns = Sequence[tuple[str, str]]
# Receives the rows of a console sink: stream, epoch, Arrow table.
ConsoleCallback = Callable[[str, int, Any], None]


@dataclass(frozen=True)
class SourceContext:
    """The arguments for opening a source."""

    source: Source
    # The source's folder in the data directory, and the pipeline's folder for files that the
    # source's offsets refer to.
    data_uri: str
    offsets_uri: str
    settings: Settings
    sizer: EpochSizer = field(default_factory=EpochSizer)


@dataclass(frozen=True)
class ScanRequest:
    """The columns that streams read from a source, and additional columns about each record."""

    # Names and Spark types of stored columns.
    columns: tuple[tuple[str, str], ...]
    # Whether rows carry their position in the source (the columns ARRIVAL), which orders them.
    with_arrival: bool = False
    # Whether records carry their file and line, and malformed ones the reason.
    with_location: bool = False
    # Whether tasks may decode records themselves. If not, Spark decodes them.
    decode_in_tasks: bool = True


@dataclass(frozen=True)
class InputRange:
    """The input that an epoch reads from a source."""

    # The position after the range. The manifest stores it once the epoch is committed.
    offset: Offset
    # The splits of each task.
    splits: list[list[Split]]
    # The number of rows, if the readers do not count them.
    rows: int | None = None
    # Whether the source already has input after this range.
    has_more: bool = False
    # The approximate number of bytes to read.
    size: int = 0
    # The number of partitions, if each has its own watermark. Rows then carry their partition.
    partitions: int | None = None
    # Records that the source deleted before they were read, and records still to be read.
    lost_records: int = 0
    pending_records: int | None = None
    # How much this range reads and how much remains after it, in a unit that the source chooses.
    # None if the source does not know.
    progress: tuple[int, int] | None = None
    # Arguments for `spark_read_frame`, if Spark's own reader can read the range. If tasks can read
    # it, too, `splits` is not empty.
    spark_read: Any = None


class SplitReader(Protocol):
    """Reads the splits of a task. It is pickled on the driver and used in the task."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of all batches, the same for all splits."""

    def read(self, split: Split) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the rows of a split in batches, each with its number of records.

        The number is 0 if `InputRange.rows` or `FrameBuilder.count_rows` counts them. Called once
        per split and task attempt. Must yield the same rows in the same order every time.
        """


class FrameBuilder(Protocol):
    """Turns a `SplitReader` into a DataFrame. Passed to `SourceConnector.frame`."""

    def read_frame(self, reader: SplitReader) -> DataFrame:
        """Return the rows that `reader` reads, with the columns NOW and CONTROL added."""

    def count_rows(self, frame: DataFrame) -> DataFrame:
        """Count the rows of `frame` as input, if the reader returned 0 because it cannot count."""


class SourceConnector(Protocol):
    """An open source. All methods are called on the driver, by one thread at a time."""

    def plan_range(self, since: Offset | None, tasks: int) -> InputRange | None:
        """Choose the range that the next epoch reads after `since`, for up to `tasks` tasks.

        Called once per epoch for each distinct offset of the pipeline's streams; `since` is None
        for streams that have not read anything. Returns None without new data. Must not have
        side effects in the external system: after a failure the driver calls it again with the same
        offset, and the range may then be a different one.
        """

    def on_commit(self, offset: Offset) -> None:
        """Release what is only needed to read up to `offset`; its manifest is durable.

        Called after the commit, once for every stream that read from this source.
        """

    def create_reader(self, request: ScanRequest) -> SplitReader | None:
        """Return a reader whose rows need no Spark expressions, or None.

        Called when the pipeline's frame is built, possibly several times. The schema must contain
        the columns of `request` in Spark's types. If this returns None, `frame` is called instead.
        """

    def frame(self, spark: SparkSession, request: ScanRequest, builder: FrameBuilder) -> DataFrame:
        """Build the DataFrame of the stored columns, with _op and MALFORMED_RECORD if needed.

        Called once when the pipeline's frame is built. The frame is executed for many epochs: the
        splits must come from `builder.read_frame(reader)`, which reads those of the current epoch.
        """

    def spark_read_frame(
        self, spark: SparkSession, request: ScanRequest, input_range: InputRange
    ) -> DataFrame:
        """Build the same DataFrame for a single range, with one of Spark's own readers.

        Called once per epoch, only for ranges with `spark_read`.
        """


# ---- Sinks.


@dataclass(frozen=True)
class StreamSchema:
    """The columns of a stream without _op, and how its rows replace each other."""

    # Names and Spark types.
    columns: tuple[tuple[str, str], ...]
    kind: ChangelogKind = ChangelogKind.APPEND
    # The columns that identify a row, if rows are updated or retracted and there are any.
    key: tuple[str, ...] | None = None
    has_op: bool = False
    nullable: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SinkContext:
    """The arguments for opening a sink."""

    sink: Sink
    # The stream's folder in the data directory.
    data_uri: str
    # The id of the stream in manifests. A stream that starts over gets a new id.
    stream_id: str
    show: ConsoleCallback
    # The columns that the sink is given, with Spark's type names, including _op.
    columns: ColumnTypes = ()
    schema: StreamSchema | None = None
    # Returns the manifests that the pipeline can be restored to.
    restorable: Callable[[], Sequence[Manifest]] = tuple


@dataclass(frozen=True, order=True)
class EpochId:
    """An epoch and the generation it belongs to."""

    generation: int
    epoch: int

    @property
    def stamp(self) -> str:
        """The epoch as text that sorts like the epochs. Names of staged files begin with it."""
        return epoch_stamp(self.generation, self.epoch)


@dataclass(frozen=True)
class CommittedState:
    """The state of a sink in the newest manifest when the sink is opened."""

    # The last committed epoch of the pipeline; None before the first one.
    last: EpochId | None
    committables: Sequence[Committable] = ()
    # The epoch that staged the committables; `last` if it is None.
    staged_epoch: EpochId | None = None
    # The epoch ranges that led to `last`; all epochs of its generation if it is empty.
    lineage: Sequence[EpochRange] = ()
    # Rows of generations before this one may stay in the target.
    keep_before_generation: int = 0

    @classmethod
    def from_manifest(cls, manifest: Manifest, sink: str) -> CommittedState:
        """Extract the state of a sink from a manifest."""
        last = EpochId(manifest.generation, manifest.epoch) if manifest.epoch >= 0 else None
        state = manifest.sinks.get(sink)
        if state is None or state.epoch < 0:
            return cls(last, (), None, manifest.lineage, manifest.keep_before_generation)
        staged_epoch = EpochId(state.generation, state.epoch)
        return cls(
            last,
            state.committables,
            staged_epoch,
            manifest.lineage,
            manifest.keep_before_generation,
        )

    @property
    def committables_epoch(self) -> EpochId | None:
        """The epoch that staged the committables."""
        return self.staged_epoch or self.last

    def contains(self, epoch: EpochId) -> bool:
        """Return whether rows of this epoch in the target belong to the current pipeline."""
        if epoch.generation < self.keep_before_generation:
            return True
        lineage = self.lineage
        if not lineage and self.last is not None:
            lineage = [EpochRange(self.last.generation, -1, self.last.epoch)]
        return any(epoch_range.contains(epoch.generation, epoch.epoch) for epoch_range in lineage)

    @property
    def rolled_back_ranges(self) -> list[tuple[int, int]]:
        """The last epoch before and the first one after those that each RESTORE rolled back."""
        return rolled_back_between(self.lineage)


class RowEncoder(Protocol):
    """Computes in tasks, with Arrow, what `SinkConnector.columns` describes in SQL.

    It is pickled on the driver and used in the tasks.
    """

    def encode(self, rows: pa.Table) -> pa.Table:
        """Return the columns to write, equal to those that Spark would compute."""


class SinkWriter(Protocol):
    """Stages the rows of one sink in one task attempt. Rows stay invisible until `publish`."""

    def add(self, rows: pa.Table) -> None:
        """Stage rows. Called any number of times.

        Rows that the target would reject must fail here or in `finish`: after the commit it is too
        late.
        """

    def finish(self) -> list[Committable]:
        """Flush and fsync the staged rows and return their committables.

        Called once, after the last `add`; not called if the task fails. After it returns, a crash
        must not lose the rows. Returns an empty list for a task without rows.
        """


class SinkWriterFactory(Protocol):
    """Opens the writers of a sink. It is pickled on the driver and used in the tasks."""

    def open(self, stamp: str, task: int) -> SinkWriter:
        """Open a writer for one task of the epoch with this stamp (`EpochId.stamp`).

        Several attempts of a task may be open at the same time, so staged names must be unique.
        """


class SinkConnector(Protocol):
    """An open sink. All methods are called on the driver, by one thread at a time."""

    def recover(self, committed: CommittedState) -> None:
        """Check the target, publish what the manifest contains, and remove other staged rows.

        Called once, before any other method. Must reject a target whose commit marker does not fit
        `committed`. Must keep rows that were staged for the epoch after `committed.last`: a driver
        that is believed dead may still commit it.
        """

    def columns(self, stream_columns: SqlColumns) -> SqlColumns | None:
        """Return expressions over the stream's columns that replace them, or None to keep them.

        Called when the pipeline's frame is built.
        """

    def row_encoder(self, schema: pa.Schema) -> RowEncoder | None:
        """Return how tasks compute the columns of `columns`, or None if only Spark can.

        Called when the pipeline's frame is built, only if `columns` replaces the columns.
        """

    def writer_factory(self, schema: pa.Schema) -> SinkWriterFactory:
        """Return the factory of writers for rows of `schema`.

        Called when the pipeline's frame is built. The factory is used for many epochs.
        """

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        """Make the committables visible and move the commit marker to `epoch`.

        Called after the manifest of `epoch` has become durable, and again after failures until it
        returns. An epoch without rows has no committables. A repeated call with the same arguments
        must change nothing.
        """


# ---- Lookup tables.


@dataclass(frozen=True)
class LookupContext:
    """The arguments for opening a lookup table."""

    table: LookupTable
    # The table's folder in the data directory, and a folder of this pipeline for files that tasks
    # read.
    data_uri: str
    scratch_uri: str


class LookupReader(Protocol):
    """A lookup table as seen by one task."""

    def find(self, keys: list[pa.Array]) -> LookupResult:
        """Return the rows for each key. Keys are given as columns without NULLs.

        Called once per batch of the joined rows.
        """


class LookupReaderFactory(Protocol):
    """Opens readers of a lookup table. It is pickled on the driver and used in the tasks."""

    def open(self, as_of: Any, now_us: int) -> LookupReader:
        """Open a reader for the version `as_of` at the processing time of the epoch."""


class LookupConnector(Protocol):
    """An open lookup table. All methods are called on the driver."""

    def as_of(self, spark: SparkSession) -> Any:
        """Return the JSON value by which all tasks of an epoch see the same version of the table.

        Called once per epoch. Returns None if the table has no versions: tasks then see it as it
        is when they query it.
        """

    def reader_factory(
        self, columns: Sequence[tuple[str, str]], keys: Sequence[str]
    ) -> LookupReaderFactory:
        """Return the factory of readers that return `columns` for values of the columns `keys`.

        Called when the pipeline's frame is built.
        """


# ---- How the registry opens connectors.


class LookupFactory(Protocol):
    """Opens a lookup table. Checks that it exists and has the declared columns."""

    def __call__(self, context: LookupContext) -> LookupConnector: ...


class SourceFactory(Protocol):
    """Opens a source. Checks that it exists and has the declared columns."""

    def __call__(self, context: SourceContext) -> SourceConnector: ...


class SinkFactory(Protocol):
    """Opens a sink. Must not access the target, which `SinkConnector.recover` checks."""

    def __call__(self, context: SinkContext) -> SinkConnector: ...


# ---- Helpers for sources and sinks.


def balance_splits(splits: Iterable[tuple[int, Split]], tasks: int) -> list[list[Split]]:
    """Distribute splits, which are given with their sizes, so that tasks read about the same."""
    balanced: list[list[Split]] = [[] for _ in range(tasks)]
    loads = [0] * tasks
    for size, split in sorted(splits, key=lambda item: -item[0]):
        least = loads.index(min(loads))
        balanced[least].append(split)
        loads[least] += size
    return balanced


def sink_ahead_error(message: str, remedies: str, last: EpochId | None) -> TidegateError:
    """Return the error for a sink that contains rows of epochs outside the pipeline's lineage.

    If the pipeline has committed an epoch, the hint also offers to keep these rows.
    """
    newest, keep = "", ""
    if last is not None:
        newest = f"; its last epoch is {last.epoch} of generation {last.generation}"
        keep = (
            "; or keep these rows, and accept that rows which are read again are duplicated: "
            f"RESTORE FROM CHECKPOINT {last.epoch} WITH (sinks = 'keep')"
        )
    return RunError("TG-525", f"{message}{newest}", hint=f"{remedies}{keep}.")


def sweep_staged(store: Store, folder: str, committed: CommittedState) -> None:
    """Delete files that were staged for committed epochs, and files that were not finished.

    The names of staged files begin with the stamp of their epoch. Files of the next epoch are kept,
    because a zombie driver may still commit it.
    """
    obsolete: list[str] = []
    if committed.last is not None:
        last = committed.last.stamp
        names = [item.name for item in store.list(folder)]
        obsolete = [name for name in names if name.rpartition("/")[2][: len(last)] <= last]
    store.delete([*obsolete, *(item.name for item in store.list_unfinished(folder))])
