"""What connectors offer: sources cut ranges and read them, sinks stage rows and commit them.

A source says how far it is and cuts the range of an epoch; tasks then read exactly the rows of that
range, any number of times. A sink has its rows staged by tasks, where nobody sees them; what they
have staged comes back as *tokens*. Once a manifest has decided an epoch, `commit` makes its tokens
visible, any number of times with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.checkpoint.manifest import EpochRange
from tidegate.errors import RunError, TidegateError
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.catalog.connector import Columns
    from tidegate.catalog.objects import LookupTable, Sink, Source
    from tidegate.catalog.settings import Settings
    from tidegate.checkpoint.manifest import Manifest
    from tidegate.operators.join.lookup_results import LookupResult
    from tidegate.storage import Store


# ---- How much an epoch reads while there is more than it should: so much that it takes its time.

# Before anything is known, and the bounds of what can be learnt.
_FIRST_BYTES = 256 << 20
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 8 << 30
# One epoch may have been slow or fast by chance.
_LEAST_CHANGE, _MOST_CHANGE = 0.25, 4.0
# How much larger one of two epochs must be to tell something about both.
_TELLING = 1.2


class EpochSizer:
    """The bytes that an epoch may read of a source, learnt from the epochs of before."""

    def __init__(self, target_seconds: float = 1.0) -> None:
        self.target_seconds = target_seconds
        self.bytes = _FIRST_BYTES
        # What an epoch takes however little it reads.
        self.fixed_seconds = 0.0
        self._last: tuple[int, float] | None = None

    def fitting(self, sizes: Iterable[int]) -> int:
        """How many of these an epoch takes: one at least, and no more than fit."""
        totals = list(accumulate(sizes))
        return max(sum(total <= self.bytes for total in totals), min(len(totals), 1))

    def learn(self, size: int, seconds: float) -> None:
        """An epoch that could have read more has read this much in this time."""
        if self._last is not None:
            self._learn_fixed(*self._last, size, seconds)
        self._last = size, seconds
        # On a slow machine an epoch takes its time anyway: half of it at least is for reading.
        reading = max(self.target_seconds - self.fixed_seconds, self.fixed_seconds)
        change = reading / max(seconds - self.fixed_seconds, 0.001)
        change = min(max(change, _LEAST_CHANGE), _MOST_CHANGE)
        self.bytes = int(min(max(size * change, _LEAST_BYTES), _MOST_BYTES))

    def _learn_fixed(self, size: int, seconds: float, size_now: int, seconds_now: float) -> None:
        """Two epochs of different sizes tell what of their time is not for reading."""
        if max(size, size_now) < _TELLING * min(size, size_now):
            return
        per_byte = max((seconds_now - seconds) / (size_now - size), 0.0)
        found = min(seconds - per_byte * size, seconds_now - per_byte * size_now)
        self.fixed_seconds += (max(found, 0.0) - self.fixed_seconds) / 2


# JSON: how far a source is, what a task reads, what a task has staged.
Offset = Any
Split = list[Any]
Committable = Any
# Columns as SQL, with their names.
SqlColumns = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class SourceContext:
    """What a source gets: where it may keep data of its own, and the settings in force."""

    source: Source
    # The folder of the source in the data directory, and where this pipeline keeps what belongs to
    # its offsets, as URIs.
    data: str
    offsets: str
    settings: Settings
    pace: EpochSizer = field(default_factory=EpochSizer)


@dataclass(frozen=True)
class Read:
    """What is wanted of a source: stored columns by name, and what is to be told of each row."""

    columns: tuple[tuple[str, str], ...]
    # Whether rows must say where they stood.
    arrival: bool = False
    # Whether records must say where they stood in a file, and bad ones why they are bad.
    located: bool = False
    # Whether tasks may decode what they read as Spark does; if not, Spark has to.
    vectors: bool = True


@dataclass(frozen=True)
class InputRange:
    """The range of an epoch: where it ends, and what each task reads of it."""

    offset: Offset
    splits: list[Split]
    # How many rows it has, where no task counts them.
    rows: int | None = None
    # Whether more is there already.
    more: bool = False
    # Bytes to be read, roughly.
    size: int = 0
    # How many partitions there are, if each has a watermark of its own; rows carry their number.
    partitions: int | None = None
    # Records that were gone before they could be read, and records that are there to be read yet.
    lost: int = 0
    behind: int | None = None
    # How much of the input it reads, and how much is there to be read after it, in any unit of the
    # source's; None if nobody can tell.
    progress: tuple[int, int] | None = None
    # What only Spark's own reader can read, or reads faster.
    native: Any = None


class SplitReader(Protocol):
    """Reads the shares of a task; goes to the task as it is."""

    @property
    def schema(self) -> pa.Schema: ...

    def read(self, split: Any) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Batches of the schema, each with the number of records in it."""


class Leaf(Protocol):
    """Makes a frame of what tasks read, which also tells what time it is."""

    def __call__(self, reader: SplitReader) -> DataFrame: ...

    def counted(self, frame: DataFrame) -> DataFrame:
        """A frame whose rows are counted here, because readers cannot tell how many they are."""


class SourceConnector(Protocol):
    """A source that is open: it cuts ranges, and is read as a frame."""

    def plan_range(self, since: Offset | None, tasks: int) -> InputRange | None:
        """The next range after an offset; None if nothing is new."""

    def on_commit(self, offset: Offset) -> None:
        """A manifest has this offset now."""

    def direct(self, read: Read) -> SplitReader | None:
        """A reader whose rows tasks can use as they are; None if Spark must make them."""

    def frame(self, spark: SparkSession, read: Read, leaf: Leaf) -> DataFrame:
        """The stored columns (and _op, and BAD_RECORD) of what tasks read by their orders."""

    def native_frame(self, spark: SparkSession, read: Read, input_range: InputRange) -> DataFrame:
        """The same of one cut, read by Spark itself."""


@dataclass(frozen=True)
class StreamRows:
    """What the rows of a stream look like: columns with their types, without _op."""

    columns: tuple[tuple[str, str], ...]
    kind: ChangelogKind = ChangelogKind.APPEND
    # The columns that tell rows apart, if rows are replaced or retracted and some do.
    key: tuple[str, ...] | None = None
    has_op: bool = False
    nullable: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SinkContext:
    """What a sink gets: `pipeline` names the output of this pipeline for good."""

    sink: Sink
    # The folder of the stream in the data directory, as a URI.
    data: str
    pipeline: str
    show: Callable[[str, int, Any], None]
    # What the stream gives it: columns with Spark's names of their types, _op among them.
    columns: Columns = ()
    rows: StreamRows | None = None
    # The manifests to which the pipeline can go back.
    kept: Callable[[], Sequence[Manifest]] = tuple


@dataclass(frozen=True, order=True)
class EpochId:
    """An epoch and the generation it belongs to."""

    generation: int
    epoch: int

    @property
    def stamp(self) -> str:
        return f"{self.generation:03d}-{self.epoch:012d}"


@dataclass(frozen=True)
class CommittedState:
    """What the newest manifest says when a sink is opened."""

    # The last epoch; None before the first one.
    last: EpochId | None
    committables: Sequence[Committable] = ()
    # The epoch that the tokens were made in; the last one if it is not said.
    staged: EpochId | None = None
    # The epochs that led to the last one; all of its generation if it is not said.
    line: Sequence[EpochRange] = ()
    # What the sink has of generations before this one may be left there.
    kept_before: int = 0

    @classmethod
    def by(cls, manifest: Manifest, sink: str) -> CommittedState:
        """What a manifest says about a sink."""
        last = EpochId(manifest.generation, manifest.epoch) if manifest.epoch >= 0 else None
        state = manifest.sinks.get(sink)
        if state is None or state.epoch < 0:
            return cls(last, (), None, manifest.line, manifest.kept_before)
        staged = EpochId(state.generation, state.epoch)
        return cls(last, state.committables, staged, manifest.line, manifest.kept_before)

    @property
    def committables_epoch(self) -> EpochId | None:
        """The epoch that the tokens belong to."""
        return self.staged or self.last

    def knows(self, epoch: EpochId) -> bool:
        """Whether what a sink has of an epoch belongs there."""
        if epoch.generation < self.kept_before:
            return True
        line = self.line
        if not line and self.last is not None:
            line = [EpochRange(self.last.generation, -1, self.last.epoch)]
        return any(stretch.holds(epoch.generation, epoch.epoch) for stretch in line)

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Where the line went back: the last epoch before, and the first one after."""
        pairs = zip(self.line, self.line[1:], strict=False)
        return [(before.last, after.first) for before, after in pairs]


class SinkWriter(Protocol):
    """Stages the rows of one task for one sink."""

    def add(self, rows: pa.Table) -> None: ...

    def finish(self) -> list[Committable]:
        """What was staged is safe now."""


class SinkWriterFactory(Protocol):
    """Opens stagers; goes to the task as it is."""

    def open(self, stamp: str, task: int) -> SinkWriter: ...


class SinkConnector(Protocol):
    """A sink that is open."""

    def recover(self, committed: CommittedState) -> None:
        """Check the target, finish what was decided, remove what was only staged."""

    def columns(self, given: SqlColumns) -> SqlColumns | None:
        """What the sink wants instead of the columns of the stream; None: just those."""

    def writer_factory(self, schema: pa.Schema) -> SinkWriterFactory:
        """What stages rows of a stream of this schema in tasks."""

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        """Make an epoch visible; again changes nothing."""


@dataclass(frozen=True)
class LookupContext:
    """What a lookup table gets: `data` is its folder in the data directory, `scratch` one of this
    pipeline for what tasks read, both as URIs."""

    table: LookupTable
    data: str
    scratch: str


class LookupReader(Protocol):
    """A lookup table as one task asks it."""

    def find(self, keys: list[pa.Array]) -> LookupResult:
        """The rows for these keys, one for each row that asks; none of them is NULL."""


class LookupReaderFactory(Protocol):
    """Asks a lookup table; goes to the task as it is."""

    def open(self, as_of: Any, now_us: int) -> LookupReader: ...


class LookupConnector(Protocol):
    """A lookup table that is open."""

    def as_of(self, spark: SparkSession) -> Any:
        """What the tasks of an epoch must know to see the same table, as JSON; None if nobody can
        tell."""

    def reader(
        self, columns: Sequence[tuple[str, str]], keys: Sequence[str]
    ) -> LookupReaderFactory:
        """What asks for columns (with their types) by key columns."""


class LookupFactory(Protocol):
    """Opens a lookup table."""

    def __call__(self, context: LookupContext) -> LookupConnector: ...


class SourceFactory(Protocol):
    """Opens a source."""

    def __call__(self, context: SourceContext) -> SourceConnector: ...


class SinkFactory(Protocol):
    """Opens a sink."""

    def __call__(self, context: SinkContext) -> SinkConnector: ...


# ---- A sink that has rows of which the pipeline knows nothing.


def sink_ahead_error(message: str, ways_out: str, last: EpochId | None) -> TidegateError:
    """`ways_out` are those besides leaving the rows there, which needs an epoch to go on from."""
    at, leave = "", ""
    if last is not None:
        at = f", and the pipeline is at epoch {last.epoch}"
        leave = (
            f"; or leave them there: RESTORE FROM CHECKPOINT {last.epoch} WITH (sinks = 'keep'); "
            "(rows that are read again will be there twice)"
        )
    return RunError("TG-504", f"{message}{at}", hint=f"{ways_out}{leave}.")


# ---- What lies staged and was never committed.


def sweep_staged(store: Store, folder: str, committed: CommittedState) -> None:
    """Remove what was staged for decided epochs, and what was written half.

    The names of staged files begin with the stamp of their epoch. Those of the next epoch are left
    alone: a process that should be dead could still decide it, and then its rows must be there.
    """
    over: list[str] = []
    if committed.last is not None:
        last = committed.last.stamp
        names = [item.name for item in store.list(folder)]
        over = [name for name in names if name.rpartition("/")[2][: len(last)] <= last]
    store.delete([*over, *(item.name for item in store.list_unfinished(folder))])
